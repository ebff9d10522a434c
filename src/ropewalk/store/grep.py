"""Grep: lines of a revision's files that match a pattern, in pages of bounded cost."""

from __future__ import annotations

import msgspec

from ropewalk.core.errors import InvalidError
from ropewalk.core.ids import path_bytes, path_text, show_text
from ropewalk.store import history
from ropewalk.store.store import Store

_BATCH = 32
_TEXT = 500
_TIMEOUT = 30.0


class Match(msgspec.Struct, frozen=True):
    """Is one line that matches; long lines are cut to 500 characters."""

    path: str
    line: int
    text: str


class Grepped(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of matches, by path and line."""

    matches: list[Match]
    truncated: bool
    next: str | None = None


def grep(
    store: Store,
    commit: str,
    pattern: str,
    *,
    path: bytes,
    ignore_case: bool,
    fixed: bool,
    after: str | None,
    limit: int,
) -> Grepped:
    """Gives a page of the lines that match an extended regular expression, or with `fixed` hold a text.

    `after` is `next` of the page before. Binary files are passed over. Raises `E_INVALID` for a bad pattern
    and `E_BUSY` after 30 s.
    """
    if not pattern or "\0" in pattern or "\n" in pattern:
        raise InvalidError("a pattern is one line of text", pattern=pattern)
    try:
        wanted = pattern.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidError("the pattern is not Unicode text") from None
    words: list[str | bytes] = ["-F" if fixed else "-E", *(["-i"] if ignore_case else []), "-e", wanted, commit]
    line, name = _cursor(after)
    named = _run(store, "-l", "-z", *words, *([b"--", path] if path else []))
    names = [n.partition(b":")[2] for n in named.split(b"\0") if n]
    if name is not None:
        # `names` are in git's order, in which a folder is a plain prefix
        names = names[names.index(name) :] if name in names else [n for n in names if n > name]
    found: list[Match] = []
    for start in range(0, len(names), _BATCH):
        most = limit + 1 - len(found)
        # lines already shown count against git's own limit of each file
        seen = line if name is not None and start == 0 else 0
        out = _run(store, "-n", "-z", f"--max-count={most + seen}", *words, b"--", *names[start : start + _BATCH])
        for match_path, number, text in _parse(out):
            if match_path == name and number <= line:
                continue
            found.append(Match(path_text(match_path), number, show_text(text[: _TEXT * 4])[:_TEXT]))
        if len(found) > limit:
            break
    more = len(found) > limit
    found = found[:limit]
    return Grepped(found, more, f"{found[-1].line}:{found[-1].path}" if more else None)


def _cursor(after: str | None) -> tuple[int, bytes | None]:
    if after is None:
        return 0, None
    number, mark, text = after.partition(":")
    if not mark or not number.isdigit():
        raise InvalidError(
            f"{after!r} is not a place to go on from", hint="take `next` of the page before", after=after
        )
    return int(number), path_bytes(text)


def _run(store: Store, *args: str | bytes) -> bytes:
    done = history.child(store, "-c", "grep.threads=2", "grep", "-I", "--no-color", "--no-textconv", "--full-name",
                         *args, ok=(0, 1, 128), timeout=_TIMEOUT)  # fmt: skip
    if done.code == 128:
        words = done.err.decode("utf-8", "replace").strip().removeprefix("fatal: ")
        raise InvalidError(f"git grep: {words}", hint="the pattern is an extended regular expression; see --fixed")
    return done.out


def _parse(out: bytes) -> list[tuple[bytes, int, bytes]]:
    """Gives (path, line, text) of `git grep -n -z`: `id:path NUL line NUL text LF`."""
    rows = []
    for row in out.split(b"\n"):
        fields = row.split(b"\0", 2)
        if len(fields) == 3 and fields[1].isdigit():
            rows.append((fields[0].partition(b":")[2], int(fields[1]), fields[2]))
    return rows
