"""One process of a race for claims. Usage: racer.py STORE|REPOSITORY FOLDER NUMBER, with an empty FOLDER for a store.

It prints `ready`. For each line `look TASK` it looks and prints `seen`, for each `claim TASK` it claims what it saw and
prints `won ATTEMPT`, or the code of the error with its reason.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from ropewalk.board import claim, state
from ropewalk.board.base import Board
from ropewalk.board.claim import As
from ropewalk.board.local import LocalBoard
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.state import Status
from ropewalk.core.errors import RopewalkError
from ropewalk.store.store import Store


def opened(where: str, folder: str) -> Board:
    """Opens the board of a store, or of a repository by a mirror in a folder."""
    if folder:
        return RemoteBoard(where, folder)
    return LocalBoard(Store(where, lock_wait=120))


def main(where: str, folder: str, number: str) -> None:
    """Does what it is told until its input ends."""
    board = opened(where, folder)
    who = As(f"w{number}", f"race/w{number}", "command")
    seen: Status | None = None
    print("ready", flush=True)
    for line in sys.stdin:
        word, task = line.split()
        if word == "look":
            board.refresh()
            seen = state.need(board, task)
            print("seen", flush=True)
            continue
        assert seen is not None and seen.id == task
        try:
            print("won", claim.take(board, seen, who).attempt, flush=True)
        except RopewalkError as error:
            print(error.code, error.details.get("reason"), flush=True)
    board.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
