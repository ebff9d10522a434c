"""A task's limits as those of a lane."""

from __future__ import annotations

from typing import Any

from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.journal import Result
from ropewalk.lane.waits import Limits
from ropewalk.plan.task import Limits as TaskLimits
from ropewalk.run.limits import Spent, of_task, uncounted, used_up, words


def lane(**given: Any) -> Result:
    """Gives how a lane ended that used some of everything."""
    how: dict[str, Any] = {"tokens": Tokens(10, 20, 30, 40, 25), "dollars": 0.5, "mark": "", "turns": 3, **given}
    return Result("done", "", "", 1.0, tools=0, level="none", **how)


def test_a_task_without_limits_has_the_general_ones() -> None:
    general = Limits(turns=7, tokens=None, dollars=2.0, requests=9)
    assert of_task(TaskLimits(), general, 30.0) == general._replace(seconds=30.0)
    assert of_task(TaskLimits(seconds=5), general, 30.0).seconds == 5


def test_the_smaller_of_both_counts_and_what_was_used_is_taken_off_the_task_s_own() -> None:
    general = Limits(turns=10, tokens=1000, dollars=None)
    own = TaskLimits(turns=20, tokens=600, money=1.5)
    assert of_task(own, general, 1.0)[1:4] == (10, 600, 1.5)
    spent = Spent(15, 500, 1.0)
    assert of_task(own, general, 1.0, spent)[1:4] == (5, 100, 0.5) and used_up(own, spent) is None


def test_what_is_used_up_is_none_left_and_not_without_bound() -> None:
    own = TaskLimits(tokens=100, money=1.0)
    spent = Spent(tokens=300, dollars=0.5)
    assert of_task(own, Limits(), 1.0, spent).tokens == 0 and used_up(own, spent) == "tokens"
    assert used_up(TaskLimits(tokens=0), Spent()) == "tokens", "a limit of none is a limit"
    assert used_up(TaskLimits(turns=2, money=0.5), Spent(2, 0, 0.5)) == "turns"
    assert used_up(TaskLimits(money=0.5), Spent(2, 0, 0.5)) == "money"
    assert used_up(TaskLimits(), Spent(99, 99, 9.0)) is None


def test_lanes_add_up_each_token_once() -> None:
    spent = Spent().plus(lane()).plus(lane(tokens=None, dollars=None))
    assert spent == Spent(6, 100, 0.5)
    own = TaskLimits(turns=6, tokens=400, money=2.0)
    assert words("turns", own, spent) == "6 of 6 turns are used"
    assert words("tokens", own, spent) == "100 of 400 tokens are used"
    assert words("money", own, spent) == "0.5 of 2 dollars are used"


def test_a_limit_of_what_nobody_counts_is_told_of() -> None:
    own = TaskLimits(turns=6, tokens=400, money=2.0)
    assert uncounted(own, lane()) == [] and uncounted(TaskLimits(), lane(tokens=None, turns=0)) == []
    assert uncounted(own, lane(tokens=None, dollars=None, turns=0)) == ["turns", "tokens", "money"]
    assert uncounted(own, lane(dollars=0.0, mark="*")) == ["money"]
