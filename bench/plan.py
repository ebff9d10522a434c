"""The planner's core: large plans read, packed and scheduled, the scheduler's reaction, the simulator and the lint.

The bound is what no schedule can undercut: the work by the workers, the critical path, and for each region what comes
before it, its work, and what comes after it. Time is the wall's, beside the processor's, since other work may run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

import common

sys.path.insert(0, str(common.ROOT / "tests"))

from plan.plankit import chance_plan  # type: ignore[import-not-found]
from ropewalk.plan.lint import lint
from ropewalk.plan.packer import frame_of, groups, pack
from ropewalk.plan.packets import Packet
from ropewalk.plan.plan import Plan, read
from ropewalk.plan.schedule import Schedule
from ropewalk.plan.simulate import Advice, recommend, simulate


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Gives what a function gives, the seconds by the wall, and those of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def large(tasks: int, modules: int, regions: int) -> tuple[list[list[Any]], dict[str, float]]:
    """Reads, packs and schedules one plan, then runs it step by step to see how fast the scheduler answers."""
    plan, seconds = chance_plan(tasks, modules, 1, window=300)
    reply = "Here it is:\n```json\n" + msgspec.json.encode(plan).decode() + "\n```\n"
    reading, *read_time = timed(lambda: read(reply, has_program=lambda _: True))
    if reading.plan is None:
        raise SystemExit(reading.message)
    packing, *pack_time = timed(lambda: pack(reading.plan, regions, seconds))
    made, *board_time = timed(lambda: frame_of(plan, packing))
    _, *simulated = timed(lambda: simulate(made, seconds, regions))
    parts = [("read", read_time), ("pack", pack_time), ("schedule", [a + b for a, b in
             zip(board_time, simulated, strict=True)])]  # fmt: skip
    total = [sum(part[n] for _, part in parts) for n in (0, 1)]
    rows: list[list[Any]] = [[name, *took] for name, took in [*parts, ("together", total)]]
    reactions = reaction(plan, frame=made, seconds=seconds, slots=regions)
    rows.append(["reaction, median of all ends (ms)", common.median(reactions) * 1000, None])
    rows.append(["reaction, longest of all (ms)", max(reactions) * 1000, None])
    figures = {"read": read_time[0], "pack": pack_time[0], "together": total[0], "together_cpu": total[1],
               "reaction_max": max(reactions), "makespan_by_bound": packing.makespan / packing.bound}  # fmt: skip
    return rows, figures


def reaction(plan: Plan, frame: Any, seconds: dict[str, float], slots: int) -> list[float]:
    """Gives, for each end of a task, the time until the scheduler has named what starts."""
    run = Schedule(frame, slots, seconds)
    running = {name: seconds[name] for name in run.pick(0.0)}
    found: list[float] = []
    while running:
        name = min(running, key=lambda n: running[n])
        now = running.pop(name)
        began = time.perf_counter()
        run.done(name, now)
        started = run.pick(now)
        found.append(time.perf_counter() - began)
        running.update({one: now + seconds[one] for one in started})
    if not run.over or len(found) != len(plan.tasks):
        raise SystemExit("the schedule did not end")
    return found


def graphs(count: int) -> list[float]:
    """Gives the simulated makespan by the bound, for graphs of many sizes, with as many workers as regions or fewer."""
    found = []
    for seed in range(count):
        tasks, modules = 10 + seed * 37 % 111, 2 + seed * 13 % 19
        plan, seconds = chance_plan(tasks, modules, seed, needs=(0.5, 1.0, 2.0)[seed % 3])
        packing = pack(plan, 1 + seed % min(modules, 8), seconds)
        found.append(packing.makespan / packing.bound)
    return found


def advice(tasks: int, modules: int) -> Advice:
    """Gives how many workers are recommended for a plan."""
    plan, seconds = chance_plan(tasks, modules, 7)
    return recommend(lambda n: frame_of(plan, pack(plan, n, seconds, search=False)), seconds, len(groups(plan)))


def packets(count: int, paths: int) -> list[Packet]:
    """Gives packets of which each owns some globs, a part of them without a folder."""
    return [
        Packet(f"p{n}", "Builder", "build", "m", owns=tuple(f"src/m{n}/f{k}*.py" for k in range(paths - 2)),
               modifies=(f"**/x{n}.py", f"doc/*/{n}.md"), reads=(f"src/m{n - 1}/**",) if n else (),
               depends_on=(f"p{n - 1}",) if n % 3 else (), gate="make test", final_reply="STATUS", body="# x\n")
        for n in range(count)
    ]  # fmt: skip


def main() -> None:
    """Runs the measurements."""
    args = common.arguments(__doc__).parse_args()
    size = (500, 50, 8) if args.quick else (5_000, 500, 16)
    rows, figures = large(*size)
    common.table(f"{size[0]:,} tasks in {size[1]} modules, {size[2]} regions", ["", "s", "s of processor"], rows)
    ratios = graphs(30 if args.quick else 300)
    told = [f"{v:.3f}" for v in (common.median(ratios), common.percentile(ratios, 0.9), max(ratios))]
    common.table(f"simulated makespan by the bound, {len(ratios)} graphs", ["median", "p90", "largest"], [told])
    said, took, cpu = timed(lambda: advice(40, 12))
    common.table("workers for 40 tasks in 12 modules, 32 runs each", ["number", "range", "ceiling", "s", "processor"],
                 [[str(said.workers), f"{said.low} to {said.high}", str(said.ceiling), took, cpu]])  # fmt: skip
    count = 50 if args.quick else 200
    report, lint_took, lint_cpu = timed(lambda: lint(packets(count, 10)))
    common.table(f"lint of {count} packets with 10 paths", ["findings", "s", "processor"],
                 [[str(len(report.findings)), lint_took, lint_cpu]])  # fmt: skip
    figures |= {"graphs_median": common.median(ratios), "graphs_max": max(ratios), "advice": took, "lint": lint_took}
    common.finish("plan", figures, args.json)


if __name__ == "__main__":
    main()
