"""The spool: requests of landers that wait, so that whoever holds the lock lands them all (flat combining).

A request is a file that its owner keeps under flock; a request whose owner died is dropped. The leader writes
an answer beside it before it lets the writer lock go; the owner, once it gets the lock, finds the answer, makes
sure it is on disk, and leaves (finding A29).
"""

from __future__ import annotations

import fcntl
import os
import uuid
from typing import Any

import msgspec

from ropewalk.store.loose import write_all

LIMIT = 64
"""How many requests one holder of the lock answers at most, so that the others' wait stays bounded."""


class LandRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one land as it waits: ids are full, `ref` is the target's full name, `decided` the resolved tree."""

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


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the leader's answer: a result as JSON, or an error; neither means that the owner must do it itself."""

    op: int = 0
    result: bytes | None = None
    error: tuple[str, str, str, dict[str, Any]] | None = None


class Waiting:
    """Is one's own request in the spool."""

    def __init__(self, folder: str, request: LandRequest) -> None:
        self.path = os.path.join(folder, f"{request.id}.req")
        part = os.path.join(folder, f".{request.id}.new")
        self._fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        write_all(self._fd, msgspec.msgpack.encode(request))
        os.rename(part, self.path)

    def answer(self) -> Answer | None:
        """Gives the leader's answer, None while there is none."""
        try:
            with open(self.path[:-4] + ".ans", "rb") as file:
                return msgspec.msgpack.decode(file.read(), type=Answer)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Takes the request and its answer out of the spool."""
        for path in (self.path, self.path[:-4] + ".ans"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        os.close(self._fd)


def new_id() -> str:
    """Gives an id for a request."""
    return uuid.uuid4().hex


def waiting(folder: str, limit: int = LIMIT) -> list[LandRequest]:
    """Gives the requests of living owners, oldest names first, and drops those of dead ones.

    The caller holds the writer lock. A request that was answered already is passed over.
    """
    found: list[LandRequest] = []
    names = os.listdir(folder)
    answered = {name[:-4] for name in names if name.endswith(".ans")}
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith(".ans"):
            if f"{name[:-4]}.req" not in names:
                _unlink(path)
            continue
        if name[:-4] in answered and name.endswith(".req"):
            continue
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if name.endswith(".req") and len(found) < limit:
                    found.append(msgspec.msgpack.decode(os.read(fd, 1 << 20), type=LandRequest))
                continue
            # nobody holds it: its owner died, or is between its making and its lock
            if name.endswith(".req") or _old(fd):
                _unlink(path)
        finally:
            os.close(fd)
    return found


def put_answer(folder: str, request_id: str, answer: Answer) -> None:
    """Writes an answer; the caller holds the writer lock, so its owner can't look before it is whole."""
    path = os.path.join(folder, f"{request_id}.ans")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, msgspec.msgpack.encode(answer))
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
