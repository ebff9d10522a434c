"""A worker is killed, or stopped, at the start of a child process or the move of a ref; the laws hold by git alone.

The points are the calls by which the worker starts a process, makes an operation durable, or shows a ref; strace counts
them. After a kill the laws hold at once, another worker finishes the task, and nothing is left. A worker that was
stopped, whose task another took over meanwhile, wakes up and neither lands nor says anything.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.board import invariants
from tests.board.boardkit import ACTOR, BoardKit, bare
from tests.crash.tracing import Held, Point, Subject, attached, command, environment, injection

from ropewalk.board import recover, state, tasks
from ropewalk.board.base import Board
from ropewalk.board.remote import RemoteBoard
from ropewalk.core.errors import RopewalkError
from ropewalk.plan.task import Task
from storekit import stock

pytestmark = pytest.mark.crash

FULL = bool(os.environ.get("RWTEST_FULL"))
KILLS = int(os.environ.get("RWTEST_KILLS", "70" if FULL else "1"))
STOPS = int(os.environ.get("RWTEST_STOPS", "30" if FULL else "1"))
SEED = int(os.environ.get("RWTEST_SWEEP_SEED", "1"))
CALLS = ("vfork", "fork", "clone", "clone3", "fdatasync", "rename")
TRACE = "trace=" + ",".join(f"?{name}" for name in CALLS)
AGENT = "#!/bin/sh\ncat > /dev/null\necho x > done.txt\n"
PATIENCE = 20.0
"""Is for how many seconds another worker gets the time to do the task of one that is stopped."""

_LINE = re.compile(r"^(\w+)\(")


class Place(NamedTuple):
    """Is a folder with a board of one task, and its kind: `store` or `bare`."""

    folder: Path
    kind: str

    @property
    def board(self) -> Path:
        """Gives what `--board` names."""
        return self.folder / "board"

    @property
    def repository(self) -> Path:
        """Gives the bare repository."""
        return self.board / "repo.git" if self.kind == "store" else self.board

    def env(self) -> dict[str, str]:
        """Gives the environment of a worker."""
        return environment(self.folder / "home") | {"XDG_CACHE_HOME": str(self.folder / "home" / "cache")}

    def words(self, worker: str, *more: str) -> list[str]:
        """Gives a worker's command line."""
        return ["work", "--board", str(self.board), "--command", str(self.folder / "agent"), "--cage", "none",
                "--worker", worker, "--as", f"test/{worker}", *more]  # fmt: skip

    def subject(self) -> Subject:
        """Gives the worker that is struck."""
        return Subject(self.words("w1", "--once"), self.folder, self.env(), self.folder / "gits")

    def opened(self) -> Board:
        """Opens the board; a store shows first what a dead process did not."""
        if self.kind == "store":
            kit = BoardKit(self.board, lock_wait=5)
            kit.kit.store.show()
            return kit.board
        return RemoteBoard(str(self.board), str(self.folder / "reader"))

    def another(self) -> subprocess.Popen[bytes]:
        """Starts another worker, which does what is left."""
        words = command(*self.words("w2", "--until-empty", "--patience", "60"))
        return subprocess.Popen(words, cwd=self.folder, env=self.env(), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def finish(self) -> None:
        """Lets another worker do what is left."""
        child = self.another()
        out, err = child.communicate(timeout=240)
        assert b"Traceback" not in err, err.decode()
        assert child.returncode == 0, (out.decode(), err.decode())

    def lawful(self) -> None:
        """Checks the laws by git alone."""
        _close(self.opened())
        assert invariants.broken(self.repository) == []

    def done(self) -> None:
        """Checks that the task is done, once, and that no agent is left."""
        board = self.opened()
        board.refresh()
        found = state.need(board, "a")
        _close(board)
        assert found is not None and found.state == "done", found
        self.lawful()
        subjects = stock("--git-dir", str(self.repository), "log", "--format=%s", "main").decode().split("\n")
        assert subjects.count("fix a") == 1, subjects
        assert stock("--git-dir", str(self.repository), "show", "main:done.txt") == b"x\n"
        assert stock("--git-dir", str(self.repository), "for-each-ref", "refs/swarm/locks", "refs/swarm/queue") == b""
        assert not lanes(self.folder)


def _close(board: Board) -> None:
    store = getattr(board, "store", None)
    board.close()
    if store is not None:
        store.close()


def lanes(folder: Path) -> list[str]:
    """Gives the agents that run with a home below a folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            said = Path("/proc", pid, "environ").read_bytes()
        except OSError:
            continue
        if b"ROPEWALK_LANE=" in said and str(folder).encode() in said:
            found.append(pid)
    return found


def prepare(folder: Path, kind: str) -> Place:
    """Makes a board with one task, which has a region."""
    place = Place(folder, kind)
    (folder / "home").mkdir(parents=True)
    (folder / "agent").write_text(AGENT)
    (folder / "agent").chmod(0o755)
    todo = [Task("a", "test -f done.txt", region="r")]
    if kind == "store":
        kit = BoardKit(place.board)
        kit.add(*todo)
        kit.close()
    else:
        board = bare(place.board)
        tasks.add(board, todo, ACTOR)
        board.close()
        shutil.rmtree(f"{place.board}.mirror", ignore_errors=True)
    return place


def points(log: Path) -> list[Point]:
    """Gives the points of a trace, each call with its number."""
    counts: Counter[str] = Counter()
    found = []
    for line in log.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match and match[1] in CALLS:
            counts[match[1]] += 1
            found.append(Point("rw", match[1], counts[match[1]]))
    return found


class Template(NamedTuple):
    """Is a prepared place, and the points of a worker's whole cycle in it."""

    place: Place
    points: list[Point]

    def copy(self, folder: Path) -> Place:
        """Gives a place like it."""
        shutil.copytree(self.place.folder, folder, symlinks=True)
        return Place(folder, self.place.kind)


@pytest.fixture(scope="module", params=["store", "bare"])
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Template:
    base = tmp_path_factory.mktemp("killed")
    place = prepare(base / "template", request.param)
    made = Template(place, []).copy(base / "traced")
    log = base / "trace"
    ended = attached(made.subject(), ["-o", str(log), "-e", TRACE])
    assert ended.code == 0, ended.out.decode() + ended.err.decode()
    made.done()
    return Template(place, points(log))


def sample(template: Template, most: int, seed: int) -> list[Point]:
    """Gives so many points, spread over the cycle."""
    found = template.points
    assert len(found) > 10, "a cycle starts processes and moves refs"
    size = len(found) / most
    r = random.Random(seed)
    return [found[min(len(found) - 1, int((n + r.random()) * size))] for n in range(most)]


@pytest.mark.parametrize("number", range(KILLS))
def test_a_worker_killed_anywhere_leaves_a_lawful_board_and_its_task_to_others(
    template: Template, number: int, tmp_path: Path
) -> None:
    point = sample(template, KILLS, SEED)[number]
    place = template.copy(tmp_path / "place")
    log = tmp_path / "strike"
    ended = attached(place.subject(), ["-o", str(log), *injection(point, "signal=KILL")])
    assert ended.killed or ended.code == 0, (point, ended)
    place.lawful()
    place.finish()
    place.done()


@pytest.mark.parametrize("number", range(STOPS))
def test_F1_a_worker_stopped_past_its_lease_wakes_up_and_is_refused(
    template: Template, number: int, tmp_path: Path
) -> None:
    """Where it is stopped with a lock of the store, others wait for it, or say who has it, until it wakes."""
    point = sample(template, STOPS, SEED + 1)[number]
    place = template.copy(tmp_path / "place")
    log = tmp_path / "strike"
    held = Held(place.subject(), ["-o", str(log), *injection(point, "signal=STOP")])
    held.go()
    other = None
    try:
        if stopped(held, log) and taken_over(place):
            other = place.another()
            try:
                other.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                pass
    finally:
        if held.child.poll() is None:
            os.kill(held.pid, signal.SIGCONT)
    ended = held.end()
    assert b"Traceback" not in ended.err, ended.err.decode()
    assert ended.code in (0, 1, 3, 6), (point, ended.out, ended.err)
    if other is not None:
        out, err = other.communicate(timeout=240)
        assert b"Traceback" not in err and (other.returncode == 0 or b"E_BUSY" in out + err), (point, out, err)
    place.lawful()
    place.finish()
    place.done()


def stopped(held: Held, log: Path, seconds: float = 120) -> bool:
    """Waits until strace says that a command was stopped; False when it ended before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if log.exists() and "stopped by SIGSTOP" in log.read_text(errors="replace"):
            return True
        if held.child.poll() is not None:
            return False
        time.sleep(0.02)
    raise AssertionError(f"process {held.pid} did not stop")


def taken_over(place: Place) -> bool:
    """Ends the attempt of a holder, as another does after its lease; says whether there was one that could be ended."""
    try:
        board = place.opened()
    except RopewalkError:
        return False
    try:
        board.refresh()
        found = state.need(board, "a")
        if found is None or found.state != "claimed":
            return False
        recover.evict(board, found, ACTOR, "its lease is over", heirs=5)
        return True
    except RopewalkError:
        return False
    finally:
        _close(board)
