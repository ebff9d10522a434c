"""Re-planning: where tasks of a run failed by merit, its manager is asked for others in their place.

It is done when nothing else of the run can be done, so that the manager hears of all failures at once. What it answers
is held to what any plan is held to, and is put on the board in one step with the run's record: a process that is killed
before has done nothing, and one that comes after finds that it is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec
from blake3 import blake3

from ropewalk.board import replace, runs, state
from ropewalk.board.base import Board
from ropewalk.board.claim import As
from ropewalk.board.runs import Replan, Run
from ropewalk.board.state import Status
from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import CasMismatchError, PlanningError
from ropewalk.plan.asking import Failure
from ropewalk.plan.task import Task
from ropewalk.run import seeding
from ropewalk.run.planner import substituting
from ropewalk.run.planner.manager import Manager
from ropewalk.run.planner.planning import Surroundings
from ropewalk.store.store import Store

MOST = 2
"""Is how often a run is re-planned where nothing else is said."""

_SELF = ("cassette_miss",)
"""Are reasons of failures that other tasks would meet again."""

_NAME = 60
Tell = Callable[..., object]


class Desk(Protocol):
    """Is where a manager sits: it opens one for the tree at a commit, with what a plan for it is held against."""

    def __call__(self, base: str) -> AbstractContextManager[tuple[Manager, Surroundings]]:
        """Gives the manager, until the block ends."""
        ...


class Broken(NamedTuple):
    """Is what of a run failed by merit, what waits for it, what landed; `key` names just these failures."""

    failed: list[Status]
    blocked: list[Status]
    landed: list[Status]
    key: str


def broken(board: Board, run: Run) -> Broken | None:
    """Gives what of a run failed and could be replaced; None where nothing did."""
    mine = {
        name: status
        for name, status in state.look(board, everything=True).items()
        if runs.of_task(name) == run.id
    }  # fmt: skip
    failed = [one for one in mine.values() if one.state == "failed" and one.verdict is not None
              and one.verdict.reason not in _SELF]  # fmt: skip
    if not failed:
        return None
    gone = {one.id for one in failed}
    blocked: list[Status] = []
    while more := [one for one in mine.values() if one.id not in gone and one.state not in state.CLOSED
                   and one.claim_id is None and gone.intersection(one.spec.task.needs)]:  # fmt: skip
        blocked += more
        gone |= {one.id for one in more}
    words = sorted(f"{one.id} {one.verdict.attempt if one.verdict is not None else ''}" for one in failed)
    key = blake3("\n".join(words).encode()).hexdigest()[:16]
    return Broken(failed, blocked, [one for one in mine.values() if one.state == "done"], key)


def replan(
    board: Board, store: Store, run: Run, desk: Desk, who: As, head: Callable[[], str], *, most: int = MOST,
    stop: Callable[[], bool] = lambda: False, tell: Tell = lambda kind, **facts: None,
) -> Run | None:  # fmt: skip
    """Replaces what failed; gives the run's record then, None where nothing is to be done, or nothing came of it.

    `head` gives the commit that the run is at. Raises what keeps a manager from being asked.
    """
    board.refresh()
    run = runs.need(board, run.id)
    found = broken(board, run)
    if found is None or any(one.key == found.key for one in run.replans) or run.stopped:
        return None
    names = [runs.short(run.id, one.id) for one in found.failed]
    if len(run.replans) >= most:
        tell("replan_refused", failed=names, reason=f"the run was re-planned {most} times already")
        return None
    tell("replanning", failed=names, blocked=[runs.short(run.id, one.id) for one in found.blocked],
         number=len(run.replans) + 1, of=most)  # fmt: skip
    base = head()
    with desk(base) as (manager, around):
        asked = _asked(run, found)
        done = Replan(found.key, tuple(names), manager=manager.name, by=who.actor, at=clock.now())
        try:
            got = substituting.substitute(
                store, base, asked, manager, around, stop=stop,
                tell=lambda kind, **facts: tell(f"manager_{kind}", **facts),
            )  # fmt: skip
        except PlanningError as error:
            if error.details.get("stopped"):
                return None
            tell("replan_failed", failed=names, reason=error.message)
            replace.failed(board, run, msgspec.structs.replace(done, error=error.message[:1000]), who.actor)
            return None
    board.refresh()
    now, again = runs.need(board, run.id), broken(board, run)
    if now.replans != run.replans or again is None or again.key != found.key:
        tell("replan_dropped", failed=names, reason="the run's tasks changed meanwhile")
        return now
    old = [*again.failed, *again.blocked]
    new = _named(now, {one.id for one in state.look(board, everything=True).values()}, got.tasks, old)
    done = msgspec.structs.replace(
        done, replaced=tuple(runs.short(now.id, one.id) for one in old), summary=got.summary[:2000],
        tasks=tuple(runs.short(now.id, task.id) for task in new),
    )  # fmt: skip
    known = {one.name for one in now.modules}
    grown = msgspec.structs.replace(
        now, modules=(*now.modules, *(one for one in got.modules if one.name not in known))
    )  # fmt: skip
    try:
        made = replace.replace(board, grown, done, old, new, who)
    except CasMismatchError as error:
        tell("replan_dropped", failed=names, reason=error.message)
        return now
    tell("replanned", failed=names, replaced=list(done.replaced), tasks=list(done.tasks), manager=done.manager)
    return made


def _asked(run: Run, found: Broken) -> substituting.Asked:
    def plain(status: Status) -> Task:
        task = status.spec.task
        return msgspec.structs.replace(
            task, id=runs.short(run.id, task.id), needs=tuple(runs.short(run.id, need) for need in task.needs),
            region="", target="main",
        )  # fmt: skip

    failures = [Failure(plain(one), *_why(one)) for one in found.failed]
    return substituting.Asked(
        run.goal or run.summary, failures, [plain(one) for one in found.blocked], [plain(one) for one in found.landed],
        run.modules,
    )  # fmt: skip


def _why(status: Status) -> tuple[str, str, int]:
    """Gives why a task failed, what its check said at last, and after how many turns."""
    verdict = status.verdict
    assert verdict is not None
    values: Mapping[str, str] = verdict.values
    note = values.get("note", "")
    reason = ": ".join(one for one in (verdict.reason or f"its check ended with {verdict.pytest_rc}", note) if one)
    try:
        output = msgspec.json.decode(values.get("output", ""), type=str)
    except UNREADABLE:
        output = note
    turns = values.get("turns", "1")
    return reason, output, int(turns) if turns.isdigit() else 1


def _named(run: Run, there: set[str], made: Sequence[Task], old: Sequence[Status]) -> list[Task]:
    """Gives the new tasks as the board has them, each with a name that no other task has or had."""
    taken = {*there, *(runs.task_name(run.id, task) for task in run.tasks)}
    new: dict[str, str] = {}
    for task in made:
        name, number = runs.task_name(run.id, task.id), 2
        while name in taken:
            plain = re.sub(r"-[0-9]{1,3}$", "", task.id) if number > 2 or f"-{number - 1}" in task.id else task.id
            name, number = runs.task_name(run.id, f"{plain[:_NAME].rstrip('._-')}-{number}"), number + 1
        taken.add(name)
        new[task.id] = name
    regions = {one.spec.task.module: one.spec.task.region for one in old if one.spec.task.region}
    short = {full: runs.short(run.id, full) for full in new.values()}
    tasks = [
        msgspec.structs.replace(
            task, id=short[new[task.id]], needs=tuple(short[new[need]] if need in new else need for need in task.needs),
            region=runs.short(run.id, regions.get(task.module, task.module)),
        )
        for task in made
    ]  # fmt: skip
    return seeding.on_board(run, seeding.Asked(run.goal, tasks, run.base, check=str(run.options.get("check", ""))))


def limit_of(options: Mapping[str, Any]) -> int:
    """Gives how often a run with these options is re-planned."""
    given = options.get("replan", 0)
    return given if isinstance(given, int) else 0
