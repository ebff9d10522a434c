"""The full cage: bubblewrap, with mounts of its own, a PID namespace, and no network but a bridge to the gateway."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from ropewalk.core.errors import CageUnavailableError
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import DOOR, HOME, OBJECTS, OURS, Room

_SCRIPTS = os.path.dirname(os.path.abspath(__file__))
_INSIDE = f"{OURS}/ropewalk/lane/cage"  # where what lies beside the script is imported from


def program() -> str:
    """Gives the path of bubblewrap; `E_CAGE_UNAVAILABLE` when it is missing."""
    found = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
    if found is None:
        raise CageUnavailableError("bubblewrap is not installed", level="full")
    return found


def argv(room: Room, words: Sequence[str], env: Mapping[str, str] | None) -> list[str]:
    """Gives the command line that runs words inside the cage.

    Without `env` the environment is that of whoever starts it: everybody on the machine sees command lines, so that no
    environment with a token in it may be on one. It has to be started by a thread that lives as long as the lane: the
    cage ends with it (G3).
    """
    own, ours = rooms.python()[0], rooms.python_inside(True)
    line = [
        program(), "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--new-session", "--hostname", "lane", "--cap-drop", "ALL",
    ]  # fmt: skip
    if env is not None:
        line += ["--clearenv"]
    if room.uid is not None:
        # the mounts are made as root, and what runs inside gives it up
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
    elif not room.own_sandbox:
        line += ["--unshare-user", "--disable-userns"]
    if room.network != "open":
        line += ["--unshare-net"]
    line += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        path = f"/{name}"
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path).lstrip("/"), path]
        elif os.path.isdir(path):
            line += ["--ro-bind", path, path]
    line += ["--perms", "0755", "--dir", "/etc"]
    for path in rooms.etc():
        line += ["--ro-bind", os.path.realpath(path), path]
    line += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--tmpfs", "/run", "--perms", "1777", "--dir",
             "/run/user", "--perms", "0755", "--dir", "/var", "--bind", room.tmp, "/tmp", "--bind", room.tmp,
             "/var/tmp"]  # fmt: skip
    for folder in room.tools:
        line += [*_parents(folder), "--ro-bind", folder, folder]
    line += ["--perms", "0755", "--dir", OURS, *_parents(_INSIDE), "--ro-bind", _SCRIPTS, _INSIDE]
    if not own.startswith("/usr"):
        line += ["--ro-bind", own, f"{OURS}/python"]
    line += ["--perms", "0755", "--dir", rooms.WORK, "--bind", room.workspace, room.inside, "--bind", room.home, HOME,
             "--ro-bind", room.objects, OBJECTS]  # fmt: skip
    line += _alternates(room)
    doors = [(room.gateway, f"{DOOR}/gateway"), (room.door, f"{DOOR}/lane")]
    line += ["--perms", "0755", "--dir", DOOR]
    for outside, inside in doors:
        if outside:
            line += ["--ro-bind", outside, inside]
    if room.door:
        line += ["--ro-bind", os.path.join(room.door, "bin"), f"{OURS}/bin"]
    line += ["--remount-ro", "/", "--chdir", "/"]
    for name, value in (env or {}).items():
        line += ["--setenv", name, value]
    return [*line, "--", ours, "-I", "-S", f"{_INSIDE}/inside.py", *_inside(room), "--", *words]


def _inside(room: Room) -> list[str]:
    """Gives the words of the program that is first in the cage."""
    # bubblewrap, without root's powers by then, may not enter a tree that is closed to all but the lane's user
    words = ["--cwd", room.inside]
    if room.uid is not None:
        words += ["--uid", str(room.uid)]
    if room.own_sandbox:
        words += ["--namespaces"]
    if room.network == "gateway" and room.gateway:
        words += ["--bridge", str(rooms.BRIDGE_PORT), f"{DOOR}/gateway/gateway.sock"]
    if room.network != "open" and room.door:
        words += ["--bridge", str(rooms.DOOR_PORT), f"{DOOR}/lane/door.sock"]
    return words


def _parents(folder: str) -> list[str]:
    """Gives the words that make the folders above one, open to all: those that bubblewrap makes are its own (G7)."""
    words: list[str] = []
    parts = folder.strip("/").split("/")
    for count in range(1, len(parts)):
        words += ["--perms", "0755", "--dir", "/" + "/".join(parts[:count])]
    return words


def _alternates(room: Room) -> list[str]:
    """Gives the words by which the workspace's git finds the store's objects at their place in the cage."""
    path = os.path.join(room.workspace, ".git", "objects", "info", "alternates")
    if not os.path.isfile(path):
        return []
    # beside the home, not in it: what is in it is the lane's, links among it
    own = f"{room.home}.objects"
    fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o644)  # the lane's user reads it, whatever our umask
        file.write(f"{OBJECTS}\n")
    return ["--ro-bind", own, f"{room.inside}/.git/objects/info/alternates"]
