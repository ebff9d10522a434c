"""Deleting a workspace: never with work that is nowhere else, and never beyond its own folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import msgspec

from ropewalk.core.errors import UnlandedWorkError, WorkspaceDamagedError, WorkspaceGoneError, os_error
from ropewalk.core.ids import path_text
from ropewalk.store.store import Store
from ropewalk.workspace import capture, foreign, move, overlay, shared, snapshot, state, trash
from ropewalk.workspace.capture import Captured
from ropewalk.workspace.files import Files, remove_tree
from ropewalk.workspace.state import Workspace


class Deleted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what became of a deleted workspace: the archive of what it held, if anything, and its name in the trash."""

    name: str
    archived: str | None = None
    ref: str | None = None
    lost: list[str] = []
    trash: str | None = None


def delete(
    store: Store, ws: Workspace, agent: str, *, force: bool, bin: str | None = None, spent: bool = False
) -> Deleted:
    """Deletes a workspace; the caller holds it. `E_UNLANDED` with the list of its work unless forced.

    What it held is archived as a changeset under `refs/archive/ws/NAME/N` first, and its folder goes to the trash
    folder `bin`, if there is one. Files that were held back, and commits and stashes that only its own repository
    has, are named in `lost`: they are in the trash alone. A `spent` one is not looked at: all it held has landed.
    """
    archived: tuple[str, str] | None = None
    lost: list[str] = []
    if ws.state == "ready" and spent:
        ws = state.save(store, msgspec.structs.replace(ws, state="removing"))
    elif ws.state == "ready":
        try:
            ws = move.settle(store, ws)
            store.objects.take_new()
            now = capture.capture(store, ws)
            lost = elsewhere(store, ws, now)
            busy = _busy(ws.path)
            if not force and (now.changes or lost or busy):
                raise _refusal(ws, now, lost, busy)
            if now.changes:
                archived = snapshot.keep(
                    store, ws, agent, now, f"{snapshot.ARCHIVES}{ws.name}/", f"Archive of the workspace {ws.name}\n",
                    "ws_archive",
                )  # fmt: skip
        except (WorkspaceGoneError, WorkspaceDamagedError):
            pass  # nothing is left that could be lost
        ws = state.save(store, msgspec.structs.replace(ws, state="removing"))
    overlay.unmount(ws, force=force)
    trashed = trash.put(store, ws, bin) if bin is not None else None
    _remove(ws.path)
    overlay.remove(ws)
    shutil.rmtree(state.git_dir(store, ws.name), ignore_errors=True)
    try:
        os.unlink(os.path.join(state.private(store, ws.name), "stat"))
    except FileNotFoundError:
        pass
    state.forget(store, ws.name, agent)
    if ws.note.overlay is not None:
        shared.sweep(store, ws.note.overlay.folder, trash.shared_trees(bin) if bin is not None else ())
    changeset, ref = archived or (None, None)
    return Deleted(ws.name, changeset, ref, lost, trashed)


def _refusal(ws: Workspace, now: Captured, lost: list[str], busy: list[int]) -> UnlandedWorkError:
    paths = [path_text(c.path) for c in now.changes]
    words = [f"{len(paths)} changed path{'s' if len(paths) != 1 else ''}"] if paths else []
    words += lost
    words += [f"process {pid} works in it" for pid in busy]
    return UnlandedWorkError(
        f"the workspace {ws.name} holds unlanded work: {', '.join(words)}",
        workspace=ws.name,
        paths=paths[:200],
        more=max(0, len(paths) - 200),
        other=lost,
        processes=busy,
    )


def elsewhere(store: Store, ws: Workspace, now: Captured) -> list[str]:
    """Names the work that the tree does not show: held back files, stashes, commits of other branches."""
    found = [f"secret {path_text(path)}" for path in now.held_back]
    with Files(ws.path) as files:
        own = foreign.refs(files)
        head = foreign.head(files)
    trees = {now.tree}
    if head is not None and store.objects.kind(head) is None:
        # commits on the way to the tree are in the tree
        trees.add(head)
    for ref, oid in sorted(own.items()):
        if oid in trees or store.objects.kind(oid) is not None:
            continue
        found.append("stash" if ref == b"refs/stash" else f"branch {path_text(ref[11:])}")
    return found


def _busy(path: str) -> list[int]:
    """Gives the processes that work inside or have a file of it open, other than this one and those it was asked by."""
    inside = os.path.realpath(path)
    mine = _askers()
    found = []
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        if pid not in mine and any((place + "/").startswith(inside + "/") for place in _places(pid)):
            found.append(pid)
    return found


def _askers() -> set[int]:
    """Gives this process and all above it: they wait for it, as an agent program does whose hook a shell runs."""
    found, pid = {os.getpid()}, os.getppid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            break
    return found


def _places(pid: int) -> Iterator[str]:
    """Gives the working folder and the open files of a process, as far as they can be seen."""
    links = [f"/proc/{pid}/cwd"]
    try:
        links += [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        pass
    for link in links:
        try:
            yield os.readlink(link)
        except OSError:
            continue


def _remove(path: str) -> None:
    """Removes a workspace's folder, first out of its place by a rename; links in it are removed, not followed."""
    above, last = os.path.split(path)
    gone = os.path.join(above, f".{last}.gone-{os.getpid()}")
    try:
        # of a removal, or of a creation, that was killed; the lock is ours, so they belong to nobody
        killed = (f".{last}.gone-", f".{last}.new-")
        leftovers = [n for n in os.listdir(above) if n.startswith(killed)] if os.path.isdir(above) else []
        if os.path.islink(path):
            os.unlink(path)
        elif os.path.isdir(path):
            os.rename(path, gone)
            leftovers.append(os.path.basename(gone))
        for leftover in leftovers:
            remove_tree(os.path.join(above, leftover))
    except OSError as error:
        raise os_error(error, "removal of the workspace") from None
