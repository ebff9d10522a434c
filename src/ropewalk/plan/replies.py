"""JSON in what a model replies: found among narration and fences, a cut end told from a fault."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

_TRIES = 200
"""Is how many braces are tried."""
_FAILURES = 5
"""Is how many objects that can't be read are looked at to their end."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[{}\[\]]', re.DOTALL)
_OPENED = re.compile(r'\{\s*(?:"((?:[^"\\\n]|\\.){0,80})"\s*:|\})')


class Found(NamedTuple):
    """Is the object found in a reply: its keys and values, what stands twice in it, or why there is none."""

    value: dict[str, Any] | None
    twice: tuple[str, ...] = ()
    truncated: bool = False
    fault: str = ""


def find(text: str, keys: Sequence[str]) -> Found:
    """Gives the last object in a text that has one of the keys; one inside another does not count.

    `truncated` says that an object with such a key began after it and has no end.
    """
    best: Found | None = None
    broken, cut = "", False
    at = tries = failures = 0
    while tries < _TRIES and failures < _FAILURES and (match := _OPENED.search(text, at)) is not None:
        tries += 1
        doubled: list[str] = []
        try:
            value, at = _decoder(doubled).raw_decode(text, match.start())
        except (ValueError, RecursionError) as error:
            at = match.start() + 1
            if match[1] in keys:
                failures += 1
                end = _end(text, match.start())
                cut, at = end is None, end or at
                where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
                broken = f"the JSON can't be read{where}: {_plain(error)}"
            continue
        if isinstance(value, dict) and any(key in value for key in keys):
            best, broken, cut = Found(value, tuple(doubled)), "", False
    if best is not None and not cut:
        return best
    return Found(None, truncated=cut, fault=broken)


def _plain(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else " ".join(str(error).split())[:200]


def _decoder(doubled: list[str]) -> json.JSONDecoder:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        if len(made) != len(found):
            seen: set[str] = set()
            for key, _ in found:
                if key in seen:
                    doubled.append(f"the key {key[:80]!r} stands twice in an object")
                seen.add(key)
        return made

    def no_number(word: str) -> float:
        raise ValueError(f"{word} is no number")

    return json.JSONDecoder(object_pairs_hook=pairs, parse_constant=no_number)


def _end(text: str, start: int) -> int | None:
    """Gives where the brackets that open at a place are closed again, None when the text ends before."""
    depth = 0
    for match in _BRACKETS.finditer(text, start):
        if match[0] in ("{", "["):
            depth += 1
        elif match[0] in ("}", "]"):
            depth -= 1
            if not depth:
                return match.end()
    return None
