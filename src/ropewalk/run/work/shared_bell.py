"""Bells: files by which who lands for others on this host lets them look at the board at once.

Whoever waits hangs one up; without it, or on another host, he learns the same by looking now and then.
"""

from __future__ import annotations

import os
from types import TracebackType
from urllib.parse import quote

from ropewalk.core.errors import os_error


def _path(folder: str, attempt: str) -> str:
    return os.path.join(folder, "bells", quote(attempt, safe=""))


def ring(folder: str, attempt: str) -> None:
    """Rings the bell of an attempt, if it waits on this host; `folder` is the board's."""
    try:
        fd = os.open(_path(folder, attempt), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, b"!")
        finally:
            os.close(fd)
    except OSError:
        pass  # nobody waits here, and a bell saves time alone


class Bell:
    """Is the bell of an attempt that waits, while it is in use as a context."""

    def __init__(self, folder: str, attempt: str) -> None:
        self._path = _path(folder, attempt)
        self._fd = -1
        self._heard = 0

    def __enter__(self) -> Bell:
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise os_error(error, "waiting in the landing queue") from None
        return self

    def heard(self) -> bool:
        """Says whether it rang since the last time that this was asked."""
        before, self._heard = self._heard, os.fstat(self._fd).st_size
        return self._heard != before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        try:
            os.unlink(self._path)
        except OSError:
            pass
