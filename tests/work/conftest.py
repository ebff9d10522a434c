"""Fixtures of this folder: a board with workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.work.workkit import WorkKit


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WorkKit]:
    """Gives a board of ropewalk's workers alone."""
    made = WorkKit(tmp_path)
    yield made
    made.close()


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[WorkKit]:
    """Gives a board that flockwork's workers may share."""
    made = WorkKit(tmp_path, mixed=True)
    yield made
    made.close()
