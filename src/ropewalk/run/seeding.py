"""Seeding: a run's record, its branch and its tasks are put on a board in one step, or none of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ropewalk.board import names, runs, tasks
from ropewalk.board.base import Board, Step, create, now_object
from ropewalk.board.runs import Mode, Run
from ropewalk.core import clock
from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.plan import graph
from ropewalk.plan.plan import Module
from ropewalk.plan.task import Task
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store

_REGION = 60


class Asked(NamedTuple):
    """Is what a run is made of.

    `base` is a commit of the store. `onto` names a branch that is there; without it the run gets one of its own. What
    has no check of its own gets `check`, as a guard: it may pass before anything is done. `regions` are the regions of
    tasks by id, where a plan packed them.
    """

    goal: str
    tasks: Sequence[Task]
    base: str
    mode: Mode = "tasks"
    onto: str | None = None
    check: str = ""
    summary: str = ""
    modules: Sequence[Module] = ()
    regions: Mapping[str, str] = {}
    seconds: Mapping[str, float] = {}
    options: Mapping[str, Any] = {}


def seed(board: Board, store: Store, asked: Asked, actor: str, tell: Callable[[str], None] = lambda line: None) -> Run:
    """Puts a run on a board and gives its record; `E_INVALID` lists all that is wrong with its tasks."""
    name = runs.new_id()
    target = asked.onto or f"run/{name}"
    branch = names.branch(target)
    board.refresh()
    head = board.ref(branch)
    if asked.onto is not None and head is None:
        raise NotFoundError(f"there is no ref {target!r}", hint="import or commit something first")
    run = Run(
        name, asked.goal, head or asked.base, target, tuple(task.id for task in asked.tasks), asked.mode, asked.summary,
        tuple(asked.modules), _held(asked.regions), dict(asked.seconds), dict(asked.options), actor,
        os.uname().nodename, clock.now(),
    )  # fmt: skip
    record = now_object(runs.words(run))
    moves = [create(names.run(name), record)]
    if asked.onto is None:
        moves.append(Move(branch, None, asked.base))
        _lend(board, store)
    first = Step("run_start", actor, moves, [record])
    tasks.add(board, on_board(run, asked), actor, first=first, tell=tell)
    return run


def _lend(board: Board, store: Store) -> None:
    """Lets a board on a server take the commit that the run starts from."""
    from ropewalk.board.remote import RemoteBoard

    if isinstance(board, RemoteBoard):
        store.flush()
        store.expose()
        board.lend(os.path.join(store.layout.repo, "objects"))


def _held(regions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for task, region in sorted(regions.items()):
        found.setdefault(region, []).append(task)
    return {region: tuple(members) for region, members in found.items()}


def on_board(run: Run, asked: Asked) -> list[Task]:
    """Gives tasks of a run as the board has them; they may need each other, and tasks that the run has already."""
    ids = {*run.tasks, *(task.id for task in asked.tasks)}
    if len({task.id for task in asked.tasks}) != len(asked.tasks):
        seen: set[str] = set()
        twice = [task.id for task in asked.tasks if task.id in seen or seen.add(task.id)]  # type: ignore[func-returns-value]
        raise InvalidError(f"two tasks have the id {twice[0]!r}", problems=twice[:100])
    ranks = _ranks(asked.tasks, asked.seconds)
    found = []
    for task in asked.tasks:
        region = asked.regions.get(task.id) or task.region
        found.append(
            msgspec.structs.replace(
                task,
                id=runs.task_name(run.id, task.id),
                needs=tuple(runs.task_name(run.id, need) if need in ids else need for need in task.needs),
                region=_region(run, region) if region else "",
                check=task.check.strip() or asked.check,
                guard=task.guard or not task.check.strip(),
                target=run.target,
                priority=ranks.get(task.id, task.priority),
            )
        )
    return found


def _region(run: Run, region: str) -> str:
    """Gives a region's name on the board, so that those of two runs are not the same."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", region.lower()).replace("..", "-").strip(".-") or "region"
    return f"{run.id}.{plain}"[:_REGION].rstrip(".")


def _ranks(listed: Sequence[Task], seconds: Mapping[str, float]) -> dict[str, int]:
    """Gives priorities by how much time hangs on each task, where nobody gave priorities and times are known."""
    if not seconds or any(task.priority for task in listed):
        return {}
    usual = sorted(seconds.values())[len(seconds) // 2]
    took = {task.id: seconds.get(task.id, usual) for task in listed}
    needs = {task.id: tuple(need for need in task.needs if need in took) for task in listed}
    if graph.circles(needs):
        return {}
    _, tails = graph.heads_and_tails(needs, took)
    weight = {name: round(tails[name] + took[name], 6) for name in took}
    order = {value: place for place, value in enumerate(sorted(set(weight.values())))}
    return {name: order[value] for name, value in weight.items()}
