"""Conflict reports: what clashed, small enough for a model's context, and the resolution that answers one."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, BinaryIO, Literal

import msgspec

from ropewalk.core.errors import ConflictError, InvalidError
from ropewalk.core.ids import check_path, path_bytes, path_text
from ropewalk.store import trees
from ropewalk.store.changes import Content, FileReader, content_bytes
from ropewalk.store.merge import Conflict, Merged
from ropewalk.store.store import Store
from ropewalk.store.trees import Entry

STRUCTURE = "structure"
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
    """Is one side of a hunk: first line from 1, line count, text (base64 with `encoding`), how to read a cut rest."""

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
    """Is one path in conflict; `note` is git's own sentence, `refused_by` why a second chance left it."""

    path: str
    kinds: list[str]
    hunks: list[Hunk] = []
    more_hunks: int = 0
    note: str = ""
    last_changed: LastChange | None = None
    refused_by: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what E_CONFLICT carries: target head, base, and the files; `ours` is the change, `theirs` the target."""

    theirs: str
    base: str
    files: list[FileConflict]
    more_files: int = 0


class HunkResolution(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Says what becomes of one hunk: a side, or a text (`base64` where it is no UTF-8)."""

    take: Literal["ours", "theirs", "base"] | None = None
    text: str | None = None
    base64: str | None = None


class FileResolution(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Says in exactly one way what becomes of a path; `hunks` answers the report's, one for each in order."""

    take: Literal["ours", "theirs", "base"] | None = None
    content: Content | None = None
    hunks: list[HunkResolution] | None = None
    delete: bool = False
    move_to: str | None = None


class Resolution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is the answer to a report: the target head it was made against, and what becomes of each path."""

    against: str
    files: dict[str, FileResolution]


def build(store: Store, merged: Merged, *, ref: str, base: str, theirs: str, change: str) -> Report:
    """Gives the report of a merge in conflict; commits by id, `ref` the target's full name."""
    files = []
    refused = dict(merged.refused)
    for conflict in merged.conflicts[:FILES_MAX]:
        kinds, note = _kinds(merged, conflict)
        hunks, more = _hunks(store, merged, conflict, {"base": base, "ours": change, "theirs": theirs})
        last = last_changed(store, ref, theirs, conflict.path)
        left = {STRUCTURE: refused[conflict.path]} if conflict.path in refused else {}
        files.append(FileConflict(path_text(conflict.path), kinds, hunks, more, note, last, left))
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
_SPLIT = re.compile(rb"={7}\n?\Z")
_Lines = list[bytes]


def _segments(store: Store, merged: Merged, conflict: Conflict) -> list[_Lines | dict[str, _Lines]]:
    """Gives git's own conflicted file in order: lines that merged, and a dict of the three sides for each hunk.

    The markers carry ids that no file holds; only the one between base and theirs does not, and is found by what
    stands in the two versions. Empty for what has no hunks.
    """
    entry = trees.lookup(store.objects, merged.tree, conflict.path)
    if entry is None or entry[0] not in (trees.FILE, trees.EXEC):
        return []
    data = store.objects.read(entry[1].hex(), "blob")
    if b"\0" in data[:8192]:
        return []
    base, theirs = _lines(store, conflict.base), _lines(store, conflict.theirs)
    one, two = merged.ours_label.encode("ascii"), merged.theirs_label.encode("ascii")
    found: list[_Lines | dict[str, _Lines]] = []
    plain: _Lines = []
    ours: _Lines = []
    rest: _Lines = []
    place = ""
    for line in data.splitlines(keepends=True):
        mark = _MARK.match(line)
        label = (mark[2] or b"") if mark else b""
        if mark and mark[1][:1] == b"<" and not place and label.startswith(one):
            found.append(plain)
            plain, ours, rest, place = [], [], [], "ours"
        elif mark and mark[1][:1] == b"|" and place == "ours":
            place = "rest"
        elif mark and mark[1][:1] == b">" and place == "rest" and label.startswith(two):
            at = _middle(rest, base, theirs)
            found.append({"base": rest[:at], "ours": ours, "theirs": rest[at + 1 :]})
            place = ""
        else:
            {"": plain, "ours": ours, "rest": rest}[place].append(line)
    return [*found, plain] if found else []


def _middle(rest: _Lines, base: _Lines, theirs: _Lines) -> int:
    """Gives where the marker between base and theirs stands, though lines of a file may look like it."""
    places = [n for n, line in enumerate(rest) if _SPLIT.match(line)]
    for n in places:
        if _place(base, rest[:n], 0) is not None and _place(theirs, rest[n + 1 :], 0) is not None:
            return n
    return places[0] if places else len(rest)


def _place(whole: _Lines, part: _Lines, start: int) -> int | None:
    """Gives where some lines stand in a file from a line on; the file's last may lack the line end git adds."""
    bare = [line.rstrip(b"\n") for line in part]
    for n in range(start, len(whole) - len(part) + 1):
        if whole[n : n + 1] and bare and whole[n].rstrip(b"\n") != bare[0]:
            continue
        if [line.rstrip(b"\n") for line in whole[n : n + len(part)]] == bare:
            return n
    return None


def _hunks(store: Store, merged: Merged, conflict: Conflict, revs: dict[str, str]) -> tuple[list[Hunk], int]:
    """Gives the hunks of a conflicted file for the report, and how many more there are."""
    parts = [part for part in _segments(store, merged, conflict) if isinstance(part, dict)]
    sides = {
        "base": _lines(store, conflict.base),
        "ours": _lines(store, conflict.ours),
        "theirs": _lines(store, conflict.theirs),
    }
    at = dict.fromkeys(sides, 0)
    found = [
        Hunk(**{n: _side(n, sides[n], part[n], at, conflict.path, revs[n]) for n in sides})
        for part in parts[:HUNKS_MAX]
    ]
    return found, max(0, len(parts) - HUNKS_MAX)


def _by_hunks(store: Store, merged: Merged, conflict: Conflict, text: str, answers: list[HunkResolution]) -> bytes:
    """Gives a conflicted file's content with each hunk answered, in the report's order."""
    segments = _segments(store, merged, conflict)
    count = sum(isinstance(s, dict) for s in segments)
    if count != len(answers) or not count:
        raise InvalidError(f"{text!r} has {count} hunks, and {len(answers)} were answered", path=text, hunks=count)
    out: list[bytes] = []
    left = iter(answers)
    for number, segment in enumerate(segments):
        if not isinstance(segment, dict):
            out += segment
            continue
        answer = next(left)
        if [answer.take, answer.text, answer.base64].count(None) != 2:
            raise InvalidError(f"a hunk of {text!r} must say one of take, text, base64", path=text)
        if answer.take is None:
            out.append(content_bytes(Content(inline=answer.text, base64=answer.base64), text, read_nothing))
            continue
        lines = list(segment[answer.take])
        last = not any(segments[number + 1 :])
        whole = _lines(store, getattr(conflict, answer.take))
        if last and lines and whole and not whole[-1].endswith(b"\n"):
            lines[-1] = lines[-1].rstrip(b"\n")
        out += lines
    return b"".join(out)


def read_nothing(path: str) -> BinaryIO:
    """Refuses a file where only a text can stand."""
    raise InvalidError("a hunk's answer can't name a file", path=path)


def _lines(store: Store, entry: Entry | None) -> list[bytes]:
    if entry is None or entry[0] in (trees.TREE, trees.GITLINK):
        return []
    return store.objects.read(entry[1].hex(), "blob").splitlines(keepends=True)


def _side(name: str, whole: list[bytes], part: list[bytes], at: dict[str, int], path: bytes, rev: str) -> Side:
    found = _place(whole, part, at[name])
    start = at[name] if found is None else found
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
    out = store.git("log", "-1", "--format=%H %an", head, "--", path, timeout=30, ok=(0, 128)).text()
    oid, _, name = out.partition(" ")
    return LastChange(oid, store.agent_of(oid) or name) if oid else None


def apply(store: Store, merged: Merged, resolution: Resolution, read_file: FileReader) -> tuple[str, list[bytes]]:
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
        said = [answer.take, answer.content, answer.hunks, answer.delete or None].count(None)
        if said < 3 or (said == 4) == (answer.move_to is None) or (answer.move_to and (answer.take or answer.delete)):
            raise InvalidError(
                f"the resolution of {text!r} must say one of take, content, hunks, delete, move_to", path=text
            )
        present = trees.lookup(store.objects, merged.tree, path)
        if answer.delete:
            entry = None
        elif answer.take is not None:
            entry = getattr(conflict, answer.take)
        elif answer.content is not None or answer.hunks is not None:
            modes = [e[0] for e in (conflict.ours, conflict.theirs) if e and e[0] in (trees.FILE, trees.EXEC)]
            data = (
                content_bytes(answer.content, text, read_file)
                if answer.content is not None
                else _by_hunks(store, merged, conflict, text, answer.hunks or [])
            )
            blob = store.objects.write("blob", data)
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
    for path, _ in (
        trees.walk(store.objects, merged.tree) if any(k in _kind_text(merged) for k in ("file/dir", "distinct")) else ()
    ):
        if path.endswith(suffixes):
            edit.set(path, None)  # git's own stand-in name for a side that found its place taken
    return edit.write(), decided


def _kind_text(merged: Merged) -> str:
    return " ".join(m.kind for m in merged.messages)


def undecided(merged: Merged, resolution: Resolution) -> list[bytes]:
    """Gives the conflicted paths a resolution leaves open; a path that exists in the base alone needs no word."""
    answered = {path_bytes(text) for text in resolution.files}
    return [c.path for c in merged.conflicts if c.path not in answered and (c.ours or c.theirs)]
