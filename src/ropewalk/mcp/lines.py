"""Lines in and out: bounded, one message each, with bytes that no library stands between."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

MAX_LINE = 64 << 20
_CHUNK = 1 << 16


class TooLong(Exception):
    """A line was longer than the bound; its bytes were dropped and the next line is read as ever."""


def read_lines(fd: int, idle: Callable[[], None], limit: int = MAX_LINE) -> Iterator[bytes | TooLong]:
    """Gives the lines of a descriptor, without their ends, until it ends; `TooLong` stands for one over `limit`.

    Calls `idle` before it waits, when nothing is there to read. A last line without an end counts as a line.
    """
    buffer = bytearray()
    dropping = False
    while True:
        if not select.select([fd], [], [], 0)[0]:
            idle()
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            break
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            part, start = chunk[start:end], end + 1
            if dropping or len(buffer) + len(part) > limit:
                yield TooLong()
            else:
                yield bytes(buffer) + part
            buffer, dropping = bytearray(), False
        buffer += chunk[start:]
        if dropping or len(buffer) > limit:
            buffer, dropping = bytearray(), True
    if dropping:
        yield TooLong()
    elif buffer:
        yield bytes(buffer)


def write_line(fd: int, line: bytes) -> None:
    """Writes a line whole; `BrokenPipeError` when nobody reads any more."""
    view = memoryview(line + b"\n")
    while view:
        view = view[os.write(fd, view) :]
