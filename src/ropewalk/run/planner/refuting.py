"""Refuting: another provider's model is asked what speaks against a plan; its own maker is no judge of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ropewalk.core.errors import InvalidError, PlanningError
from ropewalk.plan import asking
from ropewalk.plan.asking import Goal
from ropewalk.plan.mapping import Map
from ropewalk.plan.plan import Plan
from ropewalk.plan.replies import find
from ropewalk.run.planner.manager import Manager, Spent

TRIES = 3


class Objection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is one thing that speaks against a plan, and the tasks that it is about."""

    text: str
    severity: Literal["hard", "warn"] = "hard"
    tasks: tuple[str, ...] = ()


class Refutation(msgspec.Struct, frozen=True):
    """Is what came out: whether the plan stands, and what speaks against it."""

    refuted: bool
    objections: tuple[Objection, ...]
    by: str
    provider: str
    tries: int
    spent: Spent

    def text(self) -> str:
        """Gives it as Markdown."""
        lines = [f"# {'Refuted' if self.refuted else 'It stands'}, by {self.by}", ""]
        lines += [f"- {o.severity}{f' ({chr(44).join(o.tasks)})' if o.tasks else ''}: {o.text}"
                  for o in self.objections]  # fmt: skip
        return "\n".join(lines + ([] if self.objections else ["Nothing was found."])) + "\n"


def refute(goal: Goal, plan: Plan, author: str, manager: Manager, *, seen: Map | None = None,
           stop: Callable[[], bool] = lambda: False) -> Refutation:  # fmt: skip
    """Gives what a manager has against a plan; `author` is the provider whose model made it, empty if none did.

    `E_INVALID` when both are the same provider's, `E_PLAN` when nothing that can be read came in three tries.
    """
    if author and manager.provider == author:
        raise InvalidError(
            f"the plan is {author}'s, and {manager.name} is, too", hint="name another provider's: --harness, --model",
            provider=author,
        )  # fmt: skip
    prompt = asking.refutation(goal, plan, seen)
    message, last = prompt, ["nothing came"]
    for number in range(1, TRIES + 1):
        got = manager.ask(message, stop)
        if got.stopped:
            raise PlanningError("it was stopped", hint="", stopped=True)
        if got.error:
            last, message = [got.error], asking.lost(prompt, got.error)
            continue
        made, last = _read(got.text, {task.id for task in plan.tasks})
        if made is not None:
            return Refutation(made[0], made[1], manager.name, manager.provider, number, manager.spent())
        listed = "\n".join(f"- {words}" for words in last[:100])
        message = asking.again(prompt, f"Your reply can't be taken; this is wrong with it:\n{listed}")
    raise PlanningError(f"{manager.name} gave no verdict in {TRIES} tries: {last[0][:300]}", problems=last[:200],
                        hint="name another manager with --harness and --model")  # fmt: skip


def _read(text: str, ids: set[str]) -> tuple[tuple[bool, tuple[Objection, ...]] | None, list[str]]:
    found = find(text, ("verdict", "findings"))
    if found.value is None:
        cut = "the reply broke off before its end" if found.truncated else ""
        return None, [cut or found.fault or "there is no JSON object with a verdict in the reply"]
    faults = list(found.twice)
    verdict: Any = found.value.get("verdict")
    if verdict not in ("stands", "refuted"):
        faults.append(f"verdict: it is {str(verdict)[:40]!r}, neither stands nor refuted")
    given = found.value.get("findings", [])
    made: list[Objection] = []
    if not isinstance(given, list):
        faults.append("findings: it is no list")
        given = []
    for n, one in enumerate(given):
        try:
            made.append(msgspec.convert(one, Objection))
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            faults.append(f"findings[{n}]: {' '.join(str(error).split())[:300]}")
            continue
        if not made[-1].text.strip():
            faults.append(f"findings[{n}]: it says nothing")
        faults += [f"findings[{n}]: there is no task {t[:80]!r}" for t in made[-1].tasks if t not in ids]
    if verdict == "refuted" and not any(one.severity == "hard" for one in made):
        faults.append("refuted needs at least one hard finding")
    return (None, faults) if faults else ((verdict == "refuted", tuple(made)), [])
