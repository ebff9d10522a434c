"""Runs as a whole: checks that hold at the end, swaps in mid-run, what is seen meanwhile. Cases of an orchestrator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from tests.gateway.kit import until
from tests.lane.test_spending import Kit, kit

from .conftest import Runs, task
from .test_resume import started

__all__ = ["kit"]


def breaks(runs: Runs) -> tuple[int, dict[str, Any]]:
    """Runs four tasks of which the third breaks what the first one's check holds; each passes its own."""
    todo = [
        task("first", {"put": "limit", "text": "10\n"}, check="test $(cat limit) -ge 10"),
        task("second", {"put": "b", "text": "b\n"}, check="test -s b", needs=["first"]),
        task(
            "third", {"put": "limit", "text": "3\n"}, check="test -s b && test -s limit", needs=["second"], guard=True
        ),
        task("fourth", {"put": "d", "text": "d\n"}, check="test -s d", needs=["third"]),
    ]
    return runs.run(todo, "--jobs", "2")


def test_devflock_B15_a_check_that_a_later_land_broke_is_told_with_who_broke_it(runs: Runs) -> None:
    code, envelope = breaks(runs)
    result = envelope["result"]
    landed = {one["id"]: one["landed"] for one in result["tasks"]}
    assert (code, result["landed"]) == (10, 4), envelope
    (broken,) = result["broken"]
    assert (broken["task"], broken["by"], broken["commit"]) == ("first", "third", landed["third"])
    assert runs.rw("runs", "show", result["id"])["result"]["broken"] == result["broken"], "it is on the board"
    report = runs.rw("runs", "report", result["id"])["result"]
    assert "Checks that fail at the end" in str(report)
    again = runs.rw("runs", "resume", result["id"])["result"]
    assert again["broken"] == result["broken"] and again["head"] == result["head"]


def test_devflock_B15_a_run_whose_checks_all_hold_says_so(runs: Runs) -> None:
    todo = [task(f"t{n}", {"put": f"f{n}", "text": "x\n"}, check=f"test -s f{n}") for n in range(3)]
    code, envelope = runs.run(todo, "--jobs", "3")
    assert code == 0 and "broken" not in envelope["result"], envelope
    (proved,) = [event for event in runs.events(envelope["result"]["id"]) if event["event"] == "run_proved"]
    assert (proved["checks"], proved["broken"], proved["head"]) == (2, 0, envelope["result"]["head"])


def test_devflock_A5_an_endpoint_is_swapped_in_mid_run_and_no_attempt_is_spent(kit: Kit) -> None:
    """The one refuses every request; a person names another, and those that wait as those to come go there."""
    path = kit.folder / "config" / "ropewalk" / "endpoints.toml"
    path.parent.mkdir(parents=True)
    words = '[endpoints.{}]\nurl = "{}"\nkey = "sk-real-key-0123456789"\nwires = ["anthropic"]\n'
    path.write_text(words.format("up", kit.server.url("ill", "always429")))
    path.chmod(0o600)
    line = [sys.executable, "-m", "ropewalk.cli.main", "run", "--tasks", kit.tasks(2), *kit.command(1), "--jobs", "1",
            "--store", kit.root, "--json"]  # fmt: skip
    child = subprocess.Popen(line, cwd=kit.folder, env=kit.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: len(kit.server.entries("ill")) > 0 or child.poll() is not None, 300)
        assert child.poll() is None, child.communicate()
        path.write_text(path.read_text() + words.format("other", kit.server.url("well", "paid")))
        assert kit.rw("gateway", "swap", "up", "other")["url"] == kit.server.url("well", "paid")
        refused = len(kit.server.entries("ill"))
        said, errors = child.communicate(timeout=400)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, (said, errors)
    result = msgspec.json.decode(said)["result"]
    ends = [(t["state"], t["attempts"], t["turns"], t.get("deaths", 0)) for t in result["tasks"]]
    assert ends == [("landed", 1, 1, 0)] * 2, result
    assert [entry.status for entry in kit.server.entries("well")] == [200, 200]
    assert len(kit.server.entries("ill")) <= refused + 1, "what was on its way at that moment, and nothing after it"


def test_devflock_B22_what_a_task_is_at_between_its_turns_is_seen(runs: Runs, tmp_path: Path) -> None:
    """A repair is shown as running, with its number, and what failed turns and dead attempts used counts."""
    gate = tmp_path / "gate"
    mended = [{"wait_for": str(gate)}, {"put": "f", "text": "2\n"}]
    todo = [
        task("mends", {"put": "f", "text": "1\n"}, script={"on_failure": mended}, check="grep -q 2 f"),
        task("dies", {"turn": 4000}, {"die_once": str(tmp_path / "died")}, {"put": "g", "text": "g\n"}),
    ]
    child, run = started(runs, todo, b"run ", "--jobs", "1")
    try:
        until(lambda: [one.get("tokens", 0) > 0 for one in lanes(runs, "mends")] == [True, False], 300)
        (shown,) = [one for one in runs.rw("runs", "show", run)["result"]["tasks"] if one["id"] == "mends"]
        assert (shown["state"], shown["attempts"]) == ("running", 1)
        first, second = lanes(runs, "mends")
        assert (first["state"], second["state"]) == ("done", "running")
        assert [one["lane"].rpartition("/")[2] for one in (first, second)] == ["1", "2"]
        told = [event for event in runs.events(run) if event["event"] == "attempt_failed"]
        assert [(event["task"], event["turn"], event["reason"]) for event in told] == [("mends", 1, "failed")]
        gate.touch()
        said, errors = child.communicate(timeout=300)
    finally:
        child.kill()
        child.wait()
    found = {one["id"]: one for one in msgspec.json.decode(said)["result"]["tasks"]}
    assert (found["mends"]["state"], found["mends"]["turns"]) == ("landed", 2), (said, errors)
    assert sum(found["mends"]["usage"].values()) > first["tokens"], "the turn that failed counts"
    assert (found["dies"]["state"], found["dies"]["deaths"]) == ("landed", 1)
    assert sum(found["dies"]["usage"].values()) > 8000, "the turns of both attempts"


def lanes(runs: Runs, name: str) -> list[dict[str, Any]]:
    """Gives the lanes of a task as `rw lane list` shows them, oldest first."""
    found = runs.rw("lane", "list")["result"]["lanes"]
    return sorted((one for one in found if one["task"].endswith(f".{name}")), key=lambda one: str(one["lane"]))


_STREAMS = """
import os, pathlib, sys, time, urllib.request
sys.stdin.read()
name, there = os.environ["ROPEWALK_TASK"].rpartition(".")[2], pathlib.Path(sys.argv[1])
if name == "t1":
    while not (there / "checking").exists():
        time.sleep(0.05)
    body = b'{"model":"claude-sonnet-4-5","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"hi"}]}'
    heads = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}
    asked = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body, heads)
    assert b"message_stop" in urllib.request.urlopen(asked).read()
    (there / "streamed").touch()
pathlib.Path(f"{name}.txt").write_text("x")
"""


def test_devflock_B8_a_stream_goes_on_while_a_check_of_another_task_runs(kit: Kit) -> None:
    """The check of the one ends when the other's agent has all of an answer, which it asks for while the check runs."""
    kit.endpoints("stream")
    (kit.folder / "streams.py").write_text(_STREAMS)
    waits = f"touch {kit.folder}/checking; until test -e {kit.folder}/streamed; do sleep 0.05; done"
    todo = [{"id": "t0", "description": "Do 0.", "check": f"test -e t0.txt && {{ {waits}; }}"},
            {"id": "t1", "description": "Do 1.", "check": "test -e t1.txt"}]  # fmt: skip
    (kit.folder / "both.json").write_bytes(msgspec.json.encode({"tasks": todo}))
    line = ["run", "--tasks", str(kit.folder / "both.json"), "--jobs", "2", "--check-seconds", "300"]
    done = kit.rw(*line, "--command", f"{sys.executable} {kit.folder}/streams.py {kit.folder}")
    assert done["landed"] == 2, done
    assert [entry.status for entry in kit.server.entries("stream")] == [200]
