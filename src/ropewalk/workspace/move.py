"""Bringing a workspace to another commit: only the paths that differ are touched, ignored files stay.

After a land the workspace stands on what was landed; a rebase brings in what others landed, with conflict
markers where both changed the same lines. A move that was killed is made again by the next command: each path
is compared with what it was and what it is to be, so that making it twice changes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from ropewalk.core.errors import ConflictError, InvalidError, NotFoundError, os_error
from ropewalk.core.ids import path_bytes, path_text, short_ref
from ropewalk.core.process import git_error
from ropewalk.store import lineage, merge, report, trees
from ropewalk.store.land import Answering
from ropewalk.store.store import Store
from ropewalk.store.trees import Change
from ropewalk.workspace import capture, foreign, overlay, snapshot, state, stats
from ropewalk.workspace.capture import Captured
from ropewalk.workspace.files import Files
from ropewalk.workspace.gitdir import covers
from ropewalk.workspace.state import Note, Workspace

KEPT = b".git/ropewalk-kept"
OURS, BASE, THEIRS = b"<<<<<<< this workspace", b"||||||| base", b">>>>>>> "
_BASE_MARK = re.compile(rb"\|{7} [0-9a-f]{7,40}(:.*)?\Z")
_LEFTOVERS = (b"MERGE_HEAD", b"MERGE_MSG", b"MERGE_MODE", b"CHERRY_PICK_HEAD", b"REVERT_HEAD", b"AUTO_MERGE")


class Rebased(NamedTuple):
    """Is what a rebase did: the workspace now, and the report of what is in conflict (None: nothing)."""

    workspace: Workspace
    report: report.Report | None
    changed: int


def settle(store: Store, ws: Workspace) -> Workspace:
    """Ends a move that a kill cut short after its land; else gives the workspace as it is."""
    pending = ws.note.pending
    if pending is None or ws.state != "ready":
        return ws
    row = store.db.row(
        "SELECT landed FROM landed WHERE change = ? AND ref = ? AND undone = 0 ORDER BY op DESC LIMIT 1",
        (pending.change, ws.target),
    )
    return ws if row is None else after_land(store, ws, str(row[0]))


def after_land(store: Store, ws: Workspace, landed: str, now: Captured | None = None) -> Workspace:
    """Moves a workspace to the commit its pending changeset became, and records that as its base.

    `now` is the capture that the changeset was made of, when it was made just now. What was edited since stays;
    where it does not fit what landed, the workspace stays where it is, on its own landed changeset.
    """
    pending = ws.note.pending
    assert pending is not None
    if now is None or now.tree != pending.tree or not _untouched(ws, now, store, landed):
        now = capture.capture(store, ws)
    head_tree = store.objects.commit(landed).tree
    tree = head_tree
    if now.tree not in (pending.tree, head_tree):
        merged = merge.merge(store.objects, pending.tree, now.tree, head_tree)
        if not merged.clean:
            store.warnings.append(
                f"{ws.name}: edits made since the capture clash with what landed; `rw ws rebase {ws.name}` shows where"
            )
            store.objects.take_new()
            return state.save(store, _standing(ws, pending.change))
        tree = merged.tree
    bring(store, ws, now, tree, landed)
    store.objects.take_new()
    return state.save(store, _standing(ws, landed))


def _untouched(ws: Workspace, now: Captured, store: Store, landed: str) -> bool:
    """Says whether the files that a move would write are as they were captured."""
    todo = trees.diff(store.objects, now.tree, store.objects.commit(landed).tree)
    with Files(ws.path) as files:
        return not _touched(files, now, todo)


def _standing(ws: Workspace, base: str) -> Workspace:
    return msgspec.structs.replace(ws, base=base, note=_settled(ws.note))


def _settled(note: Note) -> Note:
    """Gives a note without a land in progress and without conflicts."""
    return msgspec.structs.replace(note, pending=None, conflicts=[], theirs=None, ours=None, common=None)


def rebase(store: Store, ws: Workspace, ref: str, agent: str) -> Rebased:
    """Brings what was landed on a ref into a workspace, under its edits.

    Where both changed the same lines the files hold both with conflict markers, the workspace's `conflicts`
    names them, and what the workspace was before is a changeset of the store.
    """
    target = store.ref(ref)
    if target is None:
        raise NotFoundError(f"there is no ref {short_ref(ref)!r}", ref=short_ref(ref))
    still = marked(ws)
    if still:
        raise unresolved(ws, still)
    if target == ws.base:
        return Rebased(ws, None, 0)
    objects = store.objects
    objects.take_new()
    now = capture.capture(store, ws)
    capture.check_lost(ws, now)
    start = lineage.find_base(store, ref, target, ws.base, allow_reland=True).commit
    head_tree = objects.commit(target).tree
    merged = _merged(store, objects.commit(start).tree, now.tree, head_tree)
    if merged.clean:
        bring(store, ws, now, merged.tree, target)
        objects.take_new()
        return Rebased(state.save(store, _standing(ws, target)), None, len(now.changes))
    kept = snapshot.take(store, ws, agent, "before a rebase", now)
    before = (store.ref(kept) if kept is not None else None) or ws.base
    built = report.build(store, merged, ref=ref, base=start, theirs=target, change=before)
    edit = trees.Edit(objects, merged.tree)
    labels = {b"<<<<<<< " + merged.ours_label.encode(): OURS, THEIRS + merged.theirs_label.encode(): THEIRS + name(ref)}
    for conflict in merged.conflicts:
        entry = trees.lookup(objects, merged.tree, conflict.path)
        if entry is None or entry[0] not in (trees.FILE, trees.EXEC):
            continue
        lines = objects.read(entry[1].hex(), "blob").split(b"\n")
        text = b"\n".join(
            BASE if _BASE_MARK.match(line) else next((new for old, new in labels.items() if line.startswith(old)), line)
            for line in lines
        )
        edit.set(conflict.path, (entry[0], bytes.fromhex(objects.write("blob", text))))
    shown = edit.write() if merged.conflicts else merged.tree
    bring(store, ws, now, shown, target, {conflict.path for conflict in merged.conflicts})
    objects.take_new()
    paths = [path_text(c.path) for c in merged.conflicts]
    note = msgspec.structs.replace(
        _settled(ws.note), conflicts=paths, theirs=target, ours=before, common=objects.commit(start).tree
    )
    ws = state.save(store, msgspec.structs.replace(ws, base=target, note=note))
    return Rebased(ws, built, len(now.changes))


def resolve(store: Store, ws: Workspace, answering: Answering, agent: str) -> tuple[Workspace, list[bytes]]:
    """Answers conflicts that a rebase left in a workspace's files; gives it and the paths that were written.

    Paths without an answer stay as they are, and what the files held before is a snapshot. `E_INVALID` when nothing
    is in conflict or the answer was made for another head.
    """
    note, resolution = ws.note, answering.resolution
    if not note.conflicts or note.theirs is None or note.ours is None or note.common is None:
        raise InvalidError(
            f"nothing is in conflict in {ws.name}",
            hint="`rw ws rebase` brings in what others landed",
            workspace=ws.name,
        )
    if resolution.against != note.theirs:
        raise InvalidError(
            f"the resolution is against {resolution.against[:12]}, and the conflict with {note.theirs[:12]}",
            hint="answer the report of the last `rw ws rebase`",
            against=note.theirs,
        )
    objects = store.objects
    objects.take_new()
    merged = _merged(store, note.common, objects.commit(note.ours).tree, objects.commit(note.theirs).tree)
    tree, decided = report.apply(store, merged, resolution, answering.read_file)
    now = capture.capture(store, ws)
    snapshot.take(store, ws, agent, "before a resolution", now)
    edit = trees.Edit(objects, now.tree)
    paths = {*decided, *(change.path for change in trees.diff(objects, merged.tree, tree))}
    for path in sorted(paths):
        entry = trees.lookup(objects, tree, path)
        if entry is None or entry[0] != trees.TREE:
            edit.set(path, entry)
    bring(store, ws, now, edit.write(), ws.base, paths)
    objects.take_new()
    left = [text for text in note.conflicts if path_bytes(text) not in paths]
    note = msgspec.structs.replace(note, conflicts=left) if left else _settled(note)
    return state.save(store, msgspec.structs.replace(ws, note=note)), sorted(paths)


def _merged(store: Store, base: str, ours: str, theirs: str) -> merge.Merged:
    """Merges three trees, with the second chance for files in conflict."""
    merged = merge.merge(store.objects, base, ours, theirs)
    if merged.clean:
        return merged
    from ropewalk.store.structure.chance import second_chance

    return second_chance(store, merged)


def discard(store: Store, ws: Workspace, agent: str, paths: Sequence[bytes]) -> tuple[list[bytes], str | None]:
    """Brings paths (none: all that changed) back to the base; gives them, and the snapshot that was taken before.

    `E_NOT_FOUND` for a path under which nothing changed.
    """
    ws = settle(store, ws)
    store.objects.take_new()
    now = capture.capture(store, ws)
    for path in paths:
        if not any(_covers(path, change.path) for change in now.changes):
            raise NotFoundError(f"nothing changed at {path_text(path)!r}", path=path_text(path))
    todo = [c for c in now.changes if not paths or any(_covers(path, c.path) for path in paths)]
    kept = snapshot.take(store, ws, agent, "before a discard", now)
    edit = trees.Edit(store.objects, now.tree)
    for change in todo:
        edit.set(change.path, change.old)
    tree = edit.write() if todo else now.tree
    bring(store, ws, now, tree, ws.base)
    store.objects.take_new()
    state.save(store, msgspec.structs.replace(ws, note=_settled(ws.note)) if tree == now.base_tree else ws)
    return [change.path for change in todo], kept


def _covers(above: bytes, path: bytes) -> bool:
    return path == above or path.startswith(above + b"/")


def name(ref: str) -> bytes:
    """Gives a ref's short name as conflict markers show it."""
    return short_ref(ref).encode("utf-8")


def marked(ws: Workspace) -> list[str]:
    """Gives the paths of a rebase in conflict that still hold its markers."""
    if not ws.note.conflicts:
        return []
    found = []
    overlay.ensure(ws)
    with Files(ws.path) as files:
        for text in ws.note.conflicts:
            lines = (files.read(path_bytes(text), 64 << 20) or b"").splitlines()
            if any(line.startswith(OURS) for line in lines) or any(line == THEIRS + name(ws.target) for line in lines):
                found.append(text)
    return found


def unresolved(ws: Workspace, paths: list[str]) -> ConflictError:
    """Gives the error of a workspace whose files still hold conflict markers."""
    return ConflictError(
        f"{len(paths)} file{'s' if len(paths) != 1 else ''} of {ws.name} still hold conflict markers: "
        + ", ".join(paths[:5]),
        hint="edit them so that both sides' intent is kept and no marker is left, then run the command again",
        unresolved=paths,
        theirs=ws.note.theirs,
    )


def bring(store: Store, ws: Workspace, now: Captured, tree: str, head: str, shown: Collection[bytes] = ()) -> None:
    """Makes a workspace's files those of a tree, and its HEAD and index those of a commit.

    What sparse checkout keeps off the disk stays off it, but for the paths in `shown`.

    `now` is what the files are. A file that is in the way of a new one, because it was ignored or held back,
    is moved to `.git/ropewalk-kept` and named in a warning.
    """
    todo = trees.diff(store.objects, now.tree, tree)
    overlay.ensure(ws)
    with Files(ws.path) as files:
        overlay.confirm(ws, files)
        gone = {change.path for change in todo if change.new is None}
        hidden = {c.path for c in todo if _is_hidden(ws, files, now, c)}.union(now.hidden).difference(shown)
        todo = [change for change in todo if change.path not in hidden]
        for path in _touched(files, now, todo):
            raise ConflictError(
                f"{path_text(path)!r} was edited while the workspace was being moved",
                hint="let the agent come to rest, then run the command again",
                path=path_text(path),
            )
        for change in todo:
            if change.new is None:
                files.remove(change.path)
        blobs = store.objects.read_many([c.new[1].hex() for c in todo if c.new and c.new[0] != trees.GITLINK])
        contents = iter(blobs)
        for change in todo:
            if change.new is not None:
                found = next(contents) if change.new[0] != trees.GITLINK else ("", b"")
                if found is None:
                    raise NotFoundError(f"there is no object {change.new[1].hex()}", object=change.new[1].hex())
                put(store, files, change, found[1])
        _set_head(store, ws, files, head, sorted(hidden - gone))


def _is_hidden(ws: Workspace, files: Files, now: Captured, change: Change) -> bool:
    """Says whether sparse checkout keeps a path off the disk."""
    if change.path in now.hidden:
        return True
    return change.old is None and not covers(ws.note.sparse, change.path) and files.stat(change.path) is None


def _touched(files: Files, now: Captured, todo: Sequence[Change]) -> list[bytes]:
    """Gives the paths of `todo` that are not as they were captured."""
    found = []
    for change in todo:
        seen = now.seen.get(change.path)
        if seen is not None and change.old is not None:
            there = files.stat(change.path)
            if there is None or stats.seen_of(there) != seen:
                found.append(change.path)
    return found


def put(store: Store, files: Files, change: Change, data: bytes) -> None:
    """Makes a path of a workspace what a change says; what is in the way of it is kept aside."""
    path, old, new = change
    assert new is not None
    parts = path.split(b"/")
    for n in range(1, len(parts)):
        above = b"/".join(parts[:n])
        there = files.stat(above)
        if there is not None and files.folder(above) is None:
            _aside(store, files, above)
    there = files.stat(path)
    if there is not None and (old is None or files.folder(path) is not None) and new[0] != trees.GITLINK:
        if files.folder(path) is not None:
            files.remove(path)  # goes only if it is empty
        if files.stat(path) is not None:
            _aside(store, files, path)
    if new[0] == trees.GITLINK:
        files.make_folder(path)
    elif new[0] == trees.LINK:
        files.put_link(path, data)
    else:
        files.put(path, data, mode=0o777 if new[0] == trees.EXEC else 0o666)


def _aside(store: Store, files: Files, path: bytes) -> None:
    kept = files.set_aside(path, KEPT)
    store.warnings.append(f"{path_text(path)!r} was in the way of a file that landed; it is kept as {path_text(kept)}")


def _set_head(store: Store, ws: Workspace, files: Files, head: str, hidden: Sequence[bytes]) -> None:
    """Points the workspace's branch, HEAD and index at a commit; its index comes from our own git directory."""
    mine = state.git_dir(store, ws.name)
    index = os.path.join(mine, "index")
    done = state.private_git(store, ws, "read-tree", "--reset", head, timeout=600)
    if done.code and os.path.exists(index):
        # a damaged index of ours is made anew
        os.unlink(index)
        done = state.private_git(store, ws, "read-tree", "--reset", head, timeout=600)
    if done.code:
        raise git_error("read-tree", done)
    if hidden:
        rows = b"\0".join(hidden) + b"\0"
        state.private_git(store, ws, "update-index", "--skip-worktree", "-z", "--stdin", stdin=rows)
    state.private_git(store, ws, "update-index", "-q", "--refresh", "--ignore-submodules", timeout=600)
    try:
        with open(index, "rb") as file:
            data = file.read()
    except OSError as error:
        raise os_error(error, "read of an index") from None
    if files.folder(b".git") is None:
        store.warnings.append(f"{ws.name}: its .git is gone, so only its files were brought up to date")
        return
    before = foreign.head(files)
    if before is not None and before != head:
        files.put(b".git/ORIG_HEAD", before.encode("ascii") + b"\n")
    branch = b"refs/heads/" + ws.name.encode("ascii")
    files.put(b".git/" + branch, head.encode("ascii") + b"\n")
    files.put(b".git/HEAD", b"ref: " + branch + b"\n")
    files.put(b".git/index", data)
    for leftover in _LEFTOVERS:
        files.remove(b".git/" + leftover)
