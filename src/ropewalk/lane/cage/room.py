"""Rooms: what is inside a cage, the same paths for every lane, whatever they are outside (G1, G19)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Level = Literal["full", "files", "none"]
"""Is how much holds a lane: mounts, processes and network (`full`), files alone (`files`), or nothing."""

Network = Literal["gateway", "open", "none"]

HOME, OBJECTS, WORK, DOOR, OURS = "/lane", "/objects", "/work", "/door", "/ropewalk"
UID = 61_184
"""Is the user that lanes run as where the supervisor is root; no account has it."""

BRIDGE_PORT, DOOR_PORT = 8099, 8098
_ETC = (
    "passwd", "group", "nsswitch.conf", "resolv.conf", "hosts", "host.conf", "ssl", "ca-certificates", "pki",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "alternatives", "mime.types", "os-release",
    "bash.bashrc", "profile", "inputrc", "terminfo", "fonts", "java-11-openjdk", "java-17-openjdk", "python3",
    "python3.11",
)  # fmt: skip
"""Is what of `/etc` is inside; never `shadow`, keys of the host, or what programs keep secrets in."""


class Room(NamedTuple):
    """Is what a lane gets to see. All paths are the host's.

    `tools` are folders of programs outside `/usr` that are there read-only, `objects` the store's, `gateway` the folder
    of the gateway's socket, `door` the folder of the lane's own and `door_port` its port on the host. `uid` is who it
    runs as, where that is not the supervisor itself.
    """

    workspace: str
    name: str
    home: str
    tmp: str
    objects: str
    tools: Sequence[str] = ()
    gateway: str = ""
    door: str = ""
    network: Network = "gateway"
    uid: int | None = None
    own_sandbox: bool = False
    door_port: int = 0

    @property
    def inside(self) -> str:
        """Gives the path of the workspace in a full cage."""
        return f"{WORK}/{self.name}"


def tool_folders(program: str, search: str) -> list[str]:
    """Gives the folders outside `/usr` that a program and those on a PATH need, so that they are there in a cage."""
    found: list[str] = []
    places = [shutil.which(program, path=search) or program, *search.split(os.pathsep)]
    for place in places:
        for path in (place, os.path.realpath(place)):
            for root in _roots(path):
                if not any(root == f or root.startswith(f + "/") for f in found):
                    found.append(root)
    return found


def _roots(path: str) -> list[str]:
    """Gives the folders of an installation; of one that shares its folder with other things only its own parts.

    A person's home is such a folder, and so are those in it where programs keep logins beside what they are.
    """
    root = _prefix(path)
    if not root or not os.path.exists(path):
        return []
    if os.path.basename(root) not in (".local", ".cargo", ".config") and not _is_home(root):
        return [root]
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if folder == root:
        return [] if os.path.isdir(path) else [path]
    parts = (os.path.join(root, name) for name in ("bin", "sbin", ".bin", "lib", "lib64", "libexec"))
    return [part for part in parts if os.path.isdir(part)]


def _is_home(folder: str) -> bool:
    import pwd

    shared = folder in ("/", "/home", "/opt", "/root") or os.path.dirname(folder) == "/home"
    return shared or any(folder == one.pw_dir for one in pwd.getpwall())


def _prefix(path: str) -> str:
    """Gives the folder around a program that holds all of its installation, empty where that is in the system."""
    path = os.path.normpath(path)
    if (
        not path.startswith("/")
        or path.startswith(("/usr/", "/bin/", "/sbin/", "/lib"))
        or path in ("/bin", "/sbin", "/usr")
    ):
        return ""
    parts = path.split("/")
    if "node_modules" in parts:
        return "/".join(parts[: parts.index("node_modules") + 1])
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    return os.path.dirname(folder) if os.path.basename(folder) in ("bin", "sbin", ".bin") else folder


def python() -> tuple[str, str]:
    """Gives (folder, program) of a Python with nothing but the standard library: the one we run on."""
    return os.path.realpath(sys.base_prefix), os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def python_inside(caged: bool) -> str:
    """Gives where that Python is as a lane sees it."""
    folder, program = python()
    if not caged or folder.startswith("/usr"):
        return program
    return f"{OURS}/python/{os.path.relpath(program, folder)}"


def is_reachable(path: str, uid: int | None) -> bool:
    """Says whether another user gets to a path of the host's (None: we ourselves)."""
    if uid is None:
        return os.access(path, os.X_OK)
    parts = os.path.realpath(path).split("/")
    try:
        above = [os.stat("/".join(parts[:count]) or "/") for count in range(1, len(parts) + 1)]
    except OSError:
        return False
    return all(there.st_mode & 0o001 or there.st_uid == uid for there in above)


def etc() -> list[str]:
    """Gives what of `/etc` there is to show."""
    return [f"/etc/{name}" for name in _ETC if os.path.exists(f"/etc/{name}")]


def environment(room: Room, level: Level, given: Mapping[str, str], search: str) -> dict[str, str]:
    """Gives the variables that every lane has, by an allow-list and the room alone; a real key is in none of them."""
    full = level == "full"
    home = HOME if full else room.home
    tmp = "/tmp" if full else room.tmp
    env = {name: given[name] for name in ("LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ") if name in given}
    env.setdefault("LANG", "C.UTF-8")
    env.setdefault("TERM", "dumb")
    env |= {
        "PATH": search, "HOME": home, "TMPDIR": tmp, "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_DATA_HOME": f"{home}/.local/share", "XDG_STATE_HOME": f"{home}/.local/state",
        "XDG_CACHE_HOME": f"{home}/.cache", "XDG_RUNTIME_DIR": "/run/user" if full else tmp, "USER": "lane",
        "LOGNAME": "lane", "SHELL": "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
        "GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": WORK if full else os.path.dirname(room.workspace),
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }  # fmt: skip
    return env


def identity(agent: str, name: str = "", mail: str = "") -> dict[str, str]:
    """Gives the variables by which git knows an agent as author and committer, in whatever repository (G9)."""
    family, _, instance = agent.partition("/")
    name, mail = name or agent, mail or f"{instance or family}@{family}.ropewalk.local"
    return {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", mail))}  # fmt: skip
