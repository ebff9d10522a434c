"""Reservations: a task that has waited for its region for long is next there, so that none starves (F20).

They are made up by each worker from what it sees, and stand nowhere: two hosts may differ about them for a while, and
the region's lock alone says who is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ropewalk.board import names, wire
from ropewalk.board.base import Board
from ropewalk.board.scan import seconds_of
from ropewalk.board.spread import percentile
from ropewalk.board.state import Status

TASKS = 2.0
"""Is after how many times as long as a task takes a region is reserved."""

LEAST = 60.0
"""Is for how many seconds a task waits at least: dates have whole seconds, and hosts differ by some."""

_USUAL = 600.0
_LOOKED_AT = 32


def patience(board: Board) -> float:
    """Gives after how many seconds a task's region is reserved for it: twice the median of tasks that ended."""
    listed = board.below(names.VERDICTS)
    ids = [oid for _, oid in listed[:: max(1, len(listed) // _LOOKED_AT)]]
    board.prefetch(ids)
    took = []
    for oid in ids:
        content = board.content(oid)
        seconds = seconds_of(wire.read_verdict(wire.message(content))) if content is not None else None
        if seconds is not None:
            took.append(seconds)
    return max(LEAST, TASKS * (percentile(sorted(took), 0.5) if took else _USUAL))


def passed_over(
    board: Board, statuses: Iterable[Status], bound: float, now: float, mine: Callable[[Status], bool]
) -> set[str]:
    """Gives the tasks that are not to be started now, because their region is reserved for another one.

    A task waits from the moment at which it and what it needs were there. Of those whose time is over the one that
    waits longest has the region. It keeps it until it is done if it is `mine` to do, else for one bound more, because
    nobody here knows whether there is a worker for it.
    """
    waiting: dict[str, list[tuple[float, Status]]] = {}
    for status in statuses:
        region = status.spec.task.region
        if region and (status.state == "ready" or waits_for_region(status)):
            waiting.setdefault(region, []).append((now - _since(board, status), status))
    found: set[str] = set()
    for listed in waiting.values():
        late = [(age, status.id) for age, status in listed if age >= bound and (age < 2 * bound or mine(status))]
        if late:
            first = max(late, key=lambda one: (one[0], one[1]))[1]
            found |= {status.id for _, status in listed if status.id != first}
    return found


def waits_for_region(status: Status) -> bool:
    """Says whether a task could be started but for its region."""
    return status.state == "waiting" and status.why == f"region {status.spec.task.region} is busy"


def _since(board: Board, status: Status) -> int:
    """Gives when a task could be started first, as objects say."""
    dates = [status.at]
    for name in status.spec.task.needs:
        oid = board.ref(names.verdict(name))
        content = board.content(oid) if oid is not None else None
        if content is not None:
            dates.append(wire.made_at(content))
    return max(dates)
