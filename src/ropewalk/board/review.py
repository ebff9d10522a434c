"""Reviews: what others say of a returned change, and which of it counts.

A review stands for good: the same again changes nothing, and another one by the same reviewer is refused, unless the
first was of an earlier return, or can't be read. Every review changes the object of the task's claim, so that a gate
that counted before it came is refused by the board.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ropewalk.board import names, state, wire
from ropewalk.board.base import Board, Step, create, now_object, words
from ropewalk.board.state import Status
from ropewalk.board.wire import Object, Review
from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError, ClaimedError, ForbiddenError, InvalidError, NotFoundError
from ropewalk.core.ids import HEX40
from ropewalk.store.oplog import Move

_TRIES = 12
Vote = Literal["agree", "veto"]


class Reviewed(NamedTuple):
    """Is a review as it stands on the board: its ref and id, the commit it is of, and whether it is new."""

    ref: str
    id: str
    commit: str
    is_new: bool
    is_late: bool
    """Says that the gate had fired before."""


def review(
    board: Board,
    task: str,
    reviewer: str,
    outcome: Vote,
    actor: str,
    *,
    evidence: str = "",
    provider: str = "",
    note: str = "",
) -> Reviewed:
    """Puts a review of a task's returned commit on the board; `evidence` is that commit, or the ref that holds it.

    `actor` is who reviews, as family/instance. `E_FORBIDDEN` for whoever did the work, `E_INVALID` for a task that is
    not returned or evidence that is not its return, `E_CLAIMED` when this reviewer said something else before.
    """
    names.check_person(reviewer, "a reviewer's name")
    if outcome not in ("agree", "veto"):
        raise InvalidError(f"the outcome is {outcome!r}", hint="say agree or veto")
    if not provider.isprintable() or len(provider) > 100:
        raise InvalidError("the provider is not one line of at most 100 characters")
    board.refresh()
    for _ in range(_TRIES):
        status, commit = _returned(board, task)
        _check_evidence(task, evidence, commit)
        if worker := is_own(status, reviewer, actor):
            raise ForbiddenError(
                f"{task} is the work of {worker}: nobody reviews their own", task=task, reviewer=reviewer,
                hint="let another agent review it, under its own name",
            )  # fmt: skip
        ref = names.review(task, reviewer)
        text = wire.review_words(
            task, reviewer, outcome, names.returned(task), commit=commit, agent=actor, provider=provider, note=note
        )
        is_late = board.ref(names.integrated(task)) is not None
        old = board.ref(ref)
        moves: list[Move] = []
        if old is not None:
            before = wire.read_review(words(board, ref) or "", task, reviewer)
            if not before.problem and is_of(board, before, commit):
                if before.outcome != outcome:
                    raise ClaimedError(f"{reviewer} said {before.outcome} of {task} already, and that stands",
                                       hint="let another reviewer say the other", task=task, ref=ref)  # fmt: skip
                return Reviewed(ref, old, commit, False, is_late)
            moves.append(Move(names.archived(ref, f"att-earlier-{old[:6]}"), None, old))
        made = now_object(text)
        moves.append(create(ref, made) if old is None else Move(ref, old, made.id))
        objects = [made]
        if (told := touched(board, status, "reviewed")) is not None:
            moves.append(Move(names.claim(task), status.claim_id, told.id))
            objects.append(told)
        try:
            board.push(Step("review", actor, moves, objects))
            return Reviewed(ref, made.id, commit, True, is_late)
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
    raise mismatch


def touched(board: Board, status: Status, mark: str) -> Object | None:
    """Gives the claim's next object, which differs from the present one and keeps its date; None without a claim."""
    content = board.content(status.claim_id) if status.claim_id is not None else None
    if content is None or status.claim is None:
        return None
    count = len(status.claim.values_of(mark)) and status.claim.values_of(mark)[-1].split()[0]
    number = 1 + (int(count) if str(count).isdigit() else 0)
    text = wire.changed_claim(wire.message(content), **{mark: f"{number} {wire.stamp(clock.now())}"})
    return wire.make(text, wire.made_at(content))


def _returned(board: Board, task: str) -> tuple[Status, str]:
    status = state.need(board, task)
    if status is None:
        raise NotFoundError(f"there is no task {task!r} on the board", hint="`rw task list` shows them", task=task)
    if status.returned is None or status.state not in ("done", "pending"):
        raise InvalidError(
            f"{task} is {status.state}: there is no return to review", hint="a review is of a returned change",
            task=task, state=status.state,
        )  # fmt: skip
    return status, status.returned


def _check_evidence(task: str, evidence: str, commit: str) -> None:
    ref = names.returned(task)
    if evidence in ("", ref, ref.removeprefix("refs/"), commit, f"{ref}@{commit}"):
        return
    raise InvalidError(
        f"{evidence[:120]!r} is not the return of {task}", task=task, evidence=evidence[:200], expected=commit,
        hint=f"the evidence is {ref}, or the commit {commit} that it is at",
    )  # fmt: skip


def is_own(status: Status, reviewer: str, actor: str = "") -> str:
    """Gives the worker's name when a reviewer did the work: by name, or by its identity; else an empty text."""
    workers = {names.worker_of(one.attempt) for one in (status.claim, status.verdict) if one is not None}
    if status.verdict is not None and status.verdict.host:
        workers.add(status.verdict.host)
    agent = status.claim.agent if status.claim is not None else ""
    mine = {reviewer.casefold(), actor.casefold()} - {""}
    theirs = {worker.casefold(): worker for worker in workers} | {agent.casefold(): agent}
    # an identity is written with a slash, which no name may have
    theirs |= {agent.casefold().replace("/", mark): agent for mark in ".-_"}
    return next((theirs[one] for one in sorted(mine) if theirs.get(one)), "")


def is_of(board: Board, found: Review, commit: str) -> bool:
    """Says whether a review is of a commit that is the task's return now.

    One that names the ref alone, as flockwork's do, counts while the task was returned but once.
    """
    ref = names.returned(found.task)
    if HEX40.match(found.evidence):
        return found.evidence == commit
    place, _, at = found.evidence.partition("@")
    if place != ref:
        return False
    stated = at or found.commit
    return stated == commit if stated else not board.below(names.archive_of("tasks", found.task))


class Said(NamedTuple):
    """Is what was said of a task's return: the reviews that count, and (reviewer, why not) for the others."""

    agree: tuple[Review, ...]
    veto: tuple[Review, ...]
    invalid: tuple[tuple[str, str], ...]


def said(board: Board, status: Status) -> Said:
    """Gives the reviews of a task's present return, each identity counted once, as the board has them."""
    prefix = names.review(status.id, "")
    refs = board.below(prefix)
    board.prefetch(oid for _, oid in refs)
    agree: list[Review] = []
    veto: list[Review] = []
    invalid: list[tuple[str, str]] = []
    identities: dict[str, str] = {}
    for ref, oid in refs:
        reviewer = ref[len(prefix) :]
        content = board.content(oid)
        found = wire.read_review(wire.message(content), status.id, reviewer) if content is not None else None
        if why := void(board, status, reviewer, found):
            invalid.append((reviewer, why))
        elif found is not None and found.outcome == "veto":
            veto.append(found)
        elif found is not None:
            who = (found.agent or reviewer).casefold()
            if who in identities:
                invalid.append((reviewer, f"it is by {found.agent or reviewer}, as is the one of {identities[who]}"))
                continue
            identities[who] = reviewer
            agree.append(found)
    return Said(tuple(agree), tuple(veto), tuple(invalid))


def counts(board: Board, status: Status, reviewer: str) -> bool:
    """Says whether a reviewer's review of a task's present return is on the board."""
    text = words(board, names.review(status.id, reviewer))
    return text is not None and not void(board, status, reviewer, wire.read_review(text, status.id, reviewer))


def void(board: Board, status: Status, reviewer: str, found: Review | None) -> str:
    """Gives why a review does not count, empty when it does."""
    if found is None:
        return "its object can't be read"
    if found.problem:
        return found.problem
    if is_own(status, reviewer, found.agent):
        return "it is by the one who did the work"
    if status.returned is None or not is_of(board, found, status.returned):
        return f"its evidence {found.evidence[:120]!r} is not the present return"
    return ""
