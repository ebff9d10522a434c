"""The pilot's page is run: its blocks, in its order, as one script; nothing here repeats a command of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "pilot.md"
_PART = re.compile(r"^## (?P<heading>.+?)$|^```sh\n(?P<block>.*?)^```$", re.MULTILINE | re.DOTALL)


def script(text: str) -> str:
    """Gives the blocks of a page as one script that names each step before it runs it."""
    lines = []
    for found in _PART.finditer(text):
        heading, block = found["heading"], found["block"]
        lines.append(f"echo {shlex.quote(f'== {heading}')}\n" if heading else block)
    return "".join(lines)


def source(folder: Path, env: dict[str, str]) -> Path:
    """Makes a whole repository of what this one has: its history, or without one two commits of its files."""
    made = folder / "source.git"

    def git(*words: str, where: Path = made) -> bool:
        done = subprocess.run(["git", "-C", str(where), *words], env=env, capture_output=True, timeout=120)
        return done.returncode == 0

    assert git("init", "--quiet", "--bare", "--initial-branch=trunk", str(made), where=folder)
    # git takes no branch from a shallow clone, and says so with the exit code of success
    git("fetch", "--quiet", "--no-tags", str(ROOT), "HEAD:refs/heads/trunk")
    if git("rev-parse", "--quiet", "--verify", "refs/heads/trunk") and not (made / "shallow").exists():
        return made
    shutil.rmtree(made)
    work = folder / "work"
    work.mkdir()
    assert git("init", "--quiet", "--initial-branch=trunk", where=work)
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
        assert git("add", "--all", where=work) and git("commit", "--quiet", "-m", f"Add {name}", where=work)
    return work


def environment(folder: Path, clean: dict[str, str]) -> dict[str, str]:
    """Gives an environment with `rw` and `python` on its PATH, and no times that are fixed."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, words in (("rw", [sys.executable, "-m", "ropewalk.cli.main"]), ("python", [sys.executable])):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (bin_folder / name).chmod(0o755)
    env = {name: value for name, value in clean.items() if not name.endswith("_DATE")}
    return env | {"PATH": f"{bin_folder}{os.pathsep}{env['PATH']}", "LC_ALL": "C.UTF-8"}


def run(text: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a page's script in a folder, traced, so that a failure shows the command it fell on."""
    (folder / "pilot.sh").write_text(script(text), encoding="utf-8")
    return subprocess.run(
        ["bash", "-eux", "-o", "pipefail", "pilot.sh"],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.race
def test_the_pilot_holds(tmp_path: Path, clean: dict[str, str]) -> None:
    env = environment(tmp_path, clean)
    env["SOURCE"] = str(source(tmp_path, env))
    done = run(PAGE.read_text(encoding="utf-8"), tmp_path, env)
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.rstrip().endswith("the pilot held")


def test_every_step_is_run_and_says_what_it_proves() -> None:
    text = PAGE.read_text(encoding="utf-8")
    steps = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [int(step.split(".")[0]) for step in steps] == list(range(11))
    for step in steps[1:]:
        assert "```sh\n" in step and "test " in step, step[:60]
        assert all(mark in step for mark in ("**Look for**", "**Proves**", "**If not:**")), step[:60]


def test_a_claim_that_does_not_hold_fails_the_run(tmp_path: Path, clean: dict[str, str]) -> None:
    env = environment(tmp_path, clean)
    for block in ("test 1 = 2\n", "false | cat\n", 'echo "$unset"\n', "cmp /dev/null pilot.sh\n"):
        done = run(f"## 0. A step\n```sh\n{block}```\n\n```sh\necho gone on\n```\n", tmp_path, env)
        assert done.returncode != 0 and "gone on" not in done.stdout.replace("echo gone on", ""), block
