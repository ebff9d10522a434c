"""What is answered about another's work, which it did not live to sync (A15)."""

from __future__ import annotations

import json
from pathlib import Path

from ..world import World, stock
from .base import MAIN, head, key, source, started, story, unsynced_land


@story
def commit_again(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    entry = {"path": "x", "op": "put", "content": {"inline": "x\n"}}
    words = ["commit", "-m", "x", "--changes", world.changes(entry), "--key", key()]
    world.killed(*words, at="fdatasync:when=1")
    done = world.run(*words)
    assert done["replayed"]
    world.promises("replayed commit", objects=[done["changeset"]])
    return world


@story
def land_again(folder: Path, skip: str) -> World:
    world, change, _ = unsynced_land(folder, skip, "--key", key())
    done = world.run("land", change, "--key", key())
    assert done["status"] == "replayed"
    world.promises("replayed land", refs={MAIN: done["landed"]})
    return world


@story
def land_lost(folder: Path, skip: str) -> World:
    world, change, old = unsynced_land(folder, skip)
    error = world.run("land", change, "--expect-target", old, ok=False)
    assert error["code"] == "E_CAS_MISMATCH", error
    world.promises("lost land", refs={MAIN: error["details"]["actual"]})
    return world


@story
def land_conflict(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    one = world.commit("a.txt", "1\n", "--parent", "main", run=world.plain)
    two = world.commit("a.txt", "2\n", "--parent", "main", run=world.plain)
    world.killed("land", one, at="fdatasync:when=1")
    error = world.run("land", two, ok=False)
    assert error["code"] == "E_CONFLICT", error
    world.promises("conflict", refs={MAIN: error["details"]["report"]["theirs"]})
    return world


def _answer(world: World, against: str) -> str:
    """Gives the path of an answer to a conflict; a land with one is merged outside the lock first."""
    there = world.folder / "answer.json"
    there.write_text(json.dumps({"against": against, "files": {"a.txt": {"take": "ours"}}}))
    return str(there)


@story
def land_answered_again(folder: Path, skip: str) -> World:
    world, change, old = unsynced_land(folder, skip, "--key", key())
    done = world.run("land", change, "--key", key(), "--resolve", _answer(world, old))
    world.promises("replayed land", refs={MAIN: done["landed"]})
    return world


@story
def land_answered_lost(folder: Path, skip: str) -> World:
    world, change, old = unsynced_land(folder, skip)
    error = world.run("land", change, "--expect-target", old, "--resolve", _answer(world, old), ok=False)
    assert error["code"] == "E_CAS_MISMATCH", error
    world.promises("lost land", refs={MAIN: error["details"]["actual"]})
    return world


@story
def land_answered_late(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    old = head(world)
    one, two = (world.commit("a.txt", f"{n}\n", "--parent", "main", run=world.plain) for n in (1, 2))
    world.killed("land", one, at="fdatasync:when=1")
    error = world.run("land", two, "--resolve", _answer(world, old), ok=False)
    assert error["code"] == "E_CONFLICT", error
    world.promises("conflict", refs={MAIN: error["details"]["report"]["theirs"]})
    return world


@story
def commit_lost(folder: Path, skip: str) -> World:
    world, _, old = unsynced_land(folder, skip)
    entry = {"path": "y", "op": "put", "content": {"inline": "y\n"}}
    error = world.run("commit", "-m", "y", "--changes", world.changes(entry), "--parent", old,
                      "--advance", "main", ok=False)  # fmt: skip
    assert error["code"] == "E_CAS_MISMATCH", error
    world.promises("lost commit", refs={MAIN: error["details"]["actual"]})
    return world


@story
def ref_again(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    world.watch()
    words = ["ref", "set", "topic", head(world), "--create"]
    world.killed(*words, at="fdatasync:when=1")
    done = world.run(*words)
    assert done["already_applied"]
    world.promises("ref that is there", refs={"refs/heads/topic": head(world)})
    return world


@story
def import_again(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    there = source(world.folder / "source", {"f": "f\n"})
    world.watch()
    words = ["git", "import", str(there), "--ref", "trunk"]
    world.killed(*words, at="fdatasync:when=1")
    done = world.run(*words)
    assert not done["ref_moved"]
    world.promises("import of what is there", refs={"refs/heads/trunk": stock(there, "rev-parse", "trunk")})
    return world


@story
def export_again(folder: Path, skip: str) -> World:
    """What goes out is durable here before."""
    world, _, _ = unsynced_land(folder, skip)
    done = world.run("git", "export", str(world.top / "out.git"), "--ref", "main")
    world.promises("export", refs={MAIN: done["head_sha"]})
    return world


@story
def backup_again(folder: Path, skip: str) -> World:
    world, _, _ = unsynced_land(folder, skip)
    op = world.run("backup", str(world.top / "copy"))["op"]
    world.promises("backup", op=op)
    return world


@story
def repair_again(folder: Path, skip: str) -> World:
    """What stock git was shown is durable."""
    world, _, old = unsynced_land(folder, skip)
    world.run("repair")
    shown = (world.store / "repo.git" / MAIN).read_text().strip()
    assert shown != old
    world.promises("repair", refs={MAIN: shown})
    return world


@story
def key_reused(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    entry = {"path": "x", "op": "put", "content": {"inline": "x\n"}}
    words = ["commit", "-m", "x", "--changes", world.changes(entry), "--key", key()]
    world.killed(*words, at="fdatasync:when=1")
    error = world.run(*words[:2], "y", *words[3:], ok=False)
    assert error["code"] == "E_KEY_REUSED", error
    world.promises("key that was used", op=error["details"]["op"])
    return world
