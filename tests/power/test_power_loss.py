"""After a power loss at any command's answer, and in the middle of one: what was acknowledged is there, all is sound.

And no sync of the code is there for nothing: `PROOFS` names for each site a story that fails without it. A sync
leaves no trace but itself, so the calls of one run are replayed with the site's syncs left out; a sample of them, in
the full run each, is left out of the code itself too, which tells of a flush whose place a later one takes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .proofs import PROOFS
from .stories import STORIES
from .without import sites
from .world import FIXED

FULL = os.environ.get("RWTEST_FULL") == "1"
SEEDS = range(1, 9) if FULL else range(1, 2)
CUTS = 40 if FULL else 3
CUT = ("writes", "imports", "gc", "backup", "failed_sync")
SLOW = (
    "checked_by_another", "conflict_in_the_queue", "failed_sync", "gc", "gc_of_large", "land_again",
    "land_answered_late", "land_answered_lost", "land_conflict", "land_lost", "large", "log_removed", "repair_again",
)  # fmt: skip
"""Stories of the full run alone; the others prove every sync."""
SAMPLE = (
    "gateway/renewal.py:_place.put:2", "lane/sweep.py:archive:3", "store/loose.py:LooseStore.put:1",
    "store/store.py:Store.transaction:1",
)  # fmt: skip
"""Syncs that every run leaves out of the code itself; the full run does so with each."""


def test_every_sync_has_a_proof() -> None:
    assert sorted(sites()) == sorted(PROOFS), "a sync without a proof, or a proof without a sync"
    assert set(PROOFS.values()) <= set(STORIES) - set(SLOW)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in STORIES])
def test_what_was_acknowledged_survives_a_power_loss(tmp_path: Path, name: str) -> None:
    world = STORIES[name](tmp_path / "w", "")
    wrong = list(world.losses([*FIXED, *SEEDS]))
    assert not wrong, "\n".join(wrong)
    if name in CUT:
        wrong = list(world.cuts(1, CUTS))
        assert not wrong, "\n".join(wrong)
    needless = [site for site, story in PROOFS.items() if story == name and not any(world.losses(FIXED, {site}))]
    assert not needless, f"nothing is lost without {needless}"


@pytest.mark.parametrize("site", [s if s in SAMPLE else pytest.param(s, marks=pytest.mark.slow) for s in PROOFS])
def test_a_sync_left_out_of_the_code_is_noticed(tmp_path: Path, site: str) -> None:
    world = STORIES[PROOFS[site]](tmp_path / "w", site)
    assert any(world.losses(FIXED)), f"nothing is lost without {site}"
