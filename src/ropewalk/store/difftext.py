"""Diffs as text: what changed between two commits, as rows and as a unified diff, in pages of whole files."""

from __future__ import annotations

import re

import msgspec

from ropewalk.core.errors import InvalidError
from ropewalk.core.ids import path_bytes, path_text, show_text
from ropewalk.store import history
from ropewalk.store.store import Store

_PINNED = ("-c", "core.bigFileThreshold=16m", "-c", "diff.renameLimit=2000")
_OPTIONS = ("-r", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "-M", "--diff-algorithm=myers",
            "--indent-heuristic", "--submodule=short", "--ignore-submodules=none")  # fmt: skip
_KINDS = {"A": "added", "D": "deleted", "M": "modified", "T": "type", "R": "renamed", "C": "copied"}
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


def diff(store: Store, old: str, new: str, *, path: bytes, after: str | None, limit: int, max_bytes: int) -> Diff:
    """Gives a page of what changed from one commit to another.

    A page has whole files as long as they fit into `max_bytes`; one file that is longer is cut at a line. Files
    that git takes for binary, or of 16 MiB and more, are named without text.
    """
    rows = _rows(store, old, new, path)
    start = 0
    if after is not None:
        names = [name for name, _, _ in rows]
        behind = path_bytes(after)
        if behind not in names:
            raise InvalidError(f"{after!r} is not in this diff", hint="take `next` of the page before", after=after)
        start = names.index(behind) + 1
    part = rows[start : start + limit]
    texts = _texts(store, old, new, part)
    shown: list[DiffRow] = []
    text = b""
    for (_, _, row), section in zip(part, texts, strict=True):
        if shown and len(text) + len(section) > max_bytes:
            break
        if len(section) > max_bytes:
            section = section[: section.rfind(b"\n", 0, max_bytes) + 1]
            row = msgspec.structs.replace(row, cut=True)
        shown.append(row)
        text += section
    more = start + len(shown) < len(rows)
    cut = any(row.cut for row in shown)
    return Diff(old, new, show_text(text), shown, more or cut, shown[-1].path if more else None)


def _rows(store: Store, old: str, new: str, path: bytes) -> list[tuple[bytes, bytes | None, DiffRow]]:
    """Gives (path, old path of a rename, row) of every changed file, in git's order."""
    args: list[str | bytes] = [*_PINNED, "diff-tree", "-z", "--raw", "--numstat", *_OPTIONS, old, new]
    words = history.child(store, *args, *([b"--", path] if path else [])).out.split(b"\0")
    kinds: dict[bytes, str] = {}
    rows = []
    at = 0
    while at < len(words) and words[at]:
        word = words[at]
        if word.startswith(b":"):
            modes, letter = word.split(b" ")[:2], word.rsplit(b" ", 1)[-1][:1].decode("ascii")
            same = word.split(b" ")[2] == word.split(b" ")[3]
            name = words[at + 2] if letter in "RC" else words[at + 1]
            kinds[name] = (
                "mode" if letter == "M" and same and modes[0][1:] != modes[1] else _KINDS.get(letter, "modified")
            )
            at += 3 if letter in "RC" else 2
            continue
        added, deleted, name = word.split(b"\t", 2)
        was = None
        at += 1
        if not name:
            was, name = words[at], words[at + 1]
            at += 2
        counts = [None if n == b"-" else int(n) for n in (added, deleted)]
        row = DiffRow(
            path_text(name), kinds.get(name, "modified"), counts[0], counts[1], path_text(was) if was else None
        )
        rows.append((name, was, row))
    return rows


def _texts(store: Store, old: str, new: str, part: list[tuple[bytes, bytes | None, DiffRow]]) -> list[bytes]:
    """Gives the unified diff of each row."""
    if not part:
        return []
    paths = [p for name, was, _ in part for p in (was, name) if p is not None]
    out = history.child(
        store,
        *_PINNED,
        "diff-tree",
        "-p",
        "-U3",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        *_OPTIONS,
        old,
        new,
        "--",
        *paths,
    ).out
    # a line of content starts with a blank, a sign or a backslash, so this splits between files alone
    sections = [s for s in _SECTION.split(out) if s.startswith(b"diff --git ")]
    texts = []
    for _, _, row in part:
        # a file that became a link is deleted in one section and added in the next
        take = 2 if row.kind == "type" else 1
        texts.append(b"".join(sections[:take]))
        sections = sections[take:]
    texts[-1] += b"".join(sections)
    return texts
