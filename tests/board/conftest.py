"""Fixtures of this folder: a store with a board, and boards on git servers of this host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.board.boardkit import BoardKit
from tests.board.remotekit import Servers, Shared, servers


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


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Gives the servers: sshd, lighttpd and git daemon."""
    with servers(tmp_path_factory.mktemp("b")) as made:
        yield made


@pytest.fixture
def shared(ground: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shared]]:
    """Gives a way to make a board on the servers that is reached by a `path`, `git`, `ssh` or `http`."""
    monkeypatch.setenv("GIT_SSH_COMMAND", ground.master)
    made: list[Shared] = []

    def make(way: str = "path", **how: Any) -> Shared:
        made.append(Shared(ground, f"{tmp_path.name}-{len(made)}", way, tmp_path / f"hosts{len(made)}", **how))
        return made[-1]

    yield make
    for one in made:
        one.close()
