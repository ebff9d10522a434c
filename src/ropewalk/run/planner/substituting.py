"""Substituting: a manager gives other tasks for those that failed, under the same rules as for any plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ropewalk.core.errors import PlanningError
from ropewalk.plan import asking
from ropewalk.plan.asking import Failure, Goal
from ropewalk.plan.plan import Module, Plan, Reading
from ropewalk.plan.replies import find
from ropewalk.plan.task import Task
from ropewalk.run.planner.manager import Manager
from ropewalk.run.planner.planning import Stopped, Surroundings, Tell, Work
from ropewalk.store.store import Store


class Asked(NamedTuple):
    """Is what is to be replaced: what failed and what waits for it; beside it what landed, and the modules there are.

    All names are those inside the run.
    """

    goal: str
    failed: Sequence[Failure]
    blocked: Sequence[Task]
    landed: Sequence[Task]
    modules: Sequence[Module] = ()


def substitute(
    store: Store, base: str, asked: Asked, manager: Manager, around: Surroundings = Surroundings(), *,
    stop: Callable[[], bool] = lambda: False, tell: Tell = lambda kind, **facts: None,
) -> Plan:  # fmt: skip
    """Gives the tasks that stand in the place of others; they need each other and what landed, and nothing else.

    Raises `E_PLAN` when no try gave any, with `stopped` when it was stopped.
    """
    goal = Goal(asked.goal)
    work = Work(store, store.objects.commit(base).tree, [], goal, manager, around, stop, tell)
    needs: dict[str, tuple[str, ...]] = {}

    def read(replies: Sequence[str]) -> Reading:
        parts = [find(reply, ("tasks", "modules", "summary")) for reply in replies]
        if any(one.value is None for one in parts):
            return work.read(replies)
        value, kept, faults = _apart(_joined([one.value or {} for one in parts]), asked)
        needs.clear()
        needs.update(kept)
        reading = work.read([msgspec.json.encode(value).decode()])
        faults = [*(words for one in parts for words in one.twice), *faults]
        return Reading(None, (*faults, *reading.problems), caps=goal.caps) if faults else reading

    prompt = asking.replacing(goal, asked.failed, asked.blocked, asked.landed, asked.modules)
    try:
        done = work.until(prompt, read, "replacement")
    except Stopped:
        raise PlanningError("re-planning was stopped", hint="", stopped=True) from None
    tasks = tuple(msgspec.structs.replace(task, needs=(*task.needs, *needs.get(task.id, ()))) for task in done.tasks)
    return msgspec.structs.replace(done, tasks=tasks)


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Gives a reply's parts as one; what is no list stays as the last part has it, and is told of when it is read."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = whole.get(key)
            whole[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return whole


def _apart(said: dict[str, Any], asked: Asked) -> tuple[dict[str, Any], dict[str, tuple[str, ...]], list[str]]:
    """Gives a reply without its needs of what landed, these needs by task, and what is wrong with others.

    What landed is in the tree, so that the plan is whole without it; modules that are known need not be told again.
    """
    listed = said.get("tasks")
    listed = listed if isinstance(listed, list) else []
    ids = {one.get("id") for one in listed if isinstance(one, dict) and isinstance(one.get("id"), str)}
    landed = {task.id for task in asked.landed} - ids
    gone = {one.task.id for one in asked.failed} | {task.id for task in asked.blocked}
    kept: dict[str, tuple[str, ...]] = {}
    faults: list[str] = []
    tasks: list[Any] = []
    for one in listed:
        wanted = one.get("needs") if isinstance(one, dict) else None
        if not isinstance(wanted, list) or not all(isinstance(need, str) for need in wanted):
            tasks.append(one)
            continue
        name = str(one.get("id"))
        faults += [f"{name[:80]}: it needs {need[:80]!r}, which is taken off the plan; name what stands instead"
                   for need in wanted if need in gone - ids]  # fmt: skip
        kept[name] = tuple(need for need in wanted if need in landed)
        tasks.append({**one, "needs": [need for need in wanted if need not in landed and need not in gone - ids]})
    modules = said.get("modules", [])
    if isinstance(modules, list):
        named = {one.get("name") for one in modules if isinstance(one, dict)}
        used = {one.get("module") for one in tasks if isinstance(one, dict)}
        known = {one.name: one for one in asked.modules}
        wanted_too = _with_bases(used & known.keys(), known) - named
        modules = [*modules, *(msgspec.to_builtins(known[name]) for name in sorted(wanted_too))]
    return {**said, "modules": modules, "tasks": tasks}, kept, faults


def _with_bases(names: set[Any], known: dict[str, Module]) -> set[str]:
    """Gives modules, and those that they build on."""
    found: set[str] = set()
    todo = [name for name in names if isinstance(name, str)]
    while todo:
        name = todo.pop()
        if name in known and name not in found:
            found.add(name)
            todo += known[name].depends_on
    return found
