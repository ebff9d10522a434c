"""The radar: which open workspaces edit the same places, before either lands.

Each pair that changed a path in common is merged as if one had landed; what is in conflict then is in conflict
already.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import msgspec

from ropewalk.core.errors import BusyError, WorkspaceDamagedError, WorkspaceGoneError, WorkspaceNotMountedError
from ropewalk.core.ids import path_text
from ropewalk.store import merge, trees
from ropewalk.store.store import Store
from ropewalk.workspace import capture, state
from ropewalk.workspace.state import Workspace

_PAIR_SECONDS = 30.0


class Echo(msgspec.Struct, frozen=True):
    """Is one path that two workspaces changed: they `conflict`, or edit different places of the same `file`."""

    path: str
    how: Literal["conflict", "file"]
    workspaces: tuple[str, str]


def scan(store: Store, only: str | None = None) -> tuple[list[Echo], list[str]]:
    """Gives the paths that pairs of open workspaces both changed, conflicts first, and who could not be looked at.

    With `only`, pairs of that workspace alone. Two that made a path the same are no echo. Nothing is recorded.
    """
    found: dict[str, tuple[Workspace, str, set[bytes]]] = {}
    skipped: list[str] = []
    store.objects.take_new()
    for ws in state.listed(store):
        if ws.state != "ready":
            continue
        try:
            now = capture.capture(store, ws)
        except (WorkspaceGoneError, WorkspaceDamagedError, WorkspaceNotMountedError, BusyError):
            skipped.append(ws.name)
            continue
        if now.changes:
            found[ws.name] = (ws, now.tree, {change.path for change in now.changes})
    echoes: list[Echo] = []
    for one, two in combinations(sorted(found), 2):
        if only is None or only in (one, two):
            echoes += _pair(store, (one, two), found[one], found[two])
    store.objects.take_new()
    return sorted(echoes, key=lambda echo: (echo.how, echo.path, echo.workspaces)), skipped


def _pair(
    store: Store, names: tuple[str, str], one: tuple[Workspace, str, set[bytes]], two: tuple[Workspace, str, set[bytes]]
) -> list[Echo]:
    common = one[2] & two[2]
    differing = [
        path for path in common
        if trees.lookup(store.objects, one[1], path) != trees.lookup(store.objects, two[1], path)
    ]  # fmt: skip
    if not differing and not _above(one[2], two[2]):
        return []
    base = _base(store, one[0].base, two[0].base)
    if base is None:
        return []
    merged = merge.merge_ort(store.objects, store.objects.commit(base).tree, one[1], two[1], timeout=_PAIR_SECONDS)
    clash = {conflict.path for conflict in merged.conflicts}
    echoes = [Echo(path_text(path), "conflict", names) for path in clash]
    return echoes + [Echo(path_text(path), "file", names) for path in differing if path not in clash]


def _above(one: Sequence[bytes] | set[bytes], two: Sequence[bytes] | set[bytes]) -> bool:
    """Says whether a path of one side is a folder of a path of the other."""
    for few, many in ((one, two), (two, one)):
        folders = {b"/".join(parts[:n]) for path in many for parts in (path.split(b"/"),) for n in range(1, len(parts))}
        if folders & set(few):
            return True
    return False


def _base(store: Store, one: str, two: str) -> str | None:
    if one == two:
        return one
    found = store.git("merge-base", one, two, ok=(0, 1), timeout=60).text()
    return found or None
