"""The demo shows what it claims, on the sample and on a repository it has never seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import InternalError
from ropewalk.run import lander
from ropewalk.testing import sample


def demo(folder: Path, env: dict[str, str], *words: str) -> tuple[int, dict[str, Any], bytes]:
    argv = [sys.executable, "-m", "ropewalk.cli.main", "demo", *words]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, timeout=120)
    return done.returncode, msgspec.json.decode(done.stdout), done.stderr


@pytest.mark.slow
def test_on_the_sample(tmp_path: Path, clean: dict[str, str]) -> None:
    env = {**clean, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    code, envelope, err = demo(tmp_path, env, "--sample", "--seed", "5")
    result = envelope["result"]
    assert code == 0 and result["failed"] == [], (result, err)
    assert result["agents"] == 8 and result["changes"] >= 16
    assert [c["resolved"] for c in result["conflicts"]] == [True]
    kill = result["kill"]
    assert kill["signal"] == 9 and kill["lands"] == 1
    assert kill["again"] == ("replayed" if kill["recorded"] else "landed")
    assert result["fsck"] == "clean" and result["verified"].endswith("sound")
    assert result["history"].count("\n") >= 16
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
    assert envelope["result"]["repository"] == "thing" and envelope["result"]["changes"] >= 16
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


def test_a_lander_that_says_nothing_is_an_error() -> None:
    with pytest.raises(InternalError, match="-9"):
        lander.answer_of(-9, b"", b"")


def test_a_lander_of_its_own_keeps_its_checks_where_the_run_has_them(tmp_path: Path) -> None:
    """A child that fell back to the person's data folder would leave folders there, with each demo."""
    from ropewalk.run import lander
    from ropewalk.workspace.landing import Wish

    checks = tmp_path / "data" / "ropewalk" / "store-id" / "checks"
    assert lander.package_env(Wish("a/b", checks=str(checks)))["XDG_DATA_HOME"] == str(tmp_path / "data")
