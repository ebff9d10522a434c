"""Limits of a task as those of one of its lanes: what earlier turns of the attempt used counts."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from ropewalk.lane.waits import Limits
from ropewalk.plan.task import Limits as TaskLimits

_N = TypeVar("_N", int, float)


class Spent(NamedTuple):
    """Is what an attempt has used so far: turns of its model, tokens, dollars."""

    turns: int = 0
    tokens: int = 0
    dollars: float = 0.0


def of_task(task: TaskLimits, general: Limits, seconds: float, spent: Spent = Spent()) -> Limits:
    """Gives what the next lane of a task may use: what is left of the task's own limits, and never more than `general`.

    `seconds` are a turn's where the task names none. What is used up is 0, which is no missing bound.
    """
    return general._replace(
        seconds=task.seconds or seconds,
        turns=_least(general.turns, task.turns, spent.turns),
        tokens=_least(general.tokens, task.tokens, spent.tokens),
        dollars=_least(general.dollars, task.money, spent.dollars),
    )


def is_spent(limits: Limits) -> bool:
    """Says whether nothing is left of one of the limits, so that no further lane is to be started."""
    return any(left is not None and left <= 0 for left in (limits.turns, limits.tokens, limits.dollars))


def _least(general: _N | None, own: _N | None, spent: _N) -> _N | None:
    left = None if own is None else max(own - spent, own - own)
    if left is None or general is None:
        return general if left is None else left
    return min(left, general)
