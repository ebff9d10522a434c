"""A three-way merge of lines, for what stands inside one declaration that both sides changed."""

from __future__ import annotations

from collections.abc import Sequence


def _changes(base: Sequence[bytes], side: Sequence[bytes]) -> list[tuple[int, int, Sequence[bytes]]]:
    """Gives what a side replaced: first and last line of the base (half open), and the new lines."""
    from difflib import SequenceMatcher

    found = SequenceMatcher(None, base, side, autojunk=False).get_opcodes()
    return [(a, b, side[c:d]) for tag, a, b, c, d in found if tag != "equal"]


def merge_lines(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Gives the merge of two texts, or None where the sides changed the same lines or lines that touch.

    Two changes are apart only if a line that is not blank and that neither side changed stands between them.
    """
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    lines = base.splitlines(keepends=True)
    one, two = (_changes(lines, side.splitlines(keepends=True)) for side in (ours, theirs))
    for start, end, _ in one:
        for other, last, _ in two:
            between = lines[min(end, last) : max(start, other)]
            if not any(line.strip() for line in between) and (start, end) != (other, last):
                return None
    same = [change for change in one if change in two]
    if any((a, b) == (c, d) and (a, b, new) not in same for a, b, new in one for c, d, _ in two):
        return None
    out: list[bytes] = []
    at = 0
    for start, end, new in sorted([*one, *(change for change in two if change not in same)], key=lambda c: c[:2]):
        out += lines[at:start]
        out += new
        at = end
    return b"".join(out + lines[at:])
