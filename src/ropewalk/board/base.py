"""What a board is: refs that can be looked at, and steps that move several of them, all or none.

Everything that a board means is made of these two; whether the refs are in a store or on a git server shows here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ropewalk.board import wire
from ropewalk.board.wire import Object
from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError
from ropewalk.store.oplog import Move


class Step(NamedTuple):
    """Is one thing that happens on a board: moves of refs, each from the value it must have, and the new objects.

    `kind` names it in the operation log, `actor` is who does it, as family/instance. `expect` are refs that stay, and
    have to be as they are for it: a store holds this exactly, a git server only until it has told its refs, since it
    checks nothing that a push does not move (F1). What a law rests on is therefore moved. `guard` looks at the board
    once more and raises where the step may not be done; nothing moves between its look and the step in a store.
    """

    kind: str
    actor: str
    moves: Sequence[Move]
    objects: Sequence[Object] = ()
    expect: Mapping[str, str | None] = {}
    guard: Callable[[], None] | None = None


class Board(Protocol):
    """Is a board. What it shows is as of the last `refresh`, or newer."""

    @property
    def name(self) -> str:
        """Gives how the board is shown to people: a path or a URL without a password."""
        ...

    @property
    def folder(self) -> str:
        """Gives a folder of this host for what is known of the board: observations, locks. It exists."""
        ...

    @property
    def beat_seconds(self) -> float:
        """Gives how often a living holder's claim is to be beaten, in seconds."""
        ...

    @property
    def most_moves(self) -> int:
        """Gives how many moves one push may hold before it is slow out of proportion (F14); 0 for any number."""
        ...

    def refresh(self) -> None:
        """Looks at the board again; `E_REMOTE` when it is out of reach."""
        ...

    def ref(self, name: str) -> str | None:
        """Gives what a ref (full name) points to, or None."""
        ...

    def below(self, prefix: str) -> list[tuple[str, str]]:
        """Gives (full name, id) of the refs that begin with a prefix, by name."""
        ...

    def content(self, oid: str) -> bytes | None:
        """Gives the content of a commit; None when it is not there, or is no commit."""
        ...

    def raw(self, oid: str) -> tuple[str, bytes] | None:
        """Gives (kind, content) of any object; None when it is not there."""
        ...

    def log(self) -> str | None:
        """Gives what `refs/swarm/log` points to, with all that it holds; no other look shows that ref (F5)."""
        ...

    def prefetch(self, ids: Iterable[str]) -> None:
        """Reads commits at once that `content` will be asked for."""
        ...

    def on_target(self, commits: Collection[str], head: str) -> set[str]:
        """Gives those commits that are a head or its ancestors."""
        ...

    def push(self, step: Step) -> None:
        """Does a step, all of it or nothing; it is durable when this returns.

        Raises `E_CAS_MISMATCH` with `ref` where a ref is not where the step has it, `E_REMOTE` when the server refuses
        or is out of reach. A push whose end was not heard is read back before anything is said of it (F12).
        """
        ...

    def beat(self, claims: Mapping[str, str], actor: str) -> dict[str, str | None]:
        """Shows that the holders of claims live; `claims` has the claim's id by task.

        Gives the claim's new id by task; None where the claim is no longer what it was.
        """
        ...

    def beats(self, claim: str) -> int:
        """Gives how often a claim (its id) was beaten without a new object; 0 where beats are objects."""
        ...

    def close(self) -> None:
        """Lets go of what is open."""
        ...


def words(board: Board, ref: str) -> str | None:
    """Gives the message of the object that a ref points to; None without the ref or the object."""
    oid = board.ref(ref)
    content = board.content(oid) if oid is not None else None
    return None if content is None else wire.message(content)


def create(ref: str, made: Object) -> Move:
    """Gives the move by which a ref comes into being."""
    return Move(ref, None, made.id)


def attempt(board: Board, step: Step) -> CasMismatchError | None:
    """Does a step; gives the mismatch where another was faster."""
    try:
        board.push(step)
    except CasMismatchError as error:
        return error
    return None


def now_object(text: str) -> Object:
    """Gives the object of a message, made now."""
    return wire.make(text, clock.now())
