"""What a run leaves on this host: its folder with events, streams and the last summary, and who drives it.

What decides is on the board; the folder is what this host has seen of it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ropewalk.core import clock, durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import BusyError, NotFoundError, os_error
from ropewalk.run.figures import Summary
from ropewalk.store.layout import Layout

_LOCK = "lock"


def folder(layout: Layout, run: str) -> str:
    """Gives the folder of a run."""
    return os.path.join(layout.runs, run)


def write(layout: Layout, run: str, name: str, value: Any) -> None:
    """Writes a JSON file of a run, whole or not at all; it is durable then."""
    durable.replace(os.path.join(folder(layout, run), name), msgspec.json.encode(value) + b"\n")


@contextmanager
def driving(layout: Layout, run: str) -> Iterator[None]:
    """Marks a run as driven by this process while it lasts; `E_BUSY` names the process of this host that drives it."""
    try:
        fd = os.open(os.path.join(folder(layout, run), _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise os_error(error, "driving a run") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"the run {run} is driven by process {driver(layout, run) or '?'}", hint="`rw watch` follows it",
                run=run,
            ) from None  # fmt: skip
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)


def running(layout: Layout, run: str) -> bool:
    """Says whether a process of this host drives a run."""
    try:
        fd = os.open(os.path.join(folder(layout, run), _LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def wait(layout: Layout, run: str, seconds: float) -> bool:
    """Waits until no process of this host drives a run; says whether that came to be in time."""
    until = clock.monotonic() + seconds
    while running(layout, run):
        if clock.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def driver(layout: Layout, run: str) -> int | None:
    """Gives the process of this host that drives a run, None when there is none or it has not said so yet."""
    if not running(layout, run):
        return None
    try:
        with open(os.path.join(folder(layout, run), _LOCK), "rb") as file:
            text = file.read(20)
    except OSError:
        return None
    return int(text) if text.isdigit() else None


class Shown(msgspec.Struct, frozen=True):
    """Is the branch that shows a run in the user's repository, and the commit that it was made with."""

    branch: str
    head: str


def shown(layout: Layout, run: str) -> Shown | None:
    """Gives the branch that shows a run in the user's repository; None where there is none."""
    try:
        with open(os.path.join(folder(layout, run), "branch.json"), "rb") as file:
            return msgspec.json.decode(file.read(), type=Shown)
    except (OSError, *UNREADABLE):
        return None


def forget_shown(layout: Layout, run: str) -> None:
    """Forgets the branch that showed a run, so that it is made again should the run go on."""
    try:
        os.unlink(os.path.join(folder(layout, run), "branch.json"))
    except FileNotFoundError:
        pass


def names(layout: Layout) -> list[str]:
    """Gives the runs that have a folder here, newest first."""
    try:
        return sorted((name for name in os.listdir(layout.runs) if not name.startswith(".")), reverse=True)
    except OSError:
        return []


def load(layout: Layout, run: str) -> Summary:
    """Gives the summary in a run's folder; `E_NOT_FOUND` without one that can be read."""
    missing = NotFoundError(f"there is no run {run[:100]!r}", hint="list them with `rw runs list`", run=run[:100])
    if not run or "/" in run or run.startswith("."):
        raise missing
    try:
        with open(os.path.join(folder(layout, run), "summary.json"), "rb") as file:
            return msgspec.json.decode(file.read(), type=Summary)
    except (OSError, *UNREADABLE):
        raise missing from None
