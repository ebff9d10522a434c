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
from zlib import crc32

import msgspec

from ropewalk.core import clock, durable
from ropewalk.core.errors import (
    CasMismatchError,
    InvalidError,
    KeyReusedError,
    NotFoundError,
    RopewalkError,
    StoreCorruptError,
    StoreIOError,
    os_error,
)
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.core.process import Done, git
from ropewalk.store import oplog, projection
from ropewalk.store.database import DATABASE_HINT, UPGRADES, Database, wal_handle
from ropewalk.store.layout import Layout, StoreFormat, read_format
from ropewalk.store.lock import DEFAULT_WAIT, WriterLock
from ropewalk.store.loose import NewObject
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
        self.objects = Objects(self.layout.repo, self._journalled, self.expose, self.heal)
        self.recovered: dict[str, int] = {}
        self.warnings: list[str] = []
        self._slot: Slot | None = None
        self._healed = False
        if not os.path.exists(self.layout.database):
            raise StoreCorruptError("store.db is missing", file="store.db", hint=DATABASE_HINT)
        self.db = Database(self.layout.database)
        self._wal = -1
        self.lost = self.lost_ops()
        if self.lost is not None:
            self.warnings.append(f"{lost_words(self.lost)}; run `rw repair`")
        elif self.db.meta("boot_id") != clock.boot_id():
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
            tx.wrote = self.db.con.total_changes() != tx.changes
            self.db.run("COMMIT")
        except BaseException:
            if not self.db.con.get_autocommit():
                self.db.run("ROLLBACK")
            raise

    def finish(self, tx: Transaction) -> None:
        """Makes a committed transaction durable and visible to stock git, and tidies up when it is time."""
        self.flush(tx.last_op, always=tx.wrote and tx.last_op == tx.first_op)
        if tx.moved:
            self.show()
        elif tx.journal_seq % 256 < tx.journalled:
            self.show(wait=False)  # what moves no ref is shown with the next that does, before a git child, or at close
        try:
            if self.db.wal_pages > WAL_PAGES and self.lock.try_acquire():
                # an early checkpoint lets the log start over in blocks it has, where a sync has no file size to write
                try:
                    self.checkpoint()
                finally:
                    self.lock.release()
                from ropewalk.store import readers

                self.warnings += readers.long_log(self.layout.database, self.db.wal_pages)
            if tx.journalled and tx.journal_seq % 1024 < tx.journalled:
                from ropewalk.store import maintain

                maintain.checkpoint_if_due(self)
        except RopewalkError as error:
            self.warnings.append(f"the write is done, but the store was not tidied after it: {error.message}")

    def vouch(self, op: int) -> None:
        """Makes an operation that another process wrote durable and visible to stock git, before its result is told.

        Without its number (0) that is done for all that is seen.
        """
        self.flush(op or None)
        self.show()

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
        try:
            return git(self.layout.repo, *args, **options)
        except (StoreCorruptError, StoreIOError) as error:
            # a damaged commit-graph can end git by a signal
            if (isinstance(error, StoreIOError) and "signal" not in error.details) or not self.heal():
                raise
        return git(self.layout.repo, *args, **options)

    def keep_still(self) -> None:
        """Lets this process heal nothing, because it is to say what is wrong."""
        self._healed = True

    def heal(self) -> bool:
        """Mends what is fixed or derived in `repo.git`, once a process, after git failed; says whether it did.

        What a command needs of `repo.git` besides objects has a second copy, so its damage stops no command.
        """
        if self._healed:
            return False
        self._healed = True
        from ropewalk.store import repository

        try:
            done = repository.heal(self)
        except (RopewalkError, OSError):
            return False  # a read-only disk, or more damage than that: verify tells
        self.warnings += done
        return bool(done)

    def _journalled(self, oid: str) -> bytes | None:
        row = self.db.row("SELECT packed FROM object_journal WHERE id = ? LIMIT 1", (oid,))
        return None if row is None else bytes(row[0])

    # durability

    def flush(self, op: int | None = None, *, always: bool = False) -> None:
        """Syncs the WAL so that everything up to operation `op` (default: all that is seen) is on disk.

        `always` is for what was written without an operation, of which no mark tells. A mark in the file `flushed`
        saves the sync when another process made it already. A sync that fails poisons the store: it can't be repeated
        into a success, because the kernel reports a lost write once.
        """
        if op is None:
            op = self.last_op()
        stamp = clock.boot_id()[:8]
        known = self._flushed()
        if op and not always and known is not None and known[0] == stamp and known[1] >= op:
            return
        upto = max(op, self.last_op())
        try:
            os.fdatasync(self._wal_handle())
        except OSError as error:
            self._poison(str(error.strerror))
            raise os_error(error, "sync of the store") from None
        # after the sync, because another's may have failed meanwhile and have taken the kernel's only report of it
        self._check_poison()
        if known is not None and known[1] > upto:
            return  # the database lost what the mark knows of, and only a repair may forget that
        try:
            fd = os.open(self.layout.flushed, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                words = f"{stamp} {upto:016d}".encode("ascii")
                os.pwrite(fd, b"%s %08x\n" % (words, crc32(words)), 0)
            finally:
                os.close(fd)
        except OSError:
            pass  # the mark only saves work

    def _flushed(self) -> tuple[str, int] | None:
        """Gives (boot, operation) of the mark; None when it is missing or damaged."""
        try:
            with open(self.layout.flushed, "rb") as file:
                words, _, check = file.read(64).rpartition(b" ")
            if int(check, 16) != crc32(words):
                return None
            boot, _, op = words.partition(b" ")
            return boot.decode("ascii"), int(op)
        except (OSError, ValueError):
            return None

    def lost_ops(self) -> tuple[int, int] | None:
        """Gives (first, last) of the operations that were on disk and that the database lacks; None when it is whole.

        SQLite takes a damaged or missing log, and an older copy of the database, for what is: what an answered
        command wrote is gone from it without an error.
        """
        known = self._flushed()
        if known is None or not known[1]:
            return None
        last = self.last_op()
        return (last + 1, known[1]) if last < known[1] else None

    def _wal_handle(self) -> int:
        """Gives the descriptor of the present `-wal` file (A23); SQLite syncs the name of one that it makes."""
        path = self.layout.database + "-wal"
        if self._wal >= 0:
            mine = os.fstat(self._wal)
            try:
                there = os.stat(path)
                if (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev) and mine.st_nlink:
                    return self._wal
            except FileNotFoundError:
                pass
            os.close(self._wal)
            self._wal = -1
        self._wal = wal_handle(self.layout.database)
        return self._wal

    def checkpoint(self) -> tuple[int, int]:
        """Moves the log into the database file as far as readers let it, and gives (frames, moved).

        SQLite syncs both around it; when that fails the store is poisoned as by a failed flush. The caller holds
        the writer lock.
        """
        self._check_poison()  # what the log lost on its way must not reach the database file
        try:
            return self.db.checkpoint()
        except StoreIOError as error:
            self._poison(error.message)
            raise

    def _poison(self, why: str) -> None:
        """Bans writes until a repair; the mark itself needs no sync, because a boot ends what it stands for."""
        try:
            fd = os.open(os.path.join(self.layout.root, "poisoned"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                durable.write_all(fd, f"{clock.now()} {why}\n".encode())
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
        if store.lost is not None:
            hint = "run `rw repair`, which says what is lost"
            raise StoreCorruptError(lost_words(store.lost), hint=hint, file="store.db")
        row = self.db.row("SELECT op, chain FROM ops ORDER BY op DESC LIMIT 1")
        self.last_op, self._chain = (int(row[0]), bytes(row[1])) if row else (0, oplog.GENESIS)
        self.first_op = self.last_op
        self.changes = self.db.con.total_changes()
        self.wrote = False
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


def lost_words(lost: tuple[int, int]) -> str:
    """Gives the sentence that says which operations the database lacks."""
    if lost[0] == lost[1]:
        return f"store.db lacks operation {lost[0]}, which was on disk"
    return f"store.db lacks operations {lost[0]} to {lost[1]}, which were on disk"


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
