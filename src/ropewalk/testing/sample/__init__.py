"""A small project with a history and a plan, on which the demo runs when there is no repository at hand.

Its files end with `.in`, so that no tool takes them for code of this package.
"""

from __future__ import annotations

import os
import subprocess

import msgspec

from ropewalk.core.process import git_env, git_program

GOAL = "Items of the larder know the day they expire, units, and an export; each of it described and tested."
"""Is what a manager is asked for the sample."""

MAP = """{"parts": [
 {"name": "larder", "path": "larder", "about": "items, a shelf that keeps them, reports, a command"},
 {"name": "docs", "path": "docs", "about": "how it is used", "depends_on": ["larder"]},
 {"name": "tests", "path": "tests", "about": "unit tests", "depends_on": ["larder"]}],
 "tests": ["python3 -m unittest -q"], "notes": ["what users see is noted in CHANGELOG.md, which two parts share"]}"""
"""Is what a manager adds to the map of the sample."""

FOLDER = os.path.dirname(os.path.abspath(__file__))


class Step(msgspec.Struct, frozen=True):
    """Is one commit of the sample's history."""

    author: str
    message: str
    files: list[str]


def read(path: str) -> bytes:
    """Gives a file of the sample."""
    with open(os.path.join(FOLDER, *path.split("/")) + ".in", "rb") as file:
        return file.read()


def build(folder: str) -> None:
    """Makes a git repository at a new folder with the sample's history on `main`; dates are fixed."""
    with open(os.path.join(FOLDER, "history.json"), "rb") as file:
        steps = msgspec.json.decode(file.read(), type=list[Step])
    os.makedirs(folder)
    _git(folder, "init", "--quiet", "--template=", "--initial-branch=main", ".")
    for number, step in enumerate(steps):
        for path in step.files:
            place = os.path.join(folder, *path.split("/"))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as out:
                out.write(read(path))
        _git(folder, "add", "--all")
        who = {
            "NAME": step.author,
            "EMAIL": f"{step.author.lower()}@larder.example",
            "DATE": f"{1_750_000_000 + 86_400 * number} +0000",
        }
        env = {f"GIT_{role}_{name}": value for role in ("AUTHOR", "COMMITTER") for name, value in who.items()}
        _git(folder, "commit", "--quiet", "-m", step.message, env=env)


def plan() -> str:
    """Gives the plan for the sample's next version, as a manager replies it.

    Its scripted agents wait for one another in a folder outside of the tree, which `ROPEWALK_DEMO` names.
    """
    with open(os.path.join(FOLDER, "plan.json"), encoding="utf-8") as file:
        return file.read()


def _git(folder: str, *words: str, env: dict[str, str] | None = None) -> None:
    subprocess.run(
        [git_program(), *words], cwd=folder, env=git_env(env), check=True, stdout=subprocess.DEVNULL, timeout=60
    )
