"""Shared trees: one checkout a tree, which many workspaces stand on. Nobody writes into it once it is there.

It lies at `<data>/lower/<tree>`, with the index and the stat data that are good for every overlay over it, so that
neither git nor a capture reads a file there. It is built beside its place by whoever needs it first, is on disk
before it has its name, and goes when no workspace, and nothing in the trash, stands on it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import BusyError, WorkspaceDamagedError, os_error
from ropewalk.core.ids import HEX40, path_text
from ropewalk.store import lockwait, trees
from ropewalk.store.objects import Person
from ropewalk.store.store import Store
from ropewalk.workspace import gitdir, index, mounts, special, state, stats
from ropewalk.workspace.files import Files, remove_tree
from ropewalk.workspace.special import About
from ropewalk.workspace.state import Workspace
from ropewalk.workspace.stats import Stats

WORTH = 1000
"""From how many files on a shared tree is worth its upkeep."""
_BUILD_SECONDS = 3600.0
_NOBODY = Person(b"ropewalk", b"base@ropewalk.local", 0, b"+0000")
_AGE = 60 * 10**9


class Shared(NamedTuple):
    """Is a shared tree's folder."""

    place: str

    @property
    def tree(self) -> str:
        """Gives the folder of the files."""
        return os.path.join(self.place, "tree")

    @property
    def git_index(self) -> str:
        """Gives the path of the index."""
        return os.path.join(self.place, "index")

    @property
    def about(self) -> str:
        """Gives the path of what is known of the tree."""
        return os.path.join(self.place, "about.json")

    @property
    def stat(self) -> str:
        """Gives the path of the stat data."""
        return os.path.join(self.place, "stat")


def at(folder: str, tree: str) -> Shared:
    """Gives where a shared tree is, or would be."""
    return Shared(os.path.join(folder, "lower", tree))


def get(store: Store, folder: str, commit: str) -> Shared:
    """Gives the shared tree of a commit, built if need be; whoever else needs it meanwhile waits for it."""
    found = at(folder, store.objects.commit(commit).tree)
    if not os.path.isdir(found.place):
        try:
            os.makedirs(os.path.dirname(found.place), mode=0o700, exist_ok=True)
            with _held(found.place, _BUILD_SECONDS):
                if not os.path.isdir(found.place):
                    _build(store, found, commit)
        except OSError as error:
            raise os_error(error, "making a shared tree") from None
    return found


@contextmanager
def _held(place: str, seconds: float) -> Iterator[None]:
    """Holds the making and the removal of a shared tree; `E_BUSY` when another does for longer than `seconds`."""
    fd = os.open(place + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if seconds:
            fd = lockwait.wait_for(fd, seconds)
        else:
            os.close(fd)
            fd = -1
        if fd < 0:
            raise BusyError("another process works on the shared tree") from None
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _build(store: Store, new: Shared, commit: str) -> None:
    above, name = os.path.split(new.place)
    for left in os.listdir(above):
        if left.startswith(f"{name}.new-"):
            remove_tree(os.path.join(above, left))  # the hold is ours, so its maker is dead
    part = Shared(f"{new.place}.new-{os.getpid()}")
    try:
        os.mkdir(part.place, 0o700)
        gitdir.populate(store, part.tree, commit, "base", _NOBODY)
        dot = os.path.join(part.tree, ".git")
        os.unlink(os.path.join(dot, "refs", "heads", "base"))
        _own(part.tree, os.stat(os.path.dirname(above)).st_uid)
        entries = stats.all_entries(store, store.objects.commit(commit).tree)
        # older than the index by more than git's clock can mistake, so that no file is read to tell that it is clean
        then = time.time_ns() - _AGE
        seen: dict[bytes, os.stat_result] = {}
        for path, entry in sorted(entries.items()):
            if entry[0] != trees.GITLINK:
                place = os.path.join(os.fsencode(part.tree), path)
                os.utime(place, ns=(then, then), follow_symlinks=False)
                seen[path] = os.lstat(place)
        renew(store, part.tree, seen)
        shutil.copyfile(os.path.join(dot, "index"), part.git_index)
        # whoever changes a file does so after this, and leaves other stat data
        late = time.time_ns() + 2 * stats.RACY
        known = {path: stats.seen_of(found) for path, found in seen.items()}
        found = Stats(late, store.objects.commit(commit).tree, entries, known)
        stats.write(part.stat, found)
        gitdir.write_file(part.about, msgspec.json.encode(special.about(store, found)))
        mounts.sync_file_system(part.place)
        os.rename(part.place, new.place)
    finally:
        shutil.rmtree(part.place, ignore_errors=True)


def _own(tree: str, uid: int) -> None:
    """Makes a shared tree its folder's owner's: an overlay copies each file whose owner is changed later.

    It is for root, whose agents may be another user.
    """
    if os.geteuid() != 0 or uid == 0:
        return
    for place, folders, names in os.walk(tree):
        for name in ("", *folders, *names):
            os.chown(os.path.join(place, name), uid, uid, follow_symlinks=False)


def about(shared: Shared) -> About:
    """Gives what is known of a shared tree."""
    try:
        with open(shared.about, "rb") as file:
            return msgspec.json.decode(file.read(), type=About)
    except (OSError, *UNREADABLE) as error:
        raise WorkspaceDamagedError(f"a shared tree can't be read: {error}", path=shared.place) from None


def renew(store: Store, folder: str, seen: dict[bytes, os.stat_result]) -> None:
    """Gives the index of a checkout, whose files hold what it says, their stat data."""
    path = os.path.join(folder, ".git", "index")
    with open(path, "rb") as file:
        made = index.restat(file.read(), seen.get)
    if made is None:
        gitdir.refresh(folder)
    else:
        gitdir.write_file(path, made)


def check(shared: Shared) -> None:
    """Raises `E_WORKSPACE_DAMAGED` when a file of a shared tree is not as it was left."""
    known = stats.load(shared.stat)
    changed = []
    try:
        with Files(shared.tree) as files:
            for path, seen in sorted(known.files.items()):
                there = files.stat(path)
                if there is None or stats.seen_of(there) != seen:
                    changed.append(path)
    except OSError as error:
        raise os_error(error, "read of a shared tree") from None
    if changed or not known.tree:
        raise WorkspaceDamagedError(
            f"the shared tree under the workspace was changed: {', '.join(path_text(p) for p in changed[:5])}",
            hint="nobody may write there; keep what you need of the workspace's upper folder, and make it anew",
            paths=[path_text(path) for path in changed[:100]],
        )


def sweep(store: Store, folder: str, kept: Collection[str]) -> list[str]:
    """Removes the shared trees on which nothing stands, but for those in `kept`; gives their names."""
    lower = os.path.join(folder, "lower")
    gone = []
    for name in sorted(os.listdir(lower)) if os.path.isdir(lower) else []:
        if not HEX40.match(name) or name in kept or name in _used(store):
            continue
        place = os.path.join(lower, name)
        try:
            with _held(place, 0):
                if name not in _used(store):
                    remove_tree(place)
                    gone.append(name)
        except (BusyError, OSError):
            continue  # somebody needs it just now
    return gone


def _used(store: Store) -> set[str]:
    return {used for ws in state.listed(store) for used in _trees_of(store, ws)}


def _trees_of(store: Store, ws: Workspace) -> list[str]:
    over = ws.note.overlay
    return [over.tree] if over is not None else [store.objects.commit(ws.created_base).tree]
