"""The spool: requests of landers that wait, so that whoever holds the lock lands them all (flat combining).

Each process keeps one slot, a pair of files that it makes once and writes in place: making and removing a file
for each request costs more than a land, because ext4 passes over recently freed inodes one by one. The owner
keeps its slot under flock; a slot whose owner died is dropped. The leader writes an answer before it lets the
writer lock go; the owner, once it gets the lock, finds the answer, makes sure it is on disk, and leaves (A29).
"""

from __future__ import annotations

import fcntl
import os
import zlib
from typing import Any, TypeVar

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.durable import write_all
from ropewalk.core.errors import os_error

LIMIT = 64
"""How many requests one holder of the lock answers at most, so that the others' wait stays bounded."""

_HEAD = 12
T = TypeVar("T")


class Companion(msgspec.Struct, frozen=True, array_like=True):
    """Is a ref that moves with a land, in the same operation, from `old`.

    Without `words` it goes to the commit that lands, with empty ones it is removed. Else it goes to a commit without
    parents or files by `who` ("name <mail>"), with the words as its message, in which `{landed}` and `{tree}` stand
    for the commit that lands and its tree.
    """

    ref: str
    old: str | None
    words: str | None = None
    who: str = ""


class LandRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one land as it waits: ids are full, `ref` is the full name of its target; `companions` move with it.

    `gate` names a task whose reviewers must have let the change through.
    """

    id: str
    agent: str
    change: str
    ref: str
    key: str | None
    digest: bytes
    expect_target: str | None = None
    allow_revert: bool = False
    allow_reland: bool = False
    allow_mass_delete: bool = False
    since: int | None = None
    fence: tuple[str, str] | None = None
    companions: tuple[Companion, ...] = ()
    gate: str = ""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the leader's answer: a result as JSON, or an error; neither means that the owner must do it itself."""

    id: str
    op: int = 0
    result: bytes | None = None
    error: tuple[str, str, str, dict[str, Any]] | None = None


class Slot:
    """Is this process's place in the spool."""

    def __init__(self, folder: str) -> None:
        self.name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._base = os.path.join(folder, self.name)
        try:
            self._fd = os.open(f"{self._base}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._answers = os.open(f"{self._base}.ans", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.rename(f"{self._base}.new", f"{self._base}.req")
        except OSError as error:
            raise os_error(error, "making a place in the spool") from None

    def put(self, request: LandRequest) -> None:
        """Shows a request to whoever leads."""
        _write(self._fd, msgspec.msgpack.encode(request))

    def answer(self, request: LandRequest) -> Answer | None:
        """Gives the leader's answer to a request, None while there is none; the caller holds the writer lock."""
        found = _read(self._answers, Answer)
        return found if found is not None and found.id == request.id else None

    def clear(self) -> None:
        """Takes the request back."""
        os.pwrite(self._fd, b"\0" * _HEAD, 0)

    def close(self) -> None:
        """Leaves the spool."""
        for path in (f"{self._base}.req", f"{self._base}.ans"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        os.close(self._fd)
        os.close(self._answers)


def _write(fd: int, data: bytes) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    write_all(fd, len(data).to_bytes(8, "big") + zlib.crc32(data).to_bytes(4, "big") + data)


def _read(fd: int, kind: type[T]) -> T | None:
    """Gives what a slot's file holds; None when it is empty or half written."""
    data = os.pread(fd, 1 << 16, 0)
    size = int.from_bytes(data[:8], "big")
    if not 0 < size <= 1 << 26:
        return None
    if len(data) < size + _HEAD:
        data = os.pread(fd, size + _HEAD, 0)
    body = data[_HEAD : size + _HEAD]
    if len(body) != size or zlib.crc32(body) != int.from_bytes(data[8:_HEAD], "big"):
        return None
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNREADABLE:
        return None


def new_id() -> str:
    """Gives an id for a request."""
    return os.urandom(16).hex()


def waiting(folder: str, mine: str | None, limit: int = LIMIT) -> list[tuple[str, LandRequest]]:
    """Gives (slot, request) of living owners other than `mine`, and drops the slots of dead ones.

    The caller holds the writer lock.
    """
    found: list[tuple[str, LandRequest]] = []
    for name in os.listdir(folder):
        slot, _, end = name.rpartition(".")
        if end not in ("req", "new") or slot == mine:
            continue
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                request = _read(fd, LandRequest) if end == "req" and len(found) < limit else None
                if request is not None:
                    found.append((slot, request))
                continue
            if end == "req" or _old(fd):
                for leftover in (path, os.path.join(folder, f"{slot}.ans")):
                    _unlink(leftover)
        finally:
            os.close(fd)
    return found


def answered(folder: str, slot: str, request: LandRequest) -> bool:
    """Says whether a leader before us answered a request whose owner has not woken up yet."""
    try:
        fd = os.open(os.path.join(folder, f"{slot}.ans"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        found = _read(fd, Answer)
        return found is not None and found.id == request.id
    finally:
        os.close(fd)


def put_answer(folder: str, slot: str, answer: Answer) -> None:
    """Writes an answer; the caller holds the writer lock, so its owner can't look before it is whole."""
    try:
        fd = os.open(os.path.join(folder, f"{slot}.ans"), os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # its owner died
    try:
        _write(fd, msgspec.msgpack.encode(answer))
    finally:
        os.close(fd)


def _old(fd: int) -> bool:
    import time

    return time.time() - os.fstat(fd).st_mtime > 60


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
