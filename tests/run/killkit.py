"""A run of twenty tasks beside a person's repository, in which anything is killed, and what has to hold of it after.

Every task's agent asks a model through the gateway and builds a file on what it said and on the files that the task
needs, so that the last tree says whether all was done, on what, and in which order. Two tasks that begin at once write
the same place of one file. All of it is looked at with git and the database alone.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from tests.processes import naming
from tests.run import builder

from ropewalk.core import events
from ropewalk.testing.model_server import ModelServer

TASKS, JOBS, REGIONS = 20, 4, 5
WORDS = "one two three four five six"
PATIENCE = 400.0
KEY = "sk-real-key-0123456789"

Kind = Literal["driver", "worker", "watch", "gateway", "shim", "agent", "group", "power"]
VICTIMS: tuple[Kind, ...] = ("driver", "driver", "worker", "group", "gateway", "shim", "agent", "watch", "power")

_LOOK_SECONDS = 0.2
_ASKED = re.compile(rb"TASK (\S+) (work|conflict) STEP (\d)")
_CHILDREN = {b"ropewalk.gateway.process": "gateway", b"shim.py": "shim"}


class Seen(NamedTuple):
    """Is a process of a run: its id, what it is, the task whose agent it is, and its words."""

    pid: int
    kind: str
    task: str = ""
    words: bytes = b""


def processes(folder: Path) -> Iterator[Seen]:
    """Yields the living processes that name a folder in their words, their environment or their place."""
    for pid, words, said in naming(folder):
        variables = dict(one.partition(b"=")[::2] for one in said.split(b"\0"))
        kind = next((kind for word, kind in _CHILDREN.items() if word in words), "")
        if kind == "shim":
            variables |= _launched(words)
        task = variables.get(b"ROPEWALK_TASK", b"").decode().rpartition(".")[2]
        yield Seen(pid, kind or ("agent" if b"ROPEWALK_LANE" in variables else "other"), task, words)


def _launched(words: bytes) -> dict[bytes, bytes]:
    """Gives the variables of the agent that a shim was started for."""
    for word in words.split(b"\0"):
        try:
            found = msgspec.json.decode(Path(os.fsdecode(word), "launch.json").read_bytes())["env"]
        except OSError:
            continue
        return {name.encode(): value.encode() for name, value in found.items()}
    return {}


def name_of(number: int) -> str:
    """Gives the name of a task, which is that of its file."""
    return f"f{number:02}"


def needs_of(number: int) -> list[str]:
    """Gives what a task needs: one of its own region, and one of another."""
    return [name_of(number - back) for back in (REGIONS, REGIONS - 1) if number >= REGIONS]


def files() -> dict[str, str]:
    """Gives what is on the run's branch when nothing is ever killed."""
    made = {"README.md": "# Demo\n", builder.SHARED: f"base\n{name_of(0)}\n{name_of(1)}\n"}
    for number in range(TASKS):
        needed = [made[need].encode() for need in needs_of(number)]
        made[name_of(number)] = builder.built(WORDS, WORDS, needed)
    return made


class Machine:
    """Is where a run's processes see a boot id of their own, so that the machine can lose its power.

    They share a mount namespace, which holds their workspaces' mounts too; with its last process all that is gone. Who
    may not make one keeps the boot id of the real machine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.boots = folder, 0
        self._anchor: subprocess.Popen[bytes] | None = None
        self.boot()

    def boot(self) -> None:
        """Boots: what runs next is told another id."""
        self.close()
        self.boots += 1
        said = self.folder / f"boot-{self.boots}"
        digits = hashlib.sha256(os.fsencode(said)).hexdigest()
        said.write_text("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])) + "\n")
        script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && echo up && exec cat'
        made = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, str(said)], cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert made.stdout is not None
        if made.stdout.readline() == b"up\n":
            self._anchor = made
        else:
            _end(made)

    def words(self, *argv: str) -> list[str]:
        """Gives the command line by which a program runs on it."""
        if self._anchor is None:
            return list(argv)
        return ["nsenter", f"--mount=/proc/{self._anchor.pid}/ns/mnt", "--", *argv]

    @property
    def anchor(self) -> int:
        """Gives the process that keeps it up; 0 where its boot id is the real machine's."""
        return self._anchor.pid if self._anchor is not None else 0

    def close(self) -> None:
        """Ends it."""
        if self._anchor is not None:
            _end(self._anchor)
        self._anchor = None


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


class Person:
    """Is a person with a repository, and the command."""

    def __init__(self, folder: Path, env: Mapping[str, str], server: ModelServer, machine: Machine) -> None:
        self.folder, self.repo, self.machine = folder, folder / "shop", machine
        self.data, self.temp = folder / "data", folder / "temp"
        self.temp.mkdir()
        self.env = {k: v for k, v in env.items() if not k.startswith(("GIT_DIR", "GIT_WORK"))} | {
            "XDG_DATA_HOME": str(self.data), "XDG_CONFIG_HOME": str(folder / "config"), "ROPEWALK_AGENT": "person/me",
            "ROPEWALK_CAGE": "none", "TMPDIR": str(self.temp)}  # fmt: skip
        self.git("init", "-q", "-b", "main", str(self.repo), cwd=folder)
        (self.repo / "README.md").write_text("# Demo\n")
        (self.repo / builder.SHARED).write_text("base\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")
        endpoints = folder / "config" / "ropewalk" / "endpoints.toml"
        endpoints.parent.mkdir(parents=True)
        endpoints.write_text(f'[endpoints.up]\nurl = "{server.url("run", "paced")}"\nkey = "{KEY}"\n')
        endpoints.chmod(0o600)
        (folder / "tasks.json").write_bytes(msgspec.json.encode({"tasks": [self.task(n) for n in range(TASKS)]}))

    @property
    def store(self) -> Path:
        """Gives the store's folder."""
        return self.repo / ".git" / "ropewalk"

    @property
    def gateway(self) -> Path:
        """Gives the gateway's folder."""
        return self.data / "ropewalk" / "gateway"

    def task(self, number: int) -> dict[str, Any]:
        """Gives a task as a task file has it."""
        name, needs, shared = name_of(number), needs_of(number), number < 2
        words = msgspec.json.encode({"name": name, "needs": needs, "shared": shared}).decode()
        check = f"test $(wc -l < {name}) = {2 + len(needs)}"
        if shared:
            check += f" && grep -qx {name} {builder.SHARED} && test $(wc -l < {builder.SHARED}) -le 3"
        return {"id": name, "prompt": f"Build {name}.\n\n#do {words}", "check": check, "needs": needs,
                "region": f"region{number % REGIONS}"}  # fmt: skip

    def git(self, *words: str, cwd: Path | None = None) -> str:
        """Runs the installed git."""
        argv = ["git", "-c", "gc.auto=0", *words]
        return subprocess.run(argv, cwd=cwd or self.repo, env=self.env, check=True, capture_output=True).stdout.decode()

    def start(self, *words: str, into: Path) -> subprocess.Popen[bytes]:
        """Starts the command in the repository, in a process group of its own; what it says goes into two files."""
        argv = [sys.executable, "-m", "ropewalk.cli.main", *words, "--json"]
        with open(f"{into}.out", "wb") as out, open(f"{into}.err", "wb") as err:
            return subprocess.Popen(
                self.machine.words("env", "-C", str(self.repo), *argv), cwd=self.repo, env=self.env,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def rw(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Runs the command to its end; gives its exit code and its envelope."""
        into = self.folder / "asked"
        code = self.start(*words, into=into).wait(PATIENCE)
        said = Path(f"{into}.err").read_text()
        assert "Traceback" not in said, said
        return code, msgspec.json.decode(Path(f"{into}.out").read_bytes())


class Moment(NamedTuple):
    """Is when something is killed, and how many seconds after that.

    `begun` is the start of a driver, `made` when the store is there, `seeded` when the run is on its board, `event`
    when its drivers have told of so many events, `end` when all is done and is still to be told.
    """

    kind: Literal["begun", "made", "seeded", "event", "end"]
    event: int
    delay: float


class Kill(NamedTuple):
    """Is what was killed, when, what was done by then, and whether the run was on its board."""

    kind: Kind
    moment: str
    done: tuple[str, ...]
    is_seeded: bool


class KilledRun:
    """Is a whole run, with what was killed in it."""

    def __init__(self, folder: Path, env: Mapping[str, str], server: ModelServer, seed: int) -> None:
        self.server, self.draw, self.folder = server, random.Random(seed), folder
        server.add("paced", [{"text": WORDS, "pace": 0.05}])
        self.machine = Machine(folder)
        self.person = Person(folder, env, server, self.machine)
        self.helped = bool(self.draw.getrandbits(1))
        """Says whether a second worker of the board does some of it."""
        self.kills: list[Kill] = []
        self.may_ask_again: Counter[str] = Counter()
        self.asked_when_done: dict[str, int] = {}
        self.run = ""
        self.begun, self._look_at = 0, 0.0
        self.driver: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self.watch: subprocess.Popen[bytes] | None = None

    # processes

    @property
    def _agent(self) -> list[str]:
        return ["--command", f"{sys.executable} -I -S {builder.__file__}"]

    def go_on(self) -> None:
        """Starts the run, or goes on with it; and whoever looks on and helps."""
        if not self.run and self.begun:
            code, said = self.person.rw("runs", "list")
            assert code == 0 or said["error"]["code"] in ("E_NOT_FOUND", "E_NO_BOARD"), said
            listed = said["result"]["runs"] if code == 0 else []
            assert len(listed) <= 1, listed
            self.run = listed[0]["id"] if listed else ""
        if self.driver is None:
            jobs = str(JOBS - 2 if self.helped else JOBS)
            asked = ["--tasks", str(self.folder / "tasks.json"), *self._agent, "--jobs", jobs, "--heirs", "99"]
            self.driver = self._start("driver", *(["runs", "resume", self.run] if self.run else ["run", *asked]))
        if self.run and self.watch is None:
            self.watch = self._start("watch", "watch", self.run, "--patience", "600")
        if self.run and self.helped and self.worker is None:
            self.worker = self._start("worker", "work", "--until-empty", "--worker", "helper", "--jobs", "2",
                                      "--heirs", "99", *self._agent)  # fmt: skip

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        self.begun += 1
        return self.person.start(*words, into=self.folder / f"said-{self.begun:02}-{name}")

    def strike(self, moment: str) -> None:
        """Kills something."""
        kind: Kind = self.draw.choice(VICTIMS)
        found = list(processes(self.folder))
        victims = [one for one in found if one.kind == kind]
        child = {"worker": self.worker, "watch": self.watch}.get(kind)
        if kind in ("worker", "watch") and (child is None or child.poll() is not None):
            kind = "driver"
        if kind in ("gateway", "shim", "agent") and not victims:
            kind = "group"
        done = tuple(self.done())
        self.asked_when_done |= {task: self.asked(task) for task in done if task not in self.asked_when_done}
        self.kills.append(Kill(kind, moment, done, self._is_seeded()))
        if kind in ("gateway", "shim", "agent"):
            victim = self.draw.choice(victims)
            _kill(victim.pid)
            hit = [victim] if kind != "gateway" else [*found, *processes(self.folder)]
            self.may_ask_again.update({one.task for one in hit if one.task})
        elif kind == "power":
            self._lose_power()
        elif kind == "group":
            assert self.driver is not None
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
            self.driver = None
        elif kind == "driver":
            assert self.driver is not None
            self.driver.kill()
            self.driver.wait()
            self.driver = None
        elif kind == "worker":
            assert self.worker is not None
            self.worker.kill()
            self.worker.wait()
            self.worker = None
        else:
            assert self.watch is not None
            self.watch.kill()
            self.watch.wait()
            self.watch = None

    def _lose_power(self) -> None:
        """Kills all that lives, and boots."""
        hit: set[str] = set()
        while found := list(processes(self.folder)):
            for one in found:
                _kill(one.pid)
            hit |= {one.task for one in found if one.task} | self.held()  # nothing of a workspace outlives the power
            for child in (self.driver, self.worker, self.watch):
                if child is not None:
                    child.wait()
        self.driver = self.worker = self.watch = None
        self.may_ask_again.update(hit)
        self.machine.boot()

    # moments

    def events(self) -> int:
        """Gives how many events of the run its drivers have told of so far."""
        try:
            (path,) = self.person.store.glob("runs/*/events.jsonl")
            return path.read_bytes().count(b"\n")
        except (ValueError, OSError):
            return 0

    def wait_for(self, moment: Moment) -> bool:
        """Waits for a moment; says whether the run's driver still goes on."""
        assert self.driver is not None
        until = time.monotonic() + PATIENCE
        while self.driver.poll() is None and not self._is_now(moment):
            assert time.monotonic() < until, self.story()
            time.sleep(0.01)
        try:
            self.driver.wait(moment.delay)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _is_now(self, moment: Moment) -> bool:
        if moment.kind == "begun":
            return True
        if moment.kind == "made":
            return (self.person.store / "FORMAT").exists()
        if moment.kind == "seeded":
            return self._is_seeded()
        if moment.kind == "event" and self.events() >= moment.event:
            return True
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_SECONDS  # a look is a git child, and takes from what it looks at
        return len(self.done()) == TASKS

    def _is_seeded(self) -> bool:
        return bool(self._tasks("refs/swarm/runs"))

    def done(self) -> list[str]:
        """Gives the tasks that have a verdict."""
        return self._tasks("refs/swarm/verdicts")

    def held(self) -> set[str]:
        """Gives the tasks that are claimed, and not done."""
        return set(self._tasks("refs/swarm/claims")) - set(self.done())

    def _tasks(self, below: str) -> list[str]:
        if not (self.person.store / "repo.git" / "HEAD").exists():
            return []
        done = subprocess.run(
            ["git", f"--git-dir={self.person.store}/repo.git", "for-each-ref", "--format=%(refname)", below],
            capture_output=True, text=True, timeout=60)  # fmt: skip
        return [line.rpartition(".")[2] for line in done.stdout.split()]

    def taken_over(self) -> Counter[str]:
        """Gives for each task how often one turn of an attempt at it was taken over, at most, by the run's drivers."""
        most: Counter[str] = Counter()
        for path in self.person.store.glob("runs/*/events.jsonl"):
            told = events.read(str(path))[0]
            counts = Counter((e["task"], e["att"], e["turn"]) for e in told if e["event"] == "takeover")
            for (task, _, _), count in counts.items():
                most[task] = max(most[task], count)
        return most

    # what the model was asked

    def requests(self) -> Counter[tuple[str, str, int]]:
        """Gives how often each task's agent asked for each step of its work, and of its conflicts."""
        asked: Counter[tuple[str, str, int]] = Counter()
        for one in self.server.entries("run"):
            for task, kind, step in _ASKED.findall(self.server.body(one.number) or b""):
                asked[task.decode(), kind.decode(), int(step)] += 1
        return asked

    def asked(self, task: str) -> int:
        """Gives how often the model was asked by a task's agents."""
        return sum(count for (one, _, _), count in self.requests().items() if one == task)

    # the end

    def end(self) -> dict[str, Any]:
        """Waits for the run's end and gives what its command answered."""
        assert self.driver is not None
        code = self.driver.wait(PATIENCE)
        out, err = self._said()
        assert b"Traceback" not in err, err.decode()
        found: dict[str, Any] = msgspec.json.decode(out)
        assert code == 0 and found["ok"], (code, found, self.story())
        for child in (self.worker, self.watch):
            if child is not None:
                assert child.wait(PATIENCE) == 0, self.story()
        result: dict[str, Any] = found["result"]
        return result

    def _said(self) -> tuple[bytes, bytes]:
        last = sorted(self.folder.glob("said-*-driver.out"))[-1]
        return last.read_bytes(), last.with_suffix(".err").read_bytes()

    def story(self) -> str:
        """Gives what was killed, and what the run's commands said."""
        parts = [f"{one.kind} at {one.moment}, {len(one.done)} done" for one in self.kills]
        for path in sorted(self.folder.glob("said-*")):
            if text := path.read_text(errors="replace").strip():
                parts.append(f"--- {path.name}\n{text[-3000:]}")
        return "\n".join(parts)

    def close(self) -> None:
        """Ends what is left of it, and removes its files."""
        self._lose_power()
        self.machine.close()
        shutil.rmtree(self.person.data, ignore_errors=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself
