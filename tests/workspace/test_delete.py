"""Deleting a workspace never loses work, and never leaves its own folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import UnlandedWorkError

from .conftest import Bench


def test_unlanded_work_is_named_and_kept(bench: Bench) -> None:
    path = bench.create()
    (path / "src" / "a.py").write_text("work\n")
    (path / "new").write_text("n\n")
    with pytest.raises(UnlandedWorkError) as caught:
        bench.delete()
    assert caught.value.details["paths"] == ["new", "src/a.py"]
    assert (path / "new").read_text() == "n\n"


def test_by_force_it_is_archived_first(bench: Bench) -> None:
    for number in (1, 2):
        path = bench.create()
        (path / "new").write_text(f"{number}\n")
        done = bench.delete(force=True)
        assert done.ref == f"refs/archive/ws/one/{number}"
        assert done.archived is not None and bench.tree(done.archived)["new"][1] == f"{number}\n".encode()
        assert bench.store.ref(done.ref) == done.archived
        assert not path.exists()
    assert bench.rw("ws", "list", "--store", bench.store.layout.root)["result"]["workspaces"] == []


def test_a_landed_one_goes_without_a_word(bench: Bench) -> None:
    path = bench.create()
    (path / "new").write_text("n\n")
    bench.land()
    assert bench.delete().archived is None
    assert not path.exists() and list(path.parent.iterdir()) == []


@pytest.mark.parametrize("how", ["stash", "branch"])
def test_stashes_and_other_branches_count_as_work(bench: Bench, in_ws: Any, how: str) -> None:
    path = bench.create()
    (path / "src" / "a.py").write_text("work\n")
    if how == "stash":
        in_ws(path, "stash")
    else:
        in_ws(path, "checkout", "-qb", "aside")
        in_ws(path, "commit", "-qam", "aside")
        in_ws(path, "checkout", "-q", "one")
    assert bench.changes() == {}
    with pytest.raises(UnlandedWorkError, match=how):
        bench.delete()


def test_held_back_secrets_count_as_work(bench: Bench) -> None:
    path = bench.create()
    (path / ".env").write_text("x\n")
    with pytest.raises(UnlandedWorkError, match="secret"):
        bench.delete()


def test_links_are_removed_and_not_followed(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "precious").write_text("p")
    path = bench.create()
    (path / "link").symlink_to(outside)
    (path / ".git" / "objects" / "zz").symlink_to(outside)
    bench.delete(force=True)
    assert (outside / "deep" / "precious").read_text() == "p"
    assert not path.exists()


def test_a_folder_replaced_by_a_link_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("p")
    path = bench.create()
    shutil.rmtree(path)
    path.symlink_to(outside)
    bench.delete(force=True)
    assert (outside / "precious").read_text() == "p"
    assert not path.is_symlink()


def test_l5_a_folder_that_is_gone_converges(bench: Bench) -> None:
    shutil.rmtree(bench.create())
    bench.delete()
    assert bench.create().is_dir()


def test_folders_without_write_permission_go_too(bench: Bench) -> None:
    path = bench.create()
    (path / "locked").mkdir()
    (path / "locked" / "file").write_text("x")
    (path / "locked").chmod(0o555)
    bench.delete(force=True)
    assert not path.exists()
