"""Admission: no further agent is started while this host has too little memory or disk for it; it is said for what."""

from __future__ import annotations

import threading

from ropewalk.core import clock
from ropewalk.lane import resources

SPARE_MEMORY, SPARE_DISK = 512 << 20, 1 << 30
"""Are how much memory and disk are left to everything else, in bytes."""

_FRESH_SECONDS = 10.0
"""Is for how long an agent that was just let in counts with all that it will need: it does not hold it yet."""


class Admission:
    """Lets agents in, one after the other; the threads of a worker share it."""

    def __init__(self, folder: str, memory: int = SPARE_MEMORY, disk: int = SPARE_DISK) -> None:
        self.folder, self._memory, self._disk = folder, memory, disk
        self._guard = threading.Lock()
        self._fresh: list[tuple[float, int]] = []

    def ask(self, megabytes: int) -> str:
        """Lets an agent in that will need so much memory; gives what is missing (no_memory, no_disk), empty if nothing.

        What can't be told is taken for enough.
        """
        with self._guard:
            now = clock.monotonic()
            self._fresh = [(at, size) for at, size in self._fresh if now - at < _FRESH_SECONDS]
            found = resources.memory()
            wanted = (megabytes << 20) + sum(size for _, size in self._fresh) + self._memory
            if found is not None and found.available < wanted:
                return (f"no_memory: {found.available >> 20} MB are to be had, and one more agent wants"
                        f" {wanted >> 20} with what is to be left free")  # fmt: skip
            room = resources.free_disk(self.folder)
            if room is not None and room[1] < self._disk:
                return f"no_disk: {room[1] >> 20} MB are free at {room[0]}, and {self._disk >> 20} are to be left"
            self._fresh.append((now, megabytes << 20))
            return ""
