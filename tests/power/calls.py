"""The system calls of a command that change a disk, as strace saw them, the command's children among them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CALLS = (
    "openat,open,creat,write,pwrite64,pwritev,writev,ftruncate,truncate,rename,renameat,renameat2,link,linkat,unlink,"
    "unlinkat,mkdir,mkdirat,rmdir,symlink,symlinkat,chdir,chmod,fchmod,fchmodat,fsync,fdatasync,syncfs,lseek,copy_file_range,sendfile,fallocate"
)
SITES = "/rw-sites/"
"""Before a sync a told command asks for the removal of a folder of this name, followed by the sites that led there."""
_LINE = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+|\?)(?:<([^>]*)>)?(.*)$")
_FD = re.compile(r"^(\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(?:\.\.\.)?')
_CWD = re.compile(r"AT_FDCWD<((?:\\x[0-9a-f]{2})+)>")
_PLAIN = ("rename", "link", "unlink", "rmdir", "mkdir", "chdir", "chmod", "truncate")
_RESUMED = re.compile(r"^<\.\.\. \w+ resumed>")


class Call(NamedTuple):
    """Is one system call: its name, arguments, and result (a failed sync's is negative).

    A descriptor among the arguments is (number, path), a string is bytes, anything else is text. `path` is what
    an opened descriptor leads to, `sites` are the code's sites that led to a sync.
    """

    name: str
    args: tuple[bytes | str | tuple[str, str], ...]
    result: int
    path: str = ""
    sites: tuple[str, ...] = ()

    def place(self, at: int) -> str:
        """Gives the path that two arguments name together, a folder's descriptor and a name."""
        folder, name = self.args[at], self.args[at + 1]
        assert isinstance(folder, tuple) and isinstance(name, bytes), self
        return os.path.normpath(os.path.join(folder[1], os.fsdecode(name)))


def traced(argv: list[str], cwd: Path, env: dict[str, str], log: Path, inject: str = "") -> tuple[int, bytes, bytes]:
    """Runs a command under strace and gives how it ended and what it printed; `inject` is strace's word for a fault."""
    # stopping at the traced calls alone is faster, but sends no signal
    how = ["-e", f"inject={inject}"] if inject else ["--seccomp-bpf"]
    done = subprocess.run(
        ["strace", "-f", *how, "-y", "-xx", "-s", "50000000", "-o", str(log), "-e", f"trace={CALLS}", *argv],
        cwd=cwd, env=env, capture_output=True, timeout=300,
    )  # fmt: skip
    return (-signal.SIGKILL if done.returncode == 128 + signal.SIGKILL else done.returncode), done.stdout, done.stderr


def read(log: Path) -> Iterator[Call]:
    """Gives the calls of a log that worked, in the order in which they ended, and the syncs that failed."""
    waiting: dict[str, str] = {}
    told: dict[str, tuple[str, ...]] = {}
    cwd: dict[str, str] = {}
    with open(log, encoding="ascii", errors="replace") as file:
        for line in file:
            pid, _, rest = line.rstrip("\n").partition(" ")
            rest = rest.strip()
            if rest.endswith("<unfinished ...>"):
                waiting[pid] = rest[: -len("<unfinished ...>")].rstrip()
                continue
            if rest.startswith("<... "):
                rest = waiting.pop(pid, "") + _RESUMED.sub("", rest)
            match = _LINE.match(rest)
            if match is None or match[3] == "?":
                continue
            name, result = match[1], int(match[3])
            if found := _CWD.search(match[2]):
                cwd[pid] = _hex(found[1])
            if result < 0 and name == "rmdir" and _text(match[2].split(", ")[0]).startswith(SITES):
                told[pid] = tuple(_text(match[2]).removeprefix(SITES).split(";"))
                continue
            if result < 0 and not (name in ("fsync", "fdatasync") and "EIO" in match[5]):
                continue
            # strings are hexadecimal, so a comma is always one between arguments
            args = tuple(_argument(word.strip()) for word in match[2].split(", "))
            if name in _PLAIN:
                # a program has opened its libraries by the time it names a path, which tells where it is
                args = tuple(_full(a, cwd, pid) if isinstance(a, bytes) else a for a in args)
            if name == "chdir":
                cwd[pid] = os.fsdecode(os.path.normpath(bytes(args[0])))  # type: ignore[arg-type]
                continue
            yield Call(name, args, result, _hex(match[4] or ""), told.pop(pid, ()) if "sync" in name else ())


def _full(name: bytes, cwd: dict[str, str], pid: str) -> bytes:
    return name if name.startswith(b"/") else os.path.join(os.fsencode(cwd[pid]), name)


def _argument(word: str) -> bytes | str | tuple[str, str]:
    if found := _STRING.match(word):
        return bytes.fromhex(found[1].replace("\\x", ""))
    if found := _FD.match(word):
        return found[1], "" if found[3] else _hex(found[2])
    return word


def _text(word: str) -> str:
    found = _STRING.match(word)
    return _hex(found[1]) if found else ""


def _hex(word: str) -> str:
    return os.fsdecode(bytes.fromhex(word.replace("\\x", ""))) if word.startswith("\\x") else word
