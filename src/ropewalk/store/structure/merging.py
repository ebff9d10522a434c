"""The three-way merge of a file's declarations: what both sides added stands side by side, or the file is declined.

A unit that one side changed is taken from it; units added at one place by both sides stand in an order that does
not depend on which side is which. Whatever could mean something else than both sides meant is declined with a
reason: one expression changed by both, a change against a removal, one name added twice, statements whose order
counts. The result is made of the sides' own bytes, and is taken only if it reads back as what was meant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ropewalk.store.structure.languages import Language
from ropewalk.store.structure.text import merge_lines
from ropewalk.store.structure.units import COMMENT, STATEMENT, Container, Declined, Unit, read, render, whole

_Key = tuple[str, int]
_WORDS = re.compile(rb"[\w$]+|[^\w\s,]")
_WORD = re.compile(rb"[^\W\d][\w$]*")
_EMPTY = Container(b"", (), b"", b"")


def merge(language: Language, base: bytes | None, ours: bytes, theirs: bytes) -> bytes:
    """Gives the merge of three versions of a file; raises `Declined` with a reason.

    The same bytes come out when the sides change places. `base` is None for a file that both sides added.
    """
    texts = [base or b"", ours, theirs]
    open_end = [not text.endswith(b"\n") for text in texts]
    for text in texts:
        if b"\0" in text:
            raise Declined("is binary")
    closed = [text + (_line_end(text) if opened else b"") for text, opened in zip(texts, open_end, strict=True)]
    if base is None:
        closed[0] = b""
    if len({_line_end(text) for text in closed[1:]}) > 1:
        raise Declined("the sides end their lines in different ways")
    b, o, t = (read(language, text) if text else _EMPTY for text in closed)
    lost = _lost(b, o, (closed[0], closed[2])) | _lost(b, t, (closed[0], closed[1]))
    if lost:
        raise Declined(f"one side removes {min(lost)!r}, the other has it in what it changes")
    merged = _containers(b, o, t, "the file")
    data = render(merged)
    _check_kept(*(Counter(_lines(container)) for container in (b, o, t, merged)))
    _check_kept(*(Counter(_WORDS.findall(text)) for text in (*closed, data)))
    if read(language, data) != merged:
        raise Declined("the result does not read back as what was meant")
    opened = open_end[1] if base is None or open_end[1] != open_end[0] else open_end[2]
    return data.rstrip(b"\r\n") if opened else data


def _line_end(text: bytes) -> bytes:
    return b"\r\n" if b"\r\n" in text else b"\n"


# what one side took away and the other has come to need


def _bound(container: Container) -> Iterator[str]:
    for unit in container.units:
        yield from unit.names
        if unit.body is not None:
            yield from _bound(unit.body)


def _lost(base: Container, side: Container, texts: Sequence[bytes]) -> set[str]:
    """Gives the names that a side removed and the other has in lines it changed; texts are the base and the other."""
    gone = set(_bound(base)) - set(_bound(side))
    if not gone:
        return gone
    before, after = (Counter(text.splitlines()) for text in texts)
    return gone & {word.decode("utf-8", "replace") for line in after - before for word in _WORD.findall(line)}


def _check_kept(base: Counter[bytes], ours: Counter[bytes], theirs: Counter[bytes], merged: Counter[bytes]) -> None:
    """Refuses a result that loses what either side added, keeps what one removed, or holds something twice."""
    for piece in sorted(base | ours | theirs | merged):
        b, o, t, m = base[piece], ours[piece], theirs[piece], merged[piece]
        low, high = (t, t) if o == b else (o, o) if t == b else (min(o, t, o + t - b), max(o, t, o + t - b))
        if not low <= m <= high or (o >= b <= t and m < max(o, t)):
            words = piece.decode("utf-8", "replace")
            raise Declined(f"{words[:60]!r} would be lost or doubled")


def _lines(container: Container) -> Iterator[bytes]:
    """Gives the lines of a container that are not blank, each element of a list on one line as one."""
    for unit in container.units:
        yield from _bare(unit.lead)
        if unit.body is None:
            yield from _bare(unit.text)
        else:
            yield from _lines(unit.body)
        yield from _bare(unit.after)
    if container.flat:
        yield container.head.strip() + container.foot.strip()
    else:
        yield from _bare(container.head + container.tail + container.foot)


def _bare(text: bytes) -> Iterator[bytes]:
    return (line.strip() for line in text.splitlines() if line.strip())


# lists of units


class _Place(NamedTuple):
    """Is one unit of the merged order; `by` says which sides touched it, `unit` is None when it was removed.

    `commented` are the sides that changed what is written above a unit that was there, `extended` those that gave
    it another end.
    """

    unit: Unit | None
    model: Unit
    by: frozenset[str]
    added: bool
    commented: frozenset[str]
    extended: frozenset[str]


def _containers(base: Container, ours: Container, theirs: Container, what: str) -> Container:
    """Gives the merge of three lists of units."""
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    forms = {(c.separator, bool(c.flat)) for c in (base, ours, theirs) if c.units}
    if len(forms) > 1:
        raise Declined(f"{what} is laid out in different ways")
    sides = _numbered((base.units, ours.units, theirs.units))
    places = _in_order(*sides, merged={
        key: _unit(key[0], *(side.get(key) for side in sides)) for key in _all_keys(sides)
    })  # fmt: skip
    said = {name for name, side in (("ours", ours), ("theirs", theirs)) if side.tail.strip() != base.tail.strip()}
    _check_order(places, frozenset(said), what)
    units = [place.unit for place in places if place.unit is not None]
    separator = ours.separator or theirs.separator
    units = list(_spaced(units, (base, ours, theirs)))
    trailing = (
        _one_of(base.trailing, ours.trailing, theirs.trailing) if base.units else ours.trailing or theirs.trailing
    )
    return Container(
        _pick(base.head, ours.head, theirs.head, f"the head of {what}"),
        tuple(units),
        _blank(base.tail, ours.tail, theirs.tail) if not (base.tail + ours.tail + theirs.tail).strip()
        else _pick(base.tail, ours.tail, theirs.tail, f"the end of {what}"),
        _pick(base.foot, ours.foot, theirs.foot, f"the end of {what}"),
        separator, trailing, ours.flat or theirs.flat,
    )  # fmt: skip


def _one_of(base: bool, ours: bool, theirs: bool) -> bool:
    return theirs if ours == base else ours


def _pick(base: bytes, ours: bytes, theirs: bytes, what: str) -> bytes:
    """Gives the version of the one side that changed something."""
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    raise Declined(f"both sides changed {what}")


def _blank(base: bytes | None, ours: bytes, theirs: bytes) -> bytes:
    """Gives blank lines: those of the side that changed them, else the longer ones."""
    if base is not None and ours in (base, theirs):
        return theirs
    if base is not None and theirs == base:
        return ours
    return max(ours, theirs, key=_length)


def _numbered(sides: Sequence[Sequence[Unit]]) -> list[dict[_Key, Unit]]:
    """Gives each side's units by key and number.

    A key that stands more than once must do so equally often wherever it stands, so that the numbers mean the same,
    and its units must be one side's matter alone.
    """
    groups: list[dict[str, list[Unit]]] = [{} for _ in sides]
    for group, units in zip(groups, sides, strict=True):
        for unit in units:
            group.setdefault(unit.key, []).append(unit)
    for key in {key for group in groups for key, units in group.items() if len(units) > 1}:
        base, ours, theirs = ([u.core for u in group.get(key, [])] for group in groups)
        counts = {len(found) for found in (base, ours, theirs) if found}
        if len(counts) > 1 or (base not in (ours, theirs) and ours != theirs):
            raise Declined(f"{_shown(key)} is there more than once")
    found: list[dict[_Key, Unit]] = []
    for units in sides:
        count: Counter[str] = Counter()
        numbered = {}
        for unit in units:
            numbered[(unit.key, count[unit.key])] = unit
            count[unit.key] += 1
        found.append(numbered)
    return found


def _all_keys(sides: Sequence[dict[_Key, Unit]]) -> list[_Key]:
    return sorted({key for side in sides for key in side})


def _shown(key: str) -> str:
    text = key.removeprefix(COMMENT).removeprefix(STATEMENT)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _unit(key: str, base: Unit | None, ours: Unit | None, theirs: Unit | None) -> Unit | None:
    """Gives the merge of one unit, None when it goes; raises `Declined` when both sides changed it apart."""
    name = _shown(key)
    if ours is None or theirs is None:
        present = ours if ours is not None else theirs
        if base is not None and present is not None and present.core != base.core:
            raise Declined(f"one side removes {name}, the other changes it")
        return present if base is None else None
    blank = _blank(None if base is None else base.blank, ours.blank, theirs.blank)
    if base is None:
        if ours.core != theirs.core:
            raise Declined(f"both sides add {name}, each in its own way")
        return ours._replace(blank=blank, after=max(ours.after, theirs.after))
    if ours.core == base.core or ours.core == theirs.core:
        return theirs._replace(blank=blank)
    if theirs.core == base.core:
        return ours._replace(blank=blank)
    if (ours.free, ours.names) != (theirs.free, theirs.names) and not (base.body and ours.body and theirs.body):
        raise Declined(f"both sides changed {name}")
    lead = _pick(base.lead, ours.lead, theirs.lead, f"the comment above {name}")
    after = _pick(base.after, ours.after, theirs.after, f"the comment beside {name}")
    if base.body is not None and ours.body is not None and theirs.body is not None:
        body = _containers(base.body, ours.body, theirs.body, name)
        names = base.names | ours.names | theirs.names
        return ours._replace(blank=blank, lead=lead, after=after, body=body, names=names)
    text = merge_lines(whole(base), whole(ours), whole(theirs))
    if text is None:
        raise Declined(f"both sides changed {name}")
    return ours._replace(blank=blank, lead=lead, after=after, text=text, body=None)


def _in_order(
    base: dict[_Key, Unit], ours: dict[_Key, Unit], theirs: dict[_Key, Unit], *, merged: dict[_Key, Unit | None]
) -> list[_Place]:
    """Gives the places of all units: the base's order, or that of the one side which changed it."""
    kept = [[key for key in side if key in base] for side in (ours, theirs)]
    both = set(kept[0]) & set(kept[1])
    orders = [[key for key in order if key in both] for order in ([*base], *kept)]
    moved = [order != orders[0] for order in orders[1:]]
    if all(moved) and orders[1] != orders[2]:
        raise Declined("both sides put declarations into another order")
    if any(moved) and any(_above(side[key]) != _above(base[key]) for side in (ours, theirs) for key in both):
        raise Declined("one side puts declarations into another order, and what is written above one is changed")
    spine = kept[0] if moved[0] else kept[1] if moved[1] else [*base]
    shared = [key for key in ours if key in theirs and key not in base]
    if shared:
        if any(moved) or shared != [key for key in theirs if key in ours and key not in base]:
            raise Declined("both sides add the same declarations in another order")
        spine = _with_shared(spine, shared, ours)
        if [k for k in spine if k in ours] != [k for k in ours if k in spine] or (
            [k for k in spine if k in theirs] != [k for k in theirs if k in spine]
        ):
            raise Declined("both sides add the same declaration at different places")
    runs = [_runs(side, spine) for side in (ours, theirs)]
    order: list[_Key] = []
    for anchor in [None, *spine]:
        if anchor is not None:
            order.append(anchor)
        order += _both_runs(runs[0].get(anchor, []), runs[1].get(anchor, []), merged)
    return [_place(key, base.get(key), ours.get(key), theirs.get(key), merged[key]) for key in order]


def _with_shared(spine: list[_Key], shared: Sequence[_Key], side: dict[_Key, Unit]) -> list[_Key]:
    """Gives the order with what both sides added alike, each after what precedes it in a side."""
    out = list(spine)
    before: _Key | None = None
    for key in side:
        if key in shared:
            out.insert(0 if before is None else out.index(before) + 1, key)
        if key in out:
            before = key
    return out


def _runs(side: dict[_Key, Unit], spine: Sequence[_Key]) -> dict[_Key | None, list[_Key]]:
    """Gives what a side alone added, by the unit it follows."""
    known = set(spine)
    runs: dict[_Key | None, list[_Key]] = {}
    anchor: _Key | None = None
    for key in side:
        if key in known:
            anchor = key
        else:
            runs.setdefault(anchor, []).append(key)
    return runs


def _both_runs(one: list[_Key], two: list[_Key], merged: dict[_Key, Unit | None]) -> list[_Key]:
    """Gives two runs added at one place: sorted lists as one, others one after the other by their first unit."""

    def rank(key: _Key) -> tuple[str, str, int]:
        return (key[0].lower(), *key)

    if not one or not two:
        return one or two
    if one[-1][0].startswith(COMMENT) or two[-1][0].startswith(COMMENT):
        raise Declined("one side adds a comment where the other adds something")
    small = all((unit := merged[key]) is not None and whole(unit).count(b"\n") <= 1 for key in (*one, *two))
    if small and one == sorted(one, key=rank) and two == sorted(two, key=rank):
        return sorted([*one, *two], key=rank)
    return one + two if [rank(k) for k in one] < [rank(k) for k in two] else two + one


def _place(key: _Key, base: Unit | None, ours: Unit | None, theirs: Unit | None, unit: Unit | None) -> _Place:
    model = unit or base or ours or theirs
    assert model is not None
    by = {
        name for name, side in (("ours", ours), ("theirs", theirs))
        if (side is None) != (base is None) or (side is not None and base is not None and side.core != base.core)
    }  # fmt: skip
    commented = {
        name for name, side in (("ours", ours), ("theirs", theirs))
        if base is not None and side is not None and _above(side) != _above(base)
    }  # fmt: skip
    extended = {
        name for name, side in (("ours", ours), ("theirs", theirs))
        if base is not None and side is not None and _end(side) != _end(base)
    }  # fmt: skip
    return _Place(unit, model, frozenset(by), base is None, frozenset(commented), frozenset(extended))


def _end(unit: Unit) -> bytes:
    """Gives the last line of a declaration whose end no bracket marks, as in Python."""
    lines = unit.text.splitlines()
    return lines[-1] if len(lines) > 1 else b""


def _above(unit: Unit) -> tuple[bytes, bytes]:
    """Gives what stands above a declaration: its comment, and a decorator or annotation that it begins with."""
    first = whole(unit).lstrip().partition(b"\n")[0]
    return unit.lead, first if first.startswith(b"@") else b""


def _check_order(places: Sequence[_Place], said: frozenset[str], what: str) -> None:
    """Refuses places that the sides touched beside each other, where their order or their kinship could count.

    `said` are the sides that changed the comment after the last unit.
    """
    names: dict[str, frozenset[str]] = {}
    for place in places:
        for name in place.model.names if place.added else ():
            if names.setdefault(name, place.by) != place.by:
                raise Declined(f"both sides add {name!r}")
    for one, two in pairwise(places):
        if len(one.by | two.by) == 2 and not one.model.free and not two.model.free:
            raise Declined(f"both sides changed statements beside each other: {_shown(two.model.key)} in {what}")
    group: list[_Place] = []
    before: _Place | None = None
    for place in places:
        if place.added or place.unit is None:
            group.append(place)
            continue
        _check_group(group, before, place.commented, _shown(place.model.key), what)
        group, before = [], place
    _check_group(group, before, said, f"the end of {what}", what)


def _check_group(
    group: Sequence[_Place], before: _Place | None, commented: frozenset[str], below: str, what: str
) -> None:
    """Refuses what was added and removed at one place, if it is more than additions of any order.

    `commented` are the sides that changed what is written above what stands below the place.
    """
    gone = [place for place in group if place.unit is None and len(place.by) == 2]
    if gone and any(place.added for place in group):
        raise Declined(f"both sides replace {_shown(gone[0].model.key)} in {what}")
    own = [place for place in group if len(place.by) == 1]
    sides = frozenset[str]().union(*(place.by for place in own))
    fixed = [place for place in own if not place.model.free]
    if len(sides) == 2 and fixed:
        raise Declined(f"both sides changed statements beside each other: {_shown(fixed[0].model.key)} in {what}")
    if before is not None and before.extended and sides - before.extended:
        raise Declined(f"one side goes on with {_shown(before.model.key)}, the other adds something after it")
    if commented and sides - commented:
        raise Declined(f"one side changed what is written above {below}, the other what stands before it")


def _spaced(units: Sequence[Unit], containers: tuple[Container, Container, Container]) -> Iterator[Unit]:
    """Gives the units with the blank lines that their new places need: the first one's differ from the others'."""
    first = next(container.units[0].blank for container in containers if container.units)
    # what stood first on a side has no blank lines of its own for another place
    after = {_same(c.units[0]): c.units[1].blank if len(c.units) > 1 else None for c in containers if c.units}
    usual = max((blank for blank in after.values() if blank is not None), key=_length, default=b"")
    before: Unit | None = None
    for unit in units:
        leading = _same(unit) in after
        if before is None:
            yield unit if leading else unit._replace(blank=first)
        elif leading and unit.blank == first:
            small = whole(unit).count(b"\n") <= 1 and whole(before).count(b"\n") <= 1
            own = after[_same(unit)]
            yield unit._replace(blank=b"" if small else usual if own is None else own)
        else:
            yield unit
        before = unit


def _same(unit: Unit) -> tuple[object, ...]:
    return (unit.key, unit.text, unit.body)


def _length(blank: bytes) -> tuple[int, bytes]:
    return blank.count(b"\n"), blank
