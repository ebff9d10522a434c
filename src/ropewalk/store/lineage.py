"""Lineage: which commits are on a target, and the base that a land merges from (finding A10)."""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Collection
from hashlib import sha1
from typing import NamedTuple

from ropewalk.core.errors import LandMismatchError, ShallowError
from ropewalk.core.ids import short_ref
from ropewalk.store.store import Store

_WINDOW = 512
_ONE_BY_ONE = 3


class Window:
    """Is the newest part of a branch's history, read as far as was needed and kept from land to land of one process."""

    def __init__(self, head: str) -> None:
        self.head = head
        self.ids: set[str] = set()
        self.oldest = 1 << 62
        self._next = deque([head])

    @property
    def whole(self) -> bool:
        """Says whether it is all of the history."""
        return not self._next

    def reaches(self, store: Store, commit: str) -> bool:
        """Says whether a commit is among the newest 512; reads no further than to it."""
        while commit not in self.ids and self._next and len(self.ids) < _WINDOW:
            oid = self._next.popleft()
            if oid not in self.ids:
                self.ids.add(oid)
                self.oldest = min(self.oldest, store.objects.commit(oid).committer.at)
                self._next += _parents(store, oid)
        return commit in self.ids


def window(store: Store, head: str) -> Window:
    """Gives the newest part of a history; goes on from the last answer when it can."""
    known: Window | None = getattr(store, "_window", None)
    if known is not None and known.head == head:
        return known
    if known is not None:
        added: list[str] = []
        at = head
        while len(added) < 64 and at != known.head:
            added.append(at)
            parents = store.objects.commit(at).parents
            if len(parents) != 1:
                break
            at = parents[0]
        if at == known.head:
            known.ids.update(added)
            known.head = head
            return known
    fresh = Window(head)
    store._window = fresh  # type: ignore[attr-defined]
    return fresh


def _parents(store: Store, oid: str) -> tuple[str, ...]:
    parents = store.objects.commit(oid).parents
    if parents and oid in shallow(store):
        return ()
    return parents


def shallow(store: Store) -> set[str]:
    """Gives the commits whose parents a shallow source did not have."""
    try:
        with open(f"{store.layout.repo}/shallow", encoding="ascii") as file:
            return set(file.read().split())
    except FileNotFoundError:
        return set()


def is_on(store: Store, commit: str, head: str) -> bool:
    """Says whether `head` reaches `commit`; git is asked only for what is older than the window and not ours."""
    known = _is_near(store, commit, head)
    return ancestor(store, commit, head) if known is None else known


def _is_near(store: Store, commit: str, head: str) -> bool | None:
    """Says whether `head` reaches `commit`, as far as the newest part of its history tells; None where it does not."""
    if commit == head:
        return True
    near = window(store, head)
    if near.reaches(store, commit):
        return True
    if near.whole:
        return False
    made_here = store.db.row("SELECT 1 FROM changesets WHERE id = ?", (commit,)) is not None
    if made_here and store.objects.commit(commit).committer.at >= near.oldest:
        return False  # by our own clock it is newer than the window's end, and it is not in the window
    return None


def ancestor(store: Store, old: str, new: str) -> bool:
    """Says, after asking git, whether one commit reaches another; a damaged commit-graph has no part in it (S5)."""
    return store.git(*_plainly(store), "merge-base", "--is-ancestor", old, new, ok=(0, 1, 128), timeout=600).code == 0


def beyond(store: Store, change: str, head: str) -> set[str]:
    """Gives all that a change reaches and a head does not, after asking git once."""
    done = store.git(*_plainly(store), "rev-list", change, f"^{head}", ok=(0, 128), timeout=600)
    return set(done.text().split())


def behind(store: Store, head: str, bases: Collection[str]) -> dict[str, int]:
    """Gives how many commits a head reaches that each of some bases does not; many bases take one walk.

    Where the history runs through a base alone, what was listed before it, children first, is what the base lacks.
    """
    found = {head: 0}
    if len(bases) > _ONE_BY_ONE:
        words = ["rev-list", "--topo-order", "--parents", head]
        ahead = {head}
        seen: set[str] = set()
        for number, line in enumerate(store.git(*_plainly(store), *words, timeout=600).text().splitlines()):
            oid, *parents = line.split(" ")
            if len(ahead) == 1 and oid in bases:
                found[oid] = number
            seen.add(oid)
            ahead.discard(oid)
            ahead.update(parent for parent in parents if parent not in seen)
    for base in set(bases) - found.keys():
        count = store.git(*_plainly(store), "rev-list", "--count", f"{base}..{head}", timeout=600).text()
        found[base] = int(count)
    return found


def _plainly(store: Store) -> list[str]:
    """Gives the setting by which git passes over a damaged commit-graph."""
    return [] if _graph_is_whole(store) else ["-c", "core.commitGraph=false"]


def _graph_is_whole(store: Store) -> bool:
    """Says whether git's commit-graph ends with the sum of what is in it; git itself does not look."""
    path = f"{store.layout.repo}/objects/info/commit-graph"
    try:
        there = os.stat(path)
        stamp = (there.st_ino, there.st_mtime_ns, there.st_size)
        known: tuple[object, bool] | None = getattr(store, "_graph", None)
        if known is None or known[0] != stamp:
            with open(path, "rb") as file:
                data = file.read()
            known = (stamp, sha1(data[:-20], usedforsecurity=False).digest() == data[-20:])
            store._graph = known  # type: ignore[attr-defined]
        return known[1]
    except OSError:
        return True


class Base(NamedTuple):
    """Is where a land starts: the base commit, the change's own commits above it (newest first)."""

    commit: str
    own: tuple[str, ...]


def find_base(store: Store, ref: str, head: str, change: str, *, allow_reland: bool) -> Base:
    """Gives the newest ancestor of a change that is on the target or was itself landed on it.

    `E_LAND_MISMATCH` when the change holds a land that is no longer on the target (unless `allow_reland`), or
    has no history in common with it; `E_SHALLOW` when that history was cut off.
    """
    heap = [(-store.objects.commit(change).committer.at, change)]
    seen = {change}
    own: list[str] = []
    off: set[str] | None = None
    while heap:
        _, oid = heapq.heappop(heap)
        on = _is_near(store, oid, head)
        if on is None:
            # a change may bring thousands of commits, so git is asked for all of them at once
            off = beyond(store, change, head) if off is None else off
            on = oid not in off
        if on:
            return Base(oid, tuple(own))
        # an undo takes a land off, and so does a ref that is moved back by hand
        # a commit that was itself put there by a land, and is not there now, was taken back as well
        rows = store.db.rows(
            "SELECT landed FROM landed WHERE (change = ?1 OR landed = ?1) AND ref = ?2"
            " UNION SELECT now FROM equivalents WHERE was = ?1 AND ref = ?2",
            (oid, ref),
        )
        lands = [str(row[0]) for row in rows]
        if any(is_on(store, landed, head) for landed in lands):
            return Base(oid, tuple(own))
        if lands and not allow_reland:
            raise LandMismatchError(
                f"{oid[:12]} was landed as {lands[0][:12]} and undone",
                hint="land it again on purpose with --allow-reland",
                reason="undone",
                change=oid,
                landed=lands[0],
            )
        own.append(oid)
        for parent in store.objects.commit(oid).parents:
            if parent not in seen:
                seen.add(parent)
                if store.objects.kind(parent) is None:
                    raise ShallowError(f"the commit {parent} is missing", object=parent)
                heapq.heappush(heap, (-store.objects.commit(parent).committer.at, parent))
    raise LandMismatchError(
        f"{change[:12]} and {short_ref(ref)} have no history in common",
        hint="make the change on a commit of the target",
        reason="unrelated",
        change=change,
    )
