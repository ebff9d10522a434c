"""Runs on a board: what was asked and where it lands, so that any host can join, resume and report a run.

A run's tasks are the board's, named `RUN.TASK`; what became of them is in their own refs. Its record says what they
were made of. It is written once, and replaced only to stop the run and to let it go on.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from ropewalk.board import names, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.wire import Object
from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import CasMismatchError, InvalidError, NotFoundError
from ropewalk.plan.plan import Module
from ropewalk.store.oplog import Move

Mode = Literal["tasks", "plan", "goal"]
Undone = Literal["", "dropped", "moved", "reverted", "nothing"]

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}\Z")
_TRIES = 4


class Replan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what was done about tasks that failed: `replaced` are they and what waited for them, `tasks` stand instead.

    `key` names the failures that it is about: they are asked about once. `error` says why no tasks came of it.
    """

    key: str
    failed: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    summary: str = ""
    manager: str = ""
    by: str = ""
    at: int = 0
    error: str = ""


class Broken(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a check that fails on the run's head, though its task landed: `commit` broke it, the land of the task `by`.

    Without `by` it is a commit that is none of the run's.
    """

    task: str
    by: str
    commit: str
    words: str = ""


class Pause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is why none of a run's tasks is started now.

    `until` is when it goes on by itself, 0 where somebody has to say so; times are seconds since 1970.
    """

    why: str
    by: str = ""
    at: int = 0
    until: int = 0


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what a run was asked to do.

    `tasks` are the ids inside the run, `target` is the branch that they land on, from the commit `base`. `seconds` are
    how long each task was thought to take. `options` is what whoever resumes it needs beside that: harness, jobs,
    limits, the general check. `stopped` says who stopped it and why; empty for one that may go on. `undone` says how
    its work was taken back: such a run does not go on. `broken` are checks
    that fail on its head. `replans` are in their order; what they made is among the tasks.
    """

    id: str
    goal: str
    base: str
    target: str
    tasks: tuple[str, ...]
    mode: Mode = "tasks"
    summary: str = ""
    modules: tuple[Module, ...] = ()
    regions: dict[str, tuple[str, ...]] = {}
    seconds: dict[str, float] = {}
    options: dict[str, Any] = {}
    by: str = ""
    host: str = ""
    at: int = 0
    stopped: str = ""
    undone: Undone = ""
    replans: tuple[Replan, ...] = ()
    paused: Pause | None = None
    broken: tuple[Broken, ...] = ()

    @property
    def replaced(self) -> dict[str, tuple[str, ...]]:
        """Gives by the name of each task that was replaced the tasks that stand instead."""
        return {name: one.tasks for one in self.replans for name in one.replaced}


def new_id() -> str:
    """Gives an id for a run: the time it starts and a few random digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(2).hex()}"


def of_task(task: str) -> str:
    """Gives the run that a task's name says it is of; empty for one that is of none."""
    run, dot, _ = task.partition(".")
    return run if dot and _ID.match(run) else ""


def task_name(run: str, task: str) -> str:
    """Gives the name on the board of a run's task."""
    return f"{run}.{task}"


def short(run: str, task: str) -> str:
    """Gives the name inside its run of a board's task."""
    return task.removeprefix(f"{run}.")


def words(run: Run) -> str:
    """Gives the message of a run's record."""
    mark = f"stopped: {wire.one_line(run.stopped)}\n" if run.stopped else ""
    mark += f"paused: {run.paused.until}\n" if run.paused is not None else ""
    return f"run {run.id}\n\n{mark}record: {msgspec.json.encode(run).decode()}"


def read(board: Board, name: str) -> Run | None:
    """Gives a run's record; None where there is none, or none that can be read."""
    oid = board.ref(names.run(name)) if _ID.match(name) else None
    content = board.content(oid) if oid is not None else None
    return None if content is None else _parse(wire.message(content), name)


def need(board: Board, name: str) -> Run:
    """Gives a run's record; `E_NOT_FOUND` without one."""
    found = read(board, name)
    if found is None:
        raise NotFoundError(f"there is no run {name[:100]!r}", hint="list them with `rw runs list`", run=name[:100])
    return found


def listed(board: Board) -> list[Run]:
    """Gives every run of a board, newest first."""
    refs = board.below(names.RUNS)
    board.prefetch([oid for _, oid in refs])
    found = [read(board, ref[len(names.RUNS) :]) for ref, _ in refs]
    return sorted((run for run in found if run is not None), key=lambda run: (-run.at, run.id))


def stopped(board: Board, named: Iterable[str]) -> set[str]:
    """Gives those of the named runs whose tasks are not to be started now."""
    found = set()
    for name in named:
        oid = board.ref(names.run(name))
        content = board.content(oid) if oid is not None else None
        said = wire.fields(wire.message(content)) if content is not None else None
        if said is not None and (said.get("stopped") or _waits(said.get("paused"))):
            found.add(name)
    return found


def _waits(until: str) -> bool:
    """Says whether a run's mark has it wait; one whose time has come goes on without anybody's word."""
    return until.isdigit() and (until == "0" or int(until) > clock.now())


def set_paused(board: Board, name: str, pause: Pause | None, actor: str) -> Run:
    """Has a run wait, or go on; gives its record. One that waits already goes on waiting as it does, or for longer."""

    def change(run: Run) -> Run:
        if pause is not None and run.paused is not None and not 0 < run.paused.until < (pause.until or 1 << 62):
            return run
        return msgspec.structs.replace(run, paused=pause)

    return _changed(board, name, "run_pause" if pause is not None else "run_resume", actor, change)


def set_stopped(board: Board, name: str, why: str, actor: str) -> Run:
    """Stops a run, or lets it go on with an empty `why`; gives its record. The same again changes nothing."""

    def change(run: Run) -> Run:
        return run if run.stopped and why else msgspec.structs.replace(run, stopped=why)

    return _changed(board, name, "run_stop" if why else "run_resume", actor, change)


def set_broken(board: Board, name: str, broken: Iterable[Broken], actor: str) -> Run:
    """Notes which checks fail on a run's head; gives its record. The same again changes nothing."""
    return _changed(board, name, "run_prove", actor, lambda run: msgspec.structs.replace(run, broken=tuple(broken)))


def _changed(board: Board, name: str, step: str, actor: str, change: Callable[[Run], Run]) -> Run:
    for _ in range(_TRIES):
        run = need(board, name)
        changed = change(run)
        if changed == run:
            return run
        made = now_object(words(changed))
        move = Move(names.run(name), board.ref(names.run(name)), made.id)
        try:
            board.push(Step(step, actor, [move], [made]))
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
            continue
        return changed
    raise mismatch


def replanned(board: Board, run: Run, done: Replan, tasks: Iterable[str] = ()) -> tuple[Move, Object]:
    """Gives the move by which a run's record tells of a re-plan, and its object; `tasks` are new ones.

    The record that the board shows has to be the one that `run` was read from.
    """
    changed = msgspec.structs.replace(run, replans=(*run.replans, done), tasks=(*run.tasks, *tasks))
    made = now_object(words(changed))
    return Move(names.run(run.id), board.ref(names.run(run.id)), made.id), made


def taken_back(run: Run, how: Undone, actor: str) -> Run:
    """Gives the record of a run whose work is taken back."""
    return msgspec.structs.replace(run, stopped=f"undone by {actor}", undone=how)


def check_id(name: str) -> str:
    """Gives a run's id back; `E_INVALID` for what can't be one."""
    if not _ID.match(name):
        raise InvalidError(f"{name[:100]!r} is no run's id", hint="list them with `rw runs list`", run=name[:100])
    return name


def _parse(text: str, name: str) -> Run | None:
    record = wire.fields(text).get("record")
    try:
        found = msgspec.json.decode(record, type=Run)
    except UNREADABLE:
        return None
    return found if found.id == name else None
