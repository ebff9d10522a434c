"""A process has one place in the queue for the writer lock, however often it gave up waiting."""

from __future__ import annotations

import os

import pytest

from ropewalk.core.errors import BusyError
from ropewalk.store.lock import WriterLock
from storekit import Kit


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
