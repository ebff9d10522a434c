"""The live view of a run on a terminal: what ended goes up as lines, what runs stays below, drawn in place."""

from __future__ import annotations

import os
import time
from typing import IO, Any

from ropewalk.operations.run import line_of

_SHOWN = 12
_COLOURS = {"landed": "32", "conflict": "33", "task_ended": "31", "stopping": "33"}


class Live:
    """Draws on a terminal; its methods are called one at a time."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._height = 0
        self._total = self._landed = self._failed = 0
        self._running: dict[str, tuple[float, str]] = {}
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        """Shows a line that stays."""
        self._draw([line])

    def event(self, event: dict[str, Any]) -> None:
        """Shows an event of a run."""
        kind, task = event["event"], str(event.get("task", ""))
        if kind == "run_started":
            self._total, self._landed, self._failed = len(event["tasks"]), 0, 0
            self._began = time.monotonic()
        elif kind == "task_started":
            self._running[task] = (time.monotonic(), "workspace")
        elif kind == "task_ended":
            self._running.pop(task, None)
            self._landed += event["report"].state == "landed"
            self._failed += event["report"].state != "landed"
        elif task in self._running:
            words = _words(event)
            if words is not None:
                self._running[task] = (self._running[task][0], words)
        elif kind == "run_ended":
            self._running.clear()
            self._total = 0
        line = line_of(event) if kind != "task_started" else None
        colour = _COLOURS.get(kind)
        self._draw([f"\x1b[{colour}m{line}\x1b[0m" if colour else line] if line is not None else [])

    def _draw(self, lines: list[str]) -> None:
        width = _width(self._out)
        block = []
        now = time.monotonic()
        for task, (since, words) in list(self._running.items())[:_SHOWN]:
            block.append(f"  {now - since:5.1f} s  {task:<20.20} {words}"[: width - 1])
        if len(self._running) > _SHOWN:
            block.append(f"  and {len(self._running) - _SHOWN} more")
        if self._total:
            left = self._total - self._landed - self._failed - len(self._running)
            counts = f"{self._landed} landed, {self._failed} not, {len(self._running)} running, {left} waiting"
            block.append(f"  {now - self._began:5.1f} s  {counts}"[: width - 1])
        up = f"\x1b[{self._height}F" if self._height else ""
        self._out.write(f"{up}\x1b[J" + "".join(f"{line}\n" for line in [*lines, *block]))
        self._out.flush()
        self._height = len(block)


def _words(event: dict[str, Any]) -> str | None:
    """Gives what a task is doing after an event, None when that says nothing new."""
    kind = event["event"]
    if kind == "agent_tool":
        return f"agent: {event['name']} {event['on']}"
    if kind == "agent_message":
        return f"agent: {event.get('text', '')}".split("\n")[0]
    return {"landing": "landing", "landed": "tidying up", "conflict": "agent: conflict", "agent_ended": "captured"}.get(
        kind
    )


def _width(out: IO[str]) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except OSError:
        return 80
