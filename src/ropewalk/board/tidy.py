"""Tidying: refs of a board that belong to nothing any more, or are missing, and how each is put right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ropewalk.board import names, state, wire
from ropewalk.board.base import Board, Step, words
from ropewalk.board.claim import special
from ropewalk.board.state import Status
from ropewalk.plan.task import Task
from ropewalk.store.oplog import Move

AT_ONCE = 500
"""Is how many moves of tidying go in one step."""


def belongings(board: Board, task: Task, attempt: str) -> list[tuple[str, str]]:
    """Gives (ref, id) of what an attempt holds beside its claim: region, paths, places in landing queues, leases."""
    found = []
    for lock in (names.lock(task.region) if task.region else "", names.writes(task.id)):
        value = board.ref(lock) if lock else None
        if value is not None and _holder(board, lock) in (attempt, ""):
            found.append((lock, value))
    found += [(name, value) for name, value in board.below(names.QUEUE) if queued(name) == task.id]
    leases = board.below(names.landing_lock(""))
    return found + [(name, value) for name, value in leases if _holder(board, name) == attempt]


def queued(ref: str) -> str:
    """Gives the task of a place in a landing queue, `…/TARGET/SEQ.TASK`; empty for another ref."""
    parts = ref.removeprefix(names.QUEUE).split("/")
    for number in range(1, len(parts)):
        seq, dot, rest = parts[number].partition(".")
        if dot and seq.isdigit() and len(seq) > 5:
            return "/".join([rest, *parts[number + 1 :]])
    return ""


def _holder(board: Board, ref: str) -> str:
    """Gives the attempt that a lock names, empty when it names none."""
    text = words(board, ref) or ""
    stated = wire.fields(text).get("attempt")
    last = text.split()[-1:] or [""]
    return stated or (last[0] if names.is_attempt(last[0]) else "")


def strays(board: Board, statuses: Mapping[str, Status]) -> Iterator[tuple[str, str]]:
    """Gives (task, what is wrong) for claims, returns, verdicts and gates without a task, and gates that are void."""
    for prefix, what in ((names.CLAIMS, "claim"), (names.RETURNS, "return"), (names.VERDICTS, "verdict")):
        for name, _ in board.below(prefix):
            task = name[len(prefix) :]
            if task not in statuses and "@" not in task:
                yield task, f"there is a {what}, and no spec"
    for name, _ in board.below(names.INTEGRATED):
        task = name[len(names.INTEGRATED) :]
        if task not in statuses or statuses[task].state != "done":
            how = statuses[task].state if task in statuses else "not on the board"
            yield task, f"its gate fired, and it is {how}"


def tidy(board: Board, actor: str, *, everything: bool) -> list[str]:
    """Puts right what is out of place; gives the refs. What looks orphaned counts only if a second look says so."""
    moves = _wanted(board, everything=everything)
    if not moves:
        return []
    # a look may see the lock of a claim that is just being made, and not the claim yet
    board.refresh()
    again = _wanted(board, everything=everything)
    moves = [move for move in moves if move in again]
    size = min(AT_ONCE, board.most_moves or AT_ONCE)
    # the two moves of a released spec stay in one step
    for start in range(0, len(moves), size - size % 2):
        board.push(Step("tidy", actor, moves[start : start + size - size % 2]))
    return sorted(move.name for move in moves)


def _wanted(board: Board, *, everything: bool) -> list[Move]:
    statuses = state.look(board, everything=everything)
    moves = list(_released(board, statuses)) if state.law(board).mixed else []
    for name, value in board.below(names.OPEN):
        task = name[len(names.OPEN) :]
        found = statuses.get(task) or state.need(board, task)
        if found is None or found.state in state.CLOSED:
            moves.append(Move(name, value, None))
    for status in statuses.values():
        if status.state not in state.CLOSED and board.ref(names.opened(status.id)) is None:
            moves.append(Move(names.opened(status.id), None, status.spec_id))
    return moves + list(_orphans(board))


def _released(board: Board, statuses: Mapping[str, Status]) -> Iterator[Move]:
    """Gives the moves by which flockwork's workers may see tasks that only had to wait (F8)."""
    for status in statuses.values():
        if status.is_held and status.state == "ready" and not special(status.spec.task):
            yield Move(names.held(status.id), status.spec_id, None)
            yield Move(names.spec(status.id), None, status.spec_id)


def _orphans(board: Board) -> Iterator[Move]:
    for name, value in board.below(names.LOCKS):
        attempt = _holder(board, name)
        task = wire.fields(words(board, name) or "").get("task")
        if attempt and task and _live(board, task) != attempt:
            yield Move(name, value, None)
    for name, value in board.below(names.QUEUE):
        if (task := queued(name)) and _live(board, task) is None:
            yield Move(name, value, None)


def _live(board: Board, task: str) -> str | None:
    """Gives the attempt that holds a task, None when none does."""
    text = words(board, names.claim(task))
    found = wire.read_claim(text) if text is not None else None
    return found.attempt if found is not None and not found.closed else None
