"""Refs: list, set, delete, and move several at once."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import BusyError, CasMismatchError, InvalidError, NotFoundError
from ropewalk.core.ids import HEX40, check_ref, short_ref
from ropewalk.operations.context import Context
from ropewalk.operations.publish import Rev
from ropewalk.operations.registry import Command, operation
from ropewalk.store import refs, revisions
from ropewalk.store.oplog import Move
from ropewalk.store.store import need_ref

Name = Annotated[str, Meta(min_length=1, max_length=1024, description="a branch, `refs/tags/…` or another full name")]
Expect = Annotated[str, Meta(description="the full id the ref must be at")]
Limit = Annotated[int, Meta(ge=1, le=5000, description="how many at most")]


class RefListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what to list."""

    prefix: Annotated[str, Meta(max_length=1024, description="list the refs below this full prefix")] | None = None
    all: Annotated[bool, Meta(description="list the board's refs too")] = False
    limit: Limit = 1000
    after: Annotated[str, Meta(max_length=1100, description="`next` of the page before")] | None = None


class RefRow(msgspec.Struct, frozen=True):
    """Is one ref."""

    name: str
    target: str


class RefListResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of refs, branches first, then tags."""

    refs: list[RefRow]
    truncated: bool = False
    next: str | None = None


@operation(
    "ref list",
    request=RefListRequest,
    response=RefListResponse,
    summary="List refs: branches, then tags",
    errors=(InvalidError,),
    core=True,
)
def ref_list(ctx: Context, req: RefListRequest) -> RefListResponse:
    """Lists refs in pages."""
    prefixes = ["refs/heads/", "refs/tags/"]
    if req.prefix is not None:
        if not req.prefix.startswith("refs/"):
            raise InvalidError("a prefix starts with refs/", prefix=req.prefix)
        prefixes = [req.prefix]
    elif req.all:
        prefixes += ["refs/swarm/"]
    after = req.after or ""
    rows: list[tuple[str, str]] = []
    for prefix in prefixes:
        if after and not after.startswith(prefix) and prefixes.index(prefix) < _place(prefixes, after):
            continue
        rows += ctx.store.refs(prefix, after if after.startswith(prefix) else "", req.limit + 1 - len(rows))
        if len(rows) > req.limit:
            break
    more = len(rows) > req.limit
    rows = rows[: req.limit]
    listed = [RefRow(short_ref(name), target) for name, target in rows]
    return RefListResponse(listed, more, rows[-1][0] if more else None)


def _place(prefixes: list[str], name: str) -> int:
    return next((n for n, p in enumerate(prefixes) if name.startswith(p)), 0)


class RefSetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a ref, its new target, and what it must be now."""

    name: Name
    target: Rev
    expect: Expect | None = None
    create: Annotated[bool, Meta(description="the ref must not exist yet")] = False


class RefMoved(msgspec.Struct, frozen=True):
    """Is one ref's move; None where the ref did not or does not exist."""

    name: str
    old: str | None
    new: str | None


class RefsMoved(msgspec.Struct, frozen=True):
    """Is what moved, and the operation that did it."""

    op: int
    ref_moves: list[RefMoved]
    already_applied: bool


@operation(
    "ref set",
    request=RefSetRequest,
    response=RefsMoved,
    summary="Point a ref at a revision, by compare-and-swap",
    errors=(CasMismatchError, InvalidError, NotFoundError, BusyError),
    writes=True,
    command=Command(positional=("name", "target")),
)
def ref_set(ctx: Context, req: RefSetRequest) -> RefsMoved:
    """Sets a ref."""
    if (req.expect is None) != req.create:
        raise InvalidError("say what the ref is now", hint="give --expect ID, or --create for a new ref")
    name = check_ref(req.name)
    target = revisions.resolve(ctx.store, req.target)
    return _move(ctx, [Move(name, _expect(req.expect), target)], "ref_set")


class RefDeleteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a ref and what it must be now."""

    name: Name
    expect: Expect


@operation(
    "ref delete",
    request=RefDeleteRequest,
    response=RefsMoved,
    summary="Delete a ref, by compare-and-swap",
    errors=(CasMismatchError, InvalidError, NotFoundError, BusyError),
    writes=True,
    command=Command(positional=("name",)),
)
def ref_delete(ctx: Context, req: RefDeleteRequest) -> RefsMoved:
    """Deletes a ref; its commits stay, and the operation can be undone."""
    name, _ = need_ref(ctx.store, req.name)
    return _move(ctx, [Move(name, _expect(req.expect), None)], "ref_delete")


class RefMoveEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is one ref to move: from `expect` (None: it must not exist) to `target` (None: delete it)."""

    name: Name
    expect: str | None = None
    target: Rev | None = None


class RefMoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes moves that all happen or none."""

    moves: Annotated[list[RefMoveEntry], Meta(min_length=1, max_length=10_000)]


@operation(
    "ref move",
    request=RefMoveRequest,
    response=RefsMoved,
    summary="Move several refs at once, all or none",
    errors=(CasMismatchError, InvalidError, NotFoundError, BusyError),
    writes=True,
    command=Command(positional=("moves",), files=("moves",)),
)
def ref_move(ctx: Context, req: RefMoveRequest) -> RefsMoved:
    """Moves refs in one transaction."""
    moves = [
        Move(check_ref(m.name), _expect(m.expect), revisions.resolve(ctx.store, m.target) if m.target else None)
        for m in req.moves
    ]
    return _move(ctx, moves, "ref_move")


def _expect(value: str | None) -> str | None:
    if value is not None and not HEX40.match(value):
        raise InvalidError(f"{value!r} is not a full id", hint="give all 40 digits")
    return value


def _move(ctx: Context, moves: list[Move], kind: str) -> RefsMoved:
    op, already = refs.move(ctx.store, ctx.agent, moves, kind)
    return RefsMoved(op, [RefMoved(short_ref(m.name), m.old, m.new) for m in moves], already)
