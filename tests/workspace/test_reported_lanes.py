"""Cases that people reported of agents in workspaces, and every command on a workspace that is a trap."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core import policy
from ropewalk.core.errors import InvalidError, UnlandedWorkError
from ropewalk.operations import registry
from ropewalk.workspace import move, state

from .conftest import Bench
from .test_untrusted import plant


@pytest.mark.parametrize("how", ["works there", "has a file open", "a command"])
def test_L2_one_in_use_is_not_taken(bench: Bench, how: str) -> None:
    path = bench.create()
    root = bench.store.layout.root
    if how == "a command":
        with state.held(bench.store, "one"):
            refused = bench.rw("ws", "delete", "one", "--force", "--store", root, agent="a/b")
        assert refused["error"]["code"] == "E_BUSY" and path.is_dir()
        return
    held = open(path / "README.md", "rb") if how == "has a file open" else None
    child = subprocess.Popen(["sleep", "60"], cwd=path if held is None else "/", stdin=held)
    try:
        refused = bench.rw("ws", "delete", "one", "--store", root, agent="a/b")
        assert refused["error"]["code"] == "E_UNLANDED"
        assert child.pid in refused["error"]["details"]["processes"] and path.is_dir()
    finally:
        child.kill()
        child.wait()
        if held is not None:
            held.close()
    assert bench.rw("ws", "delete", "one", "--store", root, agent="a/b")["ok"] and not path.exists()


def test_L3_commits_that_did_not_land_keep_it(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    for n in range(5):
        (path / f"f{n}").write_text(f"{n}\n")
        in_ws(path, "add", ".")
        in_ws(path, "commit", "-qm", f"commit {n}")
    assert in_ws(path, "status", "--porcelain") == ""
    with pytest.raises(UnlandedWorkError) as caught:
        bench.delete()
    assert caught.value.details["paths"] == [f"f{n}" for n in range(5)]
    bench.land(message=None)
    bench.delete()


def test_L5_a_row_without_a_folder_and_a_folder_without_a_row(bench: Bench) -> None:
    path = bench.create()
    (path / "work").write_text("hours\n")
    state.forget(bench.store, "one", "a/b")
    with pytest.raises(InvalidError, match="there already"):
        bench.create()
    assert (path / "work").exists()
    path.rename(path.parent / "aside")
    shutil.rmtree(bench.create())
    bench.delete()
    assert bench.create().is_dir() and (path.parent / "aside" / "work").exists()


def test_L9_what_git_ignores_is_copied_and_what_is_missing_is_said(bench: Bench, in_ws: Any) -> None:
    operator = bench.folder / "operator"
    operator.mkdir()
    (operator / ".env").write_text("KEY=1\n")
    (operator / "ropewalk.toml").write_text('[workspace]\ncopy = [".env", "gone.cfg"]\n')
    path = bench.create(policy=policy.read(str(operator)))
    assert (path / ".env").read_text() == "KEY=1\n" and any("gone.cfg" in line for line in bench.store.warnings)
    assert in_ws(path, "status", "--porcelain") == "" and bench.changes() == {}


def test_A6_A7_no_command_runs_what_was_planted(bench: Bench, in_ws: Any, tmp_path: Path) -> None:
    """Programs in configuration, attributes and hooks, in the workspace and in a repository inside of it."""
    canary = tmp_path / "canary"
    path = bench.create()
    (path / "src/a.py").write_text("ours\n")
    nested = path / "vendor"
    nested.mkdir()
    in_ws(nested, "init", "-q")
    plant(nested, canary, in_ws)
    plant(path, canary, in_ws)
    evil = str(path / ".git" / "evil.sh")
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    for key in ("core.gitProxy", "core.askPass", "sequence.editor", "uploadpack.packObjectsHook", "pager.diff",
                "pager.status", "interactive.diffFilter", "trailer.x.command", "remote.origin.uploadpack",
                "difftool.x.cmd", "submodule.x.update"):  # fmt: skip
        in_ws(path, *quiet, "config", key, evil if key != "submodule.x.update" else f"!{evil}")
    in_ws(path, *quiet, "config", "remote.origin.url", f"ext::{evil} x")
    (path / ".gitmodules").write_text(f'[submodule "x"]\n\tpath = vendor\n\turl = {nested}\n\tupdate = !{evil}\n')
    in_ws(path, "status", ok=False)
    assert canary.exists(), "the bait works for a git that trusts the workspace"
    canary.unlink()
    root = bench.store.layout.root
    answer = tmp_path / "answer.json"
    answer.write_bytes(msgspec.json.encode({"against": bench.head(), "files": {}}))
    hook = tmp_path / "hook.json"
    hook.write_bytes(msgspec.json.encode({"worktree_path": str(path)}))
    bench.publish({"src/a.py": "theirs\n"})
    said: dict[str, str] = {}

    def run(*words: str) -> None:
        done = bench.rw(*words, "--store", root, folder=path if path.is_dir() else None, agent="claude/one")
        said[" ".join(words)] = "ok" if done["ok"] else done["error"]["code"]
        assert not canary.exists(), (words, canary.read_text())

    for line in (
        "ws status one", "ws diff one", "ws info one", "ws list", "ws radar", "ws snapshot one", "ws commit one -m x",
        "ws rebase one", f"ws resolve {answer} --workspace one", "ws discard src/a.py --workspace one",
        "ws materialize --all --workspace one", f"ws hook remove --input {hook}", "verify --deep", "repair", "gc",
        "ws land one -m x --check-seconds 30 -- true", "ws create two", "recover one",
    ):  # fmt: skip
        run(*line.split())
    missing = {name for name in registry.names() if name.startswith("ws ")} - {" ".join(s.split()[:2]) for s in said}
    assert missing == {"ws delete"}, "a new command is tried here, too"
    run("ws", "delete", "one", "--force")
    run("trash", "restore", "one")
    refused = {line: word for line, word in said.items() if word != "ok"}
    assert refused.pop(f"ws hook remove --input {hook}") == "E_UNLANDED", said
    assert all(line.startswith(("ws resolve", "ws rebase")) for line in refused), said
    assert set(refused.values()) <= {"E_INVALID", "E_CONFLICT"}, said


def test_A6_parts_of_its_git_directory_that_are_links_lead_nowhere(bench: Bench, tmp_path: Path) -> None:
    """Our writes stay in the workspace, whatever its config, index, HEAD, objects and refs lead to."""
    outside = tmp_path / "outside"
    for name in (
        "config",
        "index",
        "HEAD",
        "ORIG_HEAD",
        "info/exclude",
        "info/sparse-checkout",
        "objects/info/alternates",
    ):
        place = outside / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("precious\n")
    path = bench.create()
    for place in [p for p in outside.rglob("*") if p.is_file()]:
        link = path / ".git" / place.relative_to(outside)
        link.unlink(missing_ok=True)
        link.symlink_to(place)
    (path / "x").write_text("x\n")
    bench.publish({"src/b.py": "b = 2\n"})
    with state.held(bench.store, "one"):
        move.rebase(bench.store, bench.ws(), "refs/heads/main", "a/b")
    bench.land()
    bench.rw("repair", "--store", bench.store.layout.root, agent="a/b")
    assert {p.read_text() for p in outside.rglob("*") if p.is_file()} == {"precious\n"}
    assert bench.tree()["x"][1] == b"x\n" and os.listdir(outside / "objects/info") == ["alternates"]
