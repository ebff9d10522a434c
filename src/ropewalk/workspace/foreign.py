"""What is read of an agent's own git directory: untrusted input, read as data and bounded, never run.

Its HEAD, branches and stash, its index (through a copy, by our git with our git directory), its ignore list,
and the message of its last commit. What can't be read is None: the tree on disk is what counts most.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from ropewalk.core.durable import write_all
from ropewalk.core.errors import RopewalkError, StoreCorruptError
from ropewalk.core.ids import HEX40, path_bytes
from ropewalk.core.process import ChildTimeout
from ropewalk.store.loose import Damaged, LooseStore
from ropewalk.store.objects import Commit, parse_commit
from ropewalk.store.store import Store
from ropewalk.store.trees import Entry
from ropewalk.workspace import state
from ropewalk.workspace.files import Files
from ropewalk.workspace.state import Workspace

INDEX_MAX = 512 << 20
_REF = re.compile(rb"refs/[A-Za-z0-9._/+@=,%-]+\Z")
_FOLDERS = (b"refs/heads", b"refs/stash")


class Staged(NamedTuple):
    """Is one entry of the agent's index; `skipped` says that sparse checkout keeps it off the disk."""

    entry: Entry
    skipped: bool


def read_index(store: Store, ws: Workspace, files: Files) -> tuple[dict[bytes, Staged] | None, str | None]:
    """Gives (entries, path of our copy) of the agent's index; (None, None) when it is missing or damaged."""
    data = files.read(b".git/index", INDEX_MAX)
    if data is None:
        return None, None
    copy = os.path.join(state.git_dir(store, ws.name), "index.agent")
    _replace(copy, data)
    try:
        done = state.private_git(store, ws, "ls-files", "-s", "-t", "-z", index=copy, timeout=120)
    except ChildTimeout:
        return None, None
    if done.code:
        return None, None
    found: dict[bytes, Staged] = {}
    for row in done.out.split(b"\0")[:-1]:
        head, _, path = row.partition(b"\t")
        tag, mode, oid, _stage = head.split(b" ")
        found[path] = Staged((mode, bytes.fromhex(oid.decode("ascii"))), tag == b"S")
    return found, copy


def index_is_ours(store: Store, ws: Workspace, files: Files) -> bool:
    """Says whether the agent's index is, byte for byte, the one that we gave it last."""
    there = files.stat(b".git/index")
    path = os.path.join(state.git_dir(store, ws.name), "index")
    try:
        if there is None or there.st_size != os.stat(path).st_size:
            return False
        with open(path, "rb") as file:
            return files.read(b".git/index", INDEX_MAX) == file.read()
    except FileNotFoundError:
        return False


def copy_ignores(store: Store, ws: Workspace, files: Files) -> None:
    """Takes over the agent's own ignore list (`.git/info/exclude`) into our git directory, and adds what setup put."""
    data = files.read(b".git/info/exclude", 1 << 20) or b""
    data += rules(ws.note.beside)
    path = os.path.join(state.git_dir(store, ws.name), "info", "exclude")
    try:
        with open(path, "rb") as file:
            if file.read() == data:
                return
    except FileNotFoundError:
        pass
    _replace(path, data)


def rules(names: Sequence[str]) -> bytes:
    """Gives the ignore rules that match these paths alone."""
    return b"".join(b"\n/%s\n" % re.sub(rb"([\\*?\[ !#])", rb"\\\1", path_bytes(name)) for name in names)


def head(files: Files) -> str | None:
    """Gives the commit the agent's HEAD names."""
    text = (files.read(b".git/HEAD", 4096) or b"").strip()
    if text.startswith(b"ref: "):
        return refs(files).get(text[5:].strip())
    word = text.decode("ascii", "replace")
    return word if HEX40.match(word) else None


def refs(files: Files) -> dict[bytes, str]:
    """Gives the agent's own branches and its stash with their commits, loose and packed."""
    found: dict[bytes, str] = {}
    for line in (files.read(b".git/packed-refs", 16 << 20) or b"").split(b"\n"):
        oid, _, name = line.partition(b" ")
        if HEX40.match(oid.decode("ascii", "replace")) and name.startswith(_FOLDERS):
            found[name] = oid.decode("ascii")
    names = [b"refs/stash"]
    folders = [b"refs/heads"]
    while folders and len(names) < 10_000:
        folder = folders.pop()
        fd = files.folder(b".git/" + folder)
        if fd is None:
            continue
        with os.scandir(fd) as entries:
            for entry in entries:
                path = folder + b"/" + os.fsencode(entry.name)
                (folders if entry.is_dir(follow_symlinks=False) else names).append(path)
    for name in names:
        if _REF.match(name) and (data := files.read(b".git/" + name, 256)) is not None:
            word = data.strip().decode("ascii", "replace")
            if HEX40.match(word):
                found[name] = word
    return found


def commit(store: Store, ws: Workspace, oid: str) -> Commit | None:
    """Gives a commit of the agent's own objects; None when it can't be read."""
    raw = read_object(store, ws, oid, "commit")
    try:
        return None if raw is None else parse_commit(oid, raw)
    except (StoreCorruptError, ValueError):
        return None


def read_object(store: Store, ws: Workspace, oid: str, kind: str) -> bytes | None:
    """Gives an object out of the agent's own folder, loose by our reader, else out of a pack by a bounded child."""
    folder = os.path.join(ws.path, ".git", "objects")
    try:
        found = LooseStore(folder).read(oid)
    except (Damaged, RopewalkError):
        found = None
    if found is not None:
        return found[1] if found[0] == kind else None
    try:
        done = state.private_git(
            store, ws, "cat-file", kind, oid, extra={"GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(folder)}, timeout=60
        )
    except ChildTimeout:
        return None
    return done.out if done.code == 0 else None


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _replace(path: str, data: bytes) -> None:
    part = f"{path}.new"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)
    os.rename(part, path)
