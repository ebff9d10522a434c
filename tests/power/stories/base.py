"""What stories share: a world with a first commit, and what is done in many of them."""

from __future__ import annotations

import random
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from ..world import GIT_ENV, World, fsck, stock

MAIN = "refs/heads/main"
LARGE = "0123456789abcdef" * 100_000
DENSE = random.Random(1).randbytes(1_200_000)
"""Is large even when compressed."""
Story = Callable[[Path, str], World]
STORIES: dict[str, Story] = {}


def story(function: Story) -> Story:
    """Notes a story under its function's name."""
    STORIES[function.__name__] = function
    return function


def started(folder: Path, skip: str, *, init: bool = True) -> World:
    """Gives a world with one commit on main, all of it durable."""
    world = World(folder, skip, init=init, like=_first(folder.parent / "first") if init else None)
    if init:
        world.promises("start", refs={MAIN: stock(world.top, f"--git-dir={world.store}/repo.git", "rev-parse", MAIN)})
    return world


def _first(folder: Path) -> Path:
    """Gives a store with one commit on main, made once a folder."""
    if not folder.exists():
        world = World(folder)
        world.commit("a.txt", "a\n", "--advance", "main", run=world.plain)
    return folder / "disk" / "store"


def head(world: World) -> str:
    """Gives where main was last promised to be."""
    found = world.promise.refs[MAIN]
    assert found is not None
    return found


def source(there: Path, files: dict[str, str]) -> Path:
    """Makes a git repository with a branch `trunk`; one that no command writes stands off the disk that loses power."""
    there.mkdir()
    stock(there, "init", "-q", "-b", "trunk")
    for path, text in files.items():
        (there / path).write_text(text)
    stock(there, "add", ".")
    stock(there, "commit", "-q", "-m", "one")
    return there


def key() -> str:
    """Gives an idempotency key."""
    return str(uuid.UUID(int=9))


def unsynced_land(folder: Path, skip: str, *more: str) -> tuple[World, str, str]:
    """Gives a world in which a land was killed before its sync, the change, and where main was before."""
    world = started(folder, skip)
    old = head(world)
    change = world.commit("a.txt", "x\n", "--parent", "main", run=world.plain)
    world.killed("land", change, *more, at="fdatasync:when=1")
    world.promise = world.promise._replace(refs={})  # main may be here or there
    return world, change, old


def dense(world: World) -> str:
    """Lets another program put a large object into the repository, unsynced once the disk is watched."""
    text = world.folder / "dense"
    text.write_bytes(DENSE)
    words = ("hash-object", "-w", "--stdin")
    if world.disk is not None:
        return world.git(*words, stdin=text)
    with text.open("rb") as file:
        return subprocess.run(["git", f"--git-dir={world.store}/repo.git", *words], stdin=file, env=GIT_ENV,
                              capture_output=True, check=True, text=True).stdout.strip()  # fmt: skip


def exported(repo: Path, oid: str, ref: str) -> Callable[[World], list[str]]:
    """Gives a check that a repository has a commit at a ref, and is sound."""

    def check(world: World) -> list[str]:
        found = subprocess.run(["git", f"--git-dir={repo}", "rev-parse", "--verify", ref], capture_output=True)
        wrong = [] if found.stdout.decode().strip() == oid else [f"{repo.name} lacks {oid}: {found.stderr.decode()}"]
        return wrong + fsck(repo)

    return check


def content(path: Path) -> bytes:
    """Gives a file's bytes, none when it is not there."""
    return path.read_bytes() if path.exists() else b""
