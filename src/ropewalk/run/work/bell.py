"""The bell of a worker: a thread that has nothing to do hears at once when another of its threads ended a task."""

from __future__ import annotations

import threading

from ropewalk.core import clock

_SLICE = 0.1
"""Is how long a wait goes on after the worker was told to stop, in seconds."""


class Bell:
    """Wakes the threads that wait."""

    def __init__(self) -> None:
        self._rung = 0
        self._ring = threading.Condition()

    def ring(self) -> None:
        """Wakes them all."""
        with self._ring:
            self._rung += 1
            self._ring.notify_all()

    @property
    def rung(self) -> int:
        """Gives how often it rang."""
        return self._rung

    def wait(self, heard: int, seconds: float, stop: threading.Event) -> None:
        """Waits until it has rung more often than was `heard`, the time is over, or `stop` is set."""
        until = clock.monotonic() + seconds
        with self._ring:
            while self._rung == heard and not stop.is_set() and (left := until - clock.monotonic()) > 0:
                self._ring.wait(min(left, _SLICE))
