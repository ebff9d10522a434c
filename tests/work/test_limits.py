"""Limits of a task: turns and tokens of its model bound it, and end it in a state that has a name."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.work.workkit import WorkKit, task

from ropewalk.board import names
from ropewalk.plan.task import Limits, Task

NEVER = {"wait_for": "never"}
WIDE = {"put": "f", "text": "half of it"}


def scripted(name: str, *steps: dict[str, Any], check: str = "true", **limits: Any) -> Task:
    """Gives a task for the scripted agent."""
    script = msgspec.json.encode(list(steps)).decode()
    return Task(name, check, description=f"Do {name}.\n\n```script\n{script}\n```\n", limits=Limits(**limits))


def tokens_of(said: dict[str, str]) -> int:
    """Gives how many tokens a verdict tells of."""
    return sum(int(part.partition("=")[2]) for part in said["tokens"].split())


def test_each_limit_ends_a_task_in_a_state_with_a_name_and_its_work_is_kept(bench: WorkKit) -> None:
    bench.add(
        scripted("tokens", WIDE, {"turn": 400}, {"turn": 700}, NEVER, tokens=1000, heirs=5),
        scripted("turns", WIDE, *[{"turn": 1}] * 3, NEVER, turns=2),
        scripted("none", WIDE, tokens=0), scripted("free", WIDE, money=0),
        scripted("within", {"put": "g", "text": "all of it"}, {"turn": 400}, turns=1, tokens=1000, money=0.5),
    )  # fmt: skip
    process = bench.work(scripted=True)
    assert bench.state("tokens") == "failed" and bench.files().keys() == {"README.md", "g"}
    said = bench.said("tokens")
    assert (said["fixed"], said["reason"], said["note"]) == ("false", "limit_tokens", "1100 of 1000 tokens are used")
    assert tokens_of(said) == 1100 and bench.archived("tokens") == [], "no heir uses up as much again"
    ends = {one["task"]: one for one in process.report["tasks"]}
    assert {name: (end["how"], end.get("reason"), end.get("turns", 0)) for name, end in ends.items()} == {
        "tokens": ("failed", "limit_tokens", 1), "turns": ("failed", "limit_turns", 1),
        "none": ("failed", "limit_tokens", 0), "free": ("failed", "limit_money", 0), "within": ("landed", None, 1),
    }  # fmt: skip
    assert bench.said("turns")["note"] == "3 of 2 turns are used"
    told = {
        event["task"]: (event["limit"], event["turns"], event["tokens"]) for event in process.kinds("limit_reached")
    }
    assert told["tokens"] == ("tokens", 2, 1100) and told["none"] == ("tokens", 0, 0) and "within" not in told
    assert process.kinds("limit_uncounted") == []
    archive = f"refs/archive/ws/{ends['tokens']['attempt']}/"
    (kept,) = [oid for _, oid in bench.board.below(archive)]
    assert bench.kit.store.objects.commit(kept).tree == said["tree"], "what it did is in the archive"
    assert bench.leftovers() == []
    bench.lawful()


def test_a_further_turn_gets_what_those_before_it_left(bench: WorkKit) -> None:
    """The check fails twice: each turn uses 400 of 1,000 tokens, and for a fourth nothing is left."""
    count = {"run": "echo x >> count"}
    bench.add(scripted("one", count, {"turn": 400}, check="echo still wrong; exit 4", tokens=1000, attempts=9))
    process = bench.work(scripted=True)
    said = bench.said("one")
    assert (said["reason"], said["pytest_rc"]) == ("limit_tokens", "4")
    assert said["note"].endswith("of 1000 tokens are used; still wrong")
    used = [event["tokens"] for event in process.kinds("limit_reached")]
    assert int(said["turns"]) < 4 and used == [tokens_of(said)] and used[0] >= 1000
    bench.lawful()


def test_a_limit_of_what_nobody_counts_is_told_of_once(bench: WorkKit) -> None:
    """A program that says nothing of its model, and reaches none through a gateway, can't be held to a count."""
    script = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n"
    bench.add(task("one", script, 'test "$(cat n)" = 2', limits=Limits(turns=9, tokens=900, money=1)))
    process = bench.work()
    assert bench.state("one") == "done" and bench.board.ref(names.returned("one")) is not None
    assert [event["limit"] for event in process.kinds("limit_uncounted")] == ["turns", "tokens", "money"]
