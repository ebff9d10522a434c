"""Fixtures of this folder: a store for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from storekit import Kit


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    """Gives a store of this test alone, closed at its end."""
    made = Kit(str(tmp_path / "store"))
    yield made
    made.close()
