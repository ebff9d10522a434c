"""Grants: words by which a gate host lets one attempt of one task land, until a moment, and nothing else.

They are signed with a key that stands in a file of the host's store, which no variable and no child process is given.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import threading

import msgspec

from ropewalk.board import names
from ropewalk.core import clock, durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import ForbiddenError, InvalidError, StoreIOError, os_error
from ropewalk.store.store import Store

LONGEST = 7 * 86_400
_MARK = "rwg_"
_SIZE = 32


class Grant(msgspec.Struct, frozen=True):
    """Is what a grant allows: the attempt of a task on a board (empty: the host's own), until a time since 1970."""

    origin: str
    task: str
    attempt: str
    until: int


def give(store: Store, origin: str, task: str, attempt: str, seconds: int) -> str:
    """Gives a grant for an attempt, as the words to hand to whoever works on it."""
    if not names.is_readable(task) or not names.is_attempt(attempt):
        raise InvalidError("a grant is for an attempt of a task", task=ascii(task[:200]), attempt=ascii(attempt[:200]))
    if any("\ud800" <= letter <= "\udfff" for letter in origin):
        raise InvalidError("the origin is not UTF-8", origin=ascii(origin[:200]))
    if not 1 <= seconds <= LONGEST:
        raise InvalidError(f"a grant is for 1 to {LONGEST} seconds", seconds=seconds)
    said = msgspec.json.encode(Grant(origin, task, attempt, clock.now() + seconds))
    return f"{_MARK}{_text(said)}.{_text(_sum(store, said))}"


def check(store: Store, words: str, origin: str, task: str, attempt: str) -> Grant:
    """Gives the grant that words are; `E_FORBIDDEN` unless it is for this attempt on this board, and not over."""
    said, dot, signed = words.removeprefix(_MARK).partition(".")
    try:
        data, given = _bytes(said), _bytes(signed)
    except (binascii.Error, ValueError):
        data, given = b"", b""
    if not words.startswith(_MARK) or not dot or not hmac.compare_digest(given, _sum(store, data)):
        raise ForbiddenError("this is no grant of this host", hint="`rw board grant` on the host makes one")
    try:
        found = msgspec.json.decode(data, type=Grant)
    except UNREADABLE:
        raise ForbiddenError("this is no grant of this host") from None
    if (found.origin, found.task, found.attempt) != (origin, task, attempt):
        raise ForbiddenError(
            f"the grant is for {found.attempt} of {found.task}{f' on {found.origin}' if found.origin else ''} alone",
            task=task, attempt=attempt,
        )  # fmt: skip
    if found.until <= clock.now():
        raise ForbiddenError("the grant is over", hint="ask the host for another", until=found.until)
    return found


def _sum(store: Store, said: bytes) -> bytes:
    return hmac.digest(_key(store), b"ropewalk grant 1\0" + said, "sha256")


def _key(store: Store) -> bytes:
    """Gives the store's key, made at its first use; what is signed with it stays good after a power loss."""
    folder = os.path.join(store.layout.root, "board")
    path = os.path.join(folder, "grant.key")
    try:
        durable.make_folders(folder)
        part = f"{path}.{os.getpid()}-{threading.get_ident()}"
        if not os.path.exists(path):
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                durable.write_all(fd, os.urandom(_SIZE))
                os.fsync(fd)
            finally:
                os.close(fd)
            try:
                os.link(part, path)  # of two that make one, the first counts
            except FileExistsError:
                pass
            finally:
                os.unlink(part)
            durable.sync(folder)
        with open(path, "rb") as file:
            found = file.read(_SIZE + 1)
    except OSError as error:
        raise os_error(error, "reading the key of grants") from None
    if len(found) != _SIZE:
        raise StoreIOError("the key of grants is damaged", hint=f"remove {path}; grants given before are void then")
    return found


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
