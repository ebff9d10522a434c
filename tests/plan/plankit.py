"""Plans made by chance, for properties and for the bench."""

from __future__ import annotations

import random

from ropewalk.plan.plan import Module, Plan
from ropewalk.plan.task import Task


def chance_plan(tasks: int, modules: int, seed: int, needs: float = 1.5, window: int = 30,
                wide: float = 0.0) -> tuple[Plan, dict[str, float]]:  # fmt: skip
    """Gives a plan and its durations: tasks need some of those just before them; a part of them writes two modules."""
    source = random.Random(seed)
    made: list[Task] = []
    for n in range(tasks):
        count = min(n, int(source.expovariate(1 / needs))) if needs else 0
        wanted = tuple(sorted({f"t{source.randrange(max(0, n - window), n)}" for _ in range(count)}))
        module = source.randrange(modules)
        owns: tuple[str, ...] = ()
        if source.random() < wide:
            owns = (f"src/m{module}/x{n}.py", f"src/m{source.randrange(modules)}/*.py")
        made.append(Task(f"t{n}", "make test", "do the thing well", needs=wanted, owns=owns, module=f"m{module}"))
    listed = tuple(Module(f"m{n}", f"src/m{n}") for n in range(modules))
    return Plan("", listed, tuple(made)), {task.id: source.lognormvariate(4, 0.6) for task in made}
