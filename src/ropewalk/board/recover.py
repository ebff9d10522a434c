"""Recovery: ending attempts that others left, and the census of a board that says which those are.

An attempt is left when its holder is dead, as far as this host can tell, or when its claim has been seen unchanged
for a lease. What an object says of its date counts for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ropewalk.board import claim, holder, names, observe, state, tasks, tidy, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.state import Status
from ropewalk.board.wire import Object, Outcome
from ropewalk.core import clock
from ropewalk.core.errors import (
    CasMismatchError,
    ClaimedError,
    FencedError,
    InvalidError,
    NotFoundError,
    RopewalkError,
)
from ropewalk.store.oplog import Move

_TRIES = 4
_TRAILER = re.compile(rb"^Attempt:[ \t]*(att-\S+)\s*$", re.MULTILINE)
SECONDS = 600.0
"""Is how long a task's agent, and its check, may take where the task does not say."""


class Evicted(NamedTuple):
    """Is an attempt that was ended: whether its task is open again, or else closed as `infrastructure`."""

    task: str
    attempt: str
    requeued: bool


def evict(board: Board, status: Status, actor: str, why: str, heirs: int | None = None) -> Evicted:
    """Ends the attempt that a look found, whoever holds it; its task goes to an heir, or is closed where none is left.

    `E_FENCED` when the claim is not the observed one any more, `E_INVALID` when the task is not in progress.
    """
    if status.state in state.CLOSED or status.state == "pending" or (status.claim_id is None and not is_half(status)):
        raise InvalidError(
            f"{status.id} is {status.state}: nobody holds it", task=status.id, state=status.state,
            hint="`rw task list` shows what is claimed; `rw task reopen` opens what is closed",
        )  # fmt: skip
    for _ in range(_TRIES):
        step, done = _eviction(board, status, actor, why, heirs)
        try:
            board.push(step)
            return done
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
            if not _is_as_seen(board, status):
                raise FencedError(
                    f"{status.id} is not held by {done.attempt} any more", task=status.id, attempt=done.attempt
                ) from None
    raise mismatch


def is_half(status: Status) -> bool:
    """Says whether a task has a return or a verdict that do not make an end."""
    return status.state == "half"


def attempt_of(board: Board, status: Status) -> str:
    """Gives the attempt that holds a task, as its claim says, its verdict, or its return; else a made-up one."""
    if status.claim is not None:
        return status.claim.attempt
    if status.verdict is not None and names.is_attempt(status.verdict.attempt):
        return status.verdict.attempt
    content = board.content(status.returned) if status.returned is not None else None
    if content is not None and (found := _TRAILER.findall(content)):
        return str(found[-1].decode("utf-8", "replace"))
    seen = status.claim_id or status.returned or board.ref(names.verdict(status.id)) or "0" * 40
    return f"att-unknown-{seen[:6]}"


def _eviction(board: Board, status: Status, actor: str, why: str, heirs: int | None) -> tuple[Step, Evicted]:
    task = status.spec.task
    attempt = attempt_of(board, status)
    limit = task.limits.heirs if task.limits.heirs is not None else (claim.HEIRS if heirs is None else heirs)
    requeued = status.claim_id is None or _deaths(board, status) < limit
    moves = _put_away(board, status, attempt)
    moves += [Move(name, value, None) for name, value in tidy.belongings(board, task, attempt)]
    objects: list[Object] = []
    ended = f"evicted: {' '.join(why.split())[:500]}"
    if status.claim_id is not None:
        text = wire.changed_claim(_claim_words(board, status, attempt), ended=ended)
        if requeued:
            moves.append(Move(names.claim(task.id), status.claim_id, None))
            objects.append(now_object(text))
            moves.append(Move(_free(board, names.claim(task.id), attempt), None, objects[-1].id))
        else:
            objects.append(now_object(wire.changed_claim(text, closed=wire.stamp(clock.now()))))
            moves.append(Move(names.claim(task.id), status.claim_id, objects[-1].id))
            objects.append(now_object(_last_words(status, attempt, why)))
            verdict = board.ref(names.verdict(task.id))
            moves = [move for move in moves if move.name != names.verdict(task.id)]
            moves.append(Move(names.verdict(task.id), verdict, objects[-1].id))
    opened = board.ref(names.opened(task.id))
    if requeued:
        moves += claim.hidden(board, task)
        if opened is None:
            moves.append(Move(names.opened(task.id), None, status.spec_id))
    elif opened is not None:
        moves.append(Move(names.opened(task.id), opened, None))
    return Step("evict", actor, moves, objects), Evicted(task.id, attempt, requeued)


def _deaths(board: Board, status: Status) -> int:
    if status.verdict is None:
        return claim.deaths(board, status.id, claim.lives(board, status.id))
    # a verdict that is no end goes into the archive with its claim and looks there like the end of a life
    found = [board.content(oid) for _, oid in board.below(names.archive_of("claims", status.id))]
    return sum(wire.fields(wire.message(one or b"")).get("ended").startswith("evicted") for one in found)


def _put_away(board: Board, status: Status, attempt: str) -> list[Move]:
    """Gives the moves of a return and a verdict into the archive, as they are."""
    moves = []
    for ref in (names.returned(status.id), names.verdict(status.id)):
        if (value := board.ref(ref)) is not None:
            moves += [Move(ref, value, None), Move(_free(board, ref, attempt), None, value)]
    return moves


def _free(board: Board, ref: str, attempt: str) -> str:
    """Gives a place in the archive that is free: someone may have used an attempt's id twice."""
    place = names.archived(ref, attempt)
    number = 1
    while board.ref(place if number == 1 else f"{place}.{number}") is not None:
        number += 1
    return place if number == 1 else f"{place}.{number}"


def _claim_words(board: Board, status: Status, attempt: str) -> str:
    content = board.content(status.claim_id) if status.claim_id is not None else None
    return (
        wire.message(content) if content is not None and status.claim is not None else f"claim {status.id}\n{attempt}"
    )


def _last_words(status: Status, attempt: str, why: str) -> str:
    found = status.claim
    outcome = Outcome(
        False, 1, 1, (found.harness if found is not None else "") or "unknown",
        model=found.model if found is not None else "", reason="infrastructure", more={"note": f"evicted: {why}"},
    )  # fmt: skip
    return wire.verdict_words(status.id, attempt, names.worker_of(attempt), outcome)


def _is_as_seen(board: Board, status: Status) -> bool:
    return (
        board.ref(names.claim(status.id)) == status.claim_id
        and board.ref(names.returned(status.id)) == status.returned
        and (board.ref(names.verdict(status.id)) is None) == (status.verdict is None)
    )


# by hand


class Swept(msgspec.Struct, frozen=True):
    """Is what a sweep did, in flockwork's words: `archived` and `deleted` are full names of refs."""

    task: str
    att: str | None
    archived: list[str]
    deleted: list[str]


def sweep(board: Board, task: str, actor: str, *, force: bool = False) -> Swept:
    """Archives what is live of a task and opens it; nothing live is nothing done.

    `E_INVALID` for a task that is done and `E_CLAIMED` for one that is held, unless forced.
    """
    found = state.need(board, task)
    if found is None:
        raise NotFoundError(f"there is no task {task!r} on the board", hint="`rw task list` shows them", task=task)
    live = {ref: value for ref in (names.claim(task), names.returned(task), names.verdict(task))
            if (value := board.ref(ref)) is not None}  # fmt: skip
    if not live:
        return Swept(task, None, [], [])
    is_closed = found.state in state.CLOSED or found.state == "pending"
    if found.state in ("done", "pending") and not force:
        raise InvalidError(f"{task} is {found.state}", hint="--force sweeps it all the same", task=task)
    held = found.claim_id is not None and not is_closed
    if held and not force and not (found.claim is not None and holder.is_dead(found.claim.host)):
        raise ClaimedError(
            f"{task} is held by {found.why}", hint="--force ends the attempt; `rw board evict` counts it as a death",
            task=task,
        )  # fmt: skip
    attempt = attempt_of(board, found)
    moves: list[Move] = []
    objects: list[Object] = []
    for ref, value in live.items():
        kept = value
        if ref == names.verdict(task) and (said := tasks.reopened_verdict(board, found, actor)):
            objects += said
            kept = said[0].id
        if ref == names.claim(task) and held:
            objects.append(now_object(wire.changed_claim(_claim_words(board, found, attempt), ended="swept")))
            kept = objects[-1].id
        if ref == names.verdict(task) and is_closed and (said := tasks.reopened_verdict(board, found, actor)):
            objects += said
            kept = said[0].id
        moves += [Move(ref, value, None), Move(_free(board, ref, attempt), None, kept)]
    archived = [move.name for move in moves if move.old is None]
    moves += tasks.said_of(board, found, attempt)
    moves += [Move(name, value, None) for name, value in tidy.belongings(board, found.spec.task, attempt)]
    moves += claim.hidden(board, found.spec.task)
    if board.ref(names.opened(task)) is None:
        moves.append(Move(names.opened(task), None, found.spec_id))
    board.push(Step("sweep", actor, moves, objects))
    return Swept(task, attempt, archived, list(live))


class Relabeled(msgspec.Struct, frozen=True):
    """Is what a relabelling did, in flockwork's words."""

    relabeled: list[dict[str, str]]
    skipped: list[dict[str, str]]
    errors: list[dict[str, str]]


def relabel(board: Board, actor: str) -> Relabeled:
    """Renames what is in the archive under a marker that is no attempt, by the attempt that the object names."""
    done = Relabeled([], [], [])
    for ref, value in board.below(names.ARCHIVE):
        before, at, marker = ref.rpartition("@")
        if not at or names.is_attempt(marker):
            continue
        content = board.content(value) or b""
        last = wire.message(content).rstrip().rsplit("\n", 1)[-1].split()
        trailer = _TRAILER.findall(content)
        stated = wire.fields(wire.message(content)).get("attempt")
        word = last[-1] if last and names.is_attempt(last[-1]) else stated
        attempt = word or (trailer[-1].decode("utf-8", "replace") if trailer else "")
        if not names.is_attempt(attempt):
            done.skipped.append({"ref": ref, "reason": "it names no attempt"})
            continue
        new = f"{before}@{attempt}"
        if board.ref(new) is not None:
            done.skipped.append({"ref": ref, "reason": f"{new} is there already"})
            continue
        try:
            board.push(Step("relabel", actor, [Move(ref, value, None), Move(new, None, value)]))
            done.relabeled.append({"from": ref, "to": new, "sha": value})
        except RopewalkError as error:
            done.errors.append({"ref": ref, "err": error.message})
    return done


# the census


class Census(msgspec.Struct, frozen=True):
    """Is how the tasks of a board stand, and what was done about it.

    `swept` are attempts that were ended, `closed` the tasks among them that have no heir left; `tidied` are refs that
    belonged to nothing, or were missing.
    """

    healthy: list[str]
    fresh: list[str]
    aging: list[dict[str, Any]]
    swept: list[str]
    closed: list[str]
    anomalies: list[dict[str, str]]
    errors: list[dict[str, str]]
    tidied: list[str]


def ages(board: Board, statuses: Mapping[str, Status], poll: float) -> dict[str, float]:
    """Notes what a look saw, and gives for how many seconds each attempt in progress has been seen unchanged.

    All who look at a board of a host share what they saw, so each of them has to note the whole look by this.
    """
    marks = {s.id: mark(board, s) for s in statuses.values() if s.state == "claimed" or is_half(s)}
    return observe.observe(board.folder, marks, poll)


def mark(board: Board, status: Status) -> str:
    """Gives what changes whenever the holder of a task shows that it lives."""
    beats = board.beats(status.claim_id) if status.claim_id is not None else 0
    parts = (status.claim_id, str(beats), status.returned, board.ref(names.verdict(status.id)))
    return " ".join(part or "-" for part in parts)


def is_left(status: Status, age: float, beat_seconds: float) -> str | None:
    """Gives why an attempt is to be ended, None while it is not; `age` is for how long it was seen unchanged.

    A holder that lives on this host, but is silent, gets the time that its agent and its check may take on top.
    """
    found = status.claim
    dead = holder.is_dead(found.host) if found is not None and found.host else None
    if dead:
        return "its holder is dead"
    limit = lease(status, beat_seconds)
    if dead is False:
        limits = status.spec.task.limits
        limit += (limits.seconds or SECONDS) + (limits.check_seconds or SECONDS)
    return f"its claim was seen unchanged for {age:.0f} s" if age > limit else None


def lease(status: Status, beat_seconds: float) -> float:
    """Gives for how long the claim of a task may be unchanged, in seconds.

    One that names no process was made by hand or by an agent's tool, which beats when it thinks of it.
    """
    claim = status.claim
    return observe.lease(claim is not None and claim.ours and bool(claim.host), beat_seconds)


def reconcile(
    board: Board,
    observations: Mapping[str, float],
    actor: str,
    *,
    everything: bool = True,
    heirs: int | None = None,
) -> Census:
    """Ends the attempts that were left, tidies, and gives the census; what is closed stays closed.

    `observations` are ages as `ages` gives them. Without `everything` only what the index of open tasks names is
    looked at.
    """
    done = Census([], [], [], [], [], [], [], [])
    statuses = state.look(board, everything=everything)
    for status in statuses.values():
        if status.state in state.CLOSED or status.state == "pending":
            done.healthy.append(status.id)
        elif status.state == "claimed" or is_half(status):
            _attempt(board, status, observations.get(status.id, 0.0), actor, heirs, done)
    if everything:
        done.anomalies.extend({"task": task, "reason": reason} for task, reason in tidy.strays(board, statuses))
    try:
        done.tidied.extend(tidy.tidy(board, actor, everything=everything))
    except CasMismatchError as error:
        done.errors.append({"task": "", "err": f"tidying is for the next time: {error.message}"})
    return done


def _attempt(board: Board, status: Status, age: float, actor: str, heirs: int | None, done: Census) -> None:
    if status.claim_id is not None and status.claim is None:
        done.anomalies.append({"task": status.id, "reason": "its claim can't be read"})
    if status.claim_id is None:
        done.anomalies.append({"task": status.id, "reason": f"{status.why}, and no claim"})
    why = is_left(status, age, board.beat_seconds)
    if why is None:
        done.fresh.append(status.id)
        limit = lease(status, board.beat_seconds)
        if age > limit / 2:
            done.aging.append({"task": status.id, "age_s": round(age, 1), "threshold_s": limit / 2})
        return
    seen = mark(board, status)
    try:
        board.refresh()
        now = state.need(board, status.id)
        # whoever was asleep looks once more before it ends what others hold (F10)
        if now is None or mark(board, now) != seen or now.state != status.state:
            done.fresh.append(status.id)
            return
        ended = evict(board, now, actor, why, heirs)
    except FencedError:
        done.fresh.append(status.id)
        return
    except CasMismatchError as error:
        done.errors.append({"task": status.id, "err": error.message})
        return
    done.swept.append(ended.attempt)
    if not ended.requeued:
        done.closed.append(ended.task)


def recover(board: Board, poll: float, actor: str, *, everything: bool = False, heirs: int | None = None) -> Census:
    """Looks at a board, notes what it sees, and reconciles: what any worker does now and then.

    A quick look notes the open tasks alone, which is where the attempts are.
    """
    return reconcile(
        board, ages(board, state.look(board, everything=everything), poll), actor, everything=everything, heirs=heirs
    )
