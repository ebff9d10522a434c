"""Reservations: a task that has waited for its region or its paths for long is next there, so that none starves (F20).

They are made up by each worker from what it sees, and stand nowhere: two hosts may differ about them for a while, and
the locks alone say who is in a region and who writes a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ropewalk.board import names, wire, writes
from ropewalk.board.base import Board
from ropewalk.board.scan import seconds_of
from ropewalk.board.spread import percentile
from ropewalk.board.state import Status

TASKS = 2.0
"""Is after how many times as long as a task takes a region is reserved, and a path."""

LEAST = 60.0
"""Is for how many seconds a task waits at least: dates have whole seconds, and hosts differ by some."""

_USUAL = 600.0
_LOOKED_AT = 32
_OLDEST = 256
"""Is how many of those that wait longest get their paths kept free; the others' turn comes when these are done."""


def patience(board: Board) -> float:
    """Gives after how many seconds region and paths are reserved for a task: twice the median of tasks that ended."""
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
    """Gives the tasks that are not to be started now, because their region or a path is reserved for another one.

    A task waits from the moment at which it and what it needs were there. Of those whose time is over the one that
    waits longest has the region. It keeps it until it is done if it is `mine` to do, else for one bound more, because
    nobody here knows whether there is a worker for it. Paths go the same way.
    """
    regions: dict[str, list[_Aged]] = {}
    paths: list[_Aged] = []
    for status in statuses:
        task = status.spec.task
        in_region = task.region and (status.state == "ready" or waits_for_region(status))
        in_paths = writes.of(task) and (status.state == "ready" or waits_for_paths(status))
        if in_region or in_paths:
            aged = (now - _since(board, status), status.id, status)
            if in_region:
                regions.setdefault(task.region, []).append(aged)
            if in_paths:
                paths.append(aged)
    found: set[str] = set()
    for listed in regions.values():
        if late := _late(listed, bound, mine):
            found |= {name for _, name, _ in listed if name != late[0].id}
    return found | _kept_out(paths, _late(paths, bound, mine)[:_OLDEST])


_Aged = tuple[float, str, Status]
"""Is a task with its name, and for how long it has waited."""


def _late(listed: Iterable[_Aged], bound: float, mine: Callable[[Status], bool]) -> list[Status]:
    """Gives the tasks whose time is over, the one that waits longest first; regions and paths go by one order."""
    late = [one for one in listed if one[0] >= bound and (one[0] < 2 * bound or mine(one[2]))]
    return [status for _, _, status in sorted(late, key=lambda one: one[:2], reverse=True)]


def _kept_out(listed: Iterable[_Aged], late: Iterable[Status]) -> set[str]:
    """Gives the tasks that write what is reserved: of the late ones each that meets none before it has its paths."""
    reserved, first = writes.Sets(), set()
    for status in late:
        if reserved.met(status.spec.task) is None:
            reserved.add(status.id, status.spec.task.target, writes.of(status.spec.task))
            first.add(status.id)
    return {name for _, name, status in listed if name not in first and reserved.met(status.spec.task)}


def waits_for_region(status: Status) -> bool:
    """Says whether a task could be started but for its region."""
    return status.state == "waiting" and status.why == f"region {status.spec.task.region} is busy"


def waits_for_paths(status: Status) -> bool:
    """Says whether a task could be started but for another one that writes what it writes."""
    return status.state == "waiting" and writes.is_words(status.why)


def _since(board: Board, status: Status) -> int:
    """Gives when a task could be started first, as objects say."""
    dates = [status.at]
    for name in status.spec.task.needs:
        oid = board.ref(names.verdict(name))
        content = board.content(oid) if oid is not None else None
        if content is not None:
            dates.append(wire.made_at(content))
    return max(dates)
