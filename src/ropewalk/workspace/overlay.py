"""Overlay workspaces: a shared tree below, the workspace's own changes above, mounted as one folder.

Creating one costs a mount in the place of a checkout. What lies under the mount point is a `.git` file that names a
folder that is not there, so that a git that runs there while nothing is mounted stops (finding A4); and nothing is
read of a workspace that is not mounted, because it would look emptied (finding A5).
"""

from __future__ import annotations

import errno
import os

from ropewalk.core.errors import (
    BusyError,
    WorkspaceDamagedError,
    WorkspaceGoneError,
    WorkspaceNotMountedError,
    os_error,
)
from ropewalk.workspace import mounts, shared
from ropewalk.workspace.files import Files, remove_tree
from ropewalk.workspace.hold import Hold
from ropewalk.workspace.mounts import Layers
from ropewalk.workspace.state import Overlay, Workspace

FENCE = b"gitdir: /nonexistent/ropewalk-workspace-that-is-not-mounted\n"
NONCE = ".git/ropewalk-nonce"
_REFUSED = (errno.EPERM, errno.EACCES, errno.ENODEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ELOOP)


def own(over: Overlay, name: str) -> str:
    """Gives the folder of a workspace's own layers."""
    return os.path.join(over.folder, "upper", name)


def layers(ws: Workspace) -> Layers:
    """Gives the layers of an overlay workspace."""
    over = ws.note.overlay
    assert over is not None
    mine = own(over, ws.name)
    return Layers(shared.at(over.folder, over.tree).tree, os.path.join(mine, "upper"), os.path.join(mine, "work"))


def fence(point: str) -> None:
    """Makes a mount point, in which git finds no repository and looks for none above."""
    os.makedirs(point, exist_ok=True)
    fd = os.open(
        os.path.join(point, ".git"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
    )
    try:
        os.write(fd, FENCE)
    finally:
        os.close(fd)


def mount(ws: Workspace) -> bool:
    """Mounts a workspace's layers at its place; False where the kernel does not let this process."""
    wanted = layers(ws)
    if not wanted.usable():
        return False
    try:
        fence(ws.path)
        mounts.mount(wanted, os.path.realpath(ws.path))
        return True
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        if error.errno == errno.EBUSY:
            raise WorkspaceNotMountedError(
                f"the workspace {ws.name} is mounted elsewhere, and can't be mounted twice",
                hint="use it where it is mounted, or end the sandbox that holds it",
                workspace=ws.name,
            ) from None
        raise os_error(error, "mounting the workspace") from None


def ensure(ws: Workspace) -> None:
    """Sees to it that a workspace is mounted, as after a reboot; `E_WORKSPACE_NOT_MOUNTED` where it can't be."""
    if ws.note.overlay is None or mounts.upper_at(ws.path) == layers(ws).upper:
        return
    hold = Hold.take(own(ws.note.overlay, ws.name) + ".lock")
    if hold is None:
        raise BusyError(f"the workspace {ws.name} is just being mounted", hint="try again", workspace=ws.name)
    try:
        if mounts.upper_at(ws.path) != layers(ws).upper:
            _again(ws)
    finally:
        hold.drop(remove=False)


def _again(ws: Workspace) -> None:
    over = ws.note.overlay
    assert over is not None
    wanted = layers(ws)
    if not os.path.isdir(wanted.upper):
        raise WorkspaceGoneError(f"the upper folder of {ws.name} is gone", workspace=ws.name, path=wanted.upper)
    if not os.path.isdir(wanted.lower):
        raise WorkspaceDamagedError(f"the shared tree under {ws.name} is gone", workspace=ws.name, path=wanted.lower)
    try:
        there = sorted(os.listdir(ws.path))
    except FileNotFoundError:
        there = []
    except OSError as error:
        raise os_error(error, "read of the mount point") from None
    if mounts.upper_at(ws.path) is not None or os.path.islink(ws.path) or there not in ([], [".git"]):
        raise WorkspaceNotMountedError(
            f"something else is where the workspace {ws.name} belongs",
            hint=f"move what is in {ws.path} away, then run the command again; it mounts the workspace",
            workspace=ws.name,
            path=ws.path,
        )
    shared.check(shared.at(over.folder, over.tree))
    if not mount(ws):
        raise WorkspaceNotMountedError(f"the workspace {ws.name} is not mounted here", workspace=ws.name)


def confirm(ws: Workspace, files: Files) -> None:
    """Raises `E_WORKSPACE_NOT_MOUNTED` unless an open folder is the workspace's own mount."""
    over = ws.note.overlay
    if over is None:
        return
    opened = os.fstat(files.root)
    try:
        named = os.stat(os.path.realpath(ws.path))
    except OSError:
        named = None
    nonce = files.read(NONCE.encode(), 256)
    # an agent may remove the nonce with its repository, but not write another mount's
    if (
        named is None
        or (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino)
        or mounts.upper_at(ws.path) != layers(ws).upper
        or nonce not in (None, over.nonce.encode("ascii"))
    ):
        raise WorkspaceNotMountedError(f"the workspace {ws.name} is not mounted here", workspace=ws.name)


def unmount(ws: Workspace, *, force: bool = False) -> None:
    """Takes a workspace's mount away, if there is one; `E_BUSY` while a process uses it, unless forced."""
    if ws.note.overlay is None or mounts.upper_at(ws.path) != layers(ws).upper:
        return
    try:
        mounts.unmount(os.path.realpath(ws.path))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise os_error(error, "unmounting the workspace") from None
        if not force:
            raise BusyError(
                f"a process has files of the workspace {ws.name} open", hint="let it end, or use --force",
                workspace=ws.name,
            ) from None  # fmt: skip
        try:
            mounts.unmount(os.path.realpath(ws.path), detach=True)
        except OSError as again:
            raise os_error(again, "unmounting the workspace") from None


def remove(ws: Workspace) -> None:
    """Removes the layers of a workspace that is not mounted any more."""
    over = ws.note.overlay
    if over is not None:
        for path in (own(over, ws.name), own(over, ws.name) + ".lock"):
            try:
                remove_tree(path) if os.path.isdir(path) else os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise os_error(error, "removal of the workspace") from None
