"""Programs that watch folders: a dev server or an indexer that crawls what lanes write is woken by each of their files.

What a process watches by inotify stands in `/proc/PID/fdinfo`; other users' processes can't be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple


class Watching(NamedTuple):
    """Is a process that watches folders: its name and number, and which of those asked for it watches."""

    name: str
    pid: int
    folders: tuple[str, ...]


def watching(folders: Sequence[str]) -> list[Watching]:
    """Gives the processes that watch one of some folders, or what stands above one that is not there yet."""
    wanted: dict[tuple[int, int], list[str]] = {}
    for folder in folders:
        there = os.path.abspath(folder)
        while not os.path.isdir(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        found = os.stat(there)
        wanted.setdefault((found.st_ino, found.st_dev), []).append(folder)
    told = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            hit = sorted({folder for key in _watched(name) & wanted.keys() for folder in wanted[key]})
            if hit:
                told.append(Watching(_named(name), int(name), tuple(hit)))
    return told


def _watched(pid: str) -> set[tuple[int, int]]:
    """Gives (inode, device) of all that a process watches; nothing for one that is gone or not ours to look at."""
    found = set()
    base = f"/proc/{pid}"
    try:
        for fd in os.listdir(f"{base}/fd"):
            if os.readlink(f"{base}/fd/{fd}") != "anon_inode:inotify":
                continue
            with open(f"{base}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
                for line in file:
                    if line.startswith("inotify "):
                        facts = dict(word.split(":", 1) for word in line.split() if ":" in word)
                        device = int(facts["sdev"], 16)  # as the kernel has it: 12 bits above 20
                        found.add((int(facts["ino"], 16), os.makedev(device >> 20, device & 0xFFFFF)))
    except (OSError, KeyError, ValueError):
        pass
    return found


def _named(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process"
