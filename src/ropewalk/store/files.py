"""Files and folders of a revision: one page of a file's content, one page of a folder's entries."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.core.ids import path_bytes, path_text
from ropewalk.store import trees
from ropewalk.store.loose import LARGE, Pieces
from ropewalk.store.store import Store
from ropewalk.store.trees import Entry

PAGE_BYTES = 65_536
_CHARACTER = 4
"""Bytes beside a page that tell whether it cuts a character."""
_LINES = re.compile(r"(\d{1,12})(?:-(\d{1,12})?)?\Z")


class Lines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is a range of lines, counted from 1, both ends in it."""

    first: int
    last: int | None = None


class LinesShown(msgspec.Struct, frozen=True):
    """Is the range of lines that was asked for, within the lines there are."""

    first: int
    last: int
    total: int


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of a file: `content` is text where `encoding` is `utf8`; offsets and sizes are bytes."""

    blob: str
    size: int
    kind: str
    encoding: str
    content: str
    truncated: bool
    offset: int
    next_offset: int | None = None
    lines: LinesShown | None = None


class ListedEntry(msgspec.Struct, frozen=True):
    """Is one entry of a folder: its name below that folder, and its size in bytes when it is a file."""

    name: str
    kind: str
    size: int | None
    id: str


class Listed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of a folder's entries, in git's order."""

    entries: list[ListedEntry]
    truncated: bool
    next: str | None = None


def parse_lines(lines: str | Lines | None) -> Lines | None:
    """Gives the range that `A-B`, `A-` or `A` stands for; `E_INVALID` when it is none."""
    if isinstance(lines, str):
        found = _LINES.match(lines)
        if found is None:
            raise InvalidError(f"{lines!r} is not a range of lines", hint="write it as 10-20", lines=lines)
        first = int(found[1])
        last = int(found[2]) if found[2] else None
        lines = Lines(first, last if "-" in lines else first)
    if lines is not None and (lines.first < 1 or (lines.last is not None and lines.last < lines.first)):
        raise InvalidError(
            f"there are no lines {lines.first} to {lines.last}", hint="lines count from 1", first=lines.first
        )
    return lines


def find(store: Store, commit: str, path: bytes, rev: str) -> Entry:
    """Gives the entry at a path of a commit; `E_NOT_FOUND` when there is none."""
    found = trees.lookup(store.objects, store.objects.commit(commit).tree, path)
    if found is None:
        raise NotFoundError(
            f"there is no {path_text(path)!r} in {rev}",
            hint="list the folder with `rw ls`",
            path=path_text(path),
            rev=rev,
        )
    return found


def blob_at(store: Store, commit: str, path: bytes, rev: str) -> tuple[Entry, Pieces]:
    """Gives the entry and the content of a file or symlink to read; `E_INVALID` for a folder or a submodule."""
    if not path:
        raise InvalidError("no path was given", hint="name a file as REV:PATH", rev=rev)
    entry = find(store, commit, path, rev)
    if entry[0] == trees.TREE:
        raise InvalidError(f"{path_text(path)!r} is a folder", hint="list it with `rw ls`", path=path_text(path))
    if entry[0] == trees.GITLINK:
        raise InvalidError(
            f"{path_text(path)!r} is a submodule at {entry[1].hex()}; its content is in another repository",
            hint="list it with `rw ls`",
            path=path_text(path),
            commit=entry[1].hex(),
        )
    return entry, store.objects.open(entry[1].hex(), "blob")


def read(store: Store, commit: str, path: bytes, rev: str, *, offset: int, max_bytes: int, lines: Lines | None) -> Page:
    """Gives a page of a file from `offset`, at most `max_bytes` long, within `lines` when given.

    Text is cut between characters; a file that is not UTF-8 as a whole comes as base64. Of one of more than 8 MiB
    each page is judged by itself, and no more is read than leads up to it.
    """
    entry, found = blob_at(store, commit, path, rev)
    size = found.size
    parts: Iterable[bytes] = found.parts if size > LARGE else tuple(found.parts)
    start, stop, shown = 0, size, None
    if lines is not None:
        start, stop, shown = _line_span(parts, size, lines)
        if size > LARGE:
            parts = store.objects.open(entry[1].hex(), "blob").parts
    start = min(max(start, offset), stop)
    end = min(start + max_bytes, stop)
    data, at = (b"".join(parts), 0) if size <= LARGE else _window(parts, start - _CHARACTER, end + _CHARACTER)
    start, end, stop = start - at, end - at, stop - at
    first, last = _whole_characters(data, start, end, stop)
    if _is_text(data if size <= LARGE else data[first:last]):
        start, end = first, last
        content, encoding = data[start:end].decode("utf-8"), "utf8"
    else:
        content, encoding = b64encode(data[start:end]).decode("ascii"), "base64"
    more = end < stop
    return Page(
        entry[1].hex(), size, trees.kind(entry), encoding, content, more, start + at, end + at if more else None, shown
    )


def _window(parts: Iterable[bytes], start: int, stop: int) -> tuple[bytes, int]:
    """Gives the bytes from one position to another of a content in pieces, and where they start."""
    start = max(0, start)
    kept: list[bytes] = []
    at = 0
    for part in parts:
        if at + len(part) > start:
            kept.append(part[max(0, start - at) : stop - at])
        at += len(part)
        if at >= stop:
            break
    return b"".join(kept), start


def _whole_characters(data: bytes, start: int, end: int, stop: int) -> tuple[int, int]:
    """Gives a page's bounds with no character cut: it begins with the one at its start, and ends after a whole one."""
    while start > 0 and _inside(data, start):
        start -= 1
    while end > start and _inside(data, end):
        end -= 1
    if end == start and start < stop:
        # a page smaller than one character still makes way
        end += 1
        while _inside(data, end):
            end += 1
    return start, end


def _is_text(data: bytes) -> bool:
    """Says whether bytes are UTF-8."""
    try:
        data.decode("utf-8")
        return True
    except UnicodeDecodeError:
        return False


def _inside(data: bytes, at: int) -> bool:
    """Says whether a position is within a UTF-8 character: behind its first byte, and before its end."""
    if at >= len(data) or data[at] & 0xC0 != 0x80:
        return False
    for back in range(1, min(at, _CHARACTER - 1) + 1):
        byte = data[at - back]
        if byte & 0xC0 != 0x80:
            return back < (1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False


def count_lines(parts: Iterable[bytes]) -> int:
    """Gives how many lines a content in pieces has; the last one may lack its end."""
    total, last = 0, b"\n"
    for part in parts:
        total += part.count(b"\n")
        last = part[-1:] or last
    return total + (last != b"\n")


def _line_span(parts: Iterable[bytes], size: int, lines: Lines) -> tuple[int, int, LinesShown]:
    """Gives where a range of lines starts and ends, in bytes, and what of it there is."""
    wanted = {lines.first - 1: size, lines.last if lines.last is not None else -1: size}
    counted = at = 0

    def seen() -> Iterator[bytes]:
        nonlocal counted, at
        for part in parts:
            more = part.count(b"\n")
            for line in wanted:
                if counted < line <= counted + more:
                    wanted[line] = at + _line_start(part, line - counted)
            counted, at = counted + more, at + len(part)
            yield part

    total = count_lines(seen())
    start = 0 if lines.first == 1 else wanted[lines.first - 1]
    stop = size if lines.last is None else max(start, wanted[lines.last])
    return start, stop, LinesShown(lines.first, total if lines.last is None else min(lines.last, total), total)


def _line_start(data: bytes, skip: int) -> int:
    at = 0
    for _ in range(skip):
        at = data.find(b"\n", at) + 1
    return at


def listing(store: Store, commit: str, path: bytes, rev: str, *, depth: int, limit: int, after: str | None) -> Listed:
    """Gives a page of the entries below a folder, folders themselves included; of a file, the file alone."""
    root = store.objects.commit(commit).tree
    rows: list[tuple[bytes, Entry]] = []
    more = False
    entry = find(store, commit, path, rev) if path else None
    if entry is not None and entry[0] != trees.TREE:
        rows = [(path.rsplit(b"/", 1)[-1], entry)]
    else:
        behind = path_bytes(after) if after is not None else None
        for name, item in trees.walk(store.objects, entry[1].hex() if entry else root, b"", depth):
            if behind is not None:
                if name == behind:
                    behind = None
                continue
            if len(rows) == limit:
                more = True
                break
            rows.append((name, item))
        if behind is not None:
            raise InvalidError(f"there is no entry {after!r} to go on after", hint="start again without --after")
    known = sizes(store, [item[1].hex() for _, item in rows if item[0] not in (trees.TREE, trees.GITLINK)])
    entries = [ListedEntry(path_text(n), trees.kind(e), known.get(e[1].hex()), e[1].hex()) for n, e in rows]
    return Listed(entries, more, entries[-1].name if more else None)


def sizes(store: Store, ids: Sequence[str]) -> dict[str, int]:
    """Gives the sizes of objects in bytes, of those that can be read: headers alone, packed ones in one go."""
    found: dict[str, int] = {}
    packed = []
    for oid in dict.fromkeys(ids):
        stated = store.objects.loose.header(oid)
        if stated is None:
            packed.append(oid)
        else:
            found[oid] = stated[1]
    if packed:
        asked = "".join(f"{oid}\n" for oid in packed).encode("ascii")
        out = store.git("cat-file", "--batch-check=%(objectname) %(objectsize)", "--buffer",
                  stdin=asked, timeout=120).out  # fmt: skip
        for line in out.decode("ascii", "replace").splitlines():
            oid, _, size_text = line.partition(" ")
            if size_text.isdigit():
                found[oid] = int(size_text)
    return found
