"""Fixtures of this folder: a store with a board."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.board.boardkit import BoardKit


@pytest.fixture
def new_board(tmp_path: Path) -> Iterator[Callable[..., BoardKit]]:
    """Gives a way to make boards in stores, and to open them again; all are closed at the test's end."""
    opened: list[BoardKit] = []

    def make(name: str = "store", *, mixed: bool = False) -> BoardKit:
        opened.append(BoardKit(tmp_path / name, mixed=mixed))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def board(new_board: Callable[..., BoardKit]) -> BoardKit:
    """Gives a board of ropewalk's workers alone."""
    return new_board()
