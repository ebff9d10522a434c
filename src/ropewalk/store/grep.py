"""Grep: lines of a revision's files that match a pattern, in pages of bounded cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from ropewalk.core.errors import BusyError, InvalidError
from ropewalk.core.ids import path_bytes, path_text, show_text
from ropewalk.core.process import ChildTimeout, Output, git_env, git_program
from ropewalk.store.store import Store

_MATCH = re.compile(rb"[0-9a-f]{40}:([^\0]+)\0(\d+)\0([^\n]*)\n")
_TEXT, _LONG = 500, 1 << 16
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
    # lines already shown count against git's own limit of each file
    words.insert(0, f"--max-count={limit + 1 + line}")
    found: list[Match] = []
    for match_path, number, text in _matches(store, [*words, *([b"--", path] if path else [])]):
        # matches are in git's order, in which a folder is a plain prefix
        if name is not None and (match_path < name or (match_path == name and number <= line)):
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


def _matches(store: Store, words: list[str | bytes]) -> Iterator[tuple[bytes, int, bytes]]:
    """Yields (path, line, text) as git finds them; git is ended when nobody wants more."""
    args = ["--literal-pathspecs", "-c", "grep.threads=2", "grep", "-I", "--no-color", "--no-textconv", "--full-name",
            "-n", "-z", *words]  # fmt: skip
    store.objects.spill()
    output = Output([git_program(), f"--git-dir={store.layout.repo}", *args], env=git_env(), timeout=_TIMEOUT)
    try:
        yield from _parse(output)
    except ChildTimeout as error:
        raise BusyError(f"this took longer than {error.seconds:g} s", hint="ask for less: name a path") from None
    if output.code not in (0, 1):
        # once more, for its words; the store mends what it can of what git met
        done = store.git(*args, ok=(0, 1, 128), timeout=_TIMEOUT)
        said = done.err.decode("utf-8", "replace").strip().removeprefix("fatal: ")
        raise InvalidError(f"git grep: {said}", hint="the pattern is an extended regular expression; see --fixed")


def _parse(output: Iterable[bytes]) -> Iterator[tuple[bytes, int, bytes]]:
    """Yields the matches of `git grep -n -z`: `id:path NUL line NUL text LF`; a path may hold line ends."""
    rest = b""
    for part in output:
        if len(rest) >= _LONG:
            # within a line of which nobody will see the rest
            end = part.find(b"\n")
            if end < 0:
                continue
            part = part[end:]
        at = 0
        rest += part
        while found := _MATCH.match(rest, at):
            at = found.end()
            yield found[1], int(found[2]), found[3]
        rest = rest[at:]
