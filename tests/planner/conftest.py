"""A project in a store for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.plannerkit import project
from storekit import Kit


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    """Gives a store with a small project."""
    made = Kit(str(tmp_path / "store"))
    project(made)
    yield made
    made.close()
