"""States of tasks, derived from refs alone: which are ready, claimed, done, and why the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ropewalk.board import names, wire, writes
from ropewalk.board.base import Board
from ropewalk.board.wire import Claim, Law, Spec, Verdict
from ropewalk.core.errors import UnsupportedError
from ropewalk.plan.task import Task

State = Literal[
    "ready", "waiting", "claimed", "pending", "done", "failed", "infrastructure", "cancelled", "half", "invalid"
]
CLOSED: frozenset[State] = frozenset({"done", "failed", "infrastructure", "cancelled"})


class Status(NamedTuple):
    """Is how a task stands; `why` says what it waits for, or how it ended.

    `half` is a return without a verdict, or the other way round, as a dead worker of flockwork leaves it; `pending`
    a verdict of a change that is still to come onto the target. `at` is when the spec says it was made.
    """

    id: str
    state: State
    why: str
    spec: Spec
    spec_id: str
    at: int
    is_held: bool
    claim: Claim | None
    claim_id: str | None
    returned: str | None
    verdict: Verdict | None


def law(board: Board) -> Law:
    """Gives the law of a board; one without is flockwork's own. `E_UNSUPPORTED` when it is newer than ours."""
    text = None if board.ref(names.LAW) is None else _words(board, board.ref(names.LAW))
    if text is None:
        return Law(0, True)
    found = wire.read_law(text)
    if found.version > wire.LAW:
        raise UnsupportedError(
            f"the board has law {found.version}, and this ropewalk knows laws up to {wire.LAW}",
            hint="upgrade ropewalk on this host", law=found.version, known=wire.LAW,
        )  # fmt: skip
    return found


def look(board: Board, *, everything: bool = False, only: Iterable[str] | None = None) -> dict[str, Status]:
    """Gives the status of every open task by name, or of all tasks, or of named ones that are there.

    The open ones are found by their index; what flockwork's workers added is seen by a look at everything.
    """
    if only is not None:
        tasks = list(dict.fromkeys(only))
    elif everything:
        kinds = (names.SPECS, names.HELD)
        tasks = sorted({n[len(k) :] for k in kinds for n, _ in board.below(k) if "@" not in n})
    else:
        tasks = [name[len(names.OPEN) :] for name, _ in board.below(names.OPEN)]
    return _statuses(board, tasks)


def need(board: Board, task: str) -> Status | None:
    """Gives the status of one task; None when there is none."""
    return look(board, only=[task]).get(task)


class _Raw(NamedTuple):
    spec: str
    is_held: bool
    claim: str | None
    returned: str | None
    verdict: str | None


def _statuses(board: Board, tasks: Sequence[str]) -> dict[str, Status]:
    raws: dict[str, _Raw] = {}
    for task in tasks:
        spec, held = board.ref(names.spec(task)), board.ref(names.held(task))
        if spec is None and held is None:
            continue
        raws[task] = _Raw(
            spec or held or "", spec is None, board.ref(names.claim(task)), board.ref(names.returned(task)),
            board.ref(names.verdict(task)),
        )  # fmt: skip
    board.prefetch(oid for raw in raws.values() for oid in (raw.spec, raw.claim, raw.verdict) if oid is not None)
    contents = {task: board.content(raw.spec) for task, raw in raws.items()}
    specs = {task: _spec(task, content) if content is not None else _unreadable(task)
             for task, content in contents.items()}  # fmt: skip
    depends, locked = Dependencies(board), writes.locked(board)
    depends.learn(specs[task].task for task, raw in raws.items() if raw.claim is None and raw.verdict is None)
    return {task: _status(board, raw, specs[task], contents[task], depends, locked) for task, raw in raws.items()}


def _status(
    board: Board, raw: _Raw, spec: Spec, content: bytes | None, depends: Dependencies, locked: writes.Sets
) -> Status:
    claim_words = _words(board, raw.claim)
    claim = wire.read_claim(claim_words) if claim_words is not None else None
    verdict_words = _words(board, raw.verdict)
    verdict = wire.read_verdict(verdict_words) if verdict_words is not None else None
    state, why = _judge(board, spec, raw, claim, verdict, depends, locked)
    return Status(
        spec.task.id, state, why, spec, raw.spec, wire.made_at(content or b""), raw.is_held, claim, raw.claim,
        raw.returned, verdict,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _spec(task: str, content: bytes) -> Spec:
    """Gives a spec; whoever looks again and again reads it once."""
    return wire.read_spec(task, wire.message(content))


def _unreadable(task: str) -> Spec:
    return Spec(Task(task, ""), ("its spec can't be read",), "")


def _judge(
    board: Board,
    spec: Spec,
    raw: _Raw,
    claim: Claim | None,
    verdict: Verdict | None,
    depends: Dependencies,
    locked: writes.Sets,
) -> tuple[State, str]:
    if raw.verdict is not None:
        return _ended(raw, verdict)
    if raw.returned is not None:
        return "half", "it was returned without a verdict"
    if raw.claim is not None:
        return "claimed", claim.attempt if claim is not None else "its claim can't be read"
    if spec.problems:
        return "invalid", "; ".join(spec.problems)
    if unmet := depends.unmet(spec.task.needs, spec.task.target):
        return "waiting", unmet
    if board.ref(names.branch(spec.task.target)) is None:
        return "waiting", f"there is no branch {spec.task.target}"
    if spec.task.region and board.ref(names.lock(spec.task.region)) is not None:
        return "waiting", f"region {spec.task.region} is busy"
    if (met := locked.met(spec.task)) is not None:
        return "waiting", met.words
    return "ready", ""


def _ended(raw: _Raw, verdict: Verdict | None) -> tuple[State, str]:
    if verdict is None or verdict.fixed is None:
        return "half", "its verdict can't be read"
    if verdict.values.get("landed") == "pending":
        return "pending", "its change waits to be merged"
    if verdict.fixed:
        return ("done", "") if raw.returned is not None else ("half", "it has a verdict and no return")
    if verdict.reason == "cancelled":
        return "cancelled", verdict.values.get("note", "")
    if verdict.reason.startswith("infrastructure"):
        return "infrastructure", verdict.values.get("note", verdict.reason)
    return "failed", verdict.reason or f"the check ended with {verdict.pytest_rc}"


class Dependencies:
    """Says which needs are unmet; a return is no proof by itself (F18)."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: dict[tuple[str, str], str] = {}
        self._landed: dict[tuple[str, str], bool] = {}

    def learn(self, tasks: Iterable[Task]) -> None:
        """Reads at once what the needs of many tasks will be asked about; no need costs a git process of its own."""
        board = self._board
        wanted = {(name, task.target) for task in tasks for name in task.needs}
        refs = [ref for name, _ in wanted for ref in (names.verdict(name), names.claim(name))]
        board.prefetch(oid for ref in refs if (oid := board.ref(ref)) is not None)
        returned: dict[str, set[str]] = {}
        for name, target in wanted:
            if (oid := board.ref(names.returned(name))) is not None:
                returned.setdefault(target, set()).add(oid)
        for target, commits in returned.items():
            head = board.ref(names.branch(target))
            landed = board.on_target(commits, head) if head is not None else set()
            self._landed |= {(oid, target): oid in landed for oid in commits}

    def unmet(self, needs: Sequence[str], target: str) -> str:
        """Gives why tasks are not done on a target, empty when all are."""
        found = [why for name in needs if (why := self._why(name, target))]
        return "; ".join(found)

    def _why(self, name: str, target: str) -> str:
        if (name, target) not in self._known:
            self._known[name, target] = self._judge(name, target)
        return self._known[name, target]

    def _judge(self, name: str, target: str) -> str:
        board = self._board
        verdict_id, returned = board.ref(names.verdict(name)), board.ref(names.returned(name))
        if verdict_id is None or returned is None:
            if verdict_id is None:
                there = board.ref(names.spec(name)) or board.ref(names.held(name))
                return f"it needs {name}" if there else f"it needs {name}, which is not on the board"
            return f"it needs {name}, which failed"
        verdict = wire.read_verdict(_words(board, verdict_id) or "")
        if verdict is not None and verdict.values.get("landed") == "pending":
            return f"it needs {name}, whose change waits to be merged"
        if verdict is None or not verdict.fixed:
            return f"it needs {name}, which failed"
        claim = wire.read_claim(_words(board, board.ref(names.claim(name))) or "")
        if claim is None or claim.attempt != verdict.attempt:
            return f"it needs {name}, whose verdict is of another attempt than its claim"
        if not self._has_landed(returned, target):
            return f"it needs {name}, whose change is not on {target} any more"
        return ""

    def _has_landed(self, commit: str, target: str) -> bool:
        if (commit, target) not in self._landed:
            head = self._board.ref(names.branch(target))
            self._landed[commit, target] = head is not None and commit in self._board.on_target([commit], head)
        return self._landed[commit, target]


def _words(board: Board, oid: str | None) -> str | None:
    content = board.content(oid) if oid is not None else None
    return None if content is None else wire.message(content)


def order(statuses: Iterable[Status]) -> list[Status]:
    """Gives tasks in the order in which they are to be taken: by priority, by what hangs on them, by age, by name."""
    listed = list(statuses)
    rank = standing(listed)
    return sorted(listed, key=lambda s: (-rank[s.id][0], -rank[s.id][1], s.at, s.id))


def standing(statuses: Iterable[Status]) -> dict[str, tuple[int, int]]:
    """Gives (priority, length of the longest chain of tasks that hang on it) by task: who is equal in it may swap."""
    listed = list(statuses)
    weight = _critical({s.id: s.spec.task.needs for s in listed})
    return {s.id: (s.spec.task.priority, weight[s.id]) for s in listed}


def _critical(needs: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """Gives for each task the length of the longest chain of tasks that hang on it, itself among them."""
    users: dict[str, list[str]] = {name: [] for name in needs}
    left = dict.fromkeys(needs, 0)
    for name, wanted in needs.items():
        for one in wanted:
            if one in users:
                users[one].append(name)
    for name in needs:
        left[name] = len(users[name])
    weight = dict.fromkeys(needs, 1)
    free = [name for name, count in left.items() if not count]
    while free:
        name = free.pop()
        for one in needs[name]:
            if one in users:
                weight[one] = max(weight[one], weight[name] + 1)
                left[one] -= 1
                if not left[one]:
                    free.append(one)
    return weight
