"""Damage and failed syncs, and what repairs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import apsw

from ..world import GIT_ENV, World, stock
from .base import LARGE, MAIN, content, started, story


@story
def failed_sync(folder: Path, skip: str) -> World:
    """A sync of the log fails: nothing is written until a repair, and then nothing is missing."""
    world = started(folder, skip)
    world.commit("w", "w\n", run=world.plain)  # SQLite itself syncs the first write of a log, and makes it again
    entry = {"path": "x", "op": "put", "content": {"inline": "x\n"}}
    words = ["commit", "-m", "x", "--changes", world.changes(entry), "--advance", "topic", "--parent", "main"]
    error = world.run(*words, inject="fdatasync:error=EIO:when=1", ok=False)
    assert error["code"] == "E_IO", error
    world.promises("failed sync")
    assert world.run(*words[:-4], ok=False)["code"] == "E_IO"
    world.run("repair")
    two = world.commit("y", "y\n")
    world.promises("write after a repair", objects=[two])
    return world


@story
def failed_pack(folder: Path, skip: str) -> World:
    """A sync of a pack fails: the next gc writes it anew."""
    world = started(folder, skip)
    error = world.run("gc", inject="fsync:error=EIO:when=1", ok=False)
    assert error["code"] == "E_IO", error
    world.promises("failed gc")
    world.run("gc")
    world.promises("gc")
    return world


@story
def repairs_files(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    world.plain("gc")
    one = world.commit("d/one.txt", "1\n", "--parent", "main", run=world.plain)
    world.promises("start", refs={MAIN: world.plain("land", one)["landed"]})
    repo = world.store / "repo.git"
    (repo / "HEAD").write_text("")
    (repo / "config").write_text("[core\n")
    (repo / "hooks" / "reference-transaction").unlink()
    (world.store / "FORMAT").write_bytes(b"")
    for path in (repo / "objects" / "pack").glob("pack-*.idx"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:500])
    world.watch()
    done = world.run("repair")["done"]
    names = [name for line in done if " kept as " in line for name in line.split(" kept as ")[1].split(", ")]
    assert names, done
    world.promises("repair", checks=[lambda w: [f"{n} is gone" for n in names if not (w.store / n).exists()]])
    return world


@story
def repairs_database(folder: Path, skip: str) -> World:
    """Refs that are not where the log left them, damaged rows of the journal, and a damaged pack."""
    world = started(folder, skip)
    world.plain("gc")
    repo = world.store / "repo.git"
    tree = stock(world.top, f"--git-dir={repo}", "rev-parse", "main^{tree}")
    listing = world.folder / "listing"
    listing.write_text(tree + "\n")
    with listing.open() as file:
        packed = subprocess.run(["git", f"--git-dir={repo}", "pack-objects", "-q", f"{repo}/objects/pack/pack"],
                                stdin=file, env=GIT_ENV, capture_output=True, check=True)  # fmt: skip
    bad = repo / "objects" / "pack" / f"pack-{packed.stdout.decode().strip()}.pack"
    bad.chmod(0o644)
    data = bytearray(bad.read_bytes())
    data[-22] ^= 0xFF
    bad.write_bytes(data)
    two = world.commit("d/two.txt", "2\n", run=world.plain)
    world.plain("git", "export", str(world.top / "out.git"), "--ref", "main")
    connection = apsw.Connection(str(world.store / "store.db"))
    connection.execute("UPDATE object_journal SET packed = x'00'")
    connection.execute("UPDATE refs SET target = ? WHERE name = ?", (two, MAIN))
    connection.close()
    world.watch()
    world.run("repair")
    world.promises("repair", objects=[two])
    return world


@story
def repairs_refs(folder: Path, skip: str) -> World:
    """What a repair writes into the database without an operation."""
    world = started(folder, skip)
    two = world.commit("d/two.txt", "2\n", run=world.plain)
    connection = apsw.Connection(str(world.store / "store.db"))
    connection.execute("UPDATE refs SET target = ? WHERE name = ?", (two, MAIN))
    connection.close()
    world.watch()
    world.run("repair")
    world.promises("repair")
    return world


@story
def repairs_an_index(folder: Path, skip: str) -> World:
    """A pack that lost its index, and what was made by hand for a workspace."""
    world = started(folder, skip)
    world.plain("ws", "create", "w", "--dir", str(world.top / "w"))
    world.plain("gc")
    for path in (world.store / "repo.git" / "objects" / "pack").glob("pack-*.idx"):
        path.unlink()
    config = world.store / "workspaces" / "w" / "git" / "config"
    attributes = config.parent / "info" / "attributes"
    whole = {path: path.read_bytes() for path in (config, attributes)}
    config.write_bytes(b"")
    shutil.rmtree(attributes.parent)
    world.watch()
    world.run("repair")
    world.promises("repair", checks=[lambda w: [f"{p.name} is lost" for p in whole if content(p) != whole[p]]])
    return world


@story
def repairs_from_a_backup(folder: Path, skip: str) -> World:
    """A large object comes back from a backup."""
    world = started(folder, skip)
    big = world.commit("big.bin", LARGE, "--parent", "main", run=world.plain)
    world.promises("start", refs={MAIN: world.plain("land", big)["landed"]})
    world.plain("backup", str(world.folder / "backup"))
    blob = stock(world.top, f"--git-dir={world.store}/repo.git", "rev-parse", "main:big.bin")
    (world.store / "repo.git" / "objects" / blob[:2] / blob[2:]).unlink()
    world.watch()
    world.run("repair", "--from", str(world.folder / "backup"))
    world.promises("repair", objects=[blob])
    return world


@story
def rebuilds(folder: Path, skip: str) -> World:
    """A database of garbage is made anew, and refs come from the repository."""
    world = started(folder, skip)
    world.plain("gc")
    (world.store / "store.db").write_bytes(b"garbage" * 1000)
    (world.store / "store.db-wal").write_bytes(b"")
    world.watch()
    world.run("repair", "--rebuild")
    world.promises("rebuild")
    return world


@story
def rebuilds_a_whole_one(folder: Path, skip: str) -> World:
    """A database that can be read to its end is made anew; nothing is left to write after it."""
    world = started(folder, skip)
    world.watch()
    world.run("repair", "--rebuild")
    world.promises("rebuild")
    return world


@story
def gc_finds_a_pack(folder: Path, skip: str) -> World:
    """A pack whose index was lost gets one again."""
    world = started(folder, skip)
    world.plain("gc")
    for path in (world.store / "repo.git" / "objects" / "pack").glob("pack-*.idx"):
        path.unlink()
    world.watch()
    world.run("gc")
    world.promises("gc")
    return world
