"""Observations: for how long this host has seen a claim unchanged, which is all that a lease's age can be (F9, F10).

No clock of another machine is trusted, nor a date in an object. Age grows only between looks that succeeded, and a
gap counts for as much as two polls, so that an observer that slept evicts nobody.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping

import msgspec

from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import os_error

FLOCKWORK_LEASE = 1800.0
BEATS = 5
LEAST = 300.0


class _Seen(msgspec.Struct):
    """Is what is known of one claim: its id with its beats, and for how many seconds it has been seen so."""

    mark: str
    age: float


class _File(msgspec.Struct):
    boot: str = ""
    at: float = 0.0
    seen: dict[str, _Seen] = {}


def observe(folder: str, claims: Mapping[str, str], poll: float) -> dict[str, float]:
    """Notes what a look saw and gives each claim's age in seconds; `claims` are marks by task.

    A mark is whatever changes when the holder shows that it lives. What this host's other processes saw counts too.
    """
    path = os.path.join(folder, "observed.json")
    now = clock.monotonic()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with open(fd, "rb", closefd=False) as file:
                known = _decoded(file.read())
            boot = clock.boot_id()
            # the monotonic clock starts anew at a boot: what was before counts, the gap does not
            gap = min(max(0.0, now - known.at), 2 * poll) if known.boot == boot else 0.0
            seen = {}
            for task, mark in claims.items():
                before = known.seen.get(task)
                same = before is not None and before.mark == mark
                seen[task] = _Seen(mark, before.age + gap if before is not None and same else 0.0)
            data = msgspec.json.encode(_File(boot, now, seen))
            os.ftruncate(fd, 0)
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)
    except OSError as error:
        raise os_error(error, "noting what was seen of the board") from None
    return {task: one.age for task, one in seen.items()}


def _decoded(data: bytes) -> _File:
    try:
        return msgspec.json.decode(data, type=_File) if data else _File()
    except UNREADABLE:
        return _File()  # what was torn is seen anew, which only takes longer


def lease(ours: bool, beat_seconds: float, flockwork: float = FLOCKWORK_LEASE) -> float:
    """Gives for how long a claim may be unchanged, in seconds."""
    return max(BEATS * beat_seconds, LEAST) if ours else flockwork
