"""The figures of a run: all of them are read off the board, so that whoever has the board can say them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from ropewalk.board import names, runs, state
from ropewalk.board.base import Board
from ropewalk.board.local import LocalBoard
from ropewalk.board.runs import Broken, Pause, Replan, Run
from ropewalk.board.scan import Attempt, Scan, attempts, frozen, seconds_of
from ropewalk.board.state import Status
from ropewalk.core import clock
from ropewalk.run import clocks

TaskState = Literal["landed", "failed", "blocked", "stopped", "cancelled", "pending", "running", "waiting",
                    "replaced", "done", "unknown"]  # fmt: skip
RunState = Literal["running", "done", "stopped", "paused", "died", "undone", "imported"]

_BROKEN: frozenset[TaskState] = frozenset({"failed", "blocked", "cancelled"})


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what became of one task.

    `agent` is the worker that had it last, `turns` counts starts of its agent in the attempt that decided, `attempts`
    all attempts and `deaths` those that ended by no fault of the work. `began` and `ended` are seconds since 1970,
    `seconds` for how long agents ran in all attempts, `usage` the tokens by kind of all attempts. `kept` is the
    attempt under which `rw recover` has the work of a task that did not land. One that is `replaced` failed, or waited
    for one that did, and others stand in its place.
    """

    id: str
    state: TaskState
    agent: str = ""
    reason: str = ""
    landed: str | None = None
    turns: int = 0
    deaths: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    usage: dict[str, int] = {}
    kept: str | None = None
    cached: str = ""
    title: str = ""
    attempts: int = 0
    harness: str = ""
    model: str = ""
    needs: tuple[str, ...] = ()
    region: str = ""
    check: str = ""
    tree: str = ""
    began: int = 0
    ended: int = 0


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is where a run was brought from, and what of it could not be: files that are missing, lines that can't be read.

    `lanes` counts the endings it tells of, `by_status` and `by_severity` its findings; `mark` stands beside `dollars`.
    """

    source: str
    name: str
    folder: str
    lanes: int = 0
    missing: list[str] = []
    bad: list[str] = []
    notes: list[str] = []
    by_status: dict[str, int] = {}
    by_severity: dict[str, int] = {}
    dollars: float | None = None
    mark: str = ""


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what a run did.

    `state` is running, done, stopped (it may be resumed), paused (`paused` says why and until when), died (nobody
    works on it though it is not over) or undone (its work was taken back). `head` is where its ref is now. `seconds` go
    from its start to its last verdict, or to now while it runs, and say nothing where its hosts' clocks are seen to be
    `clocks_apart` (in seconds, at least). `usage` is the sum over tasks; `board` names the git server of a run that is
    on one. `mode` says whether it was made from tasks, a plan or a goal. One
    that another program did is `imported`, and its tasks are done, failed or unknown: whether they landed is not known.
    """

    id: str
    ref: str
    base: str
    head: str
    state: RunState
    landed: int
    failed: int
    blocked: int
    stopped: int
    seconds: float
    lands_per_second: float
    tasks: list[TaskReport]
    started_at: int = 0
    harness: str = ""
    branch: str | None = None
    goal: str = ""
    mode: str = "tasks"
    by: str = ""
    plan: str = ""
    usage: dict[str, int] = {}
    imported: Origin | None = None
    replans: tuple[Replan, ...] = ()
    paused: Pause | None = None
    despite: tuple[str, ...] = ()
    broken: tuple[Broken, ...] = ()
    clocks_apart: int = 0
    board: str = ""


class Built(msgspec.Struct, frozen=True):
    """Is a later change that touches what a run changed, and the paths that both did."""

    id: str
    agent: str
    title: str
    paths: list[str]


def summary(board: Board, run: Run, *, living: bool, branch: str | None = None, now: int = 0) -> Summary:
    """Gives the summary of a run as its board shows it; `living` says whether a process here drives it."""
    return read(board, run, living=living, branch=branch, now=now)[0]


def read(
    board: Board, run: Run, *, living: bool, branch: str | None = None, now: int = 0
) -> tuple[Summary, Scan]:  # fmt: skip
    """Gives a run's summary, and what was seen of its tasks at that moment, for whoever wants to tell more of them."""
    board.refresh()
    still, refs = frozen(board)
    mine = {ref: oid for ref, oid in refs.items() if runs.of_task(_task_in(ref)) == run.id}
    seen = Scan(still, mine)
    seen.read(mine.values())
    tasks = _names(run, seen.tasks)
    statuses = state.look(still, only=[runs.task_name(run.id, task) for task in tasks])
    made = {task: attempts(seen, runs.task_name(run.id, task)) for task in tasks}
    found = [_report(run, seen, task, statuses.get(runs.task_name(run.id, task)), made[task]) for task in tasks]
    found = _blocked(found, stopped=bool(run.stopped))
    worked_on = any(one.state == "running" for one in found)
    is_open = worked_on or any(one.state == "waiting" for one in found)
    how: RunState = "done"
    if run.undone:
        how = "undone"
    elif run.stopped and any(one.state in ("stopped", "running", "waiting") for one in found):
        how = "stopped"
    elif is_open and run.paused is not None and _waits(run.paused, now):
        how = "paused"
        found = [_held(one, run.paused) if one.state == "waiting" else one for one in found]
    elif is_open:
        how = "running" if living or (worked_on and at_work(statuses.values())) else "died"
    count = {word: sum(one.state == word for one in found) for word in ("landed", "failed", "blocked", "stopped")}
    last = max((one.ended for one in found), default=0)
    until = now if how == "running" and now else last or run.at
    seconds = float(max(0, until - run.at)) if run.at else 0.0
    usage: dict[str, int] = {}
    for one in found:
        for name, number in one.usage.items():
            usage[name] = usage.get(name, 0) + number
    told = Summary(
        run.id, run.target, run.base, board.ref(names.branch(run.target)) or run.base, how, count["landed"],
        count["failed"], count["blocked"], count["stopped"], seconds,
        round(count["landed"] / max(1.0, seconds), 2), found, run.at,
        str(run.options.get("harness", "")), branch, run.goal, run.mode, run.by, run.summary, usage,
        replans=run.replans, paused=run.paused if how == "paused" else None,
        despite=tuple(run.options.get("despite", ())),
        broken=run.broken,
        clocks_apart=clocks.apart(run, seen, made, {one.id: one.needs for one in found}, now),
        board="" if isinstance(board, LocalBoard) else board.name,
    )  # fmt: skip
    return told, seen


def afterwards(ref: str, base: str, board: str) -> tuple[str, str]:
    """Gives how to see what a run made and how to merge it where it has no branch in the repository; of a git server
    it is fetched. The second is empty where there is no such way.
    """
    if not board:
        return f"rw diff {base[:12]} {ref} --human", ""
    from shlex import quote

    where = f"{quote(board)} {quote(ref)}"
    return f"git fetch {where} && git diff {base[:12]} FETCH_HEAD", f"git pull --no-rebase {where}"


def on_board(board: str) -> str:
    """Gives the option that names the board of a run to a further command, with a blank before; none in a store."""
    from shlex import quote

    return f" --board {quote(board)}" if board else ""


def exit_code(found: Summary) -> int:
    """Gives the exit code of a run: 130 stopped, 12 when an agent got out of its workspace, 3 when conflicts alone were
    left, 10 for any other failure, else 0.
    """
    if found.state == "stopped":
        return 130
    if found.state == "paused":
        return 14
    broken = [one for one in found.tasks if one.state in _BROKEN]
    if not broken and found.state == "done":
        return 10 if found.broken else 0
    failed = [one for one in broken if one.state == "failed"]
    if any("escaped: " in one.reason for one in failed):
        return 12
    return 3 if failed and all(one.reason.startswith("conflict") for one in failed) else 10


def _task_in(ref: str) -> str:
    """Gives the task that a ref of a board is of, empty for one of none."""
    for kind in (names.SPECS, names.HELD, names.CLAIMS, names.RETURNS, names.VERDICTS, names.INTEGRATED):
        if ref.startswith(kind):
            return ref[len(kind) :].partition("@")[0]
    if ref.startswith(names.ARCHIVE):
        return ref[len(names.ARCHIVE) :].partition("/")[2].partition("@")[0]
    return ""


def _names(run: Run, there: Iterable[str]) -> list[str]:
    """Gives the tasks of a run in its own order, and behind them those that its agents asked for."""
    known = set(run.tasks)
    return [*run.tasks, *sorted(short for name in there if (short := runs.short(run.id, name)) not in known)]


def at_work(statuses: Iterable[Status]) -> bool:
    """Says whether a claim may be somebody's: its process lives here, or it is another host's."""
    from ropewalk.board import holder

    return any(s.claim is not None and not s.claim.closed and not holder.is_dead(s.claim.host) for s in statuses)


def _report(run: Run, seen: Scan, task: str, status: Status | None, tried: Sequence[Attempt]) -> TaskReport:
    if status is None:
        return TaskReport(task, "cancelled", reason="it is not on the board any more")
    # whoever cancels or replaces a task closes it by an attempt at which nobody tried anything
    made = [one for one in tried if one.verdict is None or one.verdict.reason != "cancelled"]
    last = made[-1] if made else None
    verdict = status.verdict
    values = verdict.values if verdict is not None else {}
    spec = status.spec.task
    how = _state(status)
    reason = status.why
    if how == "cancelled" and task in run.replaced:
        how = "replaced"
    if how == "failed":
        note = values.get("note", "")
        reason = f"{verdict.reason}: {note}" if verdict and verdict.reason and note not in ("", verdict.reason) else (
            note or status.why)  # fmt: skip
    usage: dict[str, int] = {}
    for one in made:
        for key, number in tokens_of(one).items():
            usage[key] = usage.get(key, 0) + number
    began = min((one.began for one in made if one.began), default=0)
    ended = seen.made_at(seen.refs.get(names.verdict(runs.task_name(run.id, task)))) or 0
    return TaskReport(
        task, how, _agent(last), "" if how == "landed" else runs.short(run.id, reason).replace(f"{run.id}.", ""),
        status.returned if how == "landed" else None,
        int(values.get("turns", "1" if verdict is not None else "0")), sum(_died(one) for one in made),
        _int(values.get("conflicts", "")), round(sum(seconds_of(one.verdict) or 0.0 for one in made), 1), usage,
        last.id if last is not None and how in ("failed", "waiting", "replaced") else None, values.get("cached", ""),
        spec.name, len(made), last.harness if last is not None else spec.harness,
        _known(last.model) if last is not None else spec.model,
        tuple(runs.short(run.id, need) for need in spec.needs), spec.region.removeprefix(f"{run.id}."), spec.check,
        values.get("tree", ""), began, ended,
    )  # fmt: skip


def _state(status: Status) -> TaskState:
    if status.state in ("failed", "infrastructure", "invalid"):
        return "failed"
    if status.state == "done":
        return "landed"
    if status.state in ("claimed", "half"):
        return "running"
    if status.state in ("cancelled", "pending"):
        return "cancelled" if status.state == "cancelled" else "pending"
    return "waiting"


def _blocked(found: list[TaskReport], *, stopped: bool) -> list[TaskReport]:
    """Tells those that wait for what failed from those that only wait, and says for what."""
    by_id = {one.id: one for one in found}
    while True:
        changed = False
        for name, one in by_id.items():
            if one.state != "waiting":
                continue
            broken = [need for need in one.needs if need in by_id and by_id[need].state in _BROKEN]
            if broken:
                words = ", ".join(f"{need} {by_id[need].state}" for need in broken)
                reason = f"it needs what did not land: {words}"
                by_id[name] = msgspec.structs.replace(one, state="blocked", reason=reason)
                changed = True
        if not changed:
            break
    if stopped:
        for name, one in by_id.items():
            if one.state == "waiting":
                by_id[name] = msgspec.structs.replace(one, state="stopped", reason="the run was stopped")
    return list(by_id.values())


def _waits(pause: Pause, now: int) -> bool:
    return not pause.until or pause.until > (now or clock.now())


def _held(one: TaskReport, pause: Pause) -> TaskReport:
    """Gives a task that waits as one of a run that does, whatever else it waits for."""
    words = [f"the run is paused: {pause.why}", *([one.reason] if one.reason else [])]
    return msgspec.structs.replace(one, reason="; ".join(words))


def _agent(last: Attempt | None) -> str:
    return names.worker_of(last.id) if last is not None else ""


def _died(one: Attempt) -> bool:
    """Says whether an attempt ended by no fault of the work; the last one of a task that ran out of heirs did, too."""
    if one.verdict is not None and one.verdict.reason.startswith("infrastructure"):
        return True
    return one.archived and bool(one.ended) and not one.ended.startswith("released")


def tokens_of(one: Attempt) -> dict[str, int]:
    """Gives the tokens by kind that an attempt's verdict tells of, or its claim where it has none; else none."""
    if one.verdict is not None:
        said = one.verdict.values.get("tokens", "")
    else:
        said = next(iter(one.claim.values_of("tokens")), "") if one.claim is not None else ""
    pairs = (pair.partition("=") for pair in said.split())
    return {name: int(number) for name, _, number in pairs if number.isdigit()}


def _known(model: str) -> str:
    return "" if model == "unknown" else model


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0
