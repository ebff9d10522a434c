"""Adoption: what another tool did in `repo.git` without ropewalk becomes the store's own, once it is whole (A30).

A branch or tag that somebody moved forward from where the store has it is taken into the log as an operation of
the actor `external`. A commit that only another tool wrote is made durable before anything stands on it: that an
object can be read is no evidence that it was synced (A3). Whatever else was done to refs is left to the projection,
which keeps it apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ropewalk.core.errors import CasMismatchError, RopewalkError, StoreCorruptError
from ropewalk.core.ids import check_path, short_ref
from ropewalk.store import lineage, projection, trees
from ropewalk.store.loose import FSYNC_SIZE, Damaged, NewObject, inflate, object_id
from ropewalk.store.oplog import Move

if TYPE_CHECKING:
    from ropewalk.store.store import Store

ACTOR = "external"
KIND = "adopt"
_BRANCHES = ("refs/heads/", "refs/tags/")
_ATTEMPTS, _GIT_SECONDS, _CHUNK = 8, 600.0, 64


def adopt(store: Store, *names: str) -> None:
    """Takes refs that were moved forward in `repo.git` into the log, each as an operation of its own.

    Costs a read of the ref's file where nothing was done. The caller does not hold the writer lock.
    """
    for name in names:
        for _ in range(_ATTEMPTS if name.startswith(_BRANCHES) else 0):
            found, present = projection.read_ref(store.layout.repo, name), store.ref(name)
            if present is None or found == present or (found is not None and store.gave_ref(name, found)):
                break
            if found is None:
                _tell_lost(store, name)
                break
            try:
                if not goes_on(store, present, found):
                    break
                new = _whole(store, found, checked=True)
            except RopewalkError:
                break  # the projection keeps it apart and says so
            try:
                with store.transaction() as tx:
                    tx.journal(new)
                    op = tx.record(KIND, ACTOR, [Move(name, present, found)])
            except CasMismatchError:
                continue
            store.warnings.append(f"{short_ref(name)} was moved to {found} without ropewalk; adopted as operation {op}")
            break


def _tell_lost(store: Store, name: str) -> None:
    """Warns of a ref that is not in `repo.git`, unless it is only not shown yet."""
    shown = projection.read_shown(store)  # before the ref, which is written before it is noted as shown
    row = store.db.row("SELECT op FROM refs WHERE name = ?", (name,))
    seen = row is not None and row[0] <= shown.op and name not in shown.waiting
    if seen and projection.read_ref(store.layout.repo, name) is None:
        store.warnings.append(f"{short_ref(name)} was removed from repo.git without ropewalk; it is shown there again")


def goes_on(store: Store, old: str, new: str) -> bool:
    """Says whether a commit that is new to the store goes on from one it has."""
    found = store.objects.find(new)
    if found is None or found[0] != "commit":
        return False
    return lineage.ancestor(store, old, new)


def secure(store: Store, *commits: str) -> None:
    """Makes durable what commits bring that no operation recorded; `E_STORE_CORRUPT` when that is not whole.

    What the store made, and what its refs are at, costs a look into the database. The caller does not hold the
    writer lock.
    """
    left = set(commits)
    for column, table in (("id", "changesets"), ("target", "refs")):
        if left:
            asked = msgspec.json.encode(sorted(left)).decode("ascii")
            query = f"SELECT {column} FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
            left -= {str(row[0]) for row in store.db.rows(query, (asked,))}
    # what is missing is told by whoever reads it
    tips = [oid for oid in sorted(left) if store.objects.kind(oid) is not None]
    new = _whole(store, *tips) if tips else []
    if new:
        with store.transaction() as tx:
            tx.journal(new)


def _whole(store: Store, *tips: str, checked: bool = False) -> list[NewObject]:
    """Gives for the journal what commits reach beyond the store's refs, after reading and hashing all of it.

    What is large, or in a pack, is synced where it is. `E_STORE_CORRUPT` when something is missing or damaged, and
    if `checked`, when a tree is one that git would not make.
    """
    known = "".join(f"^{oid}\n" for oid in sorted({target for _, target in store.refs()}))
    done = store.git(
        "rev-list", "--objects", "--no-object-names", "--missing=print", "--stdin",
        stdin=("".join(f"{tip}\n" for tip in tips) + known).encode("ascii"), ok=(0, 1, 128), timeout=_GIT_SECONDS,
    )  # fmt: skip
    ids = done.text().split()
    if done.code or any(word.startswith("?") for word in ids):
        named = ", ".join(tips[:5])
        raise StoreCorruptError(f"{named} is not whole: something it reaches is missing or damaged", object=tips[0])
    loose = store.objects.loose
    new: list[NewObject] = []
    elsewhere: list[str] = []
    for oid in ids:
        if store.db.row("SELECT 1 FROM object_journal WHERE id = ? LIMIT 1", (oid,)):
            continue
        packed = loose.read_packed(oid)
        if packed is None:
            elsewhere.append(oid)
            continue
        try:
            kind, content = inflate(packed, oid)
        except Damaged as error:
            raise StoreCorruptError(f"the object {oid} is damaged: {error}", object=oid) from None
        if checked:
            _check(oid, kind, content)
        large = len(content) > FSYNC_SIZE
        if large:
            loose.put(oid, packed, sync=True)
        new.append(NewObject(oid, kind, b"" if large else packed))
    if elsewhere:
        from ropewalk.store import maintain

        for part in _parts(elsewhere):
            for oid, found in zip(part, store.objects.read_many(part), strict=True):
                if found is None or object_id(*found) != oid:
                    raise StoreCorruptError(f"the object {oid} is missing or damaged", object=oid)
                if checked:
                    _check(oid, *found)
        maintain.secure_packs(store)
    return new


def _check(oid: str, kind: str, content: bytes) -> None:
    """Refuses a tree with a name that leads out of it, with one name twice, or in another order than git's."""
    if kind != "tree":
        return
    entries = trees.parse(content, oid)
    if trees.serialize(trees.in_order(entries)) != content:
        raise StoreCorruptError(f"the tree {oid} is not as git makes one", object=oid)
    for name in entries:
        check_path(name)


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _CHUNK):
        yield ids[start : start + _CHUNK]
