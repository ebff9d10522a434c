"""A store opened by a process: its objects, its database, and the durable write path.

One write is: objects loose and unsynced; then, under the writer lock, one SQLite transaction that checks every
compare-and-swap, records operations and copies the new objects into the journal; then the lock is let go, the
WAL is synced once for all who wrote meanwhile, and the answer may leave. See docs/architecture.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import (
    CasMismatchError,
    InvalidError,
    KeyReusedError,
    NotFoundError,
    RopewalkError,
    StoreIOError,
    os_error,
)
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.core.process import Done, git
from ropewalk.store import oplog, projection
from ropewalk.store.database import UPGRADES, Database, wal_handle
from ropewalk.store.layout import Layout, StoreFormat, read_format
from ropewalk.store.lock import DEFAULT_WAIT, WriterLock
from ropewalk.store.loose import NewObject, sync_folder, write_all
from ropewalk.store.objects import Objects
from ropewalk.store.oplog import Body, Move
from ropewalk.store.spool import Slot

JOURNAL_OBJECTS, JOURNAL_BYTES, WAL_PAGES = 20_000, 64 << 20, 6144


class Replay(NamedTuple):
    """Is the first result of a request that came again under its idempotency key."""

    result: bytes
    op: int


class Store:
    """Is one process's hold on a store; not shared between threads."""

    def __init__(self, root: str, *, lock_wait: float = DEFAULT_WAIT, structural: bool = True) -> None:
        """Opens the store at `root`; recovers it first when the machine was booted since the last write.

        Raises `E_NOT_FOUND`, `E_STORE_FORMAT`, `E_STORE_CORRUPT` or `E_IO`.
        """
        self.layout = Layout(os.path.abspath(root))
        self.format: StoreFormat = read_format(self.layout.root)
        self.lock = WriterLock(self.layout.lock)
        self.lock_wait = lock_wait
        self.structural = structural
        self.objects = Objects(self.layout.repo, self._journalled, self.expose)
        self.recovered: dict[str, int] = {}
        self.warnings: list[str] = []
        self._slot: Slot | None = None
        if not os.path.exists(self.layout.database):
            from ropewalk.core.errors import StoreCorruptError

            raise StoreCorruptError("store.db is missing", file="store.db", hint="restore it from a backup")
        self.db = Database(self.layout.database)
        self._wal = -1
        self._wal_inode = 0
        if self.db.meta("boot_id") != clock.boot_id():
            from ropewalk.store import recovery

            recovery.after_boot(self)
        if int(self.db.meta("schema") or 0) < len(UPGRADES):
            self._upgrade()

    def _upgrade(self) -> None:
        try:
            with self.lock_held():
                if int(self.db.meta("schema") or 0) < len(UPGRADES):
                    self.db.upgrade()
        except RopewalkError as error:
            # a read-only disk can still be read
            self.warnings.append(f"the store keeps the form of an older version: {error.message}")

    def close(self) -> None:
        """Shows what is not shown yet, and lets go of files and children."""
        try:
            self.expose()
        except (RopewalkError, OSError):
            pass  # the next process does it
        self.objects.close()
        self.db.close()
        if self._slot is not None:
            self._slot.close()
            self._slot = None
        if self._wal >= 0:
            os.close(self._wal)
            self._wal = -1

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def slot(self) -> Slot:
        """Gives this process's place in the spool of waiting lands, made at its first use."""
        if self._slot is None:
            self._slot = Slot(self.layout.spool)
        return self._slot

    @property
    def slot_name(self) -> str | None:
        """Gives the name of that place, None when there is none yet."""
        return None if self._slot is None else self._slot.name

    # refs

    def ref(self, name: str) -> str | None:
        """Gives the commit a ref (full name) points to, or None."""
        row = self.db.row("SELECT target FROM refs WHERE name = ?", (name,))
        return None if row is None else row[0]

    def refs(self, prefix: str = "refs/", after: str = "", limit: int | None = None) -> list[tuple[str, str]]:
        """Gives (full name, target) of the refs below a prefix, by name, at most `limit` after name `after`."""
        return self.db.rows(
            "SELECT name, target FROM refs WHERE name >= ? AND name < ? AND name > ? AND target IS NOT NULL"
            " ORDER BY name LIMIT ?",
            (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1), after, -1 if limit is None else limit),
        )

    @property
    def folds_case(self) -> bool:
        """Says whether the disk takes names that differ in case alone for one (A31)."""
        return os.path.exists(os.path.join(self.layout.repo, "head"))  # its name is HEAD

    def gave_ref(self, name: str, target: str) -> bool:
        """Says whether ropewalk ever set a ref to a target."""
        return self.db.row("SELECT 1 FROM ref_values WHERE name = ? AND target = ?", (name, target)) is not None

    def last_op(self) -> int:
        """Gives the number of the newest operation, 0 in a new store."""
        row = self.db.row("SELECT max(op) FROM ops")
        return int(row[0] or 0) if row else 0

    def agent_of(self, changeset: str) -> str | None:
        """Gives the agent that made a changeset here; None for imported commits."""
        row = self.db.row("SELECT agent FROM changesets WHERE id = ?", (changeset,))
        return None if row is None else str(row[0])

    # keys

    def replay(self, scope: str, key: str | None, request: bytes) -> Replay | None:
        """Gives the recorded result of a key; `E_KEY_REUSED` when it was used for another request."""
        if key is None:
            return None
        row = self.db.row("SELECT request, result, op FROM keys WHERE scope = ? AND key = ?", (scope, key))
        if row is None:
            return None
        if row[0] != request:
            if self.db.con.get_autocommit():
                self.flush(int(row[2]))  # it tells of what another wrote; inside a transaction its end does this (A15)
            raise KeyReusedError(f"the key {key} was used for another {scope}", key=key, op=row[2])
        return Replay(row[1].encode("utf-8"), row[2])

    # writing

    @contextmanager
    def lock_held(self) -> Iterator[None]:
        """Holds the writer lock; no flush follows."""
        self.lock.acquire(self.lock_wait)
        try:
            yield
        finally:
            self.lock.release()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Gives a transaction under the writer lock; commits, lets go, syncs and projects at its end.

        An exception inside records nothing. The answer to the caller is durable when this returns.
        """
        self.lock.acquire(self.lock_wait)
        lost = False
        try:
            with self.begun() as tx:
                yield tx
        except RopewalkError as error:
            lost = error.exit == 3
            raise
        finally:
            self.lock.release()
            if lost:
                self.flush()  # a lost race tells of what another wrote and may not have synced yet (A15)
        self.finish(tx)

    @contextmanager
    def begun(self) -> Iterator[Transaction]:
        """Gives a transaction while the caller holds the writer lock; the caller calls `finish` after release."""
        self._check_poison()
        self.db.run("BEGIN IMMEDIATE")
        tx = Transaction(self)
        try:
            yield tx
            tx.seal()
            self.db.run("COMMIT")
        except BaseException:
            if not self.db.con.get_autocommit():
                self.db.run("ROLLBACK")
            raise

    def finish(self, tx: Transaction) -> None:
        """Makes a committed transaction durable and visible to stock git, and tidies up when it is time."""
        self.flush(tx.last_op)
        if tx.moved:
            self.show()
        elif tx.journal_seq % 256 < tx.journalled:
            self.show(wait=False)  # what moves no ref is shown with the next that does, before a git child, or at close
        try:
            if self.db.wal_pages > WAL_PAGES and self.lock.try_acquire():
                # an early checkpoint lets the log start over in blocks it has, where a sync has no file size to write
                try:
                    self.db.checkpoint()
                finally:
                    self.lock.release()
                from ropewalk.store import readers

                self.warnings += readers.long_log(self.layout.database, self.db.wal_pages)
            if tx.journalled and tx.journal_seq % 1024 < tx.journalled:
                from ropewalk.store import maintain

                maintain.checkpoint_if_due(self)
        except RopewalkError as error:
            self.warnings.append(f"the write is done, but the store was not tidied after it: {error.message}")

    def show(self, *, wait: bool = True) -> None:
        """Lets stock git see objects and refs; what can't be shown now is a warning, because the write is on disk.

        Without `wait` it is left to another process that is at it.
        """
        try:
            self.warnings += projection.project(self, wait=wait)
        except RopewalkError as error:
            self.warnings.append(f"repo.git shows the refs' new values later: {error.message}")

    def expose(self) -> None:
        """Puts every journalled object where git sees it, before a git child is asked about one."""
        projection.expose(self)

    def git(self, *args: str | bytes, **options: Any) -> Done:
        """Runs our git on `repo.git`, with every object of the store in its sight."""
        self.objects.spill()
        return git(self.layout.repo, *args, **options)

    def _journalled(self, oid: str) -> bytes | None:
        row = self.db.row("SELECT packed FROM object_journal WHERE id = ? LIMIT 1", (oid,))
        return None if row is None else bytes(row[0])

    # durability

    def flush(self, op: int | None = None) -> None:
        """Syncs the WAL so that everything up to operation `op` (default: all that is seen) is on disk.

        A mark in the file `flushed` saves the sync when another process made it already. A sync that fails
        poisons the store: it can't be repeated into a success, because the kernel reports a lost write once.
        """
        if op is None:
            op = self.last_op()
        mark = os.path.join(self.layout.root, "flushed")
        stamp = clock.boot_id()[:8]
        if op and self._flushed(mark, stamp) >= op:
            return
        self._check_poison()
        upto = max(op, self.last_op())
        try:
            fd, fresh = self._wal_handle()
            os.fdatasync(fd)
            if fresh:
                sync_folder(self.layout.root)
        except OSError as error:
            self._poison(error)
            raise os_error(error, "sync of the store") from None
        try:
            fd = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(fd, f"{stamp} {upto:016d}\n".encode("ascii"), 0)
            finally:
                os.close(fd)
        except OSError:
            pass  # the mark only saves work

    def _flushed(self, mark: str, stamp: str) -> int:
        try:
            with open(mark, "rb") as file:
                words = file.read(64).split()
            return int(words[1]) if len(words) == 2 and words[0] == stamp.encode("ascii") else 0
        except (OSError, ValueError):
            return 0

    def _wal_handle(self) -> tuple[int, bool]:
        """Gives the descriptor of the present `-wal` file, and whether its name may not be durable yet (A23)."""
        path = self.layout.database + "-wal"
        if self._wal >= 0:
            mine = os.fstat(self._wal)
            try:
                there = os.stat(path)
                if (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev) and mine.st_nlink:
                    return self._wal, False
            except FileNotFoundError:
                pass
            os.close(self._wal)
            self._wal = -1
        self._wal = wal_handle(self.layout.database)
        inode = str(os.fstat(self._wal).st_ino)
        # the row is written by the transaction after the one that synced the folder
        known = self.db.meta("wal_inode") == inode
        self._wal_inode = 0 if known else int(inode)
        return self._wal, not known

    def _poison(self, error: OSError) -> None:
        try:
            fd = os.open(os.path.join(self.layout.root, "poisoned"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                write_all(fd, f"{clock.now()} {error.strerror}\n".encode())
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError:
            pass

    def _check_poison(self) -> None:
        if os.path.exists(os.path.join(self.layout.root, "poisoned")):
            raise StoreIOError(
                "an earlier sync of this store failed, so it takes no writes",
                hint="check the disk, then run `rw repair`",
                operation="write",
            )


class Transaction:
    """Is one write in progress under the writer lock; every check and every row of it is in one SQLite transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.db = store.db
        self.at = clock.now()
        row = self.db.row("SELECT op, chain FROM ops ORDER BY op DESC LIMIT 1")
        self.last_op, self._chain = (int(row[0]), bytes(row[1])) if row else (0, oplog.GENESIS)
        self.journalled = 0
        self.journal_seq = 0
        self.moved = False

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undoes what happened inside when it raises; the transaction goes on."""
        before = self.last_op, self._chain
        self.db.run("SAVEPOINT one")
        try:
            yield
        except BaseException:
            self.db.run("ROLLBACK TO one")
            self.db.run("RELEASE one")
            self.last_op, self._chain = before
            raise
        self.db.run("RELEASE one")

    def record(
        self,
        kind: str,
        actor: str,
        moves: Sequence[Move] = (),
        changesets: Sequence[tuple[str, str]] = (),
        *,
        undoes: int | None = None,
        key: str | None = None,
        note: str | None = None,
    ) -> int:
        """Records an operation and moves its refs, all or none, and gives its number.

        `changesets` are (id, agent). `E_CAS_MISMATCH` when a ref is not at its old value, `E_INVALID` when a
        new name clashes with a ref. A move to where the ref is already is checked and not recorded.
        """
        for move in moves:
            self._check(move)
        moves = [move for move in moves if move.old != move.new]
        op = self.last_op + 1
        body = Body(tuple(moves), tuple(c for c, _ in changesets), undoes, key, note)
        text = msgspec.json.encode(body).decode("utf-8")
        chain = oplog.link(self._chain, op, kind, actor, self.at, text)
        self.db.run("INSERT INTO ops VALUES (?, ?, ?, ?, ?, ?, NULL)", (op, kind, actor, self.at, text, chain))
        # removals first, so that `a/b` may take the place of `a`
        self.moved = self.moved or bool(moves)
        for move in sorted(moves, key=lambda m: m.new is not None):
            self.db.run("INSERT OR REPLACE INTO refs VALUES (?, ?, ?)", (move.name, move.new, op))
            if move.new is not None:
                self.db.run("INSERT OR IGNORE INTO ref_values VALUES (?, ?, ?)", (move.name, move.new, op))
        for change, agent in changesets:
            self.db.run("INSERT OR IGNORE INTO changesets VALUES (?, ?, ?)", (change, op, agent))
        self.last_op, self._chain = op, chain
        return op

    def _check(self, move: Move) -> None:
        present = self.store.ref(move.name)
        if present != move.old:
            raise CasMismatchError(
                f"{short_ref(move.name)} is at {present or 'nothing'}, not at {move.old or 'nothing'}",
                ref=short_ref(move.name),
                expected=move.old,
                actual=present,
            )
        if move.old is None and move.new is not None:
            check_ref(move.name)
            self._check_clash(move.name)

    def _check_clash(self, name: str) -> None:
        parts = name.split("/")
        above = ["/".join(parts[:n]) for n in range(3, len(parts))]
        marks = ",".join("?" * len(above)) or "NULL"
        row = self.db.row(
            "SELECT name FROM refs WHERE target IS NOT NULL"
            f" AND (name IN ({marks}) OR (name > ? AND name < ?)) LIMIT 1",
            (*above, name + "/", name + "0"),
        )
        if row is None and self.store.folds_case:
            low = name.casefold()
            rows = self.db.rows("SELECT name FROM refs WHERE target IS NOT NULL")
            row = next((r for r in rows if _one_file(low, str(r[0]).casefold())), None)
        if row is not None:
            raise InvalidError(
                f"{short_ref(name)} clashes with the ref {short_ref(row[0])}",
                hint="git keeps refs as files: one name can't be a folder of the other, nor differ in case alone"
                " where the disk knows no case",
                name=name,
                clash=row[0],
            )

    def remember(self, scope: str, key: str | None, request: bytes, result: bytes) -> None:
        """Binds an idempotency key to a request and its result."""
        if key is not None:
            self.db.run(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?)", (scope, key, request, result.decode("utf-8"), self.last_op)
            )

    def journal(self, objects: Sequence[NewObject]) -> None:
        """Copies new objects into the journal, so that they are as durable as the operation that names them."""
        rows = [(o.id, o.packed) for o in objects if o.packed]
        if rows:
            self.db.run_many("INSERT INTO object_journal (id, packed) VALUES (?, ?)", rows)
            self.journalled += len(rows)
            self.journal_seq = self.db.con.last_insert_rowid()

    def seal(self) -> None:
        """Writes the rows that belong to every transaction; the last thing before the commit."""
        if self.store._wal_inode and self.journalled:
            self.db.set_meta("wal_inode", str(self.store._wal_inode))
            self.store._wal_inode = 0


def _one_file(one: str, two: str) -> bool:
    """Says whether two refs can't both be files: they are one name, or one is a folder of the other."""
    return one == two or one.startswith(two + "/") or two.startswith(one + "/")


def resolve_ref(store: Store, name: str) -> tuple[str, str] | None:
    """Gives (full name, target) of a ref by its full or short name: branch, then tag, then any below `refs/`."""
    for prefix in ("refs/",) if name.startswith("tags/") else ("", "refs/heads/", "refs/tags/", "refs/"):
        full = prefix + name
        if full.startswith("refs/"):
            target = store.ref(full)
            if target is not None:
                return full, target
    return None


def need_ref(store: Store, name: str) -> tuple[str, str]:
    """Gives (full name, target) of a ref; `E_NOT_FOUND` when there is none."""
    found = resolve_ref(store, name)
    if found is None:
        raise NotFoundError(f"there is no ref {name!r}", hint="list them with `rw ref list`", ref=name)
    return found


__all__ = ["Replay", "RopewalkError", "Store", "Transaction", "need_ref", "resolve_ref"]
