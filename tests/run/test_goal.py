"""From a goal to landed work by the installed command: planned by an agent program, shown, agreed to, done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

_AGENT = """#!{python}
import json, os, sys
told = sys.stdin.read()
if "# The goal" in told and '"modules"' in told:
    if {broken!r} and "can't be taken" not in told:
        print("Here it is: " + json.dumps({{"modules": [], "tasks": "none"}}))
    else:
        print(json.dumps({plan}))
elif "# The goal" in told:
    print(json.dumps({{"parts": [{{"name": "shop", "path": "shop", "about": "prices"}}]}}))
elif "tax.py" in told and "tell" not in os.environ["ROPEWALK_TASK"]:
    os.makedirs("shop", exist_ok=True)
    open("shop/tax.py", "w").write("def tax(x):\\n    return x * 1.2\\n")
else:
    open("docs/index.md", "a").write("Prices have tax.\\n")
"""
_PLAN = {
    "summary": "Prices with tax",
    "modules": [{"name": "shop", "path": "shop"}, {"name": "docs", "path": "docs", "depends_on": ["shop"]}],
    "tasks": [
        {"id": "tax", "module": "shop", "description": "Make shop/tax.py with a function tax.",
         "check": "test -e shop/tax.py"},
        {"id": "tell", "module": "docs", "description": "Say in docs/index.md that prices have tax.",
         "check": "grep -q tax docs/index.md && test -e shop/tax.py", "needs": ["tax"]},
    ],
}  # fmt: skip


class Shop:
    """Is a user's repository, without a store, and the command."""

    def __init__(self, folder: Path, git: Any, env: dict[str, str]) -> None:
        self.folder, self.git = folder / "shop", git
        self.folder.mkdir()
        git("init", "-q", "-b", "main", ".", folder=self.folder)
        (self.folder / "docs").mkdir()
        (self.folder / "docs" / "index.md").write_text("# Shop\n")
        git("add", ".", folder=self.folder)
        git("commit", "-qm", "Start", folder=self.folder)
        self.env = env | {"XDG_DATA_HOME": str(folder / "data"), "ROPEWALK_AGENT": "person/me", "ROPEWALK_CAGE": "none"}
        self.agent = folder / "agent"

    def write_agent(self, plan: dict[str, Any], *, broken: bool = False) -> str:
        """Writes the agent program, whose manager gives a plan, at its second try where the first is broken."""
        self.agent.write_text(_AGENT.format(python=sys.executable, plan=repr(plan), broken=broken))
        self.agent.chmod(0o755)
        return str(self.agent)

    def rw(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """Runs the command and gives (exit code, envelope, what it said meanwhile)."""
        argv = [sys.executable, "-m", "ropewalk.cli.main", *words]
        done = subprocess.run(argv, cwd=self.folder, env=self.env, capture_output=True, timeout=100)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.returncode, msgspec.json.decode(done.stdout), done.stderr.decode()


@pytest.fixture
def shop(tmp_path: Path, git: Any, clean: dict[str, str]) -> Shop:
    """Gives a user's repository."""
    return Shop(tmp_path, git, dict(clean))


def test_a_goal_is_planned_done_and_shown_in_the_users_repository(shop: Shop) -> None:
    (shop.folder / "mine.txt").write_text("not committed\n")
    agent = shop.write_agent(_PLAN, broken=True)
    code, envelope, said = shop.rw("run", "Prices should have tax", "--yes", "--command", agent)
    result = envelope["result"]
    assert code == 0 and (result["state"], result["landed"], result["mode"]) == ("done", 2, "goal"), said
    assert result["goal"] == "Prices should have tax" and result["plan"] == "Prices with tax"
    assert "made a store" in said and "mine.txt" in said and "planning, try 2 of 3" in said
    shown = shop.git("log", "--format=%s", f"main..{result['branch']}", folder=shop.folder).splitlines()
    assert shown == ["Say in docs/index.md that prices have tax.", "Make shop/tax.py with a function tax."]
    assert shop.git("status", "--porcelain", folder=shop.folder) == "?? mine.txt"
    assert shop.git("rev-parse", "--abbrev-ref", "HEAD", folder=shop.folder) == "main"


def test_without_a_yes_a_plan_waits_and_is_not_lost(shop: Shop) -> None:
    agent = shop.write_agent(_PLAN)
    code, envelope, _ = shop.rw("run", "Prices should have tax", "--command", agent)
    error = envelope["error"]
    assert code == 14 and error["code"] == "E_STALLED" and shop.rw("runs", "list")[1]["result"]["runs"] == []
    plan = error["details"]["plan"]
    assert os.path.isfile(os.path.join(plan, "plan.md")) and plan in error["hint"]
    code, envelope, _ = shop.rw("run", "--plan", plan, "--yes", "--command", agent)
    assert code == 0 and envelope["result"]["landed"] == 2 and envelope["result"]["mode"] == "plan"


def test_a_manager_that_gives_no_plan_is_exit_15_and_nothing_is_started(shop: Shop) -> None:
    agent = shop.write_agent({**_PLAN, "tasks": [{**_PLAN["tasks"][0], "check": "true"}]})  # type: ignore[dict-item]
    code, envelope, said = shop.rw("run", "Prices should have tax", "--yes", "--command", agent)
    assert code == 15 and envelope["error"]["code"] == "E_PLAN" and "is no check" in str(envelope["error"]["details"])
    assert said.count("planning, try") == 3 and shop.rw("runs", "list")[1]["result"]["runs"] == []


def test_one_of_goal_plan_and_tasks(shop: Shop) -> None:
    code, envelope, _ = shop.rw("run")
    assert code == 2 and envelope["error"]["hint"] == "give a goal, --plan FOLDER, or --tasks FILE"
    assert shop.rw("run", "a goal", "--plan", "x", "--yes")[1]["error"]["details"]["given"] == ["goal", "plan"]
