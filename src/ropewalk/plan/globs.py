"""Globs of a task's paths: `*` within a folder, `**` over folders, a folder for all below it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache


@lru_cache(maxsize=4096)
def pattern(glob: str) -> re.Pattern[str]:
    """Gives the expression that a path below the root has to match as a whole."""
    text = glob.strip().removeprefix("./")
    below = text.endswith("/")
    text = text.strip("/")
    found, at = "", 0
    while at < len(text):
        if text.startswith("**/", at):
            found, at = found + "(?:.*/)?", at + 3
        elif text.startswith("**", at):
            found, at = found + ".*", at + 2
        elif text[at] == "*":
            found, at = found + "[^/]*", at + 1
        elif text[at] == "?":
            found, at = found + "[^/]", at + 1
        elif text[at] == "[" and "]" in text[at + 2 :]:
            end = text.index("]", at + 2)
            inner = text[at + 1 : end]
            inner = "^" + inner[1:] if inner[0] in "!^" else inner
            inner = inner.replace("\\", "\\\\").replace("[", "\\[")
            found, at = found + f"[{inner}]", end + 1
        else:
            found, at = found + re.escape(text[at]), at + 1
    return re.compile(found + ("/.*" if below else "(?:/.*)?"), re.DOTALL)


def is_match(path: str, globs: Iterable[str]) -> bool:
    """Says whether a path is one of those that globs stand for, or lies below one."""
    return any(pattern(glob).fullmatch(path) for glob in globs)


def outside(paths: Iterable[str], globs: Sequence[str]) -> list[str]:
    """Gives those paths that no glob stands for; none of them when there are no globs."""
    return [path for path in paths if not is_match(path, globs)] if globs else []
