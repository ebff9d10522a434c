"""What is done on the model disk: each story makes a world, runs commands in it, and says what they promised."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from ropewalk.core.errors import WorkspaceDamagedError, WorkspaceGoneError
from ropewalk.store import layout
from ropewalk.store.store import Store

from .world import AGENT, GIT_ENV, Promise, World, fsck, stock

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


# making a store


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


# writes


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


# what is answered about another's work, which it did not live to sync (A15)


def _key() -> str:
    return str(uuid.UUID(int=9))


@story
def commit_again(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    entry = {"path": "x", "op": "put", "content": {"inline": "x\n"}}
    words = ["commit", "-m", "x", "--changes", world.changes(entry), "--key", _key()]
    world.killed(*words, at="fdatasync:when=1")
    done = world.run(*words)
    assert done["replayed"]
    world.promises("replayed commit", objects=[done["changeset"]])
    return world


def _unsynced_land(folder: Path, skip: str, *more: str) -> tuple[World, str, str]:
    """Gives a world in which a land was killed before its sync, the change, and where main was before."""
    world = started(folder, skip)
    old = head(world)
    change = world.commit("a.txt", "x\n", "--parent", "main", run=world.plain)
    world.killed("land", change, *more, at="fdatasync:when=1")
    world.promise = world.promise._replace(refs={})  # main may be here or there
    return world, change, old


@story
def land_again(folder: Path, skip: str) -> World:
    world, change, _ = _unsynced_land(folder, skip, "--key", _key())
    done = world.run("land", change, "--key", _key())
    assert done["status"] == "replayed"
    world.promises("replayed land", refs={MAIN: done["landed"]})
    return world


@story
def land_lost(folder: Path, skip: str) -> World:
    world, change, old = _unsynced_land(folder, skip)
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
    world, change, old = _unsynced_land(folder, skip, "--key", _key())
    done = world.run("land", change, "--key", _key(), "--resolve", _answer(world, old))
    world.promises("replayed land", refs={MAIN: done["landed"]})
    return world


@story
def land_answered_lost(folder: Path, skip: str) -> World:
    world, change, old = _unsynced_land(folder, skip)
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
    world, _, old = _unsynced_land(folder, skip)
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
    world, _, _ = _unsynced_land(folder, skip)
    done = world.run("git", "export", str(world.top / "out.git"), "--ref", "main")
    world.promises("export", refs={MAIN: done["head_sha"]})
    return world


@story
def backup_again(folder: Path, skip: str) -> World:
    world, _, _ = _unsynced_land(folder, skip)
    op = world.run("backup", str(world.top / "copy"))["op"]
    world.promises("backup", op=op)
    return world


@story
def repair_again(folder: Path, skip: str) -> World:
    """What stock git was shown is durable."""
    world, _, old = _unsynced_land(folder, skip)
    world.run("repair")
    shown = (world.store / "repo.git" / MAIN).read_text().strip()
    assert shown != old
    world.promises("repair", refs={MAIN: shown})
    return world


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
    world, change, old = _unsynced_land(folder, skip)
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


# packs


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
    blob = _dense(world)
    listing = world.changes({"path": "big.bin", "op": "put", "content": {"blob": blob}})
    change = world.plain("commit", "-m", "big", "--changes", listing, "--advance", "main")["changeset"]
    world.promises("start", refs={MAIN: change})
    world.watch()
    _pack(world, blob)
    world.run("gc")
    world.promises("gc", objects=[blob])
    return world


def _dense(world: World) -> str:
    """Lets another program put a large object into the repository, unsynced once the disk is watched."""
    text = world.folder / "dense"
    text.write_bytes(DENSE)
    words = ("hash-object", "-w", "--stdin")
    if world.disk is not None:
        return world.git(*words, stdin=text)
    with text.open("rb") as file:
        return subprocess.run(["git", f"--git-dir={world.store}/repo.git", *words], stdin=file, env=GIT_ENV,
                              capture_output=True, check=True, text=True).stdout.strip()  # fmt: skip


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


# copies


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


# other repositories


@story
def exports(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    world.watch()
    out = world.top / "some" / "where" / "out.git"
    world.run("git", "export", str(out), "--ref", "main")
    world.promises("export", checks=[_exported(out, head(world), MAIN)])
    other = world.top / "other.git"
    world.trace(["git", "init", "-q", "--bare", str(other)])
    Path(other, "HEAD").exists()
    return world


@story
def exports_into(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    other = world.top / "other.git"
    subprocess.run(["git", "init", "-q", "--bare", str(other)], check=True, capture_output=True)
    world.watch()
    world.run("git", "export", str(other), "--ref", "main", "--branch", "team/main")
    world.promises("export", checks=[_exported(other, head(world), "refs/heads/team/main")])
    return world


def _exported(repo: Path, oid: str, ref: str) -> Callable[[World], list[str]]:
    def check(world: World) -> list[str]:
        found = subprocess.run(["git", f"--git-dir={repo}", "rev-parse", "--verify", ref], capture_output=True)
        wrong = [] if found.stdout.decode().strip() == oid else [f"{repo.name} lacks {oid}: {found.stderr.decode()}"]
        return wrong + fsck(repo)

    return check


@story
def foreign(folder: Path, skip: str) -> World:
    """Somebody moved a ref in the repository to a commit that does not go on from ours; it is kept apart."""
    world = started(folder, skip)
    repo = f"--git-dir={world.store}/repo.git"
    tree = stock(world.top, repo, "rev-parse", "main^{tree}")
    alien = stock(world.top, repo, "commit-tree", "-m", "alien", tree)
    for name in ("refs/heads/theirs/loose", "refs/heads/packed"):
        stock(world.top, repo, "-c", "core.hooksPath=/dev/null", "update-ref", name, alien)
        if name.endswith("loose"):
            continue
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


# remotes


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


# damage and repair


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
    world.promises("repair", checks=[lambda w: [f"{p.name} is lost" for p in whole if _bytes(p) != whole[p]]])
    return world


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


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


@story
def key_reused(folder: Path, skip: str) -> World:
    world = started(folder, skip)
    entry = {"path": "x", "op": "put", "content": {"inline": "x\n"}}
    words = ["commit", "-m", "x", "--changes", world.changes(entry), "--key", _key()]
    world.killed(*words, at="fdatasync:when=1")
    error = world.run(*words[:2], "y", *words[3:], ok=False)
    assert error["code"] == "E_KEY_REUSED", error
    world.promises("key that was used", op=error["details"]["op"])
    return world


@story
def large_named(folder: Path, skip: str) -> World:
    """A large object that another program left in the repository, unsynced, is named in a change list."""
    world = started(folder, skip)
    world.watch()
    blob = _dense(world)
    listing = world.changes({"path": "big.bin", "op": "put", "content": {"blob": blob}})
    world.promises("commit", objects=[world.run("commit", "-m", "big", "--changes", listing)["changeset"], blob])
    return world


# workspaces


@story
def workspace(folder: Path, skip: str) -> World:
    """What the store knows of a workspace is there, and what was landed from it; what nobody wrote does not land."""
    world = started(folder, skip)
    pages = "".join(f"{n}\n" for n in range(3000))
    world.promises("start", refs={MAIN: world.commit("deep/er/pages.txt", pages, "--advance", "main",
                                                     run=world.plain)})  # fmt: skip
    world.watch()
    world.run("ws", "create", "w", "--dir", str(world.top / "w"))

    def known(w: World) -> list[str]:
        from ropewalk.workspace import state

        with Store(str(w.store)) as store:
            found = state.find(store, "w")
            return [] if found is not None and found.state == "ready" else [f"the workspace is {found}"]

    world.promises("create", checks=[known, _lands_nothing])
    (world.top / "w" / "new.txt").write_text("new\n")
    world.run("ws", "land", "w", "-m", "new")
    world.promises("land", refs={MAIN: (world.store / "repo.git" / MAIN).read_text().strip()})
    return world


def _lands_nothing(world: World) -> list[str]:
    """Lands a workspace that nobody edited; gives what is wrong with the outcome."""
    from ropewalk.workspace import landing, state

    with Store(str(world.store)) as store:
        before = store.ref(MAIN)
        found = state.need(store, "w")
        try:
            status = landing.land_workspace(store, found, landing.Wish(AGENT, "nothing")).landed.status
        except (WorkspaceDamagedError, WorkspaceGoneError):
            status = "refused"
        wrong = [] if store.ref(MAIN) == before else [f"a land of nothing {status} what nobody wrote"]
    return wrong + world.opened(world.store, Promise({}, (), 0, (), True))


@story
def workspace_again(folder: Path, skip: str) -> World:
    """A land of a workspace was killed before its sync, and so was the next try."""
    world = started(folder, skip)
    world.plain("ws", "create", "w", "--dir", str(world.top / "w"))
    (world.top / "w" / "new.txt").write_text("new\n")
    world.watch()
    words = ["ws", "land", "w", "-m", "new", "--key", _key()]
    world.killed(*words, at="fdatasync:when=3")  # two are the capture's
    world.promise = world.promise._replace(refs={})
    world.killed(*words, at="fdatasync:when=1")  # it has seen the land, and moved the workspace along
    done = world.run(*words)
    assert done["land"]["status"] == "replayed", done
    world.promises("replayed land", refs={MAIN: done["land"]["landed"]})
    return world


@story
def shared_tree(folder: Path, skip: str) -> World:
    """A tree that many workspaces stand on is whole once it has its name."""
    world = started(folder, skip)
    text = "".join(f"{n}\n" for n in range(3000))
    world.promises("start", refs={MAIN: world.commit("deep/er/pages.txt", text, "--advance", "main",
                                                     run=world.plain)})  # fmt: skip
    world.watch()
    argv = [sys.executable, "-m", "tests.power.shared", skip or "--tell", str(world.store), str(world.top / "shared")]
    place = Path(world.trace(argv)[0].decode().strip())
    files = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert Path("tree/deep/er/pages.txt") in files

    def is_whole(w: World) -> list[str]:
        torn = [str(name) for name, data in files.items() if _bytes(place / name) != data]
        return [f"the shared tree lacks {name}" for name in torn] if place.exists() else []

    world.promises("shared tree", checks=[is_whole])
    return world


# runs


@story
def run(folder: Path, skip: str) -> World:
    """A run in a repository: its report is there, and its branch."""
    world = World(folder, skip, init=False)
    there = source(world.top / "project", {"f": "f\n"})
    world.store = there / ".git" / "ropewalk"
    world.plain("init", str(there))
    world.promise = world.promise._replace(store=True)
    script = '```script\n[{"put": "one.txt", "text": "1"}]\n```\n'
    (world.folder / "tasks.json").write_text(json.dumps({"tasks": [{"id": "one", "prompt": script}]}))
    world.watch()
    done = world.run("run", "--tasks", str(world.folder / "tasks.json"), "--harness", "scripted")
    name = done["id"]

    def reported(w: World) -> list[str]:
        from ropewalk.run import report

        found = report.load(layout.Layout(str(w.store)), name)
        return [] if found.state == "done" and found.landed == 1 else [f"the report says {found.state}"]

    branch = f"refs/heads/{done['branch']}"
    world.promises("run", refs={f"refs/heads/run/{name}": done["head"]},
                   checks=[reported, _exported(there / ".git", done["head"], branch)])  # fmt: skip
    return world
