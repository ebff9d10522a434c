"""What this host has to spare for lanes: memory and disk, as the kernel says."""

from __future__ import annotations

import os
from typing import NamedTuple

_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat"),
)  # fmt: skip
_CACHE = ("inactive_file", "active_file", "total_inactive_file", "total_active_file")


class Memory(NamedTuple):
    """Is what memory there is, and how much of it is to be had, in bytes."""

    available: int
    total: int


def memory() -> Memory | None:
    """Gives the memory of the machine, and of the group of processes this one is in; None where it can't be told."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        available = int(lines["MemAvailable"].split()[0]) << 10
        total = int(lines["MemTotal"].split()[0]) << 10
    except (OSError, ValueError, KeyError, IndexError):
        return None
    for limit, used, parts in _GROUPS:
        try:
            with open(limit, encoding="ascii") as first, open(used, encoding="ascii") as second:
                left = int(first.read()) - int(second.read()) + _cache(parts)
        except (OSError, ValueError):  # no such group, or no limit
            continue
        available = min(available, max(0, left))
    return Memory(available, total)


def _cache(path: str) -> int:
    """Gives what a group holds of files alone, which the kernel takes back when it is wanted."""
    try:
        with open(path, encoding="ascii") as file:
            pairs = dict(line.split() for line in file)
    except (OSError, ValueError):
        return 0
    own = sum(int(pairs.get(name, 0)) for name in _CACHE[:2])
    return max(own, sum(int(pairs.get(name, 0)) for name in _CACHE[2:]))


def free_disk(folder: str) -> tuple[str, int] | None:
    """Gives (the folder that is there, bytes free for this user) for a folder; None where it can't be looked at."""
    place = os.path.abspath(folder)
    while not os.path.isdir(place) and place != "/":
        place = os.path.dirname(place)
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return place, found.f_bavail * found.f_frsize
