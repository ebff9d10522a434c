"""Where a run starts: the commit that the user's checkout stands on; of the checkout itself nothing is touched.

A store that stands alone, or a caller outside of the repository beside it, starts from the store's own default branch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from ropewalk.core.errors import NotFoundError
from ropewalk.core.ids import EMPTY_TREE, HEX40
from ropewalk.core.process import Done, git_env, git_error, git_program, run
from ropewalk.remote import importing, transport
from ropewalk.run import publish
from ropewalk.store import layout, lineage, revisions
from ropewalk.store.loose import object_id
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store

KEPT = "refs/run-bases/"
"""Are the refs that keep what runs started from."""

_SHOWN = 5
_FIRST = "ropewalk <ropewalk@localhost> 0 +0000"


class Start(NamedTuple):
    """Is where a run starts: a commit of the store, where it is from, and paths that the user has not committed."""

    base: str
    said: str
    uncommitted: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """Gives what to tell of uncommitted work; empty where there is none."""
        return told(self.uncommitted)


def told(paths: Sequence[str]) -> str:
    """Gives what to tell of paths that are not committed; empty where there are none."""
    if not paths:
        return ""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    what = "1 uncommitted path of yours is" if len(paths) == 1 else f"{len(paths)} uncommitted paths of yours are"
    return f"{what} not part of the run: {', '.join(paths[:_SHOWN])}{more}"


def find(store: Store, cwd: str, actor: str) -> Start:
    """Gives where a run that is asked for in a folder starts; what it stands on is in the store then.

    Where the checkout is on the store's default branch, and all that the store has beyond it was made in the store, the
    store's is taken: what landed is part of it. A repository without commits starts from an empty tree.
    """
    branch = revisions.default_branch(store)
    ours = store.ref(branch)
    common = publish.beside(store)
    found = layout.git_common_dir(cwd) if common is not None else None
    if common is None or found is None or os.path.realpath(found[1]) != os.path.realpath(common):
        if ours is None:
            raise NotFoundError(f"the store has no {branch.removeprefix('refs/heads/')}",
                                hint="import or commit something first")  # fmt: skip
        return Start(ours, branch.removeprefix("refs/heads/"))
    dirty = uncommitted(cwd)
    asked = _git(cwd, "rev-parse", "--quiet", "--verify", "HEAD")  # of a lost commit, too
    if asked.code not in (0, 1):
        raise git_error("rev-parse HEAD", asked)
    head = asked.out.decode("ascii", "replace").strip()
    if len(head) == 64:
        raise transport.sha256(transport.place(common))
    if not HEX40.match(head):
        return Start(_empty(store, actor) if ours is None else ours, "no commit", dirty)
    importing.bring_refs(store, transport.place(common), {f"{KEPT}{head}": head}, [], kind="run_base", actor=actor)
    on = _git(cwd, "symbolic-ref", "--quiet", "HEAD").out.decode("utf-8", "replace").strip()
    if ours is not None and on == branch and _landed_on(store, head, ours):
        return Start(ours, branch.removeprefix("refs/heads/"), dirty)
    return Start(head, "HEAD", dirty)


def _landed_on(store: Store, head: str, ours: str) -> bool:
    """Says whether a commit of the store is another with changes on it that were all made in the store.

    What came from the repository and is not in its branch any more was taken away by the person.
    """
    if not lineage.is_on(store, head, ours):
        return False
    beyond = store.git("rev-list", ours, f"^{head}", "--", timeout=600).text().split()
    return all(store.agent_of(oid) is not None for oid in beyond)


def uncommitted(cwd: str) -> tuple[str, ...]:
    """Gives the paths that differ from the checkout's commit, as `git status` has them; none outside of a repository.

    Into a submodule nobody looks: git would run there with that repository's settings, and only its commit counts.
    """
    done = _git(cwd, "status", "--porcelain=v1", "-z", "--untracked-files=normal", "--ignore-submodules=dirty")
    if done.code:
        return ()
    parts = done.out.decode("utf-8", "replace").split("\0")
    paths, skip = [], False
    for part in parts:
        if skip or len(part) < 4:
            skip = False
            continue
        paths.append(re.sub(r"[^\x20-\x7e\xa0-\U0010ffff]", "?", part[3:]))
        skip = part[0] in "RC"  # the old name follows
    return tuple(paths)


def _git(cwd: str, *words: str) -> Done:
    """Asks git in the user's checkout; nothing there is written, and no hook or monitor of it runs."""
    safe = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false"]
    env = git_env({"GIT_OPTIONAL_LOCKS": "0"})
    return run([git_program(), *safe, "-C", cwd, *words], env=env, timeout=300)


def _empty(store: Store, actor: str) -> str:
    """Gives the commit of an empty tree, the same in every store; it is kept by a ref."""
    content = f"tree {EMPTY_TREE}\nauthor {_FIRST}\ncommitter {_FIRST}\n\nNothing yet\n".encode()
    oid = object_id("commit", content)
    name = f"{KEPT}{oid}"
    if store.ref(name) is None:
        store.objects.write("tree", b"")
        store.objects.write("commit", content)
        with store.transaction() as tx:
            tx.journal(store.objects.take_new())
            tx.record("run_base", actor, [Move(name, None, oid)])
    return oid
