"""Submodules: folders of a workspace filled from what the operator's own checkout has of them, without a network.

What `.gitmodules` says is a stranger's word. It is read as data: it names a folder below the operator's
`.git/modules`, whose objects are lent; nothing in there is configuration of ours, and nothing is run.
"""

from __future__ import annotations

import os
import re

from ropewalk.core.errors import RopewalkError
from ropewalk.core.ids import path_bytes, path_text
from ropewalk.store import trees
from ropewalk.store.objects import parse_commit
from ropewalk.store.store import Store
from ropewalk.workspace import gitdir, state
from ropewalk.workspace.state import Workspace

_NAME = re.compile(rb"[A-Za-z0-9._+@=-]+(/[A-Za-z0-9._+@=-]+)*\Z")


def fill(store: Store, ws: Workspace, operator: str) -> list[str]:
    """Fills the folders of a workspace's submodules; gives a warning for each that stays empty."""
    tree = store.objects.commit(ws.base).tree
    names = _names(store, ws, tree)
    said = []
    for text in ws.note.submodules:
        path = path_bytes(text)
        entry = trees.lookup(store.objects, tree, path)
        if entry is None or os.path.lexists(os.path.join(os.fsencode(ws.path), path, b".git")):
            continue
        why = _fill(store, ws, path, entry[1].hex(), names.get(path), operator)
        if why:
            said.append(f"the submodule {text} stays empty: {why}")
    return said


def _names(store: Store, ws: Workspace, tree: str) -> dict[bytes, bytes]:
    """Gives path to name, as `.gitmodules` of a tree has them; names that could lead elsewhere are left out."""
    entry = trees.lookup(store.objects, tree, b".gitmodules")
    if entry is None or entry[0] not in (trees.FILE, trees.EXEC):
        return {}
    data = store.objects.read(entry[1].hex(), "blob")
    done = state.private_git(
        store, ws, "config", "--file", "-", "--no-includes", "--list", "-z", stdin=data, timeout=60
    )
    found = {}
    for row in done.out.split(b"\0") if done.code == 0 else []:
        key, _, value = row.partition(b"\n")
        name = key[len(b"submodule.") : -len(b".path")]
        if key.startswith(b"submodule.") and key.endswith(b".path") and _NAME.match(name) and b".." not in name:
            found[value] = name
    return found


def _fill(store: Store, ws: Workspace, path: bytes, commit: str, name: bytes | None, operator: str) -> str:
    """Fills one; gives why it could not, in words."""
    if name is None:
        return ".gitmodules does not name it"
    lender = os.path.join(operator, ".git", "modules", os.fsdecode(name), "objects")
    if not os.path.isdir(lender):
        return f"{operator} has no checkout of it (run `git submodule update --init` there)"
    place = os.path.join(ws.path, os.fsdecode(path))
    if os.path.islink(place) or os.path.realpath(place) != os.path.join(os.path.realpath(ws.path), os.fsdecode(path)):
        return "its folder is a link"
    try:
        raw = gitdir.lent_object(store, lender, commit, "commit")
        if raw is None:
            return f"the checkout in {operator} does not have the commit {commit[:12]}"
        parse_commit(commit, raw)
        gitdir.populate_lent(store, place, commit, lender)
    except RopewalkError as error:
        return f"{path_text(path)}: {error.message}"
    return ""
