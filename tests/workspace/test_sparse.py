"""Sparse workspaces: a part on disk, all of it in what lands; the agent's own git works in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.operations.workspace import prefixes
from ropewalk.workspace import sparse, state
from ropewalk.workspace.capture import capture

from .conftest import Bench

FILES = {"lib/x.py": "x = 1\n", "lib/deep/y.py": "y = 1\n", "docs/a [1].md": "a\n", "docs/b.md": "b\n"}


def on_disk(path: Path) -> set[str]:
    found = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    return {name for name in found if not name.startswith(".git/")}


def widen(bench: Bench, *paths: str) -> list[bytes]:
    ws = bench.ws()
    wanted = prefixes([*ws.note.sparse, *paths]) if paths else ()
    with state.held(bench.store, "one"):
        return sparse.materialize(bench.store, ws, wanted)[1]


@pytest.fixture
def part(bench: Bench) -> Path:
    """Gives a workspace with `lib/deep` and one file of `docs` on disk."""
    bench.publish(FILES)
    return bench.create(sparse=prefixes(["lib/deep/", "docs/a [1].md", "lib/deep/y.py"]))


def test_only_what_was_asked_for_is_on_disk_and_nothing_else_is_deleted(bench: Bench, part: Path, in_ws: Any) -> None:
    assert on_disk(part) == {"lib/deep/y.py", "docs/a [1].md"} and bench.ws().note.sparse == [
        "docs/a [1].md",
        "lib/deep",
    ]
    assert in_ws(part, "status", "--porcelain") == "" and bench.changes() == {}
    (part / "lib/deep/y.py").write_text("y = 2\n")
    (part / "lib/deep/new.py").write_text("new\n")
    (part / "outside").write_text("o\n")
    assert in_ws(part, "status", "--porcelain").split() == [
        "M",
        "lib/deep/y.py",
        "??",
        "lib/deep/new.py",
        "??",
        "outside",
    ]
    done = bench.land()
    assert sorted(done.landed.changed_paths) == ["lib/deep/new.py", "lib/deep/y.py", "outside"]
    assert set(bench.tree()) == {"README.md", "src/a.py", "src/b.py", *FILES, "lib/deep/new.py", "outside"}
    assert in_ws(part, "status", "--porcelain") == "" and bench.changes() == {}
    assert on_disk(part) == {"lib/deep/y.py", "lib/deep/new.py", "docs/a [1].md", "outside"}


def test_deletions_on_disk_are_deletions(bench: Bench, part: Path) -> None:
    (part / "lib/deep/y.py").unlink()
    assert bench.changes() == {"lib/deep/y.py": "deleted"}


@pytest.mark.parametrize("index", ["agent's", "ours", "gone", "damaged"])
def test_whatever_became_of_its_index(bench: Bench, part: Path, in_ws: Any, index: str) -> None:
    if index == "agent's":
        (part / "staged").write_text("s\n")
        in_ws(part, "add", "--sparse", "staged")
    elif index == "gone":
        (part / ".git/index").unlink()
    elif index == "damaged":
        (part / ".git/index").write_bytes(b"DIRC" + bytes(40))
    assert bench.changes() == ({"staged": "added"} if index == "agent's" else {})


def test_what_others_land_stays_off_the_disk_too(bench: Bench, part: Path, in_ws: Any) -> None:
    bench.publish({"lib/x.py": "x = 9\n", "src/new.py": "n\n", "lib/deep/z.py": "z\n", "src/b.py": None})
    assert bench.rebase().report is None
    assert on_disk(part) == {"lib/deep/y.py", "lib/deep/z.py", "docs/a [1].md"}
    assert in_ws(part, "status", "--porcelain") == "" and bench.changes() == {}
    (part / "lib/deep/z.py").write_text("mine\n")
    bench.land()
    assert bench.tree()["lib/x.py"][1] == b"x = 9\n" and "src/b.py" not in bench.tree()


def test_it_is_widened_and_what_was_staged_stays_so(bench: Bench, part: Path, in_ws: Any) -> None:
    (part / "lib/deep/y.py").write_text("y = 2\n")
    in_ws(part, "add", "lib/deep/y.py")
    assert widen(bench, "lib") == [b"lib/x.py"]
    assert in_ws(part, "diff", "--cached", "--name-only") == "lib/deep/y.py"
    assert in_ws(part, "diff", "--name-only") == "" and bench.changes() == {"lib/deep/y.py": "modified"}
    (part / "lib/x.py").unlink()
    assert bench.changes() == {"lib/deep/y.py": "modified", "lib/x.py": "deleted"}
    in_ws(part, "checkout", "lib/x.py")
    assert len(widen(bench)) == 4 and bench.ws().note.sparse == []
    assert on_disk(part) == {"README.md", "src/a.py", "src/b.py", *FILES}
    assert in_ws(part, "status", "--porcelain") == "M  lib/deep/y.py"
    in_ws(part, "checkout", "-q", "-b", "other")
    in_ws(part, "reset", "-q", "--hard")
    assert on_disk(part) == {"README.md", "src/a.py", "src/b.py", *FILES} and bench.changes() == {}


def test_a_file_in_the_way_is_kept_aside(bench: Bench, part: Path) -> None:
    (part / ".git/info/exclude").write_text("src\n")
    (part / "src").write_text("mine, and ignored\n")
    widen(bench, "src")
    assert (part / "src/b.py").read_text() == "b = 1\n"
    assert (part / ".git/ropewalk-kept/src").read_text() == "mine, and ignored\n"


def test_the_agent_may_widen_it_with_git_itself(bench: Bench, part: Path, in_ws: Any) -> None:
    in_ws(part, "sparse-checkout", "add", "/src")
    assert {"src/a.py", "src/b.py"} <= on_disk(part) and bench.changes() == {}
    (part / "src/a.py").unlink()
    assert bench.changes() == {"src/a.py": "deleted"}
    in_ws(part, "checkout", "src/a.py")
    in_ws(part, "sparse-checkout", "disable")
    assert on_disk(part) == {"README.md", "src/a.py", "src/b.py", *FILES} and bench.changes() == {}


def test_a_conflict_is_shown_where_it_is(bench: Bench, part: Path) -> None:
    (part / "lib/deep/y.py").write_text("y = 2\n")
    bench.publish({"lib/deep/y.py": "y = 3\n"})
    assert bench.rebase().report is not None
    assert "<<<<<<<" in (part / "lib/deep/y.py").read_text()
    assert on_disk(part) == {"lib/deep/y.py", "docs/a [1].md"}


def test_as_commands(bench: Bench) -> None:
    bench.publish(FILES)
    root = bench.store.layout.root
    made = bench.rw("ws", "create", "s", "--prefix", "lib", "--prefix", "docs/b.md", "--store", root, agent="a/b")
    assert made["result"]["all"] is False
    path = Path(made["result"]["path"])
    assert on_disk(path) == {"lib/x.py", "lib/deep/y.py", "docs/b.md"}
    assert bench.rw("ws", "info", "s", "--store", root)["result"]["sparse"] == ["docs/b.md", "lib"]
    more = bench.rw("ws", "materialize", "src/a.py", folder=path, agent="a/b")["result"]
    assert (more["written"], more["prefixes"]) == (1, ["docs/b.md", "lib", "src/a.py"])
    rest = bench.rw("ws", "materialize", "--all", folder=path, agent="a/b")["result"]
    assert (rest["written"], rest["all"]) == (3, True)
    assert bench.rw("verify", "--store", root)["result"]["problems"] == []
    again = bench.rw("ws", "create", "s", "--prefix", "lib", "--store", root, agent="a/b")
    assert again["error"]["code"] == "E_INVALID"
    for bad in ("../x", "/abs", ".git/config", "a//b"):
        refused = bench.rw("ws", "create", "t", "--prefix", bad, "--store", root, agent="a/b")
        assert refused["error"]["code"] == "E_INVALID", bad
    hidden = capture(bench.store, state.need(bench.store, "s"), write=False).hidden
    assert not hidden
