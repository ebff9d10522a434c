"""Mounts of overlays: made and taken away by system calls, and known by what the kernel says of them.

`index=on` makes the kernel refuse an upper folder that is mounted already, in whatever namespace; `redirect_dir=on`
lets folders of the tree below be renamed (finding A41).
"""

from __future__ import annotations

import errno
import os
import re
from typing import NamedTuple

_PLAIN = re.compile(r"[A-Za-z0-9/._@%+=-]+\Z")
_OCTAL = re.compile(r"\\([0-7]{3})")
_DETACH = 2
_PROBE = ".probe-"


class Layers(NamedTuple):
    """Is what an overlay is made of: the shared tree below, and the folders for what is changed."""

    lower: str
    upper: str
    work: str

    def usable(self) -> bool:
        """Says whether the paths can stand in a mount's options."""
        return all(_PLAIN.match(path) for path in self)


def mount(layers: Layers, point: str) -> None:
    """Mounts an overlay; `OSError` when the kernel refuses."""
    options = (
        f"lowerdir={layers.lower},upperdir={layers.upper},workdir={layers.work},"
        "redirect_dir=on,index=on,metacopy=off,xino=auto"
    )
    _call("mount", b"overlay", os.fsencode(point), b"overlay", 0, os.fsencode(options))


def unmount(point: str, *, detach: bool = False) -> None:
    """Takes a mount away, with `detach` also one that a process uses; `OSError` when it can't."""
    _call("umount2", os.fsencode(point), _DETACH if detach else 0)


def sync_file_system(folder: str) -> None:
    """Puts all that was written to a folder's file system on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _call("syncfs", fd)
    finally:
        os.close(fd)


def _call(name: str, *arguments: object) -> None:
    import ctypes

    # ints beyond the first are flags, which are longs
    given = [ctypes.c_ulong(word) if isinstance(word, int) and name == "mount" else word for word in arguments]
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*given) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def upper_at(point: str) -> str | None:
    """Gives the upper folder of the overlay that is mounted at a path; None when the topmost mount there is none."""
    real = os.path.realpath(point)
    found = None
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except FileNotFoundError:
        return None
    for line in lines:
        before, _, after = line.rstrip("\n").partition(" - ")
        words, kind = before.split(" "), after.split(" ")
        if len(words) > 4 and len(kind) > 2 and _plain(words[4]) == real:
            options = dict(part.partition("=")[::2] for part in kind[2].split(","))
            found = _plain(options.get("upperdir", "")) if kind[0] == "overlay" else None
    return found


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def is_sound(folder: str) -> bool:
    """Says whether overlays can be used below a folder, by making one there and trying what fails where they can't.

    A file of the tree below keeps its inode number, so that an index made there is good, and a folder of it can be
    renamed. It is False without the right to mount, and in a user namespace, where such renames are refused.
    """
    from ropewalk.workspace.files import remove_tree

    _tidy(folder)
    place = os.path.join(folder, f"{_PROBE}{os.getpid()}")
    layers = Layers(*(os.path.join(place, name) for name in ("lower", "upper", "work")))
    point = os.path.join(place, "point")
    if not layers.usable():
        return False
    try:
        for path in (*layers, point, os.path.join(layers.lower, "folder")):
            os.makedirs(path)
        with open(os.path.join(layers.lower, "folder", "file"), "wb"):
            pass
        inode = os.stat(os.path.join(layers.lower, "folder", "file")).st_ino
        mount(layers, point)
        try:
            os.rename(os.path.join(point, "folder"), os.path.join(point, "moved"))
            return os.stat(os.path.join(point, "moved", "file")).st_ino == inode
        finally:
            unmount(point, detach=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    finally:
        try:
            remove_tree(place)
        except OSError:
            pass


def _tidy(folder: str) -> None:
    """Takes away what a killed probe left, its mount too."""
    from ropewalk.workspace.files import remove_tree

    for name in os.listdir(folder):
        pid = name.removeprefix(_PROBE)
        if name == pid or not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        place = os.path.join(folder, name)
        try:
            if upper_at(os.path.join(place, "point")) is not None:
                unmount(os.path.join(place, "point"), detach=True)
            remove_tree(place)
        except OSError:
            continue
