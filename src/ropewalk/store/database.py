"""The database: schema, the one way to connect, and what a connection may do.

Rules that keep SQLite's locks and durability whole (findings A16, A20, A23, A24): nothing but apsw opens
`store.db` or its `-shm`; every connection keeps the WAL at close; checkpoints are PASSIVE and under the
writer lock; no read transaction outlives one page of results.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from ropewalk.core.errors import BusyError, InvalidError, NoSpaceError, RopewalkError, StoreCorruptError, StoreIOError

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE refs (name TEXT PRIMARY KEY, target TEXT, op INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX refs_op ON refs (op);
CREATE INDEX refs_gone ON refs (op) WHERE target IS NULL;
CREATE TABLE ref_values (name TEXT NOT NULL, target TEXT NOT NULL, op INTEGER NOT NULL,
                         PRIMARY KEY (name, target)) WITHOUT ROWID;
CREATE TABLE ops (op INTEGER PRIMARY KEY, kind TEXT NOT NULL, actor TEXT NOT NULL, at INTEGER NOT NULL,
                  body TEXT NOT NULL, chain BLOB NOT NULL, undone_by INTEGER);
CREATE TABLE changesets (id TEXT PRIMARY KEY, op INTEGER NOT NULL, agent TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE landed (landed TEXT NOT NULL, ref TEXT NOT NULL, change TEXT NOT NULL, op INTEGER NOT NULL,
                     author TEXT NOT NULL, undone INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (landed, ref)) WITHOUT ROWID;
CREATE INDEX landed_change ON landed (change);
CREATE TABLE land_paths (path BLOB NOT NULL, ref TEXT NOT NULL, op INTEGER NOT NULL, old TEXT, new TEXT,
                         author TEXT NOT NULL, PRIMARY KEY (path, ref, op)) WITHOUT ROWID;
CREATE TABLE keys (scope TEXT NOT NULL, key TEXT NOT NULL, request BLOB NOT NULL, result TEXT NOT NULL,
                   op INTEGER NOT NULL, PRIMARY KEY (scope, key)) WITHOUT ROWID;
CREATE TABLE object_journal (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, packed BLOB NOT NULL);
CREATE INDEX object_journal_id ON object_journal (id);
CREATE TABLE workspaces (name TEXT PRIMARY KEY, path TEXT NOT NULL, base TEXT NOT NULL, created_base TEXT NOT NULL,
                         target TEXT NOT NULL, agent TEXT NOT NULL, created_at INTEGER NOT NULL, state TEXT NOT NULL,
                         note TEXT) WITHOUT ROWID;
"""

UPGRADES: tuple[str, ...] = (
    """
CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, ref TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL,
                    at INTEGER NOT NULL, entry BLOB NOT NULL, result BLOB);
CREATE TABLE check_runs (key TEXT NOT NULL, entry INTEGER NOT NULL, tree TEXT NOT NULL, passed INTEGER NOT NULL,
                         failures INTEGER NOT NULL, at INTEGER NOT NULL, verdict BLOB NOT NULL,
                         PRIMARY KEY (key, entry)) WITHOUT ROWID;
CREATE INDEX check_runs_entry ON check_runs (entry);
""",
    """
CREATE TABLE remotes (name TEXT PRIMARY KEY, url TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE equivalents (was TEXT NOT NULL, ref TEXT NOT NULL, now TEXT NOT NULL, op INTEGER NOT NULL,
                          PRIMARY KEY (was, ref, now)) WITHOUT ROWID;
CREATE INDEX equivalents_now ON equivalents (now, ref);
""",
    """
CREATE TABLE tokens (name TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, agent TEXT NOT NULL, rights TEXT NOT NULL,
                     at INTEGER NOT NULL) WITHOUT ROWID;
""",
    """
CREATE TABLE beats (claim TEXT PRIMARY KEY, count INTEGER NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
""",
    """
CREATE TABLE lanes (lane TEXT PRIMARY KEY, key TEXT NOT NULL, run TEXT NOT NULL, task TEXT NOT NULL,
                    state TEXT NOT NULL, began INTEGER NOT NULL, ended INTEGER, record BLOB NOT NULL,
                    result BLOB) WITHOUT ROWID;
CREATE INDEX lanes_key ON lanes (key) WHERE result IS NOT NULL;
CREATE INDEX lanes_run ON lanes (run, began);
CREATE INDEX lanes_open ON lanes (began) WHERE ended IS NULL;
""",
)
"""What the database gained since its first form; `meta.schema` counts the steps that a store has taken."""


DATABASE_HINT = (
    "run `rw verify`; then `rw repair --rebuild` makes a database of what is left, `rw restore` a store of a backup"
)
"""Is what to do about a database that can't be used."""


class Database:
    """Is one connection to `store.db`; not shared between threads or across a fork.

    One that makes the database syncs nothing.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = path
        self.wal_pages = 0
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        with typed("open of the database"):
            self.con = apsw.Connection(path, flags=flags)
            self.con.set_busy_timeout(10_000)
            self.con.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.con.wal_autocheckpoint(0)
            self.con.set_wal_hook(self._note_wal)
            keep = array("i", [1])
            self.con.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, keep.buffer_info()[0])
            if create:
                # SQLite keeps some failed syncs to itself: who makes a database syncs its files, once, when it is whole
                mode = next(iter(self.con.execute("PRAGMA synchronous=OFF; PRAGMA journal_mode=WAL")))[0]
                if mode != "wal":  # an error on the way to it is no error to SQLite
                    raise StoreIOError("the database can't have a log", operation="making the database")
            self.con.execute(f"PRAGMA synchronous={'OFF' if create else 'NORMAL'}")
            self.con.execute("PRAGMA mmap_size=0; PRAGMA cache_size=-8000")

    def _note_wal(self, _: apsw.Connection, __: str, pages: int) -> int:
        self.wal_pages = pages
        return apsw.SQLITE_OK

    def rows(self, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Gives all rows of a query; the read transaction ends with it."""
        with typed("read of the database"):
            return list(self.con.execute(sql, args))

    def row(self, sql: str, args: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Gives the first row, or None."""
        with typed("read of the database"):
            return next(iter(self.con.execute(sql, args)), None)

    def run(self, sql: str, args: Sequence[Any] = ()) -> None:
        """Executes a statement that gives no rows."""
        with typed("write of the database"):
            self.con.execute(sql, args)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Executes a statement once for each row of values."""
        with typed("write of the database"):
            self.con.executemany(sql, rows)

    def meta(self, name: str) -> str | None:
        """Gives a value of the table `meta`."""
        row = self.row("SELECT value FROM meta WHERE name = ?", (name,))
        return None if row is None else str(row[0])

    def set_meta(self, name: str, value: str) -> None:
        """Sets a value of the table `meta`."""
        self.run("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def upgrade(self) -> None:
        """Takes the steps of `UPGRADES` that this database lacks; a power loss may take them back, whole.

        The caller holds the writer lock, or is still making the store.
        """
        self.run("BEGIN IMMEDIATE")
        try:
            for step in UPGRADES[int(self.meta("schema") or 0) :]:
                for statement in step.split(";\n"):
                    if statement.strip():
                        self.run(statement)
            self.set_meta("schema", str(len(UPGRADES)))
            self.run("COMMIT")
        except BaseException:
            if not self.con.get_autocommit():  # some errors roll back by themselves
                self.run("ROLLBACK")
            raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Gives several queries one consistent view; kept short, because it holds back checkpoints (A20)."""
        with typed("read of the database"):
            self.con.execute("BEGIN")
        try:
            yield
        finally:
            self.con.execute("COMMIT")

    def checkpoint(self) -> tuple[int, int]:
        """Moves WAL frames into the database without waiting for readers; gives (frames, moved).

        The caller holds the writer lock.
        """
        with typed("checkpoint of the database"):
            self.con.set_busy_timeout(0)
            try:
                return self.con.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.BusyError:
                return (0, 0)
            finally:
                self.con.set_busy_timeout(10_000)

    def close(self) -> None:
        """Closes the connection; the WAL stays."""
        self.con.close()


@contextmanager
def typed(operation: str) -> Iterator[None]:
    """Turns SQLite's errors into ours."""
    try:
        yield
    except RopewalkError:
        raise
    except UnicodeEncodeError as error:
        raise InvalidError(f"{error.object!a:.100} is not UTF-8", hint="names and revisions are UTF-8 text") from None
    except UnicodeDecodeError as error:
        words = f"store.db holds text that is none: {error}"
        raise StoreCorruptError(words, hint=DATABASE_HINT, file="store.db") from None
    except (apsw.CorruptError, apsw.NotADBError, apsw.FormatError) as error:
        raise StoreCorruptError(f"store.db is damaged: {error}", hint=DATABASE_HINT, file="store.db") from None
    except apsw.FullError as error:
        raise NoSpaceError(f"{operation}: {error}", operation=operation, file="store.db") from None
    except apsw.BusyError as error:
        raise BusyError(f"{operation}: {error}", operation=operation) from None
    except (apsw.SQLError, apsw.SchemaChangeError) as error:
        words = f"store.db lacks what {operation} needs: {error}"
        raise StoreCorruptError(words, hint=DATABASE_HINT, file="store.db") from None
    except apsw.ReadOnlyError as error:
        raise StoreIOError(
            f"{operation}: {error}", hint="check the owner and the mount of the store", operation=operation
        ) from None
    except apsw.Error as error:
        raise StoreIOError(f"{operation}: {error}", operation=operation, file="store.db") from None


def wal_handle(path: str) -> int:
    """Opens the `-wal` file for syncing alone; no other file of SQLite's is ever opened beside it (A16)."""
    return os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
