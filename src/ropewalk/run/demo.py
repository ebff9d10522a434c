"""The demo: a plan, agents in regions of a copy, a conflict, a check repaired, an agent killed, and the proof.

Nothing is claimed that was not seen: without a conflict that an agent resolved, a failed check that was repaired, and
an agent that died by SIGKILL and whose task landed all the same, the demo fails and says so.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ropewalk.board.local import LocalBoard
from ropewalk.core import clock, events
from ropewalk.core.errors import InternalError, InvalidError, RopewalkError
from ropewalk.core.events import Event
from ropewalk.core.ids import path_text
from ropewalk.core.process import git, git_env, git_program, run
from ropewalk.lane.programs.plain import Scripted
from ropewalk.plan import packer, simulate
from ropewalk.plan import plan as plans
from ropewalk.plan.plan import Module, Plan
from ropewalk.plan.task import Task
from ropewalk.remote import exporting, importing
from ropewalk.run import drive, report, seeding
from ropewalk.run.figures import Summary
from ropewalk.run.interrupts import Interrupts
from ropewalk.run.work.options import Options
from ropewalk.store import layout, revisions, trees, verify
from ropewalk.store.store import Store
from ropewalk.testing import sample

REGIONS, MIN_CHANGES = 3, 12
_TEXT_MAX = 200_000
_PARTS = ("north", "south", "west")


class Conflict(msgspec.Struct, frozen=True):
    """Is one conflict of the demo: the task whose land met it, the paths, and whether its agent resolved it."""

    task: str
    paths: list[str]
    resolved: bool


class Demo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what the demo did and proved; `failed` lists what did not come true.

    `repaired` are tasks whose check failed first and which landed after another turn, `killed` those whose agent died
    by SIGKILL and which an heir landed. `crossing` counts needs that go from one region to another.
    """

    repository: str
    goal: str
    base: str
    head: str
    tasks: int
    agents: int
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
    folder: str | None = None


class Wanted(NamedTuple):
    """Is what the demo is to run on: a repository's folder or None for the sample, and a scratch folder."""

    repository: str | None
    scratch: str
    caller: Mapping[str, str]
    agents: int = REGIONS


def demo(
    wanted: Wanted, tell: Callable[[str], None], watch: Callable[[Event], None] | None, interrupts: Interrupts
) -> Demo:
    """Runs the demo in its scratch folder and gives what happened; the repository itself is only read."""
    began = clock.monotonic()
    shared = os.path.join(wanted.scratch, "shared")
    os.makedirs(shared)
    source = wanted.repository
    if source is None:
        tell("building a sample project and its history")
        source = os.path.join(wanted.scratch, "larder")
        sample.build(source)
    root = os.path.join(wanted.scratch, "store")
    tell(f"making a store and importing {os.path.basename(source.rstrip('/'))}")
    branch = importing.current_branch(_git_dir(source))
    if branch is None:
        raise InvalidError(
            "the repository has no branch with a commit checked out", hint="check one out, or add --sample", path=source
        )
    layout.create(root, str(uuid.uuid4()), "demo", branch[0].removeprefix("refs/heads/"))
    with Store(root) as store:
        importing.import_branch(store, source, branch[0], into=None, actor="ropewalk/demo")
        base = store.ref(revisions.default_branch(store))
        assert base is not None
        plan = _planned(sample.plan(shared)) if wanted.repository is None else invent(store, base, shared)
        packing = packer.pack(plan, wanted.agents)
        worth = simulate.recommend(
            lambda n: packer.frame_of(plan, packer.pack(plan, n)), plans.loads(plan), len(packer.groups(plan))
        )
        tell(f"planned: {len(plan.tasks)} tasks in {len(packing.regions)} regions, {packing.crossing} needs across"
             f" regions; {worth.workers} agents are worth having")  # fmt: skip
        asked = seeding.Asked(
            plan.summary, plan.tasks, base, "plan", summary=plan.summary, modules=plan.modules,
            regions={task: held[0] for task, held in packing.held.items() if held}, seconds=plans.loads(plan),
            options={"harness": "scripted", "jobs": wanted.agents},
        )  # fmt: skip
        board = LocalBoard(store)
        made = seeding.seed(board, store, asked, "ropewalk/demo")
        options = Options(
            worker="demo", harness=Scripted(), caller=wanted.caller, data_home=os.path.join(wanted.scratch, "data"),
            stop=interrupts.stopped, jobs=wanted.agents, seconds=120.0, check_seconds=120.0,
        )  # fmt: skip
        done = drive.drive(board, store, made, options, export=False, watch=watch).summary
        interrupts.check()
        return _prove(store, wanted, done, packing, began, tell)


def usable(folder: str) -> bool:
    """Says whether the repository a folder is in has a branch checked out, with its whole history."""
    found = layout.git_common_dir(folder)
    if found is None or os.path.exists(os.path.join(found[1], "shallow")):
        return False
    try:
        return importing.current_branch(found[0]) is not None
    except RopewalkError:
        return False  # its ids or its history are not for us


def _git_dir(source: str) -> str:
    found = layout.git_common_dir(source)
    if found is None:
        raise InvalidError(f"{source} is not in a git repository", path=source)
    return found[0]


def _planned(reply: str) -> Plan:
    found = plans.read(reply)
    if found.plan is None:
        raise InternalError(f"the sample's plan can't be taken: {found.message}")
    return found.plan


def _prove(
    store: Store, wanted: Wanted, done: Summary, packing: packer.Packing, began: float, tell: Callable[[str], None]
) -> Demo:
    base, head = done.base, done.head
    failed = [f"{t.id}: {t.state}: {t.reason}" for t in done.tasks if t.state != "landed"]
    log, _ = events.read(os.path.join(report.folder(store.layout, done.id), "events.jsonl"))
    landed = {t.id for t in done.tasks if t.state == "landed"}
    conflicts = [Conflict(e["task"], e["paths"], e["task"] in landed) for e in log if e["event"] == "conflict"]
    repaired = sorted({e["task"] for e in log if e["event"] == "attempt_failed"} & landed)
    died = {e["task"] for e in log if e["event"] == "agent_ended" and e["how"] == "died" and e["code"] == -9}
    killed = sorted(died & landed)
    if not any(c.resolved for c in conflicts):
        failed.append("no conflict was met and resolved")
    if not repaired:
        failed.append("no failed check was repaired")
    if not killed:
        failed.append("no agent was killed, with its task landed by an heir")
    changes = int(git(store.layout.repo, "rev-list", "--count", f"{base}..{head}").text())
    if changes < MIN_CHANGES:
        failed.append(f"{changes} changes landed, not {MIN_CHANGES}")
    tell("exporting to a bare repository, and checking it with git")
    target = os.path.join(wanted.scratch, "exported.git")
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
    return Demo(
        repository=os.path.basename(wanted.repository.rstrip("/")) if wanted.repository else "larder (the sample)",
        goal=done.goal,
        base=base,
        head=head,
        tasks=len(done.tasks),
        agents=wanted.agents,
        regions=[f"{region.name}: {', '.join(region.modules)}" for region in packing.regions],
        crossing=packing.crossing,
        changes=changes,
        seconds=round(clock.monotonic() - began, 2),
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
    )


def invent(store: Store, base: str, shared: str) -> Plan:
    """Gives a plan for a repository that nobody knows: notes in three new folders, and a line that two agents edit."""
    texts = _texts(store, base)
    path, line = next(((p, found) for p, t in texts if (found := _unique_line(t))), ("ropewalk-demo/both.txt", ""))
    made: list[Task] = []
    for who, part in zip(("left", "right"), _PARTS, strict=False):
        barrier = {"barrier": os.path.join(shared, "line"), "count": 2}
        edit = ({"replace": path, "old": line, "new": f"{line.rstrip()} ({who})\n"} if line else
                {"put": path, "text": f"written by ({who})\n"})  # fmt: skip
        made.append(_task(f"both-{who}", part, f"Edit the same line of {path} as another agent does.",
                          f"grep -q '({who})' {_quoted(path)}", [barrier, edit], on_conflict="both"))  # fmt: skip
    for part in _PARTS:
        first = [f"both-{'left' if part == 'north' else 'right'}"] if part != "west" else []
        for number in range(4):
            note = f"ropewalk-demo/{part}/note-{number}.md"
            steps: list[dict[str, object]] = [{"put": note, "text": f"# Note {number}\n\nWritten by an agent.\n"}]
            more: dict[str, object] = {}
            if part == "west" and number == 0:
                steps = [{"die_once": os.path.join(shared, "killed")}, *steps]
            if part == "west" and number == 1:
                more, steps = {"on_failure": steps}, [{"put": note, "text": "# Note\n"}]
            needs = [*first, f"{_PARTS[0]}-0"] if part == "west" and number == 3 else first
            made.append(_task(f"{part}-{number}", part, f"Write note {number} of the {part}.",
                              f"grep -q 'by an agent' {note}", steps, needs, **more))  # fmt: skip
    modules = tuple(Module(part, f"ropewalk-demo/{part}") for part in _PARTS)
    return _planned(msgspec.json.encode(Plan("Notes from three sides", modules, tuple(made))).decode())


def _task(name: str, module: str, words: str, check: str, steps: Sequence[object], needs: Sequence[str] = (),
          **script: object) -> Task:  # fmt: skip
    block = msgspec.json.encode({**script, "steps": list(steps)}).decode()
    return Task(name, check, f"{words}\n\n```script\n{block}\n```", needs=tuple(needs), module=module)


def _quoted(path: str) -> str:
    from shlex import quote

    return quote(path)


def _texts(store: Store, base: str) -> list[tuple[str, str]]:
    """Gives up to 12 text files of a commit."""
    found: list[tuple[str, str]] = []
    for path, entry in trees.walk(store.objects, store.objects.commit(base).tree):
        if entry[0] not in (trees.FILE, trees.EXEC) or path.startswith(b".git") or b"/.git" in path:
            continue
        try:
            data = store.objects.read(entry[1].hex(), "blob")
            name, text = path.decode("utf-8"), data.decode("utf-8")
        except (UnicodeDecodeError, RopewalkError):
            continue
        if 0 < len(data) <= _TEXT_MAX and "\0" not in text and "\r" not in text and path_text(path) == name:
            found.append((name, text))
        if len(found) == 12:
            break
    return found


def _unique_line(text: str) -> str | None:
    """Gives a line with its end that a file holds once."""
    return next(
        (line + "\n" for line in text.split("\n")[:200] if len(line) > 10 and text.count(line + "\n") == 1), None
    )
