"""What a tree holds that is not what it seems: pointers of LFS in the place of contents, and submodules.

Files are the blobs' bytes, so a pointer stays a pointer, byte for byte. A filter that the repository's attributes
name does not run; what lands under one that would have changed the bytes is looked at here (finding A39).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import msgspec

from ropewalk.core.errors import InvalidError
from ropewalk.core.ids import path_bytes, path_text
from ropewalk.core.process import git_env, git_error, git_program, run
from ropewalk.store import trees
from ropewalk.store.store import Store
from ropewalk.store.trees import Change, Entry
from ropewalk.workspace import state
from ropewalk.workspace.state import Workspace
from ropewalk.workspace.stats import Stats

LFS = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_MAX = 1024
_PLAIN = (trees.FILE, trees.EXEC)
_NAMED = 1000


class About(msgspec.Struct, frozen=True):
    """Is which files of a tree are pointers of LFS, and which folders are submodules."""

    lfs: list[str] = []
    submodules: list[str] = []


def about(store: Store, found: Stats) -> About:
    """Gives what a tree holds that is not what it seems, by the stat data of its checkout."""
    links = [path_text(path) for path, entry in sorted(found.base.items()) if entry[0] == trees.GITLINK]
    return About(_lfs_pointers(store, found), links)


def _lfs_pointers(store: Store, found: Stats) -> list[str]:
    """Gives the files of a checkout that are pointers of LFS; at most a thousand."""
    if not _mentions(store, found.base, b"filter=lfs"):
        return []
    small = [
        (path, entry[1].hex())
        for path, entry in sorted(found.base.items())
        if entry[0] in _PLAIN and path in found.files and found.files[path][0] < _POINTER_MAX
    ]
    blobs = store.objects.read_many([oid for _, oid in small])
    pairs = zip(small, blobs, strict=True)
    return [path_text(path) for (path, _), blob in pairs if blob is not None and blob[1].startswith(LFS)][:_NAMED]


def _mentions(store: Store, entries: dict[bytes, Entry], word: bytes) -> bool:
    """Says whether an attributes file of a tree holds a word."""
    files = [
        entry[1].hex() for path, entry in entries.items()
        if path.endswith(b".gitattributes") and path.rpartition(b"/")[2] == b".gitattributes" and entry[0] in _PLAIN
    ]  # fmt: skip
    return any(blob is not None and word in blob[1] for blob in store.objects.read_many(files))


def warnings(ws: Workspace) -> list[str]:
    """Gives what whoever starts in a new workspace has to know of it."""
    said = []
    empty = [name for name in ws.note.submodules if not _filled(ws, name)]
    if empty:
        said.append(f"submodules are empty folders: {_few(empty)} (fill them with --submodules)")
    if ws.note.lfs:
        said.append(f"LFS pointers in the place of contents: {_few(ws.note.lfs)}")
    return said


def _filled(ws: Workspace, name: str) -> bool:
    return os.path.lexists(os.path.join(os.fsencode(ws.path), path_bytes(name), b".git"))


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def check_filters(
    store: Store, ws: Workspace, entries: Mapping[bytes, Entry], changes: list[Change], allowed: Collection[str]
) -> list[str]:
    """Gives warnings of changed files under LFS that are no pointers; `E_INVALID` for a filter that is not allowed.

    The attributes of the base count, so that a change can't take the filter off what it changes: a file that is
    encrypted in the repository must not land in the clear.
    """
    base = {path: entry for path, entry in entries.items() if path.rpartition(b"/")[2] == b".gitattributes"}
    for change in changes:
        if change.path.rpartition(b"/")[2] == b".gitattributes":
            base.pop(change.path, None)
            if change.old is not None:
                base[change.path] = change.old
    changed = [(c.path, c.new) for c in changes if c.new is not None and c.new[0] in _PLAIN]
    if not changed or not _mentions(store, base, b"filter"):
        return []
    index = os.path.join(state.git_dir(store, ws.name), "index.base")
    env = git_env({"GIT_INDEX_FILE": index, "GIT_WORK_TREE": ws.path, "GIT_LITERAL_PATHSPECS": "1"})
    argv = [git_program(), f"--git-dir={store.layout.repo}"]
    try:
        rows = b"".join(
            b"%s %s\t%s\0" % (entry[0], entry[1].hex().encode("ascii"), path)
            for path, entry in base.items()
        )  # fmt: skip
        done = run([*argv, "update-index", "-z", "--index-info"], stdin=rows, env=env, cwd=ws.path, timeout=600)
        if done.code:
            raise git_error("update-index", done)
        names = b"".join(path + b"\0" for path, _ in changed)
        words = ["check-attr", "--cached", "-z", "--stdin", "filter"]
        done = run([*argv, *words], stdin=names, env=env, cwd=ws.path, timeout=600)
        if done.code:
            raise git_error("check-attr", done)
    finally:
        if os.path.exists(index):
            os.unlink(index)
    values = [os.fsdecode(value) for value in done.out.split(b"\0")[2::3]]
    refused: dict[str, str] = {}
    large = []
    for (path, entry), value in zip(changed, values, strict=True):
        if value in ("unspecified", "unset", "set"):
            continue
        if value not in allowed:
            refused[path_text(path)] = value
        elif value == "lfs" and not _is_pointer(store, entry):
            large.append(path_text(path))
    if refused:
        shown = ", ".join(f"{path} ({name})" for path, name in list(refused.items())[:5])
        raise InvalidError(
            f"the repository puts filters on changed files, and none runs here: {shown}",
            hint="allow a filter whose files may land as they are with `filters` below [workspace] in ropewalk.toml",
            filters=refused,
        )
    return [f"landed as they are, not as LFS pointers: {_few(large)}"] if large else []


def _is_pointer(store: Store, entry: Entry) -> bool:
    return store.objects.read(entry[1].hex(), "blob").startswith(LFS)
