"""A backup holds one state, whatever was written while it was made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ropewalk.store import maintain, refs, verify
from ropewalk.store.oplog import Move
from storekit import MAIN, Kit, put, stock


def test_refs_that_moved_while_the_repository_was_copied_are_where_the_database_has_them(
    kit: Kit, tmp_path: Path
) -> None:
    """Moved, made and removed ones, and one whose name became a folder; what somebody else made there stays."""
    first = kit.first(put("a", "1\n"))
    refs.move(kit.store, "a/b", [Move(f"refs/heads/{n}", None, first) for n in ("gone", "deep/one")], "ref_move")
    copied = dict(kit.store.refs())
    second = kit.change(put("a", "2\n")).landed
    moves = [Move("refs/heads/gone", first, None), Move("refs/heads/deep/one", first, None)]
    refs.move(kit.store, "a/b", [*moves, Move("refs/heads/deep/two/made", None, second)], "ref_move")
    os.makedirs(os.path.join(kit.repo, "refs", "heads", "gone"))
    repo = str(tmp_path / "repo.git")
    shutil.copytree(kit.repo, repo)
    Path(repo, "refs", "heads", "theirs").write_text(f"{first}\n")
    maintain._set_refs(kit.store, repo, copied)
    shown = stock("--git-dir", repo, "for-each-ref", "--format=%(refname) %(objectname)").decode().splitlines()
    assert dict(line.split(" ") for line in shown) == {**copied, "refs/heads/theirs": first}
    assert copied[MAIN] == first


def test_a_backup_has_no_derived_data_and_verifies(kit: Kit, tmp_path: Path) -> None:
    """Stock git may have written a commit-graph of commits that came after the copy of the database."""
    kit.first(put("a", "1\n"))
    kit.change(put("b", "2\n"))
    maintain.collect(kit.store)
    assert os.path.exists(os.path.join(kit.repo, "objects", "info", "commit-graph"))
    maintain.backup(kit.store, str(tmp_path / "saved"))
    assert not os.path.exists(tmp_path / "saved" / "repo.git" / "objects" / "info" / "commit-graph")
    maintain.restore(str(tmp_path / "saved"), str(tmp_path / "back"))
    back = Kit(str(tmp_path / "back"))
    assert verify.verify(back.store, deep=True, progress=lambda line: None).problems == []
    assert dict(back.store.refs()) == dict(kit.store.refs())
    back.fsck()
    back.close()


def test_what_a_killed_projection_left_goes_with_the_next_collection(kit: Kit) -> None:
    """It is linked under a name of its own before it takes the ref's place."""
    kit.first(put("a", "1\n"))
    left = os.path.join(kit.repo, "rw-ref-1")
    os.link(os.path.join(kit.repo, MAIN), left)
    maintain.collect(kit.store)
    assert not os.path.exists(left)
    assert kit.stock("rev-parse", MAIN) == kit.main()
