"""A workspace as it is made: clean for stock git, byte-exact, found again, and whole after a kill."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import InvalidError
from ropewalk.store import layout, trees
from ropewalk.store.objects import Person
from ropewalk.store.oplog import Move
from ropewalk.store.refs import move as move_refs

from .conftest import MAIN, Bench

ATTRIBUTES = b"* text=auto eol=lf\n*.bin filter=lfs\n*.id ident\n*.u16 working-tree-encoding=UTF-16\n"
WHO = Person(b"x", b"x@example.org", 1_700_000_000, b"+0000")


def commit_tree(bench: Bench, files: dict[bytes, tuple[bytes, bytes]]) -> str:
    """Makes main a commit of these files (mode, content) and gives it."""
    objects = bench.store.objects
    edit = trees.Edit(objects, trees.EMPTY_TREE)
    for path, (mode, data) in files.items():
        edit.set(path, (mode, data if mode == trees.GITLINK else bytes.fromhex(objects.write("blob", data))))
    oid = objects.write_commit(edit.write(), [bench.head()], WHO, WHO, b"files\n")
    new = objects.take_new()
    with bench.store.transaction() as tx:
        tx.journal(new)
    move_refs(bench.store, "a/b", [Move(MAIN, bench.head(), oid)], "test")
    return oid


def test_stock_git_finds_it_clean(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    assert in_ws(path, "status", "--porcelain") == ""
    assert in_ws(path, "rev-parse", "HEAD") == bench.head()
    assert in_ws(path, "branch", "--show-current") == "one"
    assert len(in_ws(path, "log", "--format=%h").splitlines()) == 3
    assert in_ws(path, "config", "user.email") == "one@claude.ropewalk.local"
    assert in_ws(path, "fsck", "--strict") == ""
    assert (path / "src" / "a.py").read_text().startswith("a = 0\n")


def test_a_command_inside_knows_store_and_agent(bench: Bench) -> None:
    path = bench.create()
    assert bench.rw("whoami", folder=path / "src")["result"]["agent"] == "claude/one"
    assert bench.rw("ws", "status", folder=path / "src")["result"]["name"] == "one"


def test_the_same_request_again_makes_nothing(bench: Bench) -> None:
    first = bench.rw("ws", "create", "w", "--store", bench.store.layout.root, agent="a/b")["result"]
    again = bench.rw("ws", "create", "w", "--store", bench.store.layout.root, agent="a/b")["result"]
    assert (first["created"], again["created"]) == (True, False)
    assert {**first, "created": None} == {**again, "created": None}
    assert first["path"].startswith(str(bench.data))


def test_another_request_under_its_name_is_refused(bench: Bench) -> None:
    bench.create()
    with pytest.raises(InvalidError, match="other options"):
        bench.create(path=str(bench.data / "elsewhere"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a..b", "x.lock", "a b", "é", "x" * 101, ".git", "a\n"])
def test_bad_names_are_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidError):
        bench.create(name)
    assert not bench.data.exists() or not any(bench.data.iterdir())


def test_a_folder_with_something_in_it_is_left_alone(bench: Bench) -> None:
    place = bench.folder / "mine"
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidError, match="there already"):
        bench.create(path=str(place))
    assert (place / "thesis.txt").read_text() == "years of work"


def test_it_can_not_be_inside_the_store_or_another(bench: Bench) -> None:
    with pytest.raises(InvalidError, match="inside the store"):
        bench.create("x", path=os.path.join(bench.store.layout.root, "x"))
    with pytest.raises(InvalidError, match="inside another"):
        bench.create("y", path=str(bench.create() / "y"))


def test_files_are_the_blobs_bytes(bench: Bench, in_ws: Any) -> None:
    oid = commit_tree(
        bench,
        {
            b".gitattributes": (trees.FILE, ATTRIBUTES),
            b"crlf.txt": (trees.FILE, b"one\r\ntwo\r\n"),
            b"p.bin": (trees.FILE, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"),
            b"x.id": (trees.FILE, b"$Id$\n"),
            b"y.u16": (trees.FILE, b"plain\n"),
            b"bad-\xff.py": (trees.FILE, b"latin \xe9\n"),
            b"run.sh": (trees.EXEC, b"#!/bin/sh\n"),
            b"deep/er/link": (trees.LINK, b"../../run.sh"),
            b"dangling": (trees.LINK, b"/nowhere/at/all"),
            b"sub": (trees.GITLINK, b"\x11" * 20),
            b"aux.c": (trees.FILE, b"int a;\n"),
            b"empty": (trees.FILE, b""),
        },
    )
    path = bench.create()
    assert in_ws(path, "status", "--porcelain") == ""
    assert bench.changes() == {}
    for name, (mode, data) in bench.tree(oid).items():
        place = os.path.join(os.fsencode(path), b"bad-\xff.py" if name.startswith("base64:") else name.encode())
        found = os.lstat(place)
        if mode == trees.GITLINK:
            assert os.listdir(place) == []
        elif mode == trees.LINK:
            assert os.readlink(place) == data
        else:
            assert Path(os.fsdecode(place)).read_bytes() == data
            assert bool(found.st_mode & stat.S_IXUSR) == (mode == trees.EXEC)


def test_s18_fifty_at_once_all_come_beside_a_held_lock(bench: Bench) -> None:
    """Somebody holds the lock of the repository's settings the whole time; nobody waits for it, or takes it away."""
    lock = Path(bench.store.layout.repo) / "config.lock"
    lock.touch()
    started = [
        subprocess.Popen(
            bench.argv("ws", "create", f"w{n}", "--store", bench.store.layout.root, "--as", "a/b"),
            env=bench.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for n in range(50)
    ]  # fmt: skip
    for child in started:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, (out, err)
    assert lock.exists()
    assert len(bench.rw("ws", "list", "--store", bench.store.layout.root)["result"]["workspaces"]) == 50


@pytest.mark.crash
@pytest.mark.slow
def test_killed_half_way_and_run_again_ends_the_same(bench: Bench, in_ws: Any) -> None:
    dice = random.Random(7)
    argv = bench.argv("ws", "create", "w", "--store", bench.store.layout.root, "--as", "a/b")
    killed = 0
    for n in range(12):
        argv[5] = f"w{n}"
        child = subprocess.Popen(argv, env=bench.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            child.wait(timeout=dice.uniform(0.08, 0.30))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
        assert child.stdout is not None
        child.stdout.close()
        found = bench.rw(*argv[3:])
        assert found["ok"], found
        path = Path(found["result"]["path"])
        assert in_ws(path, "status", "--porcelain") == ""
        assert layout.workspace_mark(str(path)) is not None
    assert killed
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(f"w{n}" for n in range(12))


@pytest.mark.slow
def test_a_file_over_100_mb(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    data = os.urandom(1 << 20) * 101
    (path / "big.bin").write_bytes(data)
    bench.land()
    other = bench.create("two")
    assert (other / "big.bin").read_bytes() == data
    assert in_ws(other, "status", "--porcelain") == ""
