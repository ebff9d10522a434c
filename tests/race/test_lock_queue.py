"""A process has one place in the queue for the writer lock, however often it gave up waiting."""

from __future__ import annotations

import os

import pytest

from ropewalk.core.errors import BusyError
from ropewalk.store.lock import WriterLock
from storekit import Kit, put


def places(path: str) -> list[int]:
    """Gives the processes that wait for a lock, one for each place that they have."""
    with open("/proc/locks", encoding="ascii") as table:
        rows = [line.split() for line in table]
    ends = f":{os.stat(path).st_ino}"
    return [int(row[5]) for row in rows if row[1] == "->" and row[6].endswith(ends)]


def test_who_tries_again_takes_the_place_it_left(kit: Kit) -> None:
    held, ours = WriterLock(kit.store.layout.lock), WriterLock(kit.store.layout.lock)
    held.acquire()
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(BusyError):
            ours.acquire(0.02)
        assert places(ours.path) == [os.getpid()]
    assert len(os.listdir("/proc/self/fd")) == fds + 1
    held.release()
    ours.acquire()
    assert ours.held and places(ours.path) == []
    with pytest.raises(BusyError):
        held.acquire(0.02)
    ours.release()
    held.acquire()
    held.release()
    ours.acquire()
    ours.release()


def test_a_land_that_is_done_is_answered_again_without_the_lock(kit: Kit) -> None:
    kit.first(put("a", "1\n"))
    change = kit.commit(put("a", "2\n")).changeset
    key = "00000000-0000-0000-0000-000000000001"
    landed = kit.land(change, key=key).landed
    held = WriterLock(kit.store.layout.lock)
    held.acquire()
    again = kit.again(lock_wait=0.02)
    found = again.land(change, key=key)
    assert (found.status, found.landed) == ("replayed", landed)
    with pytest.raises(BusyError):
        again.land(change)
    held.release()
    again.close()
