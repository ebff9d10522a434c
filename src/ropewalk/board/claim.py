"""Claims: taking a task, holding it, giving it back, and closing it, each as one step that is fenced.

Whoever holds a claim changes it in every step that rests on it, because a git server checks a lease only on a ref
that the push changes (F1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ropewalk.board import names, wire, writes
from ropewalk.board.base import Board, Step, now_object, words
from ropewalk.board.state import Status, law, need
from ropewalk.board.wire import WHO, Object, Outcome
from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError, ClaimedError, FencedError
from ropewalk.plan.task import Task
from ropewalk.store.oplog import Move
from ropewalk.store.spool import Companion

_TRIES = 4
HEIRS = 1
"""Is how often a task is tried anew after a death by infrastructure."""


class Held(NamedTuple):
    """Is an attempt in progress: the claim's id and message, and `life`, how often the task was reopened before."""

    task: Task
    attempt: str
    worker: str
    actor: str
    claim: str
    words: str
    life: int

    @property
    def harness(self) -> str:
        """Gives the harness that the claim names."""
        return wire.fields(self.words).get("harness")

    @property
    def base(self) -> str:
        """Gives the commit that the claim names as its base; empty where it names none."""
        return wire.fields(self.words).get("base")


class As(NamedTuple):
    """Is who claims, and with what: `host` names the process, `actor` is its family/instance."""

    worker: str
    actor: str
    harness: str
    model: str = ""
    kind: str = ""
    host: str = ""


def take(board: Board, status: Status, who: As) -> Held:
    """Claims a task that is ready; `E_CLAIMED` when another has it, or its region or one of its paths is busy."""
    task = status.spec.task
    attempt = names.new_attempt(who.worker)
    life = lives(board, task.id)
    text = wire.claim_words(
        task.id, attempt, harness=who.harness, model=who.model or task.model, kind=who.kind, host=who.host,
        base=board.ref(names.branch(task.target)) or "", target=task.target, agent=who.actor, life=life,
    )  # fmt: skip
    text = wire.changed_claim(text, claimed=wire.stamp(clock.now()))
    made = now_object(text)
    moves = [Move(names.claim(task.id), None, made.id)]
    objects = [made]
    if task.region:
        lock = now_object(f"lock {task.region}\ntask: {task.id}\nattempt: {attempt}")
        moves.append(Move(names.lock(task.region), None, lock.id))
        objects.append(lock)
    if writes.of(task):
        lock = writes.lock(task, attempt)
        moves.append(Move(names.writes(task.id), None, lock.id))
        objects.append(lock)
    if status.is_held:
        moves += [Move(names.held(task.id), status.spec_id, None), Move(names.spec(task.id), None, status.spec_id)]
    expect = {} if status.is_held else {names.spec(task.id): status.spec_id}
    try:
        board.push(Step("claim", who.actor, moves, objects, expect, lambda: _check_writes(board, task)))
    except CasMismatchError as error:
        ref = str(error.details.get("ref", ""))
        why, reason = f"{task.id} was claimed by another", "claimed"
        if task.region and ref == names.lock(task.region):
            why, reason = f"region {task.region} is busy", "region"
        elif ref != names.claim(task.id):
            why, reason = f"{task.id} was changed meanwhile", "changed"
        raise ClaimedError(why, task=task.id, reason=reason, ref=ref) from None
    return Held(task, attempt, who.worker, who.actor, made.id, text, life)


def _check_writes(board: Board, task: Task) -> None:
    met = writes.locked(board).met(task) if writes.of(task) else None
    if met is not None:
        raise ClaimedError(f"{task.id} {met.words}", task=task.id, reason="paths", by=met.task, path=met.path)


def find(board: Board, task: str, attempt: str, actor: str) -> Held:
    """Gives the attempt in progress that an id names; `E_FENCED` when the claim is another's, or gone (law 9)."""
    status = need(board, task)
    claim = status.claim if status is not None else None
    if status is None or claim is None or status.claim_id is None or claim.attempt != attempt or claim.closed:
        raise FencedError(
            f"{task} is not claimed by {attempt}", task=task, attempt=attempt,
            holder=claim.attempt if claim is not None else None,
        )  # fmt: skip
    text = words(board, names.claim(task)) or ""
    return Held(status.spec.task, attempt, names.worker_of(attempt), actor, status.claim_id, text, claim.life)


def beat(board: Board, held: Held) -> Held:
    """Shows that the holder lives; gives the attempt with its claim as it is now. `E_FENCED` when it is lost."""
    new = board.beat({held.task.id: held.claim}, held.actor).get(held.task.id)
    if new is None:
        raise _lost(held)
    return held._replace(claim=new, words=words(board, names.claim(held.task.id)) or held.words)


def mark(board: Board, held: Held, name: str) -> Held:
    """Sets a time in a claim (`dispatch_started`, `work_started`, `work_done`, `stalled`); the first of each stays."""
    if wire.fields(held.words).get(name):
        return held
    text = wire.changed_claim(held.words, **{name: wire.stamp(clock.now())})
    made = now_object(text)
    step = Step("claim_mark", held.actor, [Move(names.claim(held.task.id), held.claim, made.id)], [made])
    push(board, held, lambda: step)
    return held._replace(claim=made.id, words=text)


def release(board: Board, held: Held, why: str = "released", tokens: str = "") -> None:
    """Gives a task back, as if it had not been claimed; the claim is archived and does not count as a death.

    `tokens` are what the attempt used, as verdicts tell it.
    """
    _archive(board, held, why, "release", tokens)


def die(board: Board, held: Held, outcome: Outcome, heirs: int | None = None) -> bool:
    """Ends an attempt that its surroundings killed; says whether an heir may try.

    When none may, the task is closed with the outcome's verdict, `fixed: false, reason: infrastructure`.
    """
    limit = held.task.limits.heirs if held.task.limits.heirs is not None else (HEIRS if heirs is None else heirs)
    if deaths(board, held.task.id, held.life) < limit:
        why = f"infrastructure: {outcome.reason}" if outcome.reason else "infrastructure"
        _archive(board, held, why, "requeue", outcome.more.get("tokens", ""))
        return True
    more = {"note": outcome.reason, **outcome.more}
    close(board, held, _infrastructure(outcome, more))
    return False


def _infrastructure(outcome: Outcome, more: dict[str, str]) -> Outcome:
    return msgspec.structs.replace(outcome, fixed=False, reason="infrastructure", more=more)


def close(board: Board, held: Held, outcome: Outcome, returned: str | None = None) -> None:
    """Publishes an attempt's verdict, with its return where there is one, and a new closing claim, as one step."""
    closing, verdict = closing_object(held), now_object(verdict_words(held, outcome))
    task = held.task.id
    moves = [Move(names.claim(task), held.claim, closing.id), Move(names.verdict(task), None, verdict.id)]
    if returned is not None:
        moves.append(Move(names.returned(task), None, returned))
    push(
        board, held, lambda: Step("verdict", held.actor, [*moves, *freed(board, held)], [closing, verdict])
    )  # fmt: skip


def companions(board: Board, held: Held, outcome: Outcome) -> list[Companion]:
    """Gives what moves with the land of an attempt's change on a local board: return, verdict, closing claim."""
    task = held.task.id
    closed = wire.changed_claim(held.words, closed=wire.stamp(clock.now()))
    found = [
        Companion(names.claim(task), held.claim, closed, WHO),
        Companion(names.returned(task), None),
        Companion(names.verdict(task), None, verdict_words(held, outcome), WHO),
    ]
    return found + [Companion(move.name, move.old, "") for move in freed(board, held)]


def verdict_words(held: Held, outcome: Outcome) -> str:
    """Gives the message of an attempt's verdict."""
    return wire.verdict_words(held.task.id, held.attempt, held.worker, outcome)


def closing_object(held: Held) -> Object:
    """Gives the last object of a claim; it differs from the one before, or nothing would be fenced (F2)."""
    return now_object(wire.changed_claim(held.words, closed=wire.stamp(clock.now())))


def freed(board: Board, held: Held) -> list[Move]:
    """Gives the moves by which a task that ends leaves the index of open tasks, its region and its paths."""
    opened = names.opened(held.task.id)
    left = [Move(opened, value, None)] if (value := board.ref(opened)) is not None else []
    return left + unlocked(board, held.task.id, held.task.region, held.attempt)


def unlocked(board: Board, task: str, region: str, attempt: str) -> list[Move]:
    """Gives the moves by which an attempt gives up its region and its paths; none for what another holds."""
    found = []
    for ref in (names.lock(region) if region else "", names.writes(task)):
        value = board.ref(ref) if ref else None
        if value is not None and wire.fields(words(board, ref) or "").get("attempt") == attempt:
            found.append(Move(ref, value, None))
    return found


def special(task: Task) -> bool:
    """Says whether a task asks, beside its needs, for what flockwork's workers do not read (F8)."""
    return bool(task.region or task.owns or task.modifies or task.target != "main")


def hidden(board: Board, task: Task) -> list[Move]:
    """Gives the moves by which a task that is open again is held back from flockwork's workers, where it has to be."""
    spec = board.ref(names.spec(task.id))
    if spec is None or not special(task) or not law(board).mixed:
        return []
    return [Move(names.spec(task.id), spec, None), Move(names.held(task.id), None, spec)]


def _archive(board: Board, held: Held, why: str, kind: str, tokens: str) -> None:
    task = held.task
    used = {"tokens": tokens} if tokens else {}
    ended = now_object(wire.changed_claim(held.words, ended=why, **used))

    def build() -> Step:
        moves = [Move(names.claim(task.id), held.claim, None),
                 Move(names.archived(names.claim(task.id), held.attempt), None, ended.id)]  # fmt: skip
        moves += [*unlocked(board, task.id, task.region, held.attempt), *hidden(board, task)]
        return Step(kind, held.actor, moves, [ended])

    push(board, held, build)


def push(board: Board, held: Held, build: Callable[[], Step]) -> None:
    """Does a step of a claim's holder; what else moved meanwhile is looked at again, the claim itself is lost."""
    for _ in range(_TRIES):
        try:
            return board.push(build())
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
            if board.ref(names.claim(held.task.id)) != held.claim:
                raise _lost(held) from None
    raise mismatch


def _lost(held: Held) -> FencedError:
    return FencedError(f"{held.task.id} is not claimed by {held.attempt} any more", task=held.task.id,
                       attempt=held.attempt)  # fmt: skip


# what went before


def lives(board: Board, task: str) -> int:
    """Gives how often a task was closed and opened again."""
    before = names.archive_of("verdicts", task)
    return sum("@" not in name[len(before) :] for name, _ in board.below(before))  # reviews have another one


def deaths(board: Board, task: str, life: int) -> int:
    """Gives how many attempts of a task's present life were killed by their surroundings."""
    closed = {name.rsplit("@", 1)[1] for name, _ in board.below(names.archive_of("verdicts", task))}
    found = 0
    for name, oid in board.below(names.archive_of("claims", task)):
        if name.rsplit("@", 1)[1] in closed:
            continue
        content = board.content(oid)
        text = wire.message(content) if content is not None else ""
        claim = wire.read_claim(text)
        ended = wire.fields(text).get("ended")
        if (claim.life if claim is not None else 0) == life and not ended.startswith("released"):
            found += 1
    return found
