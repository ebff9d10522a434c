"""Three-way merge of trees: what is plain is decided here, all else goes to git's own merge-ort.

An entry is decided in-process only when exactly one side differs from the base, or both made the same change
to a file or the same addition (finding A9). Anything that a rename could touch - a path that both sides
removed, a removal against a touch, two different contents - sends the three whole trees to `git merge-tree`,
so that results and kinds of conflict are the ones people know. Cost goes with what changed.
"""

from __future__ import annotations

import os
import re
from _thread import get_ident
from collections.abc import Sequence
from typing import NamedTuple

from ropewalk.core.errors import BusyError
from ropewalk.core.ids import EMPTY_TREE
from ropewalk.core.process import ChildTimeout, git_env, git_error, git_program, run
from ropewalk.store import trees
from ropewalk.store.loose import Damaged
from ropewalk.store.objects import Objects, Person, commit_bytes
from ropewalk.store.trees import TREE, Entry

_NOBODY = Person(b"ropewalk", b"merge@ropewalk.local", 0, b"+0000")
_SETTINGS = {
    "merge.renames": "true",
    "merge.directoryRenames": "conflict",
    "merge.renameLimit": "10000",
    "merge.conflictStyle": "diff3",
    "merge.renormalize": "false",
    "core.attributesFile": "/dev/null",
}


class Message(NamedTuple):
    """Is one remark of merge-ort: the paths it speaks of, git's stable name for its kind, and its text."""

    paths: tuple[bytes, ...]
    kind: str
    text: str


class Conflict(NamedTuple):
    """Is one conflicted path with its entries in base, ours (the change) and theirs (the target)."""

    path: bytes
    base: Entry | None
    ours: Entry | None
    theirs: Entry | None


class Merged(NamedTuple):
    """Is a merge's outcome: a tree, who decided it, and what is in conflict.

    With conflicts the tree is git's own picture of them: files with markers, labelled by `ours_label` and
    `theirs_label`. `structured` are the paths whose conflict a second chance decided, `refused` those it left
    with the reasons (`store/structure`).
    """

    tree: str
    by: str
    conflicts: tuple[Conflict, ...] = ()
    messages: tuple[Message, ...] = ()
    ours_label: str = ""
    theirs_label: str = ""
    structured: tuple[bytes, ...] = ()
    refused: tuple[tuple[bytes, str], ...] = ()

    @property
    def clean(self) -> bool:
        """Says whether there is no conflict."""
        return not self.conflicts


class NeedsOrt(Exception):
    """The rule of finding A9 leaves this merge to merge-ort."""


def merge(objects: Objects, base: str, ours: str, theirs: str, *, timeout: float = 120.0) -> Merged:
    """Merges three trees; `E_BUSY` when merge-ort does not end within `timeout` seconds."""
    plain = merge_plain(objects, base, ours, theirs)
    return plain if plain is not None else merge_ort(objects, base, ours, theirs, timeout=timeout)


def merge_plain(objects: Objects, base: str, ours: str, theirs: str) -> Merged | None:
    """Gives the merge if the in-process rule decides all of it, else None."""
    if ours in (base, theirs):
        return Merged(theirs, "same")
    if theirs == base:
        return Merged(ours, "same")
    try:
        return Merged(_level(objects, base, ours, theirs) or objects.write_tree({}), "trees")
    except NeedsOrt:
        return None


def _level(objects: Objects, base: str, ours: str, theirs: str) -> str | None:
    """Gives the merged tree of one folder, None when it is empty; raises `NeedsOrt`."""
    b, o, t = objects.tree(base), objects.tree(ours), objects.tree(theirs)
    changed = {name for name, _ in b.items() ^ o.items()}
    both = changed & {name for name, _ in b.items() ^ t.items()}
    merged = dict(t)
    ordered = True
    for name in changed:
        entry = o.get(name) if name not in both else _both(objects, b.get(name), o.get(name), t.get(name))
        present = merged.get(name)
        if entry is None:
            merged.pop(name, None)
        else:
            ordered = ordered and present is not None and (present[0] == TREE) == (entry[0] == TREE)
            merged[name] = entry
    return objects.write_tree(merged, ordered=ordered) if merged else None


def _both(objects: Objects, b: Entry | None, o: Entry | None, t: Entry | None) -> Entry | None:
    """Decides an entry that both sides changed, or raises `NeedsOrt`."""
    if o is None or t is None:
        raise NeedsOrt
    if o[0] == TREE and t[0] == TREE and (b is None or b[0] == TREE):
        # equal ids too are descended: both may have removed a path that one of them moved elsewhere
        tree = _level(objects, b[1].hex() if b else EMPTY_TREE, o[1].hex(), t[1].hex())
        return (TREE, bytes.fromhex(tree)) if tree else None
    if o == t and o[0] in (trees.FILE, trees.EXEC) and (b is None or b[0] == o[0]):
        return o
    raise NeedsOrt


def merge_ort(
    objects: Objects, base: str, ours: str, theirs: str, *, timeout: float = 120.0, tied: bool = False
) -> Merged:
    """Merges three trees with `git merge-tree`, through two synthetic commits on a synthetic base.

    git 2.39 takes no base of its own; the synthetic commits make it the one we name (A10). They are removed
    afterwards; user and system configuration have no part in it (A42). A merge that is `tied`, because the writer
    lock is held meanwhile, ends with this process (A26).
    """
    objects.spill()
    root = _synthetic(objects, base, [])
    one, two = _synthetic(objects, ours, [root]), _synthetic(objects, theirs, [root])
    argv: list[str | bytes] = [git_program(), f"--git-dir={objects.git_dir}"]
    for key, value in _SETTINGS.items():
        argv += ["-c", f"{key}={value}"]
    argv += ["merge-tree", "--write-tree", "-z", "--messages", one, two]
    try:
        done = run(argv, env=git_env(), timeout=timeout, tied=tied)
    except ChildTimeout:
        raise BusyError(f"the merge did not end within {timeout:g} s", seconds=timeout) from None
    finally:
        for oid in {one, two, root}:
            objects.loose.unlink(oid)
    if done.code not in (0, 1):
        raise git_error("merge-tree", done)
    tree, conflicts, messages = parse_output(done.out)
    conflicts, messages = _under_own_names(conflicts, messages, (one, two))
    if done.code == 1 and not conflicts:
        # directory renames can be in conflict without any staged entry
        conflicts = tuple(
            Conflict(path, *(trees.lookup(objects, t, path) for t in (base, ours, theirs)))
            for path in sorted({p for m in messages if m.kind.startswith("CONFLICT") for p in m.paths})
        )
    if done.code == 0:
        try:
            adopt(objects, tree, (ours, theirs))
        except Damaged:
            return merge_ort(objects, base, ours, theirs, timeout=timeout, tied=tied)
    return Merged(tree, "ort", conflicts, messages, one, two)


def _synthetic(objects: Objects, tree: str, parents: Sequence[str]) -> str:
    """Writes a commit of a tree for git alone; process and thread id keep two merges from removing each other's."""
    who = _NOBODY._replace(name=b"ropewalk %d.%d" % (os.getpid(), get_ident()))
    return objects.loose.write("commit", commit_bytes(tree, parents, who, who, b"merge\n"))


def parse_output(out: bytes) -> tuple[str, tuple[Conflict, ...], tuple[Message, ...]]:
    """Gives (tree, conflicts, messages) of `git merge-tree --write-tree -z --messages`."""
    fields = out.split(b"\0")
    tree = fields[0].decode("ascii")
    stages: dict[bytes, dict[int, Entry]] = {}
    at = 1
    while at < len(fields) and fields[at]:
        head, _, path = fields[at].partition(b"\t")
        mode, oid, stage = head.split(b" ")
        stages.setdefault(path, {})[int(stage)] = (mode, bytes.fromhex(oid.decode("ascii")))
        at += 1
    at += 1
    messages = []
    while at < len(fields) and fields[at].isdigit():
        count = int(fields[at])
        paths = tuple(fields[at + 1 : at + 1 + count])
        kind, text = fields[at + 1 + count], fields[at + 2 + count]
        messages.append(Message(paths, kind.decode("utf-8", "replace"), text.decode("utf-8", "replace").rstrip("\n")))
        at += 3 + count
    conflicts = tuple(Conflict(path, *(by.get(n) for n in (1, 2, 3))) for path, by in sorted(stages.items()))
    return tree, conflicts, tuple(messages)


def _under_own_names(
    conflicts: Sequence[Conflict], messages: Sequence[Message], labels: tuple[str, str]
) -> tuple[tuple[Conflict, ...], tuple[Message, ...]]:
    """Gives conflicts and messages with the paths that people know.

    A side that found its place taken stands in git's tree as `PATH~COMMIT`, and the commits are synthetic, so
    that name would be another one at each merge.
    """
    stand_in = re.compile(rb"~(?:%s|%s)(?:_\d+)?\Z" % tuple(label.encode("ascii") for label in labels))
    by_path: dict[bytes, Conflict] = {}
    for conflict in conflicts:
        path = stand_in.sub(b"", conflict.path)
        other = by_path.get(path, Conflict(path, None, None, None))
        by_path[path] = Conflict(path, *(a or b for a, b in zip(other[1:], conflict[1:], strict=True)))
    return tuple(by_path[path] for path in sorted(by_path)), tuple(
        m._replace(paths=tuple(dict.fromkeys(stand_in.sub(b"", p) for p in m.paths))) for m in messages
    )


def adopt(objects: Objects, tree: str, known: Sequence[str]) -> None:
    """Notes for the journal every object of a tree that the known trees do not have at the same place."""
    if tree in known:
        return
    objects.adopt(tree)
    others = [objects.tree(k) for k in known]
    for name, entry in objects.tree(tree).items():
        if any(other.get(name) == entry for other in others):
            continue
        if entry[0] == TREE:
            below = [e[1].hex() for o in others if (e := o.get(name)) is not None and e[0] == TREE]
            adopt(objects, entry[1].hex(), below)
        elif entry[0] != trees.GITLINK:
            objects.adopt(entry[1].hex())
