"""Runs: start one from a goal, a plan or tasks, and go on with one that was stopped or killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.errors import BusyError, InvalidError, NoBoardError, NotFoundError, PlanningError, StalledError
from ropewalk.operations import crew, managing
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, BoardName
from ropewalk.run.figures import Summary

if TYPE_CHECKING:
    from ropewalk.board.base import Board
    from ropewalk.board.runs import Run
    from ropewalk.run.work.options import Options
    from ropewalk.store.store import Store

JOBS, SECONDS, CHECK_SECONDS, ATTEMPTS, HEIRS = 4, 3600.0, 1800.0, 3, 2


class RunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what is to be done, who does it, and where it lands."""

    goal: Annotated[str, Meta(max_length=1_000_000, description="what is to be done; a manager plans it")] = ""
    plan: Annotated[str, Meta(min_length=1, max_length=4096, description="a plan's folder, see `rw plan`")] | None = (
        None
    )
    tasks: (
        Annotated[str, Meta(min_length=1, description="a task file: JSON, JSON lines, TOML or Markdown by its name")]
        | None
    ) = None
    jobs: Annotated[int, Meta(ge=1, le=256, description="how many agents at once")] | None = None
    yes: Annotated[bool, Meta(description="ask nothing: start the plan as it comes")] = False
    despite_lint: Annotated[bool, Meta(description="start a plan that its lint fails; the report tells of it")] = False
    manager: Annotated[str, Meta(max_length=4096, description="who plans; without it --harness")] | None = None
    direct: Annotated[bool, Meta(description="the manager is a model at the gateway, without an agent program")] = False
    mode: Annotated[str, Meta(max_length=20, description="workers, auto or idea; without it by --jobs")] = ""
    harness: crew.Harness | None = None
    command: crew.Command | None = None
    cage: crew.Cage | None = None
    model: Annotated[str, Meta(max_length=200, description="the model of tasks that name none")] = ""
    effort: Annotated[str, Meta(max_length=20, description="low, medium, high or max")] = ""
    check: (
        Annotated[
            str, Meta(max_length=100_000, description="a shell command, for tasks that have no check of their own")
        ]
        | None
    ) = None
    onto: (
        Annotated[str, Meta(max_length=1024, description="the branch to land on; without it a new one, run/ID")] | None
    ) = None
    seconds: Annotated[float, Meta(gt=0, le=604_800, description="how long an agent's turn may take")] = SECONDS
    check_seconds: Annotated[float, Meta(gt=0, le=86_400, description="how long a check may take")] = CHECK_SECONDS
    attempts: Annotated[int, Meta(ge=1, le=100, description="turns of an agent at one task")] = ATTEMPTS
    heirs: Annotated[int, Meta(ge=0, le=100, description="tries anew after deaths that were no fault of the work")] = (
        HEIRS
    )
    pass_env: crew.PassEnv = []
    record: crew.Record | None = None
    replay: crew.Replay | None = None
    budget: crew.Budget | None = None
    max_tokens: crew.MaxTokens | None = None
    replay_results: Annotated[bool, Meta(description="take unchanged tasks from the journal")] = False
    sample: Annotated[int, Meta(ge=0, le=10_000, description="of independent attempts")] = 0
    replan: Annotated[
        bool, Meta(description="have the manager replace tasks that failed, and those that wait for them")
    ] = False
    replans: Annotated[int, Meta(ge=1, le=20, description="how often a run is re-planned at most")] = 2
    board: BoardName | None = None


@operation(
    "run",
    request=RunRequest,
    response=Summary,
    summary="Run a goal, a plan or tasks by agents at once, each in its own workspace, and land what passes",
    errors=(*ON_A_BOARD, *crew.LANES, BusyError, PlanningError, StalledError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("goal?",)),
)
def run(ctx: Context, req: RunRequest) -> Summary:
    """Runs; exit code 10 when a task did not land, 3 when only conflicts were left, 130 when the run was stopped."""
    from ropewalk.operations.asked import gather
    from ropewalk.run import seeding

    make_store(ctx, req.board)
    board, store = _at(ctx, req.board)
    asked = gather(ctx, board, store, req)
    crew.check(ctx, _crew_of(ctx, asked.options)["staff"], asked.tasks)  # before anything is written
    made = seeding.seed(board, store, asked, ctx.agent, ctx.progress)
    return _drive(ctx, req.board, board, store, made)


class RunsResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes which run goes on, and what is to be other than before."""

    id: Annotated[str, Meta(min_length=1, max_length=100, description="the run")]
    jobs: Annotated[int, Meta(ge=1, le=256, description="how many agents at once")] | None = None
    harness: crew.Harness | None = None
    command: crew.Command | None = None
    pass_env: crew.PassEnv = []
    budget: crew.Budget | None = None
    max_tokens: crew.MaxTokens | None = None
    board: BoardName | None = None


@operation(
    "runs resume",
    request=RunsResumeRequest,
    response=Summary,
    summary="Go on with a run that was paused, stopped, killed, or cut short by a power loss",
    errors=(*ON_A_BOARD, *crew.LANES, BusyError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("id",)),
)
def runs_resume(ctx: Context, req: RunsResumeRequest) -> Summary:
    """Goes on: nothing that is done is done again; exit codes as for `run`."""
    from ropewalk.board import runs
    from ropewalk.operations.asked import changed

    board, store = _at(ctx, req.board)
    found = runs.need(board, req.id)
    if found.undone:
        raise InvalidError(
            f"the run {found.id} was taken back",
            hint="`rw op undo` of the operation that `rw op log` has for it brings it back", run=found.id,
        )  # fmt: skip
    options = changed(
        found.options, jobs=req.jobs, harness=req.harness, command=req.command, pass_env=list(req.pass_env),
        budget=req.budget, max_tokens=req.max_tokens,
    )  # fmt: skip
    _crew_of(ctx, options)
    was_paused = found.paused is not None
    found = runs.set_stopped(board, found.id, "", ctx.agent)
    found = runs.set_paused(board, found.id, None, ctx.agent)
    try:
        return _drive(ctx, req.board, board, store, msgspec.structs.replace(found, options=options))
    except BusyError as error:
        if not was_paused or error.details.get("run") != found.id:
            raise
        from ropewalk.run import drive

        # who drives it looks once more after it has let go of the run, so that it is one of the two that goes on
        ctx.progress(f"{error.message}, which goes on with it")
        return drive.shown(board, store, found)


def make_store(ctx: Context, named: str | None) -> None:
    """Makes the store beside the repository that one is in, where there is none yet and no board is named."""
    from ropewalk.operations.care import InitRequest, init
    from ropewalk.store import layout

    if named is not None or ctx.named_root is not None or layout.git_common_dir(ctx.cwd) is None:
        return
    try:
        ctx.board(None)
    except (NotFoundError, NoBoardError):
        try:
            made = init(ctx, InitRequest())
        except InvalidError:
            ctx.board(None)  # another process was faster; else this says that there is none
            return
        ctx.progress(f"made a store beside the repository: {made.name}, in its .git folder")


def _at(ctx: Context, named: str | None) -> tuple[Board, Store]:
    board = ctx.board(named)
    board.refresh()
    return board, ctx.store_for(board)


def _crew_of(ctx: Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Gives adapter and lanes of a run's options; raises what keeps them from being started."""
    harness = options.get("harness")
    command = options.get("command") if harness == "command" else None
    staff = crew.staff(
        ctx, harness, command, model=options.get("model", ""), effort=options.get("effort", ""),
        task_class=options.get("class", ""),
    )  # fmt: skip
    ways = crew.ways(
        ctx, staff, cage=options.get("cage"), pass_env=options.get("pass_env", ()), tape=options.get("tape"),
        budget=options.get("budget"), max_tokens=options.get("max_tokens"), only=crew.usual(ctx).names,
    )  # fmt: skip
    return {"harness": staff.adapters[0], "staff": staff, "ways": ways}


def _drive(ctx: Context, named: str | None, board: Board, store: Store, made: Run) -> Summary:
    from ropewalk.board import runs
    from ropewalk.run import drive, figures
    from ropewalk.run.interrupts import Interrupts

    with Interrupts() as interrupts:
        options = _options(ctx, named, board, made, interrupts.stopped)
        done = drive.drive(board, store, made, options, watch=watcher(ctx), desk=managing.desk(ctx, store, made))
    if done.ended == "gave_up":
        ctx.warnings.append(f"the worker gave up: {done.reason}")
    if done.summary.state == "paused" and not interrupts.stopped.is_set():
        board.refresh()
        now = runs.need(board, made.id)
        if now.paused is None:  # it was let go on by somebody who saw that this process drives it
            try:
                return _drive(ctx, named, board, store, msgspec.structs.replace(now, options=made.options))
            except BusyError:
                pass
    ctx.exit = 130 if interrupts.stopped.is_set() else figures.exit_code(done.summary)
    return done.summary


def _options(ctx: Context, named: str | None, board: Board, made: Run, stop: Any) -> Options:
    from ropewalk.board.local import LocalBoard
    from ropewalk.operations.steps import landing_for
    from ropewalk.operations.work import another
    from ropewalk.run.work.options import Options

    given = made.options
    return Options(
        worker=f"run-{made.id[-4:]}-{os.uname().nodename.split('.')[0]}"[:64], caller=ctx.env, data_home=ctx.data_home,
        stop=stop, model=str(given.get("model", "")), jobs=int(given.get("jobs", JOBS)),
        seconds=float(given.get("seconds", SECONDS)), check_seconds=float(given.get("check_seconds", CHECK_SECONDS)),
        attempts=int(given.get("attempts", ATTEMPTS)), heirs=int(given.get("heirs", HEIRS)),
        another=None if isinstance(board, LocalBoard) else another(ctx, named), landing=landing_for(board),
        replay=bool(given.get("replay")), sample=int(given.get("sample", 0)), **_crew_of(ctx, given),
    )  # fmt: skip


def watcher(ctx: Context) -> Callable[[dict[str, Any]], None]:
    """Gives what shows a run's events: the face's own display, else a line for each that matters."""
    if ctx.watch is not None:
        return ctx.watch

    def show(event: dict[str, Any]) -> None:
        line = line_of(event)
        if line is not None:
            ctx.progress(line)

    return show


def line_of(event: dict[str, Any]) -> str | None:
    """Gives an event as a line for a person, None for one that is not worth a line."""
    kind, task = event["event"], event.get("task", "")
    if kind == "run_started":
        count = len(event["tasks"])
        return f"run {event['run']}: {count} task{'' if count == 1 else 's'} onto {event['ref']}"
    if kind == "task_started":
        return f"{task}: started ({event['agent']})"
    if kind == "landed":
        return f"{task}: {event['status']} {event['id'][:12]}"
    if kind == "task_ended":
        report = event["report"]
        return f"{task}: {report.state}: {report.reason}" if report.state != "landed" else None
    if kind == "run_paused":
        return f"the run is paused: {event['reason']}{_until(event['until'])}"
    if kind == "run_resumed":
        return "the run goes on"
    if kind == "manager_refused":
        return f"the {event['what']} is refused: {event['problems'][0]}"
    if kind in ("replanning", "replanned", "replan_failed", "replan_refused", "replan_dropped"):
        return _replan_line(kind, event)
    if kind == "run_ended":
        counts = ", ".join(
            f"{event[name]} {name}" for name in ("landed", "failed", "blocked", "stopped") if event[name]
        )
        return f"run {event['run']}: {event['state']}: {counts or 'nothing landed'}"
    if kind == "attempted":
        return f"{task}: {event['how']}: {event['reason']}" if event["how"] in ("requeued", "released") else None
    if kind == "claim":
        return None
    from ropewalk.operations.work import line_of as of_worker

    return of_worker(event)


def _replan_line(kind: str, event: dict[str, Any]) -> str:
    failed = ", ".join(event.get("failed", []))
    if kind == "replanning":
        more = f", and {len(event['blocked'])} more waited"
        return f"re-planning, {event['number']} of {event['of']}: {failed} failed{more}"
    if kind == "replanned":
        return f"re-planned: {', '.join(event['tasks'])} in the place of {', '.join(event['replaced'])}"
    how = {"replan_failed": "no re-plan came of it", "replan_refused": "not re-planned", "replan_dropped": "not taken"}
    return f"{how[kind]}: {event['reason']}"


def _until(at: int) -> str:
    from datetime import UTC, datetime

    return f"; it goes on at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC" if at else ""
