"""Driving a run: this process's worker does the run's tasks until none is left, and then tells what became of it.

All that decides is on the board. Whoever drives a run after a kill, on this host or another, goes on from there; a
worker of another host that looks at the same board joins it without being asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ropewalk.board import names, runs
from ropewalk.board.base import Board
from ropewalk.board.claim import As
from ropewalk.board.local import LocalBoard
from ropewalk.board.runs import Run
from ropewalk.core import clock, durable
from ropewalk.core.errors import RopewalkError
from ropewalk.core.events import Event, EventLog
from ropewalk.core.ids import short_ref
from ropewalk.run import figures, pausing, proving, publish, replanning, report
from ropewalk.run.figures import Summary, TaskReport
from ropewalk.run.replanning import Desk
from ropewalk.run.work.landing import LocalLanding
from ropewalk.run.work.leftovers import Places
from ropewalk.run.work.options import Options, Report
from ropewalk.run.work.sessions import Sessions
from ropewalk.store.store import Store


class Driven(NamedTuple):
    """Is a run that was driven as far as it goes: its summary, and why the worker ended."""

    summary: Summary
    ended: str
    reason: str = ""


def drive(
    board: Board, store: Store, run: Run, options: Options, *, export: bool = True,
    watch: Callable[[Event], None] | None = None, desk: Desk | None = None,
) -> Driven:  # fmt: skip
    """Works on a run until none of its tasks can be done, or until `options.stop`; its summary is in its folder too.

    With a `desk` what failed is replaced by what its manager plans, as often as the run's options say.
    `E_BUSY` when another process of this host drives it.
    """
    durable.make_folders(report.folder(store.layout, run.id))
    with report.driving(store.layout, run.id):
        log = EventLog(os.path.join(report.folder(store.layout, run.id), "events.jsonl"), watch)
        try:
            log.emit("run_started", run=run.id, ref=short_ref(names.branch(run.target)), base=run.base, goal=run.goal,
                     tasks=list(run.tasks), harness=options.harness.name, jobs=options.jobs)  # fmt: skip
            told = _Told(run, log)
            wanted = options._replace(within=run.id, until_empty=True, emit=told)
            done = pausing.work(board, store, run, wanted, told)
            while desk is not None and (more := _replanned(board, store, run, wanted, done, desk, told)) is not None:
                run = told.run = msgspec.structs.replace(more, options=run.options)
                done = pausing.work(board, store, run, wanted, told)
            if done.ended == "empty" and not options.stop.is_set():
                proving.prove(board, store, run, wanted, told)
            Sessions(Places(store, options.data_home).sessions).drop(f"{run.id}.")
            run = msgspec.structs.replace(runs.need(board, run.id), options=run.options)
            summary = figures.summary(board, run, living=False, now=clock.now())
            if options.stop.is_set() and summary.state == "died":
                run = runs.set_stopped(
                    board, run.id, "by an interrupt of the process that drove it", told.actor(options)
                )
                summary = figures.summary(board, run, living=False, now=clock.now())
            branch = _shown(board, store, run, summary) if export else None
            if branch is not None:
                report.write(store.layout, run.id, "branch.json", report.Shown(branch, summary.head))
                summary = figures.summary(board, run, living=False, branch=branch, now=clock.now())
            for one in summary.tasks:
                if one.state in ("blocked", "stopped", "cancelled") and one.id not in told.ended:
                    log.emit("task_ended", task=one.id, report=one)
            report.write(store.layout, run.id, "summary.json", summary)
            log.emit("run_ended", run=run.id, state=summary.state, landed=summary.landed, failed=summary.failed,
                     blocked=summary.blocked, stopped=summary.stopped, seconds=summary.seconds)  # fmt: skip
            durable.sync(log.path)
        finally:
            log.close()
    return Driven(summary, done.ended, done.reason)


def _replanned(
    board: Board, store: Store, run: Run, options: Options, done: Report, desk: Desk, told: _Told
) -> Run | None:  # fmt: skip
    """Gives a run whose failed tasks were replaced, None for one of which nothing more can be done."""
    if done.ended != "empty" or options.stop.is_set():
        return None
    landing = options.landing or LocalLanding()
    actor = told.actor(options)
    who = As(options.worker, actor, options.harness.name)
    try:
        return replanning.replan(
            board, store, run, desk, who, lambda: landing.head(board, store, run.target),
            most=replanning.limit_of(run.options), stop=options.stop.is_set, tell=told,
        )  # fmt: skip
    except RopewalkError as error:
        # nobody could be asked: the run ends as it would have, and whoever resumes it asks again
        told("replan_failed", reason=f"{error.code} {error.message}")
        return None


def _shown(board: Board, store: Store, run: Run, summary: Summary) -> str | None:
    """Shows a run that has a branch of its own in the user's repository, if there is one beside the store."""
    if run.target != f"run/{run.id}" or summary.head == run.base or summary.state != "done":
        return None
    if not isinstance(board, LocalBoard):
        return None  # it is on the git server, where everybody gets it
    before = report.shown(store.layout, run.id)
    if before is not None and before.head == summary.head:
        return before.branch
    return publish.show_branch(store, names.branch(run.target), run.id)


class _Told:
    """Takes the worker's events and tells them as the run's: tasks have the names that they have inside of it."""

    def __init__(self, run: Run, log: EventLog) -> None:
        self.run, self.log = run, log
        self.ended: set[str] = set()

    def actor(self, options: Options) -> str:
        """Gives who drives the run, as family/instance."""
        return f"{options.harness.family}/{options.worker.lower()}"

    def __call__(self, kind: str, **facts: Any) -> None:
        task = runs.short(self.run.id, str(facts.get("task", "")))
        if "task" in facts:
            facts["task"] = task
        if kind == "claim" and facts.get("outcome") == "won":
            self.log.emit("task_started", agent=facts.get("worker", ""), **facts)
            return
        self.log.emit(kind, **facts)
        if kind != "attempted":
            return
        how = facts.get("how")
        if how in ("landed", "satisfied", "pending"):
            self.log.emit(
                "landed", task=task, id=facts.get("landed") or "", status=how, seconds=facts.get("seconds", 0)
            )
        if how in ("landed", "satisfied", "failed", "infrastructure"):
            self.ended.add(task)
            state: figures.TaskState = "landed" if how in ("landed", "satisfied") else "failed"
            one = TaskReport(task, state, str(facts.get("worker", "")), str(facts.get("reason") or ""),
                             facts.get("landed"), seconds=float(facts.get("seconds") or 0))  # fmt: skip
            self.log.emit("task_ended", task=task, report=one)


def living(store: Store, run: str) -> bool:
    """Says whether a process of this host drives a run."""
    return report.running(store.layout, run)


def shown(board: Board, store: Store, run: Run) -> Summary:
    """Gives a run's summary as it is now."""
    alive = living(store, run.id)
    there = report.shown(store.layout, run.id)
    branch = there.branch if there is not None else None
    return figures.summary(board, run, living=alive, branch=branch, now=clock.now())


def listed(board: Board, store: Store, limit: int) -> list[Summary]:
    """Gives so many runs of a board, newest first, and behind them those that are in the store's folder alone."""
    there = runs.listed(board)
    found = [shown(board, store, run) for run in there[:limit]]
    known = {run.id for run in there}
    for name in report.names(store.layout):
        if name not in known and len(found) < limit:
            try:
                found.append(report.load(store.layout, name))
            except RopewalkError:
                continue
    return found
