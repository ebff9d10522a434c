"""Upkeep of a board: attempts that were left, refs out of place, what is long closed, and what a server can do."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.board import compact, names, recover
from ropewalk.board.divergence import Divergence, divergence
from ropewalk.board.probe import Probed
from ropewalk.board.recover import Census, Relabeled, Swept
from ropewalk.core.errors import CasMismatchError, ClaimedError, FencedError, InvalidError, NotFoundError
from ropewalk.operations.board import Where
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, BoardName, BoardRequest, TaskName, need

WATCH_SECONDS = 30.0


class BoardProbeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a board on a git server, and the branch that changes are to land on."""

    url: Where | None = None
    target: Annotated[str, Meta(min_length=1, max_length=200, description="the branch")] = "main"
    board: BoardName | None = None


@operation(
    "board probe",
    request=BoardProbeRequest,
    response=Probed,
    summary="Try on a git server what a board needs, with scratch refs; exit 10 when it can't be one",
    errors=ON_A_BOARD,
    writes=True,
    identity=False,
    tool="",
    store=False,
    command=Command(positional=("url?",)),
)
def board_probe(ctx: Context, req: BoardProbeRequest) -> Probed:
    """Probes a server."""
    from ropewalk.board import probe
    from ropewalk.board.remote import RemoteBoard

    board = ctx.board(req.url or req.board)
    if not isinstance(board, RemoteBoard):
        raise InvalidError(f"{board.name} is a store, which takes all of it", hint="name a git server to probe")
    found = probe.probe(board, req.target)
    if not found.usable:
        ctx.exit = 10
    return found


class BoardCompactRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes for how long a task has to be closed."""

    days: Annotated[float, Meta(ge=0, le=36_500, description="only tasks closed for so many days")] = compact.DAYS
    board: BoardName | None = None


@operation(
    "board compact",
    request=BoardCompactRequest,
    response=compact.Compacted,
    summary="Move the refs of long closed tasks into one chain, so that a board stays fast",
    errors=(*ON_A_BOARD, CasMismatchError, ClaimedError),
    writes=True,
    tool="",
    store=False,
)
def board_compact(ctx: Context, req: BoardCompactRequest) -> compact.Compacted:
    """Compacts; `rw board restore` brings a task's refs back."""
    board = ctx.board(req.board)
    board.refresh()
    return compact.compact(board, ctx.agent, days=req.days, tell=ctx.progress)


class BoardRestoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes tasks that were compacted."""

    tasks: Annotated[list[TaskName], Meta(min_length=1, max_length=10_000, description="tasks to bring back")]
    board: BoardName | None = None


@operation(
    "board restore",
    request=BoardRestoreRequest,
    response=compact.Compacted,
    summary="Bring the refs of compacted tasks back",
    errors=(*ON_A_BOARD, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("tasks*",)),
)
def board_restore(ctx: Context, req: BoardRestoreRequest) -> compact.Compacted:
    """Restores all or none."""
    board = ctx.board(req.board)
    board.refresh()
    return compact.restore(board, req.tasks, ctx.agent)


class BoardEvictRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task that is claimed, and why its holder is to lose it."""

    task: TaskName
    why: Annotated[str, Meta(max_length=1000, description="why")] = ""
    board: BoardName | None = None


class BoardEvicted(msgspec.Struct, frozen=True):
    """Is the attempt that was ended; with `requeued` its task is open again, else no heir was left to it."""

    task: str
    attempt: str
    requeued: bool


@operation(
    "board evict",
    request=BoardEvictRequest,
    response=BoardEvicted,
    summary="Take a task away from its holder; it counts as a death, and an heir may try",
    errors=(*ON_A_BOARD, FencedError, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task",)),
)
def board_evict(ctx: Context, req: BoardEvictRequest) -> BoardEvicted:
    """Evicts whoever holds a task, living or not; from then on its attempt can't land or say anything."""
    board = ctx.board(req.board)
    board.refresh()
    status = need(board, req.task)
    if status.state != "claimed" and not recover.is_half(status):
        raise InvalidError(f"{status.id} is {status.state}, so nobody holds it", task=status.id, state=status.state)
    done = recover.evict(board, status, ctx.agent, req.why or f"evicted by {ctx.agent}")
    return BoardEvicted(done.task, done.attempt, done.requeued)


class BoardSweepRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task."""

    task: TaskName
    force: Annotated[bool, Meta(description="one that is done or held, too")] = False
    board: BoardName | None = None


@operation(
    "board sweep",
    request=BoardSweepRequest,
    response=Swept,
    summary="Put all that was said of a task into the archive, and open it",
    errors=(*ON_A_BOARD, ClaimedError, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task",)),
)
def board_sweep(ctx: Context, req: BoardSweepRequest) -> Swept:
    """Sweeps a task."""
    board = ctx.board(req.board)
    board.refresh()
    return recover.sweep(board, need(board, req.task).id, ctx.agent, force=req.force)


@operation(
    "board reconcile",
    request=BoardRequest,
    response=Census,
    summary="End the attempts whose holders are dead, put right what is out of place, and count all",
    errors=(*ON_A_BOARD, CasMismatchError),
    writes=True,
    tool="",
    store=False,
)
def board_reconcile(ctx: Context, req: BoardRequest) -> Census:
    """Reconciles once; workers do the same by themselves. How old a claim is, only looks of this host tell."""
    board = ctx.board(req.board)
    board.refresh()
    return recover.recover(board, WATCH_SECONDS, ctx.agent, everything=True)


@operation(
    "board relabel",
    request=BoardRequest,
    response=Relabeled,
    summary="Rename what an archive holds under a marker that is no attempt",
    errors=ON_A_BOARD,
    writes=True,
    tool="",
    store=False,
)
def board_relabel(ctx: Context, req: BoardRequest) -> Relabeled:
    """Relabels what early workers of flockwork archived."""
    board = ctx.board(req.board)
    board.refresh()
    return recover.relabel(board, ctx.agent)


class BoardDivergenceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a branch and the repository to compare."""

    target: Annotated[str, Meta(min_length=1, max_length=200, description="the branch")] = "main"
    repository: (
        Annotated[str, Meta(max_length=4096, description="a repository; without it the one of the working folder")]
        | None
    ) = None
    board: BoardName | None = None


@operation(
    "board divergence",
    request=BoardDivergenceRequest,
    response=Divergence,
    summary="Say how far a branch of a repository at hand is from the board's",
    errors=ON_A_BOARD,
    tool="",
    store=False,
)
def board_divergence(ctx: Context, req: BoardDivergenceRequest) -> Divergence:
    """Compares two heads; nothing is fetched into the repository."""
    from ropewalk.core.ids import check_ref
    from ropewalk.core.process import git_env, git_program, run

    check_ref(names.branch(req.target))
    board = ctx.board(req.board)
    board.refresh()
    folder = ctx.path(req.repository or ".")
    found: Any = run([git_program(), "-C", folder, "rev-parse", "--absolute-git-dir"], env=git_env(), timeout=60)
    if found.code:
        raise NotFoundError(f"there is no repository at {folder}", hint="name one with --repository", path=folder)
    return divergence(board, found.text(), req.target)
