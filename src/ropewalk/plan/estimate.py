"""Estimates: tokens, money and time of tasks, each with what it is based on; what is unknown stays unknown, never 0.

The caller gives what earlier tasks took and what tokens cost. Every figure is an estimate and is shown with `≈`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from ropewalk.plan.task import Task

Basis = Literal["model and class", "model", "class", "module", "all", "limit", ""]
ENOUGH = 3
"""Is how many earlier tasks a figure stands on at least."""


class Past(msgspec.Struct, frozen=True):
    """Is what one earlier task took; None where nobody measured it. `money` is in dollars."""

    model: str = ""
    class_: str = msgspec.field(name="class", default="")
    module: str = ""
    tokens_in: float | None = None
    tokens_out: float | None = None
    seconds: float | None = None
    money: float | None = None


class Figure(msgspec.Struct, frozen=True):
    """Is one figure: the value, the range that half of the earlier ones were in, and what it is based on.

    `count` is how many earlier tasks it stands on. Without a value `why` says what is missing.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    basis: Basis = ""
    count: int = 0
    why: str = ""

    @property
    def known(self) -> bool:
        """Says whether there is a value."""
        return self.value is not None

    def shown(self, unit: str = "") -> str:
        """Gives the figure as a person reads it: `≈ 12,000 (9,000 to 20,000; model, 14 tasks)`, or `unknown (why)`."""
        if self.value is None:
            return f"unknown ({self.why})" if self.why else "unknown"
        span = "" if self.low is None or self.high is None else f"{_short(self.low)} to {_short(self.high)}; "
        count = "" if not self.count else f", {self.count} task{'s' if self.count != 1 else ''}"
        return f"≈ {_short(self.value)}{unit} ({span}{self.basis}{count})"


class TaskEstimate(msgspec.Struct, frozen=True):
    """Is what one task is thought to take."""

    id: str
    tokens_in: Figure
    tokens_out: Figure
    seconds: Figure
    money: Figure


class Total(msgspec.Struct, frozen=True):
    """Is a sum over tasks: of those that are known, with how many are not. None when none is."""

    value: float | None
    low: float | None
    high: float | None
    unknown: int

    def shown(self, unit: str = "") -> str:
        """Gives the sum as a person reads it; where tasks are unknown it is a least."""
        if self.value is None:
            return "unknown"
        least = f", and {self.unknown} unknown" if self.unknown else ""
        span = "" if self.low is None or self.high is None else f" ({_short(self.low)} to {_short(self.high)})"
        return f"{'at least ' if self.unknown else ''}≈ {_short(self.value)}{unit}{span}{least}"


class Estimate(msgspec.Struct, frozen=True):
    """Is what a plan is thought to take; `seconds` is the agents' time together, not the wall's."""

    tasks: tuple[TaskEstimate, ...]
    tokens_in: Total
    tokens_out: Total
    seconds: Total
    money: Total

    @property
    def durations(self) -> dict[str, float]:
        """Gives the seconds of those tasks of which they are known, for the packer and the scheduler."""
        return {t.id: t.seconds.value for t in self.tasks if t.seconds.value is not None}


Price = Callable[[str, float, float], float | None]
"""Gives what tokens in and out of a model cost in dollars, None when it has no known price."""


def estimate(tasks: Sequence[Task], past: Sequence[Past], price: Price | None = None) -> Estimate:
    """Gives what tasks are thought to take.

    Of the earlier tasks those are taken that are most like it: the same model and class, else the same model, class,
    module, else all. Money comes from tokens and price; where the model is not known, from what such tasks cost.
    """
    groups: dict[tuple[str, ...], list[Past]] = {}
    for one in past:
        for key in (("model and class", one.model, one.class_), ("model", one.model), ("class", one.class_),
                    ("module", one.module), ("all",)):  # fmt: skip
            if all(key):
                groups.setdefault(key, []).append(one)
    listed = tuple(_one(task, groups, price) for task in tasks)
    return Estimate(listed, _total([t.tokens_in for t in listed]), _total([t.tokens_out for t in listed]),
                    _total([t.seconds for t in listed]), _total([t.money for t in listed]))  # fmt: skip


def _one(task: Task, groups: Mapping[tuple[str, ...], Sequence[Past]], price: Price | None) -> TaskEstimate:
    def figure(name: str) -> Figure:
        for key in (("model and class", task.model, task.class_), ("model", task.model), ("class", task.class_),
                    ("module", task.module), ("all",)):  # fmt: skip
            values = [v for one in groups.get(key, ()) if all(key) and (v := getattr(one, name)) is not None]
            values = [v for v in values if math.isfinite(v) and v >= 0]
            if len(values) >= ENOUGH:
                return _figure(values, key[0])
        return Figure(why=f"fewer than {ENOUGH} earlier tasks with this measured")

    tokens_in, tokens_out, seconds = figure("tokens_in"), figure("tokens_out"), figure("seconds")
    return TaskEstimate(task.id, tokens_in, tokens_out, seconds, _money(task, tokens_in, tokens_out, figure, price))


def _money(task: Task, tokens_in: Figure, tokens_out: Figure, figure: Callable[[str], Figure],
           price: Price | None) -> Figure:  # fmt: skip
    if not task.model:
        found = figure("money")
        return found if found.known else Figure(why="the task names no model, and too few like it have a known cost")
    if price is None:
        return Figure(why="no prices are given")
    if price(task.model, 0.0, 0.0) is None:
        return Figure(why=f"{task.model} has no known price")
    if tokens_in.value is None or tokens_out.value is None:
        return Figure(why=f"{task.model} has a price, and its tokens are unknown")
    low, high = ((price(task.model, a or 0.0, b or 0.0)) for a, b in
                 ((tokens_in.low, tokens_out.low), (tokens_in.high, tokens_out.high)))  # fmt: skip
    return Figure(price(task.model, tokens_in.value, tokens_out.value), low, high, tokens_in.basis,
                  min(tokens_in.count, tokens_out.count))  # fmt: skip


def _figure(values: Sequence[float], basis: Basis) -> Figure:
    ordered = sorted(values)
    return Figure(_quantile(ordered, 0.5), _quantile(ordered, 0.25), _quantile(ordered, 0.75), basis, len(ordered))


def _quantile(ordered: Sequence[float], part: float) -> float:
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _total(figures: Sequence[Figure]) -> Total:
    known = [f for f in figures if f.value is not None]
    if not known:
        return Total(None, None, None, len(figures))
    return Total(sum(f.value or 0.0 for f in known), sum(f.low or 0.0 for f in known),
                 sum(f.high or 0.0 for f in known), len(figures) - len(known))  # fmt: skip


def _short(value: float) -> str:
    if value and abs(value) < 10:
        return f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}"
    return f"{value:,.0f}"
