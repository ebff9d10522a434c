"""What the models of the demo say: the manager's map and plan, the first of them flawed, and what programs do.

The scripted agent follows the script that its task has. A real program is told the task's words alone, and its model,
which follows the same script, calls the program's own tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import msgspec

from ropewalk.plan.plan import Plan
from ropewalk.plan.task import Task

MODEL = "scripted-model"
MODELS = {"claude": "claude-sonnet-4-5", "codex": "gpt-5-codex", "gemini": "gemini-2.5-flash"}
"""Are names that programs want their model to have, where they do not take any."""

_BLOCK = re.compile(r"\n*^```script\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
_REPLACE = "import sys;p,o,n=sys.argv[1:];t=open(p).read();assert o in t;open(p,'w').write(t.replace(o,n,1))"
_SETTLE = (
    "grep -rlE '^<<<<<<< ' --exclude-dir=.git . | xargs sed -i -e '/^|||||||/,/^=======/d'"
    " -e '/^<<<<<<< /d' -e '/^=======$/d' -e '/^>>>>>>> /d'"
)
"""Keeps both sides of every conflict in the tree."""

Json = dict[str, Any]


def manager(plan: Plan, mapped: str) -> list[Json]:
    """Gives what a manager says: a map, a plan with two faults, and once it is told of them the plan."""
    return [
        {"when": "No plan yet: a map of the project", "steps": [{"text": mapped}]},
        {"when": "The plan can't be taken", "steps": [{"text": msgspec.json.encode(plan).decode()}]},
        {"when": "# The plan\n", "steps": [{"text": msgspec.json.encode(flawed(plan)).decode()}]},
    ]


def flawed(plan: Plan) -> Plan:
    """Gives a plan with faults that models make: a need that no task has the name of, and a check that is none."""
    last = next(n for n in reversed(range(len(plan.tasks))) if plan.tasks[n].needs)
    tasks = list(plan.tasks)
    tasks[last] = msgspec.structs.replace(tasks[last], needs=(f"{tasks[last].needs[0]}-work",))
    tasks[0] = msgspec.structs.replace(tasks[0], check="true")
    return msgspec.structs.replace(plan, tasks=tuple(tasks))


def shared_out(plan: Plan, harnesses: Sequence[str]) -> Plan:
    """Gives a plan whose modules are shared out among agent programs, and whose tasks are words without a script."""
    named = {module.name: harnesses[n % len(harnesses)] for n, module in enumerate(plan.modules)}
    tasks = [
        msgspec.structs.replace(
            task, description=_words(task), harness=named[task.module], model=MODELS.get(named[task.module], MODEL)
        )
        for task in plan.tasks
    ]
    return msgspec.structs.replace(plan, tasks=tuple(tasks))


def programs(plan: Plan, *, killed: bool) -> list[Json]:
    """Gives what the models of programs do for the tasks of a plan with scripts.

    Until a program was `killed` one of them kills its own, as its script says.
    """
    later: list[Json] = []
    first: list[Json] = []
    for task in plan.tasks:
        script, words = _script(task), re.escape(_words(task))
        if script.get("on_conflict"):
            when = f"(?s)conflicts with what others landed.*{words}"
            first.append({"when": when, "steps": [_shell(_SETTLE), _said("Both are kept.")]})
        if script.get("on_failure"):
            when = f"(?s)The check of this task.*{words}"
            first.append({"when": when, "steps": [*_steps(script["on_failure"], True), _said("Mended.")]})
        later.append({"when": words, "steps": [*_steps(script["steps"], killed), _said("It is done.")]})
    return [*first, *later]


def victim(plan: Plan) -> str:
    """Gives the task whose agent is killed."""
    return next(task.id for task in plan.tasks if any("die_once" in step for step in _script(task)["steps"]))


def _words(task: Task) -> str:
    return _BLOCK.sub("", task.description).strip()


def _script(task: Task) -> Json:
    found = _BLOCK.search(task.description)
    made = msgspec.json.decode(found[1]) if found else {"steps": []}
    return {"steps": made} if isinstance(made, list) else made


def _steps(steps: Sequence[Mapping[str, Any]], killed: bool) -> list[Json]:
    return [_shell(line) for step in steps if (line := _line(step, killed))]


def _line(step: Mapping[str, Any], killed: bool) -> str:
    """Gives a step of the scripted agent as a line for a shell; empty for one that only waits for others."""
    if "put" in step or "append" in step:
        path = quote(step.get("put") or step["append"])
        folder = f"mkdir -p $(dirname {path}) && " if "put" in step and "/" in path else ""
        return f"{folder}printf %s {quote(step['text'])} {'>' if 'put' in step else '>>'} {path}"
    if "replace" in step:
        return " ".join(
            ["python3 -c", *(quote(word) for word in (_REPLACE, step["replace"], step["old"], step["new"]))]
        )
    if "die_once" in step:
        return "" if killed else "kill -9 $PPID"
    return str(step.get("run", ""))


def _shell(line: str) -> Json:
    return {"tool": "shell", "cmd": line}


def _said(words: str) -> Json:
    return {"text": words}
