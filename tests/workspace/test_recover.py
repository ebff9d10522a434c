"""Snapshots, discards and the trash: whatever is taken away can be brought back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import InvalidError, NotFoundError, UnlandedWorkError
from ropewalk.store import refs
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store
from ropewalk.workspace import move, radar, snapshot, state, trash
from storekit import stock

from .conftest import MAIN, Bench


def files_of(bench: Bench, ref: str) -> set[str]:
    found = bench.store.ref(ref)
    assert found is not None
    return set(bench.tree(found))


def test_a_snapshot_is_taken_once_for_what_is_there(bench: Bench) -> None:
    path = bench.create()
    assert snapshot.take(bench.store, bench.ws(), "a/b", "now") is None
    (path / "x").write_text("1\n")
    first = snapshot.take(bench.store, bench.ws(), "a/b", "now")
    assert first is not None and snapshot.take(bench.store, bench.ws(), "a/b", "again") == first
    (path / "y").write_text("2\n")
    second = snapshot.take(bench.store, bench.ws(), "a/b", "later")
    assert second is not None and second != first and files_of(bench, second) >= {"x", "y"}
    assert [one.ref for one in snapshot.listed(bench.store, "one")] in ([second, first], [first, second])


def test_snapshots_at_an_interval_leave_a_busy_workspace_alone(bench: Bench) -> None:
    path = bench.create()
    (path / "x").write_text("1\n")
    assert snapshot.Interval("one", "a/b", 3600).take(bench.store) is None
    often = snapshot.Interval("one", "a/b", 0)
    with state.held(bench.store, "one"):
        assert often.take(bench.store) is None
    first = often.take(bench.store)
    assert first is not None and "x" in files_of(bench, first)
    (path / "y").write_text("2\n")
    second = often.take(bench.store)
    assert second is not None and second != first and "y" in files_of(bench, second)


def test_a_discard_keeps_what_it_takes_away(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    (path / "src" / "a.py").write_text("gone\n")
    (path / "new").write_text("new\n")
    (path / "README.md").unlink()
    with state.held(bench.store, "one"):
        done, kept = move.discard(bench.store, bench.ws(), "a/b", [b"src"])
    assert done == [b"src/a.py"] and bench.changes() == {"new": "added", "README.md": "deleted"}
    assert kept is not None and bench.tree(bench.store.ref(kept))["src/a.py"][1] == b"gone\n"
    with pytest.raises(NotFoundError):
        move.discard(bench.store, bench.ws(), "a/b", [b"src"])
    move.discard(bench.store, bench.ws(), "a/b", [])
    assert bench.changes() == {} and in_ws(path, "status", "--porcelain") == ""


def test_a_deleted_workspace_comes_back_as_it_was(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    (path / ".gitignore").write_text("ignored\n")
    (path / "ignored").write_text("only here\n")
    (path / "half").write_text("half\n")
    in_ws(path, "stash", "list")
    folder = str(bench.data / "trash")
    with pytest.raises(UnlandedWorkError):
        bench.delete()
    with state.held(bench.store, "one"):
        from ropewalk.workspace import removal

        done = removal.delete(bench.store, bench.ws(), "a/b", force=True, bin=folder)
    assert not path.exists() and done.trash is not None and done.ref is not None
    assert "half" in files_of(bench, done.ref)
    (one,) = trash.listed(folder)
    assert one.id == done.trash
    trash.restore(bench.store, folder, trash.find(folder, "one"), "a/b")
    assert (path / "ignored").read_text() == "only here\n" and bench.changes() == {
        ".gitignore": "added",
        "half": "added",
    }
    bench.land()
    assert "half" in bench.tree() and trash.listed(folder) == []


def test_what_is_in_the_trash_does_not_replace_what_is_there(bench: Bench) -> None:
    from ropewalk.workspace import removal

    path, folder = bench.create(), str(bench.data / "trash")
    with state.held(bench.store, "one"):
        removal.delete(bench.store, bench.ws(), "a/b", force=True, bin=folder)
    path.mkdir()
    with pytest.raises(InvalidError, match="there again"):
        trash.restore(bench.store, folder, trash.find(folder, "one"), "a/b")
    path.rmdir()
    bench.create()
    with pytest.raises(InvalidError, match="workspace 'one' again"):
        trash.restore(bench.store, folder, trash.find(folder, "one"), "a/b")
    assert trash.empty(folder, 3600) == [] and len(trash.empty(folder)) == 1


def test_P3_the_radar_tells_conflicts_from_neighbours(bench: Bench) -> None:
    def edit(path: Path, name: str, line: int, text: str) -> None:
        lines = (path / name).read_text().splitlines()
        lines[line] = text
        (path / name).write_text("\n".join(lines) + "\n")

    one, two, three = (bench.create(name) for name in ("one", "two", "three"))
    edit(one, "src/a.py", 2, "mine = 1")
    edit(two, "src/a.py", 2, "mine = 2")
    edit(three, "src/a.py", 17, "far away")
    (one / "same").write_text("s\n")
    (three / "same").write_text("s\n")
    echoes, skipped = radar.scan(bench.store)
    assert [(e.path, e.how, e.workspaces) for e in echoes] == [
        ("src/a.py", "conflict", ("one", "two")),
        ("src/a.py", "file", ("one", "three")),
        ("src/a.py", "file", ("three", "two")),
    ]
    assert skipped == [] and all("two" in e.workspaces for e in radar.scan(bench.store, "two")[0])


def test_the_commands(bench: Bench) -> None:
    path = bench.create()
    where = ("--store", bench.store.layout.root)
    who = {"agent": "person/me"}
    (path / "f").write_text("f\n")
    assert "+f" in bench.rw("ws", "diff", "one", *where)["result"]["text"]
    made = bench.rw("ws", "commit", "one", "-m", "adds f", *where, **who)["result"]["changeset"]
    assert bench.tree(made)["f"][1] == b"f\n"
    info = bench.rw("ws", "info", "one", *where)["result"]
    assert info["env"]["ROPEWALK_WORKSPACE"] == "one" and info["base"] == bench.head()
    taken = bench.rw("ws", "snapshot", *where, **who)["result"]["taken"]
    assert set(taken) == {"one"}
    assert bench.rw("ws", "discard", "f", "--workspace", "one", *where, **who)["result"]["discarded"] == ["f"]
    back = bench.rw("recover", "one", "--restore", taken["one"], "--name", "again", *where, **who)["result"]["restored"]
    assert (Path(back["path"]) / "f").read_text() == "f\n"
    assert bench.rw("ws", "radar", *where)["result"] == {"echoes": [], "skipped": []}
    landed = bench.rw("ws", "land", "again", "-m", "brings f back", *where, **who)["result"]
    assert landed["land"]["status"] in ("landed", "up_to_date")
    assert bench.rw("ws", "delete", "one", *where, **who)["result"]["trash"]
    (row,) = bench.rw("trash", "list", *where)["result"]["entries"]
    assert row["workspace"] == "one"
    assert bench.rw("trash", "restore", "one", *where, **who)["result"]["path"] == str(path)


def test_G22_what_a_workspace_stands_on_outlives_its_branch_and_git_s_own_collection(bench: Bench) -> None:
    """The target went back, and git would prune what no branch names: the store does not let it, and all is whole."""
    old = bench.store.ref(MAIN)
    bench.publish({"base.txt": "only here\n"})
    path = bench.create()
    base = bench.ws().base
    (path / "x").write_text("1\n")
    kept = snapshot.take(bench.store, bench.ws(), "a/b", "now")
    refs.move(bench.store, "person/one", [Move(MAIN, base, old)], "ref_set")
    bench.store.flush()
    bench.store.expose()
    repo = bench.store.layout.repo
    for words in (("reflog", "expire", "--expire=now", "--all"), ("gc", "--quiet", "--prune=now"), ("prune",)):
        stock("--git-dir", repo, *words, ok=False)
    with Store(bench.store.layout.root) as store:
        assert kept is not None and store.ref(kept) is not None
        for commit in (base, store.ref(kept) or ""):
            assert stock("--git-dir", repo, "cat-file", "-t", commit) == b"commit\n"
    assert bench.changes() == {"x": "added"}
    assert (path / "base.txt").read_text() == "only here\n"
    landed = bench.land(allow_reland=True)
    assert landed.landed.status == "landed" and "x" in bench.tree(bench.store.ref(MAIN))
    stock("--git-dir", repo, "fsck", "--full", "--strict", "--no-dangling")
