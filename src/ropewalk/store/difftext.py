"""Diffs as text: what changed between two commits, as rows and as a unified diff, in pages of whole files."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from ropewalk.core.errors import InvalidError
from ropewalk.core.ids import path_bytes, path_text, show_text
from ropewalk.store import history
from ropewalk.store.store import Store

_PINNED = ("-c", "core.bigFileThreshold=16m", "-c", "diff.renameLimit=2000")
_OPTIONS = ("-r", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "-M", "--diff-algorithm=myers",
            "--indent-heuristic", "--submodule=short", "--ignore-submodules=none")  # fmt: skip
_KINDS = {"A": "added", "D": "deleted", "M": "modified", "T": "type", "R": "renamed", "C": "copied"}
_BIG = 16 << 20
_BINARY = re.compile(rb"^Binary files .* differ$", re.MULTILINE)
_ODD = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_ESCAPES = {b"\a": rb"\a", b"\b": rb"\b", b"\t": rb"\t", b"\n": rb"\n", b"\v": rb"\v", b"\f": rb"\f", b"\r": rb"\r",
            b'"': rb"\"", b"\\": rb"\\"}  # fmt: skip
_SECTION = re.compile(rb"^(?=diff --git )", re.MULTILINE)


class DiffRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one changed file: lines added and deleted (None: binary); `cut` says that its text is not whole."""

    path: str
    kind: str
    added: int | None
    deleted: int | None
    old_path: str | None = None
    cut: bool = False


class Diff(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of a diff: the unified text, and a row for each file in it."""

    old: str
    new: str
    text: str
    files: list[DiffRow]
    truncated: bool
    next: str | None = None


class _Changed(NamedTuple):
    """Is one changed file as git's raw form has it; `was` is the old path of a rename."""

    path: bytes
    was: bytes | None
    kind: str
    modes: tuple[bytes, bytes]
    ids: tuple[str, str]


def diff(store: Store, old: str, new: str, *, path: bytes, after: str | None, limit: int, max_bytes: int) -> Diff:
    """Gives a page of what changed from one commit to another.

    A page has whole files as long as they fit into `max_bytes`; one file that is longer is cut at a line. Files
    that git takes for binary, or of 16 MiB and more, are named without text.
    """
    changed = _changed(store, old, new, path)
    start = 0
    if after is not None:
        names = [one.path for one in changed]
        behind = path_bytes(after)
        if behind not in names:
            raise InvalidError(f"{after!r} is not in this diff", hint="take `next` of the page before", after=after)
        start = names.index(behind) + 1
    part = changed[start : start + limit]
    texts = _texts(store, old, new, part)
    shown: list[DiffRow] = []
    text = b""
    for one, section in zip(part, texts, strict=True):
        if shown and len(text) + len(section) > max_bytes:
            break
        row = _row(one, section)
        if len(section) > max_bytes:
            section = section[: section.rfind(b"\n", 0, max_bytes) + 1]
            row = msgspec.structs.replace(row, cut=True)
        shown.append(row)
        text += section
    more = start + len(shown) < len(changed)
    cut = any(row.cut for row in shown)
    return Diff(old, new, show_text(text), shown, more or cut, shown[-1].path if more else None)


def _changed(store: Store, old: str, new: str, path: bytes) -> list[_Changed]:
    """Gives every changed file, in git's order; no file is read for it but to find renames."""
    args: list[str | bytes] = [*_PINNED, "diff-tree", "-z", "--raw", *_OPTIONS, old, new]
    words = history.child(store, *args, *([b"--", path] if path else [])).out.split(b"\0")
    found = []
    at = 0
    while at < len(words) and words[at]:
        before, after, one, two, status = words[at][1:].split(b" ")
        letter = status[:1].decode("ascii")
        renamed = letter in "RC"
        name = words[at + 2] if renamed else words[at + 1]
        kind = "mode" if letter == "M" and one == two and before != after else _KINDS.get(letter, "modified")
        was = words[at + 1] if renamed else None
        found.append(_Changed(name, was, kind, (before, after), (one.decode("ascii"), two.decode("ascii"))))
        at += 3 if renamed else 2
    return found


def _row(one: _Changed, section: bytes) -> DiffRow:
    """Gives the row of a changed file, with the lines that its unified diff counts."""
    counts: list[int | None] = [0, 0]
    for text in _SECTION.split(section):
        body = text[text.find(b"\n@@ ") :] if b"\n@@ " in text else b""
        if not body and _BINARY.search(text):
            counts = [None, None]
        counts = [
            None if count is None else count + body.count(mark)
            for count, mark in zip(counts, (b"\n+", b"\n-"), strict=True)
        ]
    was = path_text(one.was) if one.was is not None else None
    return DiffRow(path_text(one.path), one.kind, counts[0], counts[1], was)


def _texts(store: Store, old: str, new: str, part: list[_Changed]) -> list[bytes]:
    """Gives the unified diff of each file."""
    large = {one.path: _large(store, one) for one in part}
    paths = [p for one in part if not large[one.path] for p in (one.was, one.path) if p is not None]
    sections: list[bytes] = []
    if paths:
        out = history.child(store, *_PINNED, "diff-tree", "-p", "-U3", "--src-prefix=a/", "--dst-prefix=b/", *_OPTIONS,
                            old, new, "--", *paths).out  # fmt: skip
        # a line of content starts with a blank, a sign or a backslash, so this splits between files alone
        sections = [s for s in _SECTION.split(out) if s.startswith(b"diff --git ")]
    texts = []
    for one in part:
        # a file that became a link is deleted in one section and added in the next
        take = 0 if large[one.path] else 2 if one.kind == "type" else 1
        texts.append(large[one.path] or b"".join(sections[:take]))
        sections = sections[take:]
    if sections:
        texts[-1] += b"".join(sections)
    return texts


def _large(store: Store, one: _Changed) -> bytes:
    """Gives the section of a large file that came or went, which git would read whole; else nothing."""
    side = {"added": 1, "deleted": 0}.get(one.kind)
    if side is None or one.modes[side] == b"160000":
        return b""
    stated = store.objects.header(one.ids[side])
    if stated is None or stated[1] < _BIG:
        return b""
    names = [quoted(b"a/" + one.path), quoted(b"b/" + one.path)]
    sides = [b"/dev/null" if n != side else names[n] for n in (0, 1)]
    short = [oid[:7].encode("ascii") for oid in one.ids]
    word = b"new" if side else b"deleted"
    return b"diff --git %s %s\n%s file mode %s\nindex %s..%s\nBinary files %s and %s differ\n" % (
        *names, word, one.modes[side], *short, *sides)  # fmt: skip


def quoted(path: bytes) -> bytes:
    """Gives a path as git prints it: in double quotes, with escapes, when it holds anything odd."""
    if not _ODD.search(path):
        return path
    return b'"%s"' % _ODD.sub(lambda m: _ESCAPES.get(m[0]) or b"\\%03o" % m[0][0], path)
