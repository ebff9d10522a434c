"""What is not started or does not end well, by the command: a plan that its lint fails, an agent that escapes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.run.test_goal import Shop

from ropewalk.plan.document import Document, of_plan
from ropewalk.plan.plan import Module, Plan
from ropewalk.plan.task import Task
from ropewalk.run.planner import folders

SCRIPT = 'Write it, as in /home/somebody/notes.\n\n```script\n[{"put": "shop/tax.py", "text": "x = 1\\n"}]\n```'


@pytest.fixture
def field(tmp_path: Path, git: Any, clean: dict[str, str]) -> Shop:
    return Shop(tmp_path, git, dict(clean))


def test_a_plan_that_fails_its_lint_is_started_only_in_spite_of_it_and_that_is_told(field: Shop) -> None:
    task = Task("tax", "test -e shop/tax.py", SCRIPT, module="shop")
    folders.save(str(field.folder / "plan"), of_plan(Plan("tax", (Module("shop", "shop"),), (task,)), Document()))
    code, envelope, said = field.rw("run", "--plan", "plan", "--yes")
    error = envelope["error"]
    assert (code, error["code"]) == (15, "E_PLAN") and "--despite-lint" in error["hint"] and "absolute-paths" in said
    assert error["details"]["problems"] == [
        "absolute-paths: tax it names '/home/somebody/notes.', which is a place of one machine"
    ]
    assert field.rw("runs", "list")[1]["result"]["runs"] == []
    code, envelope, _ = field.rw("run", "--plan", "plan", "--yes", "--despite-lint")
    assert code == 0 and envelope["result"]["despite"] == error["details"]["problems"]
    name = envelope["result"]["id"]
    assert field.rw("runs", "show", name)[1]["result"]["despite"] == error["details"]["problems"]
    assert "/home/somebody/notes" in field.rw("runs", "report", name)[1]["result"]["text"]


def test_a_run_whose_agent_changes_the_users_checkout_ends_with_12(field: Shop) -> None:
    agent = field.agent
    agent.write_text(f"#!/bin/sh\necho gone >> {field.folder}/docs/index.md\n")
    agent.chmod(0o755)
    (field.folder.parent / "tasks.json").write_bytes(
        msgspec.json.encode({"tasks": [{"id": "stray", "description": "Go astray", "check": "test -e x"}]})
    )
    words = ["--tasks", str(field.folder.parent / "tasks.json"), "--command", str(agent), "--heirs", "0"]
    code, envelope, _ = field.rw("run", *words)
    (one,) = envelope["result"]["tasks"]
    assert code == 12 and one["state"] == "failed" and "escaped: " in one["reason"], envelope
    lane = field.rw("lane", "list")[1]["result"]["lanes"][0]["lane"]
    code, envelope, _ = field.rw("lane", "restore", lane)
    assert code == 0, envelope
    assert (
        os.listdir(field.folder) == [".git", "docs"] and (field.folder / "docs" / "index.md").read_text() == "# Shop\n"
    )


@pytest.mark.parametrize("words", [["plan", "draft", "Do it", "--into", "plan"], ["run", "Do it", "--yes"]])
def test_a_planning_that_is_interrupted_ends_with_130_and_leaves_nothing(field: Shop, words: list[str]) -> None:
    agent, begun = field.agent, field.folder.parent / "begun"
    os.mkfifo(begun)
    agent.write_text(f"#!/bin/sh\necho > {begun}\nexec sleep 300\n")
    agent.chmod(0o755)
    assert field.rw("init")[0] == 0
    argv = [sys.executable, "-m", "ropewalk.cli.main", *words, "--command", str(agent)]
    started = subprocess.Popen(argv, cwd=field.folder, env=field.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    begun.read_text()  # until the manager runs
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130 and b"Traceback" not in said, said.decode()
    assert os.listdir(field.folder) == [".git", "docs"] and field.rw("runs", "list")[1]["result"]["runs"] == []
    assert not subprocess.run(["pgrep", "-f", str(agent)], capture_output=True).stdout
