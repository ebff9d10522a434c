"""Proving a run: the check of every task that landed is run once more, on the tree that the whole run came to.

A check passed on the very tree that its land made; what landed after it may have broken it since. Where one fails, the
land that broke it is looked for among those behind its task's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ropewalk.board import runs, state
from ropewalk.board.base import Board
from ropewalk.board.runs import Broken, Run
from ropewalk.board.state import Status
from ropewalk.core.errors import RopewalkError
from ropewalk.run.work import evidence
from ropewalk.run.work.landing import LocalLanding
from ropewalk.run.work.leftovers import Places
from ropewalk.run.work.options import Options
from ropewalk.store.store import Store
from ropewalk.workspace.verdict import Verdict

_WORDS = 300
_LANDS = 100_000


def prove(board: Board, store: Store, run: Run, options: Options, tell: Callable[..., None]) -> Run:
    """Runs the checks of all that landed on the run's head and gives the record, which names those that fail.

    Nothing is written where the record says so already, nor after `options.stop`. A check that could not be run at all
    is told of: the run has ended as it has.
    """
    try:
        return _prove(board, store, run, options, tell)
    except RopewalkError as error:
        tell("prove_failed", reason=f"{error.code} {error.message}")
        return run


def _prove(board: Board, store: Store, run: Run, options: Options, tell: Callable[..., None]) -> Run:
    board.refresh()
    wanted = [runs.task_name(run.id, task) for task in run.tasks]
    there = state.look(board, only=wanted).values()
    landed = [s for s in there if s.state == "done" and s.returned and s.spec.task.check]
    if not landed:
        return run
    head = (options.landing or LocalLanding()).head(board, store, run.target)
    lands = _lands(store, head, run.base)
    found = _Proof(store, options).look(head, landed)
    broken = []
    for status in landed:
        verdict = found.get(status.spec.task.check)
        if options.stop.is_set():
            return run
        if verdict is None or not _is_broken(verdict):
            continue
        behind = lands[lands.index(status.returned) + 1 :] if status.returned in lands else lands
        commit = _culprit(_Proof(store, options), status, behind, head)
        by = next((s.id for s in landed if s.returned == commit), "")
        said = (verdict.output.strip().splitlines() or [f"it ended with {verdict.rc}"])[-1][:_WORDS]
        broken.append(Broken(runs.short(run.id, status.id), runs.short(run.id, by) if by else "", commit, said))
        tell("check_broken", task=status.id, by=broken[-1].by, commit=commit, reason=said)
    tell("run_proved", checks=len(found), broken=len(broken), head=head)
    return runs.set_broken(board, run.id, broken, options.actor())


def _is_broken(verdict: Verdict) -> bool:
    """Says whether a check failed by the tree; one that could not be run says nothing, one out of time does."""
    return verdict.kind == "failed" or verdict.reason == "timeout"


class _Proof:
    """Runs checks on commits."""

    def __init__(self, store: Store, options: Options) -> None:
        self.store, self.options = store, options
        self.checks = Places(store, options.data_home).checks

    def look(self, commit: str, landed: Sequence[Status]) -> dict[str, Verdict | None]:
        """Gives by the line of a check what it says of a commit; tasks that landed as that commit are passed over."""
        lines = {s.spec.task.check: s for s in landed if s.returned != commit}
        jobs = min(len(lines), self.options.jobs, os.cpu_count() or 1)
        if jobs < 2:
            return {line: self.one(self.store, commit, status) for line, status in lines.items()}
        with ThreadPoolExecutor(jobs, "ropewalk-prove") as pool:
            made = {line: pool.submit(self._apart, commit, status) for line, status in lines.items()}
            return {line: job.result() for line, job in made.items()}

    def _apart(self, commit: str, status: Status) -> Verdict | None:
        with Store(self.store.layout.root) as store:
            return self.one(store, commit, status)

    def one(self, store: Store, commit: str, status: Status) -> Verdict | None:
        """Gives what a task's check says of a commit; None when it was stopped."""
        options, task = self.options, status.spec.task
        if options.stop.is_set():
            return None
        seconds = task.limits.check_seconds or options.check_seconds
        how = evidence.orders(store, task.check, seconds, self.checks, options.stop, options.ways.checks)
        return evidence.look(store, commit, how)


def _lands(store: Store, head: str, base: str) -> list[str]:
    """Gives the commits of a branch behind a base, oldest first."""
    found: list[str] = []
    at: str | None = head
    while at is not None and at != base and len(found) < _LANDS:
        found.append(at)
        at = next(iter(store.objects.commit(at).parents), None)
    return found[::-1]


def _culprit(proof: _Proof, status: Status, behind: Sequence[str], head: str) -> str:
    """Gives the first of some commits on which a check fails; on the last of them, the head, it does."""
    low, high = 0, len(behind) - 1
    while low < high:
        middle = (low + high) // 2
        verdict = proof.one(proof.store, behind[middle], status)
        low, high = (low, middle) if verdict is None or _is_broken(verdict) else (middle + 1, high)
    return behind[low] if behind else head
