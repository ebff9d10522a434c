"""Waiting for a flock with a deadline: a thread makes the blocking call, so that the kernel's queue is kept."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ropewalk.store.lock import STOPS


class _Waiters:
    """Keeps threads that block in flock for a caller who has a deadline.

    Who came too late leaves its thread in the kernel's queue, and finds it there when it tries again: a place for
    each try would have to be served before those who still wait, and on a busy machine nobody would get on.
    """

    def __init__(self) -> None:
        self._idle: SimpleQueue[_Waiter] = SimpleQueue()
        self._late: dict[tuple[int, int], _Waiter] = {}

    def wait(self, fd: int, seconds: float, more: Callable[[], bool] | None) -> int:
        """Gives a descriptor with the flock of that file, -1 after `seconds`; takes over the one it is given."""
        there = os.fstat(fd)
        key = there.st_dev, there.st_ino
        waiter = self._late.pop(key, None)
        if waiter is not None and waiter.resume():
            os.close(fd)
        else:
            waiter = self._fresh()
            waiter.begin(fd)
        if waiter.take(seconds, more):
            fd = waiter.fd
            self._idle.put(waiter)
            return fd
        self._late[key] = waiter
        return -1

    def _fresh(self) -> _Waiter:
        try:
            return self._idle.get_nowait()
        except Empty:
            waiter = _Waiter()
            waiter.start()
            return waiter


class _Waiter(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True, name="ropewalk-lock")
        self.fd = -1
        self._work: SimpleQueue[int] = SimpleQueue()
        self._guard = threading.Lock()
        self._done = threading.Event()
        self._late = False

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        while True:
            fd = self._work.get()
            fcntl.flock(fd, fcntl.LOCK_EX)
            with self._guard:
                self._done.set()
                if self._late:
                    os.close(fd)
                    return

    def begin(self, fd: int) -> None:
        self.fd = fd
        self._done.clear()
        self._work.put(fd)

    def resume(self) -> bool:
        """Waits again for what came too late; False when it came in the meantime and was dropped."""
        with self._guard:
            self._late = False
            return not self._done.is_set()

    def take(self, seconds: float, more: Callable[[], bool] | None) -> bool:
        try:
            while not self._done.wait(seconds):
                if more is None or not more():
                    break
            else:
                return True
        except BaseException:
            if not self._give_up():
                os.close(self.fd)
            raise
        return not self._give_up()

    def _give_up(self) -> bool:
        """Tells the thread to drop the lock when it comes; False when it came in the meantime."""
        with self._guard:
            self._late = not self._done.is_set()
            return self._late


_WAITERS = _Waiters()


def wait_for(fd: int, seconds: float, more: Callable[[], bool] | None = None) -> int:
    """Gives a descriptor that has the flock of a file, or -1 when it does not come within `seconds`.

    The descriptor that is given in is taken over. Waits as long again for as often as `more` says so.
    """
    return _WAITERS.wait(fd, seconds, more)
