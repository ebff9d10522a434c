"""Processes that belong to a test, found by the test's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def naming(folder: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields id, words and environment of each living process that names a folder in these, or works in it."""
    mark = os.fsencode(folder)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            said = Path(f"/proc/{pid}/environ").read_bytes()
            place = os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
            is_dead = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        except OSError:
            continue
        if pid != os.getpid() and not is_dead and any(mark in text for text in (words, said, place)):
            yield pid, words, said
