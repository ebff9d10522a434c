"""Plans: drafted by a manager or from a specification, linted, refuted, estimated, split further, and shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.errors import InvalidError, NotFoundError, PlanningError
from ropewalk.operations import crew, linting, managing
from ropewalk.operations.context import Context
from ropewalk.operations.linting import LintCheck, LintFinding
from ropewalk.operations.managing import Spending
from ropewalk.operations.registry import Command, operation

if TYPE_CHECKING:
    from ropewalk.plan.estimate import Total

FOUND = 10
Folder = Annotated[str, Meta(min_length=1, max_length=4096, description="the plan's folder")]
Model = Annotated[str, Meta(max_length=200, description="the model, as the harness names it")]
Direct = Annotated[bool, Meta(description="ask the model straight through the gateway, without an agent program")]
Seconds = Annotated[float, Meta(gt=0, le=86_400, description="how long one answer may take")]
Workers = Annotated[int, Meta(ge=1, le=10_000, description="for so many workers; without it as many as are worth it")]


class PlanDraftRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a goal and who plans it, or a specification that needs nobody."""

    goal: Annotated[str, Meta(max_length=1_000_000, description="what is to be done, for a manager")] = ""
    spec: Annotated[str, Meta(max_length=4096, description="a file with a specification; no model is asked")] | None = (
        None
    )
    file: Annotated[str, Meta(max_length=4096, description="a file with the goal")] | None = None
    shape: Annotated[str, Meta(max_length=40, description="feature, review, research, migrate or app")] = "feature"
    packets: Annotated[list[str], Meta(max_length=1000, description="a packet: id=Role/class/model")] = []
    into: Annotated[str, Meta(min_length=1, max_length=4096, description="the plan's folder, which is made")] = "plan"
    mode: Annotated[str, Meta(max_length=20, description="workers, auto or idea; without it by --workers")] = ""
    workers: Workers | None = None
    bounds: Annotated[str, Meta(max_length=2000, description="what may be used: tokens, money, time, tries")] = "none"
    max_tasks: Annotated[int, Meta(ge=1, le=10_000, description="more tasks than these are refused")] = 500
    rev: Annotated[str, Meta(max_length=1024, description="the base; without it the default branch")] | None = None
    harness: crew.Harness | None = None
    command: crew.Command | None = None
    model: Model = ""
    direct: Direct = False
    cage: crew.Cage | None = None
    seconds: Seconds = 900.0
    check_seconds: Annotated[float, Meta(gt=0, le=3600, description="how long a check may take on the base")] = 60.0
    no_base_checks: Annotated[bool, Meta(description="do not run the checks on the base")] = False


class PlanDraftResponse(msgspec.Struct, frozen=True):
    """Is the plan's folder and what is in it; `problems` were mended, or could not be found out."""

    folder: str
    tasks: list[str]
    modules: list[str]
    workers: int
    low: int
    high: int
    ceiling: int
    manager: str = ""
    provider: str = ""
    tries: int = 0
    parts: int = 0
    problems: list[str] = []
    findings: int = 0
    spent: Spending = Spending()
    seconds: float = 0.0


@operation(
    "plan draft",
    request=PlanDraftRequest,
    response=PlanDraftResponse,
    summary="Make a plan: of a goal by a manager, or of a specification without a model",
    errors=(InvalidError, NotFoundError, PlanningError, *crew.LANES),
    writes=True,
    identity=False,
    store=False,
    tool="",
    command=Command(positional=("goal?",)),
)
def plan_draft(ctx: Context, req: PlanDraftRequest) -> PlanDraftResponse:
    """Writes a plan into a folder; a manager that gave none in three tries is `E_PLAN`, exit code 15."""
    from ropewalk.run.planner import folders

    given = [name for name in ("goal", "spec", "file") if getattr(req, name)]
    if len(given) != 1:
        raise InvalidError("what is planned?", hint="give a goal, or --file FILE, or --spec FILE", given=given)
    folder = ctx.path(req.into)
    if os.path.exists(os.path.join(folder, "plan.md")):
        raise InvalidError(f"there is a plan in {req.into} already", hint="name another folder with --into")
    if req.spec is not None:
        return _of_spec(ctx, req, folder)
    if req.packets:
        raise InvalidError("packets are named for a specification: --spec FILE", packets=req.packets[:10])
    text = req.goal
    if req.file is not None:
        with ctx.read_file(req.file) as file:
            text = file.read(1_000_000).decode("utf-8", "replace")
    from ropewalk.plan.document import Document, of_plan
    from ropewalk.run.planner import planning

    goal = managing.goal(text, req.mode, req.workers, req.bounds, req.max_tasks)
    base = managing.base(ctx, req.rev, goal.mode)
    with managing.stoppable() as interrupts, managing.manager(ctx, req, base) as manager:
        done = planning.plan(
            ctx.store, base, goal, manager, managing.around(ctx, base, req), stop=interrupts.stopped.is_set,
            tell=lambda kind, **facts: managing.say(ctx, kind, facts),
        )  # fmt: skip
    made = of_plan(done.plan, Document(
        goal=text.strip(), bounds=req.bounds, mode=goal.mode, workers=str(goal.workers or ""), manager=done.manager,
        provider=done.provider, base=base,
    ))  # fmt: skip
    made = managing.cited(ctx, made, base)
    folders.save(folder, made, done.map)
    report = linting.linted(ctx, made)
    advice = done.advice
    return PlanDraftResponse(
        req.into, [task.id for task in done.plan.tasks], [module.name for module in done.plan.modules], advice.workers,
        advice.low, advice.high, advice.ceiling, done.manager, done.provider, done.tries, done.parts,
        list(done.problems), len(report[0]), managing.spending(manager.spent()), done.seconds,
    )  # fmt: skip


def _of_spec(ctx: Context, req: PlanDraftRequest, folder: str) -> PlanDraftResponse:
    from ropewalk.core import policy
    from ropewalk.plan import decisions, drafting, mapping, overview
    from ropewalk.plan.plan import loads
    from ropewalk.run.planner import folders

    assert req.spec is not None
    with ctx.read_file(req.spec) as file:
        spec = file.read(4 << 20).decode("utf-8", "replace")
    root = folders.root(ctx.cwd)
    held = [one for one in folders.files(root) if not os.path.join(root, one[0]).startswith(f"{folder}/")]
    seen = mapping.survey(held, lambda path: folders.text(os.path.join(root, path)))
    rules = policy.read(root).rules
    standing = decisions.standing(decisions.read(folders.decisions(root, rules.decisions) or {}))
    made = drafting.draft(spec, req.spec, req.shape, drafting.seats(req.packets), seen, standing,
                          [path for path, _ in held])  # fmt: skip
    made = msgspec.structs.replace(made, bounds=req.bounds)
    folders.save(folder, made, seen)
    advice = overview.advise(made.plan, loads(made.plan))
    report = linting.linted(ctx, made)
    return PlanDraftResponse(req.into, [p.id for p in made.packets], [m.name for m in made.modules], advice.workers,
                             advice.low, advice.high, advice.ceiling, findings=len(report[0]))  # fmt: skip


class PlanLintRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a plan."""

    folder: Folder = "plan"


class PlanLintResponse(msgspec.Struct, frozen=True):
    """Is what the lint found."""

    folder: str
    packets: int
    failing: bool
    findings: list[LintFinding]
    checks: list[LintCheck]


@operation(
    "plan lint",
    request=PlanLintRequest,
    response=PlanLintResponse,
    summary="Say what is wrong with a plan before anything is spent on it",
    errors=(InvalidError, NotFoundError),
    store=False,
    tool="",
    command=Command(positional=("folder?",)),
)
def plan_lint(ctx: Context, req: PlanLintRequest) -> PlanLintResponse:
    """Lints a plan; exit code 10 when it may not be started as it is."""
    from ropewalk.run.planner import folders

    made = folders.load(ctx.path(req.folder))
    findings, checks, failing = linting.linted(ctx, made)
    if failing:
        ctx.exit = FOUND
    return PlanLintResponse(req.folder, len(made.packets), failing, findings, checks)


class PlanRefuteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a plan, and whose model it is shown to."""

    folder: Folder = "plan"
    harness: crew.Harness | None = None
    command: crew.Command | None = None
    model: Model = ""
    direct: Direct = False
    cage: crew.Cage | None = None
    seconds: Seconds = 900.0


class RefuteFinding(msgspec.Struct, frozen=True):
    """Is one thing that speaks against the plan."""

    severity: str
    text: str
    tasks: list[str]


class PlanRefuteResponse(msgspec.Struct, frozen=True):
    """Is the verdict; the plan's folder has it as `refutation.md`."""

    folder: str
    refuted: bool
    by: str
    provider: str
    author: str
    findings: list[RefuteFinding]
    tries: int
    spent: Spending


@operation(
    "plan refute",
    request=PlanRefuteRequest,
    response=PlanRefuteResponse,
    summary="Ask another provider's model what speaks against a plan",
    errors=(InvalidError, NotFoundError, PlanningError, *crew.LANES),
    writes=True,
    identity=False,
    store=False,
    tool="",
    command=Command(positional=("folder?",)),
)
def plan_refute(ctx: Context, req: PlanRefuteRequest) -> PlanRefuteResponse:
    """Has a plan refuted; exit code 10 when it is."""
    from ropewalk.plan.document import REFUTATION
    from ropewalk.run.planner import folders, refuting

    folder = ctx.path(req.folder)
    made = folders.load(folder)
    with managing.stoppable() as interrupts, managing.manager(ctx, req, managing.base_of(ctx, made)) as manager:
        done = refuting.refute(managing.goal_of(made), made.plan, made.provider, manager, seen=folders.map_of(folder),
                               stop=interrupts.stopped.is_set)  # fmt: skip
    folders.put(os.path.join(folder, REFUTATION), done.text().encode("utf-8", "replace"))
    if done.refuted:
        ctx.exit = FOUND
    findings = [RefuteFinding(o.severity, o.text, list(o.tasks)) for o in done.objections]
    return PlanRefuteResponse(req.folder, done.refuted, done.by, done.provider, made.provider, findings, done.tries,
                              managing.spending(done.spent))  # fmt: skip


class PlanExpandRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a plan, a task that is too large, and who splits it."""

    task: Annotated[str, Meta(min_length=1, max_length=100, description="the task")]
    folder: Folder = "plan"
    harness: crew.Harness | None = None
    command: crew.Command | None = None
    model: Model = ""
    direct: Direct = False
    cage: crew.Cage | None = None
    seconds: Seconds = 900.0
    check_seconds: Annotated[float, Meta(gt=0, le=3600, description="how long a check may take on the base")] = 60.0
    no_base_checks: Annotated[bool, Meta(description="do not run the checks on the base")] = False


class PlanExpandResponse(msgspec.Struct, frozen=True):
    """Is what stands in the task's place."""

    folder: str
    task: str
    tasks: list[str]
    spent: Spending


@operation(
    "plan expand",
    request=PlanExpandRequest,
    response=PlanExpandResponse,
    summary="Have a manager split a task of a plan into several",
    errors=(InvalidError, NotFoundError, PlanningError, *crew.LANES),
    writes=True,
    identity=False,
    store=False,
    tool="",
    command=Command(positional=("task", "folder?")),
)
def plan_expand(ctx: Context, req: PlanExpandRequest) -> PlanExpandResponse:
    """Splits a task; what needed it needs what stands in its place."""
    from ropewalk.plan.document import of_plan
    from ropewalk.run.planner import folders, planning

    folder = ctx.path(req.folder)
    made, seen = folders.load(folder), folders.map_of(folder)
    plan = managing.valid(made.plan, req.folder)
    base = managing.base_of(ctx, made)
    with managing.stoppable() as interrupts, managing.manager(ctx, req, base) as manager:
        done, ids = planning.expand(
            ctx.store, base, managing.goal_of(made), plan, req.task, manager, managing.around(ctx, base, req),
            seen=seen, stop=interrupts.stopped.is_set, tell=lambda kind, **facts: managing.say(ctx, kind, facts),
        )  # fmt: skip
    fresh = of_plan(done, made)
    before = {packet.id: packet for packet in made.packets}
    kept = tuple(_as_before(packet, before.get(packet.id)) for packet in fresh.packets)
    folders.save(folder, managing.cited(ctx, msgspec.structs.replace(fresh, packets=kept), base), anew=True)
    return PlanExpandResponse(req.folder, req.task, list(ids), managing.spending(manager.spent()))


def _as_before(packet: Any, before: Any) -> Any:
    """Gives a packet as it was, with the needs that it has now."""
    return packet if before is None else msgspec.structs.replace(before, depends_on=packet.depends_on)


class PlanEstimateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a plan."""

    folder: Folder = "plan"
    workers: Workers | None = None


class EstimateRow(msgspec.Struct, frozen=True):
    """Is what one task is thought to take, as words that say what each figure rests on."""

    task: str
    tokens_in: str
    tokens_out: str
    seconds: str
    money: str


class Sum(msgspec.Struct, frozen=True):
    """Is a sum over tasks with its range; None when nothing is known, and how many tasks are unknown."""

    value: float | None
    low: float | None
    high: float | None
    unknown: int
    words: str


class PlanEstimateResponse(msgspec.Struct, frozen=True):
    """Is what a plan is thought to take: agents' time together, and the wall's with so many workers, if known."""

    folder: str
    tasks: list[EstimateRow]
    tokens_in: Sum
    tokens_out: Sum
    seconds: Sum
    money: Sum
    workers: int
    wall: float | None
    past: int


@operation(
    "plan estimate",
    request=PlanEstimateRequest,
    response=PlanEstimateResponse,
    summary="Say what a plan will take in tokens, money and time, and what that rests on",
    errors=(InvalidError, NotFoundError),
    store=False,
    tool="",
    command=Command(positional=("folder?",)),
)
def plan_estimate(ctx: Context, req: PlanEstimateRequest) -> PlanEstimateResponse:
    """Estimates a plan from what earlier lanes of the store took; what is not known is said, and never 0."""
    from ropewalk.plan import overview
    from ropewalk.run.planner import folders

    plan = managing.valid(folders.load(ctx.path(req.folder)).plan, req.folder)
    found, past = managing.guessed(ctx, plan)
    view = overview.overview(plan, found.durations or None, req.workers)
    rows = [EstimateRow(t.id, t.tokens_in.shown(), t.tokens_out.shown(), t.seconds.shown(" s"), t.money.shown(" $"))
            for t in found.tasks]  # fmt: skip
    wall = view.makespan if found.seconds.value is not None and not found.seconds.unknown else None
    return PlanEstimateResponse(req.folder, rows, _sum(found.tokens_in), _sum(found.tokens_out),
                                _sum(found.seconds, " s"), _sum(found.money, " $"), view.workers, wall,
                                past)  # fmt: skip


def _sum(total: Total, unit: str = "") -> Sum:
    return Sum(total.value, total.low, total.high, total.unknown, total.shown(unit))


class PlanShowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a plan."""

    folder: Folder = "plan"
    workers: Workers | None = None


class RegionRow(msgspec.Struct, frozen=True):
    """Is a region: modules that one worker at a time is in, and how much of the work is there."""

    name: str
    modules: list[str]
    paths: list[str]
    load: float


class BarRow(msgspec.Struct, frozen=True):
    """Is a task as it would run."""

    task: str
    start: float
    end: float
    regions: list[str]
    critical: bool


class WaitRow(msgspec.Struct, frozen=True):
    """Is why a task does not start at once."""

    task: str
    kind: str
    why: str


class PlanShowResponse(msgspec.Struct, frozen=True):
    """Is what a plan comes to; times are seconds where `measured`, else the modules' weights."""

    folder: str
    summary: str
    workers: int
    recommended: int
    low: int
    high: int
    ceiling: int
    most_at_once: int
    regions: list[RegionRow]
    crossing: int
    critical: list[str]
    makespan: float
    length: float
    work: float
    measured: bool
    bars: list[BarRow]
    waits: list[WaitRow]
    chart: list[str]


@operation(
    "plan show",
    request=PlanShowRequest,
    response=PlanShowResponse,
    summary="Show a plan: regions, how many workers are worth having, the critical path, who waits for what",
    errors=(InvalidError, NotFoundError),
    store=False,
    tool="",
    command=Command(positional=("folder?",)),
)
def plan_show(ctx: Context, req: PlanShowRequest) -> PlanShowResponse:
    """Shows how a plan would run."""
    from ropewalk.plan import overview
    from ropewalk.run.planner import folders

    made = folders.load(ctx.path(req.folder))
    plan = managing.valid(made.plan, req.folder)
    found, _ = managing.guessed(ctx, plan)
    view = overview.overview(plan, found.durations or None, req.workers)
    advice, packing = view.advice, view.packing
    return PlanShowResponse(
        req.folder, made.summary, view.workers, advice.workers, advice.low, advice.high, advice.ceiling,
        advice.antichain, [RegionRow(r.name, list(r.modules), list(r.paths), r.load) for r in packing.regions],
        packing.crossing, list(view.critical), view.makespan, view.length, view.work, view.measured,
        [BarRow(b.id, b.start, b.end, list(b.regions), b.critical) for b in view.bars],
        [WaitRow(w.id, w.kind, w.text) for w in view.waits], view.chart(),
    )  # fmt: skip
