"""Projection: what the database says of refs, and the journal's objects, written into `repo.git` for stock git.

The database is the truth. Objects go first, then refs, each by a rename, after the flush and outside the writer
lock, for all that landed in the meantime at once. Nothing of it is synced: after a power loss the next command
writes all of it anew, and a ref that is on disk before its objects would help nobody. The file `projected` keeps
the last operation and the last journal row shown, and the refs that had to wait. A ref that someone moved behind
the store's back is never silently erased (A30): a value that ropewalk never gave it is kept under
`refs/ropewalk/foreign/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
from blake3 import blake3

from ropewalk.core import durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.durable import write_all
from ropewalk.core.errors import os_error
from ropewalk.core.ids import HEX40
from ropewalk.store import packs
from ropewalk.store.lock import WriterLock
from ropewalk.store.loose import Damaged, inflate

if TYPE_CHECKING:
    from ropewalk.store.store import Store


_PACK_ROWS = 6
"""From so many new objects on a projection writes one pack instead of a file for each."""


class Shown(msgspec.Struct, frozen=True):
    """Is the content of the file `projected`: the last operation and the last journal row that are shown.

    `waiting` are refs that a git process kept from being shown, `check` is a sum over the rest.
    """

    op: int = 0
    waiting: tuple[str, ...] = ()
    seq: int = 0
    check: int = 0

    def checked(self) -> Shown:
        """Gives the same with its sum."""
        return Shown(self.op, self.waiting, self.seq, crc32(repr((self.op, self.waiting, self.seq)).encode()))


def read_shown(store: Store) -> Shown:
    """Gives what the file `projected` says; a missing or torn one means that nothing was shown."""
    try:
        with open(os.path.join(store.layout.root, "projected"), "rb") as file:
            found = msgspec.json.decode(file.read(), type=Shown)
        return found if found.check == found.checked().check else Shown()
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
    """Holds the projector's lock; gives False when another has it and `wait` is off, `E_BUSY` past the bound."""
    lock = WriterLock(os.path.join(store.layout.root, "projector.lock"), "the projector's lock")
    if wait:
        lock.acquire(store.lock_wait)
    elif not lock.try_acquire():
        yield False
        return
    try:
        yield True
    except OSError as error:
        raise os_error(error, "projection of refs") from None
    finally:
        lock.release()


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
        _show(store, [(oid, packed) for _, oid, packed in rows])
        last = rows[-1][0]
    if last == shown.seq or not store.db.con.get_autocommit():
        return shown
    after = msgspec.structs.replace(shown, seq=last)
    _note(store, after)
    return after


def restore(store: Store, rows: list[tuple[str, bytes]]) -> None:
    """Writes rows of the journal where git sees them once more, because what showed them is lost."""
    with _projecting(store, wait=True):
        _show(store, rows)


def _show(store: Store, rows: list[tuple[str, bytes]]) -> None:
    if len(rows) >= _PACK_ROWS:
        _pack(store, rows)
        return
    for oid, packed in rows:
        store.objects.loose.ensure(oid, packed)


def _whole(store: Store, oid: str, packed: bytes) -> bool:
    """Says whether a journal row holds its object; one that does not is passed over with a warning."""
    try:
        inflate(packed, oid)
        return True
    except Damaged as error:
        store.warnings.append(f"the journal's copy of {oid} is damaged: {error}; run `rw repair`")
        return False


def _pack(store: Store, rows: list[tuple[str, bytes]]) -> None:
    folder = os.path.join(store.layout.repo, "objects", "pack")
    names = packs.present(folder)
    try:
        packs.write(folder, packs.from_loose(rows))
    except Damaged:
        packs.write(folder, packs.from_loose(row for row in rows if _whole(store, *row)))
    if len(names) >= packs.MANY and (crowded := packs.crowded(folder, names)):
        packs.merge(folder, crowded)


def renew(store: Store, top: int) -> None:
    """Drops the projection's own packs after a checkpoint made a lasting one of the journal up to row `top`.

    What was journalled since is shown anew.
    """
    folder = os.path.join(store.layout.repo, "objects", "pack")
    with _projecting(store, wait=True):
        packs.sweep(folder)
        for name in os.listdir(store.layout.repo):
            if name.startswith("rw-ref-"):
                os.unlink(f"{store.layout.repo}/{name}")  # a killed projection's, because we have its lock
        before = packs.written(folder)
        if before:
            shown = read_shown(store)
            # the packs go last: what is only in them is written again before, perhaps as a pack of the same name
            _objects(store, msgspec.structs.replace(shown, seq=min(shown.seq, top)))
            after = packs.written(folder)
            packs.remove(folder, [name for name, file in before.items() if after.get(name) == file])


def show_again(store: Store) -> None:
    """Removes the projection's own packs, of which one is damaged or gone, and shows all of the journal anew."""
    folder = os.path.join(store.layout.repo, "objects", "pack")
    with _projecting(store, wait=True):
        packs.remove(folder, packs.present(folder))
        _objects(store, msgspec.structs.replace(read_shown(store), seq=0))


def forget(store: Store) -> None:
    """Makes the next projection write every ref again, after a power loss may have torn any (A14).

    The caller holds the writer lock and has put every object of the journal in place.
    """
    _note(store, Shown(seq=_last_seq(store)))


def doubt_refs(store: Store) -> None:
    """Makes the next projection look at every ref again; what of the journal is not shown yet stays to be shown."""
    with _projecting(store, wait=True):
        _note(store, Shown(seq=min(read_shown(store).seq, _last_seq(store))))


def _pending(store: Store, shown: Shown) -> list[tuple[str, str | None, int]]:
    rows = store.db.rows("SELECT name, target, op FROM refs WHERE op > ?", (shown.op,))
    for name in shown.waiting:
        rows += store.db.rows("SELECT name, target, op FROM refs WHERE name = ? AND op <= ?", (name, shown.op))
    return rows


def _project(store: Store, shown: Shown, rows: list[tuple[str, str | None, int]]) -> list[str]:
    repo = store.layout.repo
    warnings: list[str] = []
    waiting: list[str] = []
    number = 0
    _free_packed_refs(repo)
    top = max([shown.op, *(op for _, _, op in rows)])
    clashing: list[tuple[str, str]] = []
    # who reads refs while they are shown must find what moved in both places rather than in none (F15)
    for name, target, _ in sorted(rows, key=lambda row: (row[1] is None, row[0])):
        if os.path.exists(f"{repo}/{name}.lock"):
            waiting.append(name)
            warnings.append(f"{name} is locked by a git process; repo.git shows its new value later")
            continue
        found = read_ref(repo, name)
        # a file that a power loss tore reads as no ref, and goes where there is to be none
        if found == target and os.path.isfile(f"{repo}/{name}") == (target is not None):
            continue
        if found is not None and found != target and not store.gave_ref(name, found):
            if store.objects.packed(found) is None:
                warnings.append(f"{name} was set to {found} without ropewalk, which does not exist")
            else:
                _keep(repo, f"refs/ropewalk/foreign/{top}-{number}/{name[5:]}", found)
                number += 1
                warnings.append(f"{name} was moved to {found} without ropewalk; kept under refs/ropewalk/foreign/")
        if target is None:
            if not _remove(repo, name):
                waiting.append(name)
                warnings.append(f"packed-refs is locked by a git process; repo.git shows {name} until later")
        elif not _placed(repo, name, target):
            clashing.append((name, target))
    for name, target in clashing:
        # the place of `a` is free for `a/b` once `a` is removed (A31)
        if not _placed(repo, name, target):
            waiting.append(name)
            warnings.append(f"{name} clashes with a ref in repo.git; it is shown there later")
    _note(store, Shown(top, tuple(waiting), shown.seq))
    return warnings


def _note(store: Store, shown: Shown) -> None:
    """Writes the file `projected` in place, unsynced: after a power loss, or when torn, it is not believed."""
    fd = os.open(os.path.join(store.layout.root, "projected"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        data = msgspec.json.encode(shown.checked())
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
        return _packed_ref(repo, name)


def _packed_ref(repo: str, name: str) -> str | None:
    """Gives one ref of the file `packed-refs`, which may have thousands of others."""
    try:
        with open(f"{repo}/packed-refs", "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    end = data.find(b" %s\n" % name.encode("utf-8", "surrogateescape"))
    found = data[max(0, end - 40) : max(0, end)].decode("ascii", "replace")
    return found if end >= 40 and (end == 40 or data[end - 41 : end - 40] == b"\n") and HEX40.match(found) else None


def packed_refs(repo: str) -> dict[str, str]:
    """Gives the refs of the file `packed-refs`."""
    try:
        with open(f"{repo}/packed-refs", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(" ", 1) for line in file if line[0] not in "#^"]
    except FileNotFoundError:
        return {}
    return {row[1]: row[0] for row in rows if len(row) == 2}


def _put(repo: str, name: str, target: str) -> None:
    """Writes a ref by a rename, unsynced: after a power loss all are written anew from the database.

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
    finally:
        os.close(fd)
    os.makedirs(folder, exist_ok=True)
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


def _placed(repo: str, name: str, target: str) -> bool:
    """Writes a ref; gives False when another has its place as a folder, or as a file."""
    try:
        _put(repo, name, target)
    except (IsADirectoryError, NotADirectoryError, FileExistsError):
        return False
    return True


def _keep(repo: str, name: str, value: str) -> None:
    """Writes a ref that the database does not know; it is durable before what it was read from may go."""
    final = f"{repo}/{name}"
    durable.make_folders(os.path.dirname(final))
    durable.replace(final, value.encode("ascii") + b"\n", part=f"{repo}/rw-ref-{os.getpid()}")


def _spare(repo: str, name: str) -> str:
    """Gives a spare file that no ref is linked to."""
    base = f"{_spares(repo)}/{blake3(name.encode('utf-8')).hexdigest(length=8)}"
    for end in ("-0", "-1"):
        try:
            if os.stat(base + end).st_nlink == 1:
                return base + end
        except FileNotFoundError:
            return base + end
    os.unlink(base + "-0")
    return base + "-0"


def _spares(repo: str) -> str:
    folder = f"{repo}/ropewalk-spare"
    if not os.path.isdir(folder):
        os.makedirs(folder, exist_ok=True)
    return folder


def _prune(folder: str) -> None:
    """Removes a folder that holds nothing but empty folders, which git leaves behind."""
    for inner, _, _ in sorted(os.walk(folder), reverse=True):
        try:
            os.rmdir(inner)
        except OSError:
            return


def _remove(repo: str, name: str) -> bool:
    """Removes a ref; gives False when it stays in `packed-refs`, because that is locked."""
    path = f"{repo}/{name}"
    try:
        os.unlink(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        pass
    gone = _packed_ref(repo, name) is None or _unpack(repo, name)
    folder = os.path.dirname(path)
    while folder.count("/") > repo.count("/") + 2:
        try:
            os.rmdir(folder)
        except OSError:
            break
        folder = os.path.dirname(folder)
    return gone


def _unpack(repo: str, name: str) -> bool:
    """Takes a ref out of `packed-refs` under git's own lock of it; gives False when that is taken.

    The lock is a link to a file of ours, by which `_free_packed_refs` knows one that a killed process left.
    """
    lock, mine = f"{repo}/packed-refs.lock", f"{_spares(repo)}/packed-refs"
    os.close(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    try:
        os.link(mine, lock)
    except FileExistsError:
        return False
    try:
        with open(f"{repo}/packed-refs", "rb") as file:
            lines = file.readlines()
        kept, ours = [], False
        for line in lines:
            # a line that begins with ^ goes with the ref before it
            ours = ours if line.startswith(b"^") else line.split(b" ", 1)[-1].rstrip(b"\n") == os.fsencode(name)
            if not ours:
                kept.append(line)
        durable.replace(f"{repo}/packed-refs", b"".join(kept), part=f"{repo}/rw-ref-{os.getpid()}")
    finally:
        os.unlink(lock)
    return True


def _free_packed_refs(repo: str) -> None:
    """Removes a lock of `packed-refs` that a killed process of ours left.

    Whoever holds it holds the projector's lock too, and that is the caller's now.
    """
    lock = f"{repo}/packed-refs.lock"
    try:
        if os.path.samefile(lock, f"{repo}/ropewalk-spare/packed-refs"):
            os.unlink(lock)
    except FileNotFoundError:
        pass


def park(store: Store, name: str) -> None:
    """Moves a ref that ropewalk did not make below `refs/ropewalk/foreign/`, so that its commits stay reachable."""
    with _projecting(store, wait=True):
        value = read_ref(store.layout.repo, name)
        if value is not None:
            _keep(store.layout.repo, f"refs/ropewalk/foreign/{store.last_op()}/{name[5:]}", value)
        _remove(store.layout.repo, name)
    folder = os.path.dirname(f"{store.layout.repo}/{name}")
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    durable.sync(folder)
