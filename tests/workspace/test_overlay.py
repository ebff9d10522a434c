"""Overlay workspaces: mounted over a shared tree, never read when they are not (A4, A5, A41)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import UnlandedWorkError, WorkspaceDamagedError, WorkspaceNotMountedError
from ropewalk.workspace import mounts, overlay, shared, trash

from .conftest import Bench

NO_MOUNT = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
Make = Callable[..., Path]


@pytest.fixture
def layered(bench: Bench) -> Iterator[Make]:
    """Gives a way to make overlay workspaces; what is mounted at the end is unmounted."""
    folder = bench.data / "shared"
    folder.mkdir(parents=True)
    if not mounts.is_sound(str(folder)):
        pytest.skip("overlays can't be mounted here")

    def make(name: str = "one", **words: Any) -> Path:
        return bench.create(name, shared=str(folder), overlay="always", **words)

    yield make
    unmount_below(bench.folder)


def unmount_below(folder: Path) -> None:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = [line.split(" ")[4] for line in file]
    for point in reversed([p for p in points if p.startswith(str(folder))]):
        mounts.unmount(point, detach=True)


def test_stock_git_finds_it_clean_and_reads_no_file(bench: Bench, layered: Make, in_ws: Any, tmp_path: Path) -> None:
    one, two = layered("one"), layered("two", agent="codex/two")
    for path, agent in (one, "claude"), (two, "codex"):
        assert in_ws(path, "rev-parse", "HEAD") == bench.head()
        assert in_ws(path, "branch", "--show-current") == path.name
        assert in_ws(path, "config", "user.email") == f"{path.name}@{agent}.ropewalk.local"
        assert in_ws(path, "fsck", "--strict") == ""
    log = tmp_path / "calls"
    subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=openat", "-o", log, "git", "status", "--porcelain"], cwd=one, check=True
    )
    assert "README.md" not in log.read_text() and "index" in log.read_text()
    assert bench.changes() == {}
    (two / "README.md").write_text("two\n")
    assert (one / "README.md").read_text() == "# Demo\n" and bench.changes("two") == {"README.md": "modified"}


def test_A41_all_kinds_of_changes_land_from_it(bench: Bench, layered: Make, in_ws: Any) -> None:
    path = layered()
    base = Path(overlay.layers(bench.ws()).lower)
    os.rename(path / "src", path / "lib")  # fails with EXDEV without redirect_dir
    (path / "lib" / "a.py").write_text("changed\n")
    (path / "README.md").unlink()
    (path / "new").write_text("new\n")
    assert bench.changes() == {
        "src/a.py": "deleted", "src/b.py": "deleted", "README.md": "deleted",
        "lib/a.py": "added", "lib/b.py": "added", "new": "added",
    }  # fmt: skip
    bench.land(allow_mass_delete=True)
    assert set(bench.tree()) == {"lib/a.py", "lib/b.py", "new"} and bench.changes() == {}
    assert in_ws(path, "status", "--porcelain") == ""
    assert (base / "README.md").exists() and (base / "src" / "b.py").read_text() == "b = 1\n"
    bench.publish({"lib/b.py": "b = 7\n"})
    assert bench.rebase().report is None and (path / "lib" / "b.py").read_text() == "b = 7\n"


def test_A41_it_is_mounted_again_by_the_next_command(bench: Bench, layered: Make) -> None:
    path = layered()
    (path / "work").write_text("hours\n")
    overlay.unmount(bench.ws())
    assert not (path / "work").exists()
    found = bench.rw("ws", "status", "one", "--store", bench.store.layout.root)
    assert [c["path"] for c in found["result"]["changes"]] == ["work"]
    assert (path / "work").read_text() == "hours\n"
    overlay.unmount(bench.ws())
    shutil.rmtree(path)  # the mount point alone is gone, and what was done is above all in the upper folder
    assert bench.changes() == {"work": "added"}


def test_A41_one_upper_folder_is_not_mounted_twice(bench: Bench, layered: Make, tmp_path: Path) -> None:
    layered()
    ws = bench.ws()
    overlay.unmount(ws)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    mounts.mount(overlay.layers(ws), str(elsewhere))
    with pytest.raises(WorkspaceNotMountedError, match="elsewhere"):
        bench.changes()
    mounts.unmount(str(elsewhere))
    assert bench.changes() == {}


def test_A41_a_shared_tree_that_was_changed_is_noticed(bench: Bench, layered: Make) -> None:
    layered()
    lower = Path(overlay.layers(bench.ws()).lower)
    overlay.unmount(bench.ws())
    (lower / "src" / "b.py").write_text("b = 666\n")
    with pytest.raises(WorkspaceDamagedError) as caught:
        bench.changes()
    assert caught.value.details["paths"] == ["src/b.py"]


def test_A5_nothing_is_read_of_one_that_is_not_mounted(bench: Bench, layered: Make) -> None:
    """Its place looks emptied, and a land would remove all."""
    path = layered()
    (path / "work").write_text("hours\n")
    overlay.unmount(bench.ws())
    root, before = bench.store.layout.root, bench.head()
    for words in (["ws", "land", "one", "-m", "x", "--allow-mass-delete"], ["ws", "commit", "one", "-m", "x"],
                  ["ws", "delete", "one", "--force"], ["ws", "discard", "--workspace", "one"]):  # fmt: skip
        done = subprocess.run([*NO_MOUNT, *bench.argv(*words, "--store", root)], cwd=bench.folder,
                              env=bench.env | {"ROPEWALK_AGENT": "a/b"}, capture_output=True, timeout=60)  # fmt: skip
        assert b'"E_WORKSPACE_NOT_MOUNTED"' in done.stdout, (words, done.stdout, done.stderr)
    (path / "stray").write_text("written where nothing was mounted\n")
    with pytest.raises(WorkspaceNotMountedError, match="something else"):
        bench.land()
    assert bench.store.ref("refs/heads/main") == before and (path / "stray").exists()
    (path / "stray").unlink()
    assert bench.changes() == {"work": "added"}


def test_A5_another_mount_at_its_place_is_not_taken_for_it(bench: Bench, layered: Make) -> None:
    path, other = layered("one"), layered("two")
    (other / "theirs").write_text("t\n")
    overlay.unmount(bench.ws("one"))
    subprocess.run(["mount", "--bind", other, path], check=True)
    with pytest.raises(WorkspaceNotMountedError):
        bench.changes("one")
    subprocess.run(["umount", path], check=True)
    assert bench.changes("one") == {}


def test_A4_git_stops_where_nothing_is_mounted(bench: Bench, layered: Make, git: Any, tmp_path: Path) -> None:
    """Else it would find the repository above, and `reset --hard` or `commit` would be done there."""
    git("init", "-q")
    path = layered()
    overlay.unmount(bench.ws())
    for words in (["status"], ["reset", "--hard"], ["commit", "--allow-empty", "-m", "x"], ["rev-parse", "--git-dir"]):
        assert git.run(*words, folder=path).returncode == 128, words


def test_deleting_unmounts_and_the_trash_keeps_the_layers(bench: Bench, layered: Make) -> None:
    path = layered()
    over = bench.ws().note.overlay
    assert over is not None
    (path / "work").write_text("hours\n")
    with pytest.raises(UnlandedWorkError):
        bench.delete()
    from ropewalk.workspace import removal, state

    folder = str(bench.data / "trash")
    with state.held(bench.store, "one"):
        done = removal.delete(bench.store, bench.ws(), "a/b", force=True, bin=folder)
    assert not path.exists() and mounts.upper_at(str(path)) is None and not os.path.exists(overlay.own(over, "one"))
    assert done.archived is not None and os.path.isdir(shared.at(over.folder, over.tree).place)
    trash.restore(bench.store, folder, trash.find(folder, "one"), "a/b")
    assert (path / "work").read_text() == "hours\n" and bench.changes() == {"work": "added"}
    assert bench.delete(force=True).ref == "refs/archive/ws/one/2"
    assert not os.path.exists(shared.at(over.folder, over.tree).place), "nobody stands on it any more"


def test_a_process_inside_keeps_it_from_being_deleted(bench: Bench, layered: Make) -> None:
    path = layered()
    child = subprocess.Popen(["sleep", "60"], cwd=path)
    try:
        with pytest.raises(UnlandedWorkError, match=str(child.pid)):
            bench.delete()
        bench.delete(force=True)
        assert not path.exists()
    finally:
        child.kill()
        child.wait()


def test_without_the_right_to_mount_it_is_made_of_files(bench: Bench, layered: Make) -> None:
    root = bench.store.layout.root
    made = {}
    for name, more in {"plain": [], "wanted": ["--overlay", "always"]}.items():
        done = subprocess.run([*NO_MOUNT, *bench.argv("ws", "create", name, "--store", root, *more)], cwd=bench.folder,
                              env=bench.env | {"ROPEWALK_AGENT": "a/b"}, capture_output=True, timeout=60)  # fmt: skip
        made[name] = done.stdout
    assert b'"how":"files"' in made["plain"], made["plain"]
    assert b'"E_UNSUPPORTED"' in made["wanted"], made["wanted"]
    again = bench.rw("ws", "create", "wanted", "--store", root, "--overlay", "always", agent="a/b")
    assert again["result"]["how"] == "overlay"


@pytest.mark.parametrize("layers", [True, False])
def test_a_full_disk_leaves_nothing_half_made(bench: Bench, layered: Make, layers: bool) -> None:
    bench.publish({f"big/{n}": os.urandom(30_000).hex() for n in range(40)})
    small = bench.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    words = ["ws", "create", "w", "--store", bench.store.layout.root, "--overlay", "always" if layers else "never"]
    env = {"XDG_DATA_HOME": str(small)}
    failed = bench.rw(*words, agent="a/b", **env)
    assert failed["error"]["code"] == "E_NO_SPACE" and failed["error"]["retryable"], failed
    left = [p for p in small.rglob("*") if p.is_file() and p.stat().st_size > 100]
    assert left == [] and bench.rw("ws", "list", "--store", words[4])["result"]["workspaces"][0]["state"] == "making"
    subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
    made = bench.rw(*words, agent="a/b", **env)
    assert made["ok"] and made["result"]["created"], made
    assert len(list((Path(made["result"]["path"]) / "big").iterdir())) == 40
    assert bench.rw("ws", "status", "w", "--store", words[4], **env)["result"]["changes"] == []


def test_killed_at_any_step_and_run_again_it_ends_the_same(bench: Bench, layered: Make, in_ws: Any) -> None:
    """Killed at system calls that change something: a sample, all of them in the full run."""
    calls = "mkdir,mkdirat,openat,rename,renameat,unlink,link,linkat,mount,symlink,pwrite64,fdatasync,utimensat"
    root = bench.store.layout.root

    def words(name: str) -> list[str]:
        return bench.argv("ws", "create", name, "--store", root, "--as", "a/b", "--overlay", "always")

    counted = subprocess.run(
        ["strace", "-qq", "-e", f"trace={calls}", "-o", bench.folder / "calls", *words("count")], cwd=bench.folder,
        env=bench.env, capture_output=True, timeout=120,
    )  # fmt: skip
    assert counted.returncode == 0, counted.stderr
    assert bench.rw(*words("count")[3:4], "delete", "count", "--store", root, agent="a/b")["ok"]
    bench.rw("trash", "empty", "--store", root, agent="a/b")
    lines = (bench.folder / "calls").read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if "writer.lock" in line)
    points = list(range(first + 1, len(lines) + 1))
    if not os.environ.get("RWTEST_FULL"):
        points = points[:: max(1, len(points) // 6)]
    killed = 0
    for point in points:
        name = f"k{point}"
        struck = subprocess.run(
            ["strace", "-qq", "-o", "/dev/null", "-e", f"trace={calls}",
             "-e", f"inject={calls}:signal=KILL:when={point}",
             *words(name)],
            cwd=bench.folder, env=bench.env, capture_output=True, timeout=120,
        )  # fmt: skip
        killed += struck.returncode == -9 or struck.returncode == 137
        found = bench.rw(*words(name)[3:])
        assert found["ok"] and found["result"]["how"] == "overlay", (point, found)
        path = Path(found["result"]["path"])
        assert in_ws(path, "status", "--porcelain") == "" and (path / "README.md").exists(), point
        assert bench.rw("ws", "status", name, "--store", root)["result"]["changes"] == []
        assert bench.rw("ws", "delete", name, "--store", root, agent="a/b")["ok"]
        bench.rw("trash", "empty", "--store", root, agent="a/b")  # so that the next builds the shared tree, too
    assert killed >= len(points) // 2
    place = bench.data / "ropewalk" / bench.store.format.id
    assert bench.rw(*words("last")[3:])["ok"]
    assert [p for p in place.rglob("*") if ".new-" in p.name or ".probe-" in p.name] == []
