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


def test_an_agent_that_uses_more_tokens_than_its_task_may_is_ended_and_its_work_is_kept(bench: WorkKit) -> None:
    bench.add(scripted("one", WIDE, {"turn": 400}, {"turn": 700}, NEVER, tokens=1000, heirs=5))
    process = bench.work(scripted=True)
    assert bench.state("one") == "failed" and "f" not in bench.files()
    said = bench.said("one")
    assert (said["fixed"], said["reason"], said["note"]) == ("false", "limit_tokens", "1100 of 1000 tokens are used")
    assert tokens_of(said) == 1100 and bench.archived("one") == [], "no heir uses up as much again"
    (end,) = process.report["tasks"]
    assert (end["how"], end["reason"], end["turns"]) == ("failed", "limit_tokens", 1)
    (told,) = process.kinds("limit_reached")
    assert (told["limit"], told["tokens"], told["turns"]) == ("tokens", 1100, 2)
    (kept,) = [oid for _, oid in bench.board.below(f"refs/archive/ws/{end['attempt']}/")]
    assert bench.kit.store.objects.commit(kept).tree == said["tree"], "what it did is in the archive"
    assert bench.leftovers() == []
    bench.lawful()


def test_an_agent_that_takes_more_turns_than_its_task_may_is_ended(bench: WorkKit) -> None:
    bench.add(scripted("one", WIDE, *[{"turn": 1}] * 3, NEVER, turns=2))
    bench.work(scripted=True)
    said = bench.said("one")
    assert (said["reason"], said["note"]) == ("limit_turns", "3 of 2 turns are used")


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


def test_a_task_that_may_use_nothing_starts_no_agent(bench: WorkKit) -> None:
    bench.add(scripted("one", WIDE, tokens=0), scripted("two", WIDE, money=0))
    process = bench.work(scripted=True)
    assert [bench.said(name)["reason"] for name in ("one", "two")] == ["limit_tokens", "limit_money"]
    assert process.kinds("agent_ended") == [] and bench.files().keys() == {"README.md"}


def test_what_ends_within_its_limits_lands(bench: WorkKit) -> None:
    bench.add(scripted("one", WIDE, {"turn": 400}, turns=1, tokens=1000, money=0.5))
    process = bench.work(scripted=True)
    assert bench.state("one") == "done" and bench.files()["f"] == "half of it"
    assert process.kinds("limit_uncounted") == process.kinds("limit_reached") == []


def test_a_limit_of_what_nobody_counts_is_told_of_once(bench: WorkKit) -> None:
    """A program that says nothing of its model, and reaches none through a gateway, can't be held to a count."""
    script = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n"
    bench.add(task("one", script, 'test "$(cat n)" = 2', limits=Limits(turns=9, tokens=900, money=1)))
    process = bench.work()
    assert bench.state("one") == "done" and bench.board.ref(names.returned("one")) is not None
    assert [event["limit"] for event in process.kinds("limit_uncounted")] == ["turns", "tokens", "money"]
