"""Stores that were moved, workspaces that were moved, emptied or left in odd states, and git variables of a caller."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import LandMismatchError, WorkspaceDamagedError
from ropewalk.store.store import Store
from ropewalk.workspace import state

from .conftest import Bench


def test_a_moved_store_leads_its_workspaces_to_its_new_place(bench: Bench, in_ws: Any, tmp_path: Path) -> None:
    path = bench.create()
    (path / "work").write_text("hours\n")
    old, new = Path(bench.store.layout.root), tmp_path / "elsewhere" / "store"
    bench.store.close()
    new.parent.mkdir()
    old.rename(new)
    assert "E_" in bench.rw("ws", "status", folder=path)["error"]["code"]
    found = bench.rw("verify", "--store", str(new))
    assert any("one" in f["what"] if "what" in f else "one" in str(f) for f in found["result"]["problems"]), found
    done = bench.rw("repair", "--store", str(new), agent="a/b")
    assert done["rc"] == 0, done
    assert bench.rw("ws", "status", folder=path)["result"]["changes"][0]["path"] == "work"
    assert in_ws(path, "log", "--format=%s").splitlines()
    assert bench.rw("ws", "land", "-m", "x", folder=path)["ok"]
    bench.store = Store(str(new))


def test_a_copy_of_a_store_takes_no_workspace_away_from_it(bench: Bench, tmp_path: Path) -> None:
    path = bench.create()
    shutil.copytree(bench.store.layout.root, tmp_path / "copy")
    bench.rw("repair", "--store", str(tmp_path / "copy"), agent="a/b")
    assert bench.rw("ws", "status", folder=path)["meta"]["repo"] == bench.store.layout.root


def test_a_detached_head_is_work_like_any(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    in_ws(path, "checkout", "-q", "--detach")
    (path / "x").write_text("x\n")
    in_ws(path, "add", "x")
    in_ws(path, "commit", "-qm", "detached")
    assert bench.land(message=None).landed.changed_paths == ["x"]
    assert in_ws(path, "symbolic-ref", "--short", "HEAD") == "one" and in_ws(path, "status", "--porcelain") == ""


def test_an_emptied_one_lands_nothing_by_mistake(bench: Bench) -> None:
    path = bench.create()
    shutil.rmtree(path / "src")
    (path / "README.md").unlink()
    with pytest.raises(LandMismatchError):
        bench.land()
    shutil.rmtree(path / ".git")
    with pytest.raises(WorkspaceDamagedError):
        bench.land()


def test_A4_git_in_a_workspace_without_a_repository_finds_none_above(bench: Bench, git: Any) -> None:
    """The data folder may lie in a person's own repository, as a home that is one."""
    git("init", "-q")
    (bench.folder / "mine").write_text("unsaved\n")
    path = Path(bench.rw("ws", "create", "w", "--store", bench.store.layout.root, agent="a/b")["result"]["path"])
    shutil.rmtree(path / ".git")
    for words in (["status"], ["add", "-A"], ["commit", "-m", "x", "--allow-empty"], ["rev-parse", "--git-dir"]):
        assert git.run(*words, folder=path).returncode == 128, words
    assert git.run("rev-parse", "HEAD").returncode == 128


def test_one_that_was_moved_by_hand_is_gone_and_can_be_made_again(bench: Bench) -> None:
    path = bench.create()
    (path / "work").write_text("hours\n")
    path.rename(path.parent / "away")
    root = bench.store.layout.root
    assert bench.rw("ws", "land", "one", "-m", "x", "--store", root, agent="a/b")["error"]["code"] == "E_WORKSPACE_GONE"
    (path.parent / "away").rename(path)
    assert bench.changes() == {"work": "added"}


def test_S32_a_hooks_variables_reach_no_workspace_command(bench: Bench, git: Any, in_ws: Any, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    git("init", "-q", str(victim))
    before = {p: p.read_bytes() for p in victim.rglob("*") if p.is_file()}
    root = bench.store.layout.root
    env = {"GIT_DIR": str(victim / ".git"), "GIT_WORK_TREE": str(victim), "GIT_INDEX_FILE": str(victim / ".git/index"),
           "GIT_OBJECT_DIRECTORY": str(victim / ".git/objects"),
           "GIT_CONFIG_PARAMETERS": "'core.bare'='true'"}  # fmt: skip
    made = bench.rw("ws", "create", "w", "--prefix", "src", "--store", root, agent="a/b", **env)
    path = Path(made["result"]["path"])
    (path / "src/b.py").write_text("b = 5\n")
    for words in (
        ["status"],
        ["materialize", "--all"],
        ["commit", "-m", "x"],
        ["land", "-m", "x"],
        ["rebase"],
        ["radar"],
    ):
        done = bench.rw("ws", *words, folder=path, **env)
        assert done["ok"], (words, done)
    assert {p: p.read_bytes() for p in victim.rglob("*") if p.is_file()} == before and os.listdir(victim) == [".git"]
    assert in_ws(path, "status", "--porcelain") == "" and state.need(bench.store, "w").base == bench.head()


def test_S18_a_held_lock_of_a_repository_beside_stops_nobody(bench: Bench, git: Any, tmp_path: Path) -> None:
    """And no branch is left there: workspaces have their own configuration and refs."""
    import subprocess

    count = 50 if os.environ.get("RWTEST_FULL") else 8
    repo = tmp_path / "repo"
    git("init", "-q", str(repo))
    (repo / "f").write_text("f\n")
    git("add", ".", folder=repo)
    git("commit", "-qm", "x", folder=repo)
    assert bench.rw("init", folder=repo, agent="a/b")["ok"]
    refs = git("for-each-ref", folder=repo)
    for lock in (repo / ".git/config.lock", repo / ".git/index.lock", repo / ".git/ropewalk/repo.git/config.lock"):
        lock.touch()
    started = [
        subprocess.Popen(bench.argv("ws", "create", f"w{n}", "--as", "a/b"), cwd=repo, env=bench.env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(count)
    ]  # fmt: skip
    for child in started:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, (out, err)
    assert len(bench.rw("ws", "list", folder=repo)["result"]["workspaces"]) == count
    assert git("for-each-ref", folder=repo) == refs


def test_S29_the_target_is_a_ref_of_the_store_and_not_what_is_checked_out(
    bench: Bench, git: Any, tmp_path: Path
) -> None:
    repo = tmp_path / "repo"
    git("init", "-q", str(repo))
    (repo / "f").write_text("f\n")
    git("add", ".", folder=repo)
    git("commit", "-qm", "x", folder=repo)
    assert bench.rw("init", folder=repo, agent="a/b")["ok"]
    main = git("rev-parse", "main", folder=repo)
    git("checkout", "-qb", "feature", folder=repo)
    (repo / "foreign").write_text("117 commits of somebody\n")
    git("add", ".", folder=repo)
    git("commit", "-qm", "feature", folder=repo)
    made = bench.rw("ws", "create", "w", folder=repo, agent="a/b")["result"]
    assert (made["base"], made["onto"]) == (main, "main") and not (Path(made["path"]) / "foreign").exists()
    (Path(made["path"]) / "mine").write_text("m\n")
    landed = bench.rw("ws", "land", "w", "-m", "x", folder=repo, agent="a/b")["result"]
    assert landed["land"]["onto"] == "main" and landed["changed_paths"] == ["mine"]
    assert bench.rw("ws", "rebase", "w", folder=repo, agent="a/b")["ok"]
    assert not (Path(made["path"]) / "foreign").exists()


def test_S31_each_has_a_stash_of_its_own(bench: Bench, in_ws: Any) -> None:
    paths = [bench.create(name) for name in ("one", "two")]
    for path in paths:
        (path / "src/b.py").write_text(f"work of {path.name}\n")
        in_ws(path, "stash")
    for path in paths:
        assert in_ws(path, "stash", "list").count("stash@") == 1
        in_ws(path, "stash", "pop")
        assert (path / "src/b.py").read_text() == f"work of {path.name}\n"
        assert in_ws(path, "stash", "list") == ""
