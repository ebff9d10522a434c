"""Runs that are there: list them, show one, stop one, take one back."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    CageUnavailableError,
    CasMismatchError,
    CasRetryExhaustedError,
    CheckFailedError,
    ConflictError,
    FencedError,
    InvalidError,
    LandMismatchError,
    NotFoundError,
)
from ropewalk.core.ids import short_ref
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, BoardName
from ropewalk.run.figures import Built, Origin, RunState, Summary

FOUND = 10
SECONDS = 60.0
"""Is how long a stopped run's process is waited for."""

RunName = Annotated[str, Meta(min_length=1, max_length=100, description="the run")]


class RunsListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes how many runs to list."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="how many at most, newest first")] = 50
    board: BoardName | None = None


class RunRow(msgspec.Struct, frozen=True):
    """Is one run in a list."""

    id: str
    state: RunState
    ref: str
    landed: int
    failed: int
    tasks: int
    seconds: float
    started_at: int
    goal: str


class RunsListResponse(msgspec.Struct, frozen=True):
    """Is the runs, newest first."""

    runs: list[RunRow]
    truncated: bool


@operation(
    "runs list",
    request=RunsListRequest,
    response=RunsListResponse,
    summary="List runs, newest first",
    errors=ON_A_BOARD,
    store=False,
)
def runs_list(ctx: Context, req: RunsListRequest) -> RunsListResponse:
    """Lists the runs of a board, and those that were brought from elsewhere."""
    from ropewalk.run import drive

    board = ctx.board(req.board)
    board.refresh()
    found = drive.listed(board, ctx.store_for(board), req.limit + 1)
    rows = [
        RunRow(r.id, r.state, r.ref, r.landed, r.failed + r.blocked, len(r.tasks), r.seconds, r.started_at, r.goal)
        for r in found[: req.limit]
    ]
    return RunsListResponse(rows, len(found) > req.limit)


class RunsShowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a run's id."""

    id: RunName
    board: BoardName | None = None


@operation(
    "runs show",
    request=RunsShowRequest,
    response=Summary,
    summary="Show a run: its tasks, and what became of each",
    errors=ON_A_BOARD,
    store=False,
    command=Command(positional=("id",)),
)
def runs_show(ctx: Context, req: RunsShowRequest) -> Summary:
    """Shows a run, a running one too."""
    from ropewalk.board import runs
    from ropewalk.run import drive, report

    board = ctx.board(req.board)
    board.refresh()
    store = ctx.store_for(board)
    found = runs.read(board, req.id)
    return report.load(store.layout, req.id) if found is None else drive.shown(board, store, found)


class RunsStopRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a run's id, and why it is stopped."""

    id: RunName
    why: Annotated[str, Meta(max_length=1000, description="why, for whoever looks at it")] = ""
    board: BoardName | None = None


@operation(
    "runs stop",
    request=RunsStopRequest,
    response=Summary,
    summary="Stop a run: none of its tasks is started any more, its agents here are ended, all work is kept",
    errors=(*ON_A_BOARD, NotFoundError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("id",)),
)
def runs_stop(ctx: Context, req: RunsStopRequest) -> Summary:
    """Stops a run; agents on other hosts end their tasks. `rw runs resume` goes on with it."""
    from ropewalk.board import runs
    from ropewalk.run import drive, report

    board = ctx.board(req.board)
    board.refresh()
    store = ctx.store_for(board)
    found = runs.set_stopped(board, req.id, f"by {ctx.agent}{': ' + req.why if req.why else ''}", ctx.agent)
    driver = report.driver(store.layout, found.id)
    if driver is not None and driver != os.getpid():
        try:
            os.kill(driver, signal.SIGTERM)
        except OSError:
            pass  # it ended meanwhile, or is another user's
        else:
            ctx.progress(f"waiting for process {driver} to end its agents")
            report.wait(store.layout, found.id, SECONDS)
    return drive.shown(board, store, found)


class RunsPauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a run's id, why it is to wait, and for how long."""

    id: RunName
    why: Annotated[str, Meta(max_length=1000, description="why, for whoever looks at it")] = ""
    seconds: Annotated[int, Meta(ge=1, le=31_536_000, description="it goes on by itself after so long")] | None = None
    board: BoardName | None = None


@operation(
    "runs pause",
    request=RunsPauseRequest,
    response=Summary,
    summary="Let a run wait: what is being worked on is finished, and no other of its tasks is started, on any host",
    errors=(*ON_A_BOARD, NotFoundError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("id",)),
)
def runs_pause(ctx: Context, req: RunsPauseRequest) -> Summary:
    """Lets a run wait; again changes nothing. `rw runs resume` lets it go on."""
    from ropewalk.board import runs
    from ropewalk.core import clock
    from ropewalk.run import drive

    board = ctx.board(req.board)
    board.refresh()
    now = clock.now()
    why = f"by {ctx.agent}{': ' + req.why if req.why else ''}"
    pause = runs.Pause(why, ctx.agent, now, now + req.seconds if req.seconds is not None else 0)
    return drive.shown(board, ctx.store_for(board), runs.set_paused(board, req.id, pause, ctx.agent))


class RunsUndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a run's id, and a check for the tree without its work."""

    id: RunName
    check: (
        Annotated[
            str,
            Meta(min_length=1, max_length=100_000, description="a shell command that must pass without the run's work"),
        ]
        | None
    ) = None
    check_seconds: Annotated[float, Meta(gt=0, le=86_400, description="how long the check may take")] = 1800.0
    board: BoardName | None = None


class RunUndone(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is how a run was taken back.

    `how` is `dropped` (its branch is gone, and is kept as `kept`), `moved` (`ref` is back where the run found it),
    `reverted` (`commit` takes its lands back) or `nothing` (nothing of it was there). `head` is where `ref` is now.
    `branch` is the branch that was removed in the repository beside the store. `built` are later changes on what the
    run made, `held_by` other branches that have its work still.
    """

    id: str
    how: str
    ref: str
    head: str | None = None
    commit: str | None = None
    kept: str | None = None
    branch: str | None = None
    built: list[Built] = []
    held_by: list[str] = []
    already_applied: bool = False


@operation(
    "runs undo",
    request=RunsUndoRequest,
    response=RunUndone,
    summary="Take a run back: drop its branch, move the branch back that it landed on, or land one change against it",
    errors=(
        *ON_A_BOARD, BusyError, CageUnavailableError, CasMismatchError, CasRetryExhaustedError, CheckFailedError,
        ConflictError, FencedError, LandMismatchError,
    ),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("id",)),
)  # fmt: skip
def runs_undo(ctx: Context, req: RunsUndoRequest) -> RunUndone:
    """Takes a run back; again changes nothing. `rw op undo` brings back what was taken back in a store."""
    from ropewalk.board import runs
    from ropewalk.operations import checking
    from ropewalk.operations.steps import landing_for
    from ropewalk.run import publish, report, undo
    from ropewalk.run.work import evidence

    board = ctx.board(req.board)
    board.refresh()
    store = ctx.store_for(board)
    found = runs.need(board, req.id)
    check = None
    if req.check is not None:
        check = evidence.orders(store, req.check, req.check_seconds, ctx.checks, cage=checking.of_task(ctx))
    done = undo.take_back(board, store, landing_for(board), found, ctx.agent, check)
    removed, holders = None, list(done.holders)
    shown = report.shown(store.layout, found.id) if found.target == f"run/{found.id}" else None
    if shown is not None:
        theirs = publish.holding(store, shown.head, shown.branch)
        if theirs:
            ctx.warnings.append(
                f"your repository has the run's work in {', '.join(theirs[:5])}; this takes it back there:"
                f" git revert --no-edit {found.base[:12]}..{shown.head[:12]}"
            )
        stays = publish.remove_branch(store, shown.branch, shown.head) if done.how == "dropped" else ""
        if stays:
            ctx.warnings.append(stays)
        elif done.how == "dropped":
            removed = shown.branch
            report.forget_shown(store.layout, found.id)
    return RunUndone(
        found.id, done.how, short_ref(done.ref), done.head, done.commit, done.kept, removed, list(done.built), holders,
        done.already,
    )  # fmt: skip


class ImportRunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes where the run of another program is."""

    dir: Annotated[
        str, Meta(min_length=1, max_length=4096, description="its folder, or one with many: .fleetflow, a repository")
    ]


class BroughtRun(msgspec.Struct, frozen=True):
    """Is a run that is here now: how many tasks and endings it tells of, and how many of these are new."""

    id: str
    name: str
    origin: Origin
    tasks: int
    lanes: int
    new: int


class ImportRunResponse(msgspec.Struct, frozen=True):
    """Is the runs that were brought in."""

    runs: list[BroughtRun]


@operation(
    "import-run",
    request=ImportRunRequest,
    response=ImportRunResponse,
    summary="Bring in runs of fleetflow and native workflows: their summaries, findings, and endings as lanes",
    errors=(InvalidError,),
    writes=True,
    tool="",
    command=Command(positional=("dir",)),
)
def import_run(ctx: Context, req: ImportRunRequest) -> ImportRunResponse:
    """Brings them in; again with the same folder adds what is new alone, and changes no lane.

    Nothing is made up: what the files do not say is unknown. Exit code 10 where files are missing, or lines can't be
    read; each is named.
    """
    from ropewalk.run import bringing

    found = bringing.bring(ctx.store, ctx.path(req.dir), ctx.agent)
    if any(one.origin.bad or one.origin.missing for one in found):
        ctx.exit = FOUND
    return ImportRunResponse([BroughtRun(o.id, o.name, o.origin, o.tasks, o.lanes, o.new) for o in found])
