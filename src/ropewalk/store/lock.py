"""Locks of a store, the writer lock before all: a flock that the kernel queues and frees, with a bound and the
holder's name.

A waiting thread does the blocking call, so that the caller can stop waiting at its deadline without signals
and without polling; the lock itself is never broken by anyone.
"""

from __future__ import annotations

import fcntl
import os
import signal
from _thread import allocate_lock
from typing import Any

from ropewalk.core.errors import BusyError, os_error

DEFAULT_WAIT = 10.0
STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


class WriterLock:
    """Is the store's one lock for writers, or another of its locks; each acquisition opens the file anew (A25, A27)."""

    def __init__(self, path: str, name: str = "the writer lock") -> None:
        self.path = path
        self.name = name
        self._mutex = allocate_lock()
        self._fd = -1
        self._mask: set[signal.Signals | int] = set()

    def try_acquire(self) -> bool:
        """Takes the lock if nobody has it."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            while True:
                fd = self._open()
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self._same(fd):
                        self._hold(fd)
                        return True
                except BlockingIOError:
                    break
                finally:
                    if fd != self._fd:
                        os.close(fd)
        except BaseException:
            self._mutex.release()
            raise
        self._mutex.release()
        return False

    def acquire(self, wait: float = DEFAULT_WAIT, *, patient: bool = False) -> None:
        """Takes the lock; `E_BUSY` with the holder's pid, command and state after `wait` seconds.

        Who is `patient` waits on for a holder that is at work, and not for one that is stopped.
        """
        if self.try_acquire():
            return
        if not self._mutex.acquire(timeout=wait):
            raise BusyError(f"another thread of this process holds {self.name}", pid=os.getpid())
        try:
            from ropewalk.store.lockwait import wait_for  # threads are imported when somebody has to wait

            while True:
                fd = wait_for(self._open(), wait, self._works if patient else None)
                if fd < 0:
                    raise self._busy(wait)
                if self._same(fd):
                    self._hold(fd)
                    return
                os.close(fd)
        except BaseException:
            self._mutex.release()
            raise

    def release(self) -> None:
        """Gives the lock back."""
        fd, self._fd = self._fd, -1
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            self._mutex.release()

    @property
    def held(self) -> bool:
        """Says whether this object holds the lock."""
        return self._fd >= 0

    def _hold(self, fd: int) -> None:
        # a ^Z inside the section would stop every writer of the store
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        self._fd = fd

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise os_error(error, f"open of {self.name}") from None

    def _same(self, fd: int) -> bool:
        mine = os.fstat(fd)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev)

    def _works(self) -> bool:
        pid = self.holder()
        return pid is None or process_words(pid)[1] not in ("stopped", "traced")

    def _busy(self, wait: float) -> BusyError:
        pid = self.holder()
        details: dict[str, Any] = {"waited_seconds": wait}
        words = "another process"
        if pid:
            command, state = process_words(pid)
            details.update(pid=pid, command=command, state=state)
            words = f"process {pid} ({command}, {state})"
        return BusyError(f"{words} has held {self.name} for more than {wait:g} s", **details)

    def holder(self) -> int | None:
        """Gives the pid that holds the lock, from the kernel's own table; None when nobody or unknown."""
        try:
            there = os.stat(self.path)
            key = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
            with open("/proc/locks", encoding="ascii") as table:
                for line in table:
                    words = line.split()
                    if "->" not in words and words[1] == "FLOCK" and words[5] == key:
                        return int(words[4])
        except (OSError, ValueError, IndexError):
            pass
        return None


def process_words(pid: int) -> tuple[str, str]:
    """Gives the command and the state (`running`, `sleeping`, `stopped`, …) of a process."""
    states = {"R": "running", "S": "sleeping", "D": "waiting for a disk", "T": "stopped", "t": "traced", "Z": "ended"}
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :]
        return name, states.get(rest[:1], rest[:1])
    except (OSError, ValueError):
        return "unknown", "unknown"
