"""A land is killed at a system call drawn from a seed; nothing is lost, nothing is there twice, nothing is stuck."""

from __future__ import annotations

import json
import os
import random
import subprocess
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .kit import AGENT, OTHER, Ids, git, lines_of, place, prepare, sound, trailers
from .tracing import Point, Subject, command, environment, numbered_git, strike, traced

SEEDS = 50 if os.environ.get("RWTEST_FULL") == "1" else 8

pytestmark = pytest.mark.crash


class Template(NamedTuple):
    """Is a store with two changes that wait to land, and the points at which a land can be killed."""

    folder: Path
    ids: Ids
    points: list[Point]
    gits: Path


def land(folder: Path, change: str, agent: str, *more: str) -> list[str]:
    """Gives the words that land a change on main."""
    return ["land", change, "--onto", "main", "--store", str(folder / "store"), "--as", agent, *more]


def rw(folder: Path, words: list[str]) -> dict[str, Any]:
    """Runs a command as a process of its own and gives its result."""
    done = subprocess.run(command(*words), cwd=folder, env=environment(folder / "home"), capture_output=True,
                          timeout=120)  # fmt: skip
    envelope = lines_of(done.stdout)[-1]
    assert envelope["ok"], (envelope, done.stderr)
    result: dict[str, Any] = envelope["result"]
    return result


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    base = tmp_path_factory.mktemp("template")
    folder = base / "made"
    folder.mkdir()
    prepare(folder)
    ids: Ids = json.loads((folder / "ids.json").read_text())
    gits = numbered_git(base / "gits")
    copy = place(folder, base / "traced")
    # another change is on main already, so that the land is a real merge
    found = [s.point for s in traced(Subject(land(copy, ids["x"], AGENT), copy, environment(copy / "home"), gits))]
    assert len(found) > 20, found
    return Template(folder, ids, found, gits)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_killed_land_is_there_once_after_a_rerun(template: Template, tmp_path: Path, seed: int) -> None:
    folder, ids = place(template.folder, tmp_path / "t"), template.ids
    key = ("--key", str(uuid.UUID(int=seed)))
    point = random.Random(seed).choice(template.points)
    words = land(folder, ids["x"], AGENT, *key)
    struck = strike(Subject(words, folder, environment(folder / "home"), template.gits), point, "signal=KILL")
    assert struck.met and struck.killed, f"the land was not killed at {point}"

    # the next command of anybody works at once, with no manual step
    assert rw(folder, land(folder, ids["z"], OTHER))["status"] == "landed"
    assert rw(folder, words)["status"] in ("landed", "replayed")

    sound(folder)
    found = trailers(folder)
    assert found.count(ids["x"]) == 1 and found.count(ids["z"]) == 1
    files = git(folder, "--git-dir=store/repo.git", "ls-tree", "-r", "--name-only", "main").split()
    assert files == ["a.txt", "d/b.txt", "d/first.txt", "d/long.txt", "d/x.txt", "d/y.txt", "d/z.txt"]
    assert not list((folder / "store" / "spool").glob("*.req"))
