"""Export moves a branch forward by compare-and-swap, or refuses and leaves the destination as it was."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import CasMismatchError, NotFoundError, RemoteError
from ropewalk.remote import exporting
from ropewalk.store import changes
from ropewalk.store.changes import Change, Content


def commit(store: Any, files: dict[str, str]) -> None:
    """Puts files on main."""
    changes.commit(
        store,
        agent="test/one",
        message="more",
        changes=[Change(path=p, content=Content(inline=t)) for p, t in files.items()],
        parent=None,
        advance="main",
        key=None,
        read_file=changes.read_disk_file,
    )


def files(folder: Path) -> dict[str, bytes]:
    """Gives every file below a folder with its bytes."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_path_or_an_empty_folder_becomes_a_repository(store: Any, tmp_path: Path, git: Any) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none.git"):
        done = exporting.export_branch(store, str(tmp_path / name), "main", "main")
        assert done.head_sha == store.ref("refs/heads/main") == git("rev-parse", "main", folder=tmp_path / name)
        assert (done.exported, done.branch_moved, done.incremental, done.rewritten) == (3, True, False, 0)
        listed = git("rev-list", "--objects", "--all", folder=tmp_path / name)
        assert done.objects_written == len(listed.splitlines())
        assert git("fsck", "--strict", folder=tmp_path / name) == ""


def test_increments_and_no_move(store: Any, tmp_path: Path, git: Any) -> None:
    out = tmp_path / "out.git"
    first = exporting.export_branch(store, str(out), "main", "main")
    commit(store, {"new": "1\n"})
    second = exporting.export_branch(store, str(out), "main", "main")
    assert (second.exported, second.incremental, second.old_sha, second.objects_written) == (1, True, first.head_sha, 3)
    third = exporting.export_branch(store, str(out), "main", "main")
    assert (third.exported, third.objects_written, third.branch_moved) == (0, 0, False)
    assert git("rev-parse", "main", folder=out) == second.head_sha == third.head_sha


def test_what_moved_on_is_not_overwritten(store: Any, tmp_path: Path, git: Any) -> None:
    out = tmp_path / "out.git"
    exporting.export_branch(store, str(out), "main", "main")
    git("fast-import", "--quiet", folder=out, stdin=b"commit refs/heads/main\ncommitter A <a@b> 1 +0000\ndata 0\n"
        b"from refs/heads/main^0\nM 100644 inline f\ndata 1\nx\n")  # fmt: skip
    theirs = git("rev-parse", "main", folder=out)
    commit(store, {"new": "1\n"})
    before = files(out)
    with pytest.raises(CasMismatchError) as caught:
        exporting.export_branch(store, str(out), "main", "main")
    assert caught.value.details["actual"] == theirs and caught.value.hint
    assert files(out) == before


def test_a_checked_out_branch_is_refused_before_anything_is_sent(store: Any, tmp_path: Path, git: Any) -> None:
    work = tmp_path / "work"
    git("init", "--quiet", str(work))
    git("commit", "--quiet", "--allow-empty", "-m", "x", folder=work)
    git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "linked"), folder=work)
    before = files(work)
    for branch in ("main", "side"):
        with pytest.raises(RemoteError) as caught:
            exporting.export_branch(store, str(work), "main", branch)
        assert caught.value.details.get("reason") == "checked_out" or branch == "main"
        assert caught.value.hint
    assert files(work) == before
    done = exporting.export_branch(store, str(work), "main", "from-store")
    assert git("rev-parse", "from-store", folder=work) == done.head_sha


def test_hooks_of_the_destination_run_without_our_variables(store: Any, tmp_path: Path, git: Any) -> None:
    out = tmp_path / "out.git"
    git("init", "--quiet", "--bare", str(out))
    hook = out / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nenv >{tmp_path}/seen\n")
    hook.chmod(0o755)
    exporting.export_branch(store, str(out), "main", "main")
    seen = (tmp_path / "seen").read_text()
    names = {line.split("=")[0] for line in seen.splitlines()}
    assert "GIT_DIR" in names
    assert not {n for n in names if n.startswith(("GIT_CONFIG", "GIT_NO_", "GIT_TERMINAL", "GIT_ATTR", "GIT_OPTIONAL"))}


def test_a_refusing_hook_is_said_in_its_own_words(store: Any, tmp_path: Path, git: Any) -> None:
    out = tmp_path / "out.git"
    git("init", "--quiet", "--bare", str(out))
    hook = out / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'no pushes on Sunday' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(RemoteError, match="no pushes on Sunday"):
        exporting.export_branch(store, str(out), "main", "main")
    assert git("for-each-ref", folder=out) == ""


def test_a_hang_is_bounded(store: Any, tmp_path: Path, git: Any) -> None:
    out = tmp_path / "out.git"
    git("init", "--quiet", "--bare", str(out))
    hook = out / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 300\n")
    hook.chmod(0o755)
    started = time.monotonic()
    with pytest.raises(RemoteError, match="did not answer"):
        exporting.export_branch(store, str(out), "main", "main", wait=1)
    assert time.monotonic() - started < 60
    pid = int((tmp_path / "pid").read_text())
    assert gone(pid, time.monotonic() + 10), "the hook outlived the command"


def gone(pid: int, deadline: float) -> bool:
    """Says whether a process ends, or waits for its parent alone, before a deadline."""
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a repository to another user")
def test_a_strangers_destination_is_not_written_without_trust(store: Any, tmp_path: Path, git: Any) -> None:
    out = tmp_path / "out.git"
    git("init", "--quiet", "--bare", str(out))
    for folder, _, names in os.walk(out):
        for name in [".", *names]:
            os.chown(os.path.join(folder, name), 65534, 65534)
    with pytest.raises(RemoteError) as caught:
        exporting.export_branch(store, str(out), "main", "main")
    assert "safe.directory" in caught.value.hint


def test_what_is_no_destination_and_no_ref(store: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(NotFoundError):
        exporting.export_branch(store, str(tmp_path / "full"), "main", "main")
    with pytest.raises(NotFoundError):
        exporting.export_branch(store, str(tmp_path / "new.git"), "nope", "main")
    assert not (tmp_path / "new.git").exists()
    assert os.listdir(tmp_path / "full") == ["file"]
