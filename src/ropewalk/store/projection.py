"""Projection: what the database says of refs, and the journal's objects, written into `repo.git` for stock git.

The database is the truth. Objects go first, as loose files, unsynced. A ref is written by tmp, fsync, rename
and a sync of the folder, after the flush and outside the writer lock, for all that landed in the meantime at
once. The file `projected` keeps the last operation and the last journal row shown, and the refs that had to
wait. A ref that someone moved behind the store's back is never silently erased (A30): a value that ropewalk
never gave it is kept under `refs/ropewalk/foreign/`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import StoreCorruptError, os_error
from ropewalk.core.ids import HEX40
from ropewalk.core.process import git
from ropewalk.store import packs
from ropewalk.store.loose import Damaged, sync_folder, write_all

if TYPE_CHECKING:
    from ropewalk.store.store import Store


_PACK_ROWS = 6
"""From so many new objects on a projection writes one pack instead of a file for each."""


class Shown(msgspec.Struct, frozen=True):
    """Is the content of the file `projected`: the last operation and the last journal row that are shown.

    `waiting` are refs that a git process kept from being shown.
    """

    op: int = 0
    waiting: tuple[str, ...] = ()
    seq: int = 0


def read_shown(store: Store) -> Shown:
    """Gives what the file `projected` says; a missing or torn one means that nothing was shown."""
    try:
        with open(os.path.join(store.layout.root, "projected"), "rb") as file:
            return msgspec.json.decode(file.read(), type=Shown)
    except (FileNotFoundError, *UNREADABLE):
        return Shown()
    except OSError as error:
        raise os_error(error, "read of what is shown") from None


def project(store: Store, *, wait: bool = True) -> list[str]:
    """Brings `repo.git` to the database's state; gives warnings, one for each ref that has to wait.

    Who comes while another projects waits for it, and mostly finds the work done; without `wait` it is left.
    """
    shown = read_shown(store)
    if not _pending(store, shown) and _last_seq(store) <= shown.seq:
        return []
    with _projecting(store, wait=wait) as mine:
        if not mine:
            return []
        shown = _objects(store, read_shown(store))
        rows = _pending(store, shown)
        if rows:
            store.flush(max(op for _, _, op in rows))  # another's operation may be here before its own sync
        return _project(store, shown, rows) if rows else []


def expose(store: Store) -> None:
    """Puts the journal's objects where git sees them, and leaves refs as they are."""
    if _last_seq(store) > read_shown(store).seq:
        with _projecting(store, wait=True):
            _objects(store, read_shown(store))


@contextmanager
def _projecting(store: Store, *, wait: bool) -> Iterator[bool]:
    """Holds the projector's lock; gives False when another has it and `wait` is off."""
    path = os.path.join(store.layout.root, "projector.lock")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise os_error(error, "projection of refs") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    except OSError as error:
        raise os_error(error, "projection of refs") from None
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a child that another thread is starting may still hold the descriptor (A25)
        os.close(fd)


def _last_seq(store: Store) -> int:
    row = store.db.row("SELECT max(seq) FROM object_journal")
    return int(row[0] or 0) if row else 0


def _objects(store: Store, shown: Shown) -> Shown:
    """Writes journal rows that are not shown yet where git sees them; gives what is shown then.

    A few become loose files, many one pack. Inside a transaction of our own the rows may yet be taken back, so
    nothing is noted.
    """
    last = shown.seq
    while rows := store.db.rows(
        "SELECT seq, id, packed FROM object_journal WHERE seq > ? ORDER BY seq LIMIT 5000", (last,)
    ):
        if len(rows) < _PACK_ROWS:
            for _, oid, packed in rows:
                store.objects.loose.ensure(oid, packed)
        else:
            _pack(store, [(oid, packed) for _, oid, packed in rows])
        last = rows[-1][0]
    if last == shown.seq or not store.db.con.get_autocommit():
        return shown
    after = msgspec.structs.replace(shown, seq=last)
    _note(store, after)
    return after


def _pack(store: Store, rows: list[tuple[str, bytes]]) -> None:
    folder = os.path.join(store.layout.repo, "objects", "pack")
    names = packs.present(folder)
    try:
        packs.write(folder, packs.from_loose(rows))
    except Damaged as error:
        raise StoreCorruptError(f"the object journal is damaged: {error}") from None
    if len(names) >= packs.MANY and (crowded := packs.crowded(folder, names)):
        packs.merge(folder, crowded)


def renew(store: Store, top: int) -> None:
    """Drops the projection's own packs after a checkpoint made a lasting one of the journal up to row `top`.

    What was journalled since is shown anew.
    """
    folder = os.path.join(store.layout.repo, "objects", "pack")
    with _projecting(store, wait=True):
        packs.sweep(folder)
        names = packs.present(folder)
        if names:
            shown = read_shown(store)
            # the packs go last: what is only in them is written again before
            _objects(store, msgspec.structs.replace(shown, seq=min(shown.seq, top)))
            packs.remove(folder, names)


def forget(store: Store) -> None:
    """Makes the next projection write every ref again, after a power loss may have torn any (A14).

    The caller has put every object of the journal in place.
    """
    _note(store, Shown(seq=_last_seq(store)))


def _pending(store: Store, shown: Shown) -> list[tuple[str, str | None, int]]:
    rows = store.db.rows("SELECT name, target, op FROM refs WHERE op > ?", (shown.op,))
    for name in shown.waiting:
        rows += store.db.rows("SELECT name, target, op FROM refs WHERE name = ? AND op <= ?", (name, shown.op))
    return rows


def _project(store: Store, shown: Shown, rows: list[tuple[str, str | None, int]]) -> list[str]:
    repo = store.layout.repo
    warnings: list[str] = []
    waiting: list[str] = []
    folders: set[str] = set()
    foreign: list[tuple[str, str]] = []
    # removals first, so that `a/b` may take the place of `a` (A31)
    for name, target, _ in sorted(rows, key=lambda row: (row[1] is not None, row[0])):
        if os.path.exists(f"{repo}/{name}.lock"):
            waiting.append(name)
            warnings.append(f"{name} is locked by a git process; repo.git shows its new value later")
            continue
        found = read_ref(repo, name)
        if found == target and (target is None or os.path.isfile(f"{repo}/{name}")):
            continue
        if found is not None and found != target and not store.gave_ref(name, found):
            if store.objects.packed(found) is None:
                warnings.append(f"{name} was set to {found} without ropewalk, which does not exist")
            else:
                foreign.append((name, found))
                warnings.append(f"{name} was moved to {found} without ropewalk; kept under refs/ropewalk/foreign/")
        if target is None:
            if not _remove(repo, name, folders):
                waiting.append(name)
                warnings.append(f"packed-refs is locked by a git process; repo.git shows {name} until later")
            continue
        try:
            _put(repo, name, target, folders)
        except (IsADirectoryError, NotADirectoryError, FileExistsError):
            waiting.append(name)
            warnings.append(f"{name} clashes with a ref in repo.git; it is shown there later")
    top = max([shown.op, *(op for _, _, op in rows)])
    for number, (name, value) in enumerate(foreign):
        _put(repo, f"refs/ropewalk/foreign/{top}-{number}/{name[5:]}", value, folders)
    for folder in folders:
        if os.path.isdir(folder):
            sync_folder(folder)
    _note(store, Shown(top, tuple(waiting), shown.seq))
    return warnings


def _note(store: Store, shown: Shown) -> None:
    """Writes the file `projected` in place, unsynced: after a power loss, or when torn, it is not believed."""
    fd = os.open(os.path.join(store.layout.root, "projected"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        data = msgspec.json.encode(shown)
        write_all(fd, data.ljust(os.fstat(fd).st_size))
    finally:
        os.close(fd)


def read_ref(repo: str, name: str) -> str | None:
    """Gives the value git would see for a ref; None when there is none or the file is torn (A14)."""
    try:
        with open(f"{repo}/{name}", "rb") as file:
            text = file.read(64).strip().decode("ascii", "replace")
        return text if HEX40.match(text) else None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return packed_refs(repo).get(name)


def packed_refs(repo: str) -> dict[str, str]:
    """Gives the refs of the file `packed-refs`."""
    try:
        with open(f"{repo}/packed-refs", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(" ", 1) for line in file if line[0] not in "#^"]
    except FileNotFoundError:
        return {}
    return {row[1]: row[0] for row in rows if len(row) == 2}


def _put(repo: str, name: str, target: str, folders: set[str]) -> None:
    """Writes a ref by a synced file and a rename.

    Two spare files a ref take turns, each linked under its own name too, so that a busy branch makes and frees
    no inode: ext4 passes over recently freed ones, one by one, at each new file.
    """
    final = f"{repo}/{name}"
    folder = os.path.dirname(final)
    part = f"{repo}/rw-ref-{os.getpid()}"
    spare = _spare(repo, name)
    fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, target.encode("ascii") + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    if not os.path.isdir(folder):
        os.makedirs(folder, exist_ok=True)
        above = folder
        while above != repo:
            above = os.path.dirname(above)
            folders.add(above)
    if os.path.isdir(final):
        _prune(final)
    try:
        os.link(spare, part)
    except FileExistsError:
        os.unlink(part)
        os.link(spare, part)
    try:
        os.rename(part, final)
    except BaseException:
        os.unlink(part)
        raise
    folders.add(folder)


def _spare(repo: str, name: str) -> str:
    """Gives a spare file that no ref is linked to."""
    folder = f"{repo}/ropewalk-spare"
    if not os.path.isdir(folder):
        os.makedirs(folder, exist_ok=True)
    base = f"{folder}/{blake3(name.encode('utf-8')).hexdigest(length=8)}"
    for end in ("-0", "-1"):
        try:
            if os.stat(base + end).st_nlink == 1:
                return base + end
        except FileNotFoundError:
            return base + end
    os.unlink(base + "-0")
    return base + "-0"


def _prune(folder: str) -> None:
    """Removes a folder that holds nothing but empty folders, which git leaves behind."""
    for inner, _, _ in sorted(os.walk(folder), reverse=True):
        try:
            os.rmdir(inner)
        except OSError:
            return


def _remove(repo: str, name: str, folders: set[str]) -> bool:
    """Removes a ref; gives False when it stays in `packed-refs`, because that is locked."""
    path = f"{repo}/{name}"
    try:
        os.unlink(path)
        folders.add(os.path.dirname(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        pass
    if name in packed_refs(repo):
        git(repo, "update-ref", "--no-deref", "--stdin", stdin=f"delete {name}\n".encode(), timeout=30, ok=(0, 128))
    folder = os.path.dirname(path)
    while folder.count("/") > repo.count("/") + 2:
        try:
            os.rmdir(folder)
        except OSError:
            break
        folders.discard(folder)
        folder = os.path.dirname(folder)
    return name not in packed_refs(repo)


def park(store: Store, name: str) -> None:
    """Moves a ref that ropewalk did not make below `refs/ropewalk/foreign/`, so that its commits stay reachable."""
    folders: set[str] = set()
    value = read_ref(store.layout.repo, name)
    if value is not None:
        _put(store.layout.repo, f"refs/ropewalk/foreign/{store.last_op()}/{name[5:]}", value, folders)
    _remove(store.layout.repo, name, folders)
    for folder in folders:
        if os.path.isdir(folder):
            sync_folder(folder)
