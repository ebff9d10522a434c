"""The operation log: read it, follow it, take an operation back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import BusyError, CasMismatchError, InvalidError, NotFoundError
from ropewalk.core.ids import short_ref
from ropewalk.operations.context import Context
from ropewalk.operations.refs import RefMoved
from ropewalk.operations.registry import Command, operation
from ropewalk.store import oplog, refs
from ropewalk.store.objects import parse_commit
from ropewalk.store.oplog import Operation

_CHANGESETS = 100
"""So many changesets of one operation are named."""

OpNumber = Annotated[int, Meta(ge=1, le=(1 << 53), description="an operation's number")]


class OpMove(msgspec.Struct, frozen=True):
    """Is one ref's move with who made it when (seconds since 1970)."""

    name: str
    old: str | None
    new: str | None
    actor: str
    at: int


class OpChangeset(msgspec.Struct, frozen=True):
    """Is one changeset an operation recorded."""

    id: str
    agent: str
    title: str


class OpRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one operation."""

    op: int
    kind: str
    actor: str
    at: int
    changesets: list[OpChangeset]
    ref_moves: list[OpMove]
    undoes: int | None = None
    undone_by: int | None = None
    key: str | None = None
    note: str | None = None


class OpLogRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes how much of the log to give."""

    limit: Annotated[int, Meta(ge=1, le=5000, description="how many at most")] = 50
    before: OpNumber | None = None


class OpLogResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of operations, newest first."""

    ops: list[OpRow]
    truncated: bool = False
    next: int | None = None


@operation(
    "op log",
    request=OpLogRequest,
    response=OpLogResponse,
    summary="Show what was done, newest first",
    errors=(InvalidError,),
    command=Command(flags={"limit": "-n"}),
    stream=True,
)
def op_log(ctx: Context, req: OpLogRequest) -> OpLogResponse:
    """Gives a page of the operation log."""
    rows = oplog.page(ctx.store.db, req.before, req.limit + 1)
    more = len(rows) > req.limit
    rows = rows[: req.limit]
    return OpLogResponse(shown(ctx, rows), more, rows[-1].op if more else None)


class OpRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes an operation's number."""

    op: OpNumber


@operation(
    "op show",
    request=OpRequest,
    response=OpRow,
    summary="Show one operation",
    errors=(InvalidError, NotFoundError),
    command=Command(positional=("op",)),
)
def op_show(ctx: Context, req: OpRequest) -> OpRow:
    """Gives one operation."""
    return shown(ctx, [oplog.find(ctx.store.db, req.op)])[0]


class OpUndone(msgspec.Struct, frozen=True):
    """Is an undo: the operation undone, the one that did it, and the refs it moved."""

    undone: int
    op: int
    ref_moves: list[RefMoved]
    already_applied: bool


@operation(
    "op undo",
    request=OpRequest,
    response=OpUndone,
    summary="Take an operation back: its refs return to where they were",
    errors=(CasMismatchError, InvalidError, NotFoundError, BusyError),
    writes=True,
    command=Command(positional=("op",)),
)
def op_undo(ctx: Context, req: OpRequest) -> OpUndone:
    """Undoes an operation; undoing the undo brings it back."""
    op, moves, already = refs.undo(ctx.store, ctx.agent, req.op)
    return OpUndone(req.op, op, [RefMoved(short_ref(m.name), m.old, m.new) for m in moves], already)


def shown(ctx: Context, found: list[Operation]) -> list[OpRow]:
    """Gives operations as the log shows them; their changesets are read in one go."""
    ids = list(dict.fromkeys(oid for one in found for oid in one.body.changesets[:_CHANGESETS]))
    titles = {
        oid: parse_commit(oid, item[1]).title
        for oid, item in zip(ids, ctx.store.objects.read_many(ids), strict=True)
        if item is not None and item[0] == "commit"
    }
    return [_row(ctx, one, titles) for one in found]


def _row(ctx: Context, found: Operation, titles: Mapping[str, str]) -> OpRow:
    changesets = [
        OpChangeset(oid, ctx.store.agent_of(oid) or found.actor, titles.get(oid, ""))
        for oid in found.body.changesets[:_CHANGESETS]
    ]
    moves = [OpMove(short_ref(m.name), m.old, m.new, found.actor, found.at) for m in found.body.moves]
    return OpRow(found.op, found.kind, found.actor, found.at, changesets, moves, found.body.undoes, found.undone_by,
                 found.body.key, found.body.note)  # fmt: skip
