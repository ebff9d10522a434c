"""The board in a store: its refs are the store's, every step is one of the store's operations."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from ropewalk.board import names
from ropewalk.board.base import Step
from ropewalk.core import clock
from ropewalk.core.errors import StoreCorruptError
from ropewalk.store import adoption, lineage
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store

BEAT_SECONDS = 60.0
_ONE_BY_ONE = 8
_KEPT = 20_000


class LocalBoard:
    """Is a store's own board. A beat is a row of the store's database, because objects are kept for ever."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name = store.layout.root
        self.beat_seconds = BEAT_SECONDS
        self.most_moves = 0
        self.folder = os.path.join(store.layout.root, "board")
        os.makedirs(self.folder, exist_ok=True)
        self._contents: dict[str, bytes] = {}
        self._has_tree = False

    def refresh(self) -> None:
        """Does nothing: every look is at the database as it is."""

    def ref(self, name: str) -> str | None:
        """Gives what a ref points to."""
        return self.store.ref(name)

    def below(self, prefix: str) -> list[tuple[str, str]]:
        """Gives (full name, id) of the refs that begin with a prefix."""
        return self.store.refs(prefix)

    def content(self, oid: str) -> bytes | None:
        """Gives the content of a commit."""
        known = self._contents.get(oid)
        if known is None:
            found = self.store.objects.find(oid)
            if found is None or found[0] != "commit":
                return None
            self._contents[oid] = known = found[1]
        return known

    def raw(self, oid: str) -> tuple[str, bytes] | None:
        """Gives (kind, content) of any object."""
        return self.store.objects.find(oid)

    def log(self) -> str | None:
        """Gives what `refs/swarm/log` points to."""
        return self.store.ref(names.LOG)

    def prefetch(self, ids: Iterable[str]) -> None:
        """Reads commits at once."""
        if len(self._contents) > _KEPT:
            self._contents.clear()
        missing = [oid for oid in dict.fromkeys(ids) if oid not in self._contents]
        for oid, found in zip(missing, self.store.objects.read_many(missing), strict=True):
            if found is not None and found[0] == "commit":
                self._contents[oid] = found[1]

    def on_target(self, commits: Collection[str], head: str) -> set[str]:
        """Gives those commits that are a head or its ancestors."""
        if len(commits) <= _ONE_BY_ONE:
            return {oid for oid in commits if lineage.is_on(self.store, oid, head)}
        return on_line(self.store.git("rev-list", head, "--", timeout=600).text(), commits)

    def push(self, step: Step) -> None:
        """Does a step as one operation."""
        store = self.store
        adoption.adopt(store, *(move.name for move in step.moves), *step.expect)
        store.objects.take_new()
        if step.objects and not self._has_tree:
            store.objects.write("tree", b"")  # which all commits of a board name
        for made in step.objects:
            if store.objects.write(made.kind, made.content) != made.id:
                raise StoreCorruptError(f"the object {made.id} is not what it says", object=made.id)
        with store.transaction() as tx:
            if step.guard is not None:
                step.guard()
            tx.journal(store.objects.take_new())
            tx.record(
                step.kind, step.actor, [*(Move(name, oid, oid) for name, oid in step.expect.items()), *step.moves]
            )
        self._has_tree = self._has_tree or bool(step.objects)

    def beat(self, claims: Mapping[str, str], actor: str) -> dict[str, str | None]:
        """Notes a beat of claims in the database."""
        found: dict[str, str | None] = {}
        with self.store.transaction() as tx:
            for task, claim in claims.items():
                found[task] = claim if self.store.ref(names.claim(task)) == claim else None
                if found[task] is not None:
                    tx.db.run(
                        "INSERT INTO beats VALUES (?, 1, ?) ON CONFLICT (claim) DO UPDATE SET"
                        " count = count + 1, at = excluded.at",
                        (claim, clock.now()),
                    )
            tx.db.run("DELETE FROM beats WHERE at < ?", (clock.now() - 7 * 86_400,))
        return found

    def beats(self, claim: str) -> int:
        """Gives how often a claim was beaten."""
        row = self.store.db.row("SELECT count FROM beats WHERE claim = ?", (claim,))
        return int(row[0]) if row else 0

    def close(self) -> None:
        """Leaves the store open: it belongs to whoever gave it."""


def on_line(listed: str, commits: Collection[str]) -> set[str]:
    """Gives those commits that are among the lines of a list."""
    return set(listed.split()) & set(commits)
