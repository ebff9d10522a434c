"""Conflict reports: what clashed, small enough for a model's context, and the resolution that answers one."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, Literal

import msgspec

from ropewalk.core.errors import ConflictError, InvalidError
from ropewalk.core.ids import check_path, path_bytes, path_text
from ropewalk.core.process import git
from ropewalk.store import trees
from ropewalk.store.changes import Content, FileReader, content_bytes
from ropewalk.store.merge import Conflict, Merged
from ropewalk.store.store import Store
from ropewalk.store.trees import Entry

TEXT_MAX, HUNKS_MAX, FILES_MAX = 2000, 20, 50

_KINDS = {
    "contents": "content",
    "content": "content",
    "binary": "binary",
    "add/add": "add_add",
    "modify/delete": "modify_delete",
    "rename/delete": "rename_delete",
    "rename/rename": "rename_rename",
    "rename/add": "rename_add",
    "rename involved in collision": "rename_add",
    "file/directory": "directory_file",
    "directory/file": "directory_file",
    "distinct modes": "distinct_types",
    "distinct types": "distinct_types",
    "submodule": "submodule",
    "directory rename": "dir_rename",
    "dir rename": "dir_rename",
    "file location": "dir_rename",
    "mode": "mode",
}


class Side(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one side of a hunk: first line (1-based), line count, text (base64 with `encoding`), and how to read a cut rest."""

    start: int
    count: int
    text: str
    encoding: Literal["utf8", "base64"] = "utf8"
    rest: str | None = None


class Hunk(msgspec.Struct, frozen=True):
    """Is one place where both sides changed the same lines."""

    base: Side
    ours: Side
    theirs: Side


class LastChange(msgspec.Struct, frozen=True):
    """Names who changed the path on the target last."""

    changeset: str
    agent: str


class FileConflict(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one path in conflict; `note` is git's own sentence."""

    path: str
    kinds: list[str]
    hunks: list[Hunk] = []
    more_hunks: int = 0
    note: str = ""
    last_changed: LastChange | None = None


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what E_CONFLICT carries: target head, base, and the files; `ours` is the change, `theirs` the target."""

    theirs: str
    base: str
    files: list[FileConflict]
    more_files: int = 0


class FileResolution(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Says in exactly one way what becomes of a path in conflict."""

    take: Literal["ours", "theirs", "base"] | None = None
    content: Content | None = None
    delete: bool = False
    move_to: str | None = None


class Resolution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is the answer to a report: the target head it was made against, and what becomes of each path."""

    against: str
    files: dict[str, FileResolution]


def build(store: Store, merged: Merged, *, ref: str, base: str, theirs: str, change: str) -> Report:
    """Gives the report of a merge in conflict; commits by id, `ref` the target's full name."""
    files = []
    for conflict in merged.conflicts[:FILES_MAX]:
        kinds, note = _kinds(merged, conflict)
        hunks, more = _hunks(store, merged, conflict, {"base": base, "ours": change, "theirs": theirs})
        last = last_changed(store, ref, theirs, conflict.path)
        files.append(FileConflict(path_text(conflict.path), kinds, hunks, more, note, last))
    return Report(theirs, base, files, max(0, len(merged.conflicts) - FILES_MAX))


def error(report: Report, resolution_stale: list[str] | None = None) -> ConflictError:
    """Gives the error that carries a report."""
    names = ", ".join(f"{f.kinds[0]} {f.path}" for f in report.files[:3])
    count = len(report.files) + report.more_files
    details: dict[str, Any] = {"report": msgspec.to_builtins(report)}
    if resolution_stale:
        details["stale"] = resolution_stale
    return ConflictError(f"{count} path{'s' if count != 1 else ''} in conflict: {names}", **details)


def _kinds(merged: Merged, conflict: Conflict) -> tuple[list[str], str]:
    kinds: list[str] = []
    note = ""
    for message in merged.messages:
        if conflict.path not in message.paths or not message.kind.startswith("CONFLICT"):
            continue
        note = note or message.text
        inner = message.kind.partition("(")[2].rstrip(")")
        found = _KINDS.get(inner) or next((k for word, k in _KINDS.items() if word in inner), "other")
        if found == "modify_delete" and conflict.ours is None:
            found = "delete_modify"
        if found == "content" and conflict.base is None:
            found = "add_add"
        if found not in kinds:
            kinds.append(found)
    sides = [e for e in (conflict.ours, conflict.theirs) if e is not None]
    if any(e[0] == trees.LINK for e in sides) and "distinct_types" not in kinds:
        kinds.append("symlink")
    if any(e[0] == trees.GITLINK for e in sides) and "submodule" not in kinds:
        kinds.append("submodule")
    return kinds or ["other"], note[:500]


_MARK = re.compile(rb"(<{7}|\|{7}|={7}|>{7})(?: ([^\n]*))?\n?\Z")


def _hunks(store: Store, merged: Merged, conflict: Conflict, revs: dict[str, str]) -> tuple[list[Hunk], int]:
    """Reads the hunks off git's own conflicted file, whose markers carry ids that no file holds."""
    entry = trees.lookup(store.objects, merged.tree, conflict.path)
    if entry is None or entry[0] not in (trees.FILE, trees.EXEC):
        return [], 0
    lines = store.objects.read(entry[1].hex(), "blob").splitlines(keepends=True)
    if b"\0" in b"".join(lines[:200]):
        return [], 0
    sides = {"base": _lines(store, conflict.base), "ours": _lines(store, conflict.ours), "theirs": _lines(store, conflict.theirs)}
    at = dict.fromkeys(sides, 0)
    found: list[Hunk] = []
    place: str | None = None
    part: dict[str, list[bytes]] = {}
    one, two = merged.ours_label.encode("ascii"), merged.theirs_label.encode("ascii")
    for line in lines:
        mark = _MARK.match(line)
        label = (mark[2] or b"") if mark else b""
        if mark and mark[1][:1] == b"<" and place is None and label.startswith(one):
            place, part = "ours", {"ours": [], "base": [], "theirs": []}
        elif mark and mark[1][:1] == b"|" and place == "ours":
            place = "base"
        elif mark and mark[1][:1] == b"=" and place in ("ours", "base") and not label:
            place = "theirs"
        elif mark and mark[1][:1] == b">" and place == "theirs" and label.startswith(two):
            found.append(Hunk(**{n: _side(n, sides[n], part[n], at, conflict.path, revs[n]) for n in sides}))
            place = None
        elif place is not None:
            part[place].append(line)
    return found[:HUNKS_MAX], max(0, len(found) - HUNKS_MAX)


def _lines(store: Store, entry: Entry | None) -> list[bytes]:
    if entry is None or entry[0] in (trees.TREE, trees.GITLINK):
        return []
    return store.objects.read(entry[1].hex(), "blob").splitlines(keepends=True)


def _side(name: str, whole: list[bytes], part: list[bytes], at: dict[str, int], path: bytes, rev: str) -> Side:
    start = at[name]
    # the last line of a file may lack the line end that git adds before a marker
    bare = [line.rstrip(b"\n") for line in part]
    for n in range(start, len(whole) - len(part) + 1):
        if [line.rstrip(b"\n") for line in whole[n : n + len(part)]] == bare:
            start = n
            break
    at[name] = start + len(part)
    data = b"".join(part)
    rest = None
    if len(data) > TEXT_MAX:
        kept, size = [], 0
        for line in part:
            size += len(line)
            if size > TEXT_MAX:
                break
            kept.append(line)
        data = b"".join(kept) or data[:TEXT_MAX]
        rest = f"rw cat {rev[:12]}:{path_text(path)} --lines {start + 1 + len(kept)}-{start + len(part)}"
    try:
        return Side(start + 1, len(part), data.decode("utf-8"), rest=rest)
    except UnicodeDecodeError:
        return Side(start + 1, len(part), b64encode(data).decode("ascii"), encoding="base64", rest=rest)


def last_changed(store: Store, ref: str, head: str, path: bytes) -> LastChange | None:
    """Gives who changed a path on a ref last: from the land record, else from git's history."""
    row = store.db.row(
        "SELECT landed.landed, land_paths.author FROM land_paths JOIN landed ON landed.op = land_paths.op"
        " WHERE land_paths.path = ? AND land_paths.ref = ? AND landed.undone = 0 ORDER BY land_paths.op DESC LIMIT 1",
        (path, ref),
    )
    if row is not None:
        return LastChange(str(row[0]), str(row[1]))
    out = git(store.layout.repo, "log", "-1", "--format=%H %an", head, "--", path, timeout=30, ok=(0, 128)).text()
    oid, _, name = out.partition(" ")
    return LastChange(oid, store.agent_of(oid) or name) if oid else None


def apply(
    store: Store, merged: Merged, resolution: Resolution, read_file: FileReader
) -> tuple[str, list[bytes]]:
    """Gives the tree of a merge in conflict with its resolution applied, and the paths it decided.

    Raises `E_INVALID` for a resolution that does not fit, and `E_CONFLICT` is the caller's when paths are left.
    """
    by_path = {c.path: c for c in merged.conflicts}
    edit = trees.Edit(store.objects, merged.tree)
    decided: list[bytes] = []
    for text, answer in resolution.files.items():
        path = check_path(path_bytes(text), what="the path of a resolution")
        conflict = by_path.get(path)
        if conflict is None:
            raise InvalidError(f"{text!r} is not in conflict", path=text, conflicts=[path_text(p) for p in by_path])
        given = [answer.take is not None, answer.content is not None, answer.delete, answer.move_to is not None]
        if sum(given) != 1 and given != [False, True, False, True]:
            raise InvalidError(f"the resolution of {text!r} must say one of take, content, delete, move_to", path=text)
        present = trees.lookup(store.objects, merged.tree, path)
        if answer.delete:
            entry = None
        elif answer.take is not None:
            entry = getattr(conflict, answer.take)
        elif answer.content is not None:
            modes = [e[0] for e in (conflict.ours, conflict.theirs) if e and e[0] in (trees.FILE, trees.EXEC)]
            blob = store.objects.write("blob", content_bytes(answer.content, text, read_file))
            entry = (modes[0] if modes else trees.FILE, bytes.fromhex(blob))
        else:
            entry = conflict.ours or conflict.theirs
        decided.append(path)
        if answer.move_to is not None:
            there = check_path(path_bytes(answer.move_to), what="move_to")
            edit.set(there, entry)
            decided.append(there)
            entry = None
        # a folder that stands there is the other side's, and stays unless this path becomes a file
        if entry is not None or (present is not None and present[0] != trees.TREE):
            edit.set(path, entry)
        if entry is not None and present is not None and present[0] == trees.TREE:
            decided += [inner for inner, _ in trees.walk(store.objects, present[1].hex(), path + b"/")]
    suffixes = tuple(b"~" + label.encode("ascii") for label in (merged.ours_label, merged.theirs_label))
    for path, _ in trees.walk(store.objects, merged.tree) if any(k in _kind_text(merged) for k in ("file/dir", "distinct")) else ():
        if path.endswith(suffixes):
            edit.set(path, None)  # git's own stand-in name for a side that found its place taken
    return edit.write(), decided


def _kind_text(merged: Merged) -> str:
    return " ".join(m.kind for m in merged.messages)


def undecided(merged: Merged, resolution: Resolution) -> list[bytes]:
    """Gives the conflicted paths a resolution leaves open; a path that exists in the base alone needs no word."""
    answered = {path_bytes(text) for text in resolution.files}
    return [c.path for c in merged.conflicts if c.path not in answered and (c.ours or c.theirs)]
