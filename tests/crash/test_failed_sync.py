"""A sync that fails, at each sync of a command: what is acknowledged was synced, and a lost write is no success later.

A sync of the database's log that failed poisons the store, for everybody, until a repair. One of a file of its own
(a pack, a copy) fails the command, and nothing that stands on that file is recorded or shown.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .kit import OTHER, ask, lines_of, must, place, put, run_words, sound
from .scenarios import SCENARIOS, Scenario
from .sweep import TRIES, Template, attack, subject, template, words_of
from .tracing import Step, strike, traced

FULL = os.environ.get("RWTEST_FULL") == "1"
NAMES = ("commit", "commit (large file)", "land", "import", "import (a pack)", "backup")
CHOSEN = [s for s in SCENARIOS if s.name in NAMES]

pytestmark = pytest.mark.crash


class Synced(NamedTuple):
    """Is a scenario's syncs: those of the log, and the others."""

    log: list[Step]
    others: list[Step]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mine = tmp_path_factory.getbasetemp()
    return (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "sweep"


def syncs(base: Path, work: Path, scenario: Scenario) -> Synced:
    """Gives the syncs of the command itself; a backup's many are drawn on outside the full run."""
    made = template(base, scenario)
    folder = place(made.folder, work)
    found = [s for s in traced(subject(scenario, folder, made)) if s.point.call in ("fsync", "fdatasync")]
    # SQLite's own rollback file is no part of what is kept
    found = [s for s in found if s.point.process == "rw" and "-journal>" not in s.shown]
    log = [s for s in found if "store/store.db-wal>" in s.shown]
    others = [s for s in found if s not in log]
    return Synced(log, others if FULL else others[:: max(1, len(others) // 3)])


@pytest.mark.parametrize("scenario", CHOSEN[:-1], ids=lambda s: s.name.replace(" ", "-"))
def test_a_failed_sync_of_the_log_poisons_until_a_repair(base: Path, tmp_path: Path, scenario: Scenario) -> None:
    made = template(base, scenario)
    steps = syncs(base, tmp_path / "traced", scenario).log
    assert steps, "the command acknowledges what it never synced"
    for number, step in enumerate(steps):
        folder = place(made.folder, tmp_path / str(number))
        struck = strike(subject(scenario, folder, made), step.point, "error=EIO")
        assert struck.met
        answer = lines_of(struck.out)[-1]
        assert not answer["ok"] and answer["error"]["code"] == "E_IO", (step, answer)
        assert (folder / "store" / "poisoned").exists(), step
        for _ in range(2):
            # nobody's later sync, which the kernel would call a success, makes up for it
            refused(folder)
            again = rerun(scenario, folder, made)
            assert not again["ok"] and again["error"]["code"] == "E_IO", again
        assert must(folder, "cat", rev="main", path="d/y.txt")["content"] == "y\n"
        assert {f["kind"] for f in must(folder, "verify")["findings"]} == {"poisoned"}
        assert must(folder, "repair")["left"] == []
        assert rerun(scenario, folder, made)["ok"]
        assert scenario.done(folder, made.ids)
        sound(folder)


def refused(folder: Path) -> None:
    """Checks that a write of somebody else is refused and says what to do."""
    answer = ask(folder, "commit", agent=OTHER, message="try", changes=put("try.txt", "t\n"), advance="main")
    assert not answer["ok"] and answer["error"]["code"] == "E_IO" and "repair" in answer["error"]["hint"], answer


def rerun(scenario: Scenario, folder: Path, made: Template) -> dict[str, Any]:
    """Runs the command again and gives its answer."""
    return run_words(folder, words_of(scenario, folder, made.ids))[-1]


@pytest.mark.parametrize("scenario", CHOSEN, ids=lambda s: s.name.replace(" ", "-"))
def test_a_failed_sync_of_another_file_acknowledges_nothing(base: Path, tmp_path: Path, scenario: Scenario) -> None:
    made = template(base, scenario)
    for number, step in enumerate(syncs(base, tmp_path / "traced", scenario).others):
        for attempt in range(TRIES):
            # a folder's files are synced in the order in which the disk lists them, so a run may have fewer before one
            folder = place(made.folder, tmp_path / f"{number}.{attempt}")
            before = must(folder, "op log")["ops"]
            struck = strike(subject(scenario, folder, made), step.point, "error=EIO")
            if struck.met:
                break
        assert struck.met
        answer = lines_of(struck.out)[-1]
        assert not answer["ok"] and answer["error"]["code"] == "E_IO", (step, answer)
        if not (folder / "store" / "poisoned").exists():
            assert must(folder, "op log")["ops"] == before, step
            # what is built beside its place is whole there once it is renamed, and only its name may not be on disk
            is_name = bool(scenario.again) and step.shown.endswith(f"<{tmp_path / 'traced'}>) = 0")
            assert is_name or not scenario.done(folder, made.ids), step
        attack(scenario, made, "EIO", step.point, tmp_path / f"{number}.again")
