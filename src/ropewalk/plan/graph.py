"""Graphs of needs: order, circles, what comes before what, heaviest chains, and how many tasks may run at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

Needs = Mapping[str, Sequence[str]]


def order(needs: Needs) -> list[str]:
    """Gives the names so that each stands after its needs; those on circles, and behind them, are left out."""
    inner = {name: {need for need in wanted if need in needs} for name, wanted in needs.items()}
    users: dict[str, list[str]] = {name: [] for name in inner}
    for name, wanted in inner.items():
        for need in sorted(wanted):
            users[need].append(name)
    left = {name: len(wanted) for name, wanted in inner.items()}
    free = deque(name for name, count in left.items() if not count)
    found: list[str] = []
    while free:
        name = free.popleft()
        found.append(name)
        for user in users[name]:
            left[user] -= 1
            if not left[user]:
                free.append(user)
    return found


def circles(needs: Needs, most: int = 50) -> list[list[str]]:
    """Gives circles, first and last the same, so that each need that lies on any circle is in one of them.

    Of each such need it is a shortest circle; `most` bounds how many are given.
    """
    sorted_out = set(order(needs))
    rest = {n: sorted({m for m in w if m in needs and m not in sorted_out}) for n, w in needs.items()
            if n not in sorted_out}  # fmt: skip
    found: list[list[str]] = []
    seen: set[tuple[str, str]] = set()
    for name, wanted in rest.items():
        for need in wanted:
            if (name, need) in seen:
                continue
            way = _way(rest, need, name)
            if way is None:
                continue
            found.append([name, *way])
            seen.update(zip([name, *way], way, strict=False))
            if len(found) == most:
                return found
    return found


def _way(needs: Needs, start: str, end: str) -> list[str] | None:
    came = {start: start}
    todo = deque([start])
    while todo:
        name = todo.popleft()
        if name == end:
            way = [name]
            while name != start:
                name = came[name]
                way.append(name)
            return way[::-1]
        for need in needs[name]:
            if need not in came:
                came[need] = name
                todo.append(need)
    return None


def ancestors(needs: Needs) -> dict[str, int]:
    """Gives for each name the set of all that have to be before it, as bits by the names' places.

    What lies on a circle counts as having no needs.
    """
    place = {name: n for n, name in enumerate(needs)}
    found = dict.fromkeys(needs, 0)
    for name in order(needs):
        bits = 0
        for need in needs[name]:
            if need in place:
                bits |= found[need] | 1 << place[need]
        found[name] = bits
    return found


def heads_and_tails(needs: Needs, seconds: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Gives how much at least comes before each task, and after it, along the heaviest chain."""
    listed = order(needs)
    heads = dict.fromkeys(listed, 0.0)
    tails = dict.fromkeys(listed, 0.0)
    for name in listed:
        heads[name] = max((heads[n] + seconds[n] for n in needs[name] if n in heads), default=0.0)
    for name in reversed(listed):
        after = tails[name] + seconds[name]
        for need in needs[name]:
            if need in tails and tails[need] < after:
                tails[need] = after
    return heads, tails


def widest(needs: Needs) -> int:
    """Gives the size of the largest set of names of which none needs another: what can at most run at once.

    By Dilworth it is the count less a largest matching of the relation "before", found after Hopcroft and Karp with
    sets as bits.
    """
    before = list(ancestors(needs).values())
    count = len(before)
    mine = [-1] * count
    theirs = [-1] * count
    matched = 0
    while True:
        level = _levels(before, mine, theirs)
        if level is None:
            return count - matched
        unseen = (1 << count) - 1
        for start in range(count):
            if mine[start] < 0:
                done, unseen = _augment(start, before, mine, theirs, level, unseen)
                matched += done


def _levels(before: Sequence[int], mine: Sequence[int], theirs: Sequence[int]) -> list[int] | None:
    """Gives how far each left side is from a free one, by steps that alternate; None when no free right is reached."""
    level = [0 if one < 0 else -1 for one in mine]
    front = [n for n, one in enumerate(mine) if one < 0]
    unseen = (1 << len(mine)) - 1
    depth, reached = 0, False
    while front and not reached:
        depth += 1
        following: list[int] = []
        for left in front:
            new = before[left] & unseen
            unseen &= ~new
            while new:
                low = new & -new
                new ^= low
                right = theirs[low.bit_length() - 1]
                if right < 0:
                    reached = True
                elif level[right] < 0:
                    level[right] = depth
                    following.append(right)
        front = following
    return level if reached else None


def _augment(start: int, before: Sequence[int], mine: list[int], theirs: list[int], level: Sequence[int],
             unseen: int) -> tuple[int, int]:  # fmt: skip
    """Looks for a way to a free right side, each right taken once a phase; gives 1 or 0 and the rights still unseen."""
    way: list[tuple[int, int]] = []
    left = start
    while True:
        new = before[left] & unseen
        taken = -1
        while new:
            low = new & -new
            new ^= low
            right = low.bit_length() - 1
            owner = theirs[right]
            if owner < 0 or level[owner] == level[left] + 1:
                taken = right
                break
        if taken < 0:
            if not way:
                return 0, unseen
            left, _ = way.pop()
            continue
        unseen &= ~(1 << taken)
        way.append((left, taken))
        if theirs[taken] < 0:
            for one, other in way:
                mine[one], theirs[other] = other, one
            return 1, unseen
        left = theirs[taken]
