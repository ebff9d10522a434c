"""A task's limits as those of a lane."""

from __future__ import annotations

from ropewalk.lane.waits import Limits
from ropewalk.plan.task import Limits as TaskLimits
from ropewalk.run.limits import Spent, is_spent, of_task


def test_a_task_without_limits_has_the_general_ones() -> None:
    general = Limits(turns=7, tokens=None, dollars=2.0, requests=9)
    assert of_task(TaskLimits(), general, 30.0) == general._replace(seconds=30.0)
    assert of_task(TaskLimits(seconds=5), general, 30.0).seconds == 5


def test_the_smaller_of_both_counts_and_what_was_used_is_taken_off_the_task_s_own() -> None:
    general = Limits(turns=10, tokens=1000, dollars=None)
    own = TaskLimits(turns=20, tokens=600, money=1.5)
    assert of_task(own, general, 1.0)[1:4] == (10, 600, 1.5)
    left = of_task(own, general, 1.0, Spent(15, 500, 1.0))
    assert left[1:4] == (5, 100, 0.5) and not is_spent(left)


def test_what_is_used_up_is_none_left_and_not_without_bound() -> None:
    own = TaskLimits(tokens=100, money=1.0)
    left = of_task(own, Limits(), 1.0, Spent(tokens=300, dollars=0.5))
    assert left.tokens == 0 and is_spent(left)
    assert is_spent(of_task(TaskLimits(tokens=0), Limits(), 1.0)), "a limit of none is a limit"
    assert not is_spent(of_task(TaskLimits(), Limits(), 1.0, Spent(99, 99, 9.0)))
