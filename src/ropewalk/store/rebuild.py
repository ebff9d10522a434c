"""Rebuild: a new database from what of the old one can still be read, and from the refs that `repo.git` shows.

The last resort, for a database that SQLite can't use or whose log does not fit together. The old files are kept.
The chain is closed again: where an operation's record is lost, one that says so stands in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import apsw
import msgspec

from ropewalk.core import durable
from ropewalk.core.errors import BusyError, RopewalkError
from ropewalk.core.process import holders
from ropewalk.store import oplog, repository, verify
from ropewalk.store.database import Database
from ropewalk.store.layout import FORMAT, Layout, StoreFormat, create_database, read_format
from ropewalk.store.lock import WriterLock

ACTOR = "ropewalk/repair"
_OWN = "'boot_id', 'store_id', 'name', 'schema'"
_FILES = ("store.db", "store.db-wal", "store.db-shm")


def rebuild(root: str, *, lock_wait: float, progress: Callable[[str], None]) -> list[str]:
    """Puts a new database in place of the old one and gives what it did; `repair` then takes refs from `repo.git`.

    `E_BUSY` while another process has the old one open: what it writes there would be lost.
    """
    layout = Layout(root)
    lock = WriterLock(layout.lock)
    lock.acquire(lock_wait)
    try:
        return _rebuild(layout, progress)
    finally:
        lock.release()


def _rebuild(layout: Layout, progress: Callable[[str], None]) -> list[str]:
    if os.path.exists(layout.database):
        others = [pid for pid in holders(os.stat(layout.database)) if pid != os.getpid()]
        if others:
            raise BusyError(
                f"process {others[0]} has the database open", hint="end it, then rebuild again", pid=others[0]
            )
    known, branch = _known(layout)
    part = layout.database + ".rebuilt"
    for name in (part, f"{part}-wal", f"{part}-shm"):
        if os.path.exists(name):
            os.unlink(name)
    create_database(part, known, branch)
    progress("repair: reading what is left of the database")
    new = Database(part)
    try:
        new.run("BEGIN IMMEDIATE")
        counts = _copy(layout.database, new)
        lost = close_chain(new, verify.newest_op(new))
        _refs(new)
        new.run("COMMIT")
        new.checkpoint()
    finally:
        new.close()
    done = []
    kept = [repository.keep(layout.root, os.path.join(layout.root, name)) for name in _FILES
            if os.path.exists(os.path.join(layout.root, name))]  # fmt: skip
    for end in ("-wal", ""):
        durable.sync(part + end)
        os.rename(part + end, layout.database + end)
    if os.path.exists(f"{part}-shm"):
        os.unlink(f"{part}-shm")
    durable.sync(layout.root)
    left = ", ".join(f"{count} {table}" for table, count in counts.items() if count)
    done.append(f"a new database was made of the old one's {left or 'name alone'}")
    if kept:
        done.append(f"the old one is kept as {', '.join(kept)}")
    if lost:
        names = ", ".join(map(str, lost[:20])) + (" …" if len(lost) > 20 else "")
        done.append(f"the records of operations {names} were lost or did not fit the chain")
    return done


def _known(layout: Layout) -> tuple[StoreFormat, str]:
    """Gives what FORMAT and HEAD say, or the best that can be said without them."""
    try:
        known = read_format(layout.root)
    except RopewalkError:
        import uuid

        known = StoreFormat(FORMAT, str(uuid.uuid4()), os.path.basename(layout.root) or "store")
    text = (repository.read(os.path.join(layout.repo, "HEAD")) or b"").decode("utf-8", "replace").strip()
    return known, text.removeprefix("ref: refs/heads/") if text.startswith("ref: refs/heads/") else "main"


def _copy(path: str, new: Database) -> dict[str, int]:
    """Copies every row that can be read, from both ends of each table; gives how many of each."""
    counts: dict[str, int] = {}
    if not os.path.exists(path):
        return counts
    try:
        old = Database(path)
    except RopewalkError:
        return counts
    try:
        # a damaged row of the schema then hides its own table alone
        old.con.execute("PRAGMA writable_schema=ON")
        for (table,) in new.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"):
            info = new.rows(f"PRAGMA table_info({table})")
            keys = [str(row[1]) for row in sorted(info, key=lambda row: row[5]) if row[5]]
            before = _count(new, table)
            for order in ("ASC", "DESC"):
                where = f" WHERE name NOT IN ({_OWN})" if table == "meta" else ""
                by = ", ".join(f"{key} {order}" for key in keys)
                if _rows(old, f"SELECT * FROM {table}{where} ORDER BY {by}", new, table, len(info)):
                    break
            if table != "meta":
                counts[table] = _count(new, table) - before
    finally:
        old.close()
    return counts


def _count(db: Database, table: str) -> int:
    row = db.row(f"SELECT count(*) FROM {table}")
    return int(row[0]) if row else 0


def _rows(old: Database, sql: str, new: Database, table: str, width: int) -> bool:
    """Copies rows until one can't be read; gives whether all could."""
    marks = ", ".join("?" * width)
    try:
        for row in old.con.execute(sql):
            if len(row) == width:
                new.run(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)
        return True
    except (apsw.Error, UnicodeDecodeError):
        return False


def close_chain(db: Database, top: int, *, only_after: int = 0) -> list[int]:
    """Makes the chain whole up to operation `top`; gives the operations whose record was lost or did not fit.

    With `only_after` what stands up to that operation stays as it is. The caller is in a transaction.
    """
    previous, wrong = oplog.GENESIS, []
    relink = False
    if only_after:
        previous = bytes((db.row("SELECT chain FROM ops WHERE op = ?", (only_after,)) or (previous,))[0])
    for op in range(only_after + 1, top + 1):
        row = db.row(f"SELECT {oplog.RAW} FROM ops WHERE op = ?", (op,))
        if row is not None and not relink and oplog.link_raw(previous, *row[:5]) == row[5]:
            previous = bytes(row[5])
            continue
        if row is None or not relink or not _reads(row):
            wrong.append(op)
        relink = True
        if row is None or not _reads(row):
            body = msgspec.json.encode(oplog.Body(note="the record of this operation was lost")).decode()
            row = (op, b"lost", ACTOR.encode(), 0, body.encode(), b"")
        kind, actor, body = (bytes(row[n]).decode("utf-8", "replace") for n in (1, 2, 4))
        at = int(row[3]) if str(row[3]).isdigit() else 0
        previous = oplog.link(previous, op, kind, actor, at, body)
        db.run("INSERT OR REPLACE INTO ops VALUES (?, ?, ?, ?, ?, ?, "
               "(SELECT undone_by FROM ops WHERE op = ?))", (op, kind, actor, at, body, previous, op))  # fmt: skip
    return wrong


def _reads(row: tuple[Any, ...]) -> bool:
    try:
        msgspec.json.decode(row[4], type=oplog.Body)
        return True
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return False


def _refs(db: Database) -> None:
    """Sets refs to where the log left them, and keeps rows of refs that are newer than what is left of it."""
    found: dict[str, tuple[str | None, int]] = {}
    last = 0
    while rows := oplog.after(db, last, 1000):
        for op in rows:
            found.update({move.name: (move.new, op.op) for move in op.body.moves})
        last = rows[-1].op
    for name, (target, number) in found.items():
        row = db.row("SELECT op FROM refs WHERE name = ?", (name,))
        if row is None or int(row[0]) <= number:
            db.run("INSERT OR REPLACE INTO refs VALUES (?, ?, ?)", (name, target, number))
        if target is not None:
            db.run("INSERT OR IGNORE INTO ref_values VALUES (?, ?, ?)", (name, target, number))
