"""Trees of another user: what our own commands do with them; checks in a cage; the tripwire."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from tests.lane import cagekit, escapes
from tests.lane.cagekit import IS_ROOT, caged, needed
from tests.workspace.conftest import Bench

from ropewalk.core.errors import UnsupportedError
from ropewalk.core.policy import Policy, WorkspacePolicy
from ropewalk.core.process import git_env
from ropewalk.lane.cage import give, tripwire
from ropewalk.lane.cage.checks import CagedChecks, CheckNetwork
from ropewalk.lane.cage.room import UID, Level
from ropewalk.lane.cage.tripwire import Snapshot
from ropewalk.run.work import evidence
from ropewalk.store.store import Store
from ropewalk.workspace import capture, check, drive, snapshot
from ropewalk.workspace.verdict import Verdict

as_root = pytest.mark.skipif(not IS_ROOT, reason="another user's trees need root")


@pytest.fixture
def bench(store: Store, tmp_path: Path, clean: Mapping[str, str]) -> Bench:
    return Bench(store, tmp_path, clean)


# workspaces of the lane's user


@as_root
@pytest.mark.parametrize("overlay", ["never", "always"])
def test_G8_G21_a_given_workspace_is_captured_snapshotted_landed_and_removed(bench: Bench, overlay: str) -> None:
    needed("full")
    try:
        tree = bench.create(overlay=overlay, shared=str(bench.data / "shared"))
    except UnsupportedError:
        pytest.skip("no overlays here")
    given = give.give(str(tree), UID)
    assert given.entries > 10 and given.copies == 0
    where = cagekit.room(bench.folder, UID)._replace(
        workspace=str(tree), objects=os.path.join(bench.store.layout.repo, "objects")
    )
    give.open_objects(where.objects)
    script = (
        "set -e; git status --short; echo new > new; echo more >> README.md; mkfifo fifo; ln -s /etc/passwd link;"
        "mkdir -m 0 closed; mkdir -m 700 own; echo x > own/f; chmod 600 own/f; git add new; git commit -qm mine"
    )
    done = caged("full", where, ["/bin/sh", "-c", script])
    assert done.returncode == 0, done
    assert bench.changes() == {"README.md": "modified", "new": "added", "own/f": "added", "link": "added"}
    assert (tree / "new").stat().st_uid == UID
    assert snapshot.take_held(bench.store, "one", "person/me", "in a test") is not None
    bench.land()
    assert bench.tree()["new"][1] == b"new\n" and bench.tree()["link"][1] == b"/etc/passwd"
    bench.publish({"src/b.py": "other\n"})
    bench.rebase()
    give.give(str(tree), UID)  # what our commands wrote is the lane's again
    done = caged("full", where, ["/bin/sh", "-c", "git status --short && echo again >> src/b.py && rm -rf closed"])
    assert done.returncode == 0, done
    assert bench.changes() == {"src/b.py": "modified"}
    give.take_back(str(tree), UID)
    assert (tree / "new").stat().st_uid == 0
    bench.delete(force=True)
    assert not tree.exists()


def test_devflock_C5_what_an_agent_plants_is_not_run_by_our_commands(bench: Bench, tmp_path: Path) -> None:
    """Hooks, monitors, filters, aliases and included files of the agent's own repository (G21)."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_text("canary\n")
    tree = bench.create()
    before = os.getcwd()
    os.chdir(tree)
    try:
        escapes.plant(str(outside))
        (tree / "new").write_text("new\n")
    finally:
        os.chdir(before)
    assert bench.changes()["new"] == "added"
    assert snapshot.take_held(bench.store, "one", "person/me", "in a test") is not None
    bench.land()
    bench.publish({"src/b.py": "other\n"})
    bench.rebase()
    bench.delete(force=True)
    assert (outside / "canary").read_text() == "canary\n"


def test_G21_a_file_without_bounds_is_left_out_with_a_word(bench: Bench) -> None:
    """A file of two terabytes costs an agent one call; whoever captures the tree must not read it."""
    tree = bench.create()
    (tree / "huge").touch()
    for name in ("huge", "README.md"):
        os.truncate(tree / name, 2 << 40)
    (tree / "new").write_text("new\n")
    found = capture.capture(bench.store, bench.ws())
    assert [change.path for change in found.changes] == [b"new"]
    assert [words for words in found.warnings if "huge" in words] and [w for w in found.warnings if "README" in w]


@as_root
def test_G7_a_shared_folder_of_the_lanes_user_has_trees_of_that_user(bench: Bench) -> None:
    """An overlay would copy each file when its owner changes, which takes a millisecond a file and more."""
    shared = bench.data / "shared"
    shared.mkdir(parents=True)
    os.chown(shared, UID, UID)
    try:
        tree = bench.create(overlay="always", shared=str(shared))
    except UnsupportedError:
        pytest.skip("no overlays here")
    assert {path.lstat().st_uid for path in (tree / "src").rglob("*")} == {UID}
    give.give(str(tree), UID)
    assert {path.lstat().st_uid for path in tree.rglob("*")} == {UID}
    over = bench.ws().note.overlay
    assert over is not None
    copied = [path for path in shared.rglob("*") if path.name == "a.py" and "lower" not in path.parts]
    assert copied == [tree / "src" / "a.py"] or not copied, "nothing was copied up"
    assert bench.changes() == {}
    where = cagekit.room(bench.folder, UID)._replace(
        workspace=str(tree), objects=os.path.join(bench.store.layout.repo, "objects")
    )
    needed("full")
    done = caged("full", where, ["/bin/sh", "-c", "echo more >> src/a.py && git rm -q README.md && git status --short"])
    assert done.returncode == 0, done
    assert bench.changes() == {"README.md": "deleted", "src/a.py": "modified"}
    bench.land(allow_mass_delete=True)
    bench.delete(force=True)


STORE_TRIES = """
import os, sqlite3, subprocess, sys
root, objects = sys.argv[1:]
def did(what):
    try:
        return what()
    except (OSError, sqlite3.Error, subprocess.SubprocessError):
        return False
def names(top):
    return [os.path.join(place, one) for place, _, found in os.walk(top) for one in found]
held = names(objects)
tries = {
    "sees the store": lambda: os.listdir(root) != [],
    "reads the database": lambda: open(f"{root}/store.db", "rb").read(1) != b"",
    "opens the database": lambda: sqlite3.connect(f"file:{root}/store.db?mode=rw", uri=True).execute("SELECT 1") and 1,
    "makes a config": lambda: open(f"{root}/repo.git/config", "a").write("x") > 0,
    "makes a hook": lambda: open(f"{root}/repo.git/hooks/update", "w").write("x") > 0,
    "moves a ref": lambda: open(f"{root}/repo.git/refs/heads/main", "w").write("0" * 40) > 0,
    "makes an object": lambda: open(f"{objects}/planted", "w").write("x") > 0,
    "writes an object": lambda: open(held[0], "ab").write(b"x") > 0,
    "opens an object up": lambda: os.chmod(held[0], 0o666) is None,
    "removes an object": lambda: os.unlink(held[0]) is None,
    "takes the lock": lambda: open(f"{root}/writer.lock", "ab").write(b"x") >= 0,
}
print([name for name, what in tries.items() if did(what)], bool(held))
print(subprocess.run(["git", "log", "-1", "--format=%s"], capture_output=True, text=True).stdout.strip())
"""


@as_root
@pytest.mark.parametrize("level", ["full", "files"])
def test_A8_devflock_C5_a_caged_lane_has_no_store_and_its_objects_are_read_only(bench: Bench, level: Level) -> None:
    """A lane that could write the store could forge verdicts, remove objects and plant configuration."""
    needed(level)
    tree = bench.create()
    root, objects = bench.store.layout.root, os.path.join(bench.store.layout.repo, "objects")
    bench.store.close()  # so that all there is to write is on disk
    for folder in (tree, *tree.parents, Path(root), Path(bench.store.layout.repo)):
        folder.chmod(folder.stat().st_mode | 0o011)
    give.open_objects(objects)
    give.give(str(tree), UID)
    where = cagekit.room(bench.folder, UID)._replace(workspace=str(tree), objects=objects)
    before = {path: path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}
    seen = "/objects" if level == "full" else objects
    done = caged(level, where, ["/usr/bin/python3", "-c", STORE_TRIES, root, seen])
    assert done.stdout.splitlines() == ["[] True", "src/b.py"], done
    assert {path: path.read_bytes() for path in Path(root).rglob("*") if path.is_file()} == before
    bare = subprocess.run(["/usr/bin/python3", "-c", STORE_TRIES, root, objects], cwd=tree, env=git_env(),
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert bare.stdout.count("'") == 22, f"each try succeeds where nothing holds it: {bare.stdout}"


# checks


def verdict(
    store: Store, tree: str, script: str, folder: Path, seconds: float = 30, level: Level = "full",
    network: CheckNetwork = "none",
) -> Verdict:  # fmt: skip
    """Runs a check in a cage to its end."""
    how = drive.orders(["/bin/sh", "-c", script], seconds, str(folder), cage=CagedChecks(level, network))
    running = check.Running(store, tree, how.command, how.env, check.new_place(str(folder)), how.policy, how.cage)
    while (found := running.poll()) is None:
        time.sleep(0.02)
    assert not os.path.exists(running.place)
    return found


def test_a_check_in_a_cage_has_its_tree_and_nothing_else(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed("full")
    monkeypatch.setenv("NPM_TOKEN", "hunter2")
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:hunter2@example.org/simple")
    monkeypatch.setenv("CFLAGS", "-O1")
    canary = tmp_path / "canary"
    canary.write_text("canary\n")
    tree = bench.store.objects.commit(bench.head()).tree
    script = (
        "test -f README.md && git log -1 --format=%s && git status --short && echo x > made && echo x > /tmp/x"
        f" && ! test -e {canary} && ! env | grep hunter2 && test $CFLAGS = -O1"
        " && ! test -e /sys && test $HOME = /lane && ! (echo x > /dev/tcp/127.0.0.1/80) 2>/dev/null"
    )
    found = verdict(bench.store, tree, script, tmp_path / "checks")
    assert found.kind == "passed", found
    failed = verdict(bench.store, tree, "echo no; exit 3", tmp_path / "checks")
    assert (failed.kind, failed.rc, failed.output) == ("failed", 3, "no\n")
    began = time.monotonic()
    hung = verdict(bench.store, tree, "setsid sleep 300 & sleep 300", tmp_path / "checks", 1)
    assert (hung.kind, hung.reason) == ("infrastructure", "timeout") and time.monotonic() - began < 20
    assert canary.read_text() == "canary\n"


def test_a_cage_that_does_not_start_is_no_fault_of_the_check(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed("full")
    monkeypatch.setattr(CagedChecks, "_tools", lambda self, program, search, tools: ("/no/such/folder",))
    tree = bench.store.objects.commit(bench.head()).tree
    found = verdict(bench.store, tree, "true", tmp_path / "checks")
    assert (found.kind, found.reason) == ("infrastructure", "cage") and "bwrap" in found.output


def test_a_check_at_level_files_is_held_by_landlock(bench: Bench, tmp_path: Path) -> None:
    needed("files")
    canary = tmp_path / "canary"
    canary.write_text("canary\n")
    tree = bench.store.objects.commit(bench.head()).tree
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    script = (
        "test -f README.md && echo x > made && echo x > $HOME/x && echo x > $TMPDIR/x"
        f" && ! cat {canary} && ! (echo x >> {canary}) 2>/dev/null && ! (echo x > {tmp_path}/made) 2>/dev/null"
        " && ! python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 80))' 2> said && cat said"
        " && grep -q PermissionError said"
    )
    found = verdict(bench.store, tree, script, tmp_path / "checks", level="files")
    assert found.kind == "passed", found
    assert canary.read_text() == "canary\n" and not (tmp_path / "made").exists()


def test_a_check_reads_what_the_policy_links(bench: Bench, tmp_path: Path) -> None:
    needed("full")
    (bench.folder / "modules").mkdir()
    (bench.folder / "modules" / "one").write_text("one\n")
    policy = Policy(str(bench.folder), WorkspacePolicy(link=("modules",)))
    how = drive.orders(["/bin/sh", "-c", "cat modules/one && ! touch modules/two"], 30, str(tmp_path / "checks"),
                       policy=policy, cage=CagedChecks())  # fmt: skip
    found = evidence.look(bench.store, bench.head(), how)
    assert found is not None and found.kind == "passed", found


def test_a_check_has_a_network_where_it_is_asked_for(bench: Bench, tmp_path: Path) -> None:
    needed("full")
    tree = bench.store.objects.commit(bench.head()).tree
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))'"
        assert verdict(bench.store, tree, script, tmp_path / "checks").kind == "failed"
        assert verdict(bench.store, tree, script, tmp_path / "checks", network="open").kind == "passed"


def test_a_result_from_a_cage_is_not_one_from_without(bench: Bench, tmp_path: Path) -> None:
    needed("full")
    cage = CagedChecks()
    one = drive.orders(["true"], 1.0, str(tmp_path)).command
    two = drive.orders(["true"], 1.0, str(tmp_path), cage=cage).command
    assert check.key("0" * 40, one) != check.key("0" * 40, two)


# the tripwire


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Makes a checkout with a commit, a change, a file of its own, a hook and a branch."""
    folder = tmp_path / "checkout"
    for words in (["init", "-q", "-b", "main", str(folder)], ["-C", str(folder), "config", "user.email", "me@x"],
                  ["-C", str(folder), "config", "user.name", "me"]):  # fmt: skip
        subprocess.run(["git", *words], check=True, env=git_env())
    (folder / "a.txt").write_text("a\n")
    (folder / "b.txt").write_text("b\n")
    (folder / ".gitignore").write_text("ignored/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    git(folder, "branch", "side")
    (folder / "b.txt").write_text("b, changed\n")
    (folder / "untracked").write_text("mine alone\n")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("a.txt")
    (folder / "ignored").mkdir()
    hook = folder / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    return folder


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, env=git_env(), capture_output=True, text=True)
    return done.stdout


def recorded(checkout: Path, tmp_path: Path, *canaries: Path, most: int = tripwire.MOST) -> Snapshot:
    """Records a checkout and carries the record over a process's end, as a supervisor has to."""
    made = tripwire.record(str(checkout), str(tmp_path / "copies"), [str(one) for one in canaries], most)
    return msgspec.json.decode(msgspec.json.encode(made), type=Snapshot)


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Gives what is in a checkout and in its repository, without objects and logs."""
    found = {}
    for place, folders, names in os.walk(folder):
        if place.endswith(".git"):
            folders[:] = [name for name in folders if name not in ("objects", "logs")]
        for name in names:
            path = Path(place, name)
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(folder))] = (path.lstat().st_mode, content)
    return found


def test_a_checkout_that_nobody_touched_is_as_it_was(checkout: Path, tmp_path: Path) -> None:
    was = recorded(checkout, tmp_path, tmp_path / "not-there")
    assert tripwire.compare(was) == []
    index = (checkout / ".git" / "index").read_bytes()
    os.utime(checkout / "a.txt", (1, 1))
    git(checkout, "add", "a.txt")  # the index is written anew, and says the same
    assert (checkout / ".git" / "index").read_bytes() != index
    git(checkout, "pack-refs", "--all")
    (checkout / "a.txt").touch()
    (checkout / "ignored" / "output").write_text("of a build\n")
    assert tripwire.compare(was) == []


def test_what_an_escape_changed_is_named_and_put_back(checkout: Path, tmp_path: Path) -> None:
    canary, gone = tmp_path / "canary", tmp_path / "not-there"
    canary.write_text("canary\n")
    canary.chmod(0o640)
    before = everything(checkout)
    was = recorded(checkout, tmp_path, canary, gone)
    (checkout / "a.txt").write_text("evil\n")
    (checkout / "b.txt").unlink()
    (checkout / "untracked").write_text("evil\n")
    (checkout / "run").chmod(0o644)
    (checkout / "link").unlink()
    (checkout / "link").symlink_to("/etc/passwd")
    (checkout / "planted").write_text("evil\n")
    (checkout / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\nevil\n")
    (checkout / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\nevil\n")
    git(checkout, "config", "core.fsmonitor", "evil")
    git(checkout, "update-ref", "refs/heads/planted", "HEAD")
    git(checkout, "branch", "-D", "side")
    git(checkout, "symbolic-ref", "HEAD", "refs/heads/planted")
    git(checkout, "-c", "core.fsmonitor=false", "add", "planted")
    git(checkout, "-c", "core.fsmonitor=false", "worktree", "add", "-q", str(tmp_path / "tree"), "HEAD")
    canary.write_text("evil\n")
    gone.write_text("evil\n")
    found = tripwire.compare(was)
    named = {(one.area, one.path, one.how) for one in found}
    assert {
        ("tree", "a.txt", "changed"), ("tree", "b.txt", "gone"), ("tree", "untracked", "changed"),
        ("tree", "run", "mode"), ("tree", "link", "changed"), ("tree", "planted", "made"),
        ("git", "hooks/pre-commit", "changed"), ("git", "hooks/post-checkout", "made"), ("git", "config", "changed"),
        ("ref", "refs/heads/planted", "made"), ("ref", "refs/heads/side", "gone"), ("git", "HEAD", "changed"),
        ("git", "index", "changed"), ("canary", "canary", "changed"), ("canary", "not-there", "made"),
        ("git", "worktrees/tree/gitdir", "made"),
    } <= named  # fmt: skip
    done = tripwire.restore(was, found)
    assert not done.left
    assert tripwire.compare(was) == []
    passing = (".git/COMMIT_EDITMSG", ".git/worktrees/tree/", ".git/packed-refs")
    after = {name: one for name, one in everything(checkout).items() if not name.startswith(passing)}
    assert after == {name: one for name, one in before.items() if not name.startswith(passing)}
    assert (canary.read_text(), stat.S_IMODE(canary.stat().st_mode), gone.exists()) == ("canary\n", 0o640, False)
    assert {path.read_text() for path in Path(done.aside, "canary").iterdir()} == {"evil\n"}
    assert git(checkout, "status", "--short") != ""
    git(checkout, "fsck", "--strict")


def test_what_has_no_copy_is_named(checkout: Path, tmp_path: Path) -> None:
    (checkout / "big").write_bytes(os.urandom(200_000))
    was = recorded(checkout, tmp_path, most=100_000)
    (checkout / "big").write_text("evil\n")
    (checkout / "a.txt").write_text("evil\n")
    done = tripwire.restore(was, tripwire.compare(was))
    assert [(one.path, why) for one, why in done.left] == [("big", "no copy of it was kept")]
    assert [one.path for one in done.put_back] == ["a.txt"] and (checkout / "a.txt").read_text() == "a\n"
    shutil.rmtree(tmp_path / "copies")
    (checkout / "untracked").write_text("evil\n")
    done = tripwire.restore(was, [one for one in tripwire.compare(was) if one.path == "untracked"])
    assert [why for _, why in done.left] == ["its copy is gone"] and (checkout / "untracked").read_text() == "evil\n"


def test_nothing_is_put_back_through_a_link(checkout: Path, tmp_path: Path) -> None:
    (checkout / "folder").mkdir()
    (checkout / "folder" / "file").write_text("mine\n")
    was = recorded(checkout, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(checkout / "folder")
    (checkout / "folder").symlink_to(elsewhere)
    done = tripwire.restore(was, tripwire.compare(was))
    assert not done.left and not list(elsewhere.iterdir())
    assert (checkout / "folder" / "file").read_text() == "mine\n" and not (checkout / "folder").is_symlink()


def test_a_folder_without_git_and_a_linked_worktree_are_watched(checkout: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    (plain / "sub").mkdir(parents=True)
    (plain / "sub" / "file").write_text("x\n")
    was = recorded(plain, tmp_path)
    (plain / "sub" / "file").write_text("evil\n")
    assert [one.path for one in tripwire.compare(was)] == ["sub/file"]
    linked = tmp_path / "linked"
    git(checkout, "worktree", "add", "-q", str(linked), "side")
    was = recorded(linked, tmp_path)
    assert tripwire.compare(was) == []
    git(linked, "-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "evil")
    (linked / "a.txt").write_text("evil\n")
    found = tripwire.compare(was)
    assert {"refs/heads/side", "a.txt"} <= {one.path for one in found}
    assert not tripwire.restore(was, found).left and tripwire.compare(was) == []
