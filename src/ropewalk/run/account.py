"""The account of a run: its summary, every attempt, what landed by which operation, and what it cost.

All of it is read off the board and the operation log. What an attempt cost is in the journal of the host that its lanes
ran on, so that a cost of another host's lanes is unknown here, and never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from ropewalk.board import names, runs
from ropewalk.board.base import Board
from ropewalk.board.runs import Run
from ropewalk.board.scan import Attempt, Scan, attempts, seconds_of
from ropewalk.gateway.prices import NOTHING, Cost
from ropewalk.lane import journal
from ropewalk.lane.journal import Lane
from ropewalk.plan.plan import Module
from ropewalk.run import figures
from ropewalk.run.figures import Summary, TaskReport
from ropewalk.run.turn import counted
from ropewalk.store.store import Store

How = Literal["landed", "pending", "failed", "died", "released", "running", "done", "unknown"]

UNCOUNTED: Final = "*"
"""Is what stands beside a count that leaves out what nobody counted."""


class Tokens(msgspec.Struct, frozen=True):
    """Is tokens by kind; `mark` is `*` where some were not counted, and `by_kind` None where none were."""

    by_kind: dict[str, int] | None
    mark: Literal["", "*"] = ""

    def __add__(self, other: Tokens) -> Tokens:
        """Gives the sum; what was not counted stays marked."""
        if NONE in (self, other):
            return other if self == NONE else self
        parts = [one.by_kind for one in (self, other) if one.by_kind is not None]
        found: dict[str, int] = {}
        for part in parts:
            for kind, number in part.items():
                found[kind] = found.get(kind, 0) + number
        is_whole = len(parts) == 2 and not self.mark and not other.mark
        return Tokens(found if parts else None, "" if is_whole else UNCOUNTED)

    @property
    def total(self) -> int | None:
        """Gives the sum of all kinds but those that are a part of another; None where nothing was counted."""
        if self.by_kind is None:
            return None
        return sum(number for kind, number in self.by_kind.items() if kind != "reasoning_tokens")


NONE = Tokens({})
UNKNOWN = Tokens(None, UNCOUNTED)


class AttemptLine(msgspec.Struct, frozen=True):
    """Is one attempt at a task: who had it, when, how it ended, and what it used.

    `began` and `ended` are seconds since 1970, 0 where nothing says so. `seconds` is for how long its agents ran, None
    where neither its verdict nor a journal here says so. `check_rc` is how its check ended.
    """

    task: str
    id: str
    worker: str
    agent: str
    harness: str
    model: str
    how: How
    why: str
    began: int
    ended: int
    seconds: float | None
    turns: int
    conflicts: int
    check_rc: int | None
    tokens: Tokens
    cost: Cost
    cached: str = ""


class Land(msgspec.Struct, frozen=True):
    """Is what landed for a task; `op` is the operation of this store's log that did it, None for another host's.

    `undone` says that it was taken back, `already` that the target had it before and the check says so.
    """

    task: str
    commit: str
    agent: str
    harness: str
    model: str
    check: str
    tree: str
    at: int
    op: int | None
    undone: bool = False
    already: bool = False


class Share(msgspec.Struct, frozen=True):
    """Is what a task, a model or the whole run used; `seconds` of agents, `timed` of the attempts that it is of."""

    name: str
    attempts: int
    timed: int
    seconds: float
    tokens: Tokens
    cost: Cost


class Account(msgspec.Struct, frozen=True):
    """Is all that a report tells of a run.

    `now` is when it was read. `order` are the attempts in time. `blocks` says for each task that did not land which
    others wait for it, through others too.
    """

    summary: Summary
    now: int
    attempts: list[AttemptLine]
    lands: list[Land]
    by_task: list[Share]
    by_model: list[Share]
    total: Share
    blocks: dict[str, list[str]]
    modules: tuple[Module, ...] = ()
    jobs: int = 0
    stopped: str = ""
    host: str = ""


def of_run(board: Board, store: Store, run: Run, *, living: bool, branch: str | None, now: int) -> Account:
    """Gives the account of a run of a board; costs and operations are those that the store knows of."""
    summary, seen = figures.read(board, run, living=living, branch=branch, now=now)
    states = {one.id: one for one in summary.tasks}
    found = [
        _line(store, seen, one, states[task])
        for task in states
        for one in attempts(seen, runs.task_name(run.id, task))
        if one.verdict is None or one.verdict.reason != "cancelled"
    ]  # fmt: skip
    lands = [_land(store, seen, run, one, found) for one in summary.tasks if one.landed]
    if summary.clocks_apart:  # then times tell no order, and what holds what does
        commits = [one.commit for one in lands]
        place = {commit: len(board.on_target(commits, commit)) for commit in commits}
        lands.sort(key=lambda one: (place[one.commit], one.at, one.task))
    else:
        lands.sort(key=lambda one: (one.at, one.op or 0, one.task))
    return _made(summary, now, found, lands, run.modules, int(run.options.get("jobs", 0)), run.stopped, run.host)


def of_imported(store: Store, summary: Summary, now: int) -> Account:
    """Gives the account of a run that another program did, as far as its files told of it."""
    lanes = journal.lanes(store, summary.id, limit=1_000_000)
    return _made(summary, now, [_imported(lane) for lane in lanes], [])


def _made(
    summary: Summary, now: int, found: list[AttemptLine], lands: list[Land], modules: tuple[Module, ...] = (),
    jobs: int = 0, stopped: str = "", host: str = "",
) -> Account:  # fmt: skip
    found = sorted(found, key=lambda one: (one.began or 1 << 62, one.ended or 1 << 62, one.task, one.id))
    by_task = [_share(task.id, [one for one in found if one.task == task.id]) for task in summary.tasks]
    who = sorted({(one.harness, one.model) for one in found})
    by_model = [
        _share(_called(*key), [one for one in found if (one.harness, one.model) == key]) for key in who
    ]  # fmt: skip
    return Account(summary, now, found, lands, [one for one in by_task if one.attempts], by_model,
                   _share("all", found), _blocks(summary.tasks), modules, jobs, stopped, host)  # fmt: skip


def _called(harness: str, model: str) -> str:
    return " ".join(dict.fromkeys(word for word in (harness, model) if word not in ("", "unknown"))) or "unknown"


def _share(name: str, found: list[AttemptLine]) -> Share:
    tokens, cost = NONE, NOTHING
    for one in found:
        tokens, cost = tokens + one.tokens, cost + one.cost
    timed = [one.seconds for one in found if one.seconds is not None]
    return Share(name, len(found), len(timed), round(sum(timed), 1), tokens, cost)


def _line(store: Store, seen: Scan, one: Attempt, task: TaskReport) -> AttemptLine:
    values = one.verdict.values if one.verdict is not None else {}
    how, why = _ending(one, task)
    ended = seen.made_at(one.verdict_id or (one.claim_id if one.archived else None)) or 0
    lanes = journal.of_attempt(store, one.id)
    did_start = one.verdict is not None or (one.claim is not None and bool(one.claim.marks.get("dispatch_started")))
    cached = values.get("cached", "")
    if cached or not (did_start or lanes):
        tokens, cost = NONE, NOTHING  # it used nothing, which is known
    else:
        tokens, cost = _tokens(one, lanes), _cost(lanes)
    seconds = seconds_of(one.verdict)
    if seconds is None and lanes and all(lane.result is not None for lane in lanes):
        seconds = round(sum(lane.result.seconds for lane in lanes if lane.result is not None), 1)
    turns = int(values["turns"]) if values.get("turns", "").isdigit() else 1 if one.verdict is not None else len(lanes)
    return AttemptLine(
        task.id, one.id, names.worker_of(one.id), one.claim.agent if one.claim is not None else "", one.harness,
        one.model, how, why, one.began or 0, ended, seconds, turns,
        int(values["conflicts"]) if values.get("conflicts", "").isdigit() else 0,
        one.verdict.pytest_rc if one.verdict is not None else None, tokens, cost, cached,
    )  # fmt: skip


def _ending(one: Attempt, task: TaskReport) -> tuple[How, str]:
    """Gives how an attempt ended, and why."""
    if one.verdict is not None:
        note = one.verdict.values.get("note", "")
        if one.verdict.fixed:
            return ("pending", "") if one.is_live and task.state == "pending" else ("landed", "")
        reason = one.verdict.reason
        if reason == "infrastructure":
            return "died", note
        return "failed", f"{reason}: {note}" if reason and note not in ("", reason) else note or reason
    if one.ended:
        how: How = "released" if one.ended.startswith("released") else "died"
        return how, one.ended.removeprefix("released").removeprefix("infrastructure").removeprefix(":").strip()
    return ("unknown", "") if one.archived else ("running", "")


def _tokens(one: Attempt, lanes: list[Lane]) -> Tokens:
    """Gives what the verdict tells, else this host's journal; marked where a lane was not counted or is not over."""
    here = [None if lane.result is None else lane.result.tokens for lane in lanes]
    mark: Literal["", "*"] = UNCOUNTED if None in here else ""
    said = figures.tokens_of(one)
    if said:
        return Tokens(said, mark)
    known = [counted(tokens) for tokens in here if tokens is not None]
    if not known:
        return UNKNOWN
    total = NONE
    for part in known:
        total = total + Tokens(part)
    return Tokens(total.by_kind, mark)


def _cost(lanes: list[Lane]) -> Cost:
    if not lanes:
        return Cost(None, UNCOUNTED)
    total = NOTHING
    for lane in lanes:
        done = lane.result
        total = total + (Cost(None, UNCOUNTED) if done is None else Cost(done.dollars, done.mark))
    return total


def _land(store: Store, seen: Scan, run: Run, task: TaskReport, found: Iterable[AttemptLine]) -> Land:
    assert task.landed is not None
    name = runs.task_name(run.id, task.id)
    last = next((one for one in found if one.task == task.id and one.how == "landed"), None)
    verdict = seen.verdict(seen.refs.get(names.verdict(name)))
    values = verdict.values if verdict is not None else {}
    # the branch of a git server has a ref of its own in each store, whose name ends alike
    at = f"/heads/{run.target}"
    words = "SELECT op, undone FROM landed WHERE landed = ? AND substr(ref, -?) = ? ORDER BY op DESC LIMIT 1"
    row = store.db.row(words, (task.landed, len(at), at))
    already = values.get("already") == "satisfied"
    return Land(
        task.id, task.landed, last.agent if last is not None else task.agent, task.harness, task.model,
        values.get("check", task.check), values.get("tree", ""), task.ended,
        int(row[0]) if row is not None and not already else None, row is not None and bool(row[1]) and not already,
        already,
    )  # fmt: skip


def _imported(lane: Lane) -> AttemptLine:
    record, done = lane.record, lane.result
    how: How = "unknown" if done is None else "done" if done.state == "done" else "failed"
    known = done is not None and done.tokens is not None
    return AttemptLine(
        record.task, record.lane, "", record.agent, record.ingredients.harness, record.ingredients.model or "unknown",
        how, "" if done is None else done.reason, record.began, lane.ended or 0,
        done.seconds if done is not None and done.seconds else None, done.turns if done is not None else 0, 0, None,
        Tokens(counted(done.tokens)) if known and done is not None else UNKNOWN,
        Cost(None, UNCOUNTED) if done is None else Cost(done.dollars, done.mark),
    )  # fmt: skip


def _blocks(tasks: list[TaskReport]) -> dict[str, list[str]]:
    """Gives for each task that did not land those that wait for it, in the order of the run."""
    waiting: dict[str, list[str]] = {}
    for one in tasks:
        for need in one.needs:
            waiting.setdefault(need, []).append(one.id)
    order = {one.id: number for number, one in enumerate(tasks)}
    found = {}
    for one in tasks:
        if one.state not in ("failed", "cancelled", "stopped"):
            continue
        reached: set[str] = set()
        queue = list(waiting.get(one.id, ()))
        while queue:
            name = queue.pop()
            if name not in reached:
                reached.add(name)
                queue += waiting.get(name, ())
        found[one.id] = sorted(reached, key=lambda name: order.get(name, 0))
    return {name: them for name, them in found.items() if them}
