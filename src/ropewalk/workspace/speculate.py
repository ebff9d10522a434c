"""Speculation: the stack of trees that the waiting changes would make on top of one another.

Each step is prepared as if all before it had landed. A step whose check failed once is run again on the same
tree before it is blamed, and meanwhile those behind it are stacked without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ropewalk.core import clock
from ropewalk.core.errors import RopewalkError
from ropewalk.store import land
from ropewalk.store.changes import read_disk_file
from ropewalk.store.land import Answering, Conflicted, Prepared, Settled
from ropewalk.store.store import Store
from ropewalk.workspace import check, queue
from ropewalk.workspace.queue import Entry, Record, Standing

RUNS = 2
"""How often a check has to fail on a tree before its change is blamed."""

_MERGE_SECONDS = 120.0
_KEPT = 2000


class Step(NamedTuple):
    """Is one change on the stack: the land prepared for it, the key of its check, and how that stands."""

    entry: Entry
    prepared: Prepared
    tree: str
    key: str
    standing: Standing


class Plan(NamedTuple):
    """Is what to do for a ref now.

    `ready` can be published in one go, `jobs` are checks to run, first the one that matters most, `blamed` are
    changes to drop, `look` entries whose owners have to see for themselves, `behind` entries that conflict with
    one before them.
    """

    root: str
    ready: Sequence[Step]
    jobs: Sequence[Step]
    blamed: Sequence[Step]
    look: Sequence[int]
    behind: Sequence[int]


class Speculation:
    """Builds plans for one ref, and keeps the merges it made.

    A land is of the time at which its change came into the queue, so all drivers make the same commits of it, and
    what is stacked on one stays when that one has landed.
    """

    def __init__(self, store: Store, ref: str) -> None:
        self._store, self._ref = store, ref
        self._made: dict[tuple[int, str], Prepared | None] = {}

    def plan(self, depth: int) -> Plan:
        """Gives the plan; the stack ends where `depth` checks are to be run."""
        root = self._store.ref(self._ref) or ""
        if len(self._made) > _KEPT:
            self._made.clear()
        ready: list[Step] = []
        jobs: list[Step] = []
        blamed: list[Step] = []
        look: list[int] = []
        behind: list[int] = []
        top, unbroken = root, True
        now = clock.now()
        for entry in queue.entries(self._store, self._ref):
            if entry.state != "waiting" or not root:
                continue
            prepared = self._prepare(entry, top)
            if prepared is None:
                (look if top == root else behind).append(entry.id)
                continue
            step = self._step(entry, prepared, now)
            if step.standing.passed is not None:
                top = prepared.commit
                if unbroken:
                    ready.append(step)
            elif _is_hopeless(step):
                unbroken = False
                if top == root:
                    blamed.append(step)
            else:
                unbroken = False
                jobs.append(step)
                if not step.standing.failures:
                    top = prepared.commit
                if len(jobs) >= depth:
                    break
        return Plan(root, ready, jobs, blamed, look, behind)

    def _step(self, entry: Entry, prepared: Prepared, now: int) -> Step:
        tree = self._store.objects.commit(prepared.commit).tree
        key = check.key(tree, entry.wanted.command)
        return Step(entry, prepared, tree, key, queue.standing(self._store, key, entry.id, now))

    def _prepare(self, entry: Entry, top: str) -> Prepared | None:
        """Gives a change's land on a commit, or None where it can't be had without its owner."""
        if (entry.id, top) not in self._made:
            self._made[entry.id, top] = prepared = self._merge(entry, top)
            if prepared is not None:
                for made in prepared.new:
                    # the next merge reads it, and so does the git that checks it out
                    self._store.objects.loose.ensure(made.id, made.packed)
        return self._made[entry.id, top]

    def _merge(self, entry: Entry, top: str) -> Prepared | None:
        wanted = entry.wanted
        answering = Answering(wanted.resolution, read_disk_file) if wanted.resolution is not None else None
        try:
            return land.prepare(self._store, wanted.request, top, _MERGE_SECONDS, answering, entry.at)
        except (RopewalkError, Settled, Conflicted):
            return None


def _is_hopeless(step: Step) -> bool:
    last = step.standing.last
    return step.standing.failures >= RUNS or (last is not None and _is_final(last))


def _is_final(record: Record) -> bool:
    """Says whether a run needs no second one: it took all the time it had, or could not start."""
    return not record.passed and record.verdict.reason in ("timeout", "unstartable")
