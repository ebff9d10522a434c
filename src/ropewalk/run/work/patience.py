"""Patience: how long a worker waits for a board that is out of reach, or for a lock that another process holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ropewalk.core import clock
from ropewalk.core.errors import BusyError, RemoteError, RopewalkError

PASSING = ("unreachable", "broken_off", "silent", "failed", "locked")
"""Are the reasons of a server that may be gone the next time."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_T = TypeVar("_T")


def may_pass(error: RopewalkError) -> bool:
    """Says whether what is in the way may be gone later: another process's lock, or a line that is cut."""
    return isinstance(error, BusyError) or (
        isinstance(error, RemoteError) and error.details.get("reason") in PASSING
    )  # fmt: skip


class Patience:
    """Waits with growing pauses, for so many seconds from the first failure to the last, until something went well.

    `outage` is the bound for a board that is out of reach; `claims`, where it is less, the one for a lock, because
    whoever would not wait that long for a claim does not wait longer for its holder. `tell` hears of each wait.
    """

    def __init__(self, outage: float, claims: float | None, tell: Callable[..., object]) -> None:
        self._outage, self._tell = outage, tell
        self._busy = outage if claims is None else min(outage, claims)
        self._since: float | None = None
        self._pause = _FIRST_PAUSE

    def over(self) -> None:
        """Notes that something went well."""
        self._since, self._pause = None, _FIRST_PAUSE

    def wait(self, error: RopewalkError, stop: threading.Event) -> str | None:
        """Waits a while, or until it is told to stop; gives why it waits no longer, None when it is to be tried again.

        A process that holds a lock is never ended or robbed of it, even when it is stopped: it is named.
        """
        now = clock.monotonic()
        if self._since is None:
            self._since = now
        busy = isinstance(error, BusyError)
        reason = f"{error.code} {error.message}"
        if busy:
            holder = {name: error.details[name] for name in ("pid", "command", "state") if name in error.details}
            self._tell("store_busy", reason=reason, **holder)
        else:
            self._tell("origin_unreachable", reason=reason)
        waited = now - self._since
        if waited + self._pause > (self._busy if busy else self._outage):
            what = "another process was in the way" if busy else "the board was out of reach"
            return f"{what} for {waited:.0f} s: {reason}"
        stop.wait(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return None

    def through(self, step: Callable[[], _T], stop: threading.Event, again: Callable[[], None]) -> _T:
        """Gives what a step gives, which is done again after a wait while what is in its way may pass.

        `again` is called after each wait; raises what the step raised when nobody waits any longer.
        """
        while True:
            try:
                done = step()
            except (BusyError, RemoteError) as error:
                if not may_pass(error):
                    raise
                if self.wait(error, stop) is not None:
                    raise
                again()
            else:
                self.over()
                return done
