"""Refs of a store for what is brought from a shared board: they keep it while it is worked on, and go afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ropewalk.board import holder
from ropewalk.board.remote import RemoteBoard
from ropewalk.remote import importing, transport
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store

_KIND = "board_fetch"


def prefix(board: RemoteBoard) -> str:
    """Gives what a store's refs for a board begin with."""
    from hashlib import sha256

    return f"refs/board/{sha256(board.name.encode()).hexdigest()[:12]}/"


def bring(board: RemoteBoard, store: Store, wanted: Mapping[str, str], actor: str) -> None:
    """Brings commits from the board's mirror into a store, and sets refs (full names) to them."""
    there = transport.place(board.mirror.path)
    importing.bring_refs(store, there, wanted, [], kind=_KIND, actor=actor)


@contextmanager
def brought(board: RemoteBoard, store: Store, wanted: Mapping[str, str], actor: str) -> Iterator[str]:
    """Brings commits into a store by their names in a new folder of refs, which goes at the end; gives the folder.

    No folder has a name twice, because a store knows for ever what was landed on a ref.
    """
    pid = os.getpid()
    folder = f"{prefix(board)}{pid}-{holder.started(pid)}-{os.urandom(6).hex()}/"
    bring(board, store, {folder + name: oid for name, oid in wanted.items()}, actor)
    try:
        yield folder
    finally:
        _remove(store, [name for name, _ in store.refs(folder)], actor)


def sweep(board: RemoteBoard, store: Store, actor: str) -> None:
    """Removes the folders of processes that are dead."""
    before = prefix(board)
    left = []
    for name, _ in store.refs(before):
        pid, _, rest = name[len(before) :].partition("-")
        if pid.isdigit() and holder.started(int(pid)) != rest.split("-")[0]:
            left.append(name)
    _remove(store, left, actor)


def _remove(store: Store, refs: Sequence[str], actor: str) -> None:
    moves = [Move(name, oid, None) for name in refs if (oid := store.ref(name)) is not None]
    if moves:
        with store.transaction() as tx:
            tx.record("board_done", actor, moves)
