"""The audit: whether what a board says is true, and whether anything on it is out of place.

What is in flight, and what honestly failed, is healthy. A fault is what nobody's next step would put right, or a lie:
above all a verdict `fixed: true` whose change is not on the target, or is no change. Everything else is a note.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import msgspec

from ropewalk.board import names, state, wire
from ropewalk.board.base import Board
from ropewalk.board.scan import Scan, scan
from ropewalk.board.state import State, Status
from ropewalk.board.tidy import queued
from ropewalk.core.errors import NotFoundError, RopewalkError
from ropewalk.core.ids import EMPTY_TREE

_TRAILER = re.compile(rb"^Attempt:[ \t]*(att-\S+)\s*$", re.MULTILINE)
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


class Finding(msgspec.Struct, frozen=True):
    """Is one thing that was found: the task, a word for its kind, and what is so; a `fault` makes a board unhealthy."""

    task: str
    kind: str
    words: str
    fault: bool


class TaskAudit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is how a task stands, in flockwork's fields: the attempt of its claim, its verdict and that one's attempt.

    `reopened_by` is `external` where somebody else than ropewalk opened a task again that had its verdict.
    """

    claimed: str | None
    returned: bool
    verdict: bool | None
    verdict_att: str | None
    state: State
    integrated: bool = False
    integrated_sha: str | None = None
    reopened_by: str | None = None


class SpecCensus(msgspec.Struct, frozen=True):
    """Is how many specs there are, held ones too, and the tasks whose spec nobody can work on."""

    total: int
    refused: list[str]


class Refusal(msgspec.Struct, frozen=True):
    """Is a review that does not count: TASK@REVIEWER, and why."""

    ref: str
    errors: list[str]


class ReviewCensus(msgspec.Struct, frozen=True):
    """Is how many reviews there are, and those that do not count."""

    total: int
    refused: list[Refusal]


class Schema(msgspec.Struct, frozen=True):
    """Is the census of what is well formed."""

    specs: SpecCensus
    reviewer_verdicts: ReviewCensus


class Audit(msgspec.Struct, frozen=True):
    """Is the result: `healthy` without a fault; `h1_pass` when every claim that has a verdict has its own, and a return
    if it says fixed; `counts` is the number of tasks in each state."""

    board: str
    healthy: bool
    h1_pass: bool
    counts: dict[str, int]
    findings: list[Finding]
    claim_orphans: list[str]
    tasks: dict[str, TaskAudit]
    schema: Schema


def audit(board: Board, only: Collection[str] = (), *, found: Scan | None = None) -> Audit:
    """Looks at a whole board; with `only`, says what is so of some tasks, `E_NOT_FOUND` for one that is not there.

    Nothing is written. Costs one listing, a batch of objects, and a walk of each target that something landed on.
    """
    seen = found or scan(board)
    look = _Look(seen, state.look(seen.board, everything=True))
    findings = list(look.findings())
    wanted = set(only)
    for task in wanted - look.statuses.keys():
        if not any(kind + task in seen.refs for kind in (names.CLAIMS, names.RETURNS, names.VERDICTS)):
            raise NotFoundError(f"the board has no task {task!r}", hint="`rw task list` shows the tasks", task=task)
    tasks = {task: look.row(task) for task in sorted(wanted or look.statuses)}
    counts: dict[str, int] = {}
    for task in tasks:
        if task in look.statuses:
            how = look.statuses[task].state
            counts[how] = counts.get(how, 0) + 1
    if wanted:
        findings = [one for one in findings if one.task in wanted]
    return Audit(
        board.name, not any(one.fault for one in findings), all(_h1(row) for row in tasks.values()), counts, findings,
        sorted(task for task in seen.named(names.CLAIMS) if task not in look.statuses), tasks, look.schema(),
    )  # fmt: skip


def _h1(row: TaskAudit) -> bool:
    if row.claimed is None or row.verdict_att is None:
        return True
    return row.verdict is not None and row.verdict_att == row.claimed and (row.returned or not row.verdict)


class _Look:
    """Is what one audit knows; each method that yields findings looks at one kind of thing."""

    def __init__(self, seen: Scan, statuses: Mapping[str, Status]) -> None:
        self.seen = seen
        self.board = seen.board
        self.statuses = statuses
        self._reviews = [(task, reviewer, wire.read_review(seen.words(oid) or "", task, reviewer))
                         for task in seen.reviewed for reviewer, oid in seen.reviews(task)]  # fmt: skip
        green: dict[str, list[str]] = {}
        for status in statuses.values():
            if _is_green(status) and status.returned is not None:
                green.setdefault(status.spec.task.target, []).append(status.returned)
        self._on: dict[str, set[str]] = {}
        for target, commits in green.items():
            head = self.board.ref(names.branch(target))
            self._on[target] = self.board.on_target(commits, head) if head is not None else set()
        contents = [seen.content(oid) for commits in green.values() for oid in commits]
        seen.read(parent for content in contents if (parent := _header(content, b"parent")) is not None)

    def row(self, task: str) -> TaskAudit:
        """Gives a task in flockwork's fields."""
        seen, status = self.seen, self.statuses.get(task)
        claim = status.claim if status is not None else seen.claim(seen.refs.get(names.claim(task)))
        verdict = status.verdict if status is not None else seen.verdict(seen.refs.get(names.verdict(task)))
        fired = seen.refs.get(names.integrated(task))
        return TaskAudit(
            claim.attempt if claim is not None else None, names.returned(task) in seen.refs,
            verdict.fixed if verdict is not None else None, verdict.attempt if verdict is not None else None,
            status.state if status is not None else "invalid", fired is not None, fired,
            "external" if self._external(task) else None,
        )  # fmt: skip

    def schema(self) -> Schema:
        """Gives the census."""
        refused = [Refusal(f"{task}@{who}", [one.problem]) for task, who, one in self._reviews if one.problem]
        bad = sorted(task for task, status in self.statuses.items() if status.spec.problems)
        return Schema(SpecCensus(len(self.statuses), bad), ReviewCensus(len(self._reviews), refused))

    def findings(self) -> Iterator[Finding]:
        """Gives all that is to be told, faults and notes."""
        for task in sorted(self.statuses):
            yield from self._of(self.statuses[task])
        yield from self._strays()
        yield from self._said()
        yield from self._leftovers()

    def _of(self, status: Status) -> Iterator[Finding]:
        task, seen = status.id, self.seen
        if not names.is_readable(task):
            yield Finding(task, "name", "its name is none that a task may have", False)
        if status.spec.problems:
            yield Finding(task, "spec", "; ".join(status.spec.problems), False)
        readings = (("spec", status.spec_id, self.seen.content(status.spec_id)),
                    ("claim", status.claim_id, status.claim),
                    ("verdict", seen.refs.get(names.verdict(task)), status.verdict),
                    ("return", status.returned, status.returned and self.seen.content(status.returned)))  # fmt: skip
        for what, oid, read in readings:
            if oid is not None and not read:
                yield Finding(task, "unreadable", f"its {what} {oid[:12]} can't be read", True)
        claim, verdict = status.claim, status.verdict
        if self._external(task):
            yield Finding(task, "reopened", "it had its verdict, and was opened again without ropewalk", False)
        if verdict is None:
            if claim is not None and claim.closed:
                yield Finding(task, "closed", f"the claim of {claim.attempt} is closed, and there is no verdict", True)
            if status.returned is not None:
                yield Finding(task, "half", status.why, status.claim_id is None)
            return
        if verdict.fixed is None:
            yield Finding(task, "unreadable", "its verdict says neither true nor false", True)
        if verdict.task != task:
            yield Finding(task, "verdict", f"its verdict is of {verdict.task or 'no task'}", True)
        if status.claim_id is None:
            yield Finding(task, "no_claim", f"it has a verdict of {verdict.attempt or 'nobody'}, and no claim", True)
        elif claim is not None and claim.attempt != verdict.attempt:
            yield Finding(task, "attempt", f"its claim is {claim.attempt}'s, its verdict {verdict.attempt}'s", True)
        if verdict.fixed and status.state != "pending":
            yield from self._landed(status)

    def _landed(self, status: Status) -> Iterator[Finding]:
        """Looks at what says that it is fixed."""
        task, verdict, returned = status.id, status.verdict, status.returned
        assert verdict is not None
        target = status.spec.task.target
        if verdict.pytest_rc not in (0, None):
            yield Finding(task, "check", f"it says fixed, and that its check ended with {verdict.pytest_rc}", True)
        if returned is None:
            yield Finding(task, "not_landed", "it says fixed, and nothing was returned", True)
            return
        if returned not in self._on.get(target, ()):
            yield Finding(task, "not_landed", f"it says fixed, and {returned[:12]} is not on {target}", True)
        elif why := self._no_change(status, returned):
            yield Finding(task, "no_change", f"it says fixed, and {why}", True)
        content = self.seen.content(returned)
        tree, stated = _header(content, b"tree"), verdict.values.get("tree", "")
        if tree is not None and _COMMIT.match(stated) and stated != tree:
            yield Finding(task, "tree", f"{stated[:12]} was checked, and {tree[:12]} landed", True)
        for need in status.spec.task.needs:
            if not self._is_met(need, target):
                was = any((one := self.seen.verdict(oid)) is not None and one.fixed
                          for _, oid in self.seen.archived("verdicts", need))  # fmt: skip
                words = f"it needs {need}, which is not done" + (" any more" if was else "")
                yield Finding(task, "needs", words, not was)

    def _no_change(self, status: Status, returned: str) -> str:
        """Gives why a commit that is on its target is no change of the attempt that returned it; empty where it is."""
        verdict, content = status.verdict, self.seen.content(returned)
        if verdict is None or content is None or verdict.values.get("already", "").startswith("satisfied"):
            return ""
        trailers = _TRAILER.findall(content.partition(b"\n\n")[2])
        own = trailers[-1].decode("utf-8", "replace") == verdict.attempt if trailers else False
        stated = verdict.values.get("landed") == returned
        if not own and (not stated or (status.claim is not None and status.claim.base == returned)):
            return f"{returned[:12]} is not a change of its own"
        parent = _header(content, b"parent")
        before = EMPTY_TREE if parent is None else _header(self.seen.content(parent), b"tree")
        return f"{returned[:12]} changes nothing" if before == _header(content, b"tree") else ""

    def _is_met(self, need: str, target: str) -> bool:
        one = self.statuses.get(need)
        if one is None or not _is_green(one) or one.claim is None or one.verdict is None or one.returned is None:
            return False
        return one.claim.attempt == one.verdict.attempt and one.returned in self._on.get(target, ())

    def _external(self, task: str) -> bool:
        """Says whether a verdict was archived by somebody who did not say so in it, as flockwork's sweep does (F8)."""
        returned = dict(self.seen.archived("tasks", task))
        for marker, oid in self.seen.archived("verdicts", task):
            one = self.seen.verdict(oid) if "@" not in marker else None
            # what has no end of its own may be put away by anybody
            ended = one is not None and (one.fixed is False or (one.fixed is True and marker in returned))
            if ended and one is not None and "reopened_by" not in one.values:
                return True
        return False

    def _strays(self) -> Iterator[Finding]:
        for prefix, what in ((names.CLAIMS, "claim"), (names.RETURNS, "return"), (names.VERDICTS, "verdict"),
                             (names.INTEGRATED, "gate that fired")):  # fmt: skip
            for task in self.seen.named(prefix):
                if task not in self.statuses:
                    yield Finding(task, "orphan", f"there is a {what}, and no spec", False)
                elif prefix == names.INTEGRATED and self.statuses[task].state != "done":
                    yield Finding(task, "gate", f"its gate fired, and it is {self.statuses[task].state}", True)

    def _said(self) -> Iterator[Finding]:
        """Looks at reviews and gates: whether what they rest on is there."""
        said = [(task, f"the review of {who}", one.evidence) for task, who, one in self._reviews if not one.problem]
        for task, who, one in self._reviews:
            if one.problem:
                yield Finding(task, "review", f"the review of {who} does not count: {one.problem}", False)
        for task in self.seen.named(names.INTEGRATED):
            said.append((task, "its gate", wire.fields(self.seen.words(self.seen.refs[names.integrated(task)]) or "")
                         .get("evidence")))  # fmt: skip
        for task, what, evidence in said:
            if why := self._unresolved(task, evidence):
                yield Finding(task, "evidence", f"{what} rests on {evidence[:200]!r}, {why}", True)

    def _unresolved(self, task: str, evidence: str) -> str:
        """Gives why evidence is none: a ref, REF@COMMIT, or the commit that was returned; empty where it is some."""
        returned = self.seen.refs.get(names.returned(task))
        if _COMMIT.match(evidence):
            return "" if evidence == returned else "which is not what was returned"
        if self._at(evidence) is not None:
            return ""
        ref, _, commit = evidence.rpartition("@")
        present = self._at(ref) if _COMMIT.match(commit) else None
        if present is None:
            return "which is not on the board"
        return "" if present == commit else f"which is at {present[:12]} now"

    def _at(self, ref: str) -> str | None:
        ref = ref if ref.startswith("refs/") else f"refs/{ref}"
        return self.seen.refs.get(ref) or self.board.ref(ref)

    def _leftovers(self) -> Iterator[Finding]:
        """Looks at the index, the locks and the landing queue."""
        for task in self.seen.named(names.OPEN):
            if task not in self.statuses:
                yield Finding(task, "index", "the index of open tasks names it, and there is no spec", False)
            elif self.statuses[task].state in state.CLOSED:
                yield Finding(
                    task, "index", f"it is {self.statuses[task].state}, and in the index of open tasks", False
                )
        if not self._is_mixed():
            for task, status in self.statuses.items():
                if status.state not in state.CLOSED and names.opened(task) not in self.seen.refs:
                    yield Finding(task, "hidden", f"it is {status.state}, and not in the index of open tasks", True)
        holders = {claim.attempt: task for task, status in self.statuses.items()
                   if (claim := status.claim) is not None and not claim.closed}  # fmt: skip
        for ref, oid in self.seen.refs.items():
            if ref.startswith(names.QUEUE):
                task = queued(ref)
                if task not in holders.values():
                    yield Finding(task, "queue", f"{ref[len(names.QUEUE) :]} waits to land, and nobody holds it", True)
            elif ref.startswith(names.LOCKS):
                text = self.seen.words(oid) or ""
                last = text.split()[-1:]
                attempt = wire.fields(text).get("attempt") or (last[0] if last and names.is_attempt(last[0]) else "")
                task = wire.fields(text).get("task")
                if attempt not in holders or (task and holders[attempt] != task):
                    # a landing lease is taken over by whoever wants it next
                    is_lease = ref.startswith(names.landing_lock(""))
                    words = f"{ref[len(names.LOCKS) :]} is locked by {attempt or 'nobody'}, who holds no claim"
                    yield Finding(task, "lock", words, not is_lease)

    def _is_mixed(self) -> bool:
        try:
            return state.law(self.board).mixed
        except RopewalkError:
            return True


def _is_green(status: Status) -> bool:
    return status.verdict is not None and status.verdict.fixed is True and status.state != "pending"


def _header(content: bytes | None, key: bytes) -> str | None:
    """Gives the first header of a name that a commit has."""
    for line in (content or b"").partition(b"\n\n")[0].split(b"\n"):
        if line.startswith(key + b" "):
            return line[len(key) + 1 :].decode("ascii", "replace")
    return None
