"""Planning: a goal becomes a map and a plan, by a manager that is told all that is wrong at once, three times at most.

Nothing of a plan is mended here, and nothing is cut off it: what does not fit goes back to whoever made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import PlanningError
from ropewalk.gateway.prices import NOTHING, Cost
from ropewalk.gateway.tokens import Tokens
from ropewalk.plan import asking, mapping, overview
from ropewalk.plan import plan as plans
from ropewalk.plan.asking import Goal
from ropewalk.plan.decisions import Decision, standing
from ropewalk.plan.estimate import Past, Price, estimate
from ropewalk.plan.mapping import Map
from ropewalk.plan.plan import Plan, Reading
from ropewalk.plan.replies import find
from ropewalk.plan.simulate import Advice
from ropewalk.run.planner import baseline
from ropewalk.run.planner.baseline import Bounds
from ropewalk.run.planner.manager import Manager
from ropewalk.store.store import Store
from ropewalk.workspace.check import Cage

TRIES = 3
_PARTS = 100
"""Is in how many parts a plan may come."""

Tell = Callable[..., object]


class Surroundings(msgspec.Struct, frozen=True):
    """Is what a plan is held against beside its own form.

    `has_program` says whether a program is installed, `checks` is the folder in which checks are run on the base
    (empty: they are not), `past` and `price` are what estimates rest on.
    """

    has_program: Callable[[str], bool] | None = None
    checks: str = ""
    bounds: Bounds = Bounds()
    cage: Cage | None = None
    decisions: tuple[Decision, ...] = ()
    rules: tuple[str, ...] = ()
    past: tuple[Past, ...] = ()
    price: Price | None = None


class Planned(msgspec.Struct, frozen=True):
    """Is what came of a goal.

    `advice` is how many workers are worth having, with its range; `problems` are faults of earlier tries, and what
    could not be found out. `parts` says in how many replies the plan came.
    """

    plan: Plan
    map: Map
    advice: Advice
    problems: tuple[str, ...]
    manager: str
    provider: str
    tries: int
    parts: int
    asks: int
    seconds: float
    tokens: Tokens | None = None
    cost: Cost = NOTHING


class Stopped(Exception):
    """Somebody ended it."""


def plan(
    store: Store,
    base: str,
    goal: Goal,
    manager: Manager,
    around: Surroundings = Surroundings(),
    *,
    seen: Map | None = None,
    stop: Callable[[], bool] = lambda: False,
    tell: Tell = lambda kind, **facts: None,
) -> Planned:
    """Gives the plan of a goal for a commit; `seen` is a map that is known already.

    `tell` hears what goes on: mapping, mapped, planning, refused, checking, planned. Raises `E_PLAN` when no try gave a
    plan, with all that was wrong with the last one, and what starting the manager raises.
    """
    began = clock.monotonic()
    tree = store.objects.commit(base).tree
    held = baseline.files(store, tree)
    work = Work(store, tree, held, goal, manager, around, stop, tell)
    try:
        drawn = seen if seen is not None else work.map()
        made = work.plan(drawn)
    except Stopped:
        raise PlanningError("planning was stopped", hint="", stopped=True) from None
    guessed = estimate(made.tasks, around.past, around.price)
    advice = overview.advise(made, plans.loads(made, guessed.durations))
    spent = manager.spent()
    done = Planned(
        made, drawn, advice, tuple(work.problems), manager.name, manager.provider, work.tries, max(1, work.parts),
        spent.asks, round(clock.monotonic() - began, 3), spent.tokens, spent.cost,
    )  # fmt: skip
    tell("planned", tasks=len(made.tasks), modules=len(made.modules), workers=advice.workers, tries=work.tries)
    return done


class Work:
    """Is one piece of planning: it asks, reads, and asks again with all that was wrong."""

    def __init__(self, store: Store, tree: str, held: list[tuple[str, int]], goal: Goal, manager: Manager,
                 around: Surroundings, stop: Callable[[], bool], tell: Tell) -> None:  # fmt: skip
        self.store, self.tree, self.held, self.goal = store, tree, held, goal
        self.manager, self.around, self.stop, self.tell = manager, around, stop, tell
        self.problems: list[str] = []
        self.tries = self.parts = 0
        self._ran: dict[str, bool] = {}

    def ask(self, prompt: str) -> tuple[str, str]:
        """Gives an answer and why there is none; raises when somebody ended it."""
        if self.stop():
            raise Stopped
        got = self.manager.ask(prompt, self.stop)
        if got.stopped:
            raise Stopped
        return got.text, got.error

    def map(self) -> Map:
        """Gives the map: what the files say, and what the manager adds; its word alone is not worth failing for."""
        drawn = baseline.survey(self.store, self.tree, self.held)
        self.tell("mapping", files=drawn.files, parts=len(drawn.parts), tests=len(drawn.tests))
        if self.goal.mode == "idea":
            return drawn
        prompt = asking.mapping(self.goal, drawn)
        message = prompt
        for number in range(1, TRIES):
            text, error = self.ask(message)
            if error:
                self.problems.append(f"map, try {number}: {error}")
                message = asking.lost(prompt, error)
                continue
            said = mapping.completed(drawn, text, self.held)
            if said.map is not None:
                self.tell("mapped", parts=len(said.map.parts), tests=len(said.map.tests))
                return said.map
            self.problems += [f"map, try {number}: {words}" for words in said.problems]
            self.tell("refused", what="map", attempt=number, problems=list(said.problems))
            message = asking.again(prompt, said.message)
        self.problems.append("the map is what the files say; the manager's was not taken")
        return drawn

    def plan(self, drawn: Map) -> Plan:
        """Gives the plan; `E_PLAN` when no try gave one."""
        prompt = asking.planning(self.goal, drawn, standing(self.around.decisions), self.around.rules)
        return self.until(prompt, lambda replies: self.read(replies), "plan")

    def until(self, prompt: str, read: Callable[[Sequence[str]], Reading], what: str) -> Plan:
        """Asks until a reply reads as a plan, with all that was wrong before; `E_PLAN` after the last try."""
        message = prompt
        last: tuple[str, ...] = ()
        in_parts = False
        for number in range(1, TRIES + 1):
            self.tries = number
            self.tell("planning", attempt=number, parts=in_parts)
            replies, error = self.whole(prompt) if in_parts else self.one(message)
            if error:
                last = (error,)
                self.problems.append(f"try {number}: {error}")
                self.tell("refused", what=what, attempt=number, problems=[error])
                message, in_parts = asking.lost(prompt, error), False
                continue
            reading = read(replies)
            if reading.plan is not None:
                return reading.plan
            last = reading.problems
            self.problems += [f"try {number}: {words}" for words in reading.problems]
            self.tell("refused", what=what, attempt=number, problems=list(reading.problems))
            in_parts = reading.truncated
            message = asking.again(prompt, reading.message)
        more = f" (and {len(last) - 1} more)" if len(last) > 1 else ""
        raise PlanningError(
            f"{self.manager.name} gave no plan in {TRIES} tries: {last[0][:500]}{more}", problems=list(last[:200]),
            tries=TRIES, manager=self.manager.name,
        )  # fmt: skip

    def one(self, message: str) -> tuple[list[str], str]:
        """Gives a reply that is to be all of it."""
        self.parts = 1
        text, error = self.ask(message)
        return [text], error

    def whole(self, prompt: str) -> tuple[list[str], str]:
        """Gives a plan's parts, asked for one after the other until one has no tasks."""
        got: list[str] = []
        most = self.goal.caps.part
        while len(got) < _PARTS:
            text, error = self.ask(asking.part(prompt, len(got), most))
            if error:
                return [], error
            found = find(text, ("modules", "tasks", "summary"))
            if found.truncated and most > 1:
                most = max(1, most // 4)  # it is asked for once more, and smaller
                text, error = self.ask(asking.part(prompt, len(got), most))
                if error:
                    return [], error
                found = find(text, ("modules", "tasks", "summary"))
            over = found.value is not None and found.value.get("tasks") == [] and bool(got)
            if not over:
                got.append(text)
            self.parts = len(got)
            if over or found.value is None or found.truncated:
                return got, ""
        return [], f"the plan did not end within {_PARTS} parts"

    def read(self, replies: Sequence[str], merge: Callable[[Reading], Reading] = lambda one: one) -> Reading:
        """Reads replies; a plan of the right form is held against the base, too."""
        caps = self.goal.caps
        reading = merge(plans.read(*replies, caps=caps, has_program=self.around.has_program))
        if reading.plan is None or not self.around.checks:
            return reading
        faults = self.faults_on_base(reading.plan)
        return Reading(None, tuple(faults), caps=caps) if faults else reading

    def faults_on_base(self, made: Plan) -> list[str]:
        """Gives the checks that say the wrong thing of the base: those that pass, and guards that fail."""
        lines = [task.check for task in made.tasks if task.check not in self._ran]
        self.tell("checking", checks=len(set(lines)))
        around = self.around
        found = baseline.run(self.store, self.tree, lines, around.checks, around.bounds, cage=around.cage,
                             stop=self.stop)  # fmt: skip
        if self.stop():
            raise Stopped
        self._ran |= {line: verdict.kind == "passed" for line, verdict in found.items()
                      if verdict.kind != "infrastructure"}  # fmt: skip
        unsure = sorted({line for line in lines if line not in self._ran})
        self.problems += [f"nobody knows whether {line[:120]!r} passes already: it did not end in its time"
                          for line in unsure]  # fmt: skip
        passing = {task.id for task in made.tasks if self._ran.get(task.check)}
        faults = [f for f in plans.faults_of(made, passing=passing)]
        faults += [f"{task.id[:80]}: it is marked guard, and its check fails before anything is done"
                   for task in made.tasks if task.guard and self._ran.get(task.check) is False]  # fmt: skip
        return faults


def expand(
    store: Store,
    base: str,
    goal: Goal,
    whole: Plan,
    task: str,
    manager: Manager,
    around: Surroundings = Surroundings(),
    *,
    seen: Map | None = None,
    stop: Callable[[], bool] = lambda: False,
    tell: Tell = lambda kind, **facts: None,
) -> tuple[Plan, tuple[str, ...]]:
    """Gives a plan in which others stand in a task's place, and their ids; raises as `plan` does."""
    tree = store.objects.commit(base).tree
    work = Work(store, tree, [], goal, manager, around, stop, tell)
    old = next((one for one in whole.tasks if one.id == task), None)
    if old is None:
        from ropewalk.core.errors import NotFoundError

        raise NotFoundError(f"there is no task {task[:100]!r} in the plan", task=task[:200])
    made: list[tuple[str, ...]] = []

    def read(replies: Sequence[str]) -> Reading:
        found = find(replies[0], ("tasks", "modules"))
        if found.value is None:
            return plans.read(*replies, caps=goal.caps)
        value, ids = merged(whole, task, found.value)
        made[:] = [ids]
        text = msgspec.json.encode(value).decode()
        reading = work.read([text])
        few = [] if len(ids) > 1 else [f"{task!r} is to be split into two tasks or more"]
        problems = (*found.twice, *few, *reading.problems)
        return Reading(None, problems, caps=goal.caps) if problems else reading

    try:
        done = work.until(asking.expanding(goal, whole, task, seen), read, "tasks")
    except Stopped:
        raise PlanningError("planning was stopped", hint="", stopped=True) from None
    return done, made[0]


def merged(whole: Plan, task: str, said: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Gives a plan as plain values with others in a task's place, and the ids of these.

    What needed the task needs those of them that none of them needs; those that need none of them need what it did.
    """
    plain = msgspec.to_builtins(whole)
    new = said.get("tasks")
    ids = tuple(str(one.get("id")) for one in new if isinstance(one, dict)) if isinstance(new, list) else ()
    inner = {n for one in new if isinstance(one, dict) for n in _names(one)} if isinstance(new, list) else set()
    ends = [name for name in ids if name not in inner]
    old = next(one for one in plain["tasks"] if one["id"] == task)
    tasks: list[Any] = []
    for one in plain["tasks"]:
        if one["id"] == task:
            for extra in new if isinstance(new, list) else []:
                if (
                    isinstance(extra, dict)
                    and not set(_names(extra)) & set(ids)
                    and isinstance(extra.get("needs", []), list)
                ):
                    extra = {**extra, "needs": list(dict.fromkeys([*extra.get("needs", []), *old.get("needs", [])]))}
                tasks.append(extra)
        elif task in one.get("needs", []):
            needs = [n for need in one["needs"] for n in (ends if need == task else [need])]
            tasks.append({**one, "needs": list(dict.fromkeys(needs))})
        else:
            tasks.append(one)
    modules = said.get("modules", [])
    extra_modules = modules if isinstance(modules, list) else []
    known = {m["name"] for m in plain.get("modules", [])}
    fresh = [m for m in extra_modules if not (isinstance(m, dict) and m.get("name") in known)]
    return {**plain, "modules": [*plain.get("modules", []), *fresh], "tasks": tasks}, ids


def _names(task: Mapping[str, Any]) -> list[str]:
    needs = task.get("needs", [])
    return [n for n in needs if isinstance(n, str)] if isinstance(needs, list) else []
