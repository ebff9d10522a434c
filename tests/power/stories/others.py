"""Other repositories: exports, what stock git did in ours, and remotes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from ..world import GIT_ENV, World, stock
from .base import LARGE, MAIN, exported, head, started, story


@story
def exports(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    world.watch()
    out = world.top / "some" / "where" / "out.git"
    world.run("git", "export", str(out), "--ref", "main")
    world.promises("export", checks=[exported(out, head(world), MAIN)])
    return world


@story
def exports_into(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    other = world.top / "other.git"
    subprocess.run(["git", "init", "-q", "--bare", str(other)], check=True, capture_output=True)
    world.watch()
    world.run("git", "export", str(other), "--ref", "main", "--branch", "team/main")
    world.promises("export", checks=[exported(other, head(world), "refs/heads/team/main")])
    return world


@story
def foreign(folder: Path, skip: str) -> World:
    """Somebody moved a ref in the repository to a commit that does not go on from ours; it is kept apart."""
    world = started(folder, skip)
    repo = f"--git-dir={world.store}/repo.git"
    tree = stock(world.top, repo, "rev-parse", "main^{tree}")
    alien = stock(world.top, repo, "commit-tree", "-m", "alien", tree)
    for name in ("refs/heads/theirs/loose", "refs/heads/packed"):
        stock(world.top, repo, "-c", "core.hooksPath=/dev/null", "update-ref", name, alien)
    stock(world.top, repo, "-c", "core.hooksPath=/dev/null", "pack-refs", "--all", "--no-prune")
    (world.store / "repo.git" / "refs/heads/packed").unlink()
    stock(world.top, repo, "-c", "core.hooksPath=/dev/null", "update-ref", MAIN, alien)
    world.watch()
    one = world.commit("d/one.txt", "1\n", "--parent", head(world))
    landed = world.run("land", one)["landed"]

    def kept(count: int) -> Callable[[World], list[str]]:
        def check(w: World) -> list[str]:
            out = stock(w.top, f"--git-dir={w.store}/repo.git", "for-each-ref", "--format=%(objectname)",
                         "refs/ropewalk/foreign")  # fmt: skip
            return [] if out.split().count(alien) >= count else [f"what another tool made is kept {out.split()}"]

        return check

    world.promises("land over a foreign value", refs={MAIN: landed}, checks=[kept(1)], store=False)
    world.run("repair")
    world.promises("repair", checks=[kept(3)], store=True)
    return world


@story
def adopts(folder: Path, skip: str) -> World:
    """Somebody committed with stock git into the repository; it is adopted by the next land."""
    world = started(folder, skip)
    world.watch()
    text = world.folder / "large"
    text.write_text(LARGE)
    blob = world.git("hash-object", "-w", "--stdin", stdin=text)
    listing = world.folder / "tree"
    listing.write_text(f"100644 blob {blob}\tbig.bin\n")
    tree = world.git("mktree", stdin=listing)
    commit = world.git("-c", "user.name=x", "-c", "user.email=x@example.com", "commit-tree", "-m", "stock", "-p",
                       head(world), tree)  # fmt: skip
    world.git("update-ref", MAIN, commit)
    one = world.commit("d/one.txt", "1\n", "--parent", head(world))
    world.promises("land", refs={MAIN: world.run("land", one)["landed"]}, objects=[commit, blob, tree])
    return world


@story
def adopts_a_pack(folder: Path, skip: str) -> World:
    """A commit that another program brought in a pack, unsynced, is landed."""
    world = started(folder, skip)
    repo = f"--git-dir={world.store}/repo.git"
    away = world.folder / "away"
    stock(world.folder, "clone", "-q", "--bare", str(world.store / "repo.git"), str(away))
    tree = stock(away, "mktree")
    commit = stock(away, "commit-tree", "-m", "theirs", "-p", "main", tree)
    packed = world.folder / "packed"
    with packed.open("wb") as file:
        subprocess.run(["git", "pack-objects", "-q", "--stdout"], cwd=away, env=GIT_ENV, check=True, stdout=file,
                       input=f"{commit}\n{tree}\n".encode())  # fmt: skip
    world.watch()
    world.git("index-pack", "--stdin", stdin=packed)
    assert stock(world.top, repo, "cat-file", "-t", commit) == "commit"
    world.promises("land", refs={MAIN: world.run("land", commit, "--allow-mass-delete")["landed"]}, objects=[commit])
    return world


def _remote(world: World, text: str) -> Path:
    """Makes a repository that goes on from the store's main with a change of `a.txt`, and names it `origin`."""
    there = world.folder / "origin"
    stock(world.folder, "clone", "-q", str(world.store / "repo.git"), str(there))
    (there / "a.txt").write_text(text)
    stock(there, "commit", "-q", "-a", "-m", "theirs")
    world.plain("remote", "add", "origin", str(there))
    return there


@story
def fetch_again(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    there = _remote(world, "theirs\n")
    world.watch()
    world.killed("fetch", "origin", at="fdatasync:when=1")
    done = world.run("fetch", "origin")
    assert not done["moved"], done
    world.promises("fetch of what is there", refs={"refs/remotes/origin/main": stock(there, "rev-parse", "main")})
    return world


@story
def sync_conflict(folder: Path, skip: str) -> World:
    """A sync is in conflict with what another landed meanwhile, who was killed before the sync."""
    world = started(folder, skip)
    old = head(world)
    _remote(world, "theirs\n")
    change = world.commit("a.txt", "ours\n", "--parent", "main", run=world.plain)
    world.promise = world.promise._replace(refs={})
    error = world.run("sync", "origin", ok=False,
                      meet=("ropewalk.remote.sync:_take_over", world.dying("land", change)))  # fmt: skip
    assert error["code"] == "E_CONFLICT", error
    landed = world.plain("resolve", "main")["id"]
    assert landed != old
    world.promises("conflict", refs={MAIN: landed})
    return world
