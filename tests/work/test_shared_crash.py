"""Landing on a shared board while holders die, sleep, or lose the connection: nothing lands twice, nobody waits on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.work.sharedkit import Shared, Worker, answers, kill, start, until
from tests.work.test_shared_landing import Land, queued

from ropewalk.board import state
from ropewalk.board.recover import evict

pytestmark = pytest.mark.crash


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    """Gives a board on a path."""
    return Shared(tmp_path)


def hook(shared: Shared, name: str, script: str) -> None:
    """Gives the server a hook."""
    path = shared.bare / "hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def gated(shared: Shared, gate: Path) -> str:
    """Gives a check that ends when a file is there."""
    return shared.logged(f"until test -e {gate}; do sleep 0.05; done")


def checking(shared: Shared) -> bool:
    """Says whether a check runs."""
    return bool(list((shared.folder / "run").glob("check-*/tree/.git")))


def test_a_holder_killed_while_it_checks_is_followed_by_the_next(shared: Shared) -> None:
    gate = shared.folder / "gate"
    shared.add("a", "b", check=gated(shared, gate))
    first = start(shared, "w1", "a")
    until(lambda: checking(shared))
    second = start(shared, "w2", "b", host="two")
    until(lambda: queued(shared) == ["a", "b"])
    kill(first)
    first.communicate()
    gate.touch()
    assert [one["how"] for one in answers([second])] == ["landed"]
    # the change of the dead one was ready, and it held its claim
    assert sorted(shared.landed()) == ["a", "b"]
    shared.lawful()


@pytest.mark.parametrize("moment", ["prepared", "committed"])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "with its git"])
def test_a_holder_killed_in_mid_push_lands_nothing_twice(shared: Shared, moment: str, whole: bool) -> None:
    shared.add("a", "b")
    hook(
        shared, "reference-transaction",
        f'test "$1" = {moment} || exit 0; grep -q refs/heads/main || exit 0\n'
        f"test -e {shared.folder}/once && exit 0; touch {shared.folder}/once {shared.folder}/now\n"
        f"until test -e {shared.folder}/on; do sleep 0.05; done",
    )  # fmt: skip
    first = start(shared, "w1", "a")
    until((shared.folder / "now").exists)
    pushing = [pid for pid in _children(first.pid) if b"push" in _argv(pid)] if whole else []
    assert pushing or not whole
    kill(first)
    for pid in pushing:
        os.kill(pid, signal.SIGKILL)
    first.communicate()
    (shared.folder / "on").touch()
    second = start(shared, "w2", "b", host="two")
    assert [one["how"] for one in answers([second])] == ["landed"]
    # the place of the dead one's change was on the board before, so whoever came next landed it, unless it was landed
    assert sorted(shared.landed()) == ["a", "b"]
    assert shared.state("a") == shared.state("b") == "done"
    shared.lawful()


def _children(pid: int) -> Iterator[int]:
    for one in os.listdir("/proc"):
        if one.isdigit():
            try:
                with open(f"/proc/{one}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == pid:
                        yield int(one)
            except OSError:
                continue


def _argv(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_F12_a_push_whose_end_is_not_heard_is_read_back(shared: Shared) -> None:
    shared.add("a", "b")
    # the server dies just after it has done the push that lands `a`
    hook(
        shared, "reference-transaction",
        'test "$1" = committed || exit 0; grep -q refs/heads/main || exit 0\n'
        f"test -e {shared.folder}/once && exit 0; touch {shared.folder}/once; kill -9 $PPID",
    )  # fmt: skip
    worker = Worker(shared)
    assert worker.do("a").how == "landed"
    assert (shared.folder / "once").exists() and shared.landed() == ["a"]
    assert worker.do("b").how == "landed"
    worker.close()
    shared.lawful()


def test_F28_a_server_that_was_set_back_refuses_the_push_that_rests_on_what_it_lost(shared: Shared) -> None:
    gate = shared.folder / "gate"
    shared.add("a", check=gated(shared, gate))
    before = shared.git("for-each-ref", "--format=%(refname)")
    landing = Land(shared, "a")
    until(lambda: checking(shared))
    for ref in set(shared.git("for-each-ref", "--format=%(refname)").split()) - set(before.split()):
        shared.git("update-ref", "-d", ref)
    gate.touch()
    assert landing.end().how == "fenced"
    assert shared.landed() == [] and shared.state("a") == "ready"


def stopped_holder_wakes(shared: Shared, **env: str) -> None:
    """Has a holder sleep past its lease while it checks, another attempt land the task, and the first wake up."""
    gate = shared.folder / "gate"
    shared.add("a", check=gated(shared, gate))
    first = start(shared, "w1", "a", **env)
    until(lambda: checking(shared) or first.poll() is not None)
    assert first.poll() is None, first.communicate()
    time.sleep(0.3)
    kill(first, signal.SIGSTOP)
    try:
        watcher = shared.board("watcher")
        watcher.refresh()
        found = state.need(watcher, "a")
        assert found is not None
        evict(watcher, found, "test/watcher", "it sleeps")
        watcher.close()
        gate.touch()
        second = Worker(shared, "w2", "two")
        assert second.do("a", {"done/a": "by the second\n"}).how == "landed"
        second.close()
        until(lambda: len(shared.checks()) == 2)
    finally:
        kill(first, signal.SIGCONT)
    (said,) = answers([first])
    assert said["how"] == "fenced", said
    assert shared.landed() == ["a"] and shared.git("show", "main:done/a") == "by the second"
    assert shared.verdict("a").host == "w2"
    shared.lawful()


def test_a_holder_that_slept_past_its_lease_is_refused_on_a_path(shared: Shared) -> None:
    stopped_holder_wakes(shared)
