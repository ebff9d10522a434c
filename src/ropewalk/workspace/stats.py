"""Stat data: what files looked like when they were last seen to equal a tree, by which a capture knows the rest."""

from __future__ import annotations

import os
import time
from itertools import islice
from zlib import crc32

import msgspec

from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.durable import write_all
from ropewalk.core.ids import EMPTY_TREE
from ropewalk.store import trees
from ropewalk.store.store import Store
from ropewalk.store.trees import Entry
from ropewalk.workspace import state
from ropewalk.workspace.files import Files

# a clock of the kernel may lag behind ours by a tick, so what changed this close to a look is read again
RACY = 50_000_000
_FEW = 200

Seen = tuple[int, int, int, int, int]
"""Is what tells a touched file: size, mtime and ctime in nanoseconds, inode, mode."""


class Stats(msgspec.Struct, frozen=True):
    """Is when a workspace was looked at, the base's tree and entries, and the stat data of files that equalled it.

    `boot` is the id of the boot in which that was, or a word that is none; empty when all of it is on disk.
    """

    at: int
    tree: str
    base: dict[bytes, Entry]
    files: dict[bytes, Seen]
    boot: str = ""


def seen_of(found: os.stat_result) -> Seen:
    """Gives what of a file's stat data tells that it was touched."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode


def look(files: Files, tree: str, entries: dict[bytes, Entry]) -> Stats:
    """Gives the stat data of files that were just written from the entries of a tree."""
    at = time.time_ns()
    found: dict[bytes, Seen] = {}
    for path, entry in sorted(entries.items()):
        there = files.stat(path)
        if there is not None and entry[0] != trees.GITLINK:
            found[path] = seen_of(there)
    return Stats(at, tree, entries, found, clock.boot_id())


def save(store: Store, name: str, stats: Stats) -> None:
    """Keeps stat data for the next capture."""
    write(os.path.join(state.private(store, name), "stat"), stats)


def write(path: str, stats: Stats) -> None:
    """Writes stat data to a file, whole or not at all; one that others link to stays theirs."""
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        data = msgspec.msgpack.encode(stats)
        write_all(fd, data + crc32(data).to_bytes(4, "big"))
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def sealed(path: str) -> bool:
    """Says whether a file of stat data is whole."""
    with open(path, "rb") as file:
        data = file.read()
    return crc32(data[:-4]).to_bytes(4, "big") == data[-4:]


def load(path: str) -> Stats:
    """Gives the stat data of a file; empty when it is not there or not whole."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        # what is read here stands for files that nobody reads again, so a flipped byte would land
        if crc32(data[:-4]).to_bytes(4, "big") == data[-4:]:
            return msgspec.msgpack.decode(data[:-4], type=Stats)
    except (OSError, *UNREADABLE):
        pass
    return Stats(0, "", {}, {})


def all_entries(store: Store, tree: str) -> dict[bytes, Entry]:
    """Gives every entry of a tree in git's order; for a large one a child of git is faster than we are."""
    if tree == EMPTY_TREE:
        return {}
    few = dict(islice(trees.walk(store.objects, tree), _FEW))
    if len(few) < _FEW:
        return few
    out = store.git("ls-tree", "-r", "-z", "--full-tree", tree, timeout=600).out
    found: dict[bytes, Entry] = {}
    for row in out.split(b"\0")[:-1]:
        head, _, path = row.partition(b"\t")
        mode, _, oid = head.split(b" ")
        found[path] = (mode, bytes.fromhex(oid.decode("ascii")))
    return found


def base_entries(store: Store, stats: Stats, tree: str) -> dict[bytes, Entry]:
    """Gives the entries of a tree: those of the last look, with what changed from its tree to this one."""
    if stats.tree == tree:
        return stats.base
    if not stats.tree or store.objects.find(stats.tree) is None:
        return all_entries(store, tree)
    entries = dict(stats.base)
    for path, _, new in trees.diff(store.objects, stats.tree, tree):
        if new is None:
            entries.pop(path, None)
        else:
            entries[path] = new
    return entries
