"""What grows with a store costs no git process, and no walk, for each of what there is many of."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.remote import importing
from ropewalk.store import difftext, grep, land, layout, lineage, projection, revisions
from ropewalk.store.store import Store
from ropewalk.workspace import state

COMMITS, SIDE, MANY = 900, 200, 60


def history() -> Iterator[bytes]:
    """Yields for `git fast-import` a main of 900 commits with merges in it, and a side of 200 that left early."""

    def commit(ref: str, mark: int, parents: list[int], path: str, text: str) -> bytes:
        raw = text.encode()
        who = f"A <a@example.org> {1_600_000_000 + mark * 60} +0000"
        lines = [f"commit refs/heads/{ref}", f"mark :{mark}", f"author {who}", f"committer {who}", "data 1", "m"]
        lines += [f"{'merge' if n else 'from'} :{parent}" for n, parent in enumerate(parents)]
        return "\n".join([*lines, f"M 100644 inline {path}", f"data {len(raw)}", ""]).encode() + raw + b"\n"

    yield commit("main", 1, [], "a", "0\n")
    last, other = 1, 0
    for mark in range(2, COMMITS + 1):
        if mark % 50 == 10:
            yield commit("main", mark, [last], "b", f"{mark}\n")
            other, last = last, mark
        elif mark % 50 == 11:
            yield commit("main", mark, [other], "c", f"{mark}\n")
            other = mark
        elif mark % 50 == 12:
            yield commit("main", mark, [last, other], "a", f"{mark}\n")
            last = mark
        else:
            yield commit("main", mark, [last], "a", f"{mark}\n")
            last = mark
    start, mark = 101, COMMITS
    for number in range(SIDE):
        mark += 1
        yield commit("side", mark, [start if not number else mark - 1], f"side/{number % 7}", f"{number}\n")
    yield b"done\n"


@pytest.fixture
def long(tmp_path: Path, git: Any) -> Iterator[Store]:
    """Gives a store with that history, both branches imported."""
    source = tmp_path / "source.git"
    git("init", "--quiet", "--bare", str(source))
    git("fast-import", "--quiet", "--done", folder=source, stdin=b"".join(history()))
    layout.create(str(tmp_path / "store"), "long-store", "long", "main")
    with Store(str(tmp_path / "store")) as store:
        for name in ("main", "side"):
            importing.import_branch(store, str(source), name, into=None, actor="test/one")
        yield store


class Counter:
    """Puts a program in front of git that notes each start and then is git."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "started"
        self.path = folder / "front"
        self.path.mkdir()
        front = self.path / "git"
        front.write_text(f'#!/bin/sh\necho >> {self.notes}\nexec {shutil.which("git")} "$@"\n')
        front.chmod(front.stat().st_mode | stat.S_IXUSR)

    def count(self) -> int:
        """Gives how often git was started since the last question."""
        found = len(self.notes.read_bytes()) if self.notes.exists() else 0
        self.notes.unlink(missing_ok=True)
        return found


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Counts how often git is started."""
    counter = Counter(tmp_path)
    monkeypatch.setenv("PATH", f"{counter.path}{os.pathsep}{os.environ['PATH']}")
    return counter


def test_how_far_many_bases_are_behind_is_what_git_counts(long: Store, started: Counter) -> None:
    head = long.ref("refs/heads/main")
    assert head is not None
    ids = long.git("rev-list", "--branches").text().split()
    bases = [head, *random.Random(5).sample(ids, MANY)]
    started.count()
    found = lineage.behind(long, head, bases)
    wanted = {b: int(long.git("rev-list", "--count", f"{b}..{head}").text()) for b in set(bases)}
    assert {b: found[b] for b in bases} == wanted
    linear = long.git("rev-list", "--max-count=30", head).text().split()
    started.count()
    lineage.behind(long, head, linear)
    assert started.count() <= 8, "a base on the branch takes no git process of its own"


def test_the_base_of_a_long_change_takes_few_git_processes(long: Store, started: Counter) -> None:
    head, change = long.ref("refs/heads/main"), long.ref("refs/heads/side")
    assert head is not None and change is not None
    started.count()
    base = lineage.find_base(long, "refs/heads/main", head, change, allow_reland=False)
    assert started.count() <= 3
    assert base.commit == long.git("merge-base", head, change).text()
    assert sorted(base.own) == sorted(long.git("rev-list", change, f"^{head}").text().split())
    done = land.land(long, land.request(agent="test/one", change=change, ref="refs/heads/main"))
    assert done.status == "landed" and len(done.changed_paths) == 7


def test_many_refs_and_workspaces_take_few_git_processes(long: Store, started: Counter, rw: Any) -> None:
    rw.store = long.layout.root
    ids = long.git("rev-list", "--max-count=300", "refs/heads/main").text().split()
    moves = [{"name": f"topic/{n}", "target": oid} for n, oid in enumerate(ids)]
    with long.transaction() as tx:
        tx.record("test", "test/one")
        for number, oid in enumerate(ids):
            row = (f"w{number}", f"{long.layout.root}-none", oid, oid, "refs/heads/main", "test/one", 1, "ready")
            tx.db.run(f"INSERT INTO workspaces ({state._COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", row)
    path = os.environ["PATH"]
    started.count()
    moved = rw.ok("ref", "move", "-", stdin=msgspec.json.encode(moves), env={"PATH": path})
    assert len(moved["ref_moves"]) == len(ids) and started.count() <= 10
    listed = rw.ok("ws", "list", env={"PATH": path})["workspaces"]
    assert started.count() <= 40, "only those on one side of a merge are counted one by one"
    assert [row["behind"] for row in listed if row["base"] == ids[4]] == [4]
    assert all(row["state"] == "gone" for row in listed)
    shown = long.git("for-each-ref", "--format=%(objectname)", "refs/heads/topic").text().split()
    assert sorted(shown) == sorted(ids)


def test_a_far_ancestor_is_the_one_that_steps_lead_to(long: Store) -> None:
    one_by_one = "main" + "^" * 60
    assert revisions.resolve(long, "main~60") == revisions.resolve(long, one_by_one)
    with pytest.raises(Exception, match="fewer than"):
        revisions.resolve(long, f"main~{COMMITS + 1}")


def test_one_ref_is_found_among_packed_ones(tmp_path: Path) -> None:
    one, two = "1" * 40, "2" * 40
    lines = [f"{one} refs/heads/a/b", f"{two} refs/heads/b", f"{two} refs/tags/t", f"^{one}"]
    (tmp_path / "packed-refs").write_text("\n".join(["# pack-refs with: peeled fully-peeled sorted", *lines, ""]))
    wanted = projection.packed_refs(str(tmp_path))
    assert wanted == {"refs/heads/a/b": one, "refs/heads/b": two, "refs/tags/t": two}
    for name in [*wanted, "b", "heads/b", "refs/heads/a", "refs/heads/none"]:
        assert projection.read_ref(str(tmp_path), name) == wanted.get(name)


def test_rows_of_a_diff_count_what_git_counts(long: Store, git: Any, tmp_path: Path) -> None:
    repo = tmp_path / "odd"
    git("init", "--quiet", str(repo))
    (repo / "text").write_text("".join(f"{n}\n" for n in range(30)))
    (repo / "old").write_text("".join(f"line {n}\n" for n in range(30)))
    (repo / "gone").write_text("--- a\n+++ b\n@@ -1 +1 @@\n")
    (repo / "binary").write_bytes(b"\0\1" * 900)
    (repo / "to-link").write_text("x\n")
    git("add", "-A", folder=repo)
    git("commit", "--quiet", "-m", "one", folder=repo)
    (repo / "text").write_text("".join(f"{n}\n" for n in range(5, 40)) + "no end")
    (repo / "old").rename(repo / "new")
    with open(repo / "new", "a") as file:
        file.write("@@ -1 +1 @@\n-x\n+x\n")
    (repo / "gone").unlink()
    (repo / "binary").write_bytes(b"\0\2" * 900)
    (repo / 'added\n"name"').write_bytes(b"++\n--\n")
    (repo / "large\t\xe9").write_bytes(b"\0" * (16 << 20))
    (repo / "empty").touch()
    (repo / "to-link").unlink()
    (repo / "to-link").symlink_to("x")
    git("add", "-A", folder=repo)
    git("commit", "--quiet", "-m", "two", folder=repo)
    importing.import_branch(long, str(repo), None, into="refs/heads/odd", actor="test/one")
    old, new = revisions.resolve(long, "odd~1"), revisions.resolve(long, "odd")
    found = difftext.diff(long, old, new, path=b"", after=None, limit=100, max_bytes=1 << 20)
    out = long.git("diff-tree", "-r", "-z", "--numstat", "-M", old, new).out.split(b"\0")
    wanted, at = {}, 0
    while at < len(out) and out[at]:
        added, deleted, name = out[at].split(b"\t", 2)
        at += 1
        if not name:
            name, at = out[at + 1], at + 2
        wanted[name.decode()] = tuple(None if n == b"-" else int(n) for n in (added, deleted))
    assert {row.path: (row.added, row.deleted) for row in found.files} == wanted
    whole = long.git("-c", "core.bigFileThreshold=16m", "diff-tree", "-r", "-p", "-M", "--abbrev=7",
                     "--diff-algorithm=myers", old, new).out  # fmt: skip
    assert found.text.encode() == whole
    back = difftext.diff(long, new, old, path=b"", after=None, limit=100, max_bytes=1 << 20)
    assert [r.kind for r in back.files if r.path.startswith("large")] == ["deleted"]
    assert "deleted file mode 100644" in back.text


def test_matches_come_page_by_page_whatever_names_and_lines_are(long: Store) -> None:
    from ropewalk.store import changes

    names = {f"p/{n}": "hit\n" * 3 for n in range(8)}
    names |= {"p\nq": "x\nhit\n", "p/long": "hit" + "y" * 300_000 + "\nhit\n", "p.x/z": "hit"}
    entries = [changes.Change(n, content=changes.Content(inline=t)) for n, t in names.items()]
    made = changes.commit(long, agent="test/one", message="Names", changes=entries, parent=None, advance=None,
                          key=None, read_file=changes.read_disk_file)  # fmt: skip
    wanted = sorted((name.encode(), number) for name, text in names.items()
                    for number, line in enumerate(text.splitlines(), 1) if "hit" in line)  # fmt: skip
    for limit in (1, 4, 100):
        got, after = [], None
        while True:
            page = grep.grep(long, made.changeset, "hit", path=b"", ignore_case=False, fixed=True, after=after,
                             limit=limit)  # fmt: skip
            got += [(match.path.encode(), match.line) for match in page.matches]
            assert all(len(match.text) <= 500 for match in page.matches)
            if (after := page.next) is None:
                break
        assert got == wanted
