"""The landing queue: which changes wait to be landed with a check, and what their checks found.

There is no daemon: an entry lives as long as the process that waits for it, which the hold on the entry's owner
file shows. What a check found is kept by its key, for whoever comes to the same tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import NotFoundError
from ropewalk.store.report import Resolution
from ropewalk.store.spool import LandRequest
from ropewalk.store.store import Store, Transaction
from ropewalk.workspace.hold import is_held
from ropewalk.workspace.verdict import Command, Verdict

PASS_SECONDS = 24 * 3600
"""How long a pass is taken for a later change that makes the same tree."""

_KEEP_SECONDS = 7 * 24 * 3600
State = Literal["waiting", "look", "landed", "failed", "cancelled"]


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what an entry wants landed: the request, the check, and an answer to a conflict, files and all."""

    request: LandRequest
    command: Command
    resolution: Resolution | None = None


class Entry(msgspec.Struct, frozen=True):
    """Is one place in the queue of a ref.

    `look` asks the owner to see for itself what keeps its change from landing; `result` is the operation
    and its `Landed`, or a `Failure`, as JSON, or who cancelled it.
    """

    id: int
    ref: str
    state: State
    owner: str
    at: int
    wanted: Wanted
    result: bytes | None = None


class Failure(msgspec.Struct, frozen=True):
    """Is why a change was dropped: the tree that was checked, the last verdict, and how often it ran."""

    tree: str
    verdict: Verdict
    runs: int


class Record(msgspec.Struct, frozen=True):
    """Is what is known of a check's key for one entry; a pass after a failure is flaky."""

    entry: int
    tree: str
    passed: bool
    failures: int
    at: int
    verdict: Verdict

    @property
    def flaky(self) -> bool:
        """Says whether the check failed and passed on the same tree."""
        return self.passed and self.failures > 0


def folder(store: Store) -> str:
    """Gives where holds of owners, jobs and slots are."""
    return os.path.join(store.layout.root, "queue")


def owner_path(store: Store, owner: str) -> str:
    """Gives the file whose hold shows that an owner lives."""
    return os.path.join(folder(store), f"owner-{owner}")


def add(store: Store, owner: str, ref: str, wanted: Sequence[Wanted]) -> list[int]:
    """Puts changes at the end of a ref's queue, in order; gives their entries' ids. The owner holds its file."""
    ids = []
    with store.transaction() as tx:
        for one in wanted:
            tx.db.run(
                "INSERT INTO queue (ref, state, owner, at, entry) VALUES (?, 'waiting', ?, ?, ?)",
                (ref, owner, clock.now(), msgspec.msgpack.encode(one)),
            )
            ids.append(int(tx.db.con.last_insert_rowid()))
        tx.db.run("DELETE FROM check_runs WHERE at < ?", (clock.now() - _KEEP_SECONDS,))
    return ids


def entries(store: Store, ref: str | None = None) -> list[Entry]:
    """Gives the entries of a ref, or of all, in their order; those of dead owners are left out."""
    rows = store.db.rows(
        "SELECT id, ref, state, owner, at, entry, result FROM queue WHERE ? IS NULL OR ref = ? ORDER BY id", (ref, ref)
    )
    alive: dict[str, bool] = {}
    found = []
    for row in rows:
        owner = str(row[3])
        if owner not in alive:
            alive[owner] = is_held(owner_path(store, owner))
        if alive[owner]:
            found.append(_entry(row))
    return found


def find(store: Store, ids: Iterable[int]) -> dict[int, Entry]:
    """Gives entries by id, whether or not their owner lives."""
    wanted = list(ids)
    marks = ",".join("?" * len(wanted))
    rows = store.db.rows(f"SELECT id, ref, state, owner, at, entry, result FROM queue WHERE id IN ({marks})", wanted)
    return {int(row[0]): _entry(row) for row in rows}


def _entry(row: tuple[Any, ...]) -> Entry:
    number, ref, state, owner, at, entry, result = row
    return Entry(number, ref, state, owner, at, msgspec.msgpack.decode(entry, type=Wanted), result)


def settle(tx: Transaction, number: int, state: State, result: bytes | None = None, *, was: str = "waiting") -> bool:
    """Moves an entry on from a state; says whether it was in it."""
    tx.db.run("UPDATE queue SET state = ?, result = ? WHERE id = ? AND state = ?", (state, result, number, was))
    return bool(tx.db.con.changes())


def cancel(store: Store, number: int, agent: str) -> Entry:
    """Takes an entry out of the queue; its owner is told who did. `E_NOT_FOUND` when it does not wait there."""
    with store.transaction() as tx:
        found = find(store, [number]).get(number)
        if found is None or found.state not in ("waiting", "look") or not is_held(owner_path(store, found.owner)):
            raise NotFoundError(
                f"nothing waits in the queue as {number}", hint="list what waits with `rw queue list`", entry=number
            )
        settle(tx, number, "cancelled", agent.encode("utf-8"), was=found.state)
    return found


def remove(store: Store, ids: Iterable[int]) -> None:
    """Removes entries, and those whose owners are dead."""
    with store.transaction() as tx:
        gone = set(ids)
        for number, owner in tx.db.rows("SELECT id, owner FROM queue"):
            if number not in gone and not is_held(owner_path(store, str(owner))):
                gone.add(int(number))
        tx.db.run_many("DELETE FROM queue WHERE id = ?", [(number,) for number in sorted(gone)])


# what checks found


def note(store: Store, key: str, entry: int, tree: str, verdict: Verdict) -> None:
    """Keeps what a run found; a failure adds to those of the entry, a pass stands beside them."""
    passed = verdict.kind == "passed"
    with store.transaction() as tx:
        tx.db.run(
            "INSERT INTO check_runs VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key, entry) DO UPDATE SET"
            " passed = max(passed, excluded.passed), failures = failures + excluded.failures, at = excluded.at,"
            " verdict = excluded.verdict",
            (key, entry, tree, int(passed), int(not passed), clock.now(), msgspec.json.encode(verdict)),
        )


def records(store: Store, key: str) -> list[Record]:
    """Gives what is known of a key, of every entry that ran it."""
    return [_record(row) for row in store.db.rows(f"SELECT {_RECORD} FROM check_runs WHERE key = ?", (key,))]


def records_of(store: Store, entry: int) -> list[Record]:
    """Gives the runs that were made for an entry, oldest first."""
    return [
        _record(row) for row in store.db.rows(f"SELECT {_RECORD} FROM check_runs WHERE entry = ? ORDER BY at", (entry,))
    ]


_RECORD = "entry, tree, passed, failures, at, verdict"


def _record(row: tuple[Any, ...]) -> Record:
    entry, tree, passed, failures, at, verdict = row
    return Record(entry, tree, bool(passed), failures, at, msgspec.json.decode(verdict, type=Verdict))


class Standing(msgspec.Struct, frozen=True):
    """Is how a key stands for an entry: the record of a pass that counts, or else the failures so far."""

    passed: Record | None
    failures: int
    last: Record | None


def standing(store: Store, key: str, entry: int, now: int) -> Standing:
    """Gives how a key stands for an entry.

    A pass of another entry counts for a day unless the check flips on this key. A failure of another entry
    counts only beside one of this entry's own, so that no change is dropped without a run for it.
    """
    own: Record | None = None
    others = 0
    good: Record | None = None
    flips = False
    for record in records(store, key):
        flips = flips or record.flaky
        if record.entry == entry:
            own = record
        else:
            others += record.failures
            if record.passed and now - record.at < PASS_SECONDS:
                good = record
    if own is not None and own.passed:
        return Standing(own, own.failures, own)
    if good is not None and not flips and not others:
        return Standing(good, 0, own)
    failures = 0 if own is None else own.failures + (1 if others else 0)
    return Standing(None, failures, own)
