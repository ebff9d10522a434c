"""Flockwork's tools over MCP: its names, arguments and answers, and a server that lives through whatever is sent."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ropewalk.mcp import tools

TEN = {
    "fw_protocol": set(), "fw_brief": {"origin", "task"}, "fw_claim": {"origin", "task"}, "fw_judge": {"task", "tree"},
    "fw_land": {"origin", "task", "att", "tree"}, "fw_verdict": {"origin", "task", "att", "oc_rc", "pytest_rc"},
    "fw_renew": {"origin", "task", "att"}, "fw_work_started": {"origin", "task", "att"},
    "fw_work_done": {"origin", "task", "att"}, "fw_work_external": {"origin", "task", "att", "tree"},
}  # fmt: skip
MORE = {"fw_list", "fw_next", "fw_add", "fw_status", "fw_audit", "fw_review", "fw_gate"}
TASKS = json.dumps([{"id": t, "check": f"test -f {t}.txt", "description": f"Make {t}.txt"} for t in ("a", "b", "c")])


class Board:
    """Calls the tools of a server on the board of a store."""

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self.folder = client, folder
        client.request("initialize", {"protocolVersion": "2024-11-05", "clientInfo": {"name": "Claude Code"}})

    def __call__(self, tool: str, **arguments: Any) -> Any:
        """Gives the result of a call."""
        return self.client.request("tools/call", {"name": tool, "arguments": arguments})["result"]

    def ok(self, tool: str, **arguments: Any) -> Any:
        """Gives the data of a call that is no error."""
        found = self(tool, **arguments)
        assert not found.get("isError"), found
        return found.get("structuredContent")


@pytest.fixture
def board(start: Any, folder: Path) -> Board:
    """Is a server with the profile of boards, and three tasks."""
    made = Board(start("--profile", "board"), folder)
    assert made.ok("fw_add", tasks=TASKS)["added"] == ["a", "b", "c"]
    return made


def test_R23_the_tools_are_listed_under_their_names(board: Board) -> None:
    found = {one["name"]: one for one in board.client.request("tools/list")["result"]["tools"]}
    assert set(found) == set(TEN) | MORE
    for name, required in TEN.items():
        assert set(found[name]["inputSchema"].get("required", [])) == required
    assert not {one["name"] for one in tools.listed("core")} & set(found)


def test_a_task_is_claimed_judged_landed_and_closed(board: Board, folder: Path) -> None:
    assert board.ok("fw_next")["task"]["id"] == "a"
    assert "Make a.txt" in board("fw_brief", origin=".", task="a")["content"][0]["text"]
    claimed = board("fw_claim", origin=".", task="a", worker="w1")
    att = claimed["structuredContent"]["att"]
    assert claimed["content"][0]["text"] == f"claimed a\natt={att}" and att.startswith("att-w1-")
    assert board("fw_claim", origin=".", task="a")["isError"]
    assert board("fw_work_started", origin=".", task="a", att=att)["content"][0]["text"] == "work_started ok"
    judged = board("fw_judge", task="a", tree=".", origin=".")
    assert judged["structuredContent"] == {"rc": 1, "timed_out": False} and not judged["isError"]
    (folder / "a.txt").write_text("new\n")
    (folder / "junk.txt").write_text("junk\n")
    landed = board("fw_land", origin=".", task="a", att=att, tree=".", paths=["a.txt"])
    assert "land succeeded (main_pushed=True return_pushed=True" in landed["content"][0]["text"], landed
    again = board("fw_verdict", origin=".", task="a", att=att, fixed=True, oc_rc=0, pytest_rc=0)
    assert not again["isError"] and again["content"][0]["text"] == "verdict was written: a fixed=True"
    assert board("fw_verdict", origin=".", task="a", att=att, fixed=False, oc_rc=0, pytest_rc=1)["isError"]
    assert board.ok("fw_status", task="a")["state"] == "done" and board.ok("fw_audit")["healthy"]
    assert board("fw_review", task="a", outcome="agree")["isError"], "a server without an identity reviews nothing"
    assert not board("fw_gate", task="b")["structuredContent"].get("integrated")


def test_the_check_is_the_specs_own_and_its_failure_is_no_error(board: Board, folder: Path) -> None:
    att = board.ok("fw_claim", origin=".", task="b")["att"]
    assert board("fw_judge", task="b", tree=".", origin=".", verify="true")["isError"]
    assert board("fw_work_external", origin=".", task="b", att=att, tree=".", verify="true")["isError"]
    stranger = board("fw_work_external", origin=".", task="b", att="att-nobody-000001", tree=".")
    assert stranger["isError"] and not stranger["structuredContent"]["ok"]
    done = board("fw_work_external", origin=".", task="b", att=att, tree=".")
    out = done["structuredContent"]
    assert not done["isError"] and (out["fixed"], out["verdict_pushed"], out["main_push"]) == (False, True, False)
    again = board("fw_work_external", origin=".", task="b", att=att, tree=".")
    assert again["isError"] and "verdict_pushed" not in again["structuredContent"]
    assert board.ok("fw_status", task="b")["state"] == "failed"


def test_a_whole_attempt_in_one_call_lands_named_paths_alone(board: Board, folder: Path) -> None:
    att = board.ok("fw_claim", origin=".", task="c", harness="codex")["att"]
    (folder / "c.txt").write_text("c\n")
    out = board.ok("fw_work_external", origin=".", task="c", att=att, tree=".", paths=["c.txt"])
    assert out["fixed"] and out["main_push"] and out["return_pushed"] and out["verdict_pushed"]
    assert board.ok("fw_list", state="done")["tasks"][0]["id"] == "c"


def test_R21_R22_bad_calls_are_answered_and_the_server_lives(board: Board) -> None:
    draw = random.Random(22)
    odd: list[Any] = ["", "a/b", "..", "\0", "x" * 5000, "a@b", None, 3, [], {}, True, "att-w-123456", "\u202e", "-x"]
    before = board.ok("fw_list")
    for _ in range(200):
        name = draw.choice(sorted(set(TEN) | MORE))
        fields = ["origin", "task", "att", "tree", "paths", "fixed", "worker", "harness", "outcome", "tasks", "state"]
        arguments = {field: draw.choice(odd) for field in draw.sample(fields, 4)}
        if name == "fw_claim":
            arguments |= {
                "origin": ".",
                "task": draw.choice(["nowhere", "a"]),
                "worker": draw.choice(["a b", "a..b", "~"]),
            }
        found = board(name, **arguments)
        assert isinstance(found["content"][0]["text"], str) and "Traceback" not in json.dumps(found)
        assert "E_INTERNAL" not in json.dumps(found), (name, arguments, found)
    for frame in (b"[]", b'"x"', b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":"x"}}'):
        assert board.client.ask(frame)
    assert board.ok("fw_list")["tasks"] == before["tasks"]
