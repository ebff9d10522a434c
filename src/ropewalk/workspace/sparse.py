"""Sparse workspaces: some paths on disk, all of them in what lands. This widens one."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from ropewalk.core.errors import WorkspaceDamagedError
from ropewalk.core.process import git_error
from ropewalk.store import trees
from ropewalk.store.store import Store
from ropewalk.workspace import capture, foreign, gitdir, move, overlay, state
from ropewalk.workspace.files import Files
from ropewalk.workspace.state import Workspace

_PATTERNS = b".git/info/sparse-checkout"


def materialize(store: Store, ws: Workspace, sparse: Sequence[str]) -> tuple[Workspace, list[bytes]]:
    """Puts on disk what lies below more paths (`sparse` is all of them, none: everything); gives what was written.

    What is staged stays so. A widening that was killed is ended by the next.
    """
    ws = move.settle(store, ws)
    store.objects.take_new()
    now = capture.capture(store, ws)
    wanted = sorted(path for path in now.hidden if gitdir.covers(sparse, path))
    overlay.ensure(ws)
    with Files(ws.path) as files:
        for path, found in zip(
            wanted, store.objects.read_many([now.entries[path][1].hex() for path in wanted]), strict=True
        ):
            if found is None:
                raise WorkspaceDamagedError("an object of the workspace is missing", workspace=ws.name)
            move.put(store, files, trees.Change(path, None, now.entries[path]), found[1])
        if wanted:
            _show(store, ws, files, wanted)
        lines = files.read(_PATTERNS, 16 << 20)
        if lines is not None:
            more = gitdir.patterns(sparse).encode("utf-8", "surrogateescape") if sparse else b"/*\n"
            if more not in lines:
                files.put(_PATTERNS, lines.rstrip(b"\n") + b"\n" + more)
    ws = msgspec.structs.replace(ws, note=msgspec.structs.replace(ws.note, sparse=list(sparse)))
    _renew_private(store, ws)
    return state.save(store, ws), wanted


def _show(store: Store, ws: Workspace, files: Files, paths: Sequence[bytes]) -> None:
    """Tells the workspace's index that paths are on disk now."""
    mine = os.path.join(state.git_dir(store, ws.name), "index")
    ours = foreign.index_is_ours(store, ws, files)
    staged, copy = foreign.read_index(store, ws, files)
    if staged is None or copy is None:
        return  # without an index nothing says that they are not
    rows = b"".join(path + b"\0" for path in paths if path in staged)
    words = ["update-index", "--no-skip-worktree", "-z", "--stdin"]
    done = state.private_git(store, ws, *words, index=copy, stdin=rows)
    if done.code:
        raise git_error("update-index", done)
    state.private_git(store, ws, "update-index", "-q", "--refresh", "--ignore-submodules", index=copy)
    with open(copy, "rb") as file:
        files.put(b".git/index", file.read())
    if ours:
        os.replace(copy, mine)


def _renew_private(store: Store, ws: Workspace) -> None:
    """Makes our own git directory anew, for its configuration, around the index that it has."""
    path = os.path.join(state.git_dir(store, ws.name), "index")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        data = b""
    gitdir.make_private(store, ws)
    if data:
        gitdir.write_file(path, data)
