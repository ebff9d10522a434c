"""Presence: which workers of a host look for tasks on a board, so that each begins with another one."""

from __future__ import annotations

import os

from ropewalk.board import holder
from ropewalk.core import clock
from ropewalk.core.errors import os_error

_KEPT_SECONDS = 0.5
_number = 0


class Presence:
    """Shows that a thread of this process works on a board; the file of a dead process is removed by any other."""

    def __init__(self, folder: str) -> None:
        global _number
        _number += 1
        pid = os.getpid()
        self._folder = os.path.join(folder, "workers")
        self._known, self._known_at = (0, 1), float("-inf")
        self._name = f"{pid}.{holder.started(pid)}.{_number}"
        try:
            os.makedirs(self._folder, exist_ok=True)
            os.close(os.open(os.path.join(self._folder, self._name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise os_error(error, "showing that a worker is there") from None

    def rank(self) -> tuple[int, int]:
        """Gives (this one's place among the living, how many there are), as of a moment ago."""
        now = clock.monotonic()
        if now - self._known_at < _KEPT_SECONDS:
            return self._known
        living = [self._name]
        for name in os.listdir(self._folder):
            pid, _, rest = name.partition(".")
            if name == self._name:
                continue
            if pid.isdigit() and holder.started(int(pid)) == rest.partition(".")[0]:
                living.append(name)
            else:
                _unlink(os.path.join(self._folder, name))
        living.sort()
        self._known, self._known_at = (living.index(self._name), len(living)), now
        return self._known

    def close(self) -> None:
        """Takes it back."""
        _unlink(os.path.join(self._folder, self._name))


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
