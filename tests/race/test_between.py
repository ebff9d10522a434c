"""Between one process's commit to the database and its projection, another's work must hold as well."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.core.errors import CasMismatchError
from ropewalk.store import refs
from ropewalk.store.oplog import Move
from storekit import MAIN, Kit, child_env, put, rw, stock


@pytest.fixture
def unshown(kit: Kit) -> Kit:
    """Gives a store whose main was moved by a process that was killed before it showed anything to git."""
    first = kit.first(put("a", "1\n"))
    fd = os.open(os.path.join(kit.root, "projector.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    child = subprocess.Popen(
        [sys.executable, "-m", "ropewalk.cli.main", "commit", "-m", "second", "--changes", "-", "--parent", "main",
         "--advance", "main", "--store", kit.root, "--as", "a/b"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_env(),
    )  # fmt: skip
    assert child.stdin is not None
    child.stdin.write(b'[{"path": "b", "content": {"inline": "2\\n"}}]')
    child.stdin.close()
    child.stdin = None
    while kit.main() == first:
        assert child.poll() is None, child.communicate()
    child.kill()
    child.communicate()
    os.close(fd)
    return kit


def test_an_import_knows_refs_that_git_does_not_see_yet(unshown: Kit, tmp_path: Path) -> None:
    """What the database has of refs is shown before git is told to leave it out."""
    source = str(tmp_path / "source")
    stock("init", "--quiet", "-b", "main", source)
    stock("-C", source, "commit", "--quiet", "--allow-empty", "-m", "theirs")
    code, envelope = rw(unshown.root, "git", "import", source, "--ref", "main", "--into", "imported")
    assert code == 0, envelope


def test_an_export_sends_what_git_does_not_see_yet(unshown: Kit, tmp_path: Path) -> None:
    """What is to leave the store is shown first."""
    code, envelope = rw(unshown.root, "git", "export", str(tmp_path / "there.git"))
    assert code == 0, envelope
    assert stock("--git-dir", str(tmp_path / "there.git"), "rev-parse", MAIN).decode().strip() == unshown.main()


def test_a_move_to_where_the_ref_was_is_checked(kit: Kit) -> None:
    """Nothing would change, and still the ref is not where the caller says: somebody moved it meanwhile."""
    first = kit.first(put("a", "1\n"))
    second = kit.change(put("a", "2\n")).landed
    with pytest.raises(CasMismatchError):
        refs.move(kit.store, "a/b", [Move(MAIN, first, first)], "ref_set")
    moves = [Move(MAIN, second, second), Move("refs/heads/new", None, first)]
    op, _ = refs.move(kit.store, "a/b", moves, "ref_move")
    assert dict(kit.store.refs())["refs/heads/new"] == first
    assert refs.undo(kit.store, "a/b", op)[1] == [Move("refs/heads/new", first, None)]
