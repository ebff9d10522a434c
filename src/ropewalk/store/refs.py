"""Refs by hand: set, delete and move several at once, each by compare-and-swap and as one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ropewalk.core.errors import CasMismatchError, InvalidError
from ropewalk.core.ids import short_ref
from ropewalk.store import adoption, oplog
from ropewalk.store.database import Database
from ropewalk.store.oplog import Move, Operation
from ropewalk.store.store import Store


def move(
    store: Store, agent: str, moves: Sequence[Move], kind: str, check: Callable[[], None] | None = None
) -> tuple[int, bool]:
    """Moves refs all or none; gives (operation, already applied). What already is so needs no operation.

    `check` is asked once nobody else can move a ref, and raises what keeps these from moving. Raises
    `E_CAS_MISMATCH` when a ref is not at its old value and `E_INVALID` for a name twice.
    """
    if len({m.name for m in moves}) != len(moves):
        raise InvalidError("a ref is named twice")
    adoption.adopt(store, *(m.name for m in moves))
    if all(store.ref(m.name) == m.new for m in moves):
        store.flush()
        return store.last_op(), True
    adoption.secure(store, *(m.new for m in moves if m.new is not None))
    with store.transaction() as tx:
        if all(store.ref(m.name) == m.new for m in moves):
            return tx.last_op, True
        if check is not None:
            check()
        return tx.record(kind, agent, moves), False


def undo(store: Store, agent: str, op: int) -> tuple[int, list[Move], bool]:
    """Moves every ref of an operation back, all or none; gives (operation, moves, already applied).

    An undo is an operation that another undo takes back. Raises `E_CAS_MISMATCH` when a ref has moved on.
    """
    adoption.adopt(store, *(m.name for m in oplog.find(store.db, op).body.moves))
    with store.transaction() as tx:
        found = oplog.find(store.db, op)
        back = [Move(m.name, m.new, m.old) for m in found.body.moves]
        if found.undone_by is not None:
            return found.undone_by, back, True
        if not back:
            raise InvalidError(f"operation {op} ({found.kind}) moved no ref, so there is nothing to undo", op=op)
        for m in back:
            present = store.ref(m.name)
            if present != m.old:
                raise CasMismatchError(
                    f"{short_ref(m.name)} has moved on since operation {op}: it is at {present or 'nothing'}",
                    hint="undo the newer operations first, or land a change that takes it back",
                    ref=short_ref(m.name),
                    expected=m.old,
                    actual=present,
                )
        new = tx.record("undo", agent, back, undoes=op)
        tx.db.run("UPDATE ops SET undone_by = ? WHERE op = ?", (new, op))
        _mark_landed(tx.db, found, undone=True)
    return new, back, False


def _mark_landed(db: Database, found: Operation, *, undone: bool) -> None:
    """Notes for each land below an operation, through undos of undos, whether it now counts as undone."""
    if found.body.undoes is not None:
        first = oplog.find(db, found.body.undoes)
        db.run("UPDATE ops SET undone_by = NULL WHERE op = ?", (first.op,))
        _mark_landed(db, first, undone=not undone)
    else:
        db.run("UPDATE landed SET undone = ? WHERE op = ?", (int(undone), found.op))
