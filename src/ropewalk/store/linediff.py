"""Lines that two texts share and hunks in which they differ, with their places, in time that does not explode.

Lines that stand once in both texts are the anchors, as in patience diff; what lies between two of them is compared
line by line only while that is cheap, else it counts as changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

_CHEAP = 250_000

Lines = Sequence[bytes]


class Block(NamedTuple):
    """Is a run of lines that two texts share: its start in each, and how many lines."""

    one: int
    two: int
    size: int


class Hunk(NamedTuple):
    """Is a place in the first text, and the lines that stand there in the second."""

    start: int
    end: int
    lines: tuple[bytes, ...]


def shared(one: Lines, two: Lines) -> list[Block]:
    """Gives what two texts share, in order; a block of no lines stands at their ends."""
    found: list[Block] = []
    for block in _shared(one, two, 0, len(one), 0, len(two)):
        last = found[-1] if found else None
        if last is not None and (last.one + last.size, last.two + last.size) == (block.one, block.two):
            found[-1] = last._replace(size=last.size + block.size)
        else:
            found.append(block)
    return [*found, Block(len(one), len(two), 0)]


def _shared(one: Lines, two: Lines, a: int, b: int, c: int, d: int) -> list[Block]:
    """Gives the shared blocks of `one[a:b]` and `two[c:d]`."""
    head = 0
    while a + head < b and c + head < d and one[a + head] == two[c + head]:
        head += 1
    tail = 0
    while b - tail > a + head and d - tail > c + head and one[b - tail - 1] == two[d - tail - 1]:
        tail += 1
    first = [Block(a, c, head)] if head else []
    last = [Block(b - tail, d - tail, tail)] if tail else []
    return [*first, *_middle(one, two, a + head, b - tail, c + head, d - tail), *last]


def _middle(one: Lines, two: Lines, a: int, b: int, c: int, d: int) -> list[Block]:
    if a == b or c == d:
        return []
    anchors = _anchors(one, two, a, b, c, d)
    if not anchors:
        if (b - a) * (d - c) > _CHEAP:
            return []
        matcher = SequenceMatcher(None, one[a:b], two[c:d], autojunk=False)
        return [Block(a + m.a, c + m.b, m.size) for m in matcher.get_matching_blocks() if m.size]
    found: list[Block] = []
    for x, y in [*anchors, (b, d)]:
        found += _shared(one, two, a, x, c, y)
        if x < b:
            found.append(Block(x, y, 1))
        a, c = x + 1, y + 1
    return found


def _anchors(one: Lines, two: Lines, a: int, b: int, c: int, d: int) -> list[tuple[int, int]]:
    """Gives the longest run of places, rising in both, of lines that stand once in each part."""
    counts, others = Counter(one[a:b]), Counter(two[c:d])
    place = {line: n for n, line in enumerate(two[c:d], c) if others[line] == 1}
    pairs = [(n, place[line]) for n, line in enumerate(one[a:b], a) if counts[line] == 1 and line in place]
    ends: list[int] = []
    tops: list[int] = []
    before: list[int] = []
    for number, (_, y) in enumerate(pairs):
        at = bisect_left(ends, y)
        before.append(tops[at - 1] if at else -1)
        ends[at : at + 1], tops[at : at + 1] = [y], [number]
    found: list[tuple[int, int]] = []
    at = tops[-1] if tops else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def hunks(blocks: Sequence[Block], two: Lines) -> list[Hunk]:
    """Gives the hunks between the shared blocks of two texts, of which `two` is the second."""
    found: list[Hunk] = []
    a = c = 0
    for block in blocks:
        if (a, c) != (block.one, block.two):
            found.append(Hunk(a, block.one, tuple(two[c : block.two])))
        a, c = block.one + block.size, block.two + block.size
    return found


def carry(blocks: Sequence[Block], start: int, end: int, size: int, other: int) -> tuple[int, int] | None:
    """Gives where a place of the first text (`size` lines) is in the second (`other` lines); None when it changed.

    A place between two lines is carried while both stand there, or while it is an end of both texts.
    """
    for block in blocks:
        a, b, shift = block.one, block.one + block.size, block.two - block.one
        if start < end:
            inside = a <= start and end <= b
        else:
            inside = (a < start or a == block.two == 0) and (start < b or (b == size and b + shift == other))
            inside = inside and a <= start <= b
        if inside:
            return start + shift, end + shift
    return None
