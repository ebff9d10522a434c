"""Rows: what the tables say, held against the operation log and the objects.

SQLite keeps no sums over its rows. What the log's chain covers is proved by it, and rows that follow from it are made
anew; of the others this finds what can't be: ids of nothing, operations that were not, text of the wrong form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from ropewalk.core.errors import RopewalkError
from ropewalk.core.ids import HEX40, check_agent, check_ref
from ropewalk.store import oplog

if TYPE_CHECKING:
    from ropewalk.store.store import Store

_SINCE = 1_000_000


def wrong(store: Store, last: int, exists: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Gives (table, what is wrong) for rows of operations up to `last` that can't be."""
    logged = _logged(store)
    made = {str(r[0]): r[1] for r in store.db.rows("SELECT id, op FROM changesets")}
    for oid, op in logged.items():
        if oid not in made and op <= last:
            yield "changesets", f"{oid}, which operation {op} made, is not there"
    for oid, op, agent in store.db.rows("SELECT id, op, CAST(agent AS BLOB) FROM changesets"):
        if not _newer(op, last) and (logged.get(oid) != op or not _agent(agent)):
            yield "changesets", f"{_text(oid)} does not fit operation {_text(op)}"
    for oid, ref, change, op, author in store.db.rows(
        "SELECT CAST(landed AS BLOB), CAST(ref AS BLOB), CAST(change AS BLOB), op, CAST(author AS BLOB) FROM landed"
    ):
        if _newer(op, last):
            continue
        whole = exists(_text(oid)) and exists(_text(change))
        if not whole or not _is_op(op, last) or not _ref(ref) or not _agent(author):
            yield "landed", f"the land {_text(oid)} of operation {_text(op)} can't be"
    for path, ref, op, old, new, author in store.db.rows(
        "SELECT path, CAST(ref AS BLOB), op, CAST(old AS BLOB), CAST(new AS BLOB), CAST(author AS BLOB) FROM land_paths"
    ):
        if _newer(op, last):
            continue
        whole = all(_entry(_text(value), exists) for value in (old, new) if value is not None)
        if not _is_op(op, last) or not _ref(ref) or not _agent(author) or not whole or not isinstance(path, bytes):
            yield "land_paths", f"the path {_text(path)} of operation {_text(op)} can't be"
    for key, result, op in store.db.rows("SELECT CAST(key AS BLOB), CAST(result AS BLOB), op FROM keys"):
        if not _newer(op, last) and (not _is_op(op, last) or not _json(result)):
            yield "keys", f"the result under the key {_text(key)} can't be read"
    for name, base, created, target, note in store.db.rows(
        "SELECT CAST(name AS BLOB), CAST(base AS BLOB), CAST(created_base AS BLOB), CAST(target AS BLOB),"
        " CAST(note AS BLOB) FROM workspaces"
    ):
        if (
            not exists(_text(base))
            or not exists(_text(created))
            or not _ref(target)
            or (note is not None and not _json(note))
        ):
            yield "workspaces", f"the row of the workspace {_text(name)} can't be"


def renew(store: Store) -> list[str]:
    """Makes rows of changesets that are missing or do not fit the log, which is whole, anew; gives what it did.

    The caller holds the writer lock.
    """
    done = []
    store.db.run("BEGIN IMMEDIATE")
    logged = _logged(store)
    found = {r[0]: r[1:] for r in store.db.rows("SELECT id, op, CAST(agent AS BLOB) FROM changesets")}
    for oid in found.keys() - logged.keys():
        store.db.run("DELETE FROM changesets WHERE id = ?", (oid,))
        done.append(f"changesets: {_text(oid)}, which the log does not know, was removed")
    for oid, op in logged.items():
        if oid not in found or found[oid][0] != op or not _agent(found[oid][1]):
            row = store.db.row("SELECT actor FROM ops WHERE op = ?", (op,))
            store.db.run("INSERT OR REPLACE INTO changesets VALUES (?, ?, ?)", (oid, op, row[0] if row else ""))
            done.append(f"changesets: the row of {oid} was made anew from operation {op}")
    store.db.run("COMMIT")
    return done


def _logged(store: Store) -> dict[str, int]:
    """Gives every changeset of the log with the first operation that names it."""
    found: dict[str, int] = {}
    last = 0
    while rows := store.db.rows("SELECT op, CAST(body AS BLOB) FROM ops WHERE op > ? ORDER BY op LIMIT 1000", (last,)):
        for op, body in rows:
            last = op
            try:
                for oid in msgspec.json.decode(body, type=oplog.Body).changesets:
                    found.setdefault(oid, op)
            except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
                continue  # the chain tells of it
    return found


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _newer(value: object, last: int) -> bool:
    """Says whether a row may have been written since the check began."""
    return isinstance(value, int) and last < value <= last + _SINCE


def _entry(value: str, exists: Callable[[str], bool]) -> bool:
    mode, _, oid = value.partition(" ")
    return bool(HEX40.match(oid)) and mode.isdigit() and (mode == "160000" or exists(oid))


def _is_op(value: object, last: int) -> bool:
    return isinstance(value, int) and 0 < value <= last


def _ref(value: bytes) -> bool:
    try:
        return check_ref(value.decode("utf-8")) == value.decode("utf-8")
    except (RopewalkError, UnicodeDecodeError):
        return False


def _agent(value: bytes) -> bool:
    try:
        return bool(check_agent(value.decode("utf-8")))
    except (RopewalkError, UnicodeDecodeError):
        return False


def _json(value: bytes) -> bool:
    try:
        msgspec.json.decode(value)
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
