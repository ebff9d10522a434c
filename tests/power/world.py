"""A folder with a store on a model disk: commands traced on it, what they promised, and what a power loss leaves."""

from __future__ import annotations

import copy
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ropewalk.core import clock
from ropewalk.store import layout, verify
from ropewalk.store.store import Store

from .calls import Call, read, traced
from .disk import ALL, GONE, LATE, NAMES, STRICT, Disk, Outcome
from .without import sites

AGENT = "power/one"
GIT_ENV = {
    "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "stock", "GIT_AUTHOR_EMAIL": "stock@example.com", "GIT_COMMITTER_NAME": "stock",
    "GIT_COMMITTER_EMAIL": "stock@example.com",
}  # fmt: skip
TOP = Path(__file__).parents[2]
FIXED: list[Outcome] = [STRICT, NAMES, GONE, LATE, ALL]
AGAIN = ("commit", "land", "git", "gc", "repair")
"""Commands that may be run once more, however far they came."""
Check = Callable[["World"], list[str]]


class Promise(NamedTuple):
    """Is what was answered up to a moment: refs, objects, an operation, and what else must hold then."""

    refs: dict[str, str | None]
    objects: tuple[str, ...]
    op: int
    checks: tuple[Check, ...]
    store: bool


class World:
    """Is a folder with a store, the calls of commands on it, and what they promised, step by step."""

    def __init__(self, folder: Path, skip: str = "", *, init: bool = True, like: Path | None = None) -> None:
        """Makes the folder with a new store, with a copy of the store `like`, or with none."""
        self.folder = folder
        self.top = folder / "disk"
        self.store = self.top / "store"
        self.skip = skip
        self.calls: list[Call] = []
        self.steps: list[tuple[str, int, Promise]] = []
        self.commands: list[tuple[int, int, tuple[str, ...]]] = []
        self.promise = Promise({}, (), 0, (), init)
        (folder / "home").mkdir(parents=True)
        self.top.mkdir()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "ROPEWALK_"))}
        home = folder / "home"
        known = folder / "sites.json"
        known.write_text(json.dumps(sites()))
        self.env |= {"HOME": str(home), "XDG_DATA_HOME": f"{self.top}/data", "XDG_STATE_HOME": f"{home}/state",
                     "PYTHONDONTWRITEBYTECODE": "1", "RWTEST_SITES": str(known)}  # fmt: skip
        if like is not None:
            shutil.copytree(like, self.store)
        elif init:
            self.plain("init", str(self.top))
        self.disk: Disk | None = None

    # before the disk is watched

    def command(self, *words: str) -> list[str]:
        """Gives the argv of a command that tells its sites, or leaves one out."""
        how = self.skip or "--tell"
        return [sys.executable, "-m", "tests.power.without", how, *self._told(words)]

    def dying(self, *words: str, after: str = "") -> list[str]:
        """Gives the argv of a command that is killed where it would first sync the log (after a call of `after`)."""
        how = f"--die={after}" if after else "--die"
        return [sys.executable, "-m", "tests.power.without", how, *self._told(words)]

    def _told(self, words: Sequence[str]) -> list[str]:
        """Gives a command's words with the store and who asks, before a command of its own that follows `--`."""
        end = words.index("--") if "--" in words else len(words)
        return [*words[:end], "--store", str(self.store), "--as", AGENT, *words[end:]]

    def played(self, *words: str) -> list[str]:
        """Gives the argv of a part (see parts.py) that tells its sites, or leaves one out."""
        return [sys.executable, "-m", "tests.power.parts", self.skip or "--tell", *words]

    def part(self, *words: str) -> str:
        """Plays a part, traced, and gives what it answered."""
        return self.trace(self.played(*words))[0].decode().strip()

    def plain(self, *words: str, ok: bool = True) -> Any:
        """Runs a command that is not traced and gives its result, or its error where it must fail."""
        argv = [sys.executable, "-m", "ropewalk.cli.main", *self._told(words)]
        done = subprocess.run(argv, cwd=TOP, env=self.env, capture_output=True, timeout=120)
        return _result(done.stdout, done.stderr, ok)

    def watch(self) -> None:
        """Takes what is there for durable; all that follows is traced."""
        self.disk = Disk(self.top)

    # commands and promises

    def trace(
        self, argv: Sequence[str], inject: str = "", codes: Collection[int] = (0,), env: Mapping[str, str] = {}
    ) -> tuple[bytes, bytes]:
        """Runs any program, traced, and gives what it printed."""
        if self.disk is None:
            self.watch()
        log = self.folder / "trace"
        code, out, err = traced(list(argv), TOP, self.env | env, log, inject)
        assert code in codes, (code, out[-2000:], err[-2000:])
        self.calls += read(log)
        log.unlink()
        return out, err

    def run(self, *words: str, inject: str = "", ok: bool = True, meet: tuple[str, Sequence[str]] | None = None) -> Any:
        """Runs a traced command and gives its result, or its error where it must fail.

        `meet` names a function (MODULE:FUNCTION) and the argv of another command that runs right before its first call.
        """
        start = len(self.calls)
        env = {"RWTEST_MEET": json.dumps(meet)} if meet else {}
        out, err = self.trace(self.command(*words), inject, range(256), env)
        if ok:
            self.commands.append((start, len(self.calls), words))
        return _result(out, err, ok)

    def killed(self, *words: str, at: str) -> None:
        """Runs a traced command that a kill ends at a system call, such as `fdatasync:when=1`."""
        call, _, when = at.partition(":")
        self.trace(self.command(*words), f"{call}:signal=KILL:{when}", [-signal.SIGKILL])

    def git(self, *words: str, stdin: Path | None = None) -> str:
        """Runs stock git, traced, without hooks and without syncs, and gives what it printed."""
        argv = ["git", f"--git-dir={self.store}/repo.git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsync=none",
                *words]  # fmt: skip
        names = [f"{k}={v}" for k, v in GIT_ENV.items()]
        shell = ["sh", "-c", f'exec "$@" <"{stdin}"', "sh"] if stdin else []
        return self.trace(["env", *names, *shell, *argv])[0].decode().strip()

    def changes(self, *entries: dict[str, Any]) -> str:
        """Gives the path of a change list."""
        listing = self.folder / "changes.json"
        listing.write_text(json.dumps(entries))
        return str(listing)

    def commit(self, path: str, text: str, *more: str, run: Callable[..., Any] | None = None) -> str:
        """Commits one file and gives the changeset."""
        entry = {"path": path, "op": "put", "content": {"inline": text}}
        return str((run or self.run)("commit", "-m", path, "--changes", self.changes(entry), *more)["changeset"])

    def promises(
        self, step: str, *, refs: dict[str, str | None] | None = None, objects: Sequence[str] = (), op: int = 0,
        checks: Sequence[Check] = (), store: bool | None = None,
    ) -> None:  # fmt: skip
        """Ends a step: what it answered holds from here on, beside what was answered before."""
        before = self.promise
        self.promise = Promise(
            before.refs | (refs or {}), (*before.objects, *objects), max(before.op, op),
            (*before.checks, *checks), before.store if store is None else store,
        )  # fmt: skip
        self.steps.append((step, len(self.calls), self.promise))

    # power losses

    def led(self) -> set[str]:
        """Gives the sites of the code that led to a sync in this world."""
        return {site for call in self.calls for site in call.sites}

    def losses(self, outcomes: Sequence[Outcome], without: Collection[str] = ()) -> Iterator[str]:
        """Loses power after each step and yields what is wrong with what the disk may hold then."""
        with self.aside() as disk:
            done = 0
            for step, until, promise in self.steps:
                if not until:
                    continue  # nothing was done yet
                disk.play(self.calls[done:until], without)
                done = until
                for outcome in outcomes:
                    for sentence in self.found(disk, outcome, promise):
                        yield f"{step}, outcome {outcome}: {sentence}"

    def cuts(self, seed: int, count: int) -> Iterator[str]:
        """Loses power in the middle of commands and yields what is wrong: then, and with the command run once more."""
        draw = random.Random(seed)
        with self.aside() as disk:
            changes = [n for n, call in enumerate(self.calls) if disk.counts(call)]
            done = 0
            for cut in sorted(draw.sample(changes, min(count, len(changes)))):
                disk.play(self.calls[done : cut + 1])
                done = cut + 1
                before = [p for _, until, p in self.steps if until <= cut]
                words = next((w for start, end, w in self.commands if start <= cut < end), ())
                again = functools.partial(_run_again, words=words) if words[:1] and words[0] in AGAIN else None
                outcome = draw.choice([*FIXED, draw.randrange(1 << 30)])
                later = next((p for _, until, p in self.steps if until > cut), None)
                for sentence in self.found(disk, outcome, before[-1], again, later) if before else []:
                    yield f"cut after call {cut}, in {' '.join(words[:2])}, outcome {outcome}: {sentence}"

    @contextmanager
    def aside(self) -> Iterator[Disk]:
        """Puts the folder aside, so that images can be in its place; gives the disk as it was at the start."""
        assert self.disk is not None
        live = self.folder / "live"
        self.top.rename(live)
        start = self.disk
        try:
            yield copy.deepcopy(start)
        finally:
            live.rename(self.top)

    def found(
        self, disk: Disk, outcome: Outcome, promise: Promise, again: Check | None = None, later: Promise | None = None
    ) -> list[str]:
        """Opens an image in the place of the folder, as the first command after a boot does; gives what is wrong."""
        disk.image(self.top, outcome)
        boot, known = clock.boot_id, layout.boot_id
        clock.boot_id = layout.boot_id = lambda: f"after-{outcome}"  # type: ignore[assignment]
        try:
            wrong = self.opened(self.store, promise, later) if promise.store else []
            for check in promise.checks:
                wrong += check(self)
            if again is not None:
                wrong += again(self)
        except Exception as error:  # any failure is a finding of the test
            wrong = [f"{type(error).__name__}: {error}"]
        finally:
            clock.boot_id, layout.boot_id = boot, known
            shutil.rmtree(self.top)
        return wrong

    def opened(self, root: Path, promise: Promise | None = None, later: Promise | None = None) -> list[str]:
        """Opens a store, holds it against a promise (of refs alone: the present one) and gives what is wrong.

        A command that was at work may have come as far as what it answered `later`.
        """
        promise = promise or Promise(self.promise.refs, (), 0, (), True)
        wrong: list[str] = []
        with Store(str(root)) as store:
            wrong += store.warnings
            present = dict(store.refs())
            for name, oid in promise.refs.items():
                if present.get(name) not in (oid, later.refs.get(name) if later else oid):
                    wrong.append(f"{name} is at {present.get(name)}, not at {oid}")
            for oid in promise.objects:
                if store.objects.find(oid) is None:
                    wrong.append(f"the object {oid} is lost")
            if store.last_op() < promise.op:
                wrong.append(f"the log ends at {store.last_op()}, before {promise.op}")
            wrong += verify.verify(store, deep=True, progress=lambda line: None).problems
        return wrong + fsck(root / "repo.git")


def _run_again(world: World, words: tuple[str, ...]) -> list[str]:
    """Runs a command that was interrupted once more; gives what is wrong with how it ended."""
    world.plain(*words)
    return world.opened(world.store, Promise({}, (), 0, (), True))


def stock(folder: Path, *words: str) -> str:
    """Runs stock git in a folder, untraced, and gives what it printed."""
    done = subprocess.run(["git", *words], cwd=folder, env=GIT_ENV, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.strip()


def fsck(repo: Path) -> list[str]:
    """Gives what stock git says is wrong with a repository."""
    done = subprocess.run(["git", f"--git-dir={repo}", "fsck", "--no-dangling"], env=GIT_ENV, capture_output=True)
    said = done.stderr.decode("utf-8", "replace").strip()
    return [f"git fsck {repo.name}: {said}"] if done.returncode or "error" in said else []


def _result(out: bytes, err: bytes, ok: bool) -> Any:
    assert out.strip(), err.decode("utf-8", "replace")[-2000:]
    envelope = json.loads(out.splitlines()[-1])
    assert envelope["ok"] == ok, envelope
    return envelope["result"] if ok else envelope["error"]


def there(path: Path) -> bool:
    """Says whether there is anything at a path."""
    return os.path.lexists(path)
