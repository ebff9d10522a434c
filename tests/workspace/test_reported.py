"""Cases that people reported of other tools, as they stand in a workspace (S3, S6, S11, S20, S24, S28)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.store import maintain
from ropewalk.workspace import state

from .conftest import Bench


def status(bench: Bench, name: str = "one") -> dict[str, Any]:
    """Gives what `ws status` says."""
    envelope = bench.rw("ws", "status", name, "--store", bench.store.layout.root)
    assert envelope["ok"], envelope
    found: dict[str, Any] = envelope["result"]
    return found


def test_S3_a_land_of_others_leaves_a_dirty_workspace_as_it_is(bench: Bench) -> None:
    """It says how far behind it is; nothing is merged into it and nothing is committed by itself."""
    path = bench.create()
    (path / "src/b.py").write_text("b = 2\n")
    (path / "new").write_text("new\n")
    before = bench.store.last_op()
    bench.publish({"src/b.py": "b = 3\n"})
    found = status(bench)
    assert (found["behind"], found["base"]) == (1, bench.ws().base)
    assert {c["path"]: c["kind"] for c in found["changes"]} == {"src/b.py": "modified", "new": "added"}
    assert (path / "src/b.py").read_text() == "b = 2\n" and (path / "new").read_text() == "new\n"
    assert bench.store.last_op() == before + 2  # the other's commit and land
    assert not (path / ".git/MERGE_HEAD").exists()


def test_S6_nobody_waits_while_a_workspace_is_being_made(bench: Bench) -> None:
    """Its maker is stopped in the middle of the checkout; others land and look meanwhile."""
    bench.publish({f"many/{n}": f"{n}\n" for n in range(300)})
    bench.create("two")
    root = bench.store.layout.root
    folder = bench.data / "ropewalk" / bench.store.format.id / "ws"
    child = subprocess.Popen(bench.argv("ws", "create", "slow", "--store", root), cwd=bench.folder,
                             env=bench.env | {"ROPEWALK_AGENT": "a/slow"}, stdout=subprocess.PIPE)  # fmt: skip
    try:
        while not (folder.is_dir() and any(n.startswith(".slow.new-") for n in os.listdir(folder))):
            assert child.poll() is None, "it was made before it could be stopped"
        os.kill(child.pid, signal.SIGSTOP)
        assert not (folder / "slow").exists()
        (bench.data / "two/new").write_text("new\n")
        for words in (["ws", "list"], ["ws", "status", "two"], ["ws", "land", "two", "-m", "two"], ["log", "main"]):
            envelope = bench.rw(*words, "--store", root, agent="claude/one", ROPEWALK_LOCK_WAIT="1")
            assert envelope["ok"], envelope
        bench.publish({"other": "other\n"})
        os.kill(child.pid, signal.SIGCONT)
        out, _ = child.communicate(timeout=60)
        assert msgspec.json.decode(out)["ok"] and (folder / "slow/many/299").exists()
    finally:
        child.kill()
        child.wait(30)


@pytest.mark.parametrize("looks", [0o755, 0o644])
def test_S11_where_the_disk_keeps_no_exec_bit_the_base_says_it(bench: Bench, looks: int) -> None:
    """What the probe of such a disk notes is set by hand here: all files look alike, and nothing has changed."""
    (bench.create() / "tool").write_text("#!/bin/sh\n")
    os.chmod(bench.data / "one/tool", 0o755)
    bench.land()
    ws = bench.ws()
    assert ws.note.filemode
    state.save(bench.store, msgspec.structs.replace(ws, note=msgspec.structs.replace(ws.note, filemode=False)))
    for name in ("tool", "README.md", "src/a.py", "src/b.py"):
        os.chmod(bench.data / "one" / name, looks)
    assert bench.changes() == {}
    (bench.data / "one/tool").write_text("#!/bin/sh\nexit 1\n")
    bench.land()
    assert bench.tree()["tool"] == (b"100755", b"#!/bin/sh\nexit 1\n")
    assert bench.tree()["README.md"][0] == b"100644"


@pytest.mark.parametrize("fault", ["fdatasync:error=EIO", "pwrite64:error=ENOSPC", "lock"])
def test_S20_work_that_could_not_be_landed_survives_a_clean_up(bench: Bench, fault: str) -> None:
    path = bench.create()
    (path / "work").write_text("hours of it\n")
    root = bench.store.layout.root
    words = ["ws", "land", "one", "-m", "work", "--store", root]
    env = {"ROPEWALK_AGENT": "claude/one", "ROPEWALK_LOCK_WAIT": "0.3"}
    if fault == "lock":
        with bench.store.lock_held():
            failed = bench.rw(*words, **env)
    else:
        call = fault.partition(":")[0]
        done = subprocess.run(
            ["strace", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={fault}:when=1+",
             *bench.argv(*words)],
            cwd=bench.folder, env=bench.env | env, capture_output=True, timeout=60,
        )  # fmt: skip
        failed = msgspec.json.decode(done.stdout)
    code = {"fdatasync": "E_IO", "pwrite64": "E_NO_SPACE", "lock": "E_BUSY"}[fault.partition(":")[0]]
    assert failed["error"]["code"] == code and failed["error"]["retryable"] == (code != "E_IO"), failed
    refused = bench.rw("ws", "delete", "one", "--store", root, **env)
    assert not refused["ok"] and refused["error"]["code"] in ("E_UNLANDED", "E_IO"), refused
    assert (path / "work").read_text() == "hours of it\n"
    if code == "E_IO":
        assert bench.rw("repair", "--store", root, **env)["ok"]
    refused = bench.rw("ws", "delete", "one", "--store", root, **env)
    assert refused["error"]["code"] == "E_UNLANDED" and refused["error"]["details"]["paths"] == ["work"]
    assert bench.rw(*words, **env)["result"]["land"]["status"] == "landed"
    assert bench.rw("ws", "delete", "one", "--store", root, **env)["ok"] and not path.exists()


def test_S24_a_collection_moves_no_workspaces_head(bench: Bench, in_ws: Any) -> None:
    """Nor takes what it stands on, though no ref of the store reaches it."""
    path = bench.create()
    (path / "work").write_text("work\n")
    in_ws(path, "add", "work")
    in_ws(path, "commit", "-m", "mine")
    mine, branch = in_ws(path, "rev-parse", "HEAD"), in_ws(path, "symbolic-ref", "HEAD")
    base = bench.ws().base
    bench.publish({"other": "other\n"})
    for _ in range(2):
        maintain.collect(bench.store)
        for command in (["gc", "--prune=now"], ["prune", "--expire=now"], ["worktree", "prune"]):
            subprocess.run(["git", "--git-dir", bench.store.layout.repo, *command], env=bench.env, capture_output=True)
        in_ws(path, "gc", "--prune=now")
    assert (in_ws(path, "rev-parse", "HEAD"), in_ws(path, "symbolic-ref", "HEAD")) == (mine, branch)
    assert bench.ws().base == base and in_ws(path, "status", "--porcelain") == ""
    in_ws(path, "fsck")
    assert bench.land().landed.status == "landed"
    assert set(bench.tree()) >= {"work", "other"}


def test_S28_a_workspace_made_on_an_old_commit_says_so_and_its_land_merges(bench: Bench) -> None:
    old = bench.head()
    for n in range(3):
        bench.publish({f"later{n}": "later\n"})
    path = bench.create(base=old)
    assert status(bench)["behind"] == 3 and not (path / "later0").exists()
    (path / "mine").write_text("mine\n")
    bench.land()
    assert set(bench.tree()) >= {"mine", "later0", "later1", "later2"}
    assert status(bench)["behind"] == 0 and Path(path, "later2").exists()
