"""The probe: what a git server takes of a board's pushes, found out by scratch refs that are removed again (F4, F13).

No branch is ever moved or made: it is pushed together with a ref that can't be made, in a push that is done whole or
not at all, and only after the same was seen to be refused whole for scratch refs.
"""

from __future__ import annotations

import os
import re

import msgspec

from ropewalk.board import names, wire
from ropewalk.board.base import Step, now_object
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Object
from ropewalk.core import clock, durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import (
    CasMismatchError,
    InvalidError,
    RemoteError,
    RopewalkError,
    UnsupportedError,
    os_error,
)
from ropewalk.core.ids import short_ref
from ropewalk.remote import transport
from ropewalk.store.loose import object_id
from ropewalk.store.oplog import Move

SCRATCH = names.ROOT + "probe/"

_ACCEPT_ENV = "in the server's sshd_config: AcceptEnv GIT_PROTOCOL (else every look transfers the names of all refs)"
_ACTOR = "probe/one"
_VERSION = re.compile(rb"< version (\d)")


class Refusal(msgspec.Struct, frozen=True):
    """Is what a server refused, in its own words."""

    what: str
    words: str


class Probed(msgspec.Struct, frozen=True):
    """Is what a server can do; None where it could not be found out.

    `usable` says whether a board can be there, `landing` how changes get onto the target: `push`, `pr` where it is
    protected, or None. `left` are scratch refs that could not be removed.
    """

    board: str
    transport: str
    protocol: int
    create: bool | None
    replace: bool | None
    delete: bool | None
    atomic: bool | None
    branches: bool | None
    target: str
    target_there: bool
    target_push: bool | None
    usable: bool
    landing: str | None
    refused: list[Refusal]
    advice: list[str]
    left: list[str]


def probe(board: RemoteBoard, target: str = "main") -> Probed:
    """Gives what the server of a board takes, and notes it on this host.

    Raises `E_REMOTE` or `E_NOT_FOUND` when it can't even be read.
    """
    found = _Probe(board, target).run()
    path = _noted(board, target)
    try:
        # it is asked for again when a power loss takes it, so it is put in place and not synced
        durable.put(path, msgspec.json.encode(found))
    except OSError as error:
        raise os_error(error, "noting what the server takes") from None
    return found


def remembered(board: RemoteBoard, target: str = "main") -> Probed | None:
    """Gives what the last probe on this host found; None when there was none."""
    try:
        with open(_noted(board, target), "rb") as file:
            return msgspec.json.decode(file.read(), type=Probed)
    except FileNotFoundError:
        return None
    except UNREADABLE:
        return None
    except OSError as error:
        raise os_error(error, "reading what the server takes") from None


def _noted(board: RemoteBoard, target: str) -> str:
    from urllib.parse import quote

    return os.path.join(board.folder, f"probed-{quote(target, safe='')}.json")


class _Probe:
    def __init__(self, board: RemoteBoard, target: str) -> None:
        self.board = board
        self.target = names.branch(target)
        self.base = f"{SCRATCH}{os.urandom(6).hex()}/"
        self.branch = f"{names.HEADS}ropewalk-probe-{os.urandom(6).hex()}"
        self.refused: list[Refusal] = []

    def run(self) -> Probed:
        """Runs all trials, and removes what they made."""
        board = self.board
        protocol = _protocol(board)
        board.refresh()
        head = board.ref(self.target)
        create = replace = delete = atomic = branches = target_push = None
        try:
            one, two = now_object("probe 1"), now_object("probe 2")
            create = self._try("create", Move(f"{self.base}a", None, one.id), made=[one])
            if create is None:
                atomic = False
            if create:
                replace = self._try("replace", Move(f"{self.base}a", one.id, two.id), made=[two])
                atomic = self._whole(two)
                if atomic:
                    branches = self._rules("create a branch", Move(self.branch, None, head or two.id), [two])
                    target_push = self._target(head) if head is not None else None
        finally:
            delete, left = self._clean()
        usable = bool(create and replace and delete and atomic)
        landing = (
            ("push" if target_push or (head is None and branches) else "pr" if branches else None) if usable else None
        )
        return Probed(
            board.name, _kind(board), protocol, create, replace, delete if create else None, atomic, branches,
            short_ref(self.target), head is not None, target_push, usable, landing, self.refused,
            self._advice(protocol, atomic, target_push), left,
        )  # fmt: skip

    def _try(self, what: str, *moves: Move, made: list[Object]) -> bool | None:
        """Does a step; says whether the server took it, None when it knows no atomic push."""
        try:
            self.board.push(Step("probe", _ACTOR, moves, made))
            return True
        except UnsupportedError as error:
            self.refused.append(Refusal("atomic push", error.message))
            return None
        except (RemoteError, InvalidError, CasMismatchError) as error:
            self.refused.append(Refusal(what, error.message))
            return False

    def _whole(self, made: Object) -> bool:
        """Says whether a push that can't be done whole is not done at all: a ref is made below another ref."""
        before = len(self.refused)
        other = f"{self.base}b"
        taken = self._try("clash", Move(other, None, made.id), Move(f"{self.base}a/x", None, made.id), made=[made])
        if not taken:
            del self.refused[before:]
        self.board.refresh()
        return not taken and self.board.ref(other) is None

    def _target(self, head: str) -> bool | None:
        """Says whether the server's rules would take a push to the target."""
        content = self.board.content(head)
        if content is None:
            return None
        made = _child(head, content)
        return self._rules(f"push to {short_ref(self.target)}", Move(self.target, head, made.id), [made])

    def _rules(self, what: str, move: Move, made: list[Object]) -> bool | None:
        """Says whether the server's rules would take a move of a branch, by a push that can't be done whole."""
        clash = now_object("probe clash")
        moves = [move, Move(f"{self.base}a/x", None, clash.id)]
        try:
            self.board.push(Step("probe", _ACTOR, moves, [*made, clash]))
        except InvalidError:
            return True  # the clash alone stood against it
        except CasMismatchError:
            return None
        except RemoteError as error:
            if error.details.get("reason") == "rejected":
                self.refused.append(Refusal(what, error.message))
                return False
            return None
        return True

    def _clean(self) -> tuple[bool, list[str]]:
        """Removes what the trials left; says whether all is gone, and gives what is not."""
        board = self.board
        try:
            board.refresh()
            there = [(name, oid) for name, oid in board.below(self.base)]
            gone = self._try("delete", *(Move(name, oid, None) for name, oid in there), made=[]) if there else True
            if gone:
                return True, []
            for name, oid in there:
                try:
                    board.push(Step("probe", _ACTOR, [Move(name, oid, None)]))
                except RopewalkError:
                    continue
            board.refresh()
            left = [name for name, _ in there if board.ref(name) is not None]
            return not left, left
        except (RemoteError, UnsupportedError) as error:
            self.refused.append(Refusal("clean up", error.message))
            return False, [f"{self.base}*"]

    def _advice(self, protocol: int, atomic: bool | None, target_push: bool | None) -> list[str]:
        found = []
        if protocol < 2:
            found.append(
                _ACCEPT_ENV
                if _kind(self.board) == "ssh"
                else "the server speaks an old protocol: every look transfers the names of all refs; git 2.26 there"
            )
        if atomic is False:
            found.append("the server has no atomic push (receive.advertiseAtomic): put the board on another one")
        if target_push is False:
            found.append(f"{short_ref(self.target)} is protected: changes are to land there by pull requests")
        return found


def _child(head: str, content: bytes) -> Object:
    at = clock.now()
    tree = content[5:45].decode("ascii")
    words = f"tree {tree}\nparent {head}\nauthor {wire.WHO} {at} +0000\ncommitter {wire.WHO} {at} +0000\n\nprobe\n"
    data = words.encode()
    return Object(object_id("commit", data), data)


def _protocol(board: RemoteBoard) -> int:
    """Gives the version of git's protocol that the server answers a fetch with."""
    there = board.there
    done = transport.call(
        None, there, "-c", "protocol.version=2", "ls-remote", *transport.upload_pack(there), "--", there.address,
        names.LAW, extra_env={"GIT_TRACE_PACKET": "1"}, wait=board.mirror.wait,
    )  # fmt: skip
    found = _VERSION.search(done.err)
    return int(found[1]) if found else 0


def _kind(board: RemoteBoard) -> str:
    if board.there.path is not None:
        return "path"
    scheme, there, _ = board.there.address.partition("://")
    return scheme.lower().removeprefix("git+") if there else "ssh"
