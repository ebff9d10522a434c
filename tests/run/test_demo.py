"""The demo shows what it claims, on the sample and on a repository it has never seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.testing import sample


def demo(folder: Path, env: dict[str, str], *words: str) -> tuple[int, dict[str, Any], bytes]:
    argv = [sys.executable, "-m", "ropewalk.cli.main", "demo", *words]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, timeout=120)
    return done.returncode, msgspec.json.decode(done.stdout), done.stderr


@pytest.mark.slow
def test_on_the_sample(tmp_path: Path, clean: dict[str, str]) -> None:
    env = {**clean, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    code, envelope, err = demo(tmp_path, env, "--sample")
    result = envelope["result"]
    assert code == 0 and result["failed"] == [], (result, err)
    assert result["tasks"] == result["changes"] == result["run"]["landed"] == 14 and len(result["regions"]) == 3
    assert result["crossing"] >= 6 and [c["resolved"] for c in result["conflicts"]] == [True]
    assert result["repaired"] == ["negative"] and result["killed"] == ["export"]
    assert result["fsck"] == "clean" and result["verified"].endswith("sound")
    assert result["history"].count("\n") >= 14
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.slow
def test_on_a_repository_it_has_never_seen(tmp_path: Path, git: Any, clean: dict[str, str]) -> None:
    home = tmp_path / "thing"
    home.mkdir()
    git("init", "-q", "-b", "trunk", ".", folder=home)
    (home / "code.txt").write_text("a line of some length\n" * 2 + "another line, once\n")
    git("add", ".", folder=home)
    git("commit", "-qm", "first", folder=home)
    before = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    code, envelope, err = demo(home, clean)
    assert code == 0, (envelope, err)
    assert envelope["result"]["repository"] == "thing" and envelope["result"]["changes"] >= 14
    assert {p: p.read_bytes() for p in home.rglob("*") if p.is_file()} == before


def test_the_samples_history_is_the_same_each_time(tmp_path: Path, git: Any) -> None:
    heads = set()
    for name in ("one", "two"):
        sample.build(str(tmp_path / name))
        heads.add(git("rev-parse", "HEAD", folder=tmp_path / name))
        assert git("status", "--porcelain", folder=tmp_path / name) == ""
    assert len(heads) == 1
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"], cwd=tmp_path / "one", capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
