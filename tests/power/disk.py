"""A disk that keeps only what was synced: traced calls are replayed on it, and it says what a power loss may leave.

The model is stricter than any file system: a file's bytes are there when that file was synced, a name is there
when its folder was. What was not synced may be there too, in part and in any order between files and folders;
within one folder changes of names come to the disk in their order, but for an outcome in which only those came that
take names away, and a rename within it comes whole. A sync that
failed has lost what it was to write, and no later sync brings it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from .calls import Call

Outcome = int | str
STRICT, NAMES, GONE, LATE, ALL = "strict", "names", "gone", "late", "all"
"""Nothing unsynced; all names and no bytes; what was taken away is gone, and nothing else; all names and, of each file,
all but what was written first; everything.

A number is a seed: a random first part of each folder's changes and a random share of the pages.
"""
_PAGE = 4096


class File:
    """Is a file: the bytes programs see, the bytes that are durable, and the unsynced writes between the two."""

    def __init__(self, data: bytes = b"", mode: int = 0o644) -> None:
        self.seen = bytearray(data)
        self.durable = bytearray(data)
        self.pending: list[tuple[int, bytes | None]] = []
        self.mode = mode

    def write(self, offset: int, data: bytes | None) -> None:
        """Writes bytes at an offset; None cuts the file there."""
        self.pending.append((offset, data))
        _apply(self.seen, offset, data)

    def sync(self, failed: bool) -> None:
        """Makes what was written durable, or loses it."""
        if not failed:
            for offset, data in self.pending:
                _apply(self.durable, offset, data)
        self.pending.clear()

    def contents(self, outcome: Outcome, draw: random.Random) -> bytes:
        """Gives what the disk holds."""
        data = bytearray(self.durable)
        if outcome in (STRICT, NAMES, GONE):
            return bytes(data)
        for number, (offset, part) in enumerate(self.pending):
            if outcome == LATE and number == 0 and len(self.pending) > 1:
                continue
            if part is None:
                if isinstance(outcome, str) or draw.random() < 0.5:
                    _apply(data, offset, None)
                continue
            for start in range(0, len(part), _PAGE):
                if isinstance(outcome, str) or draw.random() < 0.5:
                    _apply(data, offset + start, part[start : start + _PAGE])
        return bytes(data)


def _apply(target: bytearray, offset: int, data: bytes | None) -> None:
    if len(target) < offset:
        target.extend(b"\0" * (offset - len(target)))
    if data is None:
        del target[offset:]
    else:
        target[offset : offset + len(data)] = data


class Link:
    """Is a symbolic link."""

    def __init__(self, target: bytes) -> None:
        self.target = target


class Folder:
    """Is a folder: the names programs see, those that are durable, and the unsynced changes, each of some names."""

    def __init__(self) -> None:
        self.seen: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[dict[str, Node | None]] = []

    def change(self, names: dict[str, Node | None]) -> None:
        """Changes names at once; None takes one away."""
        self.pending.append(names)
        _rename(self.seen, names)

    def sync(self, failed: bool) -> None:
        """Makes the names durable."""
        if not failed:
            for names in self.pending:
                _rename(self.durable, names)
            self.pending.clear()

    def names(self, outcome: Outcome, draw: random.Random) -> dict[str, Node]:
        """Gives the names the disk holds."""
        found = dict(self.durable)
        if outcome == GONE:
            taken = {name for names in self.pending if not any(names.values()) for name in names}
            return {name: node for name, node in found.items() if name not in taken}
        count = len(self.pending) if outcome != STRICT else 0
        for names in self.pending[: draw.randint(0, count) if isinstance(outcome, int) else count]:
            _rename(found, names)
        return found


def _words(call: Call) -> Iterator[str]:
    """Yields every path in a call."""
    if call.name in ("openat", "open", "creat"):
        if any("O_CREAT" in str(arg) for arg in call.args):
            yield call.path
        return
    for arg in call.args[:2] if call.name in ("write", "pwrite64") else call.args:
        if isinstance(arg, tuple):
            yield arg[1]
        elif isinstance(arg, bytes) and call.name not in ("write", "pwrite64"):
            yield os.fsdecode(arg)


Node = File | Folder | Link


def _rename(target: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            target.pop(name, None)
        else:
            target[name] = node


def _sync_all(folder: Folder) -> None:
    folder.sync(failed=False)
    for node in folder.seen.values():
        if isinstance(node, Folder):
            _sync_all(node)
        elif isinstance(node, File):
            node.sync(failed=False)


class Disk:
    """Is what is below one folder, as programs see it and as the disk has it."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.top = _load(root)
        self.offsets: dict[tuple[str, str], int] = {}
        self.append: set[tuple[str, str]] = set()

    def play(
        self, calls: Iterable[Call], without: Collection[str] = (), after: Callable[[], None] | None = None
    ) -> None:
        """Applies calls, but for the syncs that a site of the code led to; `after` is called after each that counts."""
        for call in calls:
            if not (call.sites and set(call.sites) & set(without)) and self._one(call) and after is not None:
                after()

    def counts(self, call: Call) -> bool:
        """Says whether a call may change something here."""
        return any(self.root in word for word in _words(call)) and call.name not in ("lseek", "chmod", "fchmod")

    def at(self, path: str) -> Node | None:
        """Gives what programs see at a path."""
        if path == self.root:
            return self.top
        if not path.startswith(self.root + "/"):
            return None
        node: Node | None = self.top
        for part in path[len(self.root) + 1 :].split("/"):
            node = node.seen.get(part) if isinstance(node, Folder) else None
        return node

    def _above(self, path: str) -> tuple[Folder | None, str]:
        found = self.at(os.path.dirname(path))
        return (found if isinstance(found, Folder) else None), os.path.basename(path)

    def _one(self, call: Call) -> bool:
        """Applies one call and says whether it changed something here."""
        name, args = call.name, call.args
        if name in ("openat", "open", "creat"):
            return self._open(call)
        if name in ("rename", "link", "unlink", "rmdir", "mkdir", "symlink"):
            words = [os.path.normpath(os.fsdecode(a)) for a in args if isinstance(a, bytes)]
            return self._names(name, words[1:] if name == "symlink" else words, args)
        if name in ("renameat", "renameat2", "linkat"):
            return self._names(name[:6].rstrip("a"), [call.place(0), call.place(2)], ())
        if name in ("unlinkat", "mkdirat"):
            return self._names(name[:-2], [call.place(0)], ())
        if name == "symlinkat":
            return self._names("symlink", [call.place(1)], (args[0],))
        if name in ("chmod", "fchmodat"):
            node = self.at(call.place(0) if name == "fchmodat" else os.path.normpath(os.fsdecode(bytes(args[0]))))  # type: ignore[arg-type]
            return self._mode(node, args[1 if name == "chmod" else 2])
        if name == "truncate":
            node = self.at(os.path.normpath(os.fsdecode(bytes(args[0]))))  # type: ignore[arg-type]
            if isinstance(node, File):
                node.write(int(str(args[1])), None)
            return isinstance(node, File)
        fd = args[0] if isinstance(args[0], tuple) else ("", "")
        node = self.at(fd[1])
        if node is None:
            return False
        if name == "fchmod":
            return self._mode(node, args[1])
        if name == "syncfs":
            _sync_all(self.top)
            return True
        if name in ("fsync", "fdatasync"):
            assert isinstance(node, File | Folder)
            node.sync(failed=call.result < 0)
            return True
        if name == "fallocate":
            assert args[1] == "0", f"this fallocate is not modelled: {args}"
            more = int(str(args[2])) + int(str(args[3])) - len(node.seen) if isinstance(node, File) else 0
            if isinstance(node, File) and more > 0:
                node.write(len(node.seen), bytes(more))
            return more > 0
        assert name in ("write", "pwrite64", "ftruncate", "lseek", "sendfile"), f"{name} is not modelled: {args}"
        if not isinstance(node, File):
            return False
        if name == "lseek":
            self.offsets[fd] = call.result
            return False
        if name == "ftruncate":
            node.write(int(str(args[1])), None)
        elif name == "pwrite64":
            data = args[1]
            assert isinstance(data, bytes)
            node.write(int(str(args[3])), data[: call.result])
        else:
            data = args[1][: call.result] if isinstance(args[1], bytes) else self._sent(call)
            assert len(data) == call.result, "strace cut a string short"
            offset = len(node.seen) if fd in self.append else self.offsets.get(fd, 0)
            node.write(offset, data)
            self.offsets[fd] = offset + len(data)
        return True

    def _mode(self, node: Node | None, mode: object) -> bool:
        """Sets a file's mode, which no test needs to be lost."""
        if isinstance(node, File):
            node.mode = int(str(mode), 8) & 0o777
        return False

    def _sent(self, call: Call) -> bytes:
        """Gives the bytes of a `sendfile`."""
        source, offset = call.args[1], str(call.args[2])
        assert isinstance(source, tuple) and offset.startswith("["), call
        start = int(offset.strip("[]").split(" ")[0].strip("]"))
        node = self.at(source[1])
        data = bytes(node.seen) if isinstance(node, File) else Path(source[1]).read_bytes()
        return data[start : start + call.result]

    def _open(self, call: Call) -> bool:
        above, name = self._above(call.path)
        if above is None:
            return False
        flags = str(call.args[2] if call.name == "openat" else call.args[1])
        fd = (str(call.result), call.path)
        self.offsets[fd] = 0
        (self.append.add if "O_APPEND" in flags else self.append.discard)(fd)
        node = above.seen.get(name)
        if node is None and "O_CREAT" in flags:
            above.change({name: File(mode=int(str(call.args[-1]), 8) & 0o755)})
            return True
        if isinstance(node, File) and "O_TRUNC" in flags and node.seen:
            node.write(0, None)
            return True
        return False

    def _names(self, what: str, paths: list[str], words: tuple[object, ...]) -> bool:
        above, name = self._above(paths[0])
        if what in ("rename", "link"):
            there, new = self._above(paths[1])
            node = above.seen.get(name) if above is not None else None
            if above is None or node is None or there is None:
                assert above is None and there is None, f"{what} over the edge: {paths}"
                return False
            if what == "link":
                there.change({new: node})
            elif there is above:
                above.change({name: None, new: node})
            else:
                there.change({new: node})
                above.change({name: None})
            return True
        if above is None:
            return False
        if what == "mkdir":
            above.change({name: Folder()})
        elif what == "symlink":
            target = words[0]
            assert isinstance(target, bytes)
            above.change({name: Link(target)})
        else:
            above.change({name: None})
        return True

    def image(self, target: Path, outcome: Outcome) -> None:
        """Writes into a new folder what the disk may hold."""
        made: dict[int, str] = {}
        _save(self.top, str(target), outcome, random.Random(outcome), made)


def _load(path: Path) -> Folder:
    found = Folder()
    for entry in os.scandir(path):
        node: Node
        if entry.is_symlink():
            node = Link(os.fsencode(os.readlink(entry.path)))
        elif entry.is_dir():
            node = _load(Path(entry.path))
        elif entry.is_file():
            node = File(Path(entry.path).read_bytes(), entry.stat().st_mode & 0o777)
        else:
            continue  # a socket holds nothing
        found.seen[entry.name] = node
    found.durable = dict(found.seen)
    return found


def _save(folder: Folder, path: str, outcome: Outcome, draw: random.Random, made: dict[int, str]) -> None:
    os.mkdir(path)
    for name, node in sorted(folder.names(outcome, draw).items()):
        there = f"{path}/{name}"
        if isinstance(node, Folder):
            _save(node, there, outcome, draw, made)
        elif isinstance(node, Link):
            os.symlink(node.target, os.fsencode(there))
        elif id(node) in made:
            os.link(made[id(node)], there)
        else:
            made[id(node)] = there
            fd = os.open(there, os.O_WRONLY | os.O_CREAT, node.mode | 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(node.contents(outcome, draw))
