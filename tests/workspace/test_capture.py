"""What counts of what an agent left: commits, index and tree; not what is ignored, secret, or elsewhere."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import InvalidError, LandMismatchError, WorkspaceDamagedError, WorkspaceGoneError
from ropewalk.store import trees
from ropewalk.workspace import capture, state
from ropewalk.workspace import stats as stats_module

from .conftest import Bench


def test_untracked_staged_and_committed_all_count(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    (path / "committed.txt").write_text("c\n")
    in_ws(path, "add", "committed.txt")
    in_ws(path, "commit", "-qm", "the agent's own words\n\nand a reason")
    (path / "staged.txt").write_text("s\n")
    in_ws(path, "add", "staged.txt")
    (path / "untracked.txt").write_text("u\n")
    (path / "src" / "a.py").write_text("changed\n")
    done = bench.land(message=None)
    assert sorted(done.landed.changed_paths) == ["committed.txt", "src/a.py", "staged.txt", "untracked.txt"]
    commit = bench.store.objects.commit(bench.head())
    assert commit.message.startswith(b"the agent's own words\n\nand a reason\n")
    assert commit.author.name == b"claude/one"
    assert in_ws(path, "status", "--porcelain") == ""
    assert in_ws(path, "rev-parse", "HEAD") == bench.head()


def test_without_a_message_and_without_a_commit_it_asks(bench: Bench) -> None:
    path = bench.create()
    (path / "x").write_text("x")
    with pytest.raises(InvalidError, match="message"):
        bench.land(message=None)
    assert (path / "x").read_text() == "x"


def test_modes_links_renames_deletions_and_odd_names(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    os.chmod(path / "README.md", 0o755)
    (path / "link").symlink_to("README.md")
    in_ws(path, "mv", "src/b.py", "src/c.py")
    (path / "src" / "a.py").unlink()
    odd = os.path.join(os.fsencode(path), b"v\xed\xb2\xbb \xff\n.txt")
    with open(odd, "wb") as file:
        file.write(b"\xff\r\n")
    bench.land()
    tree = bench.tree()
    assert tree["README.md"][0] == trees.EXEC
    assert tree["link"] == (trees.LINK, b"README.md")
    assert "src/b.py" not in tree and "src/a.py" not in tree and tree["src/c.py"][1] == b"b = 1\n"
    assert any(text.startswith("base64:") and data == b"\xff\r\n" for text, (_, data) in tree.items())
    assert in_ws(path, "status", "--porcelain") == ""


def test_a_file_becomes_a_folder_and_a_folder_a_file(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    (path / "README.md").unlink()
    (path / "README.md").mkdir()
    (path / "README.md" / "part").write_text("p\n")
    for name in ("a.py", "b.py"):
        (path / "src" / name).unlink()
    (path / "src").rmdir()
    (path / "src").write_text("file now\n")
    bench.land(allow_mass_delete=True)
    assert {p: d for p, (_, d) in bench.tree().items()} == {"README.md/part": b"p\n", "src": b"file now\n"}
    assert in_ws(path, "status", "--porcelain") == ""


def test_ignored_files_do_not_count_unless_git_tracks_them(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    (path / ".gitignore").write_text("*.log\nbuild/\n")
    (path / ".git" / "info" / "exclude").write_text("scratch.txt\n")
    (path / "build").mkdir()
    for name in ("a.log", "build/out", "scratch.txt", "forced.log"):
        (path / name).write_text("x\n")
    in_ws(path, "add", "-f", "forced.log")
    assert bench.changes() == {".gitignore": "added", "forced.log": "added"}
    bench.land()
    assert (path / "a.log").exists() and (path / "build" / "out").exists()
    assert bench.changes() == {}


def test_s35_secrets_are_held_back_until_they_are_allowed(bench: Bench) -> None:
    path = bench.create()
    for name in (".env", "key.pem", "conf/id_rsa", "credentials.json", ".env.example", "fine.txt"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("SECRET-7f3a\n")
    done = bench.land()
    assert sorted(done.landed.changed_paths) == [".env.example", "fine.txt"]
    assert "key.pem" in done.warnings[0] and "--allow-secret" in done.warnings[0]
    secret = "SECRET-7f3a other\n"
    (path / "key.pem").write_text(secret)
    bench.land(message="x", allow={b"key.pem"})
    assert bench.tree()["key.pem"][1] == secret.encode()
    assert ".env" not in bench.tree()


def test_the_bytes_of_a_held_back_file_never_reach_the_store(bench: Bench) -> None:
    path = bench.create()
    (path / ".env").write_text("TOKEN=only-here\n")
    (path / "x").write_text("x\n")
    bench.land()
    from ropewalk.store.loose import object_id

    assert bench.store.objects.kind(object_id("blob", b"TOKEN=only-here\n")) is None


def test_sparse_checkout_deletes_nothing(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    in_ws(path, "sparse-checkout", "set", "--no-cone", "/README.md")
    assert not (path / "src").exists()
    (path / "README.md").write_text("sparse\n")
    assert bench.changes() == {"README.md": "modified"}


def test_a_touched_file_of_equal_size_and_time_is_seen(bench: Bench) -> None:
    path = bench.create()
    bench.changes()
    found = (path / "src" / "b.py").stat()
    (path / "src" / "b.py").write_text("b = 2\n")
    os.utime(path / "src" / "b.py", ns=(found.st_atime_ns, found.st_mtime_ns))
    assert bench.changes() == {"src/b.py": "modified"}


def test_untouched_files_are_not_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.create()
    for place in path.rglob("*.*"):
        os.utime(place)
    stats = stats_module.load(os.path.join(state.private(bench.store, "one"), "stat"))
    stats_module.save(bench.store, "one", msgspec.structs.replace(stats, at=stats.at + 10**9))
    capture.capture(bench.store, bench.ws())
    stats = stats_module.load(os.path.join(state.private(bench.store, "one"), "stat"))
    stats_module.save(bench.store, "one", msgspec.structs.replace(stats, at=stats.at + 10**9))
    read: list[bytes] = []
    plain = capture.Files.read

    def spy(self: capture.Files, path: bytes, limit: int | None = None) -> bytes | None:
        read.append(path)
        return plain(self, path, limit)

    monkeypatch.setattr(capture.Files, "read", spy)
    (path / "new").write_text("n")
    capture.capture(bench.store, bench.ws())
    assert [p for p in read if not p.startswith(b".git/")] == [b"new"]


def test_devices_and_pipes_are_left_out(bench: Bench) -> None:
    path = bench.create()
    os.mkfifo(path / "pipe")
    (path / "x").write_text("x\n")
    assert bench.land().landed.changed_paths == ["x"]


def test_a_folder_that_is_gone(bench: Bench) -> None:
    import shutil

    shutil.rmtree(bench.create())
    with pytest.raises(WorkspaceGoneError):
        bench.land()
    assert bench.rw("ws", "status", "one", "--store", bench.store.layout.root)["error"]["code"] == "E_WORKSPACE_GONE"


def test_a5_an_emptied_tree_does_not_land(bench: Bench) -> None:
    import shutil

    path = bench.create()
    shutil.rmtree(path / "src")
    (path / "README.md").unlink()
    with pytest.raises(LandMismatchError) as caught:
        bench.land()
    assert caught.value.details["reason"] == "mass_delete"
    shutil.rmtree(path / ".git")
    with pytest.raises(WorkspaceDamagedError):
        bench.land()


def test_a_damaged_index_or_a_lost_git_folder_keeps_the_tree(bench: Bench) -> None:
    import shutil

    path = bench.create()
    (path / "src" / "b.py").write_text("b = 3\n")
    (path / ".git" / "index").write_bytes(b"DIRC garbage")
    assert bench.changes() == {"src/b.py": "modified"}
    shutil.rmtree(path / ".git")
    done = bench.land()
    assert done.landed.changed_paths == ["src/b.py"]
