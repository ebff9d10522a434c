"""What a run leaves behind: its folder, its events and its summary, and how they are listed and shown."""

from __future__ import annotations

import fcntl
import os
from typing import Any

import msgspec

from ropewalk.core import durable, events
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import NotFoundError
from ropewalk.store.layout import Layout


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what became of one task.

    `state` is landed, failed, blocked or stopped; `turns` counts the agent's turns (a conflict is one more),
    `deaths` how often its process was killed and started again,
    `cached` is the lane whose result stands for it.
    """

    id: str
    state: str
    agent: str = ""
    reason: str = ""
    landed: str | None = None
    turns: int = 0
    deaths: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    usage: dict[str, int] = {}
    workspace: str | None = None
    cached: str = ""


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what a run did: `state` is running, done, stopped or died."""

    id: str
    ref: str
    base: str
    head: str
    state: str
    landed: int
    failed: int
    blocked: int
    stopped: int
    seconds: float
    lands_per_second: float
    tasks: list[TaskReport]
    started_at: int = 0
    harness: str = ""
    branch: str | None = None


def folder(layout: Layout, run: str) -> str:
    """Gives the folder of a run."""
    return os.path.join(layout.runs, run)


def write(layout: Layout, run: str, name: str, value: Any) -> None:
    """Writes a JSON file of a run, whole or not at all; it is durable then."""
    durable.replace(os.path.join(folder(layout, run), name), msgspec.json.encode(value) + b"\n")


def hold(layout: Layout, run: str) -> int:
    """Marks a run as running for as long as this process lives; gives the descriptor that does it."""
    fd = os.open(os.path.join(folder(layout, run), "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def running(layout: Layout, run: str) -> bool:
    """Says whether a run's process lives."""
    try:
        fd = os.open(os.path.join(folder(layout, run), "lock"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def listed(layout: Layout) -> list[Summary]:
    """Gives every run, newest first."""
    try:
        names = sorted(os.listdir(layout.runs), reverse=True)
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        try:
            found.append(load(layout, name))
        except NotFoundError:
            continue
    return found


def load(layout: Layout, run: str) -> Summary:
    """Gives a run's summary; for one that did not write it, what its events tell. `E_NOT_FOUND` without a run."""
    if "/" in run or run.startswith(".") or not os.path.isdir(folder(layout, run)):
        raise NotFoundError(f"there is no run {run!r}", hint="list them with `rw runs list`", run=run)
    try:
        with open(os.path.join(folder(layout, run), "summary.json"), "rb") as file:
            return msgspec.json.decode(file.read(), type=Summary)
    except (FileNotFoundError, *UNREADABLE):
        return _from_events(layout, run)


def _from_events(layout: Layout, run: str) -> Summary:
    log, _ = events.read(os.path.join(folder(layout, run), "events.jsonl"))
    start: dict[str, Any] = next((e for e in log if e["event"] == "run_started"), {})
    ended = {e["task"]: e for e in log if e["event"] == "task_ended"}
    state = "running" if running(layout, run) else "died"
    tasks = [msgspec.convert(e["report"], TaskReport) for e in ended.values()]
    tasks += [TaskReport(name, state) for name in start.get("tasks", []) if name not in ended]
    seconds = round(log[-1]["at"] - log[0]["at"], 3) if log else 0.0
    base = str(start.get("base", ""))
    heads = [e["report"]["landed"] for e in ended.values() if e["report"].get("landed")]
    return summary(
        run, str(start.get("ref", "")), base, heads[-1] if heads else base, state, seconds, tasks,
        int(start.get("at", 0)), str(start.get("harness", "")), None,
    )  # fmt: skip


def summary(
    run: str, ref: str, base: str, head: str, state: str, seconds: float, tasks: list[TaskReport], started_at: int,
    harness: str, branch: str | None,
) -> Summary:  # fmt: skip
    """Gives the summary of these tasks."""
    count = {word: sum(task.state == word for task in tasks) for word in ("landed", "failed", "blocked", "stopped")}
    rate = round(count["landed"] / seconds, 2) if seconds else 0.0
    return Summary(
        run, ref, base, head, state, count["landed"], count["failed"], count["blocked"], count["stopped"],
        round(seconds, 3), rate, tasks, started_at, harness, branch,
    )  # fmt: skip
