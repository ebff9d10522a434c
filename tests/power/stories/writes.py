"""Making a store, and writing to it."""

from __future__ import annotations

import sys
from pathlib import Path

from ..world import World
from .base import LARGE, MAIN, dense, head, started, story


@story
def init(folder: Path, skip: str) -> World:
    world = started(folder, skip, init=False)
    world.store = world.top / "deep" / "er" / "store"
    world.run("init", str(world.top / "work" / "folder"))
    world.promises(
        "init", store=True,
        checks=[lambda w: [] if (w.top / "work" / "folder").is_dir() else ["the folder named to init is lost"]],
    )  # fmt: skip
    head = world.commit("a.txt", "a\n", "--advance", "main")
    world.promises("first commit", refs={MAIN: head})
    return world


@story
def writes(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    one = world.commit("d/one.txt", "1\n")
    world.promises("commit", objects=[one])
    two = world.commit("d/two.txt", "2\n", "--parent", "main")
    world.promises("land", refs={MAIN: world.run("land", one)["landed"]}, objects=[two])
    world.promises("second land", refs={MAIN: world.run("land", two)["landed"]})
    world.run("ref", "set", "deep/er/ref", "main", "--create")
    world.promises("ref set", refs={"refs/heads/deep/er/ref": head(world)})
    world.run("ref", "delete", "deep/er/ref", "--expect", head(world))
    world.run("ref", "set", "deep", "main", "--create")
    world.promises(
        "ref in the place of a folder", refs={"refs/heads/deep/er/ref": None, "refs/heads/deep": head(world)}
    )
    op = world.run("op", "log", "-n", "1")["ops"][0]["op"]
    world.run("op", "undo", str(op))
    world.promises("undo", refs={"refs/heads/deep": None}, op=op + 1)
    return world


@story
def log_removed(folder: Path, skip: str) -> World:
    """Another tool, the last to close the database, takes the log away (A23)."""
    world = started(folder, skip)
    script = f"import sqlite3; c = sqlite3.connect({str(world.store / 'store.db')!r}); c.execute('SELECT 1 FROM refs')"
    world.trace([sys.executable, "-c", f"{script}; c.close()"])
    assert not (world.store / "store.db-wal").exists()
    world.promises("log removed")
    one = world.commit("d/one.txt", "1\n")
    world.promises("commit", objects=[one])
    return world


@story
def large(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    big = world.commit("big.bin", LARGE)
    world.promises("large commit", objects=[big])
    world.promises("large land", refs={MAIN: world.run("land", big)["landed"]})
    return world


@story
def large_there(folder: Path, skip: str) -> World:
    """A large object that another program left in the repository, unsynced."""
    world = started(folder, skip)
    text = world.folder / "large"
    text.write_text(LARGE)
    world.git("hash-object", "-w", "--stdin", stdin=text)
    big = world.commit("big.bin", LARGE)
    world.promises("large commit", objects=[big])
    return world


@story
def large_named(folder: Path, skip: str) -> World:
    """A large object that another program left in the repository, unsynced, is named in a change list."""
    world = started(folder, skip)
    world.watch()
    blob = dense(world)
    listing = world.changes({"path": "big.bin", "op": "put", "content": {"blob": blob}})
    world.promises("commit", objects=[world.run("commit", "-m", "big", "--changes", listing)["changeset"], blob])
    return world
