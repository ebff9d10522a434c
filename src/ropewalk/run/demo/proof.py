"""The proof of the demo: what is claimed of it is read off the run, the log and git; what was not seen is a failure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ropewalk.core import events
from ropewalk.core.process import git, git_env, git_program, run
from ropewalk.remote import exporting
from ropewalk.run import report
from ropewalk.run.demo.shown import Conflict, Shown
from ropewalk.run.demo.stage import Stage
from ropewalk.run.figures import Summary
from ropewalk.store import verify
from ropewalk.store.store import Store

TASKS, REGIONS = 12, 3
"""Are how many tasks land at least, and in how many regions."""

_FAULT = re.compile(r"^\d+\. (.+)$", re.MULTILINE)


class Told(NamedTuple):
    """Is what else is known of a run that was shown: who planned and who worked, for how long, and its report.

    `asked` are the prompts that the scripted model got, None where the models were the user's.
    """

    manager: str
    asked: Sequence[str] | None
    harness: str
    cage: str
    agents: int
    seconds: Callable[[], float]
    report: str


def prove(stage: Stage, done: Summary, told: Told, tell: Callable[[str], None]) -> Shown:
    """Gives what the demo showed; with the user's models a plan without faults and agents that never fail are good."""
    with Store(stage.root) as store:
        return _proved(store, stage, done, told, tell)


def _proved(store: Store, stage: Stage, done: Summary, told: Told, tell: Callable[[str], None]) -> Shown:
    base, head = done.base, done.head
    failed = [f"{t.id}: {t.state}: {t.reason}" for t in done.tasks if t.state != "landed"]
    log, _ = events.read(os.path.join(report.folder(store.layout, done.id), "events.jsonl"))
    landed = {t.id for t in done.tasks if t.state == "landed"}
    conflicts = [Conflict(e["task"], e["paths"], e["task"] in landed) for e in log if e["event"] == "conflict"]
    repaired = sorted({e["task"] for e in log if e["event"] == "attempt_failed"} & landed)
    died = {e["task"] for e in log if e["event"] == "agent_ended" and e["how"] == "died" and e["code"] == -9}
    killed = sorted(died & landed)
    changes = int(git(store.layout.repo, "rev-list", "--count", f"{base}..{head}").text())
    region = {t.id: t.region for t in done.tasks}
    crossing = sum(region[need] != t.region for t in done.tasks for need in t.needs if need in region)
    names = list(dict.fromkeys(t.region for t in done.tasks if t.region))
    mended = _mended(told.asked or ())
    if told.asked is not None:
        failed += _unseen(conflicts, repaired, killed, changes, mended, names, crossing)
    tell("exporting to a bare repository, and checking it with git")
    target = os.path.join(stage.folder, "exported.git")
    exported = exporting.export_branch(store, target, done.ref, "main")
    checked = run([git_program(), f"--git-dir={target}", "fsck", "--strict", "--full"], env=git_env(), timeout=600)
    fsck = (checked.out + checked.err).decode("utf-8", "replace").strip()
    if checked.code:
        failed.append(f"git fsck --strict: {fsck[:500]}")
    if exported.head_sha != head:
        failed.append("the exported head is another one")
    tell("verifying the store, every object of it")
    sound = verify.verify(store, deep=True, progress=lambda line: None)
    failed += sound.problems[:20]
    words = (
        f"{sound.objects_checked} objects, {sound.changesets_checked} changesets, {sound.operations_checked} operations"
    )
    return Shown(
        repository=stage.repository,
        goal=done.goal,
        manager=told.manager,
        mended=mended,
        base=base,
        head=head,
        tasks=len(done.tasks),
        agents=told.agents,
        harness=told.harness,
        cage=told.cage,
        real=told.asked is None,
        regions=[f"{one} ({list(region.values()).count(one)})" for one in names],
        crossing=crossing,
        changes=changes,
        seconds=round(told.seconds(), 2),
        conflicts=conflicts,
        repaired=repaired,
        killed=killed,
        exported=f"{exported.exported} commits, head {exported.head_sha}",
        fsck=fsck or "clean",
        verified=f"{words}: {'sound' if not sound.problems else 'damaged'}",
        history=git(
            store.layout.repo, "log", "--graph", "--boundary", "--abbrev=8", "--format=%h %an: %s", f"{base}..{head}"
        ).text(),
        failed=failed,
        run=done,
        report=told.report,
    )


def _mended(asked: Sequence[str]) -> list[str]:
    """Gives what validation told the manager of a plan that was wrong."""
    return [words for prompt in asked if prompt.startswith("The plan can't be taken")
            for words in _FAULT.findall(prompt.partition("\nMend all of it")[0])]  # fmt: skip


def _unseen(conflicts: Sequence[Conflict], repaired: Sequence[str], killed: Sequence[str], changes: int,
            mended: Sequence[str], regions: Sequence[str], crossing: int) -> list[str]:  # fmt: skip
    """Gives what the scripts were to show and nobody saw."""
    wanted = (
        (bool(mended), "no fault of a plan was told to its manager"),
        (any(one.resolved for one in conflicts), "no conflict was met and resolved"),
        (bool(repaired), "no failed check was repaired"),
        (bool(killed), "no agent was killed, with its task landed by an heir"),
        (changes >= TASKS, f"{changes} changes landed, not {TASKS}"),
        (len(regions) >= REGIONS, f"there were {len(regions)} regions, not {REGIONS}"),
        (crossing > 0, "no need goes from one region to another"),
    )
    return [words for seen, words in wanted if not seen]
