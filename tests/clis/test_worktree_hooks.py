"""Claude Code's hooks for worktrees, called by the real program: its worktrees are workspaces of the store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.clis.run import end_all, prepare
from tests.clis.test_model_server import needed

from ropewalk.testing.model_server import running
from storekit import SRC, STOCK, child_env

pytestmark = [pytest.mark.clis]
PROMPT = "Please write hello.txt."
WRITES: dict[str, Any] = {"tool": "shell", "cmd": "echo hi > hello.txt && git status --short && pwd"}
LOOKS: dict[str, Any] = {"tool": "shell", "cmd": "pwd"}
ENDS: dict[str, Any] = {"text": "FINAL-ANSWER: done"}
ENTERS: dict[str, Any] = {"tool": "EnterWorktree", "args": {"name": "fix"}}
LEAVES: dict[str, Any] = {"tool": "ExitWorktree", "args": {"action": "remove", "discard_changes": True}}


class Session(NamedTuple):
    """Is how a session ended: its exit code, what its tools answered, and what it said on standard error."""

    code: int
    results: list[str]
    err: str


class Ground:
    """Is a repository with a store in it, and Claude Code with the settings that `rw` printed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir(parents=True)
        self.env = {**child_env(), **STOCK, "XDG_DATA_HOME": str(folder / "home" / "data")}
        self.git("init", "-q", "-b", "main")
        (self.work / "a.txt").write_text("a\n")
        self.git("add", ".")
        # a submodule that is not filled is a warning of each workspace
        self.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
        self.git("commit", "-q", "-m", "One")
        self.rw("init")
        program = folder / "bin" / "rw"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nPYTHONPATH={SRC} exec {sys.executable} -m ropewalk.cli.main "$@"\n')
        program.chmod(0o755)
        (self.work / ".claude").mkdir()
        (self.work / ".claude" / "settings.local.json").write_text(self.rw("ws", "hook", "config", "--human"))

    def git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.work, env=STOCK, check=True, capture_output=True, timeout=60)

    def rw(self, *words: str) -> str:
        """Gives what a command of a person prints."""
        return subprocess.run([sys.executable, "-m", "ropewalk.cli.main", *words], cwd=self.work, env=self.env,
                              check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60).stdout  # fmt: skip

    def workspaces(self) -> dict[str, Path]:
        """Gives the store's workspaces and their folders."""
        found = json.loads(self.rw("ws", "list", "--json"))["result"]["workspaces"]
        return {one["name"]: Path(one["path"]) for one in found}

    def claude(self, *steps: dict[str, Any], more: tuple[str, ...] = ()) -> Session:
        """Runs a session whose model does what the steps say."""
        with running() as server:
            server.add("steps", list(steps))
            words, env, work = prepare("claude", server.url("hooks", "steps"), self.folder, PROMPT)
            env["PATH"] = f"{self.folder / 'bin'}:{env['PATH']}"
            env["ENABLE_TOOL_SEARCH"] = "false"  # else the model is offered the worktree tools after a search alone
            try:
                done = subprocess.run([*words, *more], cwd=work, env=env, stdin=subprocess.DEVNULL, text=True,
                                      capture_output=True, timeout=150, start_new_session=True)  # fmt: skip
            finally:
                end_all(self.folder / "home")
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        parts = [part for one in said if one["type"] == "user" for part in one["message"]["content"]]
        results = [str(part.get("content")) for part in parts if isinstance(part, dict)]
        return Session(done.returncode, results, done.stderr)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    needed("claude")
    yield Ground(tmp_path / "ground")
    shutil.rmtree(tmp_path / "ground" / "home", ignore_errors=True)


def test_a_session_in_a_worktree_works_in_a_workspace(ground: Ground) -> None:
    done = ground.claude(WRITES, ENDS, more=("--worktree", "feat/log.in"))
    assert done.code == 0, done.err
    path = ground.workspaces()["feat-log-in"]
    assert done.results[0].split() == ["??", "hello.txt", str(path)] and (path / "hello.txt").read_text() == "hi\n"
    assert not (ground.work / "hello.txt").exists() and not (ground.work / ".claude" / "worktrees").exists()
    # and what it did lands as the work of its agent
    landed = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", "ws", "land", "-m", "Hello"], cwd=path,
                            env=ground.env, capture_output=True, timeout=60)  # fmt: skip
    assert landed.returncode == 0, landed.stderr
    assert "claude/feat-log-in: Hello" in ground.rw("log", "--human")


def test_leaving_a_worktree_removes_the_workspace(ground: Ground) -> None:
    done = ground.claude(ENTERS, LOOKS, LEAVES, ENDS)
    assert done.code == 0 and "ws/fix" in done.results[1] and "Exited and removed" in done.results[2], done
    assert ground.workspaces() == {} and "-fix" in ground.rw("trash", "list", "--human")


def test_a_worktree_with_work_is_kept_and_the_agent_is_told(ground: Ground) -> None:
    done = ground.claude(ENTERS, WRITES, LEAVES, ENDS)
    assert done.code == 0 and "kept" in done.results[2] and "Exited and removed" not in done.results[2], done
    assert (ground.workspaces()["fix"] / "hello.txt").read_text() == "hi\n"


def test_an_isolated_agent_works_in_a_workspace(ground: Ground) -> None:
    agent = {"description": "write it", "prompt": "Work.", "subagent_type": "general-purpose",
             "isolation": "worktree", "run_in_background": False}  # fmt: skip
    done = ground.claude({"tool": "Agent", "args": agent}, ENDS)
    assert done.code == 0, done.err
    made = ground.workspaces()
    assert made and all(name.startswith("agent-") and (path / "a.txt").exists() for name, path in made.items())
    assert sorted(os.listdir(ground.work)) == [".claude", ".git", "a.txt"]
