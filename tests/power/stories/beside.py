"""Commands that meet others between their steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..world import World
from .base import MAIN, head, started, story, unsynced_land


def _queued(world: World, leader: list[str], waiter: list[str], *more: str) -> dict[str, Any]:
    """Lets two landers wait together, of which the first answers both and is killed before its sync; gives the other's
    envelope."""
    world.promise = world.promise._replace(refs={})
    argv = [sys.executable, "-m", "tests.power.queue", str(world.store), json.dumps([leader, waiter]), *more]
    out, _ = world.trace(argv, env={"ROPEWALK_LOCK_WAIT": "5"} if more else {})
    return json.loads(out.splitlines()[-1])  # type: ignore[no-any-return]


@story
def land_in_the_queue(folder: Path, skip: str) -> World:
    """A lander that waits was answered by one that is killed before its sync, and can't show it to stock git."""
    world = started(folder, skip)
    one, two = (world.commit(f"{n}.txt", n, "--parent", "main", run=world.plain) for n in ("one", "two"))
    done = _queued(world, world.dying("land", one), world.command("land", two), "--no-projection")
    assert any("projector" in line for line in done["warnings"]), done
    world.promises("land", refs={MAIN: done["result"]["landed"]})
    return world


@story
def conflict_in_the_queue(folder: Path, skip: str) -> World:
    """A lander that waits is in conflict with one that is killed before its sync."""
    world = started(folder, skip)
    one, two = (world.commit("a.txt", f"{n}\n", "--parent", "main", run=world.plain) for n in (1, 2))
    error = _queued(world, world.dying("land", one), world.command("land", two))["error"]
    assert error["code"] == "E_CONFLICT", error
    world.promises("conflict", refs={MAIN: error["details"]["report"]["theirs"]})
    return world


@story
def check_lost(folder: Path, skip: str) -> World:
    """What a land with a check is refused for, before its check runs."""
    world, change, old = unsynced_land(folder, skip)
    error = world.run("land", change, "--expect-target", old, "--", "true", ok=False)
    assert error["code"] == "E_CAS_MISMATCH", error
    world.promises("lost land", refs={MAIN: error["details"]["actual"]})
    return world


@story
def checked_by_another(folder: Path, skip: str) -> World:
    """A change that waits with its check is landed by another lander, who is killed before the sync."""
    world = started(folder, skip)
    one, two = (world.commit(f"{n}.txt", n, "--parent", "main", run=world.plain) for n in ("one", "two"))
    other = world.dying("land", one, "--", "true", after="ropewalk.store.land:publish_prepared")
    world.promise = world.promise._replace(refs={})
    done = world.run("land", two, "--", "true", meet=("ropewalk.workspace.queue:find", other))
    world.promises("land", objects=[done["landed"]], op=3)
    return world


@story
def shown(folder: Path, skip: str) -> World:
    """What stock git is shown is durable, though another wrote between a command's sync and its showing, and died."""
    world = started(folder, skip)
    old = head(world)
    change = world.commit("a.txt", "x\n", "--parent", "main", run=world.plain)
    world.watch()
    world.run("ref", "set", "topic", old, "--create",
              meet=("ropewalk.store.projection:project", world.dying("land", change)))  # fmt: skip
    there = (world.store / "repo.git" / MAIN).read_text().strip()
    assert there != old
    world.promises("ref set", refs={MAIN: there, "refs/heads/topic": old})
    return world
