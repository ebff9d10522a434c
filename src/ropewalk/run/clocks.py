"""The clocks of a run's hosts: whether what they wrote shows that they differ, so that times between them say nothing.

Nothing that decides rests on a clock. A report tells times, and each is of the clock of the host that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

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
        for one in attempts:
            began = one.began or 0
            ended = seen.made_at(one.verdict_id or (one.claim_id if one.archived else None)) or 0
            for earlier, later in ((before, began), (began or before, ended), (began, now), (ended, now)):
                if earlier and later:
                    most = max(most, earlier - later)
            before = max(before, began, ended) if one.archived else before
    return most if most > TOLERATED else 0
