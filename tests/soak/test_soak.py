"""Everybody at once on one store: fifty writers, twenty readers, gc, backups, imports, stock git; some are killed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from .drive import soak

pytestmark = pytest.mark.race

SECONDS = float(os.environ.get("RWTEST_SOAK_SECONDS", "50"))
SEED = int(os.environ.get("RWTEST_SOAK_SEED", "1"))


def test_nothing_is_lost_while_everybody_works_at_once(tmp_path: Path) -> None:
    """A17, A19, A22: one total order, no lost update, no reader's error, and nothing left over.

    `RWTEST_SOAK_SECONDS=600` makes it the long one; the figures are printed as JSON.
    """
    found = soak(str(tmp_path / "soak"), seconds=SECONDS, seed=SEED)
    print(msgspec.json.encode(found).decode())
    assert found["wrong"] == [], "\n".join(found["wrong"])
    assert min(found["lands"], found["commits"], found["killed_from_outside"]) > 0, found
    assert all(found["chores"].get(name) for name in ("backup", "clone", "fetch", "fsck", "import")), found["chores"]
