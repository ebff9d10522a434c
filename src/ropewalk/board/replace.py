"""Replacing: tasks of a run that failed, and those that wait for them, make way for others in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ropewalk.board import claim, names, runs, state, tasks, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.claim import As
from ropewalk.board.runs import Replan, Run
from ropewalk.board.state import Status
from ropewalk.board.wire import Object, Outcome
from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError
from ropewalk.plan.task import Task
from ropewalk.store.oplog import Move


def replace(
    board: Board, run: Run, done: Replan, old: Sequence[Status], new: Sequence[Task], who: As,
    tell: Callable[[str], None] = lambda line: None,
) -> Run:  # fmt: skip
    """Puts new tasks into the place of old ones, and notes it in the run's record; gives the record.

    What ran is archived, what did not is closed, each with the reason. Tasks of others that need an old one need what
    stands for it. `E_CAS_MISMATCH` where the run or one of its old tasks is not as it was: nothing is done then.
    """
    short = [runs.short(run.id, task.id) for task in new]
    moved, record = runs.replanned(board, run, done, short)
    moves, objects = [moved], [record]
    note = f"replaced by {', '.join(short)}"
    for status in old:
        closing, made = _closed(board, status, who, note)
        moves += closing
        objects += made
    gone = {status.id for status in old}
    more, made = _rewired(board, gone, _stand_ins(gone, new))
    first = Step("replan", who.actor, [*moves, *more], [*objects, *made])
    tasks.add(board, new, who.actor, first=first, tell=tell)
    board.refresh()
    return runs.need(board, run.id)


def failed(board: Board, run: Run, done: Replan, actor: str) -> Run:
    """Notes in a run's record that no tasks came of a re-plan; gives the record."""
    move, made = runs.replanned(board, run, done)
    try:
        board.push(Step("replan", actor, [move], [made]))
    except CasMismatchError:
        pass  # somebody changed the run meanwhile, and it is asked anew when it is driven again
    board.refresh()
    return runs.need(board, run.id)


def _closed(board: Board, found: Status, who: As, note: str) -> tuple[list[Move], list[Object]]:
    """Gives the moves that close a task as cancelled, whether it had failed or was still waiting."""
    task = found.id
    attempt = names.new_attempt(who.worker)
    outcome = Outcome(False, 0, 0, who.harness, reason="cancelled", more={"note": note})
    text = wire.claim_words(task, attempt, harness=who.harness, host=who.host, life=claim.lives(board, task))
    closed = now_object(wire.changed_claim(text, closed=wire.stamp(clock.now())))
    verdict = now_object(wire.verdict_words(task, attempt, who.worker, outcome))
    objects = [closed, verdict]
    moves: list[Move] = []
    was = (found.verdict.attempt if found.verdict is not None else "") or (
        found.claim.attempt if found.claim is not None else "att-unknown-000000"
    )
    kept = tasks.reopened_verdict(board, found, who.actor)
    objects += kept
    for ref, new in ((names.claim(task), closed.id), (names.verdict(task), verdict.id)):
        value = board.ref(ref)
        moves.append(Move(ref, value, new))
        if value is not None:
            value = kept[0].id if kept and ref == names.verdict(task) else value
            moves.append(Move(names.archived(ref, was), None, value))
    moves += tasks.said_of(board, found, was)
    if (opened := board.ref(names.opened(task))) is not None:
        moves.append(Move(names.opened(task), opened, None))
    if found.is_held:
        moves += [Move(names.held(task), found.spec_id, None), Move(names.spec(task), None, found.spec_id)]
    return moves, objects


def _stand_ins(gone: set[str], new: Sequence[Task]) -> Mapping[str, tuple[str, ...]]:
    """Gives what stands for each task that is gone: the new ones that none of the new ones needs."""
    inner = {need for task in new for need in task.needs}
    ends = tuple(task.id for task in new if task.id not in inner)
    return dict.fromkeys(gone, ends)


def _rewired(
    board: Board, gone: set[str], instead: Mapping[str, tuple[str, ...]]
) -> tuple[list[Move], list[Object]]:  # fmt: skip
    """Gives the moves by which open tasks beside a run need what stands for what is gone."""
    moves: list[Move] = []
    objects: list[Object] = []
    for status in state.look(board, everything=True).values():
        task = status.spec.task
        if status.id in gone or status.state in state.CLOSED or status.claim_id is not None or status.spec.problems:
            continue
        if not gone.intersection(task.needs):
            continue
        needs = dict.fromkeys(n for need in task.needs for n in instead.get(need, (need,)))
        made = now_object(wire.spec_words(msgspec.structs.replace(task, needs=tuple(needs))))
        ref = names.held(status.id) if status.is_held else names.spec(status.id)
        moves.append(Move(ref, status.spec_id, made.id))
        if (opened := board.ref(names.opened(status.id))) is not None:
            moves.append(Move(names.opened(status.id), opened, made.id))
        objects.append(made)
    return moves, objects
