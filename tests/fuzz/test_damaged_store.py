"""Stores that can't be used: each gives its typed error and exit code, to every kind of command, and no traceback."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

COMMANDS = {
    "info": ["info"],
    "log": ["log", "main"],
    "ref list": ["ref", "list"],
    "commit": ["commit", "-m", "m", "--changes", "changes.json", "--advance", "main"],
    "land": ["land", "main"],
    "op log": ["op", "log"],
}
WRITES = ("commit",)


def rw(folder: Path, *words: str, **env: str) -> tuple[int, Any]:
    """Gives (exit code, envelope) of a command run as a process."""
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.main", *words, "--as", "test/one"],
        cwd=folder,
        capture_output=True,
        check=False,
        env={**os.environ, **env},
        timeout=60,
    )
    assert done.stdout.count(b"\n") == 1 and b"Traceback" not in done.stderr, done
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> Path:
    """Is a folder with a store to copy from."""
    folder: Path = tmp_path_factory.mktemp("made")
    assert rw(folder, "init", "--branch", "main")[0] == 0
    (folder / "changes.json").write_text(json.dumps([{"path": "a", "content": {"inline": "a\n"}}]))
    assert rw(folder, *COMMANDS["commit"])[0] == 0
    (folder / "changes.json").write_text(json.dumps([{"path": "b", "content": {"inline": "b\n"}}]))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "w", symlinks=True)
    return tmp_path / "w"


def _format(text: str) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        (store / "FORMAT").write_text(text)

    return damage


def _no_database(store: Path) -> None:
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (store / name).unlink(missing_ok=True)


def _garbage_database(store: Path) -> None:
    _no_database(store)
    (store / "store.db").write_bytes(os.urandom(20_000))


def _empty_database(store: Path) -> None:
    _no_database(store)
    (store / "store.db").write_bytes(b"")


def _folder_database(store: Path) -> None:
    _no_database(store)
    (store / "store.db").mkdir()


DAMAGES = {
    "FORMAT of a newer ropewalk": (_format('{"format": 99, "id": "x", "name": "y"}'), {"E_STORE_FORMAT"}),
    "FORMAT that is garbage": (_format("\x00garbage"), {"E_STORE_FORMAT"}),
    "FORMAT that is empty": (_format(""), {"E_STORE_FORMAT"}),
    "FORMAT of another shape": (_format("[1, 2]"), {"E_STORE_FORMAT"}),
    "no database": (_no_database, {"E_STORE_CORRUPT"}),
    "a database of garbage": (_garbage_database, {"E_STORE_CORRUPT"}),
    "an empty database": (_empty_database, {"E_STORE_CORRUPT"}),
    "a folder in the place of the database": (_folder_database, {"E_STORE_CORRUPT", "E_IO"}),
}
EXITS = {"E_STORE_FORMAT": 8, "E_STORE_CORRUPT": 8, "E_IO": 7, "E_NO_SPACE": 7, "E_NOT_FOUND": 4, "E_UNSUPPORTED": 2}


def refused(reply: tuple[int, Any], codes: set[str], shown: object) -> None:
    """Checks that a command was refused with one of some codes, its exit number, and a hint."""
    code, envelope = reply
    assert not envelope["ok"], f"{shown}: {envelope}"
    error = envelope["error"]
    assert error["code"] in codes and code == error["exit"] == EXITS[error["code"]], f"{shown}: {envelope}"
    assert error["message"] and error.get("hint"), f"{shown}: {envelope}"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_named_as_what_it_is(damage: str, folder: Path) -> None:
    spoil, codes = DAMAGES[damage]
    spoil(folder / ".ropewalk")
    for name, words in COMMANDS.items():
        refused(rw(folder, *words), codes, f"{damage}, {name}")


def test_a_folder_that_is_no_store(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "file").write_text("x")
    for place in (empty, tmp_path / "nowhere", tmp_path / "file", Path("/dev/null")):
        for name, words in COMMANDS.items():
            refused(rw(folder, *words, "--store", str(place)), {"E_NOT_FOUND"}, f"{place}, {name}")
    refused(rw(empty, "info"), {"E_NOT_FOUND"}, "found from an empty folder")


def test_without_git_reads_say_what_to_install_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "bin"
    nothing.mkdir()
    before = rw(folder, "op", "log")[1]["result"]
    for name, words in {"init": ["init", "other"], "log": ["log", "main", "--path", "a"], "verify": ["verify"]}.items():
        code, envelope = rw(folder, *words, PATH=str(nothing))
        if name == "init":
            refused((code, envelope), {"E_UNSUPPORTED"}, name)
        else:
            assert envelope["ok"] or (envelope["error"]["code"], code) == ("E_UNSUPPORTED", 2), envelope
    assert not (folder / "other" / ".ropewalk").exists()
    assert rw(folder, "op", "log")[1]["result"] == before


@pytest.fixture
def mounted() -> Iterator[Callable[..., None]]:
    """Mounts for the time of a test; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    places: list[str] = []

    def mount(*words: str) -> None:
        done = subprocess.run(["mount", *words], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"mount is not allowed here: {done.stderr.decode().strip()}")
        places.append(words[-1])

    yield mount
    for place in reversed(dict.fromkeys(places)):
        subprocess.run(["umount", "-l", place], check=True)


def test_a_read_only_mount_takes_no_write_and_says_so(folder: Path, mounted: Callable[..., None]) -> None:
    store = str(folder / ".ropewalk")
    mounted("--bind", store, store)
    subprocess.run(["mount", "-o", "remount,ro,bind", store], check=True)
    for name in WRITES:
        refused(rw(folder, *COMMANDS[name]), {"E_IO"}, name)
    for name in ("info", "log", "ref list", "op log"):
        code, envelope = rw(folder, *COMMANDS[name])
        assert envelope["ok"] or (envelope["error"]["code"], code) == ("E_IO", 7), envelope


def test_a_full_disk_is_named_and_nothing_is_lost(folder: Path, tmp_path: Path, mounted: Callable[..., None]) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small))
    store = small / "store"
    shutil.copytree(folder / ".ropewalk", store, symlinks=True)
    before = rw(folder, "ref", "list", "--store", str(store))[1]["result"]
    with open(small / "filler", "wb") as filler:
        try:
            while True:
                filler.write(b"\0" * 65_536)
                filler.flush()
        except OSError:
            pass
    big = [{"path": "big", "content": {"base64": base64.b64encode(os.urandom(1_500_000)).decode()}}]
    (folder / "changes.json").write_text(json.dumps(big))
    refused(rw(folder, *COMMANDS["commit"], "--store", str(store)), {"E_NO_SPACE"}, "commit")
    (small / "filler").unlink()
    assert rw(folder, "ref", "list", "--store", str(store))[1]["result"] == before
    code, envelope = rw(folder, *COMMANDS["commit"], "--store", str(store))
    assert code == 0, envelope
    assert rw(folder, "verify", "--store", str(store))[1]["result"]["problems"] == []


def test_a_damaged_store_by_mcp_keeps_the_server(folder: Path) -> None:
    (folder / ".ropewalk" / "FORMAT").write_text("garbage")
    calls = [{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "info"}} for n in range(3)] + [
        {"jsonrpc": "2.0", "id": 3, "method": "ping"}
    ]
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.main", "mcp"],
        input=b"".join(json.dumps(c).encode() + b"\n" for c in calls),
        capture_output=True,
        cwd=folder,
        check=False,
    )
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["id"] for r in replies] == [0, 1, 2, 3] and done.returncode == 0 and done.stderr == b""
    assert {r["result"]["structuredContent"]["error"]["code"] for r in replies[:3]} == {"E_STORE_FORMAT"}
