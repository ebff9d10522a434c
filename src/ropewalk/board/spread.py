"""A spread: how many values there are, and how they lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Is how values lie; without values all but `n` is null, because no measurement is no zero."""

    n: int
    p50: float | None
    p90: float | None
    max: float | None


def spread(values: Iterable[float]) -> Spread:
    """Gives how values lie, rounded to thousandths."""
    listed = sorted(values)
    if not listed:
        return Spread(0, None, None, None)
    return Spread(len(listed), _round(listed, 0.5), _round(listed, 0.9), round(listed[-1], 3))


def _round(listed: Sequence[float], share: float) -> float:
    return round(percentile(listed, share), 3)


def percentile(listed: Sequence[float], share: float) -> float:
    """Gives a percentile of sorted values, between two of them in proportion."""
    at = share * (len(listed) - 1)
    low = int(at)
    high = min(low + 1, len(listed) - 1)
    return listed[low] + (at - low) * (listed[high] - listed[low])
