"""Reviews of returned changes, and the gates that count them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ropewalk.board import gate as gates
from ropewalk.board import review as reviews
from ropewalk.core.errors import CasMismatchError, ClaimedError, ForbiddenError
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, BoardName, TaskName


class BoardReviewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task and what its reviewer says of the returned change."""

    task: TaskName
    outcome: Annotated[Literal["agree", "veto"], Meta(description="what the reviewer says")]
    evidence: Annotated[str, Meta(max_length=400, description="the returned commit that was looked at")] = ""
    reviewer: Annotated[str, Meta(max_length=64, description="the reviewer's name; without it made of --as")] | None = (
        None
    )
    provider: Annotated[str, Meta(max_length=100, description="whose model the reviewer is")] = ""
    note: Annotated[str, Meta(max_length=2000, description="what else there is to say")] = ""
    board: BoardName | None = None


class BoardReviewed(msgspec.Struct, frozen=True):
    """Is a review: its ref, the commit it is of, whether it is new, and whether the gate had fired before."""

    task: str
    reviewer: str
    outcome: str
    ref: str
    commit: str
    new: bool
    late: bool


@operation(
    "board review",
    request=BoardReviewRequest,
    response=BoardReviewed,
    summary="Say agree or veto of a returned change; nobody reviews their own",
    errors=(*ON_A_BOARD, ForbiddenError, ClaimedError, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task",), flags={"note": "-m"}),
)
def board_review(ctx: Context, req: BoardReviewRequest) -> BoardReviewed:
    """Reviews; the same again changes nothing."""
    board = ctx.board(req.board)
    board.refresh()
    reviewer = req.reviewer or ctx.agent.replace("/", "-")[:64]
    done = reviews.review(
        board, req.task, reviewer, req.outcome, ctx.agent, evidence=req.evidence, provider=req.provider, note=req.note
    )
    return BoardReviewed(req.task, reviewer, req.outcome, done.ref, done.commit, done.is_new, done.is_late)


class BoardGateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task, and how many have to agree where its spec does not say."""

    task: TaskName
    n: Annotated[int, Meta(ge=1, le=100, description="how many have to agree")] | None = None
    m: Annotated[int, Meta(ge=1, le=100, description="of how many reviewers")] | None = None
    providers: Annotated[bool, Meta(description="each of another provider")] = False
    board: BoardName | None = None


class GateShown(msgspec.Struct, frozen=True):
    """Is how a task stands at its gate; `why` says what is missing, `invalid` which reviews don't count and why."""

    task: str
    n: int
    m: int
    agree: list[str]
    veto: list[str]
    invalid: dict[str, str]
    fired: bool
    integrated: bool
    commit: str
    why: str


@operation(
    "board gate",
    request=BoardGateRequest,
    response=GateShown,
    summary="Count the reviews of a task and integrate it when they suffice; exit 10 while they do not",
    errors=(*ON_A_BOARD, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task",)),
)
def board_gate(ctx: Context, req: BoardGateRequest) -> GateShown:
    """Counts; a gate that fired stays so."""
    board = ctx.board(req.board)
    board.refresh()
    found = gates.gate(board, req.task, ctx.agent, n=req.n, m=req.m, providers=req.providers)
    if not found.integrated:
        ctx.exit = 10
    return shown(found)


def shown(found: gates.Gated) -> GateShown:
    """Gives how a gate stands as it is told."""
    return GateShown(
        found.task, found.n, found.m, list(found.agree), list(found.veto), dict(found.invalid), found.fired,
        found.integrated, found.commit, found.why,
    )  # fmt: skip
