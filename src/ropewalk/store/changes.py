"""Change lists and commits: what an agent says of a tree, checked entry by entry, made into a changeset."""

from __future__ import annotations

import os
import stat
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Annotated, BinaryIO, Literal

import msgspec
from blake3 import blake3

from ropewalk.core.errors import EmptyCommitError, InvalidError, NotFoundError
from ropewalk.core.ids import EMPTY_TREE, HEX40, check_path, check_ref, path_bytes, path_text, short_ref
from ropewalk.store import adoption, identity, revisions, trees
from ropewalk.store.loose import pieces
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store
from ropewalk.store.trees import Entry

MESSAGE_MAX = 1 << 20
_MODES = {"100644": trees.FILE, "100755": trees.EXEC, "file": trees.FILE, "exec": trees.EXEC}


class Content(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is a file's content in exactly one form: text, base64, a file on the caller's disk, or a blob's id."""

    inline: str | None = None
    base64: str | None = None
    file: str | None = None
    blob: str | None = None


class Change(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is one entry of a change list; `from` is the old path of a move, `mode` is 100644 or 100755."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=8192)]
    op: Literal["put", "delete", "move", "mode", "symlink"] = "put"
    content: Content | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    mode: str | None = None


class Advanced(msgspec.Struct, frozen=True):
    """Is the ref that a commit moved to itself."""

    name: str
    new: str
    already_applied: bool = False


class Committed(msgspec.Struct, frozen=True, omit_defaults=False):
    """Is the result of a commit: ids of the changeset, its tree and parent, and counts."""

    changeset: str
    root: str
    parent: str | None
    files_changed: int
    blobs_written: int
    advanced: Advanced | None = None
    replayed: bool = False


FileReader = Callable[[str], BinaryIO]
"""Opens a file that a request names."""


def content_bytes(content: Content | None, where: str, read_file: FileReader) -> bytes:
    """Gives the bytes of a content that is not a blob id; `E_INVALID` names the entry `where`."""
    given = (
        [] if content is None else [n for n in ("inline", "base64", "file", "blob") if getattr(content, n) is not None]
    )
    if content is None or len(given) != 1:
        raise InvalidError(
            f"{where} needs its content in exactly one form",
            hint='one of {"inline": TEXT}, {"base64": …}, {"file": PATH}, {"blob": ID}',
            entry=where,
            given=given,
        )
    if content.inline is not None:
        try:
            return content.inline.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidError(f"{where} has text that is not Unicode", entry=where) from None
    if content.base64 is not None:
        try:
            return b64decode(content.base64, validate=True)
        except ValueError:
            raise InvalidError(f"{where} has content that is not base64", entry=where) from None
    if content.file is not None:
        with read_file(content.file) as file:
            return file.read()
    raise InvalidError(f"{where} can't take a blob id here", entry=where)


def _blob(store: Store, content: Content | None, where: str, read_file: FileReader) -> bytes:
    """Gives the raw id of a content's blob, written unless it was given by its id."""
    if content is not None and content.blob is not None and content.inline is content.base64 is content.file is None:
        if not HEX40.match(content.blob) or store.objects.kind(content.blob) != "blob":
            raise InvalidError(f"{where}: there is no blob {content.blob!r}", entry=where, blob=content.blob)
        store.objects.keep(content.blob)
        return bytes.fromhex(content.blob)
    if content is not None and content.file is not None and content.inline is content.base64 is content.blob is None:
        with read_file(content.file) as file:
            return bytes.fromhex(store.objects.write_file(file))
    return bytes.fromhex(store.objects.write("blob", content_bytes(content, where, read_file)))


def apply(store: Store, root: str, changes: Sequence[Change], read_file: FileReader) -> str:
    """Gives the tree that a change list makes of `root`; `E_INVALID` names the entry that does not fit."""
    planned: dict[bytes, Entry | None] = {}
    objects = store.objects

    def put(path: bytes, entry: Entry | None) -> None:
        if path in planned:
            raise InvalidError(f"two entries for the path {path_text(path)!r}", path=path_text(path))
        planned[path] = entry

    for number, change in enumerate(changes):
        where = f"entry {number} ({change.path})"
        path = check_path(path_bytes(change.path), what=f"entry {number}: the path")
        present = trees.lookup(objects, root, path)
        if change.mode is not None and change.mode not in _MODES:
            raise InvalidError(f"{where} has the mode {change.mode!r}", hint="use 100644 or 100755", entry=where)
        mode = _MODES[change.mode] if change.mode else None
        if change.op == "put":
            kept = present[0] if present is not None and present[0] in (trees.FILE, trees.EXEC) else trees.FILE
            put(path, (mode or kept, _blob(store, change.content, where, read_file)))
        elif change.op == "symlink":
            put(path, (trees.LINK, _blob(store, change.content, where, read_file)))
        elif present is None and change.op != "move":
            raise InvalidError(f"{where}: there is no such path to {change.op}", entry=where, path=change.path)
        elif change.op == "delete":
            put(path, None)
        elif change.op == "mode":
            if mode is None or present is None or present[0] not in (trees.FILE, trees.EXEC):
                raise InvalidError(f"{where} needs a mode, and a file as its path", entry=where)
            put(path, (mode, present[1]))
        else:
            if change.from_ is None:
                raise InvalidError(f"{where} needs `from`, the path it moves", entry=where)
            source = check_path(path_bytes(change.from_), what=f"entry {number}: from")
            moved = trees.lookup(objects, root, source)
            if moved is None:
                raise InvalidError(f"{where}: there is no {change.from_!r} to move", entry=where, path=change.from_)
            if moved[0] == trees.TREE and (path + b"/").startswith(source + b"/"):
                raise InvalidError(f"{where} moves a folder into itself", entry=where)
            if moved[0] not in (trees.FILE, trees.EXEC) and (mode is not None or change.content is not None):
                raise InvalidError(
                    f"{where} moves a {trees.kind(moved)}, which takes no mode or content of a file", entry=where
                )
            put(source, None)
            blob = moved[1] if change.content is None else _blob(store, change.content, where, read_file)
            put(path, (mode or moved[0], blob))
    _check_shape(store, root, planned)
    edit = trees.Edit(objects, root)
    for path, entry in planned.items():
        edit.set(path, entry)
    return edit.write()


def _check_shape(store: Store, root: str, planned: dict[bytes, Entry | None]) -> None:
    """Refuses a file where a folder stays, and a path below something that stays a file."""
    gone = {path for path, entry in planned.items() if entry is None}
    for path, entry in planned.items():
        if entry is None:
            continue
        parts = path.split(b"/")
        for n in range(1, len(parts)):
            above = b"/".join(parts[:n])
            there = planned[above] if above in planned else trees.lookup(store.objects, root, above)
            if there is not None and (there[0] != trees.TREE or above in planned):
                raise InvalidError(
                    f"{path_text(path)!r} is below {path_text(above)!r}, which is a {trees.kind(there)}",
                    path=path_text(path),
                )
        there = trees.lookup(store.objects, root, path)
        if there is not None and there[0] == trees.TREE:
            stays = [p for p, _ in trees.walk(store.objects, there[1].hex(), path + b"/") if p not in gone]
            if stays:
                raise InvalidError(
                    f"{path_text(path)!r} is a folder that keeps {len(stays)} files", path=path_text(path)
                )


def check_message(message: str) -> bytes:
    """Gives a commit message as bytes with a line end; `E_INVALID` when it is empty or can't be one."""
    try:
        data = message.strip("\n").encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidError("the message is not Unicode text") from None
    if not data.strip():
        raise InvalidError("the message is empty", hint="say in a line what the change does and why")
    if b"\0" in data or len(data) > MESSAGE_MAX:
        raise InvalidError("the message holds a NUL byte or is longer than 1 MiB")
    return data + b"\n"


def digest(*parts: object) -> bytes:
    """Gives the hash of a request, by which a repeated idempotency key is compared."""
    return blake3(msgspec.json.encode(parts)).digest()


def commit(
    store: Store,
    *,
    agent: str,
    message: str,
    changes: Sequence[Change],
    parent: str | None,
    advance: str | None,
    key: str | None,
    read_file: FileReader,
) -> Committed:
    """Makes a changeset from a change list on a parent, and moves `advance` from the parent to it.

    Without `parent` it is the head of `advance`, else of the default branch, else there is none; an `advance` that
    does not exist yet is made. Raises
    `E_INVALID`, `E_EMPTY_COMMIT`, `E_NOT_FOUND`, `E_CAS_MISMATCH`, `E_KEY_REUSED`.
    """
    text = check_message(message)
    ref = check_ref(advance) if advance is not None else None
    if not changes:
        raise EmptyCommitError("the change list is empty")
    # without a key nothing is compared, and no file need be read for it
    plain = [_plain(change, read_file) for change in changes] if key is not None else None
    request = digest(agent, message, plain, parent, ref)
    again = store.replay("commit", key, request)
    if again is not None:
        store.vouch(again.op)
        return msgspec.structs.replace(msgspec.json.decode(again.result, type=Committed), replayed=True)
    if ref is not None:
        adoption.adopt(store, ref)
    base = _parent(store, parent, ref)
    root = store.objects.commit(base).tree if base else EMPTY_TREE
    store.objects.take_new()
    tree = apply(store, root, changes, read_file)
    if tree == root:
        raise EmptyCommitError("the changes leave the tree as it was", parent=base)
    result = write_changeset(store, agent=agent, message=text, tree=tree, parents=[base] if base else [],
                             root=root, advance=ref, key=key, request=request)  # fmt: skip
    return result


def write_changeset(
    store: Store,
    *,
    agent: str,
    message: bytes,
    tree: str,
    parents: Sequence[str],
    root: str,
    advance: str | None,
    key: str | None,
    request: bytes,
    kind: str = "commit",
) -> Committed:
    """Writes the commit object of a tree whose objects wait in `store.objects.new`, and records it durably."""
    objects = store.objects
    adoption.secure(store, *parents)
    changed = trees.diff(objects, root, tree)
    blobs = sum(o.kind == "blob" for o in objects.new.values())
    from ropewalk.core import clock

    who = identity.person(store.layout, agent, clock.now())
    oid = objects.write_commit(tree, parents, who, who, message, signer=identity.signer(store.layout, agent))
    new = objects.take_new()
    parent = parents[0] if parents else None
    with store.transaction() as tx:
        again = store.replay(kind, key, request)
        if again is not None:  # another process sent the same request meanwhile
            return msgspec.structs.replace(msgspec.json.decode(again.result, type=Committed), replayed=True)
        moves = []
        advanced = None
        if advance is not None:
            present = store.ref(advance)
            advanced = Advanced(short_ref(advance), oid, already_applied=present == oid)
            # a ref that does not exist yet begins at the new changeset
            moves = [] if present == oid else [Move(advance, parent if present is not None else None, oid)]
        tx.record(kind, agent, moves, [(oid, agent)], key=key)
        tx.journal(new)
        result = Committed(oid, tree, parent, len(changed), blobs, advanced)
        tx.remember(kind, key, request, msgspec.json.encode(result))
    return result


def _parent(store: Store, parent: str | None, ref: str | None) -> str | None:
    if parent is not None:
        return revisions.resolve(store, parent)
    default = store.ref(revisions.default_branch(store))
    return (store.ref(ref) or default) if ref is not None else default


def _plain(change: Change, read_file: FileReader) -> object:
    """Gives a change for the request's hash, with the hash of a file's bytes in the place of its name."""
    content = change.content
    if content is not None and content.file is not None:
        hashed = blake3()
        with read_file(content.file) as file:
            for part in pieces(file):
                hashed.update(part)
        return [change.path, change.op, hashed.hexdigest(), change.from_, change.mode]
    return change


def put_blobs(store: Store, agent: str, contents: Sequence[bytes]) -> list[str]:
    """Writes blobs durably and gives their ids, so that later change lists can name them."""
    store.objects.take_new()
    ids = [store.objects.write("blob", content) for content in contents]
    new = store.objects.take_new()
    with store.transaction() as tx:
        tx.record("blob_put", agent, note=f"{len(ids)} blobs")
        tx.journal(new)
    return ids


def read_disk_file(path: str) -> BinaryIO:
    """Opens a file of the caller's disk for a change list; `E_NOT_FOUND` or `E_INVALID` when it can't be read."""
    try:
        # without waiting: a pipe nobody writes to would hold the caller for ever, a device may have no end
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvalidError(f"{path!r} is not a regular file", path=path)
        return open(fd, "rb")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path!r}", path=path) from None
    except (OSError, ValueError) as error:
        raise InvalidError(f"{path!r} can't be read: {error}", path=path) from None
