"""The packer: modules into regions, so that the run is short and few tasks need what another region makes.

It starts from the longest-processing-time rule, then moves and swaps modules while that helps, and last tries moves in
the simulator. No chance is in it: the same plan gives the same regions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import msgspec

from ropewalk.plan import graph
from ropewalk.plan.globs import above_and_at, head
from ropewalk.plan.plan import Plan, loads, writes
from ropewalk.plan.schedule import Frame, frame, held_regions
from ropewalk.plan.simulate import bound, simulate

HANDOVER = 0.05
"""Is what a need across regions costs beside a median task: a worker has to learn what another one made."""
_STEPS = 40_000
"""Is how many moves and swaps are weighed at most without the simulator."""
_NEAR = 10
"""Is how many regions are looked at for each unit that shall leave the longest one."""
_TRIES = 200
_NEAR_ENOUGH = 1.01
"""Is how near to the least possible a packing may be that is not bettered further."""
_SIMULATED = 24_000
"""Is how many tasks are simulated at most, over all tries together."""


class Region(msgspec.Struct, frozen=True):
    """Is one region: its modules, the heaviest first, their folders as globs, and its work."""

    name: str
    modules: tuple[str, ...]
    paths: tuple[str, ...]
    load: float


class Packing(msgspec.Struct, frozen=True):
    """Is how modules are packed: the regions, those that each task holds, and what came out.

    `makespan` is simulated with as many workers as regions, `crossing` how many needs go from one region to another.
    """

    regions: tuple[Region, ...]
    held: dict[str, tuple[str, ...]]
    makespan: float
    bound: float
    crossing: int

    @property
    def of(self) -> dict[str, str]:
        """Gives each module's region."""
        return {module: region.name for region in self.regions for module in region.modules}


class _Unit(msgspec.Struct):
    """Is what is packed as one: modules whose folders lie in each other."""

    modules: list[str]
    load: float = 0.0
    head: float = math.inf
    tail: float = math.inf


def groups(plan: Plan) -> list[list[str]]:
    """Gives the modules that have to be together, since one's folder lies in another's; most groups are one module."""
    folders = sorted((tuple(f for f in module.folder.casefold().split("/") if f), n)
                     for n, module in enumerate(plan.modules))  # fmt: skip
    found: list[list[int]] = []
    top: tuple[str, ...] | None = None
    for parts, n in folders:
        if top is not None and parts[: len(top)] == top:
            found[-1].append(n)
        else:
            found.append([n])
            top = parts
    return [[plan.modules[n].name for n in sorted(one)] for one in sorted(map(sorted, found))]


def pack(plan: Plan, regions: int, seconds: Mapping[str, float] | None = None, *, search: bool = True) -> Packing:
    """Packs a plan into at most so many regions; `seconds` are how long tasks are thought to take, where known.

    Without `search` the start is taken as it is. None of the regions is empty, and there are no more than groups.
    """
    return _Packer(plan, regions, loads(plan, seconds)).pack(search)


def frame_of(plan: Plan, packing: Packing) -> Frame:
    """Gives the scheduler's frame of a packed plan.

    A task holds every region that its write set reaches into, so of its paths only those count that lie in none.
    """
    folders = [path.removesuffix("/") for region in packing.regions for path in region.paths]
    return frame(plan.tasks, packing.held, {task.id: _outside(writes(task, {}), folders) for task in plan.tasks})


def _outside(globs: Sequence[str], folders: Sequence[str]) -> tuple[str, ...]:
    if not globs or "**" in folders:
        return ()
    known = set(folders)
    return tuple(glob for glob in globs if not any(above in known for above in above_and_at(head(glob))))


class _Sum(msgspec.Struct):
    """Is what a region's length hangs on: its work, and the two least of what comes before and after its units."""

    load: float
    heads: tuple[tuple[float, int], tuple[float, int]]
    tails: tuple[tuple[float, int], tuple[float, int]]


class _Packer:
    def __init__(self, plan: Plan, regions: int, seconds: Mapping[str, float]) -> None:
        self.plan, self.seconds = plan, seconds
        self.units = [_Unit(names) for names in groups(plan)]
        self.count = max(1, min(regions, len(self.units)))
        self.unit_of = {name: n for n, unit in enumerate(self.units) for name in unit.modules}
        needs = {task.id: task.needs for task in plan.tasks}
        self.heads, self.tails = graph.heads_and_tails(needs, seconds)
        module = {task.id: task.module for task in plan.tasks}
        self.ties: list[dict[int, int]] = [{} for _ in self.units]
        for task in plan.tasks:
            mine = self.unit_of.get(task.module)
            if mine is None:
                continue
            unit = self.units[mine]
            unit.load += seconds[task.id]
            unit.head = min(unit.head, self.heads.get(task.id, 0.0))
            unit.tail = min(unit.tail, self.tails.get(task.id, 0.0))
            for need in task.needs:
                other = self.unit_of.get(module.get(need, ""))
                if other is not None and other != mine:
                    self.ties[mine][other] = self.ties[mine].get(other, 0) + 1
                    self.ties[other][mine] = self.ties[other].get(mine, 0) + 1
        ordered = sorted(seconds.values())
        middle = ordered[len(ordered) // 2] if ordered else 1.0
        self.left = 0
        self.handover = HANDOVER * middle / self.count
        self.least = max((self.heads[n] + seconds[n] + self.tails[n] for n in self.heads), default=0.0)
        self.least = max(self.least, sum(seconds.values()) / self.count)

    def pack(self, search: bool) -> Packing:
        """Gives the packing: of two starts the better one, after moves and swaps."""
        starts = [self.start(False)]
        if search and self.count > 1:
            starts = [self.improve(one) for one in (starts[0], self.start(True))]
            starts = [one for n, one in enumerate(starts) if one not in starts[:n]]
            if len(starts) > 1 or self.count < len(self.units):
                return self.packing(self.simulated(starts))
        return self.packing(starts[0])

    def start(self, together: bool) -> list[int]:
        """Gives each unit's region: the heaviest first, each to the lightest, or to that with most ties to it."""
        filled = [0.0] * self.count
        used = [0] * self.count
        found = [-1] * len(self.units)
        fair = sum(unit.load for unit in self.units) / self.count
        listed = sorted(range(len(self.units)), key=lambda n: (-self.units[n].load, n))
        for place, n in enumerate(listed):
            empty = used.count(0)
            choice = range(self.count) if len(listed) - place > empty else [r for r in range(self.count) if not used[r]]
            ties = [0] * self.count
            if together:
                for other, count in self.ties[n].items():
                    if found[other] >= 0 and filled[found[other]] + self.units[n].load <= fair:
                        ties[found[other]] += count
            best = min(choice, key=lambda r: (-ties[r], filled[r], r))
            found[n] = best
            filled[best] += self.units[n].load
            used[best] += 1
        return found

    def sum_of(self, members: Sequence[int]) -> _Sum:
        """Gives what a region's length hangs on."""
        busy = [n for n in members if self.units[n].load]
        none = [(math.inf, -1), (math.inf, -1)]
        heads = sorted([*((self.units[n].head, n) for n in busy), *none])[:2]
        tails = sorted([*((self.units[n].tail, n) for n in busy), *none])[:2]
        return _Sum(sum(self.units[n].load for n in busy), (heads[0], heads[1]), (tails[0], tails[1]))

    def cost(self, one: _Sum, out: int = -2, into: int = -2) -> float:
        """Gives the length of a region alone, without one of its units and with another one.

        It is what has to come before the region, its work, and what has to come after it.
        """
        load = one.load
        before = one.heads[one.heads[0][1] == out][0]
        after = one.tails[one.tails[0][1] == out][0]
        if out >= 0:
            load -= self.units[out].load
        if into >= 0 and self.units[into].load:
            unit = self.units[into]
            load, before, after = load + unit.load, min(before, unit.head), min(after, unit.tail)
        return load + before + after if before < math.inf else 0.0

    def improve(self, found: list[int]) -> list[int]:
        """Moves and swaps units while the estimate falls: the longest region, beside needs that cross."""
        found = list(found)
        members = [[n for n, r in enumerate(found) if r == region] for region in range(self.count)]
        sums = [self.sum_of(one) for one in members]
        self.left = _STEPS
        while self.left > 0:
            change = self.balance(found, members, sums) or self.untie(found, members, sums)
            if change is None:
                break
            touched = set()
            for n, region in change:
                touched |= {found[n], region}
                members[found[n]].remove(n)
                found[n] = region
                members[region].append(n)
            for region in touched:
                members[region].sort()
                sums[region] = self.sum_of(members[region])
        return found

    def balance(self, found: Sequence[int], members: Sequence[list[int]],
                sums: Sequence[_Sum]) -> list[tuple[int, int]] | None:  # fmt: skip
        """Gives the best change that takes something out of the longest region."""
        costs = [self.cost(one) for one in sums]
        longest = max(range(self.count), key=lambda r: (costs[r], -r))
        now = costs[longest]
        if now <= self.least:
            return None
        best: tuple[float, list[tuple[int, int]]] | None = None
        near = sorted((r for r in range(self.count) if r != longest), key=lambda r: (costs[r], r))[:_NEAR]
        second = max((costs[r] for r in range(self.count) if r != longest and r not in near), default=0.0)
        mine = sums[longest]
        for n in sorted(members[longest], key=lambda n: (-self.units[n].load, n))[: 2 * _NEAR]:
            for region in near:
                if len(members[longest]) > 1:
                    then = max(self.cost(mine, n), self.cost(sums[region], into=n), second)
                    best = self.better(best, now, then, found, [(n, region)])
                for m in members[region][: 2 * _NEAR]:
                    self.left -= 1
                    if self.units[m].load < self.units[n].load:
                        then = max(self.cost(mine, n, m), self.cost(sums[region], m, n), second)
                        best = self.better(best, now, then, found, [(n, region), (m, longest)])
        return best[1] if best is not None else None

    def better(self, best: tuple[float, list[tuple[int, int]]] | None, now: float, then: float, found: Sequence[int],
               change: list[tuple[int, int]]) -> tuple[float, list[tuple[int, int]]] | None:  # fmt: skip
        """Gives the better of two changes, by how much they shorten, less what they cost in handovers."""
        if then >= now:
            return best
        gain = now - max(then, self.least) - self.handover * self.more(found, change)
        return (gain, change) if gain > 1e-9 * now and (best is None or gain > best[0] + 1e-12) else best

    def more(self, found: Sequence[int], change: Sequence[tuple[int, int]]) -> int:
        """Gives how many more needs cross regions after a change."""
        after = dict(change)
        total = 0
        for n, region in change:
            for other, count in self.ties[n].items():
                if other in after and other < n:
                    continue
                there = after.get(other, found[other])
                total += count * ((region != there) - (found[n] != found[other]))
        return total

    def untie(self, found: Sequence[int], members: Sequence[list[int]],
              sums: Sequence[_Sum]) -> list[tuple[int, int]] | None:  # fmt: skip
        """Gives a move that brings units together that need each other, without making the run longer."""
        most = max(self.least, *(self.cost(one) for one in sums))
        best: tuple[int, list[tuple[int, int]]] | None = None
        for n in range(len(found)):
            if len(members[found[n]]) < 2 or not self.ties[n]:
                continue
            per: dict[int, int] = {}
            for other, count in self.ties[n].items():
                per[found[other]] = per.get(found[other], 0) + count
            self.left -= 1
            for region in sorted(per):
                gain = per[region] - per.get(found[n], 0)
                if region == found[n] or gain <= 0 or (best is not None and gain <= best[0]):
                    continue
                if self.cost(sums[region], into=n) <= most:
                    best = (gain, [(n, region)])
        return best[1] if best is not None else None

    def simulated(self, starts: Sequence[list[int]]) -> list[int]:
        """Gives the best of some packings and of moves from it, as the simulator has it."""
        left = max(2, _SIMULATED // max(1, len(self.plan.tasks)))

        def value(found: Sequence[int]) -> float:
            regions, held = self.regions(found)
            made = frame_of(self.plan, Packing(regions, held, 0.0, 0.0, 0))
            return simulate(made, self.seconds, self.count).makespan + self.handover * self.crossing(found)

        best = min(starts, key=self.guess)
        least = value(best)
        for one in starts if least > self.guess(best) * _NEAR_ENOUGH else ():
            left -= 1
            if one is not best and (other := value(one)) < least - 1e-9:
                best, least = one, other
        moved = True
        while moved and left > 0 and least > self.guess(best) * _NEAR_ENOUGH:
            moved = False
            for change in self.tries(best):
                if left <= 0:
                    break
                left -= 1
                tried = list(best)
                for n, region in change:
                    tried[n] = region
                if (other := value(tried)) < least - 1e-9:
                    best, least, moved = tried, other, True
                    break
        return best

    def guess(self, found: Sequence[int]) -> float:
        """Gives what a packing takes at least, with what its handovers cost."""
        members = [[n for n, r in enumerate(found) if r == region] for region in range(self.count)]
        most = max(self.cost(self.sum_of(one)) for one in members)
        return max(self.least, most) + self.handover * self.crossing(found)

    def tries(self, found: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Gives changes worth a simulation: out of the longest regions first, moves before swaps."""
        members = [[n for n, r in enumerate(found) if r == region] for region in range(self.count)]
        costs = [self.cost(self.sum_of(one)) for one in members]
        listed = sorted(range(self.count), key=lambda r: (-costs[r], r))
        moves = ([(n, other)] for region in listed for n in members[region] if len(members[region]) > 1
                 for other in reversed(listed) if other != region)  # fmt: skip
        swaps = ([(n, other), (m, region)] for place, region in enumerate(listed) for other in listed[place + 1 :]
                 for n in members[region] for m in members[other])  # fmt: skip
        return [*islice(moves, _TRIES), *islice(swaps, _TRIES)]

    def packing(self, found: Sequence[int]) -> Packing:
        """Gives a packing by each unit's region."""
        regions, held = self.regions(found)
        made = frame_of(self.plan, Packing(regions, held, 0.0, 0.0, 0))
        makespan = simulate(made, self.seconds, self.count).makespan
        return Packing(regions, held, makespan, bound(made, self.seconds, self.count), self.crossing(found))

    def regions(self, found: Sequence[int]) -> tuple[tuple[Region, ...], dict[str, tuple[str, ...]]]:
        """Gives the regions, and those that each task holds."""
        members: list[list[int]] = [[] for _ in range(self.count)]
        for n, region in enumerate(found):
            members[region].append(n)
        members = sorted((one for one in members if one), key=lambda one: one[0])
        modules = {module.name: module for module in self.plan.modules}
        regions: list[Region] = []
        for one in members:
            ranked = sorted(one, key=lambda n: (-self.units[n].load, n))
            names = tuple(name for n in ranked for name in self.units[n].modules)
            name = names[0] if len(names) == 1 else _name(len(regions) + 1, modules)
            paths = tuple(f"{modules[m].folder}/" if modules[m].folder else "**" for m in names)
            regions.append(Region(name, names, paths, sum(self.units[n].load for n in one)))
        return tuple(regions), self.held(regions)

    def held(self, regions: Sequence[Region]) -> dict[str, tuple[str, ...]]:
        """Gives the regions each task holds: its module's, and those that its write set reaches into (F19)."""
        folders = {module.name: module.folder for module in self.plan.modules}
        of = {module: region.name for region in regions for module in region.modules}
        written = {task.id: writes(task, folders) for task in self.plan.tasks if task.owns or task.modifies}
        wide = held_regions({region.name: region.paths for region in regions}, written)
        return {task.id: tuple(sorted({*wide.get(task.id, ()), *([of[task.module]] if task.module in of else [])}))
                for task in self.plan.tasks}  # fmt: skip

    def crossing(self, found: Sequence[int]) -> int:
        """Gives how many needs go from one region to another."""
        crossed = (count for n, ties in enumerate(self.ties) for other, count in ties.items()
                   if n < other and found[n] != found[other])  # fmt: skip
        return sum(crossed)


def _name(number: int, taken: Collection[str]) -> str:
    name = f"region-{number}"
    while name in taken:
        name += "-x"
    return name
