"""Repair: puts back what the journal, a pack or another place still has, and says what it could not mend.

Nothing damaged is thrown away: what is replaced is kept in the store's folder `damaged`, and named. The order is
that of need: git wants its settings, the database its refs, objects their packs, and refs of `repo.git` all of it.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ropewalk.core import durable
from ropewalk.core.errors import NotFoundError, RopewalkError, StoreIOError, os_error
from ropewalk.core.process import git
from ropewalk.store import adoption, maintain, oplog, packs, projection, rebuild, recovery, repository, rows, verify
from ropewalk.store.database import Database, typed
from ropewalk.store.layout import FORMAT, Layout, StoreFormat, read_format, write_format
from ropewalk.store.lock import WriterLock, process_words
from ropewalk.store.loose import FSYNC_SIZE, Damaged, LooseStore, NewObject, deflate, inflate, object_id
from ropewalk.store.oplog import Move
from ropewalk.store.sources import Source, first
from ropewalk.store.store import Store, lost_words

ACTOR = "ropewalk/repair"
_BATCH = 256


class Repaired(msgspec.Struct, frozen=True):
    """Is what a repair did, and the findings it could not mend."""

    done: list[str]
    left: list[verify.Finding]


def mend_format(root: str) -> list[str]:
    """Writes a missing or damaged FORMAT again from the database's copy of it, and gives what it did.

    A store of a newer ropewalk is left as it is, and one whose database has no copy raises `E_STORE_CORRUPT`.
    """
    layout = Layout(root)
    damage = None
    try:
        found: StoreFormat | None = read_format(root)
    except RopewalkError as error:
        # what names another number may be a newer ropewalk's, and is its to mend
        if not os.path.exists(layout.database) or "found" in error.details:
            raise
        found, damage = None, error
    if not os.path.exists(layout.database):
        return []
    try:
        db = Database(layout.database)
        try:
            store_id, name = db.meta("store_id"), db.meta("name")
        finally:
            db.close()
    except RopewalkError:
        if damage is not None:
            raise damage from None
        return []
    if store_id is None:
        if damage is not None:
            raise damage
        return []
    known = StoreFormat(FORMAT, store_id, name or (found.name if found else os.path.basename(root) or "store"))
    if found == known:
        return []
    kept = ""
    if os.path.exists(layout.format):
        kept = f", the old one kept as {repository.keep(root, layout.format)}"
    write_format(layout, known)
    durable.sync(layout.format)
    durable.sync(root)
    return [f"FORMAT written anew from the database{kept}"]


def repair(
    store: Store, *, progress: Callable[[str], None], places: Sequence[Source] = (), rebuilt: bool = False
) -> Repaired:
    """Repairs the store and verifies it; writers may go on meanwhile.

    `places` may have what the store itself lacks, and are asked in their order; `rebuilt` says that the database
    was just made anew, so that refs come from `repo.git`.
    """
    work = _Repair(store, progress, places)
    work.settings()
    with maintain.maintenance(store, wait=True):
        work.poison()
        work.database()
        work.lost(rebuilt=rebuilt)
    work.adopt()
    store.show()
    with maintain.maintenance(store, wait=True):
        progress("repair: loose objects")
        work.locks()
        work.derived()
        work.objects()
    work.refs()
    store.flush(always=True)  # not all that was mended is an operation
    progress("repair: checking the outcome")
    left = verify.verify(store, deep=True, progress=progress).findings
    return Repaired(work.done, left)


class _Repair:
    """Does one repair, step by step."""

    def __init__(self, store: Store, progress: Callable[[str], None], places: Sequence[Source]) -> None:
        self.store, self.progress, self.places = store, progress, places
        self.done: list[str] = []
        self.root = store.layout.root
        self.folder = os.path.join(store.layout.repo, "objects", "pack")

    def settings(self) -> None:
        """Mends what git needs before it can be asked anything."""
        for flaw in repository.flaws(self.store, deep=False):
            if flaw.kind in ("config", "head", "hook", "packed_refs") and flaw.mend is not None:
                self.done.append(flaw.mend())

    def poison(self) -> None:
        """Lets the store take writes again after a failed sync."""
        if _clear_poison(self.store):
            self.done.append("the store takes writes again")

    def database(self) -> None:
        """Rebuilds indexes, takes rows of the log from a backup, and sets refs to where a whole log left them."""
        store = self.store
        with store.lock_held():
            if self._unsound():
                with typed("repair of the database"):
                    store.db.run("REINDEX")
                if not self._unsound():
                    self.done.append("the database's indexes were made anew")
            broken = oplog.check_chain(store.db)
            while broken is not None and self._row(broken):
                before, broken = broken, oplog.check_chain(store.db)
                if broken == before:
                    break
            if broken is None and store.lost_ops() is None:
                self._replay()
                self.done += rows.renew(store)

    def _unsound(self) -> bool:
        with typed("check of the database"):
            return self.store.db.rows("PRAGMA integrity_check(1)") != [("ok",)]

    def _row(self, op: int) -> bool:
        """Takes an operation's row from a place whose row fits the chain on both sides."""
        previous = oplog.GENESIS
        if op > 1:
            row = self.store.db.row("SELECT chain FROM ops WHERE op = ?", (op - 1,))
            if row is None:
                return False
            previous = bytes(row[0])
        for place in self.places:
            try:
                db = place.opened()
                row = db.row(f"SELECT {oplog.RAW} FROM ops WHERE op = ?", (op,)) if db else None
                if row is None or oplog.link_raw(previous, *row[:5]) != row[5]:
                    continue
                whole = db.row("SELECT * FROM ops WHERE op = ?", (op,)) if db else None
            except RopewalkError:
                continue
            if whole is not None:
                marks = ", ".join("?" * len(whole))
                self.store.db.run(f"INSERT OR REPLACE INTO ops VALUES ({marks})", whole)
                if db is not None:
                    self._rows_of(op, db)
                self.done.append(f"operation {op} of the log was taken from {place.name}")
                return True
        return False

    def _rows_of(self, op: int, there: Database) -> None:
        """Takes the other rows of an operation along, where this store has none of them."""
        for table in ("changesets", "ref_values", "landed", "land_paths", "keys"):
            for row in there.rows(f"SELECT * FROM {table} WHERE op = ?", (op,)):
                marks = ", ".join("?" * len(row))
                self.store.db.run(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)

    def _replay(self) -> None:
        """Sets refs that are not where the operation log, which is whole, left them."""
        store = self.store
        wanted, present = verify.replayed(store), dict(store.refs())
        for name in sorted({n for n, target in wanted.items() if target is not None} | set(present)):
            target = wanted.get(name)
            if target == present.get(name):
                continue
            store.db.run("BEGIN IMMEDIATE")
            store.db.run("INSERT OR REPLACE INTO refs VALUES (?, ?, ?)", (name, target, store.last_op()))
            if target is not None:
                store.db.run("INSERT OR IGNORE INTO ref_values VALUES (?, ?, ?)", (name, target, store.last_op()))
            store.db.run("COMMIT")
            self.done.append(f"{name} set to {target or 'nothing'}, where the operation log left it")

    def lost(self, *, rebuilt: bool) -> None:
        """Takes over what `repo.git` still shows of operations that the database lost, as one new operation."""
        store = self.store
        lost, last, newest = store.lost_ops(), store.last_op(), verify.newest_op(store.db)
        if lost is None and newest > last:
            lost = last + 1, newest
        if lost is None and not rebuilt:
            store.lost = None
            return
        words = lost_words(lost) if lost else "the database was made anew"
        if lost is not None:
            self._restore_rows(lost)
            with store.lock_held():
                # their numbers were told to others and are not given again
                store.db.run("BEGIN IMMEDIATE")
                gone = rebuild.close_chain(store.db, max(lost[1], newest), only_after=last)
                store.db.run("COMMIT")
            if gone:
                self.done.append(f"{words}: {len(gone)} records and their keys are lost, and what only they named")
        store.lost = None
        rescued = self._rescue()
        moves = self._shown()
        projection.forget(store)
        if not moves and not rescued:
            with store.lock_held():
                self.done += rows.renew(store)
            return
        with store.transaction() as tx:
            tx.journal(rescued)
            op = tx.record("recover", ACTOR, moves, note=words)
        with store.lock_held():
            self.done += rows.renew(store)
        for move in moves:
            if move.old != move.new:
                self.done.append(f"{move.name} taken from repo.git at {move.new}, as operation {op}")

    def _rescue(self) -> list[NewObject]:
        """Gives for the journal every object that only unsynced files hold: loose ones and those in packs of ours."""
        store = self.store
        lasting: set[str] = set()
        for name in maintain.packs(store):
            lasting |= repository.indexed(store.layout.repo, os.path.join(self.folder, f"pack-{name}.idx"))
        known = lasting | {str(r[0]) for r in store.db.rows("SELECT id FROM object_journal")}
        found = []
        ids = set(store.objects.loose.ids())
        for name in packs.present(self.folder):
            ids |= repository.indexed(store.layout.repo, os.path.join(self.folder, f"{packs.PREFIX}{name}.idx"))
        for oid in sorted(ids - known):
            try:
                there = store.objects.find(oid)
            except RopewalkError:
                continue
            if there is not None and object_id(*there) == oid:
                found.append(self._place(oid, *there))
        return found

    def _restore_rows(self, lost: tuple[int, int]) -> None:
        """Takes rows of the log from a backup, as long as each goes on from the one before."""
        op = lost[0]
        while op <= lost[1] and self._row(op):
            op += 1

    def _shown(self) -> list[Move]:
        """Gives the moves that bring refs to what `repo.git` shows, where that is no value from before.

        A ref whose row is newer than the log's end is in it as a move to where it is, so that log and refs agree.
        """
        store = self.store
        logged, there = verify.replayed(store), dict(store.refs())
        moves = []
        for name in sorted({*verify.shown_refs(store.layout.repo), *there, *(n for n, t in logged.items() if t)}):
            if name.startswith("refs/ropewalk/"):
                continue
            shown, present = projection.read_ref(store.layout.repo, name), there.get(name)
            if shown is None or (present is not None and store.gave_ref(name, shown)):
                shown = present
            if shown != present and not verify.readable(store, shown or ""):
                shown = present
            if shown != present or logged.get(name) != shown:
                moves.append(Move(name, present, shown))
        return moves

    def adopt(self) -> None:
        """Takes what was moved forward in `repo.git` into the log (A30); a store that takes no writes waits with it."""
        store = self.store
        before = store.last_op()
        try:
            adoption.adopt(store, *(name for name, _ in store.refs()))
        except StoreIOError:
            return
        for op in oplog.after(store.db, before, 10_000):
            if op.actor == adoption.ACTOR:
                self.done += [f"{move.name} adopted at {move.new} as operation {op.op}" for move in op.body.moves]

    def locks(self) -> None:
        """Removes lock files of git processes that are gone."""
        for path in verify.stale_locks(self.store):
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            self.done.append(f"{os.path.relpath(path, self.root)} removed")

    def derived(self) -> None:
        """Makes indexes and other derived files anew."""
        for name in maintain.unindexed(self.store):
            if repository.build_index(self.store, os.path.join(self.folder, f"pack-{name}")):
                self.done.append(f"the index of pack-{name} was made anew")
        for flaw in repository.flaws(self.store, deep=True):
            if flaw.mend is not None:
                self.done.append(flaw.mend())
        if repository.unseen(self.store):
            projection.show_again(self.store)
            self.done.append("the journal's objects are shown in repo.git anew")

    def objects(self) -> None:
        """Puts back objects: first from copies within the store, then from the other places."""
        store = self.store
        survey = verify.Survey(store, lambda _: None)
        self._journal(survey)
        self._packs(survey)
        with store.lock_held():
            shown: set[str] = set()
            for name in packs.present(self.folder):
                shown |= repository.indexed(store.layout.repo, os.path.join(self.folder, f"{packs.PREFIX}{name}.idx"))
            counts = recovery.check_loose(store, shown=shown)
        if counts["restored"]:
            done = "1 object" if counts["restored"] == 1 else f"{counts['restored']} objects"
            self.done.append(f"{done} put back from the journal")
        for oid in survey.loose:
            kept = os.path.join("damaged", f"loose-{oid}")
            if os.path.exists(store.objects.loose.path(oid)):
                continue
            if os.path.exists(os.path.join(self.root, kept)):
                self.done.append(f"the damaged file of {oid}, of which there is no other copy here, is kept as {kept}")
            else:
                self.done.append(f"the damaged file of {oid}, which is packed too, was removed")
        self._elsewhere()
        for flaw in repository.derived(store, deep=True):
            if flaw.mend is not None:
                self.done.append(flaw.mend())

    def _journal(self, survey: verify.Survey) -> None:
        """Mends damaged rows of the journal; what nothing else holds is kept aside, so that the rest can be packed."""
        store = self.store
        for oid in survey.journal:
            found = self._other(oid) or first(self.places, oid)
            store.db.run("BEGIN IMMEDIATE")
            for seq, packed in store.db.rows("SELECT seq, packed FROM object_journal WHERE id = ?", (oid,)):
                try:
                    inflate(packed, oid)
                except Damaged:
                    if found is not None:
                        data = loose_bytes(found[0], found[1])
                        store.db.run("UPDATE object_journal SET packed = ? WHERE seq = ?", (data, seq))
                        self.done.append(f"the journal's copy of {oid} was mended")
                    else:
                        path = os.path.join(self.root, f"journal-{oid}")
                        repository.replace(path, bytes(packed))
                        kept = repository.keep(self.root, path)
                        store.db.run("DELETE FROM object_journal WHERE seq = ?", (seq,))
                        self.done.append(f"the journal's damaged copy of {oid} is kept as {kept}")
            store.db.run("COMMIT")

    def _other(self, oid: str) -> tuple[str, bytes] | None:
        """Gives an object from the store's own files, the journal left aside."""
        try:
            found = self.store.objects.loose.read(oid)
        except Damaged:
            found = None
        found = found or self.store.objects.packed(oid)
        return found if found is not None and object_id(*found) == oid else None

    def _packs(self, survey: verify.Survey) -> None:
        """Takes what is whole out of damaged packs, and puts those aside."""
        store = self.store
        damaged = {stem for stem in survey.packs if os.path.exists(os.path.join(self.folder, f"{stem}.idx"))}
        damaged |= {f"pack-{name}" for name in maintain.unindexed(store)}
        for stem in sorted(damaged):
            if stem.startswith(packs.PREFIX):
                packs.remove(self.folder, [stem[len(packs.PREFIX) :]])
                self.done.append(f"{stem}, whose objects are in the journal, was removed")
                continue
            self.progress(f"repair: {stem}")
            ids = repository.indexed(store.layout.repo, os.path.join(self.folder, f"{stem}.idx"))
            saved = [oid for oid in sorted(ids) if verify.readable(store, oid)]
            count = self._put((oid, *store.objects.find(oid)) for oid in saved)  # type: ignore[misc]
            count += self._unpack(stem)
            kept = [
                repository.keep(self.root, os.path.join(self.folder, f"{stem}{end}"))
                for end in (".idx", ".rev", ".bitmap", ".pack")
                if os.path.exists(os.path.join(self.folder, f"{stem}{end}"))
            ]
            store.objects.close()
            self.done.append(f"{count} objects taken out of {stem}, which is damaged and kept as {', '.join(kept)}")

    def _unpack(self, stem: str) -> int:
        """Lets git read on through a damaged pack, which needs no index, and takes what the store lacks."""
        path = os.path.join(self.folder, f"{stem}.pack")
        data = repository.read(path)
        if data is None:
            return 0
        folder = os.path.join(self.root, f"unpacking-{os.getpid()}")
        os.makedirs(os.path.join(folder, "pack"))
        try:
            git(self.store.layout.repo, "unpack-objects", "-r", "-q", stdin=data, ok=range(-64, 256), timeout=7200,
                extra_env={"GIT_OBJECT_DIRECTORY": folder})  # fmt: skip
            there = LooseStore(folder)
            return self._put(self._missing(there))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _missing(self, there: LooseStore) -> Iterable[tuple[str, str, bytes]]:
        for oid in there.ids():
            try:
                found = there.read(oid)
            except Damaged:
                continue
            if found is not None and not self._durable(oid):
                yield oid, *found

    def _durable(self, oid: str) -> bool:
        return self.store.db.row("SELECT 1 FROM object_journal WHERE id = ? LIMIT 1", (oid,)) is not None

    def _place(self, oid: str, kind: str, content: bytes) -> NewObject:
        """Puts an object's file in place; gives it for the journal, or synced when it is large."""
        packed = loose_bytes(kind, content)
        large = len(content) > FSYNC_SIZE
        self.store.objects.loose.put(oid, packed, sync=large)
        return NewObject(oid, kind, b"" if large else packed)

    def _put(self, found: Iterable[tuple[str, str, bytes]]) -> int:
        """Makes objects durable, some at a time, and gives how many."""
        count, part = 0, []
        for oid, kind, content in found:
            part.append(self._place(oid, kind, content))
            count += 1
            if len(part) == _BATCH:
                self._record(part)
                part = []
        self._record(part)
        return count

    def _record(self, part: list[NewObject]) -> None:
        if part:
            with self.store.transaction() as tx:
                tx.journal(part)

    def _elsewhere(self) -> None:
        """Fetches what is damaged or missing from the other places, until they have no more of it.

        A commit that comes back names a tree, which may be missing too.
        """
        if not self.places:
            return
        store = self.store
        changesets = [str(r[0]) for r in store.db.rows("SELECT id FROM changesets")]
        refused: set[str] = set()
        while True:
            survey = verify.Survey(store, lambda _: None)
            reach = verify.reached(store, survey.there, survey.unreadable(), changesets)
            wanted = (reach.bad | reach.missing) - refused
            if not wanted:
                return
            self.progress(f"repair: looking for {len(wanted)} objects")
            found = []
            for oid in sorted(wanted):
                there = first(self.places, oid)
                if there is None:
                    refused.add(oid)
                    continue
                found.append((oid, there.kind, there.content))
                self.done.append(f"{oid} ({there.kind}) taken from {there.where}")
            store.objects.forget()
            self._put(found)

    def refs(self) -> None:
        """Shows every ref anew, and moves away what is not the store's."""
        store = self.store
        for name, target in store.refs():
            if projection.read_ref(store.layout.repo, name) != target:
                self.done.append(f"{name} is shown anew")
        projection.doubt_refs(store)
        store.show()
        present = dict(store.refs())
        for name in verify.shown_refs(store.layout.repo):
            if name not in present and not name.startswith("refs/ropewalk/"):
                projection.park(store, name)
                self.done.append(f"{name} moved below refs/ropewalk/foreign/")


def loose_bytes(kind: str, content: bytes) -> bytes:
    """Gives the bytes of an object's loose file."""
    return deflate(b"%s %d\0" % (kind.encode("ascii"), len(content)) + content, tree=kind == "tree")


def _clear_poison(store: Store) -> bool:
    """Lifts the ban on writes after a failed sync: only once all is on disk (A21).

    The log's bytes are written again before they are synced: those that were lost count as clean, and a second sync
    would pass over them. Only then may they go into the database file, because after a power loss SQLite takes the
    log up to its first hole for newer than that file.
    """
    mark = os.path.join(store.layout.root, "poisoned")
    if not os.path.exists(mark):
        return False
    with store.lock_held():
        try:
            _write_again(store.layout.database + "-wal")
            # SQLite syncs the log before it moves a frame, and then the database file, which is not opened here (A16)
            frames, moved = store.db.checkpoint()
            if moved < frames:
                raise StoreIOError("a reader holds back the checkpoint", hint="end long reads and repair again")
            os.unlink(mark)
        except OSError as error:
            raise os_error(error, "sync of the store") from None
    return True


def _write_again(path: str) -> None:
    """Writes a file's bytes over themselves, so that the next sync takes all of them; nobody else may write it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        at = 0
        while part := os.pread(fd, 1 << 20, at):
            at += os.pwrite(fd, part, at)
    finally:
        os.close(fd)


def unblock(root: str, *, kill: bool) -> None:
    """Continues the process that holds the writer lock, or ends it with `kill`; the lock itself is never broken."""
    lock = WriterLock(Layout(root).lock)
    pid = lock.holder()
    if pid is None:
        if lock.try_acquire():
            lock.release()
            return
        raise NotFoundError("the process that holds the writer lock can't be seen", hint="it may be in a container")
    command, state = process_words(pid)
    try:
        os.kill(pid, signal.SIGKILL if kill else signal.SIGCONT)
    except PermissionError:
        raise StoreIOError(f"process {pid} ({command}, {state}) belongs to somebody else", pid=pid) from None
