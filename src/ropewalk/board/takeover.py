"""Takeovers: going on with an attempt whose holder is dead, under its claim, so that what it did so far is not lost.

Whoever takes one over changes the claim, in a step that rests on the claim as it was seen: of two that want it one gets
it, and a holder that was only thought dead is refused whatever it does next.
"""

from __future__ import annotations

from ropewalk.board import holder, names, tidy, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.claim import As, Held
from ropewalk.board.state import Status
from ropewalk.core.errors import CasMismatchError, FencedError
from ropewalk.store.oplog import Move

MOST = 3
"""Is how often an attempt is taken over in one turn; one that takes its workers along more often is ended, as a death.

An attempt that gets on to a further turn between the deaths of its workers is not what kills them.
"""

_COUNT, _TURN = "taken_over", "taken_in_turn"


def is_open(status: Status, turn: int) -> bool:
    """Says whether an attempt in a turn may be taken over: its holder was a process of this host and boot, and died."""
    found = status.claim
    if status.state != "claimed" or found is None or found.closed or not found.ours:
        return False
    return holder.died_here(found.host) and _count("\n".join(found.lines), turn) < MOST


def take(board: Board, status: Status, who: As, turn: int) -> Held:
    """Takes an attempt over from who held it when it was looked at; `E_FENCED` when another was faster.

    What it had in a landing queue goes: nothing lands for it that its new holder does not wait for.
    """
    task, found, ref = status.spec.task, status.claim, names.claim(status.id)
    content = board.content(status.claim_id) if status.claim_id is not None else None
    if found is None or content is None:
        raise FencedError(f"{status.id} is not claimed any more", task=status.id)
    text = wire.message(content)
    count = _count(text, turn) + 1
    text = wire.changed_claim(text, **{"host": who.host, _COUNT: str(count), _TURN: str(turn)})
    made = now_object(text)
    region = names.lock(task.region) if task.region else ""
    held = [(name, value) for name, value in tidy.belongings(board, task, found.attempt) if name != region]
    moves = [Move(ref, status.claim_id, made.id), *(Move(name, value, None) for name, value in held)]
    try:
        board.push(Step("takeover", who.actor, moves, [made]))
    except CasMismatchError:
        raise FencedError(f"{status.id} was taken over by another", task=status.id, attempt=found.attempt) from None
    worker = names.worker_of(found.attempt)
    return Held(task, found.attempt, worker, who.actor, made.id, text, found.life)


def _count(text: str, turn: int) -> int:
    """Gives how often an attempt was taken over in a turn, as its claim says."""
    said = wire.fields(text)
    found = said.get(_COUNT)
    return int(found) if said.get(_TURN) == str(turn) and found.isdigit() and len(found) < 10 else 0
