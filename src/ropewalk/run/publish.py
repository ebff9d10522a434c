"""Showing a run in the user's own repository: one new branch, which `rw runs undo` removes; nothing else is touched."""

from __future__ import annotations

import os
from itertools import product

from ropewalk.core.errors import os_error
from ropewalk.core.ids import short_ref
from ropewalk.core.process import git, git_env, git_program, holders, run
from ropewalk.remote.exporting import arrival_synced
from ropewalk.store.store import Store

PREFIXES = ("ropewalk", "ropewalk-runs", "rw", "rw-runs")


def beside(store: Store) -> str | None:
    """Gives the git directory a store stands in, or None when it stands alone."""
    above = os.path.dirname(store.layout.root)
    if os.path.isfile(os.path.join(above, "HEAD")) and os.path.isdir(os.path.join(above, "objects")):
        return above
    return None


def show_branch(store: Store, ref: str, run_id: str) -> str | None:
    """Makes the branch `ropewalk/RUN` in the repository beside the store and gives its name; None without one.

    Another prefix is taken where a branch is in the way. One of the run's that is where it should be was made by a
    process that died before it could say so: it is fetched whole once more, since nothing of it may be on disk yet.
    Work tree, index, HEAD, configuration and other refs stay as they are; no hook runs. A failure is a warning: the
    work is in the store. What goes out is durable, because `repo.git` shows no ref before the log is.
    """
    there = beside(store)
    if there is None:
        return None
    said = git(there, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/", timeout=60).text()
    taken = dict(line.split(" ") for line in said.splitlines())
    head = store.ref(ref)
    for prefix, end in product(PREFIXES, ("", "-2", "-3", "-4")):
        name = f"refs/heads/{prefix}/{run_id}{end}"
        is_made = name in taken and taken[name] == head
        if f"refs/heads/{prefix}" in taken or any(t.startswith(name + "/") for t in taken):
            continue
        if name in taken and not is_made:
            continue
        _free(there, name)
        with arrival_synced(there, name):
            done = run(
                [git_program(), f"--git-dir={there}", "fetch", "--quiet", "--no-tags", "--no-write-fetch-head",
                 "--no-auto-gc", "--no-recurse-submodules", *(["--refetch"] if is_made else []), store.layout.repo,
                 f"{ref}:{name}"],
                env=git_env({"GIT_CONFIG_PARAMETERS": "'core.logAllRefUpdates'='false'"}),
                timeout=600,
            )  # fmt: skip
        if done.code == 0:
            return name.removeprefix("refs/heads/")
        words = done.err.decode("utf-8", "replace").strip()[-500:]
        store.warnings.append(
            f"the branch {name.removeprefix('refs/heads/')} could not be made in your repository: {words};"
            f" this makes it: git fetch {store.layout.repo} {ref}:{name}"
        )
        return None
    store.warnings.append(
        f"no branch was made in your repository: {', '.join(PREFIXES)} are branches of yours;"
        f" this makes one: git fetch {store.layout.repo} {ref}:NAME"
    )
    return None


def _free(there: str, name: str) -> None:
    """Removes the lock that a killed git left on a run's branch, which nobody but the run's one driver makes."""
    lock = os.path.join(there, f"{name}.lock")
    try:
        if not holders(os.stat(lock)):
            os.unlink(lock)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise os_error(error, "removal of a lock") from None


def remove_branch(store: Store, branch: str, head: str) -> str:
    """Removes a branch that shows a run, in the repository beside the store; gives why it stays, empty when it is gone.

    It stays where it is checked out, or is not where it was put. No hook runs.
    """
    there = beside(store)
    name = f"refs/heads/{branch}"
    if there is None:
        return ""
    said = git(there, "for-each-ref", "--format=%(objectname) %(worktreepath)", name, timeout=60).text()
    for line in said.splitlines():  # the branches below a folder of this name match, too: there can be none beside it
        at, _, worktree = line.partition(" ")
        if at != head:
            return f"{branch} has moved on since the run put it there"
        if worktree:
            return f"{branch} is checked out in {worktree}"
        with arrival_synced(there, name):
            done = run(
                [git_program(), f"--git-dir={there}", "update-ref", "-d", name, head], env=git_env(), timeout=60
            )  # fmt: skip
        if done.code:
            words = done.err.decode("utf-8", "replace").strip()[-500:]
            return f"{branch} could not be removed: {words}"
    return ""


def holding(store: Store, head: str, but: str) -> list[str]:
    """Gives the branches and tags of the repository beside the store that have a commit, but for one branch."""
    there = beside(store)
    if there is None:
        return []
    done = git(there, "for-each-ref", "--format=%(refname)", f"--contains={head}", "refs/heads/", "refs/remotes/",
               "refs/tags/", ok=(0, 129), timeout=600)  # fmt: skip
    if done.code:  # it has no such commit
        return []
    return [short_ref(name) for name in done.text().split() if name != f"refs/heads/{but}"]
