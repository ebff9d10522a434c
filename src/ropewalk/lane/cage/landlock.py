"""The cage of level `files`: Landlock, for where bubblewrap is not to be had. The program that puts itself and the
agent in it, and the command line that starts it.

It runs on a bare Python (`-I -S`) and takes the agent's place. Paths are the host's; what is not named can be neither
read nor written, and of the network one TCP port is left, as far as the kernel has Landlock for it: truncation by ABI
3, TCP by 4, devices by 5, signals and abstract sockets of others by 6. Below 3 the filter of system calls stands in for
the first, and below 6 a lane could signal processes of its own user. At no ABI does Landlock hold back a change of
mode, owner or times of a file that is the lane's user's; the tripwire sees these.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

TYPE_CHECKING = False  # the module that has it is half of what this program would load
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.lane.cage.room import Room

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_LATEST = 7
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, read a folder
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # and write, truncate, ioctl: what a file itself can bear
_DEVICES = 1 << 6 | 1 << 11  # character and block devices; nobody makes these
_BIND, _CONNECT = 1, 2
_DEV = ("null", "zero", "full", "random", "urandom", "tty")


def abi() -> int:
    """Gives the version of Landlock that the kernel has, 0 without any."""
    found = int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE, None, ctypes.c_size_t(0), 1))
    return max(0, found)


def _handled(version: int) -> int:
    bits = 13
    for since, more in ((2, 1), (3, 1), (5, 1)):
        bits += more if version >= since else 0
    return (1 << bits) - 1


def _call(*words: object) -> int:
    got = int(ctypes.CDLL(None, use_errno=True).syscall(*words))
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return got


def ruleset(version: int, rw: Sequence[str], ro: Sequence[str], ports: Sequence[int] | None) -> int:
    """Gives the descriptor of a set of rules; without `ports` (None) the network is left as it is.

    What is to be writable has to be there; a missing readable one is passed over.
    """
    handled = _handled(version)
    net = _BIND | _CONNECT if version >= 4 and ports is not None else 0
    scoped = 3 if version >= 6 else 0
    words = [handled, net, scoped][: 1 if version < 4 else 2 if version < 6 else 3]
    held = struct.pack(f"<{len(words)}Q", *words)
    made = _call(_CREATE, held, ctypes.c_size_t(len(held)), 0)
    for path, rights, needed in (*((p, handled & ~_DEVICES, True) for p in rw), *((p, _READ, False) for p in ro)):
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            if needed:
                raise
            continue
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _OF_FILES
            _call(_ADD, made, 1, struct.pack("<Qi", rights & handled, fd), 0)
        finally:
            os.close(fd)
    if net:
        # a port that the system chooses may be listened on: nobody else's
        for port, right in ((0, _BIND), *((port, _CONNECT) for port in ports or ())):
            _call(_ADD, made, 2, struct.pack("<QQ", right, port), 0)
    return made


def main(argv: list[str]) -> int:
    """Runs `landlock.py [--uid N] [--abi N] [--network N] [--tcp PORT] [--namespaces] --rw P… --ro P… -- WORDS…`."""
    paths: dict[str, list[str]] = {"--rw": [], "--ro": []}
    uid: int | None = None
    network, namespaces, most = "none", False, _LATEST
    ports: list[int] = []
    at = 0
    while at < len(argv) and argv[at] != "--":
        word, value = argv[at], argv[at + 1]
        at += 2
        if word in paths:
            paths[word].append(value)
        elif word == "--uid":
            uid = int(value)
        elif word == "--abi":
            most = int(value)
        elif word == "--network":
            network = value
        elif word == "--tcp":
            ports.append(int(value))
        elif word == "--namespaces":
            namespaces, at = True, at - 1
        else:
            sys.stderr.write(f"landlock.py: what is {word!r}?\n")
            return 2
    words = argv[at + 1 :]
    sys.path.insert(0, os.path.abspath(__file__).rsplit("/", 4)[0])
    from ropewalk.lane.cage import seccomp

    try:
        version = min(abi(), most)
        if version < 1:
            raise OSError(38, "the kernel has no Landlock")
        os.closerange(3, 1 << 16)
        made = ruleset(version, paths["--rw"], paths["--ro"], None if network == "open" else ports)
        if uid is not None:
            seccomp.drop(uid)
        elif os.geteuid() == 0:
            seccomp.drop_capabilities()
        seccomp.no_new_privileges()
        _call(_RESTRICT, made, 0)
        os.close(made)
        seccomp.install(seccomp.rules(namespaces=namespaces, sockets=network, truncates=version < 3))
    except OSError as error:
        os.write(2, f"the cage can't be closed: {error.strerror} {error.filename or ''}\n".encode())
        return 126
    os.umask(0o022)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{words[0]} can't be started: {error.strerror}\n".encode())
    return 127


def argv(room: Room, words: Sequence[str], port: int = 0, most: int = _LATEST) -> list[str]:
    """Gives the command line that runs words in a room at level `files`, with the gateway's port on the host.

    It wants its environment given beside it. `most` is the highest ABI to use.
    """
    from ropewalk.lane.cage import room as rooms

    _, python = rooms.python()
    line = [python, "-I", "-S", os.path.abspath(__file__), "--abi", str(most), "--network", room.network]
    if room.uid is not None:
        line += ["--uid", str(room.uid)]
    if room.own_sandbox:
        line += ["--namespaces"]
    if room.network == "gateway":
        for one in (port, room.door_port):
            line += ["--tcp", str(one)] if one else []
    rw = [room.workspace, room.home, room.tmp, *(f"/dev/{name}" for name in _DEV)]
    if room.uid is not None:
        rw += ["/dev/ptmx", "/dev/pts"]  # terminals of others are not this user's
    system = [f"/{name}" for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "proc")]
    ro = [*system, *rooms.etc(), *room.tools, *(one for one in (room.objects, room.door) if one)]
    for flag, names in (("--rw", rw), ("--ro", ro)):
        for name in names:
            if os.path.exists(name):
                line += [flag, name]
            elif flag == "--rw" and not name.startswith("/dev/"):
                raise FileNotFoundError(2, "there is no such folder", name)
    return [*line, "--", *words]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
