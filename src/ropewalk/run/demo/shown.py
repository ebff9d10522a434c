"""What the demo showed, as it is told."""

from __future__ import annotations

import msgspec

from ropewalk.run.figures import Summary


class Conflict(msgspec.Struct, frozen=True):
    """Is one conflict of the demo: the task whose land met it, the paths, and whether its agent resolved it."""

    task: str
    paths: list[str]
    resolved: bool


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what the demo did and proved; `failed` lists what did not come true.

    `mended` is what validation found wrong with the manager's first plan. `repaired` are tasks whose check failed first
    and which landed after another turn, `killed` those whose agent died by SIGKILL and which an heir landed. `crossing`
    counts needs that go from one region to another. `real` says that the models were the user's. `report` is the run's
    report as Markdown, `file` where it was written to, `more` what else can be tried here.
    """

    repository: str
    goal: str
    manager: str
    mended: list[str]
    base: str
    head: str
    tasks: int
    agents: int
    harness: str
    cage: str
    real: bool
    regions: list[str]
    crossing: int
    changes: int
    seconds: float
    conflicts: list[Conflict]
    repaired: list[str]
    killed: list[str]
    exported: str
    fsck: str
    verified: str
    history: str
    failed: list[str]
    run: Summary
    report: str
    more: list[str] = []
    file: str = ""
    folder: str | None = None
