"""Where a merge in conflict gets its second chance: its files go to the structural merge, and what fits comes back."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ropewalk.store import trees
from ropewalk.store.merge import Conflict, Merged
from ropewalk.store.structure.languages import installed, language_of

if TYPE_CHECKING:
    from ropewalk.store.objects import Objects
    from ropewalk.store.store import Store
    from ropewalk.store.structure.child import Result, Task

FILES_MAX, BYTES_MAX, SECONDS = 50, 1 << 20, 20.0
_KINDS = frozenset({"CONFLICT (contents)", "CONFLICT (content)", "CONFLICT (add/add)"})
_FILES = (trees.FILE, trees.EXEC)


def second_chance(store: Store, merged: Merged, *, seconds: float = SECONDS, without: Collection[bytes] = ()) -> Merged:
    """Gives a merge with the conflicts taken out that the files' structure decides, and reasons for the others.

    Its tree holds the results; `structured` names their paths, `refused` says why a file of a known language was
    left. `without` are paths that somebody decided already. The setting switched off, a missing extra, and a merge
    that is not done within `seconds` leave all as it was.
    """
    if merged.clean or not _wanted(store):
        return merged
    objects = store.objects
    by_path = {c.path: c for c in merged.conflicts if c.path not in without and _fits(merged, c)}
    tasks, refused = _tasks(objects, list(by_path.values())[:FILES_MAX])
    edit = trees.Edit(objects, merged.tree)
    done: list[bytes] = []
    for task, result in zip(tasks, _answers(tasks, seconds, store.lock.held) if tasks else (), strict=False):
        if result.content is None:
            refused[task.path] = result.reason
            continue
        entry = trees.lookup(objects, merged.tree, task.path)
        mode = entry[0] if entry is not None and entry[0] in _FILES else trees.FILE
        edit.set(task.path, (mode, bytes.fromhex(objects.write("blob", result.content))))
        done.append(task.path)
    left = tuple(c for c in merged.conflicts if c.path not in done)
    return merged._replace(
        tree=edit.write() if done else merged.tree,
        conflicts=left,
        structured=tuple(done),
        refused=tuple(refused.items()),
    )


def _wanted(store: Store) -> bool:
    """Says whether neither whoever lands nor the repository's operator has switched it off."""
    if not store.structural:
        return False
    from ropewalk.core import policy

    return policy.read(policy.operator_folder(store.layout.root)).merge.structural


def _fits(merged: Merged, conflict: Conflict) -> bool:
    """Says whether nothing but the content of one file is in conflict, and the file's language can be read."""
    sides = [e for e in (conflict.base, conflict.ours, conflict.theirs) if e is not None]
    if conflict.ours is None or conflict.theirs is None or any(e[0] not in _FILES for e in sides):
        return False
    modes = [e[0] for e in sides]
    if modes[-1] != modes[-2] and (conflict.base is None or modes[0] not in modes[1:]):
        return False
    told = [m for m in merged.messages if m.kind.startswith("CONFLICT")]
    known = {c.path for c in merged.conflicts}
    if any(m.kind not in _KINDS for m in told if conflict.path in m.paths or not known.issuperset(m.paths)):
        return False
    language = language_of(conflict.path)
    return language is not None and installed(language)


def _tasks(objects: Objects, conflicts: Sequence[Conflict]) -> tuple[list[Task], dict[bytes, str]]:
    """Gives the files to merge, and the reasons for those that are too large or not there."""
    if not conflicts:
        return [], {}
    from ropewalk.store.structure.child import Task

    tasks: list[Task] = []
    refused: dict[bytes, str] = {}
    for conflict in conflicts:
        base, ours, theirs = (
            None if entry is None else objects.read(entry[1].hex(), "blob")
            for entry in (conflict.base, conflict.ours, conflict.theirs)
        )
        assert ours is not None and theirs is not None
        if max(len(base or b""), len(ours), len(theirs)) > BYTES_MAX:
            refused[conflict.path] = f"is larger than {BYTES_MAX >> 20} MiB"
        else:
            tasks.append(Task(conflict.path, base, ours, theirs))
    return tasks, refused


def _answers(tasks: Sequence[Task], seconds: float, tied: bool) -> list[Result]:
    """Lets a child merge some files; gives a reason for each when the child does not end well or in time."""
    import msgspec

    from ropewalk.core.process import ChildTimeout, clean_env, run
    from ropewalk.store.structure.child import Result

    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    # the caller's folder may be an agent's, so nothing is imported from there
    env = clean_env()
    path = [own, *(p for p in env.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(p))]
    env["PYTHONPATH"] = os.pathsep.join(path)
    argv = [sys.executable, "-P", "-m", "ropewalk.store.structure.child"]
    try:
        done = run(argv, stdin=msgspec.msgpack.encode(tasks), env=env, timeout=seconds, tied=tied)
    except ChildTimeout:
        return [Result(None, f"the merge did not end within {seconds:g} s")] * len(tasks)
    if done.code:
        return [Result(None, f"the merge ended with {done.code}")] * len(tasks)
    return msgspec.msgpack.decode(done.out, type=list[Result])
