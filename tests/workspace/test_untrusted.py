"""A workspace is untrusted input: nothing an agent planted runs, and nothing outside is read or written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import InvalidError

from .conftest import Bench


def plant(path: Path, canary: Path, in_ws: Any) -> None:
    """Plants every kind of program that git would run, in a repository."""
    script = path / ".git" / "evil.sh"
    script.write_text(f'#!/bin/sh\necho "$0 $*" >> {canary}\ncat\n')
    script.chmod(0o755)
    for hook in ("post-index-change", "pre-commit", "post-checkout", "reference-transaction", "post-merge",
                 "fsmonitor-watchman", "post-rewrite", "pre-auto-gc"):  # fmt: skip
        place = path / ".git" / "hooks" / hook
        place.parent.mkdir(exist_ok=True)
        place.write_text(script.read_text())
        place.chmod(0o755)
    (path / ".git" / "more").write_text(f'[core]\n\tfsmonitor = "{script}"\n')
    for key, value in {
        "core.fsmonitor": str(script),
        "core.hooksPath": str(path / ".git" / "hooks"),
        "filter.evil.clean": str(script),
        "filter.evil.smudge": str(script),
        "filter.evil.process": str(script),
        "filter.evil.required": "true",
        "diff.external": str(script),
        "diff.evil.command": str(script),
        "diff.evil.textconv": str(script),
        "merge.evil.driver": str(script),
        "core.pager": str(script),
        "core.editor": str(script),
        "core.sshCommand": str(script),
        "core.alternateRefsCommand": str(script),
        "gpg.program": str(script),
        "credential.helper": str(script),
        "alias.ls-files": f"!{script}",
        "alias.read-tree": f"!{script}",
        "alias.status": f"!{script}",
        "include.path": str(path / ".git" / "more"),
    }.items():
        in_ws(path, "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "config", key, value)
    (path / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")


def test_a6_nothing_planted_runs(bench: Bench, in_ws: Any, tmp_path: Path) -> None:
    path, canary = bench.create(), tmp_path / "canary"
    plant(path, canary, in_ws)
    in_ws(path, "status", ok=False)
    assert canary.exists(), "the bait works for a git that trusts the workspace"
    canary.unlink()
    (path / "src" / "a.py").write_text("a\n")
    bench.changes()
    bench.land()
    bench.publish({"src/b.py": "b = 9\n"})
    (path / "src" / "c.py").write_text("c\n")
    assert bench.rebase().report is None
    with pytest.raises(InvalidError, match="evil"):
        bench.land(message="again")  # its attributes are the repository's now, and name a filter that nobody allowed
    (Path(bench.store.layout.root) / "ropewalk.toml").write_text('[workspace]\nfilters = ["evil"]\n')
    bench.land(message="again")
    (path / "src" / "a.py").write_text("ours\n")
    bench.publish({"src/a.py": "theirs\n"})
    assert bench.rebase().report is not None
    bench.delete(force=True)
    assert not canary.exists()


def test_a7_a_nested_repository_is_not_followed(bench: Bench, in_ws: Any, tmp_path: Path) -> None:
    path, canary = bench.create(), tmp_path / "canary"
    nested = path / "vendor"
    nested.mkdir()
    in_ws(nested, "init", "-q")
    (nested / "inner.txt").write_text("inner\n")
    in_ws(nested, "add", "inner.txt")
    in_ws(nested, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "inner")
    plant(nested, canary, in_ws)
    # the same inside a folder that is tracked
    in_ws(path / "src", "init", "-q")
    plant(path / "src", canary, in_ws)
    (path / "src" / ".gitattributes").unlink()
    (path / "mine.txt").write_text("mine\n")
    done = bench.land()
    assert done.landed.changed_paths == ["mine.txt"]
    assert any("vendor" in line for line in done.warnings)
    assert not canary.exists()
    assert (nested / "inner.txt").exists()


def test_a_linked_folder_is_a_link_and_not_what_is_behind_it(bench: Bench, tmp_path: Path) -> None:
    import shutil

    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("private\n")
    (outside / "b.py").write_text("private\n")
    path = bench.create()
    shutil.rmtree(path / "src")
    (path / "src").symlink_to(outside)
    assert bench.changes() == {"src": "added", "src/a.py": "deleted", "src/b.py": "deleted"}


def test_what_others_land_is_not_written_through_a_link(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = bench.create()
    (path / ".git" / "info" / "exclude").write_text("docs\n")
    (path / "docs").symlink_to(outside)
    bench.publish({"docs/page.md": "page\n"})
    bench.rebase()
    assert list(outside.iterdir()) == []
    assert (path / "docs" / "page.md").read_text() == "page\n"
    assert any("docs" in line for line in bench.store.warnings)


@pytest.mark.parametrize("part", [".git", ".git/refs", ".git/refs/heads", ".git/ropewalk-kept"])
def test_parts_of_its_git_folder_may_be_links_to_elsewhere(bench: Bench, tmp_path: Path, part: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("p")
    path = bench.create()
    place = path / part
    if place.exists():
        place.rename(tmp_path / "away")
    place.symlink_to(outside)
    (path / "x").write_text("x\n")
    result = bench.rw("ws", "land", "one", "-m", "x", "--store", bench.store.layout.root, agent="claude/one")
    assert result["ok"] or result["error"]["code"] in ("E_IO", "E_WORKSPACE_DAMAGED"), result
    assert [p.name for p in outside.iterdir()] == ["precious"]
    assert bench.tree()["x"][1] == b"x\n"


def test_a40_its_alternates_can_not_bring_in_other_repositories(bench: Bench, in_ws: Any, tmp_path: Path) -> None:
    path = bench.create()
    (path / ".git" / "objects" / "info" / "alternates").write_text("/nowhere\n")
    (path / "x").write_text("x\n")
    assert bench.land().landed.status == "landed"


def test_s32_git_variables_of_the_caller_reach_nothing(bench: Bench, in_ws: Any, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    in_ws(victim, "init", "-q")
    before = {p: p.read_bytes() for p in victim.rglob("*") if p.is_file()}
    path = bench.create()
    (path / "x").write_text("x\n")
    result = bench.rw(
        "ws", "land", "one", "-m", "x", "--store", bench.store.layout.root, "--check", "--", "sh", "-c",
        "git init -q t && git -C t rev-parse --git-dir && test -z \"$GIT_DIR\"", agent="claude/one",
        GIT_DIR=str(victim / ".git"), GIT_INDEX_FILE=str(victim / ".git" / "index"), GIT_WORK_TREE=str(victim),
    )  # fmt: skip
    assert result["ok"], result
    assert {p: p.read_bytes() for p in victim.rglob("*") if p.is_file()} == before
    assert os.listdir(victim) == [".git"]
