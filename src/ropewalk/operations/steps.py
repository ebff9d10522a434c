"""The steps of a task, each alone, for people and for tools that bring their own agents: claim, judge, return…

A claim made here names no process, so nobody can see whether its holder lives: `rw heartbeat` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from ropewalk.board import claim, names, state, wire
from ropewalk.board.base import Board
from ropewalk.board.base import words as words_of
from ropewalk.board.claim import Held
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import (
    AmbiguousError,
    BusyError,
    CageUnavailableError,
    CasMismatchError,
    CheckFailedError,
    ClaimedError,
    ConflictError,
    EmptyCommitError,
    FencedError,
    InvalidError,
    LandMismatchError,
    ShallowError,
    WorkspaceDamagedError,
    WorkspaceGoneError,
    WorkspaceNotMountedError,
)
from ropewalk.operations import checking
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, BoardName, TaskName, TaskRequest, brief_of, need, who

if TYPE_CHECKING:
    from ropewalk.core.errors import RopewalkError
    from ropewalk.run.steps import Judged
    from ropewalk.run.work.landing import Landing, Result
    from ropewalk.store.store import Store

Attempt = Annotated[str, Meta(min_length=1, max_length=200, description="the attempt, as `rw claim` gave it")]
TreeName = Annotated[
    str, Meta(min_length=1, max_length=4096, description="a folder, a workspace, or a revision with the change")
]
WITH_A_TREE = (
    AmbiguousError, ShallowError, WorkspaceGoneError, WorkspaceDamagedError, WorkspaceNotMountedError,
    CageUnavailableError,
)  # fmt: skip
"""Is what may be wrong with a tree that is handed in, and with the cage that it is judged in."""
HOLDING = (*ON_A_BOARD, FencedError, CasMismatchError)


class Brief(msgspec.Struct, frozen=True):
    """Is a task's brief as it was written."""

    task: str
    brief: str


@operation(
    "brief",
    request=TaskRequest,
    response=Brief,
    summary="Print a task's brief: what to do, and the check that says when it is done",
    errors=ON_A_BOARD,
    tool="",
    store=False,
    command=Command(positional=("task",)),
)
def brief(ctx: Context, req: TaskRequest) -> Brief:
    """Gives a brief."""
    board = ctx.board(req.board)
    board.refresh()
    return Brief(req.task, brief_of(board, req.task))


class ClaimRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task and who wants it."""

    task: TaskName
    worker: Annotated[str, Meta(max_length=64, description="the worker's name; without it made of --as")] | None = None
    harness: Annotated[str, Meta(max_length=100, description="the agent program; without it the family of --as")] | (
        None
    ) = None
    model: Annotated[str, Meta(max_length=200, description="the model")] = ""
    board: BoardName | None = None


class Claimed(msgspec.Struct, frozen=True):
    """Is a claim: the attempt that the next steps name, the commit to start from, and how often to say one lives."""

    task: str
    attempt: str
    base: str | None
    target: str
    heartbeat_seconds: float


@operation(
    "claim",
    request=ClaimRequest,
    response=Claimed,
    summary="Claim a task that is ready; of many who try one gets it",
    errors=(*ON_A_BOARD, ClaimedError, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task",)),
)
def claim_task(ctx: Context, req: ClaimRequest) -> Claimed:
    """Claims; the claim is durable when this answers."""
    board = ctx.board(req.board)
    board.refresh()
    state.law(board)
    status = need(board, req.task)
    if status.state not in ("ready", "waiting", "invalid"):
        raise ClaimedError(
            f"{status.id} is {status.state}" + (f" by {status.why}" if status.state == "claimed" else ""),
            task=status.id, state=status.state,
        )  # fmt: skip
    if status.state != "ready":
        raise InvalidError(f"{status.id} is not ready: {status.why}", task=status.id, state=status.state)
    held = claim.take(board, status, who(ctx, req.worker, req.harness, req.model))
    found = wire.fields(held.words)
    return Claimed(held.task.id, held.attempt, found.get("base") or None, held.task.target, board.beat_seconds)


class HoldRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task and the attempt that has it."""

    task: TaskName
    attempt: Attempt
    board: BoardName | None = None


class StillHeld(msgspec.Struct, frozen=True):
    """Is a claim that is still the caller's, and the times that it notes."""

    task: str
    attempt: str
    marks: dict[str, str]


def _held(ctx: Context, req: HoldRequest) -> tuple[Board, Held]:
    board = ctx.board(req.board)
    board.refresh()
    return board, claim.find(board, need(board, req.task).id, req.attempt, ctx.agent)


def _still(held: Held) -> StillHeld:
    found = wire.read_claim(held.words)
    return StillHeld(held.task.id, held.attempt, found.marks if found is not None else {})


@operation(
    "heartbeat",
    request=HoldRequest,
    response=StillHeld,
    summary="Say that the holder of a claim lives, so that nobody takes the task over",
    errors=HOLDING,
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task", "attempt")),
)
def heartbeat(ctx: Context, req: HoldRequest) -> StillHeld:
    """Beats for a claim."""
    board, held = _held(ctx, req)
    return _still(claim.beat(board, held))


@operation(
    "work-started",
    request=HoldRequest,
    response=StillHeld,
    summary="Note in a claim that the work began",
    errors=HOLDING,
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task", "attempt")),
)
def work_started(ctx: Context, req: HoldRequest) -> StillHeld:
    """Notes the time; the first one stays."""
    board, held = _held(ctx, req)
    return _still(claim.mark(board, held, "work_started"))


@operation(
    "work-done",
    request=HoldRequest,
    response=StillHeld,
    summary="Note in a claim that the work is over",
    errors=HOLDING,
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task", "attempt")),
)
def work_done(ctx: Context, req: HoldRequest) -> StillHeld:
    """Notes the time; the first one stays."""
    board, held = _held(ctx, req)
    return _still(claim.mark(board, held, "work_done"))


class JudgeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task and a tree."""

    task: TaskName
    tree: TreeName
    seconds: Annotated[
        float, Meta(gt=0, le=604_800, description="how long the check may take, where its task does not say")
    ] = 600.0
    board: BoardName | None = None


class JudgeResponse(msgspec.Struct, frozen=True):
    """Is what the check said: its exit code (124: out of time) and the end of its output."""

    task: str
    tree: str
    rc: int
    timed_out: bool
    detail: str
    seconds: float


@operation(
    "judge",
    request=JudgeRequest,
    response=JudgeResponse,
    summary="Run a task's own check in a clean checkout of a tree; exit 10 when it fails",
    errors=(*ON_A_BOARD, *WITH_A_TREE),
    tool="",
    store=False,
    command=Command(positional=("task", "tree")),
)
def judge(ctx: Context, req: JudgeRequest) -> JudgeResponse:
    """Judges; a check that fails is a result, and nothing is written to the board."""
    board = ctx.board(req.board)
    board.refresh()
    found = judged(ctx, board, req.task, req.tree, req.seconds)
    if found.rc:
        ctx.exit = 10
    return JudgeResponse(found.task, found.tree, found.rc, found.timed_out, found.detail, found.seconds)


def judged(ctx: Context, board: Board, task: str, tree: str, seconds: float) -> Judged:
    """Gives what a task's own check says of a tree; one that is in no store is put into the one for this board."""
    from ropewalk.run import steps

    status = need(board, task)
    if status.spec.problems:
        raise InvalidError(f"{task} can't be judged: {status.spec.problems[0]}", task=task)
    agent = ctx.agent_or_none or "person/judge"
    store = ctx.store_for(board)
    base = _known(store, wire.fields(words_of(board, names.claim(task)) or "").get("base"))
    given = steps.hand_in(store, tree, ctx.path(tree), agent, base)
    ctx.warnings += given.warnings
    return steps.judge(store, status.spec.task, given.tree, _checks(ctx, store), seconds, checking.of_task(ctx))


def _known(store: Store, commit: str) -> str | None:
    """Gives a commit that a claim names, None where the store does not have it."""
    from ropewalk.core.ids import HEX40

    return commit if HEX40.match(commit) and store.objects.kind(commit) == "commit" else None


def _checks(ctx: Context, store: Store) -> str:
    import os

    return os.path.join(ctx.data_home, "ropewalk", store.format.id, "checks")


class ReturnRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes an attempt and the tree with its change."""

    task: TaskName
    attempt: Attempt
    tree: TreeName
    paths: Annotated[list[str], Meta(max_length=10_000, description="only these files and folders of the tree")] = []
    satisfied: Annotated[
        bool, Meta(description="there is nothing to land: the check passes on the target as it is")
    ] = False
    seconds: Annotated[
        float, Meta(gt=0, le=604_800, description="how long the check may take, where its task does not say")
    ] = 600.0
    board: BoardName | None = None


class Returned(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a change that landed with its verdict: the commit, and the tree that the check passed on."""

    task: str
    attempt: str
    how: str
    landed: str
    tree: str
    target: str


@operation(
    "return",
    request=ReturnRequest,
    response=Returned,
    summary="Land an attempt's change: the check passes on the tree that lands, the verdict goes with it in one step",
    errors=(*HOLDING, *WITH_A_TREE, ConflictError, CheckFailedError, EmptyCommitError, LandMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task", "attempt", "tree", "paths*")),
)
def return_(ctx: Context, req: ReturnRequest) -> Returned:
    """Returns a change; when it does not land, nothing was changed and the claim is still the caller's."""
    board, held = _held(ctx, HoldRequest(req.task, req.attempt, req.board))
    if req.satisfied:
        from ropewalk.run import steps

        store, cage = ctx.store_for(board), checking.of_task(ctx)
        done = steps.satisfied(board, store, landing_for(board), held, _checks(ctx, store), req.seconds, cage)
        return _returned(held, done)
    return hand_back(ctx, board, held, req.tree, req.paths, req.seconds)


def hand_back(ctx: Context, board: Board, held: Held, tree: str, paths: list[str], seconds: float) -> Returned:
    """Lands the named paths of a tree for an attempt, with return, verdict and closing claim, or not at all."""
    from ropewalk.run import steps

    store = ctx.store_for(board)
    landing = landing_for(board)
    landing.head(board, store, held.task.target)
    given = steps.hand_in(store, tree, ctx.path(tree), held.actor, _known(store, wire.fields(held.words).get("base")))
    ctx.warnings += given.warnings if not paths else ()
    cage = checking.of_task(ctx)
    done = steps.land(board, store, landing, held, given, paths, _checks(ctx, store), seconds, cage)
    return _returned(held, done)


def _returned(held: Held, done: Result) -> Returned:
    """Gives what landed; raises the error that a land stands for which did not."""
    if done.how in ("landed", "pending"):
        return Returned(held.task.id, held.attempt, done.how, done.commit, done.tree, held.task.target)
    raise _not_landed(held, done)


def landing_for(board: Board) -> Landing:
    """Gives how changes land on a board's targets."""
    from ropewalk.board.local import LocalBoard

    if isinstance(board, LocalBoard):
        from ropewalk.run.work.landing import LocalLanding

        return LocalLanding()
    from ropewalk.run.work.shared_landing import SharedLanding

    return SharedLanding()


def _not_landed(held: Held, done: Result) -> RopewalkError:
    task = held.task.id
    if done.how == "unchanged":
        return EmptyCommitError(f"{held.task.target} has all of it already", task=task)
    if done.how == "conflict":
        return ConflictError(
            done.words, hint="bring what landed meanwhile into the tree, solve it there, and return it again",
            task=task, report=done.report,
        )  # fmt: skip
    if done.how in ("failed", "broken"):
        return CheckFailedError(done.words.split("\n")[0], task=task, rc=done.rc, tree=done.tree, output=done.words)
    if done.how == "fenced":
        return FencedError(done.words, task=task, attempt=held.attempt)
    if done.how == "refused":
        return InvalidError(done.words, task=task)
    return BusyError(done.words or "the change could not land now", task=task)


class VerdictRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes an attempt and how it ended."""

    task: TaskName
    attempt: Attempt
    outcome: Annotated[
        Literal["fixed", "failed", "infrastructure", "released"],
        Meta(description="fixed: what was returned; failed: on its merits; infrastructure: an heir may try; released"),
    ]
    agent_rc: Annotated[int, Meta(ge=-999, le=999_999, description="the agent's exit code; 124: out of time")] = 0
    check_rc: Annotated[int, Meta(ge=-999, le=999_999, description="the check's exit code")] = 1
    seconds: Annotated[float, Meta(ge=0, le=1e9, description="how long the agent worked")] | None = None
    note: Annotated[str, Meta(max_length=4000, description="what else there is to say")] = ""
    board: BoardName | None = None


class VerdictWritten(msgspec.Struct, frozen=True):
    """Is what became of a task: its state, and whether this call wrote the verdict."""

    task: str
    attempt: str
    state: str
    written: bool


@operation(
    "verdict",
    request=VerdictRequest,
    response=VerdictWritten,
    summary="End an attempt with its verdict; fixed only for what was returned",
    errors=(*HOLDING, ClaimedError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task", "attempt", "outcome"), flags={"note": "-m"}),
)
def verdict(ctx: Context, req: VerdictRequest) -> VerdictWritten:
    """Writes a verdict; a second one of the same attempt that says the same is answered, and not written."""
    board = ctx.board(req.board)
    board.refresh()
    written = settle(board, ctx.agent, req)
    return VerdictWritten(req.task, req.attempt, need(board, req.task).state, written)


def settle(board: Board, actor: str, req: VerdictRequest) -> bool:
    """Ends an attempt as a request says; False when it ended so already. `E_FENCED` for who does not hold the claim."""
    status = need(board, req.task)
    old = status.verdict
    if old is not None and old.attempt == req.attempt and old.fixed == (req.outcome == "fixed"):
        return False
    held = claim.find(board, status.id, req.attempt, actor)
    found = wire.fields(held.words)
    more = {"note": req.note} if req.note else {}
    what = Outcome(False, req.agent_rc, req.check_rc, found.get("harness") or "unknown", found.get("model"),
                   found.get("kind"), req.seconds, more=more)  # fmt: skip
    if req.outcome == "released":
        claim.release(board, held, f"released: {req.note}" if req.note else "released")
    elif req.outcome == "infrastructure":
        claim.die(board, held, msgspec.structs.replace(what, reason=req.note or "reported", more={}))
    elif req.outcome == "failed":
        claim.close(board, held, what)
    else:
        if status.returned is None or not _is_its_return(board, held, status.returned):
            raise InvalidError(
                f"{status.id} has no return of this attempt on {held.task.target}, so it is not fixed",
                hint=f"`rw return {status.id} {req.attempt} TREE` lands the change with its verdict", task=status.id,
            )  # fmt: skip
        fixed = msgspec.structs.replace(what, fixed=True, check_rc=0, more={**more, "landed": status.returned})
        claim.close(board, held, fixed)
    return True


def _is_its_return(board: Board, held: Held, returned: str) -> bool:
    """Says whether a return is of an attempt, and on the target."""
    head = board.ref(names.branch(held.task.target))
    lines = wire.message(board.content(returned) or b"").split("\n")
    return head is not None and f"Attempt: {held.attempt}" in lines and returned in board.on_target([returned], head)
