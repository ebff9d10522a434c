"""Globs of a task's paths: `*` within a folder, `**` over folders, a folder for all below it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

_MEMORY = 65_536
"""Is how many answers about globs are remembered."""
_SAMPLES = "".join(map(chr, range(32, 127))) + "\t\xe4\u4e2d"
_ENDING = re.compile(r".\.[A-Za-z][A-Za-z0-9_]*\Z")
_PLAIN = re.compile(r"[^*?\[]*\Z")


class _Token(NamedTuple):
    """Is one step of a glob.

    `kind`: `c` this character, `1` one but the slash, `*` any number of such, `**` anything, `**/` folders or none,
    `[` one of a set. For a slash, `named` says that the name before it ends like that of a file.
    """

    kind: str
    text: str = ""
    named: bool = False


@lru_cache(maxsize=_MEMORY)
def _tokens(glob: str) -> tuple[tuple[_Token, ...], str]:
    """Gives the steps of a glob, and what may follow them: `any` path below, `below` one at least, or a `file`'s."""
    text = glob.strip().removeprefix("./")
    below = text.endswith("/")
    text = text.strip("/")
    found: list[_Token] = []
    at = 0
    while at < len(text):
        if text.startswith("**/", at) and (not at or text[at - 1] == "/"):
            found.append(_Token("**/"))
            at += 3
        elif text.startswith("**", at):
            found.append(_Token("**"))
            at += 2
        elif text[at] in "*?":
            found.append(_Token("*" if text[at] == "*" else "1"))
            at += 1
        elif text[at] == "[" and (inner := _set(text, at)) is not None:
            found.append(_Token("[", inner[0]))
            at = inner[1]
        else:
            named = text[at] == "/" and bool(_ENDING.search(text[:at].rsplit("/", 1)[-1]))
            found.append(_Token("c", text[at], named))
            at += 1
    last = text.rsplit("/", 1)[-1]
    return tuple(found), "below" if below else "file" if _ENDING.search(last) else "any"


def _set(text: str, at: int) -> tuple[str, int] | None:
    """Gives the expression of a set of characters and where it ends; None where the bracket is only a bracket."""
    if "]" not in text[at + 2 :]:
        return None
    end = text.index("]", at + 2)
    inner = text[at + 1 : end]
    inner = "^" + inner[1:] if inner[0] in "!^" else inner
    inner = re.sub(r"([\\\[&~|])", r"\\\1", inner)
    if "--" in inner:
        return None
    try:
        re.compile(f"[{inner}]")
    except re.error:
        return None
    return f"[{inner}]", end + 1


_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "1": "[^/]"}


@lru_cache(maxsize=4096)
def pattern(glob: str) -> re.Pattern[str]:
    """Gives the expression that a path below the root has to match as a whole."""
    tokens, tail = _tokens(glob)
    found = "".join(_EXPRESSIONS.get(t.kind) or (t.text if t.kind == "[" else re.escape(t.text)) for t in tokens)
    return re.compile(found + ("/.*" if tail == "below" else "(?:/.*)?"), re.DOTALL)


def is_match(path: str, globs: Iterable[str]) -> bool:
    """Says whether a path is one of those that globs stand for, or lies below one."""
    return any(pattern(glob).fullmatch(path) for glob in globs)


def outside(paths: Iterable[str], globs: Sequence[str]) -> list[str]:
    """Gives those paths that no glob stands for; none of them when there are no globs."""
    return [path for path in paths if not is_match(path, globs)] if globs else []


# what two globs have in common


@lru_cache(maxsize=_MEMORY)
def head(glob: str) -> str:
    """Gives the folder or file, without wildcards, that all of a glob's paths are or lie below; empty for the root."""
    if _PLAIN.match(glob):
        return glob.strip().removeprefix("./").strip("/")
    tokens, _ = _tokens(glob)
    plain = ""
    for token in tokens:
        if token.kind != "c":
            return plain.rsplit("/", 1)[0] if "/" in plain else ""
        plain += token.text
    return plain


@lru_cache(maxsize=_MEMORY)
def witness(one: str, other: str) -> str | None:
    """Gives a path that both globs stand for, None when there is none.

    Both are walked at once over all their steps, so that the answer does not hang on paths that happen to exist. What
    a name that ends like a file's (`*.py`) could hold as a folder counts only where the other glob names that folder.
    """
    if not _nested(head(one), head(other)):
        return None
    left, right = _tokens(one), _tokens(other)
    for (first, _), (second, tail), a, b in ((left, right, one, other), (right, left, other, one)):
        if first and first[0].kind == "**/" and tail != "file" and second:
            # what lies anywhere lies below the other one too
            guess = f"{_sample(second)}/{_sample(first[1:])}{'/x' if a.strip().endswith('/') else ''}"
            if "//" not in guess and pattern(a).fullmatch(guess) and pattern(b).fullmatch(guess):
                return guess
    start = (0, 0, True)
    came: dict[_State, tuple[_State, str] | None] = {start: None}
    todo = deque([start])
    goal = (len(left[0]) + 2, len(right[0]) + 2, False)
    while todo:
        state = todo.popleft()
        if state == goal:
            return _spell(came, state)
        for to, where, said in _steps(left, right, *state):
            after = (to, where, said == "/" if said else state[2])
            if after not in came:
                came[after] = (state, said)
                todo.append(after)
    return None


def _sample(tokens: Iterable[_Token]) -> str:
    """Gives a short path that some steps of a glob take."""
    said = {"1": "x", "*": "x", "**": "x", "**/": ""}
    return "".join(t.text if t.kind == "c" else _one_of(t.text) if t.kind == "[" else said[t.kind] for t in tokens)


@lru_cache(maxsize=1024)
def _one_of(text: str) -> str:
    return next((c for c in "x" + _SAMPLES + text if c != "/" and re.fullmatch(text, c, re.DOTALL)), "")


def _nested(one: str, other: str) -> bool:
    return not one or not other or one == other or one.startswith(other + "/") or other.startswith(one + "/")


def _spell(came: dict[_State, tuple[_State, str] | None], state: _State) -> str:
    found: list[str] = []
    step = came[state]
    while step is not None:
        found.append(step[1])
        step = came[step[0]]
    return "".join(reversed(found))


_Glob = tuple[tuple[_Token, ...], str]
_State = tuple[int, int, bool]
"""Is how far two globs are read, and whether a name of the path may begin, so that none is empty."""


def _moves(glob: _Glob, at: int, fresh: bool) -> tuple[list[int], list[tuple[int, str, str]]]:
    """Gives where a glob may go on for nothing, and its steps that take a character: where to, kind, text.

    After its tokens a glob is in place n (all read), n + 1 (in what lies below), n + 2 (over).
    """
    tokens, tail = glob
    count = len(tokens)
    if at == count:
        return ([] if tail == "below" else [count + 2]), [(count + 1, "tail", tail)]
    if at == count + 1:
        return [count + 2], [(at, "**", "")]
    if at == count + 2:
        return [], []
    token = tokens[at]
    if token.kind == "**":
        return [at + 1], [(at, "**", "")]
    if token.kind == "*":
        return [at + 1], [(at, "1", "")]
    if token.kind == "**/":
        return ([at + 1] if fresh else []), [(at, "**", ""), (at + 1, "folder", "")]
    return [], [(at + 1, token.kind, token.text)]


def _steps(left: _Glob, right: _Glob, i: int, j: int, fresh: bool) -> Iterable[tuple[int, int, str]]:
    free, mine = _moves(left, i, fresh)
    for after in free:
        yield after, j, ""
    also, theirs = _moves(right, j, fresh)
    for after in also:
        yield i, after, ""
    for to, kind, text in mine:
        for where, other, words in theirs:
            if kind == "tail" and text == "file" and not _names_a_folder(right, j):
                continue
            if other == "tail" and words == "file" and not _names_a_folder(left, i):
                continue
            if (said := _common(kind, text, other, words)) is not None and not (fresh and said == "/"):
                yield to, where, said


def _names_a_folder(glob: _Glob, at: int) -> bool:
    """Says whether a glob, at a place, names the folder that ends there."""
    return at < len(glob[0]) and glob[0][at].named


@lru_cache(maxsize=_MEMORY)
def _common(kind: str, text: str, other: str, words: str) -> str | None:
    """Gives a character that two steps both take."""
    for a, b, c, d in ((kind, text, other, words), (other, words, kind, text)):
        if a in ("tail", "folder"):
            return "/" if _takes(c, d, "/") else None
        if a == "c":
            return b if _takes(c, d, b) else None
    for sample in "x" + _SAMPLES + text + words:
        if _takes(kind, text, sample) and _takes(other, words, sample):
            return sample
    return None


def _takes(kind: str, text: str, character: str) -> bool:
    if kind == "c":
        return character == text
    if kind in ("tail", "folder"):
        return character == "/"
    if kind == "[":
        return re.fullmatch(text, character, re.DOTALL) is not None
    return kind == "**" or character != "/"


class _Last(NamedTuple):
    """Is the last name of a glob that stands for files: how it starts and ends, before and after its wildcards."""

    start: str
    end: str


@lru_cache(maxsize=_MEMORY)
def _last(glob: str) -> _Last | None:
    """Gives the last name of a glob; None where its paths may go on below it, or it names folders like files."""
    if _PLAIN.match(glob):
        *folders, file = glob.strip().removeprefix("./").split("/")  # one that ends with a slash has no name left
        return None if not _ENDING.search(file) or any(map(_ENDING.search, folders)) else _Last(file, file)
    tokens, tail = _tokens(glob)
    if tail != "file" or any(token.named for token in tokens):
        return None
    name: list[_Token] = []
    for token in reversed(tokens):
        if token.kind in ("**", "**/") or token.text == "/":
            break
        name.append(token)
    if len(name) < len(tokens) and tokens[-len(name) - 1].kind == "**":
        return _Last("", _literal(name)[::-1])
    return _Last(_literal(name[::-1]), _literal(name)[::-1])


def _literal(tokens: Iterable[_Token]) -> str:
    found = ""
    for token in tokens:
        if token.kind != "c":
            break
        found += token.text
    return found


class Index:
    """Finds, among globs that were put in, those that have a path in common with another one.

    It goes by the part before the first wildcard and by how the last name starts and ends, so that a thousand globs
    of different folders, or of different files anywhere, cost no comparison.
    """

    def __init__(self) -> None:
        self._at: dict[str, dict[_Last | None, list[tuple[str, int]]]] = {}
        self._below: dict[str, dict[_Last | None, list[tuple[str, int]]]] = {}

    def add(self, glob: str, owner: int) -> None:
        """Puts in a glob of an owner."""
        top, last = head(glob), _last(glob)
        self._at.setdefault(top, {}).setdefault(last, []).append((glob, owner))
        for folder in _folders(top):
            self._below.setdefault(folder, {}).setdefault(last, []).append((glob, owner))

    def meeting(self, glob: str) -> Iterable[tuple[str, int]]:
        """Yields the globs put in, and their owners, that have a path in common with this one."""
        top, last = head(glob), _last(glob)
        for held in (self._at.get(top), self._below.get(top), *(self._at.get(f) for f in _folders(top))):
            for other, entries in held.items() if held else ():
                if last is not None and other is not None:
                    (a, b), (c, d) = last, other
                    if not (a.startswith(c) or c.startswith(a)) or not (b.endswith(d) or d.endswith(b)):
                        continue
                for one, owner in entries:
                    if one == glob or witness(glob, one) is not None:
                        yield one, owner


def _folders(path: str) -> list[str]:
    """Gives the folders above a path, the root (empty) among them."""
    parts = path.split("/") if path else []
    return ["/".join(parts[:n]) for n in range(len(parts))]


def above_and_at(path: str) -> list[str]:
    """Gives a path and the folders above it, but not the root."""
    return [*_folders(path)[1:], path] if path else []
