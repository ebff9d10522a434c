"""Looking after the store: checkpoint of the journal into packs, consolidation, backup and restore.

One flock (`maintain.lock`) keeps checkpoints, consolidation and backups apart from each other; writers and
readers never wait for any of them, but for the moment in which journal rows are deleted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from hashlib import sha1
from typing import IO

import msgspec

from ropewalk.core import durable
from ropewalk.core.errors import InvalidError, NotFoundError, StoreIOError, os_error
from ropewalk.core.process import git, git_env, git_program, holders
from ropewalk.store import projection
from ropewalk.store.database import Database, typed
from ropewalk.store.layout import read_format
from ropewalk.store.lock import WriterLock
from ropewalk.store.loose import Damaged, inflate
from ropewalk.store.packs import entry_head
from ropewalk.store.store import JOURNAL_BYTES, JOURNAL_OBJECTS, Store

PACKS_MAX = 32
_LEFTOVER_SECONDS = 3600
_DERIVED = ("commit-graph", "commit-graphs", "multi-pack-index")
"""Is not copied: stock git may write it anew at any moment, of objects that came after the copy of the database."""


class Collected(msgspec.Struct, frozen=True):
    """Is what a `gc` did: counts of objects packed from the journal, packs before and after, bytes on disk."""

    packed: int
    packs_before: int
    packs_after: int
    bytes_before: int
    bytes_after: int


@contextmanager
def maintenance(store: Store, *, wait: bool) -> Iterator[bool]:
    """Holds the maintenance lock; gives False at once when another has it and `wait` is off.

    Who waits does so for as long as the other is at work; `E_BUSY` when it is stopped.
    """
    lock = WriterLock(os.path.join(store.layout.root, "maintain.lock"), "the maintenance lock")
    if wait:
        lock.acquire(store.lock_wait, patient=True)
    elif not lock.try_acquire():
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def checkpoint_if_due(store: Store) -> None:
    """Checkpoints when the journal passed 20,000 objects or 64 MiB, and puts more than 32 packs into one (A13).

    Leaves it to another who is at it.
    """
    row = store.db.row("SELECT count(*), sum(length(packed)) FROM object_journal")
    count, size = (int(row[0]), int(row[1] or 0)) if row else (0, 0)
    due = count >= JOURNAL_OBJECTS or size >= JOURNAL_BYTES
    if not due and len(packs(store)) <= PACKS_MAX:
        return
    with maintenance(store, wait=False) as mine:
        if mine and due:
            checkpoint(store)
        if mine and len(packs(store)) > PACKS_MAX:
            consolidate(store)


def checkpoint(store: Store) -> int:
    """Packs the journal's objects, then forgets the rows and the loose twins; gives how many objects.

    The caller holds the maintenance lock. The pack is built from journal bytes and synced before a row goes
    (A2); SQLite's own checkpoint follows under the writer lock, PASSIVE (A20).
    """
    row = store.db.row("SELECT max(seq), count(DISTINCT id) FROM object_journal")
    top, count = (int(row[0] or 0), int(row[1])) if row else (0, 0)
    ids: list[str] = []
    if count:
        try:
            ids = _pack_journal(store, top, count)
        except StoreIOError:
            # git compares with what is loose, and ends at a damaged file
            if not _mend_loose(store, top):
                raise
            ids = _pack_journal(store, top, count)
    with store.lock_held():
        if top:
            store.db.run("BEGIN IMMEDIATE")
            store.db.run("DELETE FROM object_journal WHERE seq <= ?", (top,))
            store.db.run("COMMIT")
        store.checkpoint()
    if top:
        projection.renew(store, top)
    for oid in ids:
        store.objects.loose.unlink(oid)
    return count


def _mend_loose(store: Store, top: int) -> int:
    """Writes damaged loose files again from the journal and gives how many there were."""
    last = mended = 0
    while rows := store.db.rows(
        "SELECT seq, id, packed FROM object_journal WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT 500", (last, top)
    ):
        for seq, oid, packed in rows:
            last = seq
            try:
                store.objects.loose.check(oid)
            except Damaged:
                store.objects.loose.put(oid, packed)
                mended += 1
    return mended


def _pack_journal(store: Store, top: int, count: int) -> list[str]:
    """Writes a pack of the journal's objects through `git index-pack`, which checks each of them, and syncs it."""
    child = subprocess.Popen(
        [git_program(), f"--git-dir={store.layout.repo}", "index-pack", "--stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=git_env(),
    )
    assert child.stdin is not None
    seen: set[str] = set()
    try:
        pack = _Pack(child.stdin, count)
        last = 0
        while True:
            rows = store.db.rows(
                "SELECT seq, id, packed FROM object_journal WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT 500",
                (last, top),
            )
            if not rows:
                break
            for seq, oid, packed in rows:
                last = seq
                if oid not in seen:
                    seen.add(oid)
                    pack.add(*inflate(packed, oid))
        pack.end()
    except BrokenPipeError:
        pass
    except Damaged as error:
        child.kill()
        raise StoreIOError(f"the object journal is damaged: {error}", hint="run `rw verify --deep`") from None
    finally:
        try:
            child.stdin.close()
        except BrokenPipeError:
            pass  # git ended early and says why
        child.stdin = None
        out, err = child.communicate(timeout=600)
    if child.returncode != 0:
        raise StoreIOError(
            f"git index-pack: {err.decode('utf-8', 'replace').strip()}", operation="checkpoint", file="repo.git"
        )
    name = out.decode("ascii", "replace").split()[-1]
    sync_packs(store, fresh=[name])
    return sorted(seen)


class _Pack:
    """Writes a pack stream of whole objects."""

    def __init__(self, out: IO[bytes], count: int) -> None:
        self._out = out
        self._hash = sha1(usedforsecurity=False)
        self._put(b"PACK" + (2).to_bytes(4, "big") + count.to_bytes(4, "big"))

    def add(self, kind: str, content: bytes) -> None:
        self._put(entry_head(kind, len(content)) + zlib.compress(content, 1))

    def end(self) -> None:
        self._out.write(self._hash.digest())
        self._out.flush()

    def _put(self, data: bytes) -> None:
        self._hash.update(data)
        self._out.write(data)


def packs(store: Store) -> list[str]:
    """Gives the names (hashes) of the repository's lasting packs that git sees: those with an index."""
    folder = os.path.join(store.layout.repo, "objects", "pack")
    return sorted(n[5:-4] for n in os.listdir(folder) if n.startswith("pack-") and n.endswith(".idx"))


def unindexed(store: Store) -> list[str]:
    """Gives the names of packs without an index: left by a killed `gc` or import, or their index was lost."""
    names = os.listdir(os.path.join(store.layout.repo, "objects", "pack"))
    return sorted(
        n[5:-5] for n in names if n.startswith("pack-") and n.endswith(".pack") and f"{n[:-5]}.idx" not in names
    )


def sync_packs(store: Store, *, fresh: Collection[str] = ()) -> None:
    """Syncs the names of packs and their indexes, whose bytes git synced before it put them in place.

    A sync that fails takes away the `fresh` packs, whose objects are elsewhere too: what git finds there it does not
    write again, and a second sync would say that all is well.
    """
    folder = os.path.join(store.layout.repo, "objects", "pack")
    try:
        durable.sync(folder)
    except OSError as error:
        for name in fresh:
            for end in ("idx", "rev", "pack"):
                _unlink(os.path.join(folder, f"pack-{name}.{end}"))
        raise os_error(error, "sync of a pack") from None


def secure_packs(store: Store) -> None:
    """Syncs all lasting packs, bytes and names, because another tool may have put one there that it did not sync."""
    folder = os.path.join(store.layout.repo, "objects", "pack")
    for name in os.listdir(folder):
        try:
            if name.startswith("pack-"):
                durable.sync(os.path.join(folder, name))
        except FileNotFoundError:
            pass  # a gc has put it into another, synced
        except OSError as error:
            raise os_error(error, "sync of a pack") from None
    sync_packs(store)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def consolidate(store: Store) -> None:
    """Writes all packed objects into one pack, then removes the packs before it; the caller holds the lock."""
    repo = store.layout.repo
    folder = os.path.join(repo, "objects", "pack")
    before = packs(store)
    # packed objects alone: a loose file may be damaged, and its journal row is what the next checkpoint packs (A2)
    packed: set[str] = set()
    for name in before:
        with open(os.path.join(folder, f"pack-{name}.idx"), "rb") as file:
            rows = git(repo, "show-index", stdin=file.read(), timeout=600).out.decode("ascii").splitlines()
        packed.update(row.split()[1] for row in rows)
    listing = "".join(f"{oid}\n" for oid in sorted(packed)).encode("ascii")
    out = git(
        repo, "-c", "pack.threads=2", "pack-objects", "--quiet", "--non-empty", "--delta-base-offset",
        "--no-write-bitmap-index", os.path.join(folder, "pack"), stdin=listing, timeout=7200,
    ).text().split()  # fmt: skip
    if not out:
        return
    sync_packs(store, fresh=set(out).difference(before))
    _unlink(os.path.join(folder, "multi-pack-index"))
    for name in before:
        if name not in out and not os.path.exists(os.path.join(folder, f"pack-{name}.keep")):
            for end in ("idx", "rev", "bitmap", "mtimes", "pack"):
                _unlink(os.path.join(folder, f"pack-{name}.{end}"))
    journalled = {str(r[0]) for r in store.db.rows("SELECT id FROM object_journal")}
    for oid in store.objects.loose.ids():
        if oid in packed and oid not in journalled:
            store.objects.loose.unlink(oid)


def derive(store: Store) -> bool:
    """Writes git's commit-graph anew, for faster history; gives whether there was anything to write."""
    # of the store's refs alone: one that another tool made may name what is not there
    tips = sorted({target for _, target in store.refs() if store.objects.kind(target) == "commit"})
    listing = "".join(f"{oid}\n" for oid in tips).encode("ascii")
    info = os.path.join(store.layout.repo, "objects", "info")
    lock = os.path.join(info, "commit-graph.lock")
    if os.path.exists(lock) and not holders(os.stat(lock)):
        _unlink(lock)  # of a git that was killed: ours run one at a time, under the maintenance lock
    store.git("commit-graph", "write", "--stdin-commits", "--changed-paths", stdin=listing, timeout=3600)
    return os.path.exists(os.path.join(info, "commit-graph"))


def disk_bytes(folder: str) -> int:
    """Gives the bytes that the files below a folder take on disk."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def collect(store: Store) -> Collected:
    """Checkpoints, puts all packs into one, and writes the commit-graph; `E_BUSY` never, it waits its turn."""
    from ropewalk.store import leftovers

    with maintenance(store, wait=True):
        before, size = len(packs(store)), disk_bytes(store.layout.root)
        leftovers.clear(store)
        packed = checkpoint(store)
        _sweep(store.objects.loose.folder)
        if len(packs(store)) > 1:
            consolidate(store)
        derive(store)
        with store.lock_held():
            store.checkpoint()
        return Collected(packed, before, len(packs(store)), size, disk_bytes(store.layout.root))


def _sweep(folder: str) -> None:
    """Removes what killed writers left half written; a living one holds such a file for moments."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if name.startswith("tmp_") and time.time() - os.stat(path).st_mtime > _LEFTOVER_SECONDS:
                os.unlink(path)
        except FileNotFoundError:
            pass


def backup(store: Store, folder: str) -> int:
    """Copies the store, consistent as of one operation, while writers write; gives that operation's number.

    The database is copied first, by SQLite's own backup, with the journal in it; packs can't go meanwhile
    because the maintenance lock is held.
    """
    folder = os.path.abspath(folder)
    if os.path.lexists(folder):
        raise InvalidError(f"{folder} exists already", hint="name a folder that does not exist", path=folder)
    part = f"{folder}.new-{os.getpid()}"
    try:
        durable.make_folders(os.path.dirname(folder))
        os.mkdir(part)
        with maintenance(store, wait=True):
            store.flush()
            there = Database(os.path.join(part, "store.db"), create=True)
            with typed("backup of the database"), there.con.backup("main", store.db.con, "main") as copy:
                copy.step()
            there.run("BEGIN IMMEDIATE")
            there.set_meta("boot_id", "backup")  # opening the copy puts loose objects back from its journal
            there.run("COMMIT")
            row = there.row("SELECT max(op) FROM ops")
            refs = dict(there.rows("SELECT name, target FROM refs WHERE target IS NOT NULL"))
            there.checkpoint()
            there.close()
            shutil.copytree(
                store.layout.repo,
                os.path.join(part, "repo.git"),
                symlinks=True,
                ignore=shutil.ignore_patterns("tmp_*", "*.lock", "rw-ref-*", *_DERIVED),
                copy_function=_copy_if_there,
            )
            _set_refs(store, os.path.join(part, "repo.git"), refs)
        for name in ("FORMAT", "authors.toml"):
            if os.path.exists(os.path.join(store.layout.root, name)):
                shutil.copy2(os.path.join(store.layout.root, name), os.path.join(part, name))
        for name in ("spool", "runs"):
            os.mkdir(os.path.join(part, name), 0o700)
        durable.install(part, folder)
    except shutil.Error as error:
        raise StoreIOError(f"the backup was not made: {error.args[0][0][-1]}", operation="backup") from None
    except OSError as error:
        raise os_error(error, "backup") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return int(row[0] or 0) if row else 0


def _set_refs(store: Store, repo: str, refs: dict[str, str]) -> None:
    """Puts a copied repository's refs where the copied database has them; what others made there stays."""
    for folder, _, files in os.walk(f"{repo}/refs", topdown=False):
        for file in files:
            name = os.path.relpath(os.path.join(folder, file), repo)
            value = projection.read_ref(repo, name)
            if name not in refs and value is not None and store.gave_ref(name, value):
                os.unlink(f"{repo}/{name}")  # made, or not removed yet, while the copy was made
        if os.path.dirname(folder) not in (repo, f"{repo}/refs") and not os.listdir(folder):
            os.rmdir(folder)  # it may stand where a ref has to
    for name, target in refs.items():
        path = f"{repo}/{name}"
        if projection.read_ref(repo, name) != target:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii") as out:
                out.write(f"{target}\n")


def _copy_if_there(source: str, target: str) -> None:
    """Copies a file; one that went meanwhile was a merge's own, or is in the journal or a pack that was copied."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        pass


def restore(folder: str, root: str) -> None:
    """Makes a store at a path that does not exist from a backup's folder."""
    read_format(folder)
    if not os.path.exists(os.path.join(folder, "store.db")):
        raise NotFoundError(f"{folder} is not a backup", path=folder)
    root = os.path.abspath(root)
    if os.path.lexists(root):
        raise InvalidError(f"{root} exists already", hint="name a folder that does not exist", path=root)
    part = f"{root}.new-{os.getpid()}"
    try:
        durable.make_folders(os.path.dirname(root))
        shutil.copytree(folder, part, symlinks=True)
        durable.install(part, root)
    except shutil.Error as error:
        raise StoreIOError(f"the backup was not restored: {error.args[0][0][-1]}", operation="restore") from None
    except OSError as error:
        raise os_error(error, "restore") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    with Store(root):
        pass
