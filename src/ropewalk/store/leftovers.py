"""Leftovers: what a killed `gc`, checkpoint or import left in the pack folder, swept before the next one works (S22).

A collection that is killed again and again must not fill the disk: half-written files go, packs that lost their index
on the way get it again, and packs that hold nothing of their own go. The caller holds the maintenance lock.
"""

from __future__ import annotations

import fcntl
import os

from ropewalk.core.process import git, holders
from ropewalk.store import maintain, repository
from ropewalk.store.store import Store

_ENDS = ("idx", "rev", "bitmap", "mtimes", "pack")


def clear(store: Store) -> None:
    """Removes what nobody needs from the pack folder; nothing that is the only copy of an object."""
    folder = os.path.join(store.layout.repo, "objects", "pack")
    for name in os.listdir(folder):
        if name.startswith(("tmp_", ".tmp-")):
            _remove_dead(os.path.join(folder, name))
    if not _importing(store.layout.root):
        for name in maintain.unindexed(store):
            # its index may have been lost some other way, so that it may hold the only copy of something
            repository.build_index(store, os.path.join(folder, f"pack-{name}"))
    names = maintain.packs(store)
    if len(names) > 1:
        maintain.secure_packs(store)
        for name in _spare(store, folder, names):
            for end in _ENDS:
                try:
                    os.unlink(os.path.join(folder, f"pack-{name}.{end}"))
                except FileNotFoundError:
                    pass


def _remove_dead(path: str) -> None:
    """Removes a half-written file unless a process has it open: a person's git may be at work beside us."""

    try:
        if not holders(os.stat(path)):
            os.unlink(path)
    except (FileNotFoundError, IsADirectoryError):
        pass


def _importing(root: str) -> bool:
    """Says whether an import is at work, which may have moved a pack and not yet its index."""
    for name in os.listdir(root):
        if not name.startswith("incoming-"):
            continue
        try:
            fd = os.open(os.path.join(root, name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def _spare(store: Store, folder: str, names: list[str]) -> set[str]:
    """Gives the packs of which every object is in a larger pack that stays."""
    held: dict[str, set[str]] = {}
    for name in names:
        with open(os.path.join(folder, f"pack-{name}.idx"), "rb") as file:
            rows = git(store.layout.repo, "show-index", stdin=file.read(), ok=range(256), timeout=600)
        if rows.code == 0:
            held[name] = {row.split()[1] for row in rows.out.decode("ascii").splitlines()}
    spare: set[str] = set()
    seen: set[str] = set()
    for name in sorted(held, key=lambda n: (-len(held[n]), n)):
        whole = os.path.exists(os.path.join(folder, f"pack-{name}.pack"))
        if held[name] <= seen and not os.path.exists(os.path.join(folder, f"pack-{name}.keep")):
            spare.add(name)
        elif whole:
            seen |= held[name]
    return spare
