"""The mirror of a board on this host: lost, damaged, shared by processes and threads, and what it leaves behind."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.board.remotekit import ACTOR, NEEDS_SERVERS, Shared, start, states, take, task

from ropewalk.board import claim, names, tasks, wire
from ropewalk.board.base import Step
from ropewalk.core.errors import RemoteError, RopewalkError
from ropewalk.store.oplog import Move
from storekit import stock

pytestmark = NEEDS_SERVERS
Opener = Callable[..., Shared]


@pytest.mark.parametrize("how", ["removed", "refs", "objects", "config", "lock", "state"])
def test_the_mirror_may_be_lost_or_damaged_at_any_time(shared: Opener, how: str) -> None:
    on = shared()
    board = on.board
    tasks.add(board, [task("a"), task("b")], ACTOR)
    board.refresh()
    mirror = Path(board.mirror.path)

    def strike() -> None:
        if how == "removed":
            shutil.rmtree(mirror)
        elif how == "refs":
            for path in (mirror / "refs" / "swarm").rglob("*"):
                if path.is_file():
                    path.write_bytes(b"")
        elif how == "objects":
            for path in (mirror / "objects").rglob("*"):
                if path.is_file():
                    path.chmod(0o644)
                    path.write_bytes(b"")
        elif how == "config":
            (mirror / "config").write_bytes(b"\0\xff[")
        elif how == "lock":
            (mirror / "packed-refs.lock").touch()
            for name in ("specs/a", "claims/a", "law"):
                (mirror / "refs" / "swarm" / f"{name}.lock").parent.mkdir(parents=True, exist_ok=True)
                (mirror / "refs" / "swarm" / f"{name}.lock").touch()
        else:
            Path(board.folder, "fetched.json").write_bytes(b"{")

    strike()
    assert states(on.open("one")) == {"a": "ready", "b": "ready"}
    strike()
    held = take(on.open("one"), "a")
    strike()
    fresh = on.open("one")
    fresh.refresh()
    assert claim.beat(fresh, claim.find(fresh, "a", held.attempt, ACTOR)).claim == on.refs()[names.claim("a")]
    if how == "removed":
        board.refresh()
        strike()
        claim.release(board, claim.find(board, "a", held.attempt, ACTOR))
        assert states(board)["a"] == "ready"


def test_what_beats_leave_in_the_mirror_is_packed_or_goes(shared: Opener) -> None:
    on = shared()
    board = on.board
    tasks.add(board, [task("a")], ACTOR)
    held = take(board, "a")
    mirror = Path(board.mirror.path)
    made = [wire.make(f"claim a\nbeat: {n}\natt-w-000000", n) for n in range(30_000)]
    chosen = [one for one in made if one.id.startswith("17")][:60]
    board.mirror.write(chosen)
    for one in chosen[:40]:
        os.utime(mirror / "objects" / "17" / one.id[2:], (0, 0))
    board.refresh()
    left = {path.name for path in (mirror / "objects" / "17").glob("*")}
    assert left == {one.id[2:] for one in chosen[40:]}, "what may be about to be pushed stays for an hour"
    assert [board.content(one.id) is None for one in (chosen[0], chosen[50])] == [True, False]
    assert claim.beat(board, held).claim == on.refs()[names.claim("a")]
    assert states(board) == {"a": "claimed"}


def test_threads_share_a_board(shared: Opener) -> None:
    from concurrent.futures import ThreadPoolExecutor

    on = shared()
    board = on.board
    tasks.add(board, [task(f"t{n}") for n in range(6)], ACTOR)
    held = {n: take(board, f"t{n}") for n in range(3)}

    def work(n: int) -> str:
        if n < 3:
            return claim.beat(board, held[n]).claim
        board._contents.clear()
        return str(sorted(states(board).values()))

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(6)))
    refs = on.refs()
    assert found[:3] == [refs[names.claim(f"t{n}")] for n in range(3)]
    assert set(found[3:]) == {str(["claimed"] * 3 + ["ready"] * 3)}


def test_a_push_of_what_the_mirror_lost_brings_it_back_first(shared: Opener) -> None:
    on = shared()
    board = on.board
    tasks.add(board, [task("a")], ACTOR)
    held = take(on.open("other"), "a")
    board.refresh()
    shutil.rmtree(board.mirror.path)
    ref = names.archived(names.claim("a"), held.attempt)
    board.push(Step("x", ACTOR, [Move(names.claim("a"), held.claim, None), Move(ref, None, held.claim)]))
    assert on.refs()[ref] == held.claim and names.claim("a") not in on.refs()
    with pytest.raises(RemoteError) as caught:
        board.push(Step("x", ACTOR, [Move(names.claim("a"), None, "1" * 40)]))
    assert caught.value.details["reason"] == "missing"


LOOKER = """
import sys
from ropewalk.board.remote import RemoteBoard
board = RemoteBoard(sys.argv[1], sys.argv[2])
print("ready", flush=True)
board.refresh()
print(len(board.below("refs/swarm/specs/")))
"""


@pytest.mark.race
def test_who_waited_for_a_look_takes_the_one_that_began_after(shared: Opener, tmp_path: Path) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    folder = on.hosts / "host"
    folder.mkdir()
    spy = tmp_path / "bin"
    spy.mkdir()
    git = shutil.which("git")
    (spy / "git").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {git} "$@"\n')
    (spy / "git").chmod(0o755)
    lock = folder / "fetch.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lookers = [start(LOOKER, on.url, str(folder), PATH=f"{spy}:{os.environ['PATH']}") for _ in range(5)]
        inode = os.fstat(file.fileno()).st_ino
        while True:  # until all of them wait for the lock, as the kernel sees it
            waiting = [line for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
            if sum(f":{inode} " in line for line in waiting) == len(lookers):
                break
            assert all(one.poll() is None for one in lookers)
    assert [one.communicate(timeout=60)[0].split() for one in lookers] == [["ready", "1"]] * len(lookers)
    calls = (tmp_path / "calls").read_text()
    assert sum(" fetch " in line and "refs/swarm" in line for line in calls.splitlines()) == 1, calls


def test_F24_a_look_and_a_push_run_no_hook_and_leave_no_trace_of_a_fetch(
    shared: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = shared("http")
    hooks, home = tmp_path / "hooks", tmp_path / "home"
    for folder in (hooks, home):
        folder.mkdir()
    for name in ("reference-transaction", "pre-push", "post-checkout", "pre-auto-gc"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-{name}\nexit 1\n")
        (hooks / name).chmod(0o755)
    stock("config", "--file", str(home / ".gitconfig"), "core.hooksPath", str(hooks))
    monkeypatch.setenv("HOME", str(home))
    tasks.add(on.board, [task("a")], ACTOR)
    take(on.board, "a")
    assert not list(tmp_path.glob("ran-*"))
    assert not list(Path(on.board.mirror.path).glob("*_HEAD"))


def test_a_server_that_is_damaged_costs_nobody_the_mirror(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    on.board.refresh()
    inode = os.stat(on.board.mirror.path).st_ino
    oid = on.refs()[names.spec("a")]
    (on.repo / "refs" / "swarm" / "specs" / "b").write_text("1" * 40 + "\n")
    loose = on.repo / "objects" / oid[:2] / oid[2:]
    loose.chmod(0o644)
    loose.write_bytes(b"")
    two = on.open("two")
    for board in (on.board, two):
        with pytest.raises(RopewalkError):
            board.refresh()
    assert os.stat(on.board.mirror.path).st_ino == inode
    assert on.board.ref(names.spec("a")) == oid and on.board.content(oid) is not None
