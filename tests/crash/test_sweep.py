"""A kill, an I/O error or a full disk at each system call that changes something, for every operation that writes.

In the full run (RWTEST_FULL=1) at least 80 points an operation, or all it has; else a sample. With
RWTEST_SWEEP_RESULTS=FILE each point is noted there, and `python -m tests.crash.table` makes the table of
docs/reliability.md from it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .scenarios import SCENARIOS, Scenario, argv, ask, must, prepare, put, run_again
from .tracing import Point, environment, points, sample, strike

FULL = os.environ.get("RWTEST_FULL") == "1"
SEED = int(os.environ.get("RWTEST_SWEEP_SEED", "1"))
KILLS = 80 if FULL else 4
ERRORS = 40 if FULL else 2
DOCUMENTED = {"E_IO", "E_NO_SPACE", "E_STORE_CORRUPT", "E_REMOTE", "E_BUSY", "E_INVALID", "E_UNSUPPORTED"}


class Template(NamedTuple):
    """Is a prepared folder of a scenario, its ids, and all its points."""

    folder: Path
    ids: dict[str, str]
    points: list[Point]


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("common")
    prepare(folder)
    return folder


_TEMPLATES: dict[str, Template] = {}


def template(common: Path, scenario: Scenario) -> Template:
    """Gives the scenario's prepared folder, made at its first use."""
    if scenario.name not in _TEMPLATES:
        folder = common.parent / f"template-{SCENARIOS.index(scenario)}"
        shutil.copytree(common, folder, symlinks=True)
        ids = json.loads((folder / "ids.json").read_text())
        if scenario.more:
            scenario.more(folder, ids)
        traced = place(Template(folder, ids, []), common.parent / f"traced-{SCENARIOS.index(scenario)}")
        stdin = scenario.stdin(traced, ids) if scenario.stdin else None
        found = points(argv(scenario, traced, ids), traced, environment(traced / "home"), str(traced), stdin)
        shutil.rmtree(traced)
        _TEMPLATES[scenario.name] = Template(folder, ids, found)
    return _TEMPLATES[scenario.name]


def place(source: Template, folder: Path) -> Path:
    """Copies a prepared folder; what names its own place in it is made to name the new one."""
    shutil.copytree(source.folder, folder, symlinks=True)
    old, new = str(source.folder), str(folder)
    workspace = folder / "w" / ".git"
    if workspace.is_dir():
        for name in ("ropewalk.json", "objects/info/alternates", "config"):
            path = workspace / name
            if path.exists():
                path.write_text(path.read_text().replace(old, new))
        import apsw

        connection = apsw.Connection(str(folder / "store" / "store.db"))
        connection.execute("UPDATE workspaces SET path = replace(path, ?, ?)", (old, new))
        connection.close()
    return folder


@contextmanager
def noted(kind: str, scenario: Scenario, total: int, point: Point) -> Iterator[None]:
    """Notes a point and whether what followed held, for the table."""
    failed = True
    try:
        yield
        failed = False
    finally:
        path = os.environ.get("RWTEST_SWEEP_RESULTS")
        if path:
            row = {
                "kind": kind,
                "operation": scenario.name,
                "points": total,
                "point": point,
                "seed": SEED,
                "failed": failed,
            }
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def check_store(folder: Path, ids: dict[str, str]) -> None:
    """Holds the store against what must be true after any strike: usable at once, sound, nothing acknowledged lost."""
    must(folder, "commit", agent="crash/two", message="next", changes=put("d/next.txt", "next\n"), advance="main")
    assert must(folder, "cat", rev="main", path="d/first.txt")["content"] == "1\n"
    assert must(folder, "cat", rev="main", path="d/next.txt")["content"] == "next\n"
    verified = must(folder, "verify", deep=True)
    assert verified["findings"] == [], verified
    left = [str(p) for p in (folder / "store" / "repo.git").rglob("*.lock")]
    assert not left, left


def cases(most: int) -> list[Any]:
    """Gives the numbers of the points to try; which points they are is known once the command was traced."""
    return [pytest.param(s, n, id=f"{s.name.replace(' ', '-')}-{n}") for s in SCENARIOS for n in range(most)]


@pytest.mark.parametrize(("scenario", "number"), cases(KILLS))
def test_a_kill_loses_nothing(common: Path, tmp_path: Path, scenario: Scenario, number: int) -> None:
    made = template(common, scenario)
    chosen = sample(made.points, KILLS, SEED)
    if number >= len(chosen):
        pytest.skip("the operation has fewer points than that: all were tried")
    point = chosen[number]
    with noted("kill", scenario, len(made.points), point):
        kill(made, scenario, point, tmp_path / "t")


def kill(made: Template, scenario: Scenario, point: Point, target: Path) -> None:
    """Kills a scenario's command at a point and holds what follows against its promises."""
    folder = place(made, target)
    stdin = scenario.stdin(folder, made.ids) if scenario.stdin else None
    struck = strike(
        argv(scenario, folder, made.ids), folder, environment(folder / "home"), point, "signal=KILL", stdin=stdin
    )
    assert struck.killed, f"{scenario.name} was not killed at {point}"
    if scenario.name == "repair":
        must(folder, "repair")  # the damage was there before the kill
    if scenario.name == "undo":
        # a commit on top would rightly keep the undo from being run again
        again = run_again(scenario, folder, made.ids)
        check_store(folder, made.ids)
    else:
        check_store(folder, made.ids)
        again = run_again(scenario, folder, made.ids)
    if scenario.rerun:
        assert again.get("ok", "result" in again), again
    if scenario.rerun or again["ok"]:
        scenario.check(folder, made.ids)
    assert must(folder, "verify", deep=True)["findings"] == []


@pytest.mark.parametrize("what", ["error=EIO", "error=ENOSPC", "error=ENOSPC+"])
@pytest.mark.parametrize(("scenario", "number"), cases(ERRORS))
def test_an_error_is_typed_and_records_all_or_nothing(
    common: Path, tmp_path: Path, scenario: Scenario, number: int, what: str
) -> None:
    made = template(common, scenario)
    chosen = sample(made.points, ERRORS, SEED + 1)
    if number >= len(chosen):
        pytest.skip("the operation has fewer points than that: all were tried")
    point = chosen[number]
    with noted(what, scenario, len(made.points), point):
        fail(made, scenario, point, what, tmp_path / "t")


def fail(made: Template, scenario: Scenario, point: Point, what: str, target: Path) -> None:
    """Lets a system call of a scenario's command fail and holds what follows against its promises."""
    folder = place(made, target)
    stdin = scenario.stdin(folder, made.ids) if scenario.stdin else None
    struck = strike(argv(scenario, folder, made.ids), folder, environment(folder / "home"), point, what, stdin=stdin)
    assert b"Traceback" not in struck.err, struck.err.decode()
    if struck.out.strip() and scenario.stdin is None:
        envelope = json.loads(struck.out.splitlines()[-1])
        if not envelope["ok"]:
            assert envelope["error"]["code"] in DOCUMENTED, envelope
    # the disk is well again: at most a repair, for a sync that failed, is asked for
    if not ask(folder, "commit", agent="crash/two", message="try", changes=put("try.txt", "t\n"))["ok"]:
        must(folder, "repair")
    if scenario.name == "repair":
        must(folder, "repair")
    if scenario.name == "undo":
        run_again(scenario, folder, made.ids)
        check_store(folder, made.ids)
    else:
        check_store(folder, made.ids)
        again = run_again(scenario, folder, made.ids)
        if scenario.rerun:
            assert again.get("ok", "result" in again), again
    if scenario.rerun:
        scenario.check(folder, made.ids)
    assert must(folder, "verify", deep=True)["findings"] == []
