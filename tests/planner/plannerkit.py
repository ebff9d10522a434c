"""What tests of the planner stand on: a project in a store, and managers that answer what a test says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.lane.programs.plain import Scripted
from ropewalk.plan.asking import Goal
from ropewalk.run.planner import manager, planning
from ropewalk.run.planner.baseline import Bounds
from ropewalk.run.planner.manager import Answer, Lanes, Spent
from ropewalk.run.planner.planning import Planned, Surroundings
from ropewalk.run.turn import Ways
from storekit import Kit, put

FILES = {
    "shop/cart/__init__.py": "TOTAL = 0\n", "shop/cart/sum.py": "def total(): return 0\n",
    "shop/mail/send.py": "def send(): return None\n", "tests/test_cart.py": "import unittest\n",
    "Makefile": "test:\n\tpython3 -m unittest\n", "README.md": "# Shop\n",
}  # fmt: skip


def project(kit: Kit, files: dict[str, str] | None = None) -> str:
    """Gives the commit of a small project."""
    return kit.first(*(put(path, text) for path, text in (files or FILES).items()))


def task(name: str, module: str = "cart", check: str = "", needs: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """Gives a task as a manager writes one; its check passes once a file of its name is there."""
    return {"id": name, "module": module, "description": f"Write the file {name}.txt with what is asked for.",
            "needs": list(needs), "owns": [f"shop/{module}/{name}.txt"],
            "check": check or f"test -s shop/{module}/{name}.txt", "role": "Builder", "class": "build",
            **more}  # fmt: skip


def reply(*tasks: dict[str, Any], modules: Sequence[str] = ("cart", "mail"), **more: Any) -> str:
    """Gives a whole plan as a manager replies it."""
    listed = [{"name": name, "path": f"shop/{name}", "weight": 1} for name in modules]
    body = msgspec.json.encode({"summary": "Two files.", "modules": listed, "tasks": list(tasks), **more})
    return f"Here is the plan:\n\n```json\n{body.decode()}\n```\n"


GOOD = reply(task("one"), task("two", "mail", needs=["one"]))
MAP = '{"parts": [{"name": "cart", "path": "shop/cart", "about": "what is bought"}], "tests": [], "notes": ["be kind"]}'


class Told:
    """Is a manager that answers from a list and keeps what it was asked; an answer may be an `Answer`."""

    def __init__(self, *answers: str | Answer, provider: str = "") -> None:
        self.name, self.provider = "told", provider
        self.answers = list(answers)
        self.asked: list[str] = []

    def ask(self, prompt: str, stop: Callable[[], bool] = lambda: False) -> Answer:
        """Gives the next answer."""
        self.asked.append(prompt)
        got = self.answers.pop(0)
        return got if isinstance(got, Answer) else Answer(got)

    def spent(self) -> Spent:
        """Gives how often it was asked."""
        return Spent(len(self.asked))


def around(folder: Path, **more: Any) -> Surroundings:
    """Gives surroundings in which checks are run on the base."""
    given: dict[str, Any] = {"has_program": lambda name: shutil.which(name) is not None,
                             "checks": str(folder / "checks"), "bounds": Bounds(10.0, 60.0, 4), **more}  # fmt: skip
    return Surroundings(**given)


def planned(kit: Kit, folder: Path, by: Any, goal: Goal = Goal("Write two files.", "auto"), **more: Any) -> Planned:
    """Plans for the project's head."""
    events: list[tuple[str, dict[str, Any]]] = more.pop("events", [])
    how = more.pop("surroundings", None) or around(folder)
    return planning.plan(kit.store, kit.main(), goal, by, how,
                         tell=lambda kind, **facts: events.append((kind, facts)), **more)  # fmt: skip


def scripted(folder: Path, *texts: str) -> Lanes:
    """Gives lanes in which the scripted agent prints one text for each prompt."""
    scripts = [[{"print": text}] for text in texts]
    return Lanes(Scripted(), {"PATH": os.environ["PATH"]}, Ways(), str(folder / "manager"), str(folder / "data"),
                 seconds=60.0, scripts=scripts)  # fmt: skip


def in_lanes(kit: Kit, lanes: Lanes) -> Any:
    """Gives the manager of lanes, for a `with`."""
    return manager.in_lanes(kit.store, kit.main(), lanes)
