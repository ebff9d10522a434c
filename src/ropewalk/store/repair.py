"""Repair: puts back what the journal or a pack still has, shows refs anew, and says what it could not mend."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import msgspec

from ropewalk.core.errors import NotFoundError, StoreIOError, os_error
from ropewalk.store import adoption, maintain, oplog, projection, recovery, verify
from ropewalk.store.layout import Layout
from ropewalk.store.lock import WriterLock, process_words
from ropewalk.store.store import Store


class Repaired(msgspec.Struct, frozen=True):
    """Is what a repair did, and the findings it could not mend."""

    done: list[str]
    left: list[verify.Finding]


def repair(store: Store, *, progress: Callable[[str], None]) -> Repaired:
    """Repairs the store and verifies it; writers may go on meanwhile."""
    done: list[str] = []
    _adopt_foreign(store, done)
    store.show()
    with maintain.maintenance(store, wait=True):
        progress("repair: loose objects")
        with store.lock_held():
            counts = recovery.check_loose(store)
        if counts["restored"]:
            done.append(f"{counts['restored']} objects put back from the journal")
        for path in verify.stale_locks(store):
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            done.append(f"{os.path.relpath(path, store.layout.root)} removed")
        if _mend_packs(store):
            done.append("a pack's index was made anew")
        if _clear_poison(store):
            done.append("the store takes writes again")
    for name, target in store.refs():
        if projection.read_ref(store.layout.repo, name) != target:
            done.append(f"{name} is shown anew")
    projection.forget(store)
    store.show()
    _park_foreign(store, done)
    progress("repair: checking the outcome")
    left = verify.verify(store, deep=True, progress=progress).findings
    return Repaired(done, left)


def _mend_packs(store: Store) -> bool:
    """Makes the missing or damaged index of a whole pack anew."""
    mended = False
    folder = os.path.join(store.layout.repo, "objects", "pack")
    from ropewalk.core.process import git

    for name in [*maintain.packs(store), *maintain.unindexed(store)]:
        path = os.path.join(folder, f"pack-{name}")
        good = (
            os.path.exists(f"{path}.idx")
            and not git(store.layout.repo, "show-index", stdin=_read(f"{path}.idx"), ok=range(256)).code
        )
        if not good:
            if os.path.exists(f"{path}.idx"):
                os.unlink(f"{path}.idx")
            mended = (
                git(store.layout.repo, "index-pack", f"{path}.pack", ok=range(256), timeout=7200).code == 0 or mended
            )
            maintain.sync_packs(store, [name])
    return mended


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _clear_poison(store: Store) -> bool:
    """Lifts the ban on writes after a failed sync: only once all is in the database file and synced (A21)."""
    mark = os.path.join(store.layout.root, "poisoned")
    if not os.path.exists(mark):
        return False
    with store.lock_held():
        frames, moved = store.db.checkpoint()
        if moved < frames:
            raise StoreIOError("a reader holds back the checkpoint", hint="end long reads and repair again")
        try:
            # the database file itself was synced by SQLite's checkpoint and is not opened here (A16)
            fd = os.open(store.layout.database + "-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            os.unlink(mark)
        except OSError as error:
            raise os_error(error, "sync of the store") from None
    return True


def _adopt_foreign(store: Store, done: list[str]) -> None:
    """Takes what was moved forward in `repo.git` into the log (A30); a store that takes no writes waits with it."""
    before = store.last_op()
    try:
        adoption.adopt(store, *(name for name, _ in store.refs()))
    except StoreIOError:
        return
    for op in oplog.after(store.db, before, 10_000):
        if op.actor == adoption.ACTOR:
            done += [f"{move.name} adopted at {move.new} as operation {op.op}" for move in op.body.moves]


def _park_foreign(store: Store, done: list[str]) -> None:
    """Keeps refs that others made in `repo.git` under `refs/ropewalk/foreign/` and takes them out of the way."""
    present = dict(store.refs())
    for name in verify.shown_refs(store.layout.repo):
        if name in present or name.startswith("refs/ropewalk/"):
            continue
        projection.park(store, name)
        done.append(f"{name} moved below refs/ropewalk/foreign/")


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
