"""What the tests of landing on a shared board have in common: a bare repository with a board, and workers of it.

Run as a program it is one worker: it claims a task, makes a change for it and lands that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.board import invariants

from ropewalk.board import claim, holder, names, state, tasks, wire
from ropewalk.board.claim import As, Held
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Outcome, Verdict
from ropewalk.core.errors import CasMismatchError, ClaimedError
from ropewalk.plan.task import Task
from ropewalk.run.work.landing import Change, Result
from ropewalk.run.work.lease import Lease
from ropewalk.run.work.shared_landing import SharedLanding
from ropewalk.store import changes, layout
from ropewalk.store.store import Store
from storekit import STOCK, put, stock

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTS = ("one", "two")
LOGGED = 'tree=$(git rev-parse "HEAD^{tree}"); '


class Shared:
    """Is a bare repository with a board, which stands in a folder with the stores of the hosts that use it."""

    def __init__(self, folder: Path, *, address: str | None = None) -> None:
        self.folder = folder
        self.bare = folder / "board.git"
        self.address = address or str(self.bare)
        self.log = folder / "checks.log"
        if not self.bare.exists():
            stock("init", "-q", "--bare", "-b", "main", str(self.bare))
            self.plain_push({"README.md": "# Demo\n", "common": "".join(f"line {n}\n" for n in range(9))})
            board = self.board("maker")
            tasks.init(board, "test/maker", mixed=False)
            board.close()
            for host in HOSTS:
                layout.create(str(folder / f"{host}-store"), f"test-{host}", host, "main")

    def git(self, *args: str, ok: bool = True) -> str:
        """Runs stock git on the board's repository."""
        return stock("--git-dir", str(self.bare), *args, ok=ok).decode().strip()

    def plain_push(self, files: dict[str, str]) -> str:
        """Puts files on main by a plain commit, as a person's push would, and gives the commit."""
        env = {**STOCK, "GIT_INDEX_FILE": str(self.folder / f"index-{uuid.uuid4().hex}"), "GIT_DIR": str(self.bare)}

        def git(*args: str, stdin: str | None = None) -> str:
            done = subprocess.run(["git", *args], env=env, input=stdin, capture_output=True, text=True, check=True)
            return done.stdout.strip()

        while True:
            head = self.git("rev-parse", "-q", "--verify", "main", ok=False)
            if head:
                git("read-tree", head)
            for path, text in files.items():
                blob = git("hash-object", "-w", "--stdin", stdin=text)
                git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
            commit = git("commit-tree", git("write-tree"), *(["-p", head] if head else []), "-m", "by hand")
            moved = subprocess.run(
                ["git", "update-ref", "refs/heads/main", commit, head or "0" * 40], env=env, capture_output=True
            )  # fmt: skip
            if moved.returncode == 0:
                return commit

    def board(self, host: str = "one") -> RemoteBoard:
        """Opens the board on a host."""
        folder = self.folder / f"{host}-board"
        folder.mkdir(exist_ok=True)
        return RemoteBoard(self.address, str(folder))

    def store(self, host: str = "one") -> Store:
        """Opens a host's store."""
        return Store(str(self.folder / f"{host}-store"), lock_wait=60)

    def add(self, *ids: str, check: str | None = None, **more: Any) -> None:
        """Adds tasks; their check logs the tree that it passed on."""
        board = self.board("maker")
        found = [Task(one, check or self.logged(), description=f"Do {one}", **more) for one in ids]
        tasks.add(board, found, "test/maker")
        board.close()

    def logged(self, script: str = "true") -> str:
        """Gives a check that runs a script and logs how it ended on which tree."""
        return f'{LOGGED}( {script} ); rc=$?; echo "$tree $rc" >> {self.log}; exit $rc'

    def checks(self) -> list[tuple[str, int]]:
        """Gives (tree, exit code) of each check that was run to its end."""
        if not self.log.exists():
            return []
        return [(line.split()[0], int(line.split()[1])) for line in self.log.read_text().splitlines()]

    def main(self) -> list[str]:
        """Gives the commits on main, oldest first."""
        return self.git("rev-list", "--reverse", "--first-parent", "main").split()

    def landed(self) -> list[str]:
        """Gives the tasks that landed, as the subjects on main name them, oldest first."""
        subjects = self.git("log", "--reverse", "--format=%s", "main").split("\n")
        return [one.removeprefix("fix ") for one in subjects if one.startswith("fix ")]

    def lawful(self, *, everything_checked: bool = True) -> None:
        """Checks the board's laws by git alone, and that the tree of each landed commit passed the check."""
        broken = invariants.broken(str(self.bare))
        assert not broken, broken
        names_ = self.landed()
        assert len(names_) == len(set(names_)), "a task landed twice"
        if everything_checked:
            passed = {tree for tree, rc in self.checks() if rc == 0}
            listed = self.git("log", "--format=%T %s", "main").split("\n")
            assert {line[:40] for line in listed if line[41:].startswith("fix ")} <= passed
        assert not self.git("for-each-ref", "refs/swarm/locks", "refs/swarm/queue")

    def verdict(self, task: str) -> Verdict:
        """Gives a task's verdict."""
        found = wire.read_verdict(self.git("log", "-1", "--format=%B", names.verdict(task)))
        assert found is not None
        return found

    def state(self, task: str) -> str:
        """Gives a task's state."""
        board = self.board("maker")
        board.refresh()
        found = state.need(board, task)
        board.close()
        assert found is not None
        return found.state


class Worker:
    """Is a worker in this process, used by one thread: its board, its store, and how it lands."""

    def __init__(self, shared: Shared, name: str = "w1", host: str = "one", *, jobs: int = 2, tell: Any = None) -> None:
        self.shared, self.name = shared, name
        self.board, self.store = shared.board(host), shared.store(host)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.landing = SharedLanding(jobs=jobs, tell=tell or (lambda kind, **facts: self.events.append((kind, facts))))
        self.stop = threading.Event()
        self.leases: dict[str, Lease] = {}

    def take(self, task: str, host: str | None = None) -> Held:
        """Claims a task."""
        self.board.refresh()
        found = state.need(self.board, task)
        assert found is not None and found.state == "ready", found
        held = claim.take(self.board, found, As(self.name, f"test/{self.name}", "command", host=host or holder.mine()))
        self.leases[task] = Lease(held, self.stop)
        return held

    def change(self, task: str, files: dict[str, str] | None = None) -> Change:
        """Makes the change of a claimed task: files on the target's head."""
        lease = self.leases[task]
        held = lease.held
        base = self.landing.head(self.board, self.store, held.task.target)
        made = changes.commit(
            self.store, agent=held.actor, message=f"fix {task}\n\nAttempt: {held.attempt}\n",
            changes=[put(path, text) for path, text in (files or {f"done/{task}": f"{task}\n"}).items()],
            parent=base, advance=None, key=None, read_file=changes.read_disk_file,
        ).changeset  # fmt: skip
        outcome = Outcome(True, 0, 0, "command", model="m", seconds=1.5, more={"landed": "{landed}", "tree": "{tree}"})
        seconds = held.task.limits.check_seconds or 60.0
        checks = str(self.shared.folder / "run")
        return Change(lease, made, base, outcome, str(uuid.uuid4()), held.task.check, seconds, checks)

    def land(self, task: str, files: dict[str, str] | None = None, *, change: Change | None = None) -> Result:
        """Lands the change of a claimed task."""
        return self.landing.land(self.board, self.store, change or self.change(task, files))

    def do(self, task: str, files: dict[str, str] | None = None) -> Result:
        """Claims a task and lands a change for it."""
        self.take(task)
        return self.land(task, files)

    def close(self) -> None:
        """Lets go of the board and the store."""
        self.board.close()
        self.store.close()


def start(shared: Shared, name: str, *given: str, host: str = "one", **env: str) -> subprocess.Popen[bytes]:
    """Starts a worker as a process that does tasks, each given as `TASK` or `TASK=FILE:TEXT`."""
    argv = [sys.executable, "-m", "tests.work.sharedkit", str(shared.folder), shared.address, name, host, *given]
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}{os.pathsep}{ROOT}"
    return subprocess.Popen(
        argv, env={**os.environ, "PYTHONPATH": path, **env}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def answers(children: Sequence[subprocess.Popen[bytes]], seconds: float = 120) -> list[dict[str, Any]]:
    """Gives what workers that ran as processes said of their tasks: one object a task, with its seconds."""
    found = []
    for child in children:
        out, err = child.communicate(timeout=seconds)
        assert child.returncode == 0, err.decode()[-3000:]
        found += [msgspec.json.decode(line) for line in out.splitlines()]
    return found


def kill(child: subprocess.Popen[bytes], how: int = signal.SIGKILL) -> None:
    """Sends a signal to a worker alone."""
    os.kill(child.pid, how)


def until(wanted: Any, seconds: float = 60.0) -> Any:
    """Waits until something is so, and gives it."""
    end = time.monotonic() + seconds
    while not (found := wanted()):
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.02)
    return found


def _main(folder: str, address: str, name: str, host: str, *given: str) -> None:
    shared = Shared(Path(folder), address=address)
    worker = Worker(shared, name, host, jobs=int(os.environ.get("RWTEST_JOBS", "2")))
    for one in given:
        task, _, rest = one.partition("=")
        path, _, text = rest.partition(":")
        while True:
            try:
                worker.take(task)
                break
            except (ClaimedError, CasMismatchError):
                time.sleep(0.1)
        change = worker.change(task, {path: text} if path else None)
        began = time.monotonic()
        result = worker.land(task, change=change)
        seconds = round(time.monotonic() - began, 2)
        said = {"task": task, "how": result.how, "commit": result.commit, "words": result.words[:300],
                "seconds": seconds, "events": [kind for kind, _ in worker.events]}  # fmt: skip
        print(msgspec.json.encode(said).decode(), flush=True)
    worker.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
