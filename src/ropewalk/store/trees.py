"""Trees: parse, edit, look up and compare, with bytes for names.

A parsed tree is a dict from name to `(mode, id)`, mode as git writes it (`b"100644"`), id as 20 raw bytes, in
git's order. Parsed trees are shared between callers and are never changed in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ropewalk.core.errors import NotFoundError, StoreCorruptError
from ropewalk.core.ids import EMPTY_TREE, path_text

if TYPE_CHECKING:
    from ropewalk.store.objects import Objects

Entry = tuple[bytes, bytes]
Tree = Mapping[bytes, Entry]

FILE, EXEC, LINK, TREE, GITLINK = b"100644", b"100755", b"120000", b"40000", b"160000"
_ENTRY = re.compile(rb"(\d+) ([^\0]+)\0(.{20})", re.DOTALL)
_MODES = frozenset({FILE, EXEC, LINK, TREE, GITLINK})


class Change(NamedTuple):
    """Is what happened to one path between two trees; an entry is None where the path does not exist."""

    path: bytes
    old: Entry | None
    new: Entry | None


def parse(raw: bytes, oid: str) -> dict[bytes, Entry]:
    """Gives the entries of a raw tree; `E_STORE_CORRUPT` when it is not one."""
    rows = _ENTRY.findall(raw)
    modes, names, _ = zip(*rows, strict=True) if rows else ((), (), ())
    if sum(map(len, modes)) + sum(map(len, names)) + 22 * len(rows) != len(raw):
        raise StoreCorruptError(f"the tree {oid} can't be read", object=oid)
    if not _MODES.issuperset(modes):
        try:
            return {name: (_usual(mode), raw_id) for mode, name, raw_id in rows}
        except ValueError:
            raise StoreCorruptError(f"the tree {oid} can't be read", object=oid) from None
    return {name: (mode, raw_id) for mode, name, raw_id in rows}


def _usual(mode: bytes) -> bytes:
    """Gives the mode that git reads in its place: other programs wrote zeros before it, and other permissions."""
    number = int(mode, 8)
    kind = number & 0o170000
    if kind == 0o100000:
        return EXEC if number & 0o100 else FILE
    return {0o120000: LINK, 0o040000: TREE}.get(kind, GITLINK)


def in_order(entries: Tree) -> dict[bytes, Entry]:
    """Gives the entries sorted as git wants them: a folder sorts as if its name ended with a slash."""
    return dict(sorted(entries.items(), key=lambda item: item[0] + b"/" if item[1][0] == TREE else item[0]))


def serialize(entries: Tree) -> bytes:
    """Gives the raw tree of entries that are in git's order."""
    return b"".join([b"%s %s\0%s" % (mode, name, raw_id) for name, (mode, raw_id) in entries.items()])


def kind(entry: Entry | None) -> str:
    """Gives `file`, `exec`, `symlink`, `dir`, `submodule` or `absent`."""
    if entry is None:
        return "absent"
    return {EXEC: "exec", LINK: "symlink", TREE: "dir", GITLINK: "submodule"}.get(entry[0], "file")


def lookup(objects: Objects, root: str, path: bytes) -> Entry | None:
    """Gives the entry at a path below a root tree, or None."""
    tree_id = root
    parts = path.split(b"/")
    for part in parts[:-1]:
        entry = objects.tree(tree_id).get(part)
        if entry is None or entry[0] != TREE:
            return None
        tree_id = entry[1].hex()
    return objects.tree(tree_id).get(parts[-1])


def subtree(objects: Objects, root: str, path: bytes) -> str:
    """Gives the id of the tree at a path (`b""`: the root); `E_NOT_FOUND` when there is none."""
    if not path:
        return root
    entry = lookup(objects, root, path)
    if entry is None or entry[0] != TREE:
        raise NotFoundError(f"there is no folder {path_text(path)!r}", path=path_text(path))
    return entry[1].hex()


def walk(objects: Objects, root: str, prefix: bytes = b"", depth: int | None = None) -> Iterator[tuple[bytes, Entry]]:
    """Yields every path below a tree with its entry in git's order, folders down to `depth` levels as themselves.

    With `depth=None` folders are descended and not yielded.
    """
    for name, entry in objects.tree(root).items():
        path = prefix + name
        if entry[0] == TREE and (depth is None or depth > 1):
            if depth is not None:
                yield path, entry
            yield from walk(objects, entry[1].hex(), path + b"/", None if depth is None else depth - 1)
        else:
            yield path, entry


def diff(objects: Objects, old: str, new: str, prefix: bytes = b"") -> list[Change]:
    """Gives the changed paths between two trees, files only, sorted; cost goes with what changed."""
    found: list[Change] = []
    _diff(objects, old, new, prefix, found)
    found.sort()
    return found


def _diff(objects: Objects, old: str, new: str, prefix: bytes, found: list[Change]) -> None:
    if old == new:
        return
    before, after = objects.tree(old), objects.tree(new)
    for name in {name for name, _ in before.items() ^ after.items()}:
        one, two = before.get(name), after.get(name)
        path = prefix + name
        one_tree, two_tree = one is not None and one[0] == TREE, two is not None and two[0] == TREE
        if one_tree or two_tree:
            _diff(
                objects,
                one[1].hex() if one is not None and one_tree else EMPTY_TREE,
                two[1].hex() if two is not None and two_tree else EMPTY_TREE,
                path + b"/",
                found,
            )
        if (one is not None and not one_tree) or (two is not None and not two_tree):
            found.append(Change(path, None if one_tree else one, None if two_tree else two))


class Edit:
    """Collects changes to a tree and writes the new folders once, deepest first."""

    def __init__(self, objects: Objects, root: str) -> None:
        self.objects = objects
        self.root = root
        self._changes: dict[bytes, Entry | None] = {}

    def set(self, path: bytes, entry: Entry | None) -> None:
        """Puts an entry at a path, or removes it with None; empty folders vanish when the tree is written."""
        self._changes[path] = entry

    def write(self) -> str:
        """Writes the changed trees and gives the id of the new root."""
        nested: dict[bytes, object] = {}
        # removals first and from the top, so that a file may take the place of a folder all of whose files go,
        # and new files that of a folder that goes whole
        for path, entry in sorted(self._changes.items(), key=lambda item: (item[1] is not None, item[0].count(b"/"))):
            level = nested
            parts = path.split(b"/")
            for part in parts[:-1]:
                below = level.get(part)
                if not isinstance(below, dict):
                    fresh: dict[bytes, object] = {b"": None} if part in level and below is None else {}
                    below = level[part] = fresh
                level = below
            level[parts[-1]] = entry
        return self._write(self.root, nested) or self.objects.write_tree({})

    def _write(self, tree_id: str, level: dict[bytes, object]) -> str | None:
        # the empty name marks a folder that went whole before it was filled
        entries: dict[bytes, Entry] = {} if b"" in level else dict(self.objects.tree(tree_id))
        # replacing and removing keep git's order; a new name, or a file that becomes a folder, does not
        ordered = True
        for name, value in level.items():
            if value is None:
                entries.pop(name, None)
            elif isinstance(value, dict):
                present = entries.get(name)
                below = present[1].hex() if present is not None and present[0] == TREE else EMPTY_TREE
                new = self._write(below, value)
                if new is not None:
                    ordered = ordered and present is not None and present[0] == TREE
                    entries[name] = (TREE, bytes.fromhex(new))
                elif present is not None and present[0] == TREE:
                    del entries[name]
            else:
                there = entries.get(name)
                assert isinstance(value, tuple)
                ordered = ordered and there is not None and (there[0] == TREE) == (value[0] == TREE)
                entries[name] = value
        if not entries:
            return None
        return self.objects.write_tree(entries, ordered=ordered)
