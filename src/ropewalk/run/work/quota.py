"""Quotas: whether an agent got no further because a budget is spent, or because its provider wants to be left alone.

Neither says anything about the task: it is given back, and its run waits.
"""

from __future__ import annotations

import math
import os
import time

from ropewalk.board import runs
from ropewalk.board.base import Board
from ropewalk.board.runs import Pause
from ropewalk.core import clock
from ropewalk.core.errors import BudgetError
from ropewalk.gateway.budget import DAY
from ropewalk.gateway.ledger import read_activity
from ropewalk.lane.lanes import Outcome
from ropewalk.run import turn as turns
from ropewalk.run.work.bench import Exhausted

UNSAID = 60
"""Is for how many seconds a provider is left alone that does not say for how long it wants to be."""

_DAY_SECONDS = 86_400


def of(done: Outcome, gateway: str) -> Exhausted | None:
    """Gives what was used up in a turn, None where nothing was; what one lane alone may use is no matter of a run."""
    refused = turns.refusal(done)
    if isinstance(refused, BudgetError):
        name = done.lane.reason.removeprefix("budget: ")
        if name.startswith("lane:"):
            return None
        until = (clock.now() // _DAY_SECONDS + 1) * _DAY_SECONDS if name.startswith(f"{DAY}:") else 0
        return Exhausted(f"{refused.code} {refused.message}", until)
    if done.lane.ending.ok:
        return None
    seen = read_activity(os.path.join(gateway, "activity"), done.id) if gateway else None
    is_told = seen is not None and seen.until > time.time()
    if not is_told and done.lane.reason != "rate_limited":
        return None
    until = math.ceil(seen.until) if seen is not None and is_told else clock.now() + UNSAID
    return Exhausted(f"provider_limited: {' '.join(turns.words(done).split())[:300]}", until)


def pause(board: Board, task: str, spent: Exhausted, actor: str) -> Pause | None:
    """Has the run of a task wait; gives how it waits, None for a task of no run."""
    run = runs.of_task(task)
    if not run or runs.read(board, run) is None:
        return None
    wanted = Pause(spent.why, actor, clock.now(), spent.until)
    return runs.set_paused(board, run, wanted, actor).paused
