"""Limits of a task as those of one of its lanes: what earlier turns of the attempt used counts."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

from ropewalk.lane.journal import Result
from ropewalk.lane.waits import Limits
from ropewalk.plan.task import Limits as TaskLimits

_N = TypeVar("_N", int, float)
Name = Literal["turns", "tokens", "money"]


class Spent(NamedTuple):
    """Is what an attempt has used so far: turns of its model, tokens, dollars."""

    turns: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def plus(self, result: Result) -> Spent:
        """Gives it with what one more lane used; what nobody counted is none."""
        tokens = result.tokens.total if result.tokens is not None else 0
        return Spent(self.turns + result.turns, self.tokens + tokens, self.dollars + (result.dollars or 0.0))


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


def used_up(task: TaskLimits, spent: Spent) -> Name | None:
    """Gives which of a task's own limits nothing is left of, so that no further lane is to be started."""
    if task.turns is not None and spent.turns >= task.turns:
        return "turns"
    if task.tokens is not None and spent.tokens >= task.tokens:
        return "tokens"
    if task.money is not None and spent.dollars >= task.money:
        return "money"
    return None


def uncounted(task: TaskLimits, result: Result) -> list[Name]:
    """Gives which of a task's limits can't hold, because neither its program nor a gateway told what a lane used."""
    found: list[Name] = []
    if task.turns is not None and not result.turns and not result.requests:
        found.append("turns")
    if task.tokens is not None and result.tokens is None:
        found.append("tokens")
    if task.money is not None and (result.dollars is None or result.mark == "*"):
        found.append("money")
    return found


def words(name: Name, task: TaskLimits, spent: Spent) -> str:
    """Gives a limit and what was used of it, for people."""
    if name == "turns":
        return f"{spent.turns} of {task.turns} turns are used"
    if name == "tokens":
        return f"{spent.tokens} of {task.tokens} tokens are used"
    return f"{spent.dollars:.4g} of {task.money:g} dollars are used"


def _least(general: _N | None, own: _N | None, spent: _N) -> _N | None:
    left = None if own is None else max(own - spent, own - own)
    if left is None or general is None:
        return general if left is None else left
    return min(left, general)
