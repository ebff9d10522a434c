"""The landing lease: of all workers of a board, one at a time lands on a target, and checks what waits (F7).

It is a ref like a claim: taken by creating it, kept by beats, taken over from a holder that is dead. Every push of its
holder changes it, so that one who was thought dead and wakes up is refused as a whole.
"""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import quote

from ropewalk.board import base, holder, names, observe, wire
from ropewalk.board.base import Board, Step, now_object, words
from ropewalk.board.wire import Object
from ropewalk.core import clock
from ropewalk.core.errors import FencedError
from ropewalk.store.oplog import Move

BEAT_SECONDS = 60.0
"""Is how often a holder shows that it lives, in seconds; it lands for all, so that it is looked after closely."""


class Lease(NamedTuple):
    """Is a held lease: the target (short name), the object that its ref is at, and that object's message."""

    target: str
    id: str
    words: str
    actor: str

    @property
    def ref(self) -> str:
        """Gives the lease's ref."""
        return names.landing_lock(self.target)

    @property
    def attempt(self) -> str:
        """Gives the attempt that holds it."""
        return self.words.rstrip().rsplit("\n", 1)[-1]


def take(board: Board, target: str, attempt: str, host: str, actor: str, poll: float) -> Lease | None:
    """Takes the lease where nobody has it, its holder is dead, or it was this attempt; None where another has it.

    `host` names the process (holder.mine), `poll` is how often the caller looks, in seconds.
    """
    ref = names.landing_lock(target)
    old = board.ref(ref)
    if old is not None and not may_take(board, target, attempt, poll):
        return None
    text = f"landing {target}\nhost: {host}\nbeat: 0\nnonce: {os.urandom(6).hex()}\n{attempt}"
    made = now_object(text)
    if base.attempt(board, Step("landing_take", actor, [Move(ref, old, made.id)], [made])) is not None:
        return None
    return Lease(target, made.id, text, actor)


def may_take(board: Board, target: str, attempt: str, poll: float) -> bool:
    """Says whether a lease that somebody has may be taken over: by the same attempt, or from a dead holder."""
    text = words(board, names.landing_lock(target)) or ""
    return text.rstrip().rsplit("\n", 1)[-1] == attempt or is_left(board, target, poll)


def is_left(board: Board, target: str, poll: float) -> bool:
    """Says whether the holder of a lease is dead: seen so on this host, or silent for as long as a lease lasts."""
    ref = names.landing_lock(target)
    text = words(board, ref)
    dead = holder.is_dead(wire.fields(text).get("host")) if text is not None else None
    if dead:
        return True
    folder = os.path.join(board.folder, f"landing-{quote(target, safe='')}")
    os.makedirs(folder, exist_ok=True)
    age = observe.observe(folder, {target: board.ref(ref) or ""}, poll)[target]
    return age > observe.lease(True, BEAT_SECONDS)


def beaten(lease: Lease) -> tuple[Lease, Move, Object]:
    """Gives a lease as it is after its next beat, with the move and the object that make it so."""
    count = wire.fields(lease.words).get("beat")
    text = wire.changed_claim(lease.words, beat=str(int(count or 0) + 1))
    made = now_object(text)
    return lease._replace(id=made.id, words=text), Move(lease.ref, lease.id, made.id), made


def beat(board: Board, lease: Lease) -> Lease:
    """Shows that the holder lives; `E_FENCED` when another has the lease."""
    new, move, made = beaten(lease)
    if base.attempt(board, Step("landing_beat", lease.actor, [move], [made])) is not None:
        raise lost(lease)
    return new


def release(board: Board, lease: Lease) -> None:
    """Lets a lease go; that another has it by now is no error."""
    base.attempt(board, Step("landing_release", lease.actor, [Move(lease.ref, lease.id, None)]))


def is_held(board: Board, lease: Lease) -> bool:
    """Says whether a lease is as its holder left it."""
    return board.ref(lease.ref) == lease.id


def lost(lease: Lease) -> FencedError:
    """Gives the error of a holder that is none any more."""
    return FencedError(f"the landing on {lease.target} is another's by now", target=lease.target,
                       attempt=lease.attempt, at=clock.now())  # fmt: skip
