"""What operations on plans share: the goal, the base, the manager of a request, and what a plan is held against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from ropewalk.core.errors import InvalidError, NotFoundError, PlanningError
from ropewalk.operations import crew
from ropewalk.operations.context import Context

if TYPE_CHECKING:
    from ropewalk.board.runs import Run
    from ropewalk.lane.cage.room import Level
    from ropewalk.lane.routing import Table
    from ropewalk.plan.asking import Goal
    from ropewalk.plan.document import Document
    from ropewalk.plan.estimate import Estimate
    from ropewalk.plan.plan import Plan
    from ropewalk.plan.task import Task
    from ropewalk.run.interrupts import Interrupts
    from ropewalk.run.planner.manager import Manager, Spent
    from ropewalk.run.planner.planning import Surroundings
    from ropewalk.run.replanning import Desk
    from ropewalk.store.store import Store


class Spending(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what the manager used: prompts, tokens, dollars with their mark; None where nobody counted."""

    asks: int = 0
    tokens: int | None = None
    dollars: float | None = None
    mark: str = ""


def goal(text: str, mode: str, workers: int | None, bounds: str, most: int) -> Goal:
    """Gives what a manager is asked for; `E_INVALID` for a mode that is none."""
    from ropewalk.plan.asking import Goal, Mode
    from ropewalk.plan.plan import Caps

    name = next((m for m in get_args(Mode) if m == (mode or ("workers" if workers is not None else "auto"))), None)
    if name is None:
        raise InvalidError(f"there is no mode {mode[:40]!r}", hint="workers, auto or idea", mode=mode)
    if name == "workers" and workers is None:
        raise InvalidError("for how many workers?", hint="give --workers N")
    return Goal(text, name, workers, "" if bounds.strip() == "none" else bounds, Caps(tasks=most))


def goal_of(made: Document) -> Goal:
    """Gives what the manager of a plan was asked for, as far as the plan says."""
    workers = int(made.workers) if made.workers.isdigit() and made.workers != "0" else None
    mode = made.mode if made.mode in ("workers", "auto", "idea") and (made.mode != "workers" or workers) else "auto"
    return goal(made.goal or made.summary, mode, workers, made.bounds, 10_000)


@contextmanager
def stoppable() -> Iterator[Interrupts]:
    """Catches the signals that end a planning; one that was ended so is told as stopped, not as one that failed."""
    from ropewalk.run.interrupts import Interrupts

    with Interrupts() as interrupts:
        try:
            yield interrupts
        except PlanningError:
            interrupts.check()
            raise


def valid(plan: Plan, folder: str) -> Plan:
    """Gives a plan back; `E_INVALID` with everything that is wrong with how it fits together."""
    from ropewalk.plan.plan import fit

    if found := fit(plan):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InvalidError(f"the plan does not fit together: {found[0]}{more}", problems=found[:100],
                           hint=f"`rw plan lint {folder}` says more")  # fmt: skip
    return plan


def guessed(ctx: Context, plan: Plan) -> tuple[Estimate, int]:
    """Gives the estimate of a plan, and how many earlier lanes it rests on; without a store on none."""
    from ropewalk.plan.estimate import estimate
    from ropewalk.run.planner import history

    try:
        past = history.past(ctx.store)
    except NotFoundError:
        past = ()
    routes = crew.routes(ctx)
    tasks = [msgspec.structs.replace(task, model=_model(routes, task)) for task in plan.tasks]
    return estimate(tasks, past, history.price()), len(past)


def _model(routes: Table, task: Task) -> str:
    """Gives the model that a task will get, by its provider's name; what no route knows stays as it is."""
    from ropewalk.lane.routing import route

    kind = task.class_ if task.class_ in routes.classes else ""
    try:
        return route(routes, harness=task.harness, model=task.model, task_class=kind).model or task.model
    except InvalidError:
        return task.model


def base(ctx: Context, rev: str | None, mode: str = "") -> str:
    """Gives the commit that a plan is made for; `E_NOT_FOUND` when there is none."""
    from ropewalk.core.ids import short_ref
    from ropewalk.store import revisions

    if rev is not None:
        return revisions.resolve(ctx.store, rev)
    branch = revisions.default_branch(ctx.store)
    found = ctx.store.ref(branch)
    if found is None and mode == "idea":
        from ropewalk.run.planner import baseline

        return baseline.empty(ctx.store, "ropewalk/planner")
    if found is None:
        raise NotFoundError(f"there is no ref {short_ref(branch)!r}", hint="import or commit something first")
    return found


def base_of(ctx: Context, made: Document) -> str:
    """Gives the commit that a plan was made for, else the default branch's."""
    if made.base and ctx.store.objects.kind(made.base) == "commit":
        return made.base
    return base(ctx, None, made.mode)


def around(ctx: Context, base: str, req: Any, store: Store | None = None) -> Surroundings:
    """Gives what a plan is held against, in a store, the context's where none is named."""
    import shutil

    from ropewalk.lane.cage import levels
    from ropewalk.operations import checking
    from ropewalk.run.planner import briefs, history
    from ropewalk.run.planner.baseline import Bounds
    from ropewalk.run.planner.planning import Surroundings
    from ropewalk.workspace import setup

    store = store or ctx.store
    search = ctx.env.get("PATH") or os.defpath
    policy = setup.policy_of(store)
    tree = store.objects.commit(base).tree
    named = req.cage or str(ctx.settings["cage"].value or "")
    level: Level = next((one for one in levels.LEVELS if one == named), "full")
    checks = None if req.no_base_checks else checking.caged(ctx, level)
    return Surroundings(
        lambda name: shutil.which(name, path=search) is not None, "" if req.no_base_checks else ctx.checks,
        Bounds(req.check_seconds), checks, briefs.decided(store, tree, policy),
        tuple(briefs.rules(policy).held.values()), history.past(store), history.price(),
    )  # fmt: skip


def cited(ctx: Context, made: Document, base: str) -> Document:
    """Gives a plan whose packets cite the decisions that govern what they write."""
    from ropewalk.plan.decisions import touching
    from ropewalk.plan.packets import CONSTRAINTS, Packet, sections
    from ropewalk.run.planner import briefs

    standing = briefs.decided(ctx.store, ctx.store.objects.commit(base).tree)

    def cited(packet: Packet) -> Packet:
        named = touching(standing, (*packet.owns, *packet.modifies))
        if not named or CONSTRAINTS in sections(packet.body):
            return packet
        lines = "\n".join(f"- {one.id}: {one.title}" for one in named)
        return msgspec.structs.replace(packet, body=f"{packet.body.rstrip()}\n\n## {CONSTRAINTS}\n\n{lines}\n")

    return msgspec.structs.replace(made, packets=tuple(cited(one) for one in made.packets)) if standing else made


@contextmanager
def manager(ctx: Context, req: Any, base: str, store: Store | None = None, name: str = "") -> Iterator[Manager]:
    """Gives the manager that a request names; `name` is its workspace's, in a store or the context's."""
    from ropewalk.run.planner import manager as managers

    if req.direct:
        if req.harness is not None or req.command is not None:
            raise InvalidError("--direct asks a model without an agent program")
        if not req.model:
            raise InvalidError("which model?", hint="give --model NAME")
        ups = crew.reached(ctx, crew.usual(ctx).manager)
        with managers.through_gateway(crew.gateway_folder(ctx), ups, req.model, seconds=req.seconds) as direct:
            yield direct
        return
    staff = crew.staff(ctx, req.harness, req.command, model=req.model)
    pick = staff.pick()
    assert pick is not None  # what names no task is anybody's
    ways = crew.ways(ctx, staff, cage=req.cage, only=crew.usual(ctx).manager)
    ways = ways._replace(model=pick.model, effort=pick.effort)
    folder = os.path.join(ctx.shared, "plans", os.urandom(6).hex())
    how = managers.Lanes(pick.adapter, ctx.env, ways, folder, ctx.data_home, seconds=req.seconds)
    with managers.in_lanes(store or ctx.store, base, how, name=name) as made:
        yield made


def desk(ctx: Context, store: Store, run: Run) -> Desk | None:
    """Gives where the manager of a run sits that is to be re-planned, None for one that is not."""
    from ropewalk.operations.plan import PlanDraftRequest
    from ropewalk.run import replanning
    from ropewalk.run.planner import manager as managers

    options = run.options
    if not replanning.limit_of(options):
        return None
    direct = bool(options.get("direct"))
    harness = None if direct else options.get("manager") or options.get("harness")
    own = harness == "command" and not options.get("manager")
    req = PlanDraftRequest(
        direct=direct, harness=None if own else harness, command=options.get("command") if own else None,
        model=str(options.get("model", "")), cage=options.get("cage"),
    )  # fmt: skip

    @contextmanager
    def sit(base: str) -> Iterator[tuple[Manager, Surroundings]]:
        name = f"replan-{run.id}"
        managers.clear(store, name, ctx.agent)
        with manager(ctx, req, base, store, f"{name}-{os.urandom(3).hex()}") as made:
            yield made, around(ctx, base, req, store)

    return sit


def spending(spent: Spent) -> Spending:
    """Gives what a manager used."""
    tokens = None if spent.tokens is None else spent.tokens.total
    return Spending(spent.asks, tokens, spent.cost.dollars, spent.cost.mark)


def say(ctx: Context, kind: str, facts: dict[str, Any]) -> None:
    """Shows what goes on, a line for each step."""
    if kind == "mapping":
        ctx.progress(f"mapping: {facts['files']} files, {facts['parts']} parts; test commands: {facts['tests']}")
    elif kind == "mapped":
        ctx.progress(f"mapped: {facts['parts']} parts; test commands: {facts['tests']}")
    elif kind == "planning":
        ctx.progress(f"planning, try {facts['attempt']} of 3{', in parts' if facts['parts'] else ''}")
    elif kind == "refused":
        problems = facts["problems"]
        ctx.progress(f"the {facts['what']} is refused: {problems[0]}"
                     f"{f' (and {len(problems) - 1} more)' if len(problems) > 1 else ''}")  # fmt: skip
    elif kind == "checking":
        ctx.progress(f"running the checks on the base, where they have to fail: {facts['checks']}")
