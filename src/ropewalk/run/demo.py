"""The demo: agents at once on a clone, a real conflict, a lander killed in the middle of its land, and the proof.

Nothing is claimed that was not seen: without a conflict that an agent resolved, or without a process that died
by SIGKILL inside its land, the demo fails and says so.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from ropewalk.core import clock, events
from ropewalk.core.errors import InvalidError, RopewalkError
from ropewalk.core.events import Event
from ropewalk.core.ids import path_text
from ropewalk.core.process import git, git_env, git_program, run
from ropewalk.lane.programs.plain import Scripted
from ropewalk.remote import exporting, importing
from ropewalk.run import report, runner
from ropewalk.run.interrupts import Interrupts
from ropewalk.run.killing import Kill, KillingLander
from ropewalk.run.tasks import Task, parse
from ropewalk.store import layout, revisions, trees, verify
from ropewalk.store.store import Store
from ropewalk.testing import sample

AGENTS, MIN_CHANGES, MAX_AIMS = 8, 16, 20
_TEXT_MAX = 200_000


class Conflict(msgspec.Struct, frozen=True):
    """Is one conflict of the demo: the task whose land met it, the paths, and whether its agent resolved it."""

    task: str
    paths: list[str]
    resolved: bool


class Demo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what the demo did and proved; `failed` lists what did not come true."""

    repository: str
    base: str
    head: str
    agents: int
    changes: int
    seconds: float
    lands_per_second: float
    conflicts: list[Conflict]
    kill: Kill | None
    exported: str
    fsck: str
    verified: str
    history: str
    failed: list[str]
    folder: str | None = None


class Wanted(NamedTuple):
    """Is what the demo is to run on: a repository's folder or None for the sample, a scratch folder, a seed."""

    repository: str | None
    scratch: str
    seed: int
    caller: Mapping[str, str]
    agents: int = AGENTS


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
    name = branch[0].removeprefix("refs/heads/")
    layout.create(root, str(uuid.UUID(int=wanted.seed & ((1 << 128) - 1))), "demo", name)
    with Store(root) as store:
        importing.import_branch(store, source, branch[0], into=None, actor="ropewalk/demo")
        base = store.ref(revisions.default_branch(store))
        assert base is not None
        tasks = parse(sample.tasks(shared), "tasks.json") if wanted.repository is None else invent(store, base, shared)
        tell(f"{wanted.agents} agents start on {len(tasks)} tasks")
        killer = KillingLander(wanted.seed)
        options = runner.Options(
            Scripted(), wanted.caller, os.path.join(wanted.scratch, "data"), jobs=wanted.agents, seconds=120.0,
            check_seconds=120.0, lander=killer, export=False,
        )  # fmt: skip
        done = runner.run(store, "ropewalk/demo", tasks, options, interrupts, watch)
        interrupts.check()
        ref = f"refs/heads/{done.ref}"
        extra = _aim_again(store, killer, options._replace(onto=ref), interrupts, watch)
        interrupts.check()
        failed = [f"{t.id}: {t.reason}" for t in (*done.tasks, *extra) if t.state != "landed"]
        return _prove(store, wanted, done, ref, base, killer, failed, began, tell)


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


def _aim_again(
    store: Store,
    killer: KillingLander,
    options: runner.Options,
    interrupts: Interrupts,
    watch: Callable[[Event], None] | None,
) -> list[report.TaskReport]:
    """Lands further small changes until one of them is hit, when all so far were missed."""
    found: list[report.TaskReport] = []
    for number in range(MAX_AIMS):
        if killer.kill is not None or interrupts.stopped.is_set():
            break
        step = {"put": f"ropewalk-demo/aim-{number}.txt", "text": f"attempt {number}\n"}
        task = Task(f"aim-{number}", f"Write down that this is attempt {number}.", [step])
        found += runner.run(store, "ropewalk/demo", [task], options, interrupts, watch).tasks
    return found


def _prove(
    store: Store, wanted: Wanted, done: report.Summary, ref: str, base: str, killer: KillingLander, failed: list[str],
    began: float, tell: Callable[[str], None],
) -> Demo:  # fmt: skip
    head = store.ref(ref) or base
    conflicts = _conflicts(store, done)
    kill = killer.kill
    if not any(c.resolved for c in conflicts):
        failed.append("no conflict was met and resolved")
    if kill is None:
        failed.append(f"no land was killed in its middle ({killer.missed} tries came too late)")
    else:
        kill = msgspec.structs.replace(kill, lands=_lands(store, kill.key, base, head))
        if kill.lands != 1:
            failed.append(f"the killed change is {kill.lands} times on the ref, not once")
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
        base=base,
        head=head,
        agents=wanted.agents,
        changes=changes,
        seconds=round(clock.monotonic() - began, 2),
        lands_per_second=done.lands_per_second,
        conflicts=conflicts,
        kill=kill,
        exported=f"{exported.exported} commits, head {exported.head_sha}",
        fsck=fsck or "clean",
        verified=f"{words}: {'sound' if not sound.problems else 'damaged'}",
        history=_history(store, base, head),
        failed=failed,
    )


def _conflicts(store: Store, done: report.Summary) -> list[Conflict]:
    log, _ = events.read(os.path.join(report.folder(store.layout, done.id), "events.jsonl"))
    landed = {t.id for t in done.tasks if t.state == "landed"}
    return [Conflict(e["task"], e["paths"], e["task"] in landed) for e in log if e["event"] == "conflict"]


def _lands(store: Store, key: str, base: str, head: str) -> int:
    """Gives how many commits of the landed line carry a key, as git itself reads them."""
    out = git(
        store.layout.repo, "log", "--format=%(trailers:key=Ropewalk-Land-Key,valueonly)", f"{base}..{head}"
    ).text()
    return out.split().count(key)


def _history(store: Store, base: str, head: str) -> str:
    return git(
        store.layout.repo, "log", "--graph", "--boundary", "--abbrev=8", "--format=%h %an: %s", f"{base}..{head}"
    ).text()


def invent(store: Store, base: str, shared: str) -> list[Task]:
    """Gives tasks for a repository that nobody knows: new files, lines added to files, and one line that two edit."""
    texts = _texts(store, base)
    tasks: list[Task] = []
    path, line = next(((p, found) for p, t in texts if (found := _unique_line(t))), ("", ""))
    for who in ("left", "right"):
        barrier = {"barrier": os.path.join(shared, "line"), "count": 2}
        new = f"{line.rstrip(chr(10))} ({who})"
        edit = {"replace": path, "old": line, "new": new} if path else {
            "put": "ropewalk-demo/both.txt", "text": f"written by {who}\n"}  # fmt: skip
        where = path or "ropewalk-demo/both.txt"
        steps = {"on_conflict": "both", "steps": [barrier, edit]}
        tasks.append(Task(f"both-{who}", f"Edit the same line of {where} as another agent does.", steps))
    for number, (other, text) in enumerate([t for t in texts if t[0] != path][:8]):
        end = "" if text.endswith("\n") or not text else "\n"
        step = {"append": other, "text": f"{end}# touched by agent {number}\n"}
        tasks.append(Task(f"append-{number}", f"Add a line to {other}.", [step]))
    for number in range(max(8, 18 - len(tasks))):
        step = {"put": f"ropewalk-demo/note-{number}.md", "text": f"# Note {number}\n\nWritten by a scripted agent.\n"}
        tasks.append(Task(f"note-{number}", f"Write note {number}.", [step]))
    return tasks


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
