"""Following a run that another process drives: by its events where that is a process of this host, else by the board.

Either way the same events come, and an end when nothing more can: the run is over, was stopped, or nobody works on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ropewalk.board import names, runs, state
from ropewalk.board.base import Board
from ropewalk.board.local import LocalBoard
from ropewalk.board.runs import Run
from ropewalk.board.state import Status
from ropewalk.core import clock, events
from ropewalk.core.events import Event
from ropewalk.core.ids import short_ref
from ropewalk.run import drive, report
from ropewalk.run.figures import Summary, TaskReport
from ropewalk.store.store import Store

_TICK, _LOCAL, _REMOTE = 0.1, 0.5, 3.0
"""Are how often events, a board here and a board elsewhere are looked at, in seconds."""

_OPEN = frozenset({"ready", "claimed", "half", "pending"})
_OVER = frozenset({"landed", "failed", "blocked", "stopped", "cancelled", "replaced"})

Gone = Callable[[], bool]
"""Says whether nobody wants to see more."""


def follow(board: Board, store: Store, run: Run, patience: float, gone: Gone) -> Iterator[Event]:
    """Yields a run's events from the last time on that somebody began to drive it, until it ends.

    A run that nobody works on is waited for so many seconds: between two tasks another host's worker has none.
    """
    seen = _Seen()
    if report.running(store.layout, run.id):
        yield from _told(board, store, run, seen, gone)
        if gone():
            return
    yield from _looked(board, store, run, seen, patience, gone)


def everything(board: Board, gone: Gone) -> Iterator[Event]:
    """Yields what happens to any task of a board, until none is open any more."""
    before: dict[str, tuple[str, str]] = {}
    while not gone():
        board.refresh()
        now = state.look(board, everything=True)
        for name, status in now.items():
            how = _how(status)
            claim = how[1]
            if before.get(name) != how:
                yield _event("task", task=name, state=status.state, why=status.why, attempt=claim,
                             worker=names.worker_of(claim) if claim else "",
                             landed=status.returned if status.state == "done" else None)  # fmt: skip
        for name in before.keys() - now.keys():
            yield _event("task", task=name, state="gone", why="", attempt="", worker="", landed=None)
        before = {name: _how(status) for name, status in now.items()}
        if not any(status.state in _OPEN for status in now.values()):
            return  # whatever waits now waits for what failed
        _pause(_every(board), gone)


def _how(status: Status) -> tuple[str, str]:
    claim = status.claim
    return status.state, claim.attempt if claim is not None and not claim.closed else ""


class _Seen:
    """Is what was told of already, so that a change from events to the board tells nothing twice."""

    def __init__(self) -> None:
        self.begun = self.over = False
        self.attempts: dict[str, int] = {}
        self.ended: dict[str, str] = {}

    def note(self, event: Event) -> None:
        """Notes an event that is told of."""
        kind, task = event["event"], str(event.get("task", ""))
        if kind == "run_started":
            self.begun, self.over = True, False
        elif kind == "run_ended":
            self.over = True
        elif kind == "task_started":
            self.attempts[task] = self.attempts.get(task, 0) + 1
        elif kind == "task_ended":
            self.ended[task] = event["report"].state


def _told(board: Board, store: Store, run: Run, seen: _Seen, gone: Gone) -> Iterator[Event]:
    """Yields the events that the process which drives the run writes, until it is no more."""
    path = os.path.join(report.folder(store.layout, run.id), "events.jsonl")
    start = _begin(path)
    while not gone():
        alive = report.running(store.layout, run.id)  # asked first: what it wrote before its end is read below
        while True:
            found, after = events.read(path, start)
            if after == start:
                break
            start = after
            for raw in found:
                event = _typed(raw)
                if event is not None:
                    seen.note(event)
                    yield event
        if not alive:
            return
        _pause(_TICK, gone)


def _begin(path: str) -> int:
    """Gives where the events of the last drive begin; what an agent said can't look like it, its quotes are escaped."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return 0
    return data.rfind(b"\n", 0, max(0, data.rfind(b'"event":"run_started"'))) + 1


def _looked(board: Board, store: Store, run: Run, seen: _Seen, patience: float, gone: Gone) -> Iterator[Event]:
    """Yields what changes in the run as its board shows it."""
    idle: float | None = None
    held: runs.Pause | None = None
    while not gone():
        run = runs.need(board, run.id)
        now = drive.shown(board, store, run)
        for event in _changes(run, now, seen):
            seen.note(event)
            yield event
        idle = (idle or clock.monotonic()) if now.state == "died" else None
        if now.paused is not None and now.paused.until:
            if now.paused != held:
                held = now.paused
                yield _event("run_paused", run=run.id, reason=held.why, until=held.until)
            _pause(_every(board), gone)
            continue  # it goes on by itself
        if now.state != "running" and (idle is None or clock.monotonic() - idle >= patience):
            if not seen.over:
                yield _event("run_ended", run=run.id, state=now.state, landed=now.landed, failed=now.failed,
                             blocked=now.blocked, stopped=now.stopped, seconds=now.seconds)  # fmt: skip
            return
        _pause(_every(board), gone)


def _changes(run: Run, now: Summary, seen: _Seen) -> Iterator[Event]:
    if not seen.begun:
        ref, tasks = short_ref(names.branch(run.target)), [one.id for one in now.tasks]
        yield _event("run_started", run=run.id, ref=ref, base=run.base, goal=run.goal, tasks=tasks,
                     harness=now.harness, jobs=run.options.get("jobs", 0))  # fmt: skip
    for one in now.tasks:
        for _ in range(seen.attempts.get(one.id, 0), one.attempts):
            yield _event("task_started", task=one.id, agent=one.agent)
        if one.state in _OVER and seen.ended.get(one.id) != one.state:
            if one.state in ("stopped", "blocked") and now.state == "running":
                continue  # it may still be otherwise
            if one.landed:
                yield _event("landed", task=one.id, id=one.landed, status="landed", seconds=one.seconds)
            yield _event("task_ended", task=one.id, report=one)


def _typed(raw: dict[str, Any]) -> Event | None:
    """Gives an event of a file as its writer had it; None for one that is none of ours."""
    if not isinstance(raw.get("event"), str):
        return None
    if "report" in raw:
        try:
            return {**raw, "report": msgspec.convert(raw["report"], TaskReport)}
        except msgspec.ValidationError:
            return None
    return raw


def _event(kind: str, **facts: Any) -> Event:
    return {"at": round(time.time(), 3), "event": kind, **facts}


def _every(board: Board) -> float:
    return _LOCAL if isinstance(board, LocalBoard) else _REMOTE


def _pause(seconds: float, gone: Gone) -> None:
    """Waits so long, or until nobody wants to see more."""
    until = clock.monotonic() + seconds
    while not gone() and (left := until - clock.monotonic()) > 0:
        time.sleep(min(left, _TICK))
