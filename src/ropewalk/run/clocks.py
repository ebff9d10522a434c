"""The clocks of a run's hosts: whether what they wrote shows that they differ, so that times between them say nothing.

Nothing that decides rests on a clock. A report tells times, and each is of the clock of the host that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ropewalk.board import names, runs
from ropewalk.board.runs import Run
from ropewalk.board.scan import Attempt, Scan

TOLERATED: Final = 2
"""Is by how many seconds what came later may seem earlier, with times in whole seconds."""


def apart(run: Run, seen: Scan, made: Mapping[str, Sequence[Attempt]], needs: Mapping[str, Iterable[str]],
          now: int) -> int:  # fmt: skip
    """Gives by how many seconds at least the clocks of a run's hosts differ; 0 where nothing shows that they do.

    What a task needs has landed before it is claimed, an attempt ends after it began, an heir begins after that, all
    of them after the run's record was written and before it is read, at `now` (0: not known).
    """
    # of what was tried more than once it is not known which end a claim came after
    ends = {task: seen.made_at(seen.refs.get(names.verdict(runs.task_name(run.id, task)))) or 0
            for task, attempts in made.items() if len(attempts) == 1}  # fmt: skip
    most = 0
    for task, attempts in made.items():
        before = max([run.at, *(ends.get(need, 0) for need in needs.get(task, ()))])
        times = []
        for one in attempts:
            ended = seen.made_at(one.verdict_id or (one.claim_id if one.archived else None)) or 0
            life = one.claim.life if one.claim is not None and one.claim.ours else 0
            times.append(Times(one.is_live, life, one.began or 0, ended, one.archived))
        most = max(most, against(before, times, now))
    return most if most > TOLERATED else 0


class Times(NamedTuple):
    """Is when an attempt began and ended, in seconds since 1970 (0: not known), and what says which came first."""

    is_live: bool
    life: int
    began: int
    ended: int
    archived: bool


def against(before: int, times: Iterable[Times], now: int) -> int:
    """Gives by how many seconds at most attempts at a task that came after `before` seem to run against the time.

    Within a life nothing but their times says which was first, so what counts is whether any order of them holds.
    """
    most = 0
    for one in sorted(times):
        for earlier, later in (
            (before, one.began), (one.began or before, one.ended), (one.began, now), (one.ended, now),
        ):  # fmt: skip
            if earlier and later:
                most = max(most, earlier - later)
        before = max(before, one.began, one.ended) if one.archived else before
    return most
