"""What a land must never do, checked apart from the merge code: change other paths, or take back others' work.

Findings A11 (silent reverts), A12 (integrity) and A5 (mass deletion).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ropewalk.core.errors import LandMismatchError
from ropewalk.core.ids import EMPTY_TREE, path_text, short_ref
from ropewalk.store import linediff, trees
from ropewalk.store.store import Store
from ropewalk.store.trees import TREE, Change, Entry

_WINDOW_OPS, _HUNK_BYTES, _HUNK_LANDS, _COLLISIONS = 400, 256 << 10, 8, 20


def check_integrity(
    store: Store, *, base: str, change: str, target: str, result: str, wanted: Sequence[Change], merged: Sequence[bytes]
) -> list[Change]:
    """Gives the changes from target to result, after checking each path of them (A12); all arguments are trees.

    `wanted` is the change's own diff, `merged` the paths that merge-ort or a resolution decided. A path that
    only the change touched must come out as the change has it, a path it did not touch as the target has it;
    paths that a rename moved are exempt. Raises `E_LAND_MISMATCH`.
    """
    objects = store.objects
    done = trees.diff(objects, target, result)
    by_path = {c.path: c for c in done}
    free = set(merged)
    asked: dict[bytes, Entry | None] = {}
    for path, old, new in wanted:
        asked[path] = new
        if path in free:
            continue
        there = trees.lookup(objects, target, path)
        if there is not None and there[0] == TREE:
            there = None  # a diff names files: as one, a folder does not exist
        if there not in (old, new):
            # mode and content may have been changed one by each side; else the merge must have named the path
            result_entry = by_path[path].new if path in by_path else there
            if result_entry is None or result_entry != _by_parts(old, new, there):
                _mismatch(store, base, change, target, path, "was changed by both sides, and no merge decided it", free)
            free.add(path)
        elif there != new and (path not in by_path or by_path[path].new != new):
            _mismatch(store, base, change, target, path, "is not what the change made of it", free)
    for path, _, new in done:
        if path in free:
            continue
        if path not in asked:
            _mismatch(store, base, change, target, path, "was changed, though the change does not touch it", free)
        elif path not in free and new != asked[path]:
            _mismatch(store, base, change, target, path, "is not what the change made of it", free)
    return done


def _by_parts(old: Entry | None, new: Entry | None, there: Entry | None) -> Entry | None:
    """Gives the entry whose mode and content each come from the one side that changed it, None when there is none."""
    if old is None or new is None or there is None:
        return None
    mode, content = (t if n == o else n if t in (o, n) else None for o, n, t in zip(old, new, there, strict=True))
    return None if mode is None or content is None else (mode, content)


def _mismatch(store: Store, base: str, change: str, target: str, path: bytes, words: str, free: set[bytes]) -> None:
    """Raises, unless a rename on either side explains the path."""
    for side in (change, target):
        out = store.git("diff-tree", "-r", "-M", "-l10000", "--name-status", "--diff-filter=R", "-z", base, side).out
        fields = out.split(b"\0")
        for n in range(0, len(fields) - 2, 3):
            free.update(fields[n + 1 : n + 3])
    if path not in free:
        raise LandMismatchError(
            f"{path_text(path)!r} {words}; nothing was published",
            hint="report this with `rw show` of the change and of the target",
            reason="integrity",
            path=path_text(path),
        )


def case_collisions(store: Store, onto: str, landed: str) -> list[str]:
    """Gives a warning for each new name that differs from a neighbour's in case alone (commits; case S14).

    Such names are two here and one on file systems that fold case, or write accents in another form.
    """
    objects = store.objects
    found: list[str] = []
    todo = [(objects.commit(onto).tree, objects.commit(landed).tree, b"")]
    while todo:
        before, after, above = todo.pop()
        old, new = objects.tree(before), objects.tree(after)
        for name, entry in sorted(new.items()):
            known = old.get(name)
            if known == entry:
                continue
            if entry[0] == TREE:
                below = known[1].hex() if known is not None and known[0] == TREE else EMPTY_TREE
                todo.append((below, entry[1].hex(), above + name + b"/"))
            other = _namesake(name, new) if known is None else None
            if other is not None:
                texts = path_text(above + name), path_text(other)
                found.append("case_collision: {!r} and {!r} differ in case alone".format(*texts))
    more = len(found) - _COLLISIONS
    return found if more <= 0 else [*found[:_COLLISIONS], f"case_collision: {more} more names differ in case alone"]


def _namesake(name: bytes, names: Iterable[bytes]) -> bytes | None:
    """Gives another name that a file system which folds case would take for the same one."""
    if name.isascii():
        size, low = len(name), name.lower()
        return next((n for n in names if len(n) == size and n != name and n.lower() == low), None)
    folded = _fold(name)
    return next((n for n in names if n != name and not n.isascii() and _fold(n) == folded), None)


def _fold(name: bytes) -> str:
    import unicodedata

    return unicodedata.normalize("NFC", name.decode("utf-8", "surrogateescape").casefold())


def check_mass_delete(store: Store, base: str, change: str, wanted: Sequence[Change]) -> None:
    """Refuses a change that leaves an empty tree or removes more than half of five or more files (A5).

    A file whose content is added elsewhere has moved and is not gone.
    """
    added = {c.new[1] for c in wanted if c.new is not None}
    gone = sum(c.new is None and c.old is not None and c.old[1] not in added for c in wanted)
    if not gone:
        return
    total = 0
    for _ in trees.walk(store.objects, base):
        total += 1
        if total > 2 * gone:
            return
    if change == EMPTY_TREE or (gone >= 5 and 2 * gone > total):
        raise LandMismatchError(
            f"the change removes {gone} of {total} files",
            hint="if that is what it is for, land it with --allow-mass-delete",
            reason="mass_delete",
            removed=gone,
            files=total,
        )


def check_reverts(
    store: Store, ref: str, base: str, base_tree: str, wanted: Sequence[Change], author: str, since: int | None
) -> None:
    """Refuses a change that puts back what another agent's land replaced (A11).

    Looks at lands that are in the base's history and newer than operation `since`, the workspace's creation
    (without one: about the last 200 lands). Raises `E_LAND_MISMATCH` with the list of them.
    """
    top = op_of(store, ref, base)
    if top is None:
        return
    floor = since if since is not None else top - _WINDOW_OPS
    undone: list[dict[str, str]] = []
    for path, old, new in wanted:
        rows = store.db.rows(
            "SELECT op, old, new, author FROM land_paths WHERE path = ? AND ref = ? AND op <= ? AND op > ?"
            " ORDER BY op DESC",
            (path, ref, top, floor),
        )
        want = name_of(new)
        edit: _Edit | None = None
        for number, (op, before, after, by) in enumerate(rows):
            if after == want:
                break
            if by == author:
                continue
            back = before == want
            if not back and number < _HUNK_LANDS:
                edit = edit or _Edit(store, name_of(old), want)
                back = edit.takes_back(before, after)
            if back:
                landed = store.db.row("SELECT landed FROM landed WHERE op = ? LIMIT 1", (op,))
                undone.append({"path": path_text(path), "agent": by, "landed": str(landed[0]) if landed else ""})
                break
    if undone:
        who = ", ".join(sorted({u["agent"] for u in undone}))
        raise LandMismatchError(
            f"the change puts back on {short_ref(ref)} what {who} replaced: {', '.join(u['path'] for u in undone[:5])}",
            hint="take the target's version into the change, or land it on purpose with --allow-revert",
            reason="reverts_lands",
            reverts=undone[:100],
        )


def name_of(entry: Entry | None) -> str | None:
    """Gives mode and id of an entry as the table `land_paths` keeps them."""
    return None if entry is None else f"{entry[0].decode('ascii')} {entry[1].hex()}"


def op_of(store: Store, ref: str, base: str) -> int | None:
    """Gives the operation that put a commit on a ref, by landing it or by moving the ref to it; None when unknown."""
    row = store.db.row(
        "SELECT max(op) FROM (SELECT op FROM landed WHERE landed = ? AND ref = ? UNION ALL"
        " SELECT op FROM landed WHERE change = ? AND ref = ? UNION ALL"
        " SELECT op FROM ref_values WHERE name = ? AND target = ?)",
        (base, ref, base, ref, ref, base),
    )
    return None if row is None or row[0] is None else int(row[0])


class _Edit:
    """Is a change of one file's lines, asked whether it takes back lines that a land wrote (A11)."""

    def __init__(self, store: Store, old: str | None, new: str | None) -> None:
        self._store = store
        self._old, self._new = self._lines(old), self._lines(new)
        blocks = linediff.shared(self._old, self._new) if self._old is not None and self._new is not None else []
        self._hunks = {(h.start, h.end): h.lines for h in linediff.hunks(blocks, self._new or [])}

    def takes_back(self, before: str | None, after: str | None) -> bool:
        """Says whether lines of a land, where they stand now, become exactly those that they replaced."""
        if self._old is None or not self._hunks:
            return False
        was, wrote = self._lines(before), self._lines(after)
        if was is None or wrote is None:
            return False
        carried = linediff.shared(wrote, self._old)
        for hunk in linediff.hunks(linediff.shared(wrote, was), was):
            place = linediff.carry(carried, hunk.start, hunk.end, len(wrote), len(self._old))
            if place is not None and self._hunks.get(place) == hunk.lines:
                return True
        return False

    def _lines(self, name: str | None) -> list[bytes] | None:
        """Gives the lines of a file by its name in `land_paths`; None when it is absent, large or no text."""
        oid = name.split()[1] if name is not None else None
        stated = self._store.objects.header(oid) if oid is not None else None
        if oid is None or stated is None or stated[0] != "blob" or stated[1] > _HUNK_BYTES:
            return None
        text = self._store.objects.read(oid, "blob")
        return None if b"\0" in text else text.splitlines()
