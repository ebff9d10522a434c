"""Event logs: JSON lines that are whole as soon as they are written, and readers that never see half of one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ropewalk.core.decoding import UNREADABLE

Event = dict[str, Any]


class EventLog:
    """Appends events to a file; safe between threads and processes, one write a line."""

    def __init__(self, path: str, watch: Callable[[Event], None] | None = None) -> None:
        self.path = path
        self._watch = watch
        self._guard = threading.Lock()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def emit(self, kind: str, **facts: Any) -> Event:
        """Writes an event with its time (seconds since 1970) and gives it, after the watcher has seen it."""
        with self._guard:
            event = {"at": round(time.time(), 3), "event": kind, **facts}
            os.write(self._fd, msgspec.json.encode(event) + b"\n")
            if self._watch is not None:
                try:
                    self._watch(event)
                except OSError:
                    self._watch = None  # whoever watched is gone; what is told goes on being written
        return event

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(path: str, offset: int = 0, limit: int = 1 << 24) -> tuple[list[Event], int]:
    """Gives the whole events from a byte offset on, and the offset behind the last of them.

    A line that can't be read (torn by a power loss) is passed over.
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(limit)
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    found = []
    for line in data[:end].splitlines():
        try:
            event = msgspec.json.decode(line)
        except UNREADABLE:
            continue
        if isinstance(event, dict):
            found.append(event)
    return found, offset + end
