"""Staff: the agent programs that a worker has, and which of them does a task, with which model.

What a task names counts first, then what the worker was told, then the routing table that the user edits.
"""

from __future__ import annotations

from typing import NamedTuple

from ropewalk.lane.adapter import Adapter
from ropewalk.lane.routing import Table, route


class Pick(NamedTuple):
    """Is who does a task: the program, and the model and the effort it is told; empty ones are its own defaults."""

    adapter: Adapter
    model: str = ""
    effort: str = ""


class Staff(NamedTuple):
    """Is the programs to choose from, the first one for what nothing decides; and what tasks get that name nothing.

    With `by_route` the table alone decides, and a task whose program is not among these is for somebody else.
    """

    adapters: tuple[Adapter, ...]
    table: Table = Table()
    model: str = ""
    effort: str = ""
    task_class: str = ""
    by_route: bool = False

    @property
    def names(self) -> str:
        """Gives the programs' names."""
        return ",".join(one.name for one in self.adapters)

    def pick(self, *, harness: str = "", model: str = "", task_class: str = "", effort: str = "") -> Pick | None:
        """Gives who does a task that names these, None for one that is for another worker.

        A class that the table lacks is a word for people, and decides nothing.
        """
        here = {one.name: one for one in self.adapters}
        if harness and harness not in here:
            return None
        model, effort = model or self.model, effort or self.effort
        task_class = next((one for one in (task_class, self.task_class) if one in self.table.classes), "")
        alone = here[harness] if harness else self.adapters[0] if len(here) == 1 and not self.by_route else None
        if alone is not None:
            return self._of(alone, model, task_class, effort)
        found = route(self.table, model=model, task_class=task_class, effort=effort)
        if found.harness in here:
            return Pick(here[found.harness], found.model, found.effort)
        if model or self.by_route:
            return None
        return self._of(self.adapters[0], "", task_class, effort)

    def _of(self, adapter: Adapter, model: str, task_class: str, effort: str) -> Pick:
        if not (model or task_class) or ":" in adapter.name or adapter.name in ("command", "scripted"):
            return Pick(adapter, model, effort)
        found = route(self.table, harness=adapter.name, model=model, task_class=task_class, effort=effort)
        return Pick(adapter, found.model, found.effort)
