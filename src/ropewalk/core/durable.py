"""What makes files and names outlast a power loss: a file's bytes are on disk when it was synced, its name when its
folder was.

A sync that failed is never tried again into a success, because the kernel reports a lost write once: what was to
be durable is written anew, or not at all. `tests/power` leaves out each sync of the package in turn.
"""

from __future__ import annotations

import os
import threading

from ropewalk.core.errors import NoSpaceError


def sync(path: str) -> None:
    """Syncs a file's bytes, or the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(folder: str) -> None:
    """Syncs every file and folder below a folder, and itself; links are names and go with their folder."""
    for path, _, files in os.walk(folder):
        for name in files:
            full = os.path.join(path, name)
            if not os.path.islink(full):
                sync(full)
        sync(path)


def write_all(fd: int, data: bytes) -> None:
    """Writes all bytes; a short write goes on, and a write of nothing is a full disk."""
    view = memoryview(data)
    while view:
        done = os.write(fd, view)
        if done == 0:
            raise NoSpaceError("the disk takes no more bytes", operation="write")
        view = view[done:]


def make_folders(path: str, mode: int = 0o777) -> None:
    """Makes a folder with a mode, and those above it that are missing; their names are durable then."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_folders(above)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    sync(above)


def install(part: str, final: str) -> None:
    """Renames a folder that was built beside its place to it, once all below it is durable; the name is too then."""
    sync_tree(part)
    os.rename(part, final)
    sync(os.path.dirname(final))


def replace(path: str, data: bytes, *, part: str | None = None, mode: int = 0o644) -> None:
    """Writes a file whole or not at all, over one that is there; it is durable then.

    It is built at `part`, with its mode from the first moment.
    """
    part = part or f"{path}.new"
    _build(part, path, data, mode, durably=True)
    sync(os.path.dirname(path))


def put(path: str, data: bytes, mode: int = 0o644) -> None:
    """Writes a file whole or not at all, for whoever reads it meanwhile; a power loss may take it.

    Threads and processes may put the same file at once: the last one counts.
    """
    _build(f"{path}.{os.getpid()}-{threading.get_ident()}", path, data, mode, durably=False)


def _build(part: str, path: str, data: bytes, mode: int, *, durably: bool) -> None:
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(fd, data)
            if durably:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(part, path)
    except OSError:
        os.unlink(part)
        raise
