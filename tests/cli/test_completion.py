"""Completion: candidates, and the scripts in the shells that are installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.operations import registry

RW = [sys.executable, "-m", "ropewalk.cli.main"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Is a folder with a store of two branches, and a command `rw` in `bin`."""
    assert subprocess.run([*RW, "init", "--branch", "main"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "c.json").write_text(json.dumps([{"path": "a", "content": {"inline": "a"}}]))
    for words in (
        ["commit", "-m", "m", "--changes", "c.json", "--advance", "main"],
        ["ref", "set", "feature-x", "main", "--create"],
    ):
        subprocess.run([*RW, *words, "--as", "test/one"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "rw"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ropewalk.cli.main "$@"\n')
    program.chmod(0o755)
    return tmp_path


def offers(folder: Path, *words: str) -> list[str]:
    done = subprocess.run([*RW, "completion", "words", "--", *words], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0 and done.stderr == b""
    return done.stdout.decode().splitlines()


def test_commands_groups_and_options(folder: Path) -> None:
    assert set(offers(folder, "")) == {n.split(" ")[0] for n in registry.names()} | {
        "mcp",
        "serve",
        "completion",
        "version",
        "help",
    }
    assert sorted(offers(folder, "la")) == ["land", "lane"]
    assert offers(folder, "ref", "") == ["delete", "list", "move", "set"]
    assert offers(folder, "help", "ref", "s") == ["set"]
    assert "--onto" in offers(folder, "land", "--")
    assert offers(folder, "--st") == ["--store"]
    assert offers(folder, "mcp", "--profile", "") == ["core", "full"]
    assert offers(folder, "completion", "") == ["bash", "fish", "zsh"]
    assert "land" in offers(folder, "schema", "l")


def test_refs_are_offered_where_a_revision_is_wanted(folder: Path) -> None:
    for words in (
        ["land", ""],
        ["land", "--onto", ""],
        ["ref", "delete", ""],
        ["log", ""],
        ["cat", ""],
        ["rebase", ""],
    ):
        assert offers(folder, *words) == ["feature-x", "main"], words
    assert offers(folder, "--store", ".ropewalk", "land", "f") == ["feature-x"]
    assert offers(folder, "commit", "--message", "") == []


def test_workspaces_are_offered(folder: Path) -> None:
    made = subprocess.run(
        [*RW, "ws", "create", "one", "--dir", "ws-one", "--as", "test/one"], cwd=folder, capture_output=True
    )
    assert made.returncode == 0, made
    assert offers(folder, "ws", "delete", "") == ["one"]


def test_nothing_is_offered_or_printed_without_a_store(tmp_path: Path) -> None:
    assert offers(tmp_path, "land", "") == []
    assert offers(tmp_path, "nope", "") == []
    assert offers(tmp_path) != []


SHELLS = {
    "bash": "source <(rw completion bash); COMP_WORDS=(rw land --onto f); COMP_CWORD=3; _ropewalk;"
    ' echo "${COMPREPLY[@]}"',
    "zsh": "autoload -U compinit; compinit -u -D; source <(rw completion zsh); words=(rw land --onto f); CURRENT=4;"
    ' compadd() { shift; echo "${(@P)1}"; }; _ropewalk',
    "fish": "rw completion fish | source; complete -C 'rw land --onto f'",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_works_in_its_shell(shell: str, folder: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    import os

    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [program, "-c", SHELLS[shell]], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["feature-x"], done
