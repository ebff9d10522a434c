"""The task: one structure for plans, boards and runs, and the rules for what it may hold."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.errors import InvalidError
from ropewalk.core.ids import check_ref

MAX_TASKS = 100_000
MAX_BRIEF = 4 << 20
"""Is how long a description may be, in bytes."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\Z")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}\Z")
_REGION = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}\Z")

Seconds = Annotated[float, Meta(gt=0, le=7 * 86_400)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is what a task may use up: `seconds` of an agent, `check_seconds` of its check, turns, tokens, money in dollars.

    `heirs` are tries anew after a death by infrastructure, `attempts` tries after failures by merit; None is the
    worker's default.
    """

    seconds: Seconds | None = None
    check_seconds: Seconds | None = None
    turns: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    tokens: Count | None = None
    money: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    heirs: Annotated[int, Meta(ge=0, le=100)] | None = None
    attempts: Annotated[int, Meta(ge=1, le=100)] | None = None


class Gate(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is how many of how many reviewers have to agree; `providers` wants them to be of as many providers."""

    n: Annotated[int, Meta(ge=1, le=100)]
    m: Annotated[int, Meta(ge=1, le=100)]
    providers: bool = False


class Task(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is one task.

    `needs` are tasks that have to be done before it, `owns` and `modifies` the paths (globs) that it writes, `region`
    a name that only one task at a time may hold, `check` a line for the shell that has to pass on the tree that lands.
    `guard` marks a task whose check passes already and has to go on passing. `target` is the branch it lands on.
    """

    id: str
    check: str
    description: str = ""
    title: str = ""
    needs: tuple[str, ...] = ()
    owns: tuple[str, ...] = ()
    modifies: tuple[str, ...] = ()
    region: str = ""
    module: str = ""
    role: str = ""
    class_: str = msgspec.field(name="class", default="")
    harness: str = ""
    model: str = ""
    effort: str = ""
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    limits: Limits = Limits()
    reply: dict[str, Any] | None = None
    guard: bool = False
    target: str = "main"
    gate: Gate | None = None

    @property
    def name(self) -> str:
        """Gives the title, else the first line of the description, else the id."""
        first = self.description.strip().split("\n", 1)[0].strip()
        return (self.title or first or self.id)[:200]


def check_id(name: str, what: str = "a task's id") -> str:
    """Gives a task's id back; `E_INVALID` unless git, flockwork and every disk can hold it (F23)."""
    if not _NAME.match(name) or ".." in name or name.endswith((".", ".lock")):
        raise InvalidError(
            f"{name[:120]!r} is not {what}",
            hint="use lower case letters, digits, '.', '_' and '-', at most 100, no '..', no end '.lock' or '.'",
            name=name[:200],
        )
    return name


def problems(task: Task, *, named: bool = True) -> list[str]:
    """Gives what is wrong with a task by itself, each as a sentence that names it.

    With `named=False` its own id may be whatever a board has for it.
    """
    found: list[str] = []

    def say(words: str) -> None:
        found.append(f"{task.id[:120]}: {words}")

    try:
        if named:
            check_id(task.id)
    except InvalidError as error:
        found.append(error.message)
    if not task.check.strip():
        say("it has no check (a line `verify:`), so nobody could say whether it is done")
    if len(task.check.splitlines()) > 1 or "\0" in task.check:
        say("its check is not one line; put it into a script, or join it with `&&`")
    if "\0" in task.description or len(task.description.encode("utf-8", "surrogatepass")) > MAX_BRIEF:
        say(f"its description holds a NUL or is longer than {MAX_BRIEF >> 20} MiB")
    try:
        for text in (task.description, task.title, task.check, *task.owns, *task.modifies):
            text.encode("utf-8")
    except UnicodeEncodeError:
        say("a text of it is not UTF-8")
    for label, text in (("title", task.title), ("effort", task.effort), ("role", task.role), ("class", task.class_),
                        ("module", task.module)):  # fmt: skip
        if not text.isprintable() or len(text) > 200:
            say(f"its {label} is not one line of at most 200 characters")
    for label, text in (("harness", task.harness), ("model", task.model), ("target", task.target)):
        if text and not _WORD.match(text):
            say(f"its {label} {text[:80]!r} is not a name")
    try:
        check_ref(f"refs/heads/{task.target}")
    except InvalidError:
        say(f"its target {task.target[:80]!r} is not a branch")
    if task.region and (not _REGION.match(task.region) or ".." in task.region or task.region.endswith((".", ".lock"))):
        say(f"its region {task.region[:80]!r} is not a name")
    for glob in (*task.owns, *task.modifies):
        if not glob or glob.startswith("/") or ".." in glob.split("/") or not glob.isprintable():
            say(f"{glob[:80]!r} is not a path inside the tree")
    if len(set(task.needs)) != len(task.needs):
        say("it names a need twice")
    if task.id in task.needs:
        say("it needs itself")
    for need in task.needs:
        try:
            check_id(need, "a need")
        except InvalidError as error:
            say(error.message)
    if task.gate is not None and task.gate.n > task.gate.m:
        say(f"its gate wants {task.gate.n} of {task.gate.m}")
    return found


def check_all(tasks: Sequence[Task], targets: Mapping[str, str] | Collection[str] = ()) -> None:
    """Checks tasks and how they fit together; `E_INVALID` lists every problem.

    `targets` are tasks that are there already, with the branch that each lands on (or their names alone).
    """
    found: list[str] = []
    if not tasks:
        found.append("there is no task")
    if len(tasks) > MAX_TASKS:
        raise InvalidError(f"{len(tasks)} tasks are more than {MAX_TASKS} at once", hint="add them in parts")
    branch = {task.id: task.target for task in tasks}
    if len(branch) != len(tasks):
        seen: set[str] = set()
        found += [f"two tasks have the id {t.id!r}" for t in tasks if t.id in seen or seen.add(t.id)]  # type: ignore[func-returns-value]
    there = dict(targets) if isinstance(targets, Mapping) else dict.fromkeys(targets, "")
    for task in tasks:
        found += problems(task)
        for need in task.needs:
            where = branch.get(need, there.get(need))
            if where is None:
                found.append(f"{task.id}: it needs {need!r}, which is no task")
            elif where and where != task.target:
                found.append(f"{task.id}: it lands on {task.target}, and {need!r}, which it needs, on {where}")
    if not found and (circle := find_circle({task.id: task.needs for task in tasks})):
        found.append(f"the needs go in a circle: {' → '.join(circle)}")
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        words = f"the tasks can't be taken: {found[0]}{more}"
        raise InvalidError(words, problems=found[:100], hint="nothing was added")


def find_circle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Gives the ids of a circle of needs, first and last the same, or an empty list."""
    inner = {name: [need for need in wanted if need in needs] for name, wanted in needs.items()}
    users: dict[str, list[str]] = {name: [] for name in inner}
    for name, wanted in inner.items():
        for need in wanted:
            users[need].append(name)
    left = {name: len(wanted) for name, wanted in inner.items()}
    free = [name for name, count in left.items() if not count]
    while free:
        name = free.pop()
        del left[name]
        for user in users[name]:
            left[user] -= 1
            if not left[user]:
                free.append(user)
    if not left:
        return []
    path = [next(iter(left))]
    while True:
        path.append(next(need for need in inner[path[-1]] if need in left))
        if path[-1] in path[:-1]:
            return path[path.index(path[-1]) :]
