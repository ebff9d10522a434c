"""The trash: folders of deleted workspaces, kept for a term, with what is needed to bring them back."""

from __future__ import annotations

import errno
import os

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import InvalidError, NotFoundError, os_error
from ropewalk.store.store import Store
from ropewalk.workspace import gitdir, overlay, state
from ropewalk.workspace.files import remove_tree
from ropewalk.workspace.state import Workspace

TERM = 14 * 24 * 3600
"""How long a deleted workspace's folder is kept, in seconds."""

_ABOUT, _TREE, _LAYERS = "about.json", "tree", "layers"


class Trashed(msgspec.Struct, frozen=True):
    """Is one folder in the trash: its name there, the workspace it was, and when it was deleted."""

    id: str
    at: int
    workspace: Workspace


def put(store: Store, ws: Workspace, folder: str) -> str | None:
    """Moves a workspace's folder, or its unmounted layers, into the trash; gives its name there.

    It is None when the trash lies on another disk.
    """
    at = clock.now()
    name = f"{at}-{ws.name}"
    number = 1
    while os.path.lexists(os.path.join(folder, name)):
        # one of this name was deleted in this second; the caller's hold on the name makes the next number ours
        number += 1
        name = f"{at}-{ws.name}-{number}"
    place = os.path.join(folder, name)
    try:
        os.makedirs(place, mode=0o700)
        with open(os.path.join(place, _ABOUT), "wb") as file:
            file.write(msgspec.json.encode(Trashed(name, at, ws)))
        if ws.note.overlay is None:
            os.rename(ws.path, os.path.join(place, _TREE))
        else:
            os.rename(overlay.own(ws.note.overlay, ws.name), os.path.join(place, _LAYERS))
        return name
    except FileNotFoundError:
        remove_tree(place)
        return None
    except OSError as error:
        remove_tree(place)
        if error.errno == errno.EXDEV:
            return None
        raise os_error(error, "moving the workspace into the trash") from None


def listed(folder: str) -> list[Trashed]:
    """Gives what is in the trash, newest first."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        try:
            with open(os.path.join(folder, name, _ABOUT), "rb") as file:
                found.append(msgspec.json.decode(file.read(), type=Trashed))
        except (OSError, msgspec.DecodeError):
            continue
    return sorted(found, key=lambda one: (-one.at, one.id))


def find(folder: str, name: str) -> Trashed:
    """Gives an entry by its name, or the newest of a workspace; `E_NOT_FOUND` when there is none."""
    for one in listed(folder):
        if name in (one.id, one.workspace.name):
            return one
    raise NotFoundError(f"{name!r} is not in the trash", hint="list it with `rw trash list`", name=name)


def restore(store: Store, folder: str, one: Trashed, agent: str) -> Workspace:
    """Brings a workspace back to where it was, as it was; `E_INVALID` when its name or place is taken."""
    ws = one.workspace
    with state.held(store, ws.name):
        if state.find(store, ws.name) is not None:
            raise InvalidError(
                f"there is a workspace {ws.name!r} again", hint="delete or land that first", name=ws.name
            )
        if os.path.lexists(ws.path):
            raise InvalidError(f"{ws.path} is there again", hint="move it away first", path=ws.path)
        place = os.path.join(folder, one.id)
        try:
            os.makedirs(os.path.dirname(ws.path), exist_ok=True)
            if ws.note.overlay is None:
                os.rename(os.path.join(place, _TREE), ws.path)
            else:
                mine = overlay.own(ws.note.overlay, ws.name)
                os.makedirs(os.path.dirname(mine), exist_ok=True)
                os.rename(os.path.join(place, _LAYERS), mine)
        except OSError as error:
            raise os_error(error, "bringing the workspace back") from None
        gitdir.make_private(store, ws)
        ws = state.save(store, msgspec.structs.replace(ws, state="ready"), record="ws_restore", actor=agent)
        overlay.ensure(ws)
        remove_tree(place)
        return ws


def shared_trees(folder: str) -> set[str]:
    """Gives the ids of the shared trees on which something in the trash stands."""
    return {one.workspace.note.overlay.tree for one in listed(folder) if one.workspace.note.overlay is not None}


def empty(folder: str, older_than: int = 0) -> list[str]:
    """Removes what has been in the trash for longer than `older_than` seconds; gives the names."""
    gone = []
    for one in listed(folder):
        if clock.now() - one.at >= older_than:
            remove_tree(os.path.join(folder, one.id))
            gone.append(one.id)
    return gone
