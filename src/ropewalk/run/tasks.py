"""The task file: what a run is asked to do, checked strictly before anything is started."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError
from ropewalk.plan.task import find_circle

MAX_TASKS = 10_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}\Z")


class Task(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is one task: what the agent is told, what must pass on the merged tree, and which tasks must be landed first.

    `script` is for the scripted agent alone; `message` is the change's, else the prompt's first line.
    """

    id: str
    prompt: Annotated[str, Meta(min_length=1, max_length=10_000_000)]
    script: dict[str, Any] | list[dict[str, Any]] | None = None
    check: Annotated[str, Meta(min_length=1, max_length=100_000)] | None = None
    needs: list[str] = []
    message: Annotated[str, Meta(min_length=1, max_length=100_000)] | None = None

    def title(self) -> str:
        """Gives the message of the task's change."""
        return self.message or self.prompt.strip().splitlines()[0][:200]


class TaskFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is the content of a task file."""

    tasks: Annotated[list[Task], Meta(max_length=MAX_TASKS)]


def parse(data: bytes, name: str) -> list[Task]:
    """Gives the tasks of a JSON file, or of TOML when `name` ends with `.toml`; `E_INVALID` says what is wrong."""
    try:
        if name.endswith(".toml"):
            found = msgspec.toml.decode(data, type=TaskFile)
        else:
            found = msgspec.json.decode(data, type=TaskFile)
    except UNREADABLE as error:
        raise InvalidError(f"{name}: {error}", hint='{"tasks": [{"id": "one", "prompt": "…"}]}', file=name) from None
    check(found.tasks)
    return found.tasks


def check(tasks: list[Task]) -> None:
    """Checks ids, needs and cycles; `E_INVALID` lists every problem."""
    problems: list[str] = []
    if not tasks:
        problems.append("there is no task")
    known: set[str] = set()
    for task in tasks:
        if not _ID.match(task.id) or task.id.endswith((".", ".lock")) or ".." in task.id:
            problems.append(f"{task.id!r} is not an id: letters, digits, '.', '_' and '-', at most 60")
        if task.id.lower() in known:
            problems.append(f"two tasks have the id {task.id!r}")
        known.add(task.id.lower())
        if not task.prompt.strip():
            problems.append(f"{task.id}: the prompt is blank")
    ids = {task.id for task in tasks}
    for task in tasks:
        for need in task.needs:
            if need not in ids:
                problems.append(f"{task.id} needs {need!r}, which is no task")
        if len(set(task.needs)) != len(task.needs):
            problems.append(f"{task.id} names a need twice")
    if not problems and (circle := find_circle({task.id: task.needs for task in tasks})):
        problems.append(f"the needs go in a circle: {' → '.join(circle)}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidError(f"the tasks can't be run: {problems[0]}{more}", problems=problems[:100])
