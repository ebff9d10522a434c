"""Who holds back the log: processes with a view of the database open, from the kernel's table of locks (A20).

A reader with an old view keeps SQLite from starting the log over, so that it grows with every write. Nothing is done
about it but to say who it is.
"""

from __future__ import annotations

import os

from ropewalk.store.lock import process_words

WARN_PAGES = (256 << 20) // 4096
"""So many pages of log are told of."""

_FIRST, _LAST = 123, 127
"""Are the bytes of `-shm` that SQLite locks for readers, one for each view of the log."""


def readers(database: str) -> list[int]:
    """Gives the processes but this one that have a view of the database open; none where they can't be seen."""
    found: set[int] = set()
    try:
        there = os.stat(database + "-shm")
        key = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
        with open("/proc/locks", encoding="ascii") as table:
            for line in table:
                words = line.split()
                if "->" not in words and words[1] == "POSIX" and words[5] == key and _FIRST <= int(words[6]) <= _LAST:
                    found.add(int(words[4]))
    except (OSError, ValueError, IndexError):
        return []
    return sorted(found - {os.getpid(), 0})


def long_log(database: str, pages: int) -> list[str]:
    """Gives a warning when the log is long and somebody keeps it from starting over."""
    held = readers(database) if pages > WARN_PAGES else []
    who = ", ".join("process {} ({}, {})".format(pid, *process_words(pid)) for pid in held)
    size = pages * 4096 >> 20
    return [f"the store's log has grown to {size} MiB, because {who} reads an old view of it"] if held else []
