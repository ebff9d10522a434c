"""Packs: imports, collections, and copies of a store."""

from __future__ import annotations

from pathlib import Path

from ..world import World, stock
from .base import LARGE, MAIN, dense, source, started, story


@story
def imports(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    there = source(world.folder / "source", {"f": "f\n", "big": LARGE})
    world.watch()
    world.run("git", "import", str(there), "--ref", "trunk")
    world.promises("small import", refs={"refs/heads/trunk": stock(there, "rev-parse", "trunk")})
    many = source(world.folder / "many", {f"f{n}": f"{n}\n" for n in range(600)})
    world.run("git", "import", str(many), "--ref", "trunk", "--into", "many")
    world.promises("large import", refs={"refs/heads/many": stock(many, "rev-parse", "trunk")})
    return world


def _pack(world: World, *ids: str) -> None:
    """Lets another program put objects into a pack, which it does not sync."""
    listing = world.folder / "listing"
    listing.write_text("".join(f"{oid}\n" for oid in ids))
    world.git("pack-objects", "-q", f"{world.store}/repo.git/objects/pack/pack", stdin=listing)


def _all(world: World) -> list[str]:
    """Gives the ids of all objects that stock git sees."""
    out = stock(world.top, f"--git-dir={world.store}/repo.git", "cat-file", "--batch-all-objects",
                "--batch-check=%(objectname)")  # fmt: skip
    return out.split()


@story
def gc_of_large(folder: Path, skip: str) -> World:
    """A large object, loose and synced, that another program packed too."""
    world = started(folder, skip)
    world.plain("gc")
    blob = dense(world)
    listing = world.changes({"path": "big.bin", "op": "put", "content": {"blob": blob}})
    change = world.plain("commit", "-m", "big", "--changes", listing, "--advance", "main")["changeset"]
    world.promises("start", refs={MAIN: change})
    world.watch()
    _pack(world, blob)
    world.run("gc")
    world.promises("gc", objects=[blob])
    return world


@story
def gc_beside_another(folder: Path, skip: str) -> World:
    """Another program put all that is packed, and more, into a pack that it did not sync."""
    world = started(folder, skip)
    world.plain("gc")
    one = world.commit("d/one.txt", "1\n", "--parent", "main", run=world.plain)
    world.promises("start", refs={MAIN: world.plain("land", one)["landed"]})
    world.watch()
    _pack(world, *_all(world))
    world.run("gc")
    world.promises("gc")
    return world


@story
def gc(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    world.run("gc")
    world.promises("gc")
    one = world.commit("d/one.txt", "1\n", "--parent", "main")
    world.promises("land after gc", refs={MAIN: world.run("land", one)["landed"]})
    world.run("gc")
    world.promises("second gc")
    return world


@story
def backup(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    big = world.commit("big.bin", LARGE, "--parent", "main", run=world.plain)
    landed = world.plain("land", big)["landed"]
    world.promises("start", refs={MAIN: landed})
    world.watch()
    there = world.top / "safe" / "place" / "copy"
    world.run("backup", str(there))
    live = world.store

    def is_copied(w: World) -> list[str]:
        return w.opened(there)

    world.promises("backup", checks=[is_copied])
    world.store = world.top / "new" / "place" / "store"
    world.run("restore", str(there))
    restored = world.store
    world.store = live
    world.promises("restore", checks=[lambda w: w.opened(restored)])
    return world
