"""Runs as a whole: checks that hold at the end, swaps in mid-run, what is seen meanwhile. Cases of an orchestrator."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
from tests.gateway.kit import until
from tests.lane.test_spending import Kit, kit

from .conftest import Runs, task

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
