"""The operation log: what each write did, in one total order, chained so that a cut or an edit is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from blake3 import blake3

from ropewalk.core.errors import NotFoundError, StoreCorruptError

if TYPE_CHECKING:
    from ropewalk.store.database import Database


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Is one ref's move: full name, old and new target; None where the ref did not or does not exist."""

    name: str
    old: str | None
    new: str | None


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what an operation's row keeps as JSON."""

    moves: tuple[Move, ...] = ()
    changesets: tuple[str, ...] = ()
    undoes: int | None = None
    key: str | None = None
    note: str | None = None


class Operation(NamedTuple):
    """Is one recorded operation; `at` in seconds since 1970."""

    op: int
    kind: str
    actor: str
    at: int
    body: Body
    chain: bytes
    undone_by: int | None


GENESIS = b"\0" * 32


def link(previous: bytes, op: int, kind: str, actor: str, at: int, body: str) -> bytes:
    """Gives the chain value of an operation: BLAKE3 over the one before and this one's fields."""
    return link_raw(previous, op, kind.encode("utf-8"), actor.encode("utf-8"), at, body.encode("utf-8"))


def link_raw(previous: bytes, op: int, kind: bytes, actor: bytes, at: object, body: bytes) -> bytes:
    """Gives the chain value of fields that need not be text any more, because a byte of them was flipped."""
    return blake3(b"%s%d\n%s\n%s\n%s\n%s" % (previous, op, kind, actor, str(at).encode("utf-8"), body)).digest()


def decode(row: tuple[object, ...]) -> Operation:
    """Gives the operation of a row of the table `ops`."""
    op, kind, actor, at, body, chain, undone_by = row
    try:
        found = msgspec.json.decode(str(body), type=Body)
    except msgspec.DecodeError as error:
        raise StoreCorruptError(f"operation {op} of the log can't be read: {error}", file="store.db", op=op) from None
    return Operation(op, kind, actor, at, found, chain, undone_by)  # type: ignore[arg-type]


def find(db: Database, op: int) -> Operation:
    """Gives an operation; `E_NOT_FOUND` when there is none of that number."""
    row = db.row("SELECT op, kind, actor, at, body, chain, undone_by FROM ops WHERE op = ?", (op,))
    if row is None:
        raise NotFoundError(f"there is no operation {op}", hint="list them with `rw op log`", op=op)
    return decode(row)


def page(db: Database, before: int | None, limit: int) -> list[Operation]:
    """Gives up to `limit` operations below number `before`, newest first."""
    rows = db.rows(
        "SELECT op, kind, actor, at, body, chain, undone_by FROM ops WHERE op < ? ORDER BY op DESC LIMIT ?",
        (before if before is not None else 1 << 62, limit),
    )
    return [decode(row) for row in rows]


def after(db: Database, op: int, limit: int) -> list[Operation]:
    """Gives up to `limit` operations above number `op`, oldest first."""
    rows = db.rows(
        "SELECT op, kind, actor, at, body, chain, undone_by FROM ops WHERE op > ? ORDER BY op LIMIT ?", (op, limit)
    )
    return [decode(row) for row in rows]


RAW = "op, CAST(kind AS BLOB), CAST(actor AS BLOB), CAST(at AS TEXT), CAST(body AS BLOB), CAST(chain AS BLOB)"
"""Is how an operation's fields are asked for when they may be damaged."""


def check_chain(db: Database) -> int | None:
    """Gives the number of the first operation whose chain value does not fit, or None."""
    previous, last = GENESIS, 0
    while True:
        rows = db.rows(f"SELECT {RAW} FROM ops WHERE op > ? ORDER BY op LIMIT 1000", (last,))
        if not rows:
            return None
        for op, kind, actor, at, body, chain in rows:
            if op != last + 1 or link_raw(previous, op, kind, actor, at, body) != chain:
                return int(last + 1)
            previous, last = chain, op
