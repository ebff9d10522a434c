"""Evidence: a task's check, run on a tree that nobody wants to land, to see how the tree stands."""

from __future__ import annotations

import threading

import msgspec

from ropewalk.store.store import Store
from ropewalk.workspace import drive, setup
from ropewalk.workspace.check import Cage
from ropewalk.workspace.drive import Orders
from ropewalk.workspace.verdict import Verdict

SHELL = ("/bin/sh", "-c")
_TICK = 0.02
_OUTPUT = 3000
"""Is how much of a failed check's words a verdict keeps."""


def orders(
    store: Store, command: str, seconds: float, checks: str, stop: threading.Event | None = None,
    cage: Cage | None = None,
) -> Orders:  # fmt: skip
    """Gives the orders for a check that is a line for the shell."""
    return drive.orders([*SHELL, command], seconds, checks, policy=setup.policy_of(store), stop=stop, cage=cage)


def facts(how: Orders) -> dict[str, str]:
    """Gives what a verdict says of its check: the line, the environment's key, and what held it, if anything did."""
    found = {"check": how.command.argv[-1], "environment": how.command.environment[:40]}
    return found if how.cage is None else {**found, "cage": how.cage.mark}


def output(words: str) -> dict[str, str]:
    """Gives what a verdict keeps of a failed check's words: their end, as JSON; none where they say nothing.

    Whoever plans anew may be on another host, where nothing else of it is.
    """
    said = words.strip().encode("utf-8", "replace").decode("utf-8")[-_OUTPUT:]
    return {"output": msgspec.json.encode(said).decode()} if said else {}


def look(store: Store, commit: str, how: Orders) -> Verdict | None:
    """Runs a check on a commit's tree and gives what it found; None when it was stopped."""
    return look_at(store, store.objects.commit(commit).tree, how)


def look_at(store: Store, tree: str, how: Orders) -> Verdict | None:
    """Runs a check on a tree and gives what it found; None when it was stopped."""
    running = drive.Apart(store, tree, how)
    pause = how.stop or threading.Event()
    try:
        while (verdict := running.poll()) is None:
            if pause.is_set():
                return None
            pause.wait(_TICK)
        return verdict
    finally:
        running.stop()
