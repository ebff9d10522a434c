"""The simulator: how long a list of tasks takes with so many workers, and how many workers are worth having.

It runs the scheduler itself against durations, so that what it says of a plan is what the scheduler does with it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ropewalk.plan import graph
from ropewalk.plan.schedule import Frame, Schedule

RUNS = 32
MOST = 64
"""Is the largest number of workers that is tried."""
ERROR = 0.5
"""Is the spread of a duration's error: the deviation of its logarithm."""
WITHIN = 1.05
"""Is how near the best a number of workers has to come."""


class Simulation(NamedTuple):
    """Is what a simulated run did: when it was over, when each task started and ended, and the most at once."""

    makespan: float
    starts: dict[str, float]
    ends: dict[str, float]
    peak: int


class Point(msgspec.Struct, frozen=True):
    """Is what so many workers take: the mean over the perturbed runs, the least and the most."""

    workers: int
    mean: float
    least: float
    most: float


class Advice(msgspec.Struct, frozen=True):
    """Is how many workers are worth having.

    `workers` is the least number whose mean is within 5 % of the best, `low` and `high` what single runs would have
    said; `ceiling` is the smaller of the most tasks that could ever run at once and of the regions.
    """

    workers: int
    low: int
    high: int
    ceiling: int
    antichain: int
    regions: int
    points: tuple[Point, ...] = ()


def simulate(of: Frame, seconds: Mapping[str, float], workers: int,
             thought: Mapping[str, float] | None = None) -> Simulation:  # fmt: skip
    """Gives how a run goes if each task takes `seconds`; the scheduler goes by what is `thought`, the same if None."""
    plan = Schedule(of, workers, seconds if thought is None else thought)
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    running: list[tuple[float, int, str]] = []
    now, number, peak = 0.0, 0, 0
    while True:
        for name in plan.pick(now):
            starts[name] = now
            number += 1
            heapq.heappush(running, (now + seconds[name], number, name))
        if not running:
            return Simulation(now, starts, ends, peak)
        peak = max(peak, len(running))
        now = running[0][0]
        while running and running[0][0] == now:
            name = heapq.heappop(running)[2]
            ends[name] = now
            plan.done(name, now)


def bound(of: Frame, seconds: Mapping[str, float], workers: int) -> float:
    """Gives what no schedule can undercut (F21).

    It is the largest of the work by the workers, the critical path, and for each region what has to come before it,
    its work, and what has to come after it.
    """
    needs = {name: [of.ids[n] for n in of.needs[place]] for place, name in enumerate(of.ids)}
    heads, tails = graph.heads_and_tails(needs, seconds)
    regions: dict[str, list[float]] = {}
    longest = work = 0.0
    for place, name in enumerate(of.ids):
        took = seconds[name]
        work += took
        longest = max(longest, heads[name] + took + tails[name])
        for region in of.regions[of.kinds[place]]:
            one = regions.setdefault(region, [math.inf, 0.0, math.inf])
            one[0] = min(one[0], heads[name])
            one[1] += took
            one[2] = min(one[2], tails[name])
    return max(work / max(1, workers), longest, max((sum(one) for one in regions.values()), default=0.0))


def perturbed(seconds: Mapping[str, float], runs: int = RUNS, error: float = ERROR,
              seed: int = 1) -> list[dict[str, float]]:  # fmt: skip
    """Gives the durations of so many runs in which each estimate is wrong by a lognormal factor; the same each time."""
    source = random.Random(seed)
    names = sorted(seconds)
    return [{name: seconds[name] * source.lognormvariate(0.0, error) for name in names} for _ in range(runs)]


def recommend(frames: Callable[[int], Frame], seconds: Mapping[str, float], regions: int, *,
              most: int = MOST, runs: int = RUNS, error: float = ERROR, seed: int = 1) -> Advice:  # fmt: skip
    """Gives how many workers are worth having, and how sure that is (F22).

    `frames` gives the frame for so many workers, whose regions may hang on their number; `regions` is how many there
    can be at most. Numbers up to `most` are tried: along a coarse row first, then between its last that is too slow
    and its first that is not. Those whose bound alone is too slow are not simulated.
    """
    first = frames(1)
    needs = {name: [first.ids[n] for n in first.needs[place]] for place, name in enumerate(first.ids)}
    antichain = graph.widest(needs)
    ceiling = max(1, min(antichain, regions))
    samples = perturbed(seconds, runs, error, seed)
    seen: dict[int, list[float]] = {}

    def at(workers: int) -> list[float]:
        if workers not in seen:
            made = first if workers == 1 else frames(workers)
            seen[workers] = [simulate(made, sample, workers, seconds).makespan for sample in samples]
        return seen[workers]

    row = _row(min(ceiling, max(1, most)))
    work = sum(map(sum, (sample.values() for sample in samples))) / runs
    best = _mean(at(row[-1]))
    for workers in reversed(row):
        if work / workers > WITHIN * best:
            break
        best = min(best, _mean(at(workers)))
    fitting = min(n for n in seen if _mean(seen[n]) <= WITHIN * best)
    low = max((n for n in row if n < fitting), default=0)
    while fitting - low > 1:
        middle = (low + fitting) // 2
        if work / middle <= WITHIN * best and _mean(at(middle)) <= WITHIN * best:
            fitting = middle
        else:
            low = middle
    singles = [_single(seen, run) for run in range(runs)]
    points = tuple(Point(n, _mean(times), min(times), max(times)) for n, times in sorted(seen.items()))
    return Advice(fitting, min(*singles, fitting), max(*singles, fitting), ceiling, antichain, regions, points)


def _row(ceiling: int) -> list[int]:
    """Gives numbers from 1 to a ceiling: all up to 8, then each about a quarter more than the one before."""
    found = list(range(1, min(ceiling, 8) + 1))
    while found[-1] < ceiling:
        found.append(min(ceiling, found[-1] + max(1, found[-1] // 4)))
    return found


def _single(seen: Mapping[int, Sequence[float]], run: int) -> int:
    best = min(times[run] for times in seen.values())
    return min(n for n, times in seen.items() if times[run] <= WITHIN * best)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
