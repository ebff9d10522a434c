"""What a plan comes to: its regions, how many workers are worth having, its critical path, and how it would run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ropewalk.plan import graph
from ropewalk.plan.packer import Packing, frame_of, groups, pack
from ropewalk.plan.plan import Plan, loads
from ropewalk.plan.schedule import Schedule
from ropewalk.plan.simulate import Advice, recommend, simulate

_LARGE = 300
"""Is from how many tasks on the packings that numbers of workers are tried with are not searched."""


class Bar(msgspec.Struct, frozen=True):
    """Is a task as the simulator ran it: when it started and ended, and in which regions."""

    id: str
    start: float
    end: float
    regions: tuple[str, ...]
    critical: bool = False


class Wait(msgspec.Struct, frozen=True):
    """Is why a task does not start at once, and what it waits for."""

    id: str
    kind: str
    on: tuple[str, ...]
    text: str


class Overview(msgspec.Struct, frozen=True):
    """Is what a plan comes to with so many workers.

    `measured` says that lengths are seconds, from what tasks like these took; without it they are the weights of the
    modules, and only their proportion means something.
    """

    advice: Advice
    workers: int
    packing: Packing
    critical: tuple[str, ...]
    bars: tuple[Bar, ...]
    waits: tuple[Wait, ...]
    makespan: float
    length: float
    work: float
    measured: bool

    def chart(self, width: int = 60) -> list[str]:
        """Gives the run as lines of text: a bar for each task, `#` where it is on the critical path."""
        if not self.bars:
            return []
        name = min(40, max(len(bar.id) for bar in self.bars))
        scale = width / self.makespan if self.makespan else 0.0
        lines = []
        for bar in self.bars:
            at = min(width - 1, round(bar.start * scale))
            long = max(1, min(width, round(bar.end * scale)) - at)
            lines.append(f"{bar.id[:name]:<{name}} |{' ' * at}{('#' if bar.critical else '=') * long:<{width - at}}|")
        return lines


def overview(plan: Plan, seconds: Mapping[str, float] | None = None, workers: int | None = None) -> Overview:
    """Gives what a plan comes to; without a number of workers it is that which is worth having."""
    lengths = loads(plan, seconds)
    advice = advise(plan, lengths)
    count = workers if workers is not None else advice.workers
    packing = pack(plan, count, lengths)
    frame = frame_of(plan, packing)
    run = simulate(frame, lengths, count)
    critical = path(plan, lengths)
    bars = tuple(Bar(task.id, run.starts[task.id], run.ends[task.id], packing.held.get(task.id, ()),
                     task.id in critical)
                 for task in sorted(plan.tasks, key=lambda t: (run.starts[t.id], t.id)))  # fmt: skip
    schedule = Schedule(frame, count, lengths)
    schedule.pick(0.0)
    waits = tuple(Wait(one.id, one.kind, one.on, one.text) for one in schedule.waiting(0.0))
    return Overview(advice, count, packing, critical, bars, waits, run.makespan, sum(lengths[n] for n in critical),
                    sum(lengths.values()), bool(seconds))  # fmt: skip


def advise(plan: Plan, lengths: Mapping[str, float]) -> Advice:
    """Gives how many workers are worth having for a plan."""
    search = len(plan.tasks) <= _LARGE
    return recommend(lambda n: frame_of(plan, pack(plan, n, lengths, search=search)), lengths, len(groups(plan)))


def path(plan: Plan, lengths: Mapping[str, float]) -> tuple[str, ...]:
    """Gives the critical path: the chain of needs that takes longest, in its order."""
    needs = {task.id: [need for need in task.needs if need != task.id] for task in plan.tasks}
    heads, tails = graph.heads_and_tails(needs, lengths)
    if not heads:
        return ()
    best = max(heads, key=lambda n: (heads[n] + lengths[n] + tails[n], -heads[n]))
    found = [best]
    while before := [n for n in needs[found[0]] if n in heads]:
        found.insert(0, max(before, key=lambda n: heads[n] + lengths[n]))
    while after := [t.id for t in plan.tasks if found[-1] in t.needs and t.id in heads]:
        found.append(max(after, key=lambda n: lengths[n] + tails[n]))
    return tuple(found)
