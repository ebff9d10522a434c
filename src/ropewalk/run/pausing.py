"""Pausing: a run that waits is worked on again once its time has come, or when somebody lets it go on.

Nothing is cut off: what is being worked on comes to its end, and no other task is started. Whoever drives a run that
has a time to go on at waits for it; without one the run is left, and `rw runs resume` drives it again.
"""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.board import runs, state
from ropewalk.board.base import Board
from ropewalk.board.runs import Run
from ropewalk.core import clock
from ropewalk.core.errors import RopewalkError
from ropewalk.run.work import loop
from ropewalk.run.work.options import Options, Report
from ropewalk.store.store import Store

_LOOK = 1.0
"""Is how often a run that waits is looked at, in seconds."""


def work(board: Board, store: Store, run: Run, options: Options, tell: Callable[..., object]) -> Report:
    """Works on a run until none of its tasks can be done, over its pauses, but for one without a time to go on at."""
    while True:
        done = loop.work(board, store, options)
        ready = [one.task for one in done.left if one.state == "ready"]
        if done.ended != "empty" or options.stop.is_set() or not ready:
            return done
        board.refresh()
        now = runs.need(board, run.id)
        if now.stopped:
            return done
        if now.paused is None:
            if not any(_can(board, options, task) for task in ready):
                return done
            continue  # it was let go on while this process still saw that it waits
        if not now.paused.until or not _waited(board, now, options, tell):
            return done


def _can(board: Board, options: Options, task: str) -> bool:
    status = state.need(board, task)
    return status is not None and status.state == "ready" and options.pick(status.spec.task) is not None


def _waited(board: Board, run: Run, options: Options, tell: Callable[..., object]) -> bool:
    """Waits for a run's time to go on; says whether it may, which somebody else may have said before."""
    while run.paused is not None and run.paused.until and not run.stopped:
        if run.paused.until <= clock.now():
            run = runs.set_paused(board, run.id, None, options.actor())
            break
        if options.stop.wait(_LOOK):
            return False
        try:
            board.refresh()
        except RopewalkError:
            continue  # as long as it waits it needs nothing from there
        run = runs.need(board, run.id)
    if run.stopped or run.paused is not None:
        return False
    tell("run_resumed", run=run.id)
    return True
