"""The processes of a lane, seen from outside: who descends from its shim, and whether they get on (G10)."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Work(NamedTuple):
    """Is what a lane's processes have done so far: how many there are, seconds of processor time, bytes moved."""

    living: int
    cpu: float
    moved: int


class _Stat(NamedTuple):
    pid: int
    parent: int
    state: bytes
    ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return _Stat(pid, int(words[1]), words[0], sum(int(word) for word in words[11:15]))


def started(pid: int) -> str:
    """Gives when a process started, in ticks since boot; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[19].decode("ascii")
    except (OSError, IndexError):
        return ""


def descendants(root: int) -> list[int]:
    """Gives the processes below one, those in other sessions and namespaces among them; the root is not."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit() and (found := _stat(int(name))) is not None:
            children.setdefault(found.parent, []).append(found.pid)
    left, found_all = [root], []
    while left:
        below = children.get(left.pop(), [])
        found_all += below
        left += below
    return found_all


def work(root: int) -> Work:
    """Gives what the processes below one have done; those that ended count with the parent that waited for them."""
    count = ticks = moved = 0
    for pid in descendants(root):
        found = _stat(pid)
        if found is None:
            continue
        count += found.state not in (b"Z", b"X")
        ticks += found.ticks
        try:
            with open(f"/proc/{pid}/io", "rb") as file:
                values = dict(line.split(b": ") for line in file.read().splitlines())
            moved += int(values[b"rchar"]) + int(values[b"wchar"])
        except (OSError, ValueError, KeyError):
            continue
    return Work(count, ticks / _TICKS, moved)


def end_below(root: int, seconds: float = 5.0) -> list[int]:
    """Kills all processes below one until none is left; gives those that were found."""
    import time

    ended: list[int] = []
    until = time.monotonic() + seconds
    while (found := [pid for pid in descendants(root) if _lives(pid)]) and time.monotonic() < until:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            ended.append(pid)
        time.sleep(0.01)
    return list(dict.fromkeys(ended))


def _lives(pid: int) -> bool:
    found = _stat(pid)
    return found is not None and found.state not in (b"Z", b"X")


def sweep(lane: str) -> list[int]:
    """Kills every process that carries a lane's id in its environment, or the id of a lane below it; gives them.

    It finds those that nothing else would: of a lane without a cage whose shim is gone. A process that was given
    another environment is not found; a cage is what holds that one.
    """
    import time

    killed: list[int] = []
    mark = b"\0ROPEWALK_LANE=" + lane.encode("utf-8", "surrogateescape")
    until = time.monotonic() + 5.0
    while (found := _marked(mark)) and time.monotonic() < until:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.append(pid)
        time.sleep(0.005)
    return list(dict.fromkeys(killed))


def _marked(mark: bytes) -> list[int]:
    """Gives the living processes that carry a mark in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                said = b"\0" + file.read()
        except OSError:
            continue
        at = said.find(mark)
        if at >= 0 and said[at + len(mark) : at + len(mark) + 1] in (b"\0", b"/") and _lives(int(name)):
            found.append(int(name))
    return found
