"""Interrupts: SIGINT, SIGTERM and SIGHUP as a call from a thread of its own, never as an exception in between.

Python raises KeyboardInterrupt wherever the main thread is, so that a result just taken from a queue is lost;
and a signal that comes right before a wait does not end that wait. The interpreter's wake-up descriptor has
neither fault: a thread reads it and tells whoever asked.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Catches the signals while it is entered in the main thread; elsewhere it catches nothing."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._guard = threading.Lock()
        self._calls: list[Callable[[], None]] = []
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _nothing) for number in _SIGNALS}
        self._thread = threading.Thread(target=self._listen, name="ropewalk-interrupts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def subscribe(self, call: Callable[[], None]) -> None:
        """Has something called once when a signal comes, at once when one came already."""
        with self._guard:
            self._calls.append(call)
            came = self.stopped.is_set()
        if came:
            call()

    def check(self) -> None:
        """Raises KeyboardInterrupt when a signal came; for work between two waits."""
        if self.stopped.is_set():
            raise KeyboardInterrupt

    def _listen(self) -> None:
        while data := os.read(self._read, 64):
            if self.stopped.is_set() or not any(number in _SIGNALS for number in data):
                continue
            with self._guard:
                self.stopped.set()
                calls = list(self._calls)
            for call in calls:
                call()


def _nothing(number: int, frame: object) -> None:
    """Takes the place of the handler that would raise; the wake-up descriptor tells of the signal."""
