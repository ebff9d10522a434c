"""Which board is meant: the argument, the variables, flockwork's marker, the store at hand; and how it is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.board.remotekit import peers

from ropewalk.board import tasks
from ropewalk.board.local import LocalBoard
from ropewalk.board.opening import MARKER, Meant, find, folder_of, open_board
from ropewalk.board.remote import RemoteBoard
from ropewalk.core.errors import InvalidError, NoBoardError, NotFoundError
from storekit import Kit, put, stock


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", "a\n"))
    yield made
    made.close()


def mark(folder: Path, text: str) -> None:
    """Writes flockwork's marker."""
    path = folder / MARKER
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_each_source_goes_before_the_next_and_says_which_it_was(kit: Kit, tmp_path: Path) -> None:
    cwd = tmp_path / "w" / "deep"
    cwd.mkdir(parents=True)
    env = {"ROPEWALK_BOARD": "https://two.example/b.git", "SWARM_ORIGIN": "ssh://three.example/b.git"}
    mark(tmp_path / "w", "git://four.example/b.git\n")
    assert find("peer:b.git", env, str(cwd), kit.root) == Meant("remote", "peer:b.git", "argument")
    assert find(None, env, str(cwd), kit.root) == Meant("remote", "https://two.example/b.git", "ROPEWALK_BOARD")
    env["ROPEWALK_BOARD"] = ""
    assert find(None, env, str(cwd), kit.root) == Meant("remote", "ssh://three.example/b.git", "SWARM_ORIGIN")
    assert find(None, {}, str(cwd), kit.root) == Meant("remote", "git://four.example/b.git", ".flockwork/origin")
    (tmp_path / "w" / MARKER).write_text(" \n")
    assert find(None, {}, str(cwd), kit.root) == Meant("store", kit.root, "store")
    assert find("", {}, kit.root) == Meant("store", kit.root, "store")


def test_without_any_there_is_no_board_and_nothing_is_contacted(tmp_path: Path) -> None:
    for argument in (None, "", "."):
        with pytest.raises(NoBoardError) as caught:
            find(argument, {"HOME": "/x"}, str(tmp_path))
        assert caught.value.code == "E_NO_BOARD" and caught.value.hint
    with pytest.raises(NotFoundError):
        open_board(find("nothing", {}, str(tmp_path)), str(tmp_path / "cache"))
    for bad in ("-x", "a\nb", "ext::sh -c x"):
        with pytest.raises(InvalidError):
            open_board(find(bad if "::" in bad else f"ssh://{bad}" if bad == "a\nb" else "ssh:: x", {}, str(tmp_path)),
                       str(tmp_path / "cache"))  # fmt: skip
    assert not (tmp_path / "cache").exists()


def test_a_url_is_not_contacted_when_it_is_opened(tmp_path: Path) -> None:
    board = open_board(Meant("remote", f"http://127.0.0.1:{peers.free_port()}/b.git", "argument"), str(tmp_path))
    assert isinstance(board, RemoteBoard) and os.path.isdir(board.folder)
    board.close()


def test_a_store_named_by_a_path_is_opened_as_the_store_that_it_is(kit: Kit, tmp_path: Path) -> None:
    words = [kit.root, kit.repo, f"file://{kit.root}", os.path.relpath(kit.root, tmp_path), "."]
    for text in words:
        meant = find(text, {}, str(tmp_path), kit.root)
        assert meant.kind == "store" and os.path.samefile(meant.where, kit.root), text
        board = open_board(meant, str(tmp_path / "cache"), store=kit.store)
        assert isinstance(board, LocalBoard) and board.store is kit.store
        board.close()
    board = open_board(find(kit.repo, {}, str(tmp_path)), str(tmp_path / "cache"))
    assert isinstance(board, LocalBoard) and board.store is not kit.store
    tasks.init(board, "test/one", mixed=False)
    board.close()
    assert kit.store.ref("refs/swarm/law") is not None, "the store given stays open, the other was closed"


def test_a_repository_beside_a_store_is_no_store(tmp_path: Path) -> None:
    stock("init", "-q", "--bare", str(tmp_path / "repo.git"))
    assert find("repo.git", {}, str(tmp_path)) == Meant("remote", str(tmp_path / "repo.git"), "argument")


def test_one_board_has_one_folder_on_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock("init", "-q", "--bare", str(tmp_path / "b.git"))
    (tmp_path / "link").symlink_to(tmp_path / "b.git")
    monkeypatch.chdir(tmp_path)
    names = [str(tmp_path / "b.git"), f"file://{tmp_path}/b.git", "b.git", str(tmp_path / "link")]
    assert len({folder_of(name, "/c") for name in names}) == 1
    urls = ["https://me:one@x.example/b", "https://me:two@x.example/b", "https://you@x.example/b"]
    assert len({folder_of(name, "/c") for name in urls}) == 2
    assert find("https://me:one@x.example/b", {}, "/").shown == "https://me@x.example/b"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_marker_of_another_user_above_is_passed_over(tmp_path: Path) -> None:
    mark(tmp_path, "https://evil.example/b.git\n")
    os.chown(tmp_path / MARKER, 65534, 65534)
    with pytest.raises(NoBoardError):
        find(None, {}, str(tmp_path))
