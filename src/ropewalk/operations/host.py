"""The gate host: others hand in the commit of their attempt, and the host itself runs the check and lands it.

Whoever holds a grant for the attempt may ask, for a board that the host serves. What the asker says of a check counts
for nothing: the command is the spec's, it runs here, on the tree that lands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.board import claim, grants, names, state
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import (
    BusyError,
    CheckFailedError,
    ConflictError,
    EmptyCommitError,
    FencedError,
    ForbiddenError,
    InvalidError,
    LandMismatchError,
    NotFoundError,
    RemoteError,
    RopewalkError,
    error_class,
)
from ropewalk.core.ids import check_agent
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, TaskName

MOST_BYTES = 1 << 20
PATH = "/board/land"

Attempt = Annotated[str, Meta(max_length=200, description="the attempt's id")]
Origin = Annotated[str, Meta(max_length=4096, description="a board that the host serves; without it the host's store")]


class BoardGrantRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes the attempt that a grant is for, and for how long."""

    task: TaskName
    attempt: Attempt
    origin: Origin = ""
    seconds: Annotated[int, Meta(ge=1, le=grants.LONGEST, description="for how long it counts")] = 3600


class BoardGranted(msgspec.Struct, frozen=True):
    """Is a grant, which is shown this once."""

    grant: str


@operation(
    "board grant",
    request=BoardGrantRequest,
    response=BoardGranted,
    summary="Let one attempt land by this store's gate host, for a while",
    errors=(InvalidError, NotFoundError),
    writes=True,
    identity=False,
    tool="",
    command=Command(positional=("task", "attempt")),
)
def board_grant(ctx: Context, req: BoardGrantRequest) -> BoardGranted:
    """Makes a grant."""
    return BoardGranted(grants.give(ctx.store, req.origin, req.task, req.attempt, req.seconds))


class HandIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is what a host is asked: to land a commit that its store has, for an attempt."""

    task: Annotated[str, Meta(max_length=240)]
    attempt: Annotated[str, Meta(max_length=200)]
    commit: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
    grant: Annotated[str, Meta(max_length=20_000)]
    origin: Origin = ""
    paths: Annotated[list[str], Meta(max_length=10_000)] = []


class HandedIn(msgspec.Struct, frozen=True):
    """Is what became of a change that was handed in: `landed` or `pending`, with its commit and tree on the target."""

    task: str
    attempt: str
    how: str
    commit: str
    tree: str
    target: str


def land(ctx: Context, allowed: Collection[str], asked: HandIn) -> HandedIn:
    """Lands what was handed in, as `rw return` does, once it is allowed; `E_FORBIDDEN` otherwise."""
    from ropewalk.operations.steps import hand_back

    if asked.origin not in allowed:
        raise ForbiddenError("this host does not serve that board", hint="`rw serve --board` says which it serves")
    grants.check(ctx.store, asked.grant, asked.origin, asked.task, asked.attempt)
    if ctx.store.objects.kind(asked.commit) != "commit":
        raise NotFoundError(f"the host has no commit {asked.commit}", hint="push it to the host's store first")
    board = ctx.board(asked.origin or ".")
    board.refresh()
    found = state.need(board, asked.task)
    agent = found.claim.agent if found is not None and found.claim is not None else ""
    try:
        actor = check_agent(agent)
    except InvalidError:
        actor = "git/" + "".join(c if c.isalnum() else "-" for c in names.worker_of(asked.attempt).lower())
    held = claim.find(board, asked.task, asked.attempt, actor)
    done = hand_back(ctx, board, held, asked.commit, asked.paths, held.task.limits.check_seconds or 600.0)
    return HandedIn(asked.task, asked.attempt, done.how, done.landed, done.tree, done.target)


def answer(open_context: Callable[[], Context], allowed: Collection[str], body: bytes) -> tuple[int, bytes]:
    """Gives (HTTP status, JSON) for a request to land; an error is told by its code."""
    try:
        asked = msgspec.json.decode(body, type=HandIn)
    except UNREADABLE as error:
        return _told(InvalidError(f"this is no request to land: {error}"))
    try:
        ctx = open_context()
        try:
            return 200, msgspec.json.encode(land(ctx, allowed, asked))
        finally:
            ctx.close()
    except RopewalkError as error:
        return _told(error)


def _told(error: RopewalkError) -> tuple[int, bytes]:
    status = {"E_FORBIDDEN": 403, "E_INVALID": 400, "E_NOT_FOUND": 404, "E_BUSY": 503, "E_REMOTE": 502}
    words = {"code": error.code, "message": error.message, "hint": error.hint}
    return status.get(error.code, 409), msgspec.json.encode({"error": words})


class BoardHandInRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a host, and what to hand in there."""

    host: Annotated[str, Meta(pattern="^https?://", max_length=4096, description="the host's address")]
    task: TaskName
    attempt: Attempt
    commit: Annotated[
        str, Meta(pattern="^[0-9a-f]{40}$", description="the commit with the change, pushed there before")
    ]
    grant: Annotated[str, Meta(max_length=20_000, description="what `rw board grant` gave")]
    origin: Origin = ""
    paths: Annotated[list[str], Meta(max_length=10_000, description="land these alone")] = []
    seconds: Annotated[float, Meta(gt=0, le=86_400, description="how long to wait for the host's check")] = 1800.0


@operation(
    "board hand-in",
    request=BoardHandInRequest,
    response=HandedIn,
    summary="Ask a gate host to check and land an attempt's commit; what it does not do was not done",
    errors=(*ON_A_BOARD, ForbiddenError, FencedError, NotFoundError, ConflictError, CheckFailedError, EmptyCommitError,
            LandMismatchError, BusyError),
    writes=True,
    identity=False,
    tool="",
    store=False,
    command=Command(positional=("host", "task", "attempt", "commit", "grant", "paths*")),
)  # fmt: skip
def board_hand_in(ctx: Context, req: BoardHandInRequest) -> HandedIn:
    """Hands in; a host that is out of reach, or refuses, has landed nothing that anybody may rely on."""
    import http.client
    import urllib.error
    import urllib.request

    asked = HandIn(req.task, req.attempt, req.commit, req.grant, req.origin, req.paths)
    wanted = urllib.request.Request(
        req.host.rstrip("/") + PATH, msgspec.json.encode(asked), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(wanted, timeout=req.seconds) as said:
            return msgspec.json.decode(said.read(MOST_BYTES), type=HandedIn)
    except urllib.error.HTTPError as error:
        with error:
            raise _error(error.code, error.read(MOST_BYTES)) from None
    except UNREADABLE:
        raise RemoteError("the host's answer can't be read", hint="`rw task show` says whether it landed") from None
    except (OSError, http.client.HTTPException) as error:
        words = f"the host is out of reach: {getattr(error, 'reason', error)}"
        raise RemoteError(words, hint="`rw task show` says whether it landed", host=req.host) from None


def _error(status: int, body: bytes) -> RopewalkError:
    try:
        said: dict[str, Any] = msgspec.json.decode(body, type=dict[str, dict[str, str]])["error"]
        return error_class(said["code"])(said["message"], hint=said["hint"])
    except (*UNREADABLE, KeyError):
        return RemoteError(f"the host answers {status}", hint="is it a ropewalk host, started with --board?")
