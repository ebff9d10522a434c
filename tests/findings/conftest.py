"""Fixtures of this folder: a store for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.store import projection
from storekit import Kit


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    """Gives a store of this test alone, closed at its end; its projection makes loose files, never a pack."""
    monkeypatch.setattr(projection, "_PACK_ROWS", 1 << 30)
    made = Kit(str(tmp_path / "store"))
    yield made
    made.close()
