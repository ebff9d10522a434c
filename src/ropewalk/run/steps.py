"""Steps of a task for whoever works outside of a worker: hand in a tree, have it judged, and have it land.

What is handed in is a folder, a workspace, or a revision. Of a folder what git would take counts, so what its ignore
rules cover does not, and nothing of its own history is taken but the commit it stands on.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ropewalk.board import claim, wire
from ropewalk.board.base import Board
from ropewalk.board.claim import Held
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import EmptyCommitError, InvalidError, NotFoundError
from ropewalk.core.ids import EMPTY_TREE, check_path, path_bytes, path_text
from ropewalk.core.process import ObjectChild, git, git_env, git_program, run
from ropewalk.plan.task import Task
from ropewalk.run.work import evidence
from ropewalk.run.work.landing import Change, Landing
from ropewalk.run.work.landing import Result as Landed
from ropewalk.run.work.lease import Lease
from ropewalk.store import changes, layout, lineage, revisions, trees
from ropewalk.store.store import Store
from ropewalk.workspace import capture, state
from ropewalk.workspace import landing as workspace_landing
from ropewalk.workspace.check import Cage
from ropewalk.workspace.landing import Wish

SECONDS = 600.0
"""Is how long a check may take where its task does not say."""

_FAR = 2000


class Tree(NamedTuple):
    """Is a tree that was handed in: its id, and the commit of the store that it stands on (None: none is known)."""

    tree: str
    base: str | None
    warnings: tuple[str, ...] = ()


class Judged(msgspec.Struct, frozen=True):
    """Is what a task's own check said of a tree: exit code (124: out of time), the end of its output, seconds."""

    task: str
    tree: str
    rc: int
    timed_out: bool
    detail: str
    seconds: float


def hand_in(store: Store, given: str, where: str, agent: str, base: str | None) -> Tree:
    """Gives the tree that is meant: the folder at `where`, else the workspace or the revision `given`.

    `base` is the commit that a folder stands on, where its own history does not say.
    """
    name = _workspace_at(store, where) if os.path.isdir(where) else None
    if name is None and not os.path.isdir(where) and state.find(store, given) is not None:
        name = given
    if name is not None:
        return _workspace(store, name, agent)
    if os.path.isdir(where):
        return _folder(store, where, base)
    try:
        commit = revisions.resolve(store, given)
    except (InvalidError, NotFoundError):
        raise NotFoundError(
            f"{given!r} is no folder, workspace or revision", hint="name the folder that you worked in", tree=given
        ) from None
    return Tree(store.objects.commit(commit).tree, commit)


def _workspace_at(store: Store, where: str) -> str | None:
    mark = layout.workspace_mark(where)
    return mark.workspace if mark is not None and os.path.realpath(mark.store) == store.layout.root else None


def _workspace(store: Store, name: str, agent: str) -> Tree:
    with state.held(store, name):
        ws = state.need(store, name)
        made, warnings = workspace_landing.commit_workspace(store, ws, Wish(agent, f"What {name} holds"))
    return Tree(store.objects.commit(made or ws.base).tree, ws.base, tuple(warnings))


def _folder(store: Store, folder: str, base: str | None) -> Tree:
    """Takes a folder as git would add it, over the commit it stands on; its own git settings are not looked at."""
    base = _stands_on(store, folder) or base
    store.objects.take_new()
    store.objects.spill()
    with tempfile.TemporaryDirectory(prefix="ropewalk-tree-") as scratch:
        repo = os.path.join(scratch, "git")
        run([git_program(), "init", "--quiet", "--bare", repo], env=git_env(), timeout=60)
        os.makedirs(os.path.join(repo, "objects", "info"), exist_ok=True)
        with open(os.path.join(repo, "objects", "info", "alternates"), "w", encoding="utf-8") as file:
            file.write(os.path.join(store.layout.repo, "objects") + "\n")
        root = store.objects.commit(base).tree if base is not None else EMPTY_TREE
        if base is not None:
            git(repo, "read-tree", root, timeout=600)
        git(repo, "-c", "core.bare=false", "add", "-A", "--", ".", extra_env={"GIT_WORK_TREE": folder}, timeout=3600)
        made = git(repo, "write-tree", timeout=600).text()
        tree, held = _taken(store, repo, root, made)
    warnings = [f"held back as secrets: {', '.join(held[:5])} (name them to land them on purpose)"] if held else []
    return Tree(tree, base, tuple(warnings))


def _taken(store: Store, repo: str, root: str, made: str) -> tuple[str, list[str]]:
    """Takes the tree of a scratch repository into the store; gives it, and new paths that look like secrets."""
    listed = git(repo, "diff-tree", "-r", "-z", "--no-renames", "--raw", root, made).out.split(b"\0")
    edit = trees.Edit(store.objects, root)
    held = []
    child = ObjectChild(repo)
    try:
        for facts, path in zip(listed[:-1:2], listed[1::2], strict=True):
            _, new_mode, _, new, status = facts.lstrip(b":").split(b" ")
            if status == b"D":
                edit.set(path, None)
                continue
            if status == b"A" and capture.is_secret(path):
                held.append(path_text(path))
            if new_mode != trees.GITLINK:
                (found,) = child.ask([new.decode("ascii")])
                if found is None:
                    raise InvalidError(f"{path_text(path)!r} can't be read", path=path_text(path))
                store.objects.write("blob", found[1])
            edit.set(path, (new_mode, bytes.fromhex(new.decode("ascii"))))
    finally:
        child.close()
    return edit.write(), held


def _stands_on(store: Store, folder: str) -> str | None:
    """Gives the newest commit of a folder's own history that the store has; None without a repository there."""
    if not os.path.exists(os.path.join(folder, ".git")):
        return None
    words = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "rev-list", f"--max-count={_FAR}", "HEAD"]
    done = run([git_program(), *words], env=git_env(), cwd=folder, timeout=60)
    return next((oid for oid in done.text().split() if store.objects.kind(oid) == "commit"), None)


# the check


def judge(
    store: Store, task: Task, tree: str, folder: str, seconds: float = SECONDS, cage: Cage | None = None
) -> Judged:  # fmt: skip
    """Runs a task's own check in a clean checkout of a tree, below a folder; whatever it says is a result."""
    how = evidence.orders(store, task.check, task.limits.check_seconds or seconds, folder, cage=cage)
    verdict = evidence.look_at(store, tree, how)
    assert verdict is not None, "nobody stops it"
    detail = verdict.output if verdict.kind != "infrastructure" else f"{verdict.output}\n{verdict.reason}".strip()
    return Judged(task.id, tree, verdict.rc, verdict.rc == 124, detail, verdict.seconds)


# the change


def change_of(store: Store, held: Held, given: Tree, paths: Sequence[str], head: str) -> tuple[str, str]:
    """Gives a changeset with the named paths of a tree alone, or all that it changed, and the commit that it is on.

    `E_INVALID` for a path that is neither in the tree nor in what it stands on, `E_EMPTY_COMMIT` when nothing of them
    changed.
    """
    base = given.base if given.base is not None and lineage.ancestor(store, given.base, head) else None
    if base is None:
        base = _fork(store, given.base, head) if given.base is not None else head
    root = store.objects.commit(base).tree
    changed = trees.diff(store.objects, root, given.tree)
    wanted = [check_path(path_bytes(path.rstrip("/"))) for path in paths]
    for path in wanted:
        if all(trees.lookup(store.objects, tree, path) is None for tree in (root, given.tree)):
            raise InvalidError(
                f"there is no {path_text(path)!r} in the tree", hint="name paths from the tree's own top",
                path=path_text(path),
            )  # fmt: skip
    if wanted:
        changed = [c for c in changed if any(c.path == p or c.path.startswith(p + b"/") for p in wanted)]
    else:
        changed = [c for c in changed if c.old is not None or not capture.is_secret(c.path)]
    if not changed:
        raise EmptyCommitError(
            f"the tree changes nothing{' of the named paths' if wanted else ''}",
            hint="a task that was done already needs a verdict by somebody who says so", task=held.task.id,
        )  # fmt: skip
    edit = trees.Edit(store.objects, root)
    for change in changed:
        edit.set(change.path, change.new)
    message = changes.check_message(f"fix {held.task.id}\n\n{held.task.name}\n\nAttempt: {held.attempt}")
    made = changes.write_changeset(
        store, agent=held.actor, message=message, tree=edit.write(), parents=[base], root=root, advance=None, key=None,
        request=b"", kind="return",
    )  # fmt: skip
    return made.changeset, base


def _fork(store: Store, commit: str, head: str) -> str:
    """Gives the newest common ancestor of two commits; `E_INVALID` when they have none."""
    found = store.git("merge-base", commit, head, timeout=120, ok=(0, 1)).text().split()
    if not found:
        raise InvalidError(f"{commit[:12]} has no history in common with the target", commit=commit)
    return found[0]


def land(
    board: Board, store: Store, landing: Landing, held: Held, given: Tree, paths: Sequence[str], checks: str,
    seconds: float = SECONDS, cage: Cage | None = None,
) -> Landed:  # fmt: skip
    """Lands the named paths of a tree with return, verdict and closing claim, once the task's own check passed.

    The check runs on the very tree that lands, in a folder below `checks`. What `change_of` raises is raised.
    """
    import threading
    import uuid

    head = landing.head(board, store, held.task.target)
    change, base = change_of(store, held, given, paths, head)
    seconds = held.task.limits.check_seconds or seconds
    found = wire.fields(held.words)
    how = evidence.orders(store, held.task.check, seconds, checks, cage=cage)
    more = {"landed": "{landed}", "tree": "{tree}", **evidence.facts(how)}
    outcome = Outcome(True, 0, 0, found.get("harness") or "unknown", found.get("model"), found.get("kind"), more=more)
    lease = Lease(held, threading.Event())
    wanted = Change(lease, change, base, outcome, str(uuid.uuid4()), held.task.check, seconds, checks, cage)
    return landing.land(board, store, wanted)


def satisfied(
    board: Board, store: Store, landing: Landing, held: Held, checks: str, seconds: float = SECONDS,
    cage: Cage | None = None,
) -> Landed:  # fmt: skip
    """Closes a task that the target satisfies as it is, once the task's own check passed there; the return is its head.

    The verdict says `already: satisfied`, so that nobody takes it for a change.
    """
    head = landing.head(board, store, held.task.target)
    how = evidence.orders(store, held.task.check, held.task.limits.check_seconds or seconds, checks, cage=cage)
    tree = store.objects.commit(head).tree
    verdict = evidence.look_at(store, tree, how)
    assert verdict is not None, "nobody stops it"
    if verdict.kind != "passed":
        words = f"the check ended with {verdict.rc} on {held.task.target} as it is\n{verdict.output}".strip()
        return Landed("failed", tree=tree, rc=verdict.rc, words=words)
    found = wire.fields(held.words)
    more = {"already": "satisfied", "landed": head, "tree": tree, **evidence.facts(how)}
    outcome = Outcome(True, 0, 0, found.get("harness") or "unknown", found.get("model"), found.get("kind"), more=more)
    claim.close(board, held, outcome, head)
    return Landed("landed", head, tree)
