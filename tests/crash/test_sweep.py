"""A kill, an I/O error or a full disk at each system call that changes something, for every operation that writes.

In the full run (RWTEST_FULL=1) at least 80 points an operation and kind, or all it has; else a sample. With
RWTEST_SWEEP_RESULTS=FILE each point is noted there, and `python -m tests.crash.table` makes the table of
docs/reliability.md from it. `python -m tests.crash.sweep` runs any part by hand.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .boards import ALL
from .scenarios import Scenario
from .sweep import KINDS, chosen, template, tried

FULL = os.environ.get("RWTEST_FULL") == "1"
MOST = int(os.environ.get("RWTEST_SWEEP_MOST", "80"))
SAMPLE = {"kill": 3, "EIO": 1, "ENOSPC": 1, "EIO for good": 1, "ENOSPC for good": 1}
SLICES = 8 if FULL else 1

pytestmark = pytest.mark.crash


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives the folder of the prepared stores, which all processes of the test run share."""
    mine = tmp_path_factory.getbasetemp()
    return (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "sweep"


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name.replace(" ", "-"))
def test_what_is_promised_holds_after_a_strike(
    base: Path, tmp_path: Path, scenario: Scenario, kind: str, part: int
) -> None:
    made = template(base, scenario)
    if FULL:
        points = chosen(made, MOST)[part::SLICES]
    else:
        # each kind meets other points of the sample
        at = sum(list(SAMPLE.values())[: list(KINDS).index(kind)])
        points = chosen(made, sum(SAMPLE.values()))[at : at + SAMPLE[kind]]
    failures = [f for p in points if (f := tried(scenario, made, kind, p, tmp_path / "t")) is not None]
    assert not failures, "\n".join(f"{f.kind} at {f.point}: {f.words}" for f in failures)
