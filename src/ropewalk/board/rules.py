"""The laws of a board, held against what others push into its store.

A stock git server checks leases alone. A store knows its board, so that it refuses what would break a law, whoever
pushes: flockwork's worker, whose sweep has no leases, a script, or ours. A push is judged by what the board would be
after it, inside the transaction that moves its refs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ropewalk.board import gate, holder, names, observe, review, state, wire
from ropewalk.board.base import words
from ropewalk.board.local import LocalBoard
from ropewalk.board.wire import Claim
from ropewalk.core import clock
from ropewalk.core.errors import InvalidError, RopewalkError
from ropewalk.remote.receiving import BOARD, ZERO, Command, Push
from ropewalk.store import lineage
from ropewalk.store.store import Store

SLOWEST_BEAT = 300.0
"""Is how often the holder of a claim beats on a board that it reaches by pushes, in seconds."""


class _After(LocalBoard):
    """Is the board of a store as it would be after a push."""

    def __init__(self, store: Store, commands: Sequence[Command]) -> None:
        super().__init__(store)
        self.new = {one.ref: None if one.new == ZERO else one.new for one in commands}

    def ref(self, name: str) -> str | None:
        return self.new[name] if name in self.new else super().ref(name)

    def below(self, prefix: str) -> list[tuple[str, str]]:
        found = {name: oid for name, oid in super().below(prefix) if name not in self.new}
        pushed = {name: oid for name, oid in self.new.items() if oid is not None and name.startswith(prefix)}
        return sorted((found | pushed).items())


class _Case(NamedTuple):
    before: LocalBoard
    after: _After
    push: Push


def refusals(store: Store, commands: Sequence[Command], push: Push) -> dict[str, str]:
    """Gives which refs of a push a law of the board refuses, each with the reason; nothing where there is no board."""
    if not any(one.ref.startswith(BOARD) for one in commands):
        return {}
    case = _Case(LocalBoard(store), _After(store, commands), push)
    is_history = any(one.ref == names.LOG for one in commands)
    found: dict[str, str] = {}
    for one in commands:
        try:
            why = _refusal(case, one, is_history=is_history)
        except RopewalkError as error:
            why = error.message
        if why:
            found[one.ref] = why
    return found


def _refusal(case: _Case, one: Command, *, is_history: bool) -> str:
    ref, new = one.ref, None if one.new == ZERO else one.new
    if ref == names.LAW:
        return _law(case, new)
    if is_history:
        return ""  # compaction moves what is closed into the chain, and back
    for prefix, judge in ((names.SPECS, _spec), (names.CLAIMS, _claim), (names.RETURNS, _return)):
        if ref.startswith(prefix):
            task = ref[len(prefix) :]
            return _name(task) or judge(case, task, new)
    if ref.startswith(names.VERDICTS):
        task, at, reviewer = ref[len(names.VERDICTS) :].partition("@")
        return _name(task) or (_review(case, task, reviewer, new) if at else _verdict(case, task, new))
    if ref.startswith(names.INTEGRATED):
        task = ref[len(names.INTEGRATED) :]
        return _name(task) or _gate(case, task, new)
    if ref.startswith(names.ARCHIVE) and new is None:
        return "" if _is_renamed(case, one.old) else "what is archived stays"
    return ""


def _name(task: str) -> str:
    return "" if names.is_readable(task) else f"{task[:80]!r} is no task's name"


def _is_renamed(case: _Case, old: str) -> bool:
    """Says whether a push gives an archived object another place in the archive, as relabelling does."""
    return any(name.startswith(names.ARCHIVE) and oid == old for name, oid in case.after.new.items())


def _law(case: _Case, new: str | None) -> str:
    if new is None:
        return "a board keeps its law"
    wire.read_law(words(case.after, names.LAW) or "")
    live = [name for name, _ in case.before.below(names.CLAIMS) if (c := _claim_at(case.before, name)) and not c.closed]
    return "the law does not change while tasks are claimed" if case.before.ref(names.LAW) and live else ""


def _spec(case: _Case, task: str, new: str | None) -> str:
    before = case.before.ref(names.spec(task))
    if before is None:
        return ""
    if new is None:
        return "" if case.after.ref(names.held(task)) == before else "a spec is not removed; cancel its task"
    return "its task is claimed" if case.before.ref(names.claim(task)) is not None else ""


def _claim_at(board: LocalBoard, ref: str) -> Claim | None:
    text = words(board, ref)
    return wire.read_claim(text) if text is not None else None


def _claim(case: _Case, task: str, new: str | None) -> str:
    ref = names.claim(task)
    before, after = _claim_at(case.before, ref), _claim_at(case.after, ref)
    if new is None:
        return _end(case, task, before)
    if after is None:
        return "it names no attempt"
    try:
        names.check_person(names.worker_of(after.attempt))
    except InvalidError as error:
        return error.message
    if case.before.ref(ref) is not None:
        return "" if before is None or before.attempt == after.attempt else f"it is {before.attempt}'s"
    if case.after.ref(names.spec(task)) is None:
        return "there is no such task" if case.after.ref(names.held(task)) is None else "the task is held back"
    if case.before.ref(names.returned(task)) is not None or case.before.ref(names.verdict(task)) is not None:
        return "its task has ended"
    if not after.ours and not state.law(case.after).mixed:
        return "only ropewalk's workers may claim here: the board's law is not mixed"
    return ""


def _end(case: _Case, task: str, found: Claim | None) -> str:
    """Gives why a claim may not be removed: its holder lives, or its task has ended for good (F17)."""
    if case.after.ref(names.returned(task)) is not None or case.after.ref(names.verdict(task)) is not None:
        return "its return and its verdict go with it"
    ended = state.need(case.before, task)
    if ended is not None and ended.state in state.CLOSED:
        said = _is_said(case, "verdicts", task, "reopened_by")
        return "" if said else "its task has ended; `rw task reopen` opens it"
    if found is None or _is_said(case, "claims", task, "ended") or holder.is_dead(found.host):
        return ""
    at, actor = _last(case.before, task)
    if not found.ours and actor == case.push.agent:
        return ""  # a worker of flockwork ends its own attempt in the words of its sweep
    age = clock.now() - at
    return "claim is live" if age < observe.lease(found.ours, SLOWEST_BEAT) else ""


def _is_said(case: _Case, kind: str, task: str, key: str) -> bool:
    """Says whether a push archives an object with the words of its end, as ours does, which looks before."""
    prefix = names.archive_of(kind, task)
    kept = [name for name, oid in case.after.new.items() if oid is not None and name.startswith(prefix)]
    return any(wire.fields(words(case.after, name) or "").get(key) for name in kept)


def _last(board: LocalBoard, task: str) -> tuple[int, str]:
    """Gives when the holder of a claim last showed that it lives, by this store's clock, and who moved the claim."""
    ref = names.claim(task)
    row = board.store.db.row(
        "SELECT ops.at, ops.actor FROM refs JOIN ops ON ops.op = refs.op WHERE refs.name = ?", (ref,)
    )
    beat = board.store.db.row("SELECT at FROM beats WHERE claim = ?", (board.ref(ref),))
    at = max(int(str(row[0])) if row else 0, int(str(beat[0])) if beat else 0)
    return at, str(row[1]) if row else ""


def _return(case: _Case, task: str, new: str | None) -> str:
    if new is None:
        return _put_away(case, names.returned(task))
    before = state.need(case.before, task)
    # what others merged may be on the target as another commit
    if case.before.ref(names.returned(task)) is not None and (before is None or before.state != "pending"):
        return "its task is returned already"
    if _claim_at(case.after, names.claim(task)) is None:
        return "its task is not claimed"
    found = state.need(case.after, task)
    target = found.spec.task.target if found is not None else "main"
    for branch in (names.branch(target), f"{names.HEADS}ropewalk/{task}"):
        head = case.after.ref(branch)
        if head is not None and lineage.ancestor(case.after.store, new, head):
            return ""
    return f"it is not on {target}"


def _put_away(case: _Case, ref: str) -> str:
    old = case.before.ref(ref)
    prefix = names.archived(ref, "")
    kept = any(name.startswith(prefix) and oid is not None for name, oid in case.after.new.items())
    return "" if old is None or kept else "what was said of a task is archived, not removed"


def _verdict(case: _Case, task: str, new: str | None) -> str:
    ref = names.verdict(task)
    if new is None:
        return _put_away(case, ref)
    found = wire.read_verdict(words(case.after, ref) or "")
    if found is None or found.fixed is None or found.task != task:
        return "it is no verdict of this task"
    held = _claim_at(case.after, names.claim(task))
    if held is None or held.attempt != found.attempt:
        return f"{found.attempt or 'nobody'} does not hold its claim"
    before = state.need(case.before, task)
    if before is not None and before.state in state.CLOSED:
        return "its task has ended"
    if found.fixed and case.after.ref(names.returned(task)) is None:
        return "it says fixed, and there is no return"
    return ""


def _review(case: _Case, task: str, reviewer: str, new: str | None) -> str:
    ref = names.review(task, reviewer)
    if new is None:
        return _put_away(case, ref)
    names.check_person(reviewer, "a reviewer's name")
    status = state.need(case.after, task)
    if status is None or status.returned is None:
        return "its task is not returned"
    if case.before.ref(ref) is not None and review.counts(case.before, status, reviewer):
        return f"{reviewer} said something already, and that stands"
    found = wire.read_review(words(case.after, ref) or "", task, reviewer)
    if found.agent and case.push.is_known and found.agent != case.push.agent:
        return f"it is by {found.agent}, and {case.push.agent} pushes it"
    return review.void(case.after, status, reviewer, found)


def _gate(case: _Case, task: str, new: str | None) -> str:
    ref = names.integrated(task)
    if new is None:
        return _put_away(case, ref)
    status = state.need(case.after, task)
    if status is None:
        return "there is no such task"
    found = wire.fields(words(case.after, ref) or "").get
    n, m = found("n"), found("m")
    wanted = (int(n), int(m)) if n.isdigit() and m.isdigit() and max(len(n), len(m)) < 4 else (None, None)
    return gate.missing(case.after, status, *wanted)
