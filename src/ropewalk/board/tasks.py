"""Tasks on a board: adding them, all or none, and changing, cancelling and reopening those that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ropewalk.board import claim, names, state, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.claim import As
from ropewalk.board.state import Status
from ropewalk.board.wire import Object, Outcome
from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError, ClaimedError, InvalidError, NotFoundError
from ropewalk.plan.task import Task, check_all
from ropewalk.store.oplog import Move

AT_ONCE = 1000
"""Is how many tasks go to a server in one push; git's time for it grows with the square of it over HTTP (F14)."""

_TRIES = 4
_RESTORE = "`rw board restore {}` brings it back"


def init(board: Board, actor: str, *, mixed: bool) -> wire.Law:
    """Gives a board its law; the same again changes nothing. `E_CAS_MISMATCH` when another law is there."""
    made = now_object(wire.law_words(wire.LAW, mixed=mixed))
    old = board.ref(names.LAW)
    if old is None:
        board.push(Step("board_init", actor, [Move(names.LAW, None, made.id)], [made]))
        return wire.Law(wire.LAW, mixed)
    found = state.law(board)
    if found == wire.Law(wire.LAW, mixed):
        return found
    if any(s.state == "claimed" for s in state.look(board, everything=True).values()):
        raise ClaimedError("the law does not change while tasks are claimed", hint="evict the claims first (F27)")
    board.push(Step("board_law", actor, [Move(names.LAW, old, made.id)], [made]))
    return wire.Law(wire.LAW, mixed)


def add(
    board: Board,
    tasks: Sequence[Task],
    actor: str,
    *,
    update: bool = False,
    first: Step | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[list[str], list[str]]:
    """Puts tasks on a board, all or none; gives the names of (new ones, changed ones).

    What `first` moves is moved with them, and is there before any of them is open.

    With `update` a task that is there and not claimed gets its new spec; without it that is `E_INVALID`. The same
    spec again is no change. Above `AT_ONCE` the tasks wait in a batch that is opened at its end.
    """
    if update:
        board.refresh()  # a server does not hold an update against a claim that it does not move
    for _ in range(_TRIES):
        moves, objects, new, changed = _wanted(board, tasks, update=update)
        if not moves:
            return [], []
        if first is not None:
            moves, objects = [*first.moves, *moves], [*first.objects, *objects]
        unclaimed = {names.claim(task): None for task in changed}
        try:
            _push_all(board, Step("task_add", actor, moves, objects, unclaimed), tell)
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
            continue
        return new, changed
    raise mismatch


def _wanted(
    board: Board, tasks: Sequence[Task], *, update: bool
) -> tuple[list[Move], list[Object], list[str], list[str]]:
    there = state.look(board, only=[t.id for t in tasks])
    wanted = {need for task in tasks for need in task.needs}
    targets = {name: s.spec.task.target for name, s in state.look(board, only=wanted).items()}
    lost = wanted - targets.keys() - {task.id for task in tasks}
    if lost and (away := is_compacted(board, sorted(lost))):
        raise InvalidError(f"{away[0]} is needed, and was compacted", hint=_RESTORE.format(" ".join(away)), tasks=away)
    check_all(tasks, targets)
    law = state.law(board)
    moves: list[Move] = []
    objects: list[Object] = []
    new: list[str] = []
    changed: list[str] = []
    found: list[str] = []
    for task in tasks:
        text = wire.spec_words(task)
        old = there.get(task.id)
        ref = names.held(task.id) if law.mixed and is_special(task) else names.spec(task.id)
        if old is None:
            made = now_object(text)
            moves += [Move(ref, None, made.id), Move(names.opened(task.id), None, made.id)]
            new.append(task.id)
        elif wire.message(board.content(old.spec_id) or b"").rstrip() == text.rstrip():
            continue
        elif not update:
            found.append(f"{task.id} is on the board already, with another spec")
            continue
        elif old.claim_id is not None or old.state in state.CLOSED:
            found.append(f"{task.id} is {old.state}, so its spec stays")
            continue
        else:
            made = now_object(text)
            moves += _replaced(board, old, ref, made)
            changed.append(task.id)
        objects.append(made)
    if found:
        raise InvalidError(
            f"the tasks can't be added: {found[0]}", problems=found[:100],
            hint="--update changes what is not claimed yet; `rw task reopen` opens what is closed",
        )  # fmt: skip
    return moves, objects, new, changed


def is_special(task: Task) -> bool:
    """Says whether flockwork's workers would do a task wrongly, because they do not read what it asks for (F8)."""
    return bool(task.needs) or claim.special(task)


def _replaced(board: Board, old: Status, ref: str, made: Object) -> list[Move]:
    was = names.held(old.id) if old.is_held else names.spec(old.id)
    opened = board.ref(names.opened(old.id))
    moves = [Move(names.opened(old.id), opened, made.id)]
    if was == ref:
        return [*moves, Move(ref, old.spec_id, made.id)]
    return [*moves, Move(was, old.spec_id, None), Move(ref, None, made.id)]


def _push_all(board: Board, step: Step, tell: Callable[[str], None]) -> None:
    """Does a step, in parts where it is too large for one push: no task of a part is open before all are there."""
    limit = board.most_moves
    if not limit or len(step.moves) <= limit:
        return board.push(step)
    specs = [move for move in step.moves if not move.name.startswith(names.OPEN)]
    last = [move for move in step.moves if move.name.startswith(names.OPEN)]
    objects = {made.id: made for made in step.objects}
    for part in (specs, last):
        for start in range(0, len(part), limit):
            moves = part[start : start + limit]
            board.push(Step(step.kind, step.actor, moves, [objects[m.new] for m in moves if m.new in objects]))
            tell(f"{min(start + limit, len(part))} of {len(part)} {'specs' if part is specs else 'tasks open'}")


def cancel(board: Board, task: str, who: As, note: str = "") -> Status:
    """Closes a task that nobody holds; its verdict is `fixed: false, reason: cancelled`. `E_CLAIMED` when one does.

    The claim that a verdict needs is made and closed in the same step.
    """
    found = _need(board, task)
    if found.state in state.CLOSED or found.state in ("half", "pending"):
        if found.state == "cancelled":
            return found
        raise InvalidError(
            f"{task} is {found.state} already", task=task, state=found.state, hint="`rw task reopen` opens it first"
        )
    if found.claim_id is not None:
        raise ClaimedError(f"{task} is claimed by {found.why}", hint=f"`rw board evict {task}` first", task=task)
    attempt = names.new_attempt(who.worker)
    outcome = Outcome(False, 0, 0, who.harness, reason="cancelled", more={"note": note})
    text = wire.claim_words(task, attempt, harness=who.harness, host=who.host, life=claim.lives(board, task))
    closed = now_object(wire.changed_claim(text, closed=wire.stamp(clock.now())))
    verdict = now_object(wire.verdict_words(task, attempt, who.worker, outcome))
    moves = [Move(names.claim(task), None, closed.id), Move(names.verdict(task), None, verdict.id)]
    if (opened := board.ref(names.opened(task))) is not None:
        moves.append(Move(names.opened(task), opened, None))
    if found.is_held:
        moves += [Move(names.held(task), found.spec_id, None), Move(names.spec(task), None, found.spec_id)]
    try:
        board.push(Step("cancel", who.actor, moves, [closed, verdict]))
    except CasMismatchError as error:
        raise ClaimedError(
            f"{task} was claimed or changed by another meanwhile", task=task, ref=error.details.get("ref")
        ) from None
    board.refresh()
    return _need(board, task)


def reopen(board: Board, tasks: Iterable[str], actor: str, *, done: bool = False) -> list[str]:
    """Opens closed tasks again, all or none; what was said of them is archived. Gives those that were closed.

    `E_INVALID` for one that is done, unless `done` allows it.
    """
    listed = list(dict.fromkeys(tasks))
    for _ in range(_TRIES):
        moves: list[Move] = []
        objects: list[Object] = []
        opened = []
        for task in listed:
            found = _need(board, task)
            if found.state not in state.CLOSED and found.state != "half":
                continue
            if found.state == "done" and not done:
                raise InvalidError(f"{task} is done", hint="--done opens it all the same", task=task)
            kept = reopened_verdict(board, found, actor)
            objects += kept
            moves += _archived(board, found, kept)
            opened.append(task)
        if not moves:
            return []
        try:
            board.push(Step("reopen", actor, moves, objects))
            return opened
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
    raise mismatch


def reopened_verdict(board: Board, found: Status, actor: str) -> list[Object]:
    """Gives a task's verdict as an archive keeps it: it says who opened the task again, which flockwork's never do."""
    words = board.content(board.ref(names.verdict(found.id)) or "") if found.verdict is not None else None
    text = wire.message(words).rstrip() if words is not None else ""
    return [now_object(f"{text}\nreopened_by: {wire.one_line(actor)}")] if text else []


def _archived(board: Board, found: Status, verdict: Sequence[Object]) -> list[Move]:
    attempt = (found.verdict.attempt if found.verdict is not None else "") or (
        found.claim.attempt if found.claim is not None else "att-unknown-000000"
    )
    moves = []
    for ref in (names.claim(found.id), names.returned(found.id), names.verdict(found.id)):
        if (value := board.ref(ref)) is not None:
            kept = verdict[0].id if verdict and ref == names.verdict(found.id) else value
            moves += [Move(ref, value, None), Move(names.archived(ref, attempt), None, kept)]
    moves += said_of(board, found, attempt)
    moves += claim.hidden(board, found.spec.task)
    opened = board.ref(names.opened(found.id))
    return moves if opened is not None else [*moves, Move(names.opened(found.id), None, found.spec_id)]


def said_of(board: Board, found: Status, attempt: str) -> list[Move]:
    """Gives the moves by which the reviews of an attempt, and its gate, go into the archive."""
    moves = []
    fired = names.integrated(found.id)
    for ref, value in [(fired, board.ref(fired)), *board.below(names.review(found.id, ""))]:
        if value is not None:
            moves += [Move(ref, value, None), Move(names.archived(ref, attempt), None, value)]
    return moves


def _need(board: Board, task: str) -> Status:
    found = state.need(board, task)
    if found is None and is_compacted(board, [task]):
        raise NotFoundError(f"{task} ended long ago and was compacted", hint=_RESTORE.format(task), task=task)
    if found is None:
        raise NotFoundError(f"there is no task {task!r} on the board", hint="`rw task list` shows them", task=task)
    return found


def is_compacted(board: Board, tasks: Iterable[str]) -> list[str]:
    """Gives those of some tasks that were closed and compacted, and are not on the board since."""
    from ropewalk.board import compact

    past = compact.history(board).refs
    return [task for task in tasks if names.spec(task) in past or names.held(task) in past]
