"""A land is killed at a system call drawn from a seed; nothing is lost, nothing is there twice, nothing is stuck."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .tracing import Point, command, draw, environment, points, strike

AGENT = ("--as", "killed/one")


class Template(NamedTuple):
    """Is a store with two changes that wait to land, and the points at which a land can be killed."""

    root: Path
    changes: list[str]
    points: list[Point]


def rw(store: Path, *words: str, ok: bool = True) -> dict[str, Any]:
    done = subprocess.run(command("--store", str(store), *words), env=environment(), capture_output=True, timeout=120)
    envelope: dict[str, Any] = json.loads(done.stdout)
    assert envelope["ok"] is ok, (envelope, done.stderr)
    return envelope


def change(store: Path, folder: Path, name: str, text: str, parent: str | None = None) -> str:
    listing = folder / "changes.json"
    listing.write_text(json.dumps([{"path": name, "op": "put", "content": {"inline": text}}]))
    words = ["commit", "-m", f"write {name}", "--changes", str(listing), *AGENT]
    words += ["--parent", parent] if parent else ["--advance", "main"]
    return str(rw(store, *words)["result"]["changeset"])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    folder = tmp_path_factory.mktemp("template")
    root = folder / "store"
    rw(root, "init", str(folder / "work"))
    base = change(root, folder, "docs/readme.txt", "hello\n")
    changes = [change(root, folder, f"src/{n}.py", f"n = {n}\n", base) for n in range(2)]
    # another change is on main already, so that the land is a real merge
    rw(root, "land", change(root, folder, "src/first.py", "first\n", base), *AGENT)
    traced = folder / "traced"
    shutil.copytree(root, traced)
    argv = command("--store", str(traced), "land", changes[0], "--onto", "main", *AGENT)
    found = points(argv, folder, environment(), str(traced))
    assert len(found) > 20, found
    return Template(root, changes, found)


@pytest.mark.parametrize("seed", range(50))
def test_a_killed_land_is_there_once_after_a_rerun(template: Template, tmp_path: Path, seed: int) -> None:
    store = tmp_path / "store"
    shutil.copytree(template.root, store)
    key = str(uuid.UUID(int=seed))
    first, second = template.changes
    land = ("land", first, "--onto", "main", "--key", key, *AGENT)
    point = draw(template.points, seed)
    struck = strike(command("--store", str(store), *land), tmp_path, environment(), point, "signal=KILL")
    assert struck.killed, f"the land was not killed at {point}"

    # the next command of anybody works at once, with no manual step
    assert rw(store, "land", second, "--onto", "main", *AGENT)["result"]["status"] == "landed"
    again = rw(store, *land)["result"]
    assert again["status"] in ("landed", "replayed")

    verified = rw(store, "verify", "--deep")
    assert verified["result"]["findings"] == []
    git = ["git", f"--git-dir={store}/repo.git"]
    trailers = subprocess.run(
        [*git, "log", "--format=%(trailers:key=Ropewalk-Changeset,valueonly)", "main"], capture_output=True, text=True
    ).stdout.split()
    assert sorted(trailers).count(first) == 1 and trailers.count(second) == 1
    files = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", "main"], capture_output=True, text=True
    ).stdout.split()
    assert files == ["docs/readme.txt", "src/0.py", "src/1.py", "src/first.py"]
    assert not list(store.glob("spool/*.req"))
