"""Which board is meant, and how it is opened: nothing is contacted before it is known, and there is no default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ropewalk.board.base import Board
from ropewalk.board.local import LocalBoard
from ropewalk.board.remote import RemoteBoard
from ropewalk.core.errors import NoBoardError, NotFoundError, os_error
from ropewalk.remote import transport
from ropewalk.store import layout
from ropewalk.store.store import Store

MARKER = os.path.join(".flockwork", "origin")
"""Is the file in which flockwork notes a working folder's board."""

VARIABLES = ("ROPEWALK_BOARD", "SWARM_ORIGIN")
"""Are the variables that may name a board, ours first."""


class Meant(NamedTuple):
    """Is the board that is meant: a store's folder or a git address, and what said so.

    `said_by` is `argument`, a variable's name, `.flockwork/origin`, or `store` for the store at hand.
    """

    kind: Literal["store", "remote"]
    where: str
    said_by: str

    @property
    def shown(self) -> str:
        """Gives where it is, without a password."""
        return transport.public(self.where)


def find(argument: str | None, env: Mapping[str, str], cwd: str, store: str | None = None) -> Meant:
    """Gives the board that is meant: by the argument, a variable, flockwork's marker, or the store at hand.

    `.` as argument is the store at hand, which is `store`, or the one that the working folder belongs to. Raises
    `E_NO_BOARD` when nothing says.
    """
    if argument == ".":
        return _at_hand(cwd, store, "argument")
    if argument:
        return _named(argument, cwd, "argument")
    for variable in VARIABLES:
        if env.get(variable):
            return _named(env[variable], cwd, variable)
    if (marked := _marked(cwd)) is not None:
        return _named(marked[0], marked[1], MARKER)
    return _at_hand(cwd, store, "store")


def open_board(meant: Meant, cache: str, *, wait: float = transport.WAIT, store: Store | None = None) -> Board:
    """Opens a board; `close` lets go of all that was opened here.

    `cache` is the user's folder for what may be deleted at any time, `store` an open store that is used where it is
    the one that is meant, and left open.
    """
    if meant.kind == "remote":
        return RemoteBoard(meant.where, folder_of(meant.where, cache), wait=wait)
    if store is not None and os.path.realpath(store.layout.root) == os.path.realpath(meant.where):
        return LocalBoard(store)
    return _OwnStore(Store(meant.where))


def folder_of(address: str, cache: str) -> str:
    """Gives the folder below a cache for what this host knows of the board at an address."""
    from hashlib import sha256

    there = transport.place(address)
    # one board has one folder by whatever path it is named, and with whatever password
    name = os.path.realpath(there.path) if there.path is not None else transport.public(there.address)
    digest = sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return os.path.join(cache, "ropewalk", "boards", digest)


class _OwnStore(LocalBoard):
    """Is the board of a store that was opened for it."""

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


def _named(text: str, cwd: str, said_by: str) -> Meant:
    if text.lower().startswith("file://"):
        text = text[len("file://") :]
    path = os.path.normpath(os.path.join(cwd, text))
    if transport.is_url(text) and not os.path.lexists(path):
        return Meant("remote", text, said_by)
    for root in (path, os.path.dirname(path) if os.path.basename(path) == "repo.git" else ""):
        if root and os.path.isfile(os.path.join(root, "FORMAT")) and os.path.isdir(os.path.join(root, "repo.git")):
            return Meant("store", root, said_by)
    return Meant("remote", path, said_by)


def _at_hand(cwd: str, store: str | None, said_by: str) -> Meant:
    if store is not None:
        return Meant("store", store, said_by)
    try:
        return Meant("store", layout.discover(cwd), said_by)
    except NotFoundError:
        words = "there is no store here or above" if said_by == "argument" else "nothing says which board is meant"
        raise NoBoardError(words) from None


def _marked(cwd: str) -> tuple[str, str] | None:
    """Gives what flockwork's marker says, in a folder or above, with that folder; one of a stranger's is no word."""
    folder = os.path.realpath(cwd)
    while True:
        path = os.path.join(folder, MARKER)
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                if os.fstat(file.fileno()).st_uid in (os.geteuid(), 0) and (text := file.read(65_536).strip()):
                    return text, folder
        except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
            pass
        except OSError as error:
            raise os_error(error, f"read of {MARKER}") from None
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
