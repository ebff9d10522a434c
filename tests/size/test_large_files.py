"""Large files go through every command with memory for a piece of them: the peak is the kernel's count."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha1
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import StoreCorruptError
from ropewalk.store import changes, files, loose
from ropewalk.store.loose import LARGE, Damaged

SIZE = 48 << 20
LIMIT = 44 << 20
"""Bytes that a command and each of its children stay below."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a file that does not compress, with a line of text at its start, behind which no character begins."""
    path = tmp_path_factory.mktemp("large") / "large.bin"
    with open(path, "wb") as file:
        file.write(b"first\n\x80")
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
    return path


_BETWEEN = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""
"""Is a small process in between: the kernel counts what a program's starter held as the program's own peak."""


class Bounded:
    """Runs commands, and holds the peak of their memory, and of that of each of their children, against a bound."""

    def __init__(self, rw: Any) -> None:
        self.folder, self.env = rw.folder, rw.env
        self.store = str(rw.folder / "store")

    def run(self, *words: str, stdin: bytes = b"", raw: bool = False) -> Any:
        used = self.folder / "used"
        done = subprocess.run(
            [sys.executable, "-S", "-c", _BETWEEN, str(used), sys.executable, "-m", "ropewalk.cli.main", *words],
            cwd=self.folder, input=stdin, capture_output=True, timeout=120,
            env={**self.env, "ROPEWALK_STORE": self.store, "ROPEWALK_AGENT": "test/one"},
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout[:2000], done.stderr)
        peak = int(used.read_text())
        assert peak < LIMIT >> 10, f"rw {' '.join(words)} took {peak >> 10} MiB"
        return done.stdout if raw else msgspec.json.decode(done.stdout)["result"]


def test_a_large_file_takes_no_memory_of_its_size(rw: Any, large: Path, tmp_path: Path) -> None:
    bounded = Bounded(rw)
    bounded.run("init", str(tmp_path), "--no-import")
    first = b'[{"path": "a", "content": {"inline": "a"}}]'
    bounded.run("commit", "-m", "Start", "--changes", "-", "--advance", "main", stdin=first)
    entry = msgspec.json.encode([{"path": "large.bin", "content": {"file": str(large)}}])
    made = bounded.run("commit", "-m", "Large", "--changes", "-", stdin=entry)
    assert bounded.run("land", made["changeset"])["status"] == "landed"
    whole = large.read_bytes()

    page = bounded.run("cat", "main:large.bin", "--offset", str(SIZE // 2), "--max-bytes", "30")
    assert page["size"] == len(whole)
    assert (
        changes.content_bytes(changes.Content(base64=page["content"]), "page", changes.read_disk_file)
        == (whole[SIZE // 2 : SIZE // 2 + 30])
    )
    assert bounded.run("cat", "main:large.bin", "--lines", "1-1")["content"] == "first\n"
    assert sha1(bounded.run("cat", "main:large.bin", "--raw", raw=True)).digest() == sha1(whole).digest()
    rows = {row["path"]: row for row in bounded.run("diff", "main~1", "main")["files"]}
    assert rows["large.bin"]["kind"] == "added" and "added" in rows["large.bin"]
    assert not bounded.run("verify", "--deep")["problems"]
    assert bounded.run("info")["head"]


def test_a_large_content_is_judged_page_by_page(store: Any, tmp_path: Path) -> None:
    text = ("é" * 1000 + "\n") * (LARGE // 2000 + 100)
    path = tmp_path / "text"
    path.write_text(text, encoding="utf-8")
    entry = changes.Change("text", content=changes.Content(file=str(path)))
    made = changes.commit(store, agent="test/one", message="Text", changes=[entry], parent=None, advance=None,
                          key=None, read_file=changes.read_disk_file)  # fmt: skip

    def page(**how: Any) -> files.Page:
        how = {"offset": 0, "max_bytes": 65_536, "lines": None, **how}
        return files.read(store, made.changeset, b"text", "x", **how)

    data = text.encode()
    assert len(data) > LARGE
    got = page(offset=1, max_bytes=9)  # within a character: the page begins with it and ends before the next
    assert (got.encoding, got.offset, got.content) == ("utf8", 0, "é" * 5) and got.next_offset == 10
    number = LARGE // 2001 + 3
    shown = page(lines=files.Lines(number, number))
    assert shown.content == "é" * 1000 + "\n" and shown.lines is not None
    assert shown.lines.total == text.count("\n")
    last = page(offset=len(data) - 3)
    assert last.content == "é\n" and not last.truncated
    assert page(offset=len(data) + 5).content == ""


def test_a_damaged_large_file_is_told(tmp_path: Path) -> None:
    place = loose.LooseStore(str(tmp_path))
    content = os.urandom(LARGE + 5)
    made = place.make("blob", content)
    assert made.packed == b"" and made.id == loose.object_id("blob", content)
    there = place.open(made.id)
    assert there is not None and b"".join(there.parts) == content
    assert place.check(made.id) and not place.check("0" * 40)
    path = Path(place.path(made.id))
    whole = path.read_bytes()
    path.chmod(0o644)
    for damage in (whole[:-1], whole[: len(whole) // 2], whole + b"x", b"", whole[:4000] + b"\0" + whole[4001:]):
        path.write_bytes(damage)
        with pytest.raises(Damaged):
            place.check(made.id)
    assert place.make("blob", content) == made  # what is damaged is written anew
    assert place.check(made.id)


def test_another_size_than_was_said_is_refused(tmp_path: Path) -> None:
    place = loose.LooseStore(str(tmp_path))
    with pytest.raises(Exception, match="changed while it was read"):
        place.make_large("blob", LARGE, iter([b"short"]))
    assert os.listdir(tmp_path) == []


def test_a_large_object_that_breaks_while_it_is_read_is_a_typed_error(store: Any) -> None:
    oid = store.objects.write("blob", os.urandom(LARGE + 1))
    path = Path(store.objects.loose.path(oid))
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1000)
    with pytest.raises(StoreCorruptError):
        for _ in store.objects.open(oid, "blob").parts:
            pass
