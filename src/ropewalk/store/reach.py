"""What damage reaches: the refs, changesets and paths that stand on objects which can't be read.

The walk is made only once something is known to be damaged or missing. It is ours and not git's, because git
ends at the first damaged object; it reads commits and trees, and of a file it wants to know only that it is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from ropewalk.core.errors import RopewalkError
from ropewalk.core.ids import EMPTY_TREE, path_text, short_ref
from ropewalk.store import trees
from ropewalk.store.objects import Objects

NAMED_MAX = 20
"""So many changesets and paths are named for one object."""


class Hit(msgspec.Struct, frozen=True):
    """Is what stands on one object: refs (short), and 20 changesets and paths that hold it."""

    refs: list[str] = []
    changesets: list[str] = []
    paths: list[str] = []


class Reach:
    """Walks from refs and changesets down, and notes on its way what can't be read.

    `there` are the ids that are known to exist; `bad` those among them that are damaged.
    """

    def __init__(self, objects: Objects, there: Collection[str], bad: Iterable[str]) -> None:
        self._objects = objects
        self._there = there
        self.bad = set(bad)
        self.missing: set[str] = set()
        self._bits: dict[str, int] = {}
        self._trees: dict[str, int] = {EMPTY_TREE: 0}
        self._commits: dict[str, int] = {}
        self._own: dict[str, int] = {}
        self._paths: dict[str, list[str]] = {}
        self._refs: dict[str, int] = {}

    def walk(self, refs: Iterable[tuple[str, str]], changesets: Iterable[str]) -> None:
        """Walks everything that refs (full name, target) and changesets reach."""
        for name, target in refs:
            self._refs[name] = self._commit(target)
        for oid in changesets:
            self._commit(oid)

    def hit(self, oid: str) -> Hit:
        """Gives what stands on an object."""
        bit = self._bits.get(oid, 0)
        if not bit:
            return Hit()
        return Hit(
            [short_ref(name) for name, mask in sorted(self._refs.items()) if mask & bit],
            [commit for commit, mask in reversed(self._own.items()) if mask & bit][:NAMED_MAX],
            self._paths.get(oid, []),
        )

    def _bit(self, oid: str) -> int:
        """Gives the bit that stands for an object which can't be read, 0 for one that can."""
        if oid in self.bad:
            pass
        elif oid in self._there or (oid not in self.missing and self._came(oid)):
            return 0
        else:
            self.missing.add(oid)
        return self._bits.setdefault(oid, 1 << len(self._bits))

    def _came(self, oid: str) -> bool:
        """Says whether an object is there after all: writers and collections go on during a check."""
        try:
            return self._objects.kind(oid) is not None
        except RopewalkError:
            return True

    def _read(self, oid: str, kind: str) -> bytes | None:
        """Gives an object's content; None when it can't be read, and then it is noted as damaged."""
        try:
            return self._objects.read(oid, kind)
        except RopewalkError:
            self.bad.add(oid)
            return None

    def _commit(self, start: str) -> int:
        """Gives the bits of everything that a commit, or a tag's commit, reaches."""
        stack = [start]
        while stack:
            oid = stack[-1]
            if oid in self._commits:
                stack.pop()
                continue
            known = self._bit(oid)
            tree, parents = ("", ()) if known else self._links(oid)
            if not tree and not parents:
                self._own[oid] = self._commits[oid] = known or self._bit(oid)
                stack.pop()
                continue
            waiting = [p for p in parents if p not in self._commits]
            if waiting:
                stack += waiting
                continue
            if tree:
                self._own[oid] = self._tree(tree)
            mask = self._own.get(oid, 0)
            for parent in parents:
                mask |= self._commits[parent]
            self._commits[oid] = mask
            stack.pop()
        return self._commits[start]

    def _links(self, oid: str) -> tuple[str, tuple[str, ...]]:
        """Gives (tree, parents) of a commit; a tag's target stands as its only parent."""
        try:
            kind = self._objects.kind(oid)
            if kind == "tag":
                return "", (self._objects.read(oid)[7:47].decode("ascii", "replace"),)
            commit = self._objects.commit(oid)
            return commit.tree, commit.parents
        except RopewalkError:
            self.bad.add(oid)
            return "", ()

    def _tree(self, top: str) -> int:
        """Gives the bits of a tree and all below it; each tree is read once."""
        stack: list[tuple[str, tuple[bytes, ...]]] = [(top, ())]
        while stack:
            oid, path = stack[-1]
            if oid in self._trees:
                stack.pop()
                continue
            mask = self._bit(oid)
            entries = None if mask else self._entries(oid)
            if entries is None:
                mask = mask or self._bit(oid)
                self._note(oid, path)
            else:
                inner = [(raw.hex(), name) for name, (mode, raw) in entries.items() if mode == trees.TREE]
                waiting = [(one, (*path, name)) for one, name in inner if one not in self._trees]
                if waiting:
                    stack += waiting
                    continue
                for one, name in inner:
                    mask |= self._trees[one]
                    if one in self.bad or one in self.missing:
                        self._note(one, (*path, name))
                for name, (mode, raw) in entries.items():
                    if mode not in (trees.TREE, trees.GITLINK) and (bit := self._bit(raw.hex())):
                        mask |= bit
                        self._note(raw.hex(), (*path, name))
            self._trees[oid] = mask
            stack.pop()
        return self._trees[top]

    def _entries(self, oid: str) -> trees.Tree | None:
        content = self._read(oid, "tree")
        if content is None:
            return None
        try:
            return trees.parse(content, oid)
        except RopewalkError:
            self.bad.add(oid)
            return None

    def _note(self, oid: str, path: tuple[bytes, ...]) -> None:
        named = self._paths.setdefault(oid, [])
        text = path_text(b"/".join(path))
        if text and text not in named and len(named) < NAMED_MAX:
            named.append(text)
