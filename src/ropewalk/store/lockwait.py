"""Waiting for a flock with a deadline: a thread makes the blocking call, so that the kernel's queue is kept."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from queue import Empty, SimpleQueue

from ropewalk.store.lock import STOPS


class _Waiters:
    """Keeps threads that block in flock for a caller who has a deadline."""

    def __init__(self) -> None:
        self._idle: SimpleQueue[_Waiter] = SimpleQueue()

    def wait(self, fd: int, seconds: float) -> bool:
        """Takes the flock on `fd` within `seconds`; else gives False and closes it once it comes."""
        try:
            waiter = self._idle.get_nowait()
        except Empty:
            waiter = _Waiter()
            waiter.start()
        got = waiter.take(fd, seconds)
        if got:
            self._idle.put(waiter)
        return got


class _Waiter(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True, name="ropewalk-lock")
        self._work: SimpleQueue[tuple[int, threading.Event, list[str]]] = SimpleQueue()
        self._guard = threading.Lock()

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        while True:
            fd, done, state = self._work.get()
            fcntl.flock(fd, fcntl.LOCK_EX)
            with self._guard:
                if state:
                    os.close(fd)
                    return
                state.append("taken")
            done.set()

    def take(self, fd: int, seconds: float) -> bool:
        done = threading.Event()
        state: list[str] = []
        self._work.put((fd, done, state))
        try:
            if done.wait(seconds):
                return True
        except BaseException:
            if not self._give_up(state):
                os.close(fd)
            raise
        return not self._give_up(state)

    def _give_up(self, state: list[str]) -> bool:
        """Tells the thread to drop the lock when it comes; False when it came in the meantime."""
        with self._guard:
            if state:
                return False
            state.append("late")
            return True


_WAITERS = _Waiters()


def wait_for(fd: int, seconds: float) -> bool:
    """Takes the flock on a descriptor within `seconds`; else gives False, and the descriptor is closed later."""
    return _WAITERS.wait(fd, seconds)
