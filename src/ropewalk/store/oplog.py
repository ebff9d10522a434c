"""The operation log: what each write did, in one total order, chained so that a cut or an edit is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from blake3 import blake3

from ropewalk.core.errors import NotFoundError

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
    head = f"{op}\n{kind}\n{actor}\n{at}\n".encode()
    return blake3(previous + head + body.encode("utf-8")).digest()


def decode(row: tuple[object, ...]) -> Operation:
    """Gives the operation of a row of the table `ops`."""
    op, kind, actor, at, body, chain, undone_by = row
    return Operation(op, kind, actor, at, msgspec.json.decode(str(body), type=Body), chain, undone_by)  # type: ignore[arg-type]


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


def check_chain(db: Database) -> int | None:
    """Gives the number of the first operation whose chain value does not fit, or None."""
    previous, last = GENESIS, 0
    while True:
        rows = db.rows("SELECT op, kind, actor, at, body, chain FROM ops WHERE op > ? ORDER BY op LIMIT 1000", (last,))
        if not rows:
            return None
        for op, kind, actor, at, body, chain in rows:
            if op != last + 1 or link(previous, op, kind, actor, at, body) != chain:
                return int(op)
            previous, last = chain, op
