"""Looking after what the store keeps of workspaces: its private git directories, and workspaces as a second copy.

A private git directory is derived: what of it is damaged is written anew, or removed where a capture does without.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from ropewalk.core import durable
from ropewalk.core.errors import RopewalkError
from ropewalk.store import layout, repository
from ropewalk.store.layout import WORKSPACE_MARK, Mark
from ropewalk.store.sources import Source
from ropewalk.store.store import Store
from ropewalk.store.verify import REPAIR, Finding
from ropewalk.workspace import gitdir, overlay, state, stats
from ropewalk.workspace.files import Files
from ropewalk.workspace.state import Workspace

_FOLDERS = ("objects/info", "refs")
"""Are what git takes no folder for a repository without."""
_FIXED = ("HEAD", "config", "info/attributes", "objects/info/alternates")


class _Flaw(NamedTuple):
    name: str
    mend: Callable[[], None]


def places(store: Store) -> list[Source]:
    """Gives every workspace's own objects as places that a repair may look into."""
    found = []
    try:
        known = state.listed(store)
    except RopewalkError:
        return []
    for ws in known:
        objects = os.path.join(ws.path, ".git", "objects")
        if os.path.isdir(objects) and not os.path.islink(objects):
            found.append(Source(f"the workspace {ws.name}", store.layout.repo, objects))
    return found


def findings(store: Store) -> list[Finding]:
    """Gives what is damaged of the store's own files of its workspaces."""
    return [Finding("workspace", flaw.name, REPAIR) for flaw in _flaws(store)]


def mend(store: Store) -> list[str]:
    """Writes the damaged files anew, and gives what it did."""
    done = []
    for flaw in list(_flaws(store)):
        flaw.mend()
        done.append(f"{flaw.name} made anew")
    return done


def renew(store: Store, ws: Workspace) -> None:
    """Writes anew what is damaged of the store's own files of a workspace."""
    for flaw in list(_of(store, ws)):
        flaw.mend()


def _flaws(store: Store) -> Iterator[_Flaw]:
    try:
        known = state.listed(store)
    except RopewalkError:
        return
    for ws in known:
        mark = layout.workspace_mark(ws.path) if os.path.isdir(ws.path) else None
        # a restored backup knows of workspaces that stay with the store they were made from
        ours = os.path.isdir(state.private(store, ws.name)) or (mark is not None and mark.store == store.layout.root)
        if ws.state == "ready" and ours:
            yield from _of(store, ws)
            if mark is not None and mark.workspace == ws.name and _is_moved(store, mark):
                yield _Flaw(f"the way from the workspace {ws.name} to its store", _leading(store, ws))


def _is_moved(store: Store, mark: Mark) -> bool:
    """Says whether a workspace names a store that is no more where it was, and is not a copy's."""
    return mark.store != store.layout.root and not os.path.exists(os.path.join(mark.store, "FORMAT"))


def _leading(store: Store, ws: Workspace) -> Callable[[], None]:
    def lead() -> None:
        line = gitdir.alternate(store, os.path.join(ws.path, ".git")).encode("utf-8", "surrogateescape")
        with Files(ws.path) as files:
            overlay.confirm(ws, files)
            files.put(b".git/objects/info/alternates", line)
            files.put(
                b".git/" + WORKSPACE_MARK.encode(), msgspec.json.encode(Mark(store.layout.root, ws.name, ws.agent))
            )

    return lead


def _of(store: Store, ws: Workspace) -> Iterator[_Flaw]:
    folder, mine = state.private(store, ws.name), state.git_dir(store, ws.name)
    fresh = os.path.join(folder, f"check-{os.getpid()}")

    def whole() -> None:
        gitdir.make_private(store, ws)

    if not all(os.path.isdir(os.path.join(mine, name)) for name in _FOLDERS):
        yield _Flaw(os.path.relpath(mine, store.layout.root), whole)
        return
    try:
        gitdir.write_private(store, fresh, ws)
        for name in _FIXED:
            wanted, path = repository.read(os.path.join(fresh, name)) or b"", os.path.join(mine, name)
            if repository.read(path) != wanted:
                yield _Flaw(os.path.relpath(path, store.layout.root), _writing(path, wanted))
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    for path, good in (os.path.join(mine, "index"), repository.sealed), (os.path.join(folder, "stat"), stats.sealed):
        if os.path.exists(path) and not good(path):
            yield _Flaw(os.path.relpath(path, store.layout.root), _removing(path))


def _writing(path: str, wanted: bytes) -> Callable[[], None]:
    def write() -> None:
        durable.make_folders(os.path.dirname(path))
        repository.replace(path, wanted)

    return write


def _removing(path: str) -> Callable[[], None]:
    return lambda: os.unlink(path)
