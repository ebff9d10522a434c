"""The base: what is in the tree that a plan is made for, and which checks pass on it before anything is done.

Checks are a model's words, so they are run as any check is: on a checkout of their own, with a bound, in a cage where
there is one; several at once, and all together no longer than they may.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ropewalk.core import clock
from ropewalk.core.ids import EMPTY_TREE, path_text
from ropewalk.plan import mapping
from ropewalk.plan.mapping import Map
from ropewalk.store import trees
from ropewalk.store.store import Store
from ropewalk.workspace import drive, setup
from ropewalk.workspace.check import Cage
from ropewalk.workspace.drive import Apart
from ropewalk.workspace.verdict import Verdict

_TICK = 0.02
_FILES = 200_000
"""Is how many files of a tree are looked at."""


class Bounds(NamedTuple):
    """Is how long one check may take, all of them together, and how many run at once (0: one a processor)."""

    seconds: float = 60.0
    together: float = 600.0
    jobs: int = 0


def empty(store: Store, actor: str) -> str:
    """Gives a commit without files, for an idea that nothing is there of yet; no ref names it."""
    from ropewalk.store import changes

    store.objects.write_tree({})
    made = changes.write_changeset(
        store, agent=actor, message=b"Nothing yet\n", tree=EMPTY_TREE, parents=[], root=EMPTY_TREE, advance=None,
        key=None, request=b"",
    )  # fmt: skip
    return made.changeset


def files(store: Store, tree: str) -> list[tuple[str, int]]:
    """Gives the files of a tree with their sizes; links and submodules have none."""
    found: list[tuple[str, int]] = []
    for path, entry in trees.walk(store.objects, tree):
        if len(found) == _FILES:
            break
        if trees.kind(entry) in ("file", "exec"):
            stated = store.objects.header(entry[1].hex())
            found.append((path_text(path), stated[1] if stated is not None else 0))
    return found


def text(store: Store, tree: str, path: str) -> str:
    """Gives the text of a file of a tree; empty when there is none."""
    entry = trees.lookup(store.objects, tree, path.encode("utf-8", "surrogateescape"))
    if entry is None or trees.kind(entry) not in ("file", "exec"):
        return ""
    return store.objects.read(entry[1].hex(), "blob").decode("utf-8", "replace")


def survey(store: Store, tree: str, held: list[tuple[str, int]] | None = None) -> Map:
    """Gives the map that a tree's files say."""
    return mapping.survey(files(store, tree) if held is None else held, lambda path: text(store, tree, path))


def run(
    store: Store,
    tree: str,
    commands: Iterable[str],
    folder: str,
    bounds: Bounds = Bounds(),
    *,
    cage: Cage | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Mapping[str, Verdict]:
    """Gives what each check found on a tree; one that was not run to its end, for lack of time, is not in it."""
    waiting = list(dict.fromkeys(commands))
    policy = setup.policy_of(store)
    jobs = bounds.jobs or os.cpu_count() or 1
    until = clock.monotonic() + bounds.together
    running: dict[str, Apart] = {}
    found: dict[str, Verdict] = {}
    pause = threading.Event()
    try:
        while (waiting or running) and clock.monotonic() < until and not stop():
            while waiting and len(running) < jobs:
                line = waiting.pop(0)
                how = drive.orders(["/bin/sh", "-c", line], bounds.seconds, folder, policy=policy, cage=cage)
                running[line] = Apart(store, tree, how)
            for line, one in list(running.items()):
                if (verdict := one.poll()) is not None:
                    found[line] = verdict
                    del running[line]
            if running:
                pause.wait(_TICK)
        return found
    finally:
        for one in running.values():
            one.stop()
