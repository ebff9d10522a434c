"""The plan: modules and tasks, as a manager replies them, read strictly, with everything that is wrong in one message.

A reading never raises for what a reply holds, and a plan above a cap is a fault, never cut.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.plan import checks, graph
from ropewalk.plan.replies import find
from ropewalk.plan.task import Task, problems

_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}\Z")
_TAKEN = re.compile(r"\.git.*|\.ropewalk\Z", re.IGNORECASE)
_LEAST = 10
"""Is how many letters or digits a description has at least."""
_SHOWN = 200


class Module(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is a part of the code: a folder, how much work it is beside the others, and the modules it builds on."""

    name: str
    path: str = ""
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    depends_on: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Gives the path in its plain form, the name where there is none, and empty for the root."""
        parts = [p for p in (self.path or self.name).split("/") if p not in ("", ".")]
        return "/".join(parts)


class Plan(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is a plan."""

    summary: str = ""
    modules: tuple[Module, ...] = ()
    tasks: tuple[Task, ...] = ()


class Caps(msgspec.Struct, frozen=True):
    """Is what a plan may hold at most; `part` is how many tasks a reply in parts should have."""

    modules: int = 1_000
    tasks: int = 10_000
    needs: int = 1_000
    paths: int = 1_000
    description: int = 64 << 10
    reply: int = 16 << 20
    part: int = 20


class Reading(msgspec.Struct, frozen=True):
    """Is what a reply turned out to be: a plan, or what is wrong with it; `truncated` when its end is missing."""

    plan: Plan | None
    problems: tuple[str, ...] = ()
    truncated: bool = False
    caps: Caps = Caps()

    @property
    def message(self) -> str:
        """Gives what to tell the manager, everything in one message; empty for a plan."""
        if self.plan is not None:
            return ""
        if self.truncated:
            return (
                "Your reply broke off before its end, so none of it was taken. Send the plan in parts, each a whole "
                'JSON object in a message of its own: first {"summary": …, "modules": […]}, then {"tasks": […]} with '
                f"at most {self.caps.part} tasks each, until all are sent."
            )
        shown = self.problems[:_SHOWN]
        more = f"\n… and {len(self.problems) - len(shown)} more" if len(self.problems) > len(shown) else ""
        listed = "\n".join(f"{n}. {words}" for n, words in enumerate(shown, 1))
        count = len(self.problems)
        return (
            f"The plan can't be taken; {'this is' if count == 1 else f'these {count} things are'} wrong with it:\n"
            f"{listed}{more}\nMend all of it and send the whole corrected plan as one JSON object."
        )


def read(*replies: str, caps: Caps = Caps(), has_program: Callable[[str], bool] | None = None,
         passing: Collection[str] = ()) -> Reading:  # fmt: skip
    """Reads a plan from a reply, or from the replies that are its parts.

    `has_program` says whether a program that a check starts is there; `passing` are ids of tasks whose check is known
    to pass already, which only guards may.
    """
    if (size := sum(len(reply) for reply in replies)) > caps.reply:
        return Reading(None, (f"the reply has {size} characters, and at most {caps.reply} are taken",), caps=caps)
    faults: list[str] = []
    whole: dict[str, Any] = {}
    for number, reply in enumerate(replies, 1):
        found = find(reply, ("modules", "tasks", "summary"))
        where = f"part {number}: " if len(replies) > 1 else ""
        if found.truncated:
            return Reading(None, (f"{where}the reply broke off before its end",), truncated=True, caps=caps)
        if found.value is None:
            faults.append(where + (found.fault or "there is no JSON object with modules and tasks in the reply"))
            continue
        faults += [where + words for words in found.twice]
        for key, value in found.value.items():
            if key in ("modules", "tasks") and isinstance(value, list) and isinstance(whole.get(key), list):
                whole[key] = [*whole[key], *value]
            elif key in whole and key != "summary":
                faults.append(f"{where}{key!r} is there already")
            else:
                whole[key] = value
    if not whole:
        return Reading(None, tuple(faults), caps=caps)
    plan, named, wrong = convert(whole, caps)
    faults += wrong
    faults += faults_of(plan, named, has_program=has_program, passing=passing)
    faults = list(dict.fromkeys(faults))
    return Reading(None if faults else plan, tuple(faults), caps=caps)


class Named(msgspec.Struct, frozen=True):
    """Is what else a plan has by name, where its form was wrong: modules, and the id and check of tasks."""

    modules: tuple[str, ...] = ()
    tasks: tuple[tuple[str, str], ...] = ()


def convert(value: Any, caps: Caps = Caps()) -> tuple[Plan, Named, list[str]]:
    """Gives a plan, and what is wrong with the form of a decoded value, each field by itself.

    The plan holds those modules and tasks whose form is right, so that more can be said about them.
    """
    if not isinstance(value, dict):
        return Plan(), Named(), ["the plan is not a JSON object"]
    faults = [f"the plan has no field {k[:80]!r}{_near(k, ('summary', 'modules', 'tasks'))}" for k in value
              if k not in ("summary", "modules", "tasks")]  # fmt: skip
    summary = value.get("summary", "")
    if not isinstance(summary, str):
        faults.append(f"summary: it is {_kind(summary)}, not text")
    modules: list[Module] = []
    tasks: list[Task] = []
    bad_modules: list[str] = []
    bad_tasks: list[tuple[str, str]] = []
    for number, one in enumerate(_listed(value, "modules", caps.modules, faults)):
        name = _text(one, "name")
        module, wrong = form(one, Module, f"modules[{number}]{_shown(name)}")
        faults += wrong
        if module is not None:
            modules.append(module)
        elif name:
            bad_modules.append(name)
    for number, one in enumerate(_listed(value, "tasks", caps.tasks, faults)):
        name = _text(one, "id")
        task, wrong = form(one, Task, f"tasks[{number}]{_shown(name)}")
        faults += wrong
        if task is not None:
            tasks.append(task)
        elif name:
            bad_tasks.append((name, _text(one, "check")))
    for task in tasks:
        if len(task.needs) > caps.needs or len(task.owns) + len(task.modifies) > caps.paths:
            faults.append(f"{task.id[:80]}: it has more than {caps.needs} needs or {caps.paths} paths")
        if len(task.description) > caps.description:
            faults.append(f"{task.id[:80]}: its description is longer than {caps.description} characters")
    plan = Plan(summary if isinstance(summary, str) else "", tuple(modules), tuple(tasks))
    return plan, Named(tuple(bad_modules), tuple(bad_tasks)), faults


def _listed(value: Mapping[str, Any], key: str, most: int, faults: list[str]) -> list[Any]:
    given = value.get(key)
    if not isinstance(given, list) or not given:
        words = "it is missing" if key not in value else "it is empty" if given == [] else f"it is {_kind(given)}"
        faults.append(f"{key}: {words}, where a list with at least one is wanted")
        return []
    if len(given) > most:
        words = f"there are {len(given)} of them, and at most {most} are taken"
        faults.append(f"{key}: {words}; make fewer and larger ones (none was dropped)")
    return given if len(given) <= 10 * most else []


def _text(value: Any, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else ""
    return found if isinstance(found, str) else ""


def _shown(name: str) -> str:
    return f" ({name[:80]})" if name and name.isprintable() else ""


def faults_of(plan: Plan, named: Named = Named(), *, has_program: Callable[[str], bool] | None = None,
              passing: Collection[str] = ()) -> list[str]:  # fmt: skip
    """Gives what is wrong with a plan whose form is right, each as a sentence that names the place."""
    found = fit(plan, named)
    there: dict[str, bool] = {}
    for task in plan.tasks:
        found += problems(task)
        if not task.module:
            found.append(f"{task.id[:80]}: it names no module")
        if sum(map(str.isalnum, task.description)) < _LEAST:
            found.append(f"{task.id[:80]}: its description says too little for somebody who knows nothing else")
        if task.check.strip():
            found += _check_faults(task.id, task.check, there, has_program)
        if task.id in passing and not task.guard:
            found.append(f"{task.id[:80]}: its check passes already, before anything is done; mark it guard or mend it")
    for name, check in named.tasks:
        if check.strip():
            found += _check_faults(name, check, there, has_program)
    return found


def fit(plan: Plan, named: Named = Named()) -> list[str]:
    """Gives what is wrong with how a plan fits together: names that stand twice or are none, folders, circles."""
    found = placement(plan, named)
    ids = {task.id for task in plan.tasks} | {name for name, _ in named.tasks}
    all_ids = [*(task.id for task in plan.tasks), *(name for name, _ in named.tasks)]
    found += [f"two tasks have the id {name[:80]!r}" for name in _doubles(all_ids)]
    for task in plan.tasks:
        found += [f"{task.id[:80]}: it needs {need[:80]!r}, which is no task of the plan"
                  for need in task.needs if need not in ids]  # fmt: skip
    for what, needs in (("the needs", {t.id: t.needs for t in plan.tasks}),
                        ("the modules", {m.name: m.depends_on for m in plan.modules})):  # fmt: skip
        inner = {name: [need for need in wanted if need != name] for name, wanted in needs.items()}
        found += [f"{what} go in a circle: {' → '.join(way)}" for way in graph.circles(inner)]
    return found


def placement(plan: Plan, named: Named = Named()) -> list[str]:
    """Gives what is wrong with the modules of a plan, and with where its tasks are said to be."""
    names = {*named.modules, *(module.name for module in plan.modules)}
    found = _module_faults(plan.modules, names)
    found += [f"{task.id[:80]}: its module {task.module[:80]!r} is none of the plan's"
              for task in plan.tasks if task.module and task.module not in names]  # fmt: skip
    return found


def writes(task: Task, folders: Mapping[str, str]) -> tuple[str, ...]:
    """Gives the globs a task may write: what it owns and modifies, else its module's folder, else everything."""
    if task.owns or task.modifies:
        return (*task.owns, *task.modifies)
    if task.module not in folders:
        return ()
    return (f"{folders[task.module]}/" if folders[task.module] else "**",)


def loads(plan: Plan, seconds: Mapping[str, float] | None = None) -> dict[str, float]:
    """Gives how long each task is thought to take.

    Where nothing is known, a module's weight is shared among its tasks; where some are, the others take their median.
    """
    known = {task.id: seconds[task.id] for task in plan.tasks if task.id in seconds} if seconds else {}
    if known:
        middle = sorted(known.values())[len(known) // 2]
        return {task.id: known.get(task.id, middle) for task in plan.tasks}
    count: dict[str, int] = {}
    for task in plan.tasks:
        count[task.module] = count.get(task.module, 0) + 1
    weight = {module.name: module.weight for module in plan.modules}
    return {task.id: weight.get(task.module, 1.0) / count[task.module] for task in plan.tasks}


def _check_faults(name: str, check: str, there: dict[str, bool],
                  has_program: Callable[[str], bool] | None) -> list[str]:  # fmt: skip
    found = []
    if words := checks.fault(check):
        found.append(f"{name[:80]}: its check {check.strip()[:80]!r} is no check: {words}")
    for program in checks.programs(check) if has_program is not None else ():
        if program not in there:
            there[program] = has_program is not None and has_program(program)
        if not there[program]:
            found.append(f"{name[:80]}: its check starts {program[:80]!r}, and there is no such program here")
    return found


def _module_faults(modules: Sequence[Module], names: Collection[str]) -> list[str]:
    found = [f"two modules have the name {name[:80]!r}" for name in _doubles(m.name for m in modules)]
    folders: dict[str, Module] = {}
    for module in modules:
        say = f"module {module.name[:80]}: "
        if not _SLUG.match(module.name) or ".." in module.name or module.name.endswith((".", ".lock")):
            found.append(f"{say}its name is not one of lower case letters, digits, '.', '_' and '-', at most 60")
        path = module.path or module.name
        parts = path.split("/")
        if path.startswith("/") or "\\" in path or ".." in parts or not path.isprintable() or len(path) > 1_000:
            found.append(f"{say}its path {path[:80]!r} is not a folder inside the tree")
        elif any(_TAKEN.match(part) for part in parts):
            found.append(f"{say}its path {path[:80]!r} is not one that work may be in")
        elif any(c in path for c in "*?["):
            found.append(f"{say}its path {path[:80]!r} holds a wildcard, and a module is one folder")
        for need in module.depends_on:
            if need not in names:
                found.append(f"{say}it depends on {need[:80]!r}, which is no module of the plan")
            elif need == module.name:
                found.append(f"{say}it depends on itself")
        key = module.folder.casefold()
        if (other := folders.get(key)) is not None and other.name != module.name:
            same = "the same path" if other.folder == module.folder else "a path that differs in case alone"
            found.append(f"{say}it has {same} as module {other.name[:80]}: {module.folder[:80]!r}")
        folders.setdefault(key, module)
    for key, module in folders.items():
        above = key
        while above:
            above = above.rpartition("/")[0]
            if above and (other := folders.get(above)) is not None and not module.folder.startswith(other.folder + "/"):
                found.append(f"module {module.name[:80]}: its path and that of module {other.name[:80]} overlap, and "
                             "differ in case")  # fmt: skip
    return found


def _doubles(names: Any) -> list[str]:
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for name in names:
        if name in seen:
            twice[name] = None
        seen.add(name)
    return list(twice)


# forms


def form(value: Any, kind: Any, place: str) -> tuple[Any, list[str]]:
    """Gives a struct, or None, and what is wrong with each of its fields; a field that is unknown is told its like."""
    if not isinstance(value, dict):
        return None, [f"{place}: it is {_kind(value)}, not an object"]
    try:
        got = msgspec.convert(value, kind)
        msgspec.json.encode(got)
        return got, []
    except (msgspec.ValidationError, UnicodeError, RecursionError):
        pass  # each field by itself then, so that all that is wrong is told
    faults: list[str] = []
    made: dict[str, Any] = {}
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key in value:
        if key not in fields:
            faults.append(f"{place}: there is no field {key[:80]!r}{_near(key, tuple(fields))}")
    for name, field in fields.items():
        if name not in value:
            if field.required:
                faults.append(f"{place}: {name} is missing")
            continue
        inner = _inner(field.type)
        if inner is not None and isinstance(value[name], dict):
            got, wrong = form(value[name], inner, f"{place}.{name}")
            faults += wrong
        else:
            try:
                got = msgspec.convert(value[name], field.type)
                str(got).encode()
            except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
                faults.append(f"{place}: {name}: {_said(error)}")
                continue
        made[field.name] = got
    return (None, faults) if faults else (kind(**made), [])


def _inner(kind: Any) -> Any:
    """Gives the struct that a type is, or may be."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, msgspec.Struct)), None)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


_USUAL = {"depends_on": "needs", "dependencies": "needs", "acceptance_cmd": "check", "verify": "check",
          "command": "check", "test": "check", "files": "owns", "name": "id", "id": "name"}  # fmt: skip


def _near(key: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches

    usual = _USUAL.get(key.lower())
    close = [usual] if usual in names else get_close_matches(key.lower()[:80], names, 1, 0.75)
    return f"; is it {close[0]!r}?" if close else ""
