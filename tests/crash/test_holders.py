"""Who leads is killed or stopped inside its section, or while it shows refs, and others want to land meanwhile.

The leader waits in the kernel's queue first, with others behind it, so that it lands for them too; the strike comes
at one of its own system calls, from strace. After a kill the others land, once each. While it is stopped they say
after their bound who holds the lock, or go on when it holds none; after SIGCONT it ends with the truth.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .kit import AGENT, Ids, lines_of, must, place, prepare, put, run_words, sound, trailers
from .tracing import (
    SECONDS,
    TRACE,
    Held,
    Point,
    Step,
    Subject,
    command,
    environment,
    injection,
    numbered_git,
    steps,
    traced,
)

FULL = os.environ.get("RWTEST_FULL") == "1"
BOUND = "1.5"
SLICES = 4 if FULL else 1
KINDS = ("store.db-wal>, ", ".ans>, ", "fdatasync(")
"""Are the kinds of work of one who leads."""
TRIES = 5
"""Is how often it is traced until it led for the others: another may have been woken before it."""

pytestmark = pytest.mark.crash


class Made(NamedTuple):
    """Is a prepared store, and what a leader does from the moment it has the lock."""

    folder: Path
    ids: Ids
    steps: list[Step]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("holders") / "made"
    folder.mkdir()
    prepare(folder)
    ids: Ids = json.loads((folder / "ids.json").read_text())
    for _ in range(TRIES):
        copy = place(folder, folder.with_name("traced"))
        log = copy / "leader.log"
        scene = Scene(copy, ids, ["-y", "-o", str(log), "-e", f"{TRACE},flock"])
        scene.release()
        ended = scene.leader.end()
        assert lines_of(ended.out)[-1]["ok"], ended
        assert all(answer["ok"] for answer in scene.answers())
        found = steps("rw", log, copy)
        shutil.rmtree(copy)
        # its request is taken back once it has the lock; what was before that, it did while it waited
        leads = max(n for n, s in enumerate(found) if ".req" in s.shown and s.point.call == "pwrite64")
        led = found[leads:]
        if all(any(kind in step.shown for step in led) for kind in KINDS):
            return Made(folder, ids, led)
    raise AssertionError(f"in {TRIES} tries it led for nobody: {[step.shown for step in found]}")


class Scene:
    """Is a leader that strace follows, and two that wait behind it for a lock that this process holds.

    `bound` is how long the two wait for whoever leads.
    """

    def __init__(self, folder: Path, ids: Ids, options: list[str], bound: str = "60") -> None:
        self.folder = folder
        self._lock = os.open(folder / "store" / "writer.lock", os.O_RDWR)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        env = environment(folder / "home")
        self.leader = Held(Subject(land(folder, ids["x"]), folder, env | {"ROPEWALK_LOCK_WAIT": "60"}, folder), options)
        self.leader.go()
        wait_until(lambda: self._waiting() == 1, "the leader to wait")
        self.others = [
            subprocess.Popen(command(*land(folder, ids[name])), cwd=folder, env=env | {"ROPEWALK_LOCK_WAIT": bound},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for name in "zw"
        ]  # fmt: skip
        wait_until(lambda: self._waiting() == 3, "the others to wait")

    def _waiting(self) -> int:
        key = os.fstat(self._lock)
        name = f"{os.major(key.st_dev):02x}:{os.minor(key.st_dev):02x}:{key.st_ino} "
        return sum("->" in line and name in line for line in Path("/proc/locks").read_text().splitlines())

    def release(self) -> None:
        """Lets the lock go; the kernel gives it to the leader."""
        os.close(self._lock)

    def answers(self) -> list[dict[str, Any]]:
        """Gives what the two answered."""
        found = []
        for other in self.others:
            out, err = other.communicate(timeout=SECONDS)
            assert b"Traceback" not in err, err.decode()
            found.append(lines_of(out)[-1])
        return found


def land(folder: Path, change: str) -> list[str]:
    """Gives the words that land a change on main."""
    return ["land", change, "--onto", "main", "--store", str(folder / "store"), "--as", AGENT]


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Waits for something that is bound to happen."""
    late = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < late, f"waited in vain for {what}"
        time.sleep(0.005)


def stopped(log: Path) -> bool:
    """Says whether strace saw its process stop."""
    return log.exists() and "stopped by SIGSTOP" in log.read_text()


def in_section(made: Made, point: Point) -> bool:
    """Says whether the leader holds the writer lock at a point: all up to the last answer that it writes."""
    answers = [n for n, s in enumerate(made.steps) if ".ans" in s.shown and s.point.call in ("write", "pwrite64")]
    return [s.point for s in made.steps].index(point) <= answers[-1]


def chosen(made: Made, part: int) -> list[Point]:
    """Gives this part's points: all, or one of each kind of work that a leader does."""
    if FULL:
        return [s.point for s in made.steps][part::SLICES]
    return [next(s.point for s in made.steps if kind in s.shown) for kind in KINDS]


def ends_once(folder: Path, ids: Ids) -> None:
    """Checks that each of the three changes is on main once when all were sent again, and that the store is sound."""
    for name in "xzw":
        assert trailers(folder).count(ids[name]) <= 1
        assert run_words(folder, land(folder, ids[name]))[-1]["ok"]
    found = trailers(folder)
    assert [found.count(ids[name]) for name in "xzw"] == [1, 1, 1], found
    sound(folder)
    assert not list((folder / "store" / "spool").glob("*.new"))


@pytest.mark.parametrize("part", range(SLICES))
def test_a_killed_leader_takes_nobody_with_it(made: Made, tmp_path: Path, part: int) -> None:
    for number, point in enumerate(chosen(made, part)):
        folder = place(made.folder, tmp_path / str(number))
        scene = Scene(folder, made.ids, ["-o", str(folder / "strike.log"), *injection(point, "signal=KILL")])
        scene.release()
        ended = scene.leader.end()
        # once it has let go, another may show the refs before it does
        assert ended.killed or not in_section(made, point), f"the leader was not killed at {point}: {ended}"
        answers = scene.answers()
        assert all(a["ok"] for a in answers), (point, answers)
        assert {trailers(folder).count(made.ids[name]) for name in "zw"} == {1}, point
        ends_once(folder, made.ids)
        shutil.rmtree(folder)


@pytest.mark.parametrize("part", range(SLICES))
def test_a_stopped_leader_is_named_or_holds_nobody_up(made: Made, tmp_path: Path, part: int) -> None:
    for number, point in enumerate(chosen(made, part)):
        folder = place(made.folder, tmp_path / str(number))
        log = folder / "strike.log"
        scene = Scene(folder, made.ids, ["-o", str(log), *injection(point, "signal=STOP")], bound=BOUND)
        try:
            scene.release()
            wait_until(lambda: stopped(log) or scene.leader.child.poll() is not None, f"a stop at {point}")  # noqa: B023
            assert stopped(log) or not in_section(made, point), point
            before = time.monotonic()
            answers = scene.answers()
            spent = time.monotonic() - before
            # reading goes on whoever is stopped
            assert must(folder, "cat", rev="main", path="d/y.txt")["content"] == "y\n"
            if in_section(made, point):
                for answer in answers:
                    assert not answer["ok"] and answer["error"]["code"] == "E_BUSY", (point, answer)
                    assert answer["error"]["details"]["pid"] == scene.leader.pid, (point, answer)
            else:
                assert all(a["ok"] for a in answers), (point, answers)
            assert spent < 30, f"{point}: they waited for {spent:.0f} s"
        finally:
            scene.leader.child.send_signal(signal.SIGCONT)
            ended = scene.leader.end()
        assert lines_of(ended.out)[-1]["ok"], (point, ended)
        assert trailers(folder).count(made.ids["x"]) == 1, point
        ends_once(folder, made.ids)
        shutil.rmtree(folder)


def test_a_stopped_collection_is_named_and_keeps_nobody_from_writing(made: Made, tmp_path: Path) -> None:
    folder = place(made.folder, tmp_path / "f")
    env = environment(folder / "home")
    store = ["--store", str(folder / "store")]
    copy = place(made.folder, tmp_path / "traced")
    found = traced(
        Subject(
            ["gc", "--store", str(copy / "store")], copy, environment(copy / "home"), numbered_git(tmp_path / "gits")
        )
    )
    held = next(n for n, s in enumerate(found) if "maintain.lock" in s.shown)
    log = folder / "strike.log"
    # which file is opened how often depends on what else was looked at
    point = next(s.point for s in found[held:] if s.point.call in ("pwrite64", "fdatasync", "fsync", "unlink"))
    collection = Held(Subject(["gc", *store], folder, env, folder), ["-o", str(log), *injection(point, "signal=STOP")])
    try:
        collection.go()
        wait_until(lambda: stopped(log), f"a stop at {point}")
        must(folder, "commit", message="meanwhile", changes=put("d/meanwhile.txt", "m\n"), advance="main")
        words = command("backup", str(folder / "copy"), *store)
        done = subprocess.run(words, cwd=folder, env=env | {"ROPEWALK_LOCK_WAIT": BOUND}, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=SECONDS)  # fmt: skip
        error = lines_of(done.stdout)[-1]["error"]
        assert (error["code"], error["details"]["pid"]) == ("E_BUSY", collection.pid), error
    finally:
        os.kill(collection.pid, signal.SIGCONT)
        ended = collection.end()
    assert lines_of(ended.out)[-1]["ok"], ended
    assert run_words(folder, ["backup", str(folder / "copy"), *store])[-1]["ok"]
    sound(folder)


def test_a_stopped_projector_keeps_nobody_from_landing(made: Made, tmp_path: Path) -> None:
    copy = place(made.folder, tmp_path / "traced")
    gits = numbered_git(tmp_path / "gits")
    found = traced(Subject(land(copy, made.ids["x"]), copy, environment(copy / "home"), gits))
    point = next(s.point for s in found if "/repo.git/" in s.shown)
    folder = place(made.folder, tmp_path / "f")
    env = environment(folder / "home")
    log = folder / "strike.log"
    projector = Held(Subject(land(folder, made.ids["x"]), folder, env, gits),
                     ["-o", str(log), *injection(point, "signal=STOP")])  # fmt: skip
    try:
        projector.go()
        wait_until(lambda: stopped(log), f"a stop at {point}")
        for name in "zw":
            done = subprocess.run(command(*land(folder, made.ids[name])), cwd=folder, capture_output=True,
                                  env=env | {"ROPEWALK_LOCK_WAIT": BOUND}, timeout=60)  # fmt: skip
            answer = lines_of(done.stdout)[-1]
            assert answer["ok"] and answer["warnings"], answer
    finally:
        os.kill(projector.pid, signal.SIGCONT)
        ended = projector.end()
    assert lines_of(ended.out)[-1]["ok"], ended
    ends_once(folder, made.ids)
