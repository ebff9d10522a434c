"""Holds: a file whose flock says that its process still lives and does what the file stands for.

The kernel lets go of a dead one's hold, so nothing has to be removed by hand.
"""

from __future__ import annotations

import fcntl
import os

from ropewalk.core.errors import os_error


class Hold:
    """Is a taken hold; `take` gives one."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def take(cls, path: str) -> Hold | None:
        """Takes the hold of a path, which is made if need be; None when another has it."""
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            while True:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(fd)
                    return None
                if _same(fd, path):
                    return cls(path, fd)
                os.close(fd)  # its last holder removed it between our open and our lock
        except OSError as error:
            raise os_error(error, "taking a hold") from None

    def read(self) -> bytes:
        """Gives what the holder before this one wrote, or this one."""
        return os.pread(self._fd, 65_536, 0)

    def write(self, data: bytes) -> None:
        """Replaces what the file says."""
        # over what is there, in one call: whoever finds the writer dead reads the old words or the new ones
        os.pwrite(self._fd, data.ljust(os.fstat(self._fd).st_size), 0)

    def drop(self, *, remove: bool = True) -> None:
        """Lets go; the file goes too unless it is to stay."""
        if remove:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
        # a child that another thread is just starting may still have the descriptor (A25)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


def is_held(path: str) -> bool:
    """Says whether a living process has the hold of a path."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise os_error(error, "look at a hold") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def _same(fd: int, path: str) -> bool:
    mine = os.fstat(fd)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev)
