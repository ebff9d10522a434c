"""A disk that keeps only what was synced: the writes and syncs of real commands, traced from outside, replayed.

The model is stricter than any file system: a file's bytes are there when that file was synced, a name is there
when its folder was. What was not synced may be there too, in part: `image` takes a seed and keeps a random share
of the unsynced pages and, in each folder, a random first part of the unsynced changes of names.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.crash.tracing import environment

CALLS = (
    "openat,open,creat,write,pwrite64,pwritev,writev,ftruncate,truncate,rename,renameat,renameat2,link,linkat,unlink,"
    "unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,lseek,close,dup2,copy_file_range,sendfile,fallocate"
)
_LINE = re.compile(r"^(\d+)\s+(\w+)\((.*)\)\s+= (-?\d+|\?)(?:<([^>]*)>)?.*$")
_FD = re.compile(r"^(\d+)<([^>]*)>$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(?:\.\.\.)?')
_PAGE = 4096


class Event(NamedTuple):
    """Is one system call that worked: process, name, argument texts, and its result."""

    pid: str
    name: str
    args: list[str]
    result: int
    path: str | None


class Inode:
    """Is a file: the bytes that are durable, and the unsynced writes in order, (offset, bytes) or (size, None)."""

    def __init__(self, data: bytes = b"") -> None:
        self.durable = bytearray(data)
        self.pending: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        for offset, data in self.pending:
            _apply(self.durable, offset, data)
        self.pending.clear()

    def contents(self, draw: random.Random | None) -> bytes:
        """Gives what the disk may hold: without a draw nothing unsynced, else a random share of its pages."""
        if draw is None:
            return bytes(self.durable)
        data = bytearray(self.durable)
        for offset, part in self.pending:
            if part is None:
                if draw.random() < 0.5:
                    _apply(data, offset, None)
                continue
            for start in range(0, len(part), _PAGE):
                if draw.random() < 0.5:
                    _apply(data, offset + start, part[start : start + _PAGE])
        return bytes(data)


def _apply(target: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del target[offset:]
        target.extend(b"\0" * (offset - len(target)))
        return
    if len(target) < offset:
        target.extend(b"\0" * (offset - len(target)))
    target[offset : offset + len(data)] = data


class Disk:
    """Is the state below one folder: names as programs see them, and as the disk has them."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.seen: dict[str, Inode | None] = {}
        for folder, folders, files in os.walk(root):
            for name in folders:
                self.seen[os.path.join(folder, name)] = None
            for name in files:
                path = os.path.join(folder, name)
                self.seen[path] = Inode(Path(path).read_bytes())
        self.durable = dict(self.seen)
        self.changes: dict[str, list[tuple[str, Inode | str | None]]] = {}
        self.offsets: dict[tuple[str, str], int] = {}

    def play(self, events: Iterator[Event]) -> None:
        """Applies traced calls."""
        for event in events:
            self._one(event)

    def _name(self, path: str, what: Inode | str | None) -> None:
        """Notes a change of a name: a file, a folder (None), or `gone`."""
        if what == "gone":
            self.seen.pop(path, None)
        else:
            self.seen[path] = what  # type: ignore[assignment]
        self.changes.setdefault(os.path.dirname(path), []).append((path, what))

    def _one(self, event: Event) -> None:
        name, args = event.name, event.args
        if name in ("openat", "open", "creat"):
            path = event.path
            if path is None or not path.startswith(self.root):
                return
            self.offsets[event.pid, str(event.result)] = 0
            flags = args[2] if name == "openat" else args[1] if len(args) > 1 else "O_CREAT|O_TRUNC"
            if path not in self.seen and "O_CREAT" in flags:
                self._name(path, Inode())
            node = self.seen.get(path)
            if node is not None and "O_TRUNC" in flags:
                node.pending.append((0, None))
            if node is not None and "O_APPEND" in flags:
                self.offsets[event.pid, str(event.result)] = len(node.contents(None))
        elif name in ("write", "pwrite64"):
            found = self._file(args[0])
            if found is None:
                return
            fd, node = found
            data = _bytes(args[1])[: event.result]
            assert len(data) == event.result, "strace cut a string short"
            if name == "pwrite64":
                node.pending.append((int(args[3]), data))
            else:
                at = self.offsets.get((event.pid, fd), 0)
                node.pending.append((at, data))
                self.offsets[event.pid, fd] = at + len(data)
        elif name in ("writev", "pwritev", "copy_file_range", "sendfile", "fallocate", "truncate"):
            assert not any(self.root in a for a in args), f"{name} is not modelled: {args}"
        elif name == "ftruncate":
            found = self._file(args[0])
            if found is not None:
                found[1].pending.append((int(args[1]), None))
        elif name == "lseek":
            found = self._file(args[0])
            if found is not None:
                self.offsets[event.pid, found[0]] = event.result
        elif name in ("fsync", "fdatasync"):
            match = _FD.match(args[0])
            path = match[2] if match else ""
            node = self.seen.get(path)
            if node is not None:
                node.sync()
            elif path == self.root or path in self.seen:
                self._sync_folder(path)
        elif name in ("rename", "renameat", "renameat2"):
            old, new = (_text(a) for a in ([args[0], args[1]] if name == "rename" else [args[1], args[3]]))
            if old in self.seen:
                self._move(old, new)
        elif name in ("link", "linkat"):
            old, new = (_text(a) for a in ([args[0], args[1]] if name == "link" else [args[1], args[3]]))
            if old in self.seen and new.startswith(self.root):
                self._name(new, self.seen[old])
        elif name in ("unlink", "unlinkat", "rmdir"):
            path = _text(args[1] if name == "unlinkat" else args[0])
            if path in self.seen:
                self._name(path, "gone")
        elif name in ("mkdir", "mkdirat"):
            path = _text(args[1] if name == "mkdirat" else args[0])
            if path.startswith(self.root):
                self._name(path, None)

    def _move(self, old: str, new: str) -> None:
        inner = [p for p in self.seen if p.startswith(old + "/")]
        node = self.seen[old]
        self._name(old, "gone")
        self._name(new, node)
        for path in inner:
            node = self.seen[path]
            self._name(path, "gone")
            self._name(new + path[len(old) :], node)

    def _sync_folder(self, folder: str) -> None:
        for path, what in self.changes.pop(folder, []):
            _change(self.durable, path, what)

    def _file(self, word: str) -> tuple[str, Inode] | None:
        match = _FD.match(word)
        node = self.seen.get(match[2]) if match else None
        return (match[1], node) if match and node is not None else None

    def image(self, target: Path, seed: int | None) -> None:
        """Writes what the disk may hold into a folder: nothing unsynced, or with a seed some of it."""
        draw = None if seed is None else random.Random(seed)
        names = dict(self.durable)
        if draw is not None:
            for changes in self.changes.values():
                for path, what in changes[: draw.randint(0, len(changes))]:
                    _change(names, path, what)
        target.mkdir(parents=True)
        for path in sorted(names):
            there = target / os.path.relpath(path, self.root)
            node = names[path]
            if not there.parent.is_dir():
                continue  # its folder's own name was lost
            if node is None:
                there.mkdir(exist_ok=True)
            else:
                there.write_bytes(node.contents(draw))


def _change(names: dict[str, Inode | None], path: str, what: Inode | str | None) -> None:
    if what == "gone":
        names.pop(path, None)
    else:
        names[path] = what  # type: ignore[assignment]


def _bytes(word: str) -> bytes:
    match = _STRING.match(word)
    return bytes.fromhex(match[1].replace("\\x", "")) if match else b""


def _text(word: str) -> str:
    return os.fsdecode(_bytes(word))


def traced(argv: list[str], cwd: Path, env: dict[str, str], log: Path) -> tuple[bytes, Iterator[Event]]:
    """Runs a command and gives what it printed and its calls that worked, in order, its children's too."""
    done = subprocess.run(
        ["strace", "-f", "-y", "-xx", "-s", "50000000", "-o", str(log), "-e", f"trace={CALLS}", *argv],
        cwd=cwd, env=env, capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, _events(log)


def _events(log: Path) -> Iterator[Event]:
    waiting: dict[str, str] = {}
    with open(log, encoding="ascii", errors="replace") as file:
        for line in file:
            pid, _, rest = line.rstrip("\n").partition(" ")
            rest = rest.strip()
            if rest.endswith("<unfinished ...>"):
                waiting[pid] = rest[: -len("<unfinished ...>")].rstrip()
                continue
            if rest.startswith("<... "):
                rest = waiting.pop(pid, "") + re.sub(
                    r"^<\.\.\. \w+ resumed>\)?", lambda m: "" if not m[0].endswith(")") else ")", rest
                )
            match = _LINE.match(f"{pid} {rest}")
            if match is None or match[4] == "?" or int(match[4]) < 0:
                continue
            path = (
                os.fsdecode(bytes.fromhex(match[5].replace("\\x", ""))) if match[5] and "\\x" in match[5] else match[5]
            )
            yield Event(pid, match[2], [_fd(a) for a in _split(match[3])], int(match[4]), path)


def _fd(word: str) -> str:
    """Gives an argument with the path of a descriptor as text."""
    match = re.match(r"^(\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>", word)
    return f"{match[1]}<{os.fsdecode(bytes.fromhex(match[2].replace(chr(92) + 'x', '')))}>" if match else word


def _split(args: str) -> list[str]:
    """Gives the arguments of a call; strings are hexadecimal, so that a comma is always one between them."""
    return [word.strip() for word in args.split(", ")]


def clean_environment(home: Path) -> dict[str, str]:
    """Gives the commands' environment."""
    return environment(home)
