"""Runs as a whole: checks that hold at the end, swaps in mid-run, what is seen meanwhile. Cases of an orchestrator."""

from __future__ import annotations

from typing import Any

from .conftest import Runs, task


def breaks(runs: Runs) -> tuple[int, dict[str, Any]]:
    """Runs four tasks of which the third breaks what the first one's check holds; each passes its own."""
    todo = [
        task("first", {"put": "limit", "text": "10\n"}, check="test $(cat limit) -ge 10"),
        task("second", {"put": "b", "text": "b\n"}, check="test -s b", needs=["first"]),
        task("third", {"put": "limit", "text": "3\n"}, check="test -s b && test -s limit", needs=["second"], guard=True),
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
