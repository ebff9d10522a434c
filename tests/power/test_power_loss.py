"""After a power loss at any command's answer, and in the middle of one: what was acknowledged is there, all is sound.

And no sync of the code is there for nothing: `PROOFS` names for each site a story that fails without it. A sync
leaves no trace but itself, so the calls of one run are replayed with the site's syncs left out; where a flush
decides what later ones do, and for every site in the full run, the code itself runs without it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .proofs import OPEN, PROOFS
from .stories import STORIES
from .without import flushes, sites
from .world import FIXED

FULL = os.environ.get("RWTEST_FULL") == "1"
SEEDS = range(1, 9) if FULL else range(1, 2)
CUTS = 40 if FULL else 3
CUT = ("writes", "imports", "gc", "backup", "failed_sync")


def test_every_sync_has_a_proof() -> None:
    assert set(sites()) == set(PROOFS) | OPEN, "a sync without a proof, or a proof without a sync"
    assert not set(PROOFS) & OPEN


@pytest.mark.parametrize("name", STORIES)
def test_what_was_acknowledged_survives_a_power_loss(tmp_path: Path, name: str) -> None:
    world = STORIES[name](tmp_path / "w", "")
    wrong = list(world.losses([*FIXED, *SEEDS]))
    assert not wrong, "\n".join(wrong)
    if name in CUT:
        wrong = list(world.cuts(1, CUTS))
        assert not wrong, "\n".join(wrong)
    needless = [
        site
        for site, story in PROOFS.items()
        if story == name and site not in flushes() and not any(world.losses([*FIXED, 1, 2], {site}))
    ]
    assert not needless, f"nothing is lost without {needless}"


def left_out() -> list[str]:
    """Gives the sites that are really left out: flushes, and in the full run every one."""
    return [site for site in PROOFS if FULL or site in flushes()]


@pytest.mark.parametrize("site", left_out())
def test_a_sync_left_out_of_the_code_is_noticed(tmp_path: Path, site: str) -> None:
    world = STORIES[PROOFS[site]](tmp_path / "w", site)
    assert any(world.losses([*FIXED, 1, 2])), f"nothing is lost without {site}"
