"""Gates: n of m reviewers that agree make a returned change an integrated one.

Everything is counted from the board. The step that fires changes the claim's object too, and so does each review, so
that a review or a reopening after the count makes it fail and be counted anew. What git cannot fence is a veto of
flockwork's own reviewer, which comes as one new ref in the moment between the count and the push.
"""

from __future__ import annotations

from typing import NamedTuple

from ropewalk.board import names, review, state, wire
from ropewalk.board.base import Board, Step, now_object, words
from ropewalk.board.state import Status
from ropewalk.core.errors import CasMismatchError, InvalidError, NotFoundError
from ropewalk.plan.task import Gate
from ropewalk.store.oplog import Move

_TRIES = 12


class Gated(NamedTuple):
    """Is how a task stands at its gate; `why` says what is missing when it is not integrated.

    `fired` says that it was integrated by this call, `integrated` that it is. `invalid` are (reviewer, why it does not
    count).
    """

    task: str
    n: int
    m: int
    agree: tuple[str, ...]
    veto: tuple[str, ...]
    invalid: tuple[tuple[str, str], ...]
    fired: bool
    integrated: bool
    commit: str
    why: str


def gate(
    board: Board, task: str, actor: str, *, n: int | None = None, m: int | None = None, providers: bool = False
) -> Gated:
    """Counts the reviews of a task, and integrates it when they suffice; what the spec says of the gate wins.

    `E_INVALID` when neither the spec nor the caller says how many are wanted, or they ask for what can't be.
    """
    board.refresh()
    for _ in range(_TRIES):
        status = state.need(board, task)
        if status is None:
            raise NotFoundError(f"there is no task {task!r} on the board", hint="`rw task list` shows them", task=task)
        wanted = _wanted(status, n, m, providers)
        found = _counted(board, status, wanted)
        if found.why or found.integrated:
            return found
        try:
            board.push(_fire(board, status, found, actor))
            return found._replace(fired=True, integrated=True)
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
    raise mismatch


def _wanted(status: Status, n: int | None, m: int | None, providers: bool) -> Gate:
    stated = status.spec.task.gate
    if stated is not None:
        return Gate(stated.n, stated.m, stated.providers or providers)
    if wrong := [one for one in status.spec.problems if one.startswith("its gate")]:
        raise InvalidError(f"{status.id}: {wrong[0]}", hint="1 ≤ n ≤ m ≤ 100", task=status.id)
    if n is None:
        raise InvalidError(
            f"{status.id} has no gate", hint="its spec wants lines `n:` and `m:`, or say how many have to agree",
            task=status.id,
        )  # fmt: skip
    most = n if m is None else m
    if not 1 <= n <= most <= 100:
        raise InvalidError(f"a gate of {n} of {most} can't be", hint="1 ≤ n ≤ m ≤ 100", task=status.id)
    return Gate(n, most, providers)


def missing(board: Board, status: Status, n: int | None, m: int | None) -> str:
    """Gives why a task's gate may not fire, empty when it may; n and m count where its spec says nothing."""
    wanted = _wanted(status, n, m, False)
    return _blocked(board, status) or _missing(review.said(board, status), wanted)


def _counted(board: Board, status: Status, wanted: Gate) -> Gated:
    said = review.said(board, status)
    commit = status.returned or ""
    is_fired = bool(commit) and integrated_commit(words(board, names.integrated(status.id)), status.id) == commit
    why = _blocked(board, status)
    if not why and not is_fired:
        why = _missing(said, wanted)
    return Gated(
        status.id, wanted.n, wanted.m, tuple(one.reviewer for one in said.agree),
        tuple(one.reviewer for one in said.veto), said.invalid, False, is_fired and not why, commit, why,
    )  # fmt: skip


def _blocked(board: Board, status: Status) -> str:
    """Gives why a task can't be integrated whatever its reviewers say."""
    if status.state != "done":
        return f"{status.id} is {status.state}"
    if state.Dependencies(board).unmet((status.id,), status.spec.task.target):
        return f"{status.id} is not on {status.spec.task.target} by the attempt that holds its claim"
    return ""


def _missing(said: review.Said, wanted: Gate) -> str:
    if said.veto:
        return f"{said.veto[0].reviewer} vetoes"
    if len(said.agree) < wanted.n:
        return f"{len(said.agree)} of {wanted.n} agree"
    providers = {one.provider.casefold() for one in said.agree} - {""}
    if wanted.providers and len(providers) < wanted.n:
        return f"those who agree are of {len(providers)} providers, not of {wanted.n}"
    return ""


def integrated_commit(text: str | None, task: str) -> str | None:
    """Gives the commit that a fired gate is of, as its message says; None when it is no such message."""
    found = wire.fields(text or "")
    if found.first != "integrated" or found.get("task") != task:
        return None
    at = found.get("evidence").partition("@")[2] or found.get("evidence")
    return found.get("commit") or at


def _fire(board: Board, status: Status, found: Gated, actor: str) -> Step:
    ref = names.integrated(status.id)
    text = wire.integrated_words(
        status.id, found.n, found.m, found.agree, names.returned(status.id), found.commit
    )  # fmt: skip
    made = now_object(text)
    objects = [made]
    old = board.ref(ref)
    moves: list[Move] = [Move(ref, old, made.id)]
    if old is not None:
        moves.append(Move(names.archived(ref, f"att-earlier-{old[:6]}"), None, old))
    told = review.touched(board, status, "gated")
    if told is not None:
        moves.append(Move(names.claim(status.id), status.claim_id, told.id))
        objects.append(told)
    return Step("gate", actor, moves, objects)
