"""Reads give what stock git gives, in pages that add up to the whole."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import InvalidError, NotFoundError, RopewalkError
from ropewalk.core.ids import path_text
from ropewalk.operations.context import Context
from ropewalk.operations.registry import load
from ropewalk.store import history
from storekit import Kit, delete, lines, link, move, put


def ask(kit: Kit, name: str, **request: Any) -> Any:
    """Runs an operation as a face does."""
    operation = load(name)
    context = Context(cwd=kit.root, store=kit.root)
    try:
        return operation.run(context, msgspec.convert(request, operation.request))
    finally:
        context.close()


@pytest.fixture
def told(kit: Kit) -> Kit:
    """Gives a store with a landed history of three agents, a rename, a mode, a link and odd names."""
    kit.first(put("a.txt", lines()), put("dir/b.txt", "b\n"), put("dir/sub/c.txt", "c\n"))
    kit.change(put("a.txt", lines("3:three")), agent="one/x")
    kit.change(put("a.txt", lines("3:three", "20:twenty")), agent="two/y")
    kit.change(move("a.txt", "moved.txt"), agent="one/x")
    kit.change(put("moved.txt", lines("3:three", "20:twenty", "29:last")), link("l", "moved.txt"), agent="two/y")
    kit.change(put("x.bin", b"\0\xff\xfe" * 100), put(path_text(b"\xe9t\xe9"), "latin\n"), agent="one/x")
    kit.change(put("dir/b.txt", "b\n", mode="100755"), delete("dir/sub/c.txt"), agent="one/x")
    return kit


def test_pages_of_text_add_up_and_cut_between_characters(kit: Kit) -> None:
    text = "aé€😀\n" * 400
    kit.first(put("t", text))
    for size in (1, 2, 3, 5, 7, 64, 1000):
        got, offset = "", 0
        while True:
            page = ask(kit, "cat", rev="main", path="t", offset=offset, max_bytes=size)
            assert page.encoding == "utf8" and page.offset == offset and page.size == len(text.encode())
            assert page.content and (len(page.content.encode()) <= size or len(page.content) == 1)
            got += page.content
            if not page.truncated:
                assert page.next_offset is None
                break
            offset = page.next_offset
            if size < 64 and len(got) > 60:
                break
        assert text.startswith(got) and (size < 64 or got == text)


def test_an_offset_within_a_character_goes_back_to_its_start(kit: Kit) -> None:
    kit.first(put("t", "a€b"))
    page = ask(kit, "cat", rev="main", path="t", offset=2)
    assert (page.offset, page.content) == (1, "€b")
    assert ask(kit, "cat", rev="main", path="t", offset=99).content == ""


def test_bytes_come_as_base64_in_pages(told: Kit) -> None:
    got, offset = b"", 0
    while True:
        page = ask(told, "cat", rev="main", path="x.bin", offset=offset, max_bytes=101)
        assert page.encoding == "base64"
        got += b64decode(page.content)
        if not page.truncated:
            break
        offset = page.next_offset
    assert got == b"\0\xff\xfe" * 100 == b"".join(history.raw(told.store, "main", "x.bin"))


@pytest.mark.parametrize("form", ["3-5", {"first": 3, "last": 5}])
def test_lines_come_in_both_forms(told: Kit, form: Any) -> None:
    page = ask(told, "cat", rev="main", path="moved.txt", lines=form)
    assert page.content == "line 2\nthree\nline 4\n" and not page.truncated
    assert (page.lines.first, page.lines.last, page.lines.total) == (3, 5, 30)
    first = ask(told, "cat", rev="main", path="moved.txt", lines=form, max_bytes=8)
    rest = ask(told, "cat", rev="main", path="moved.txt", lines=form, offset=first.next_offset)
    assert first.truncated and first.content + rest.content == page.content


def test_lines_at_the_edges(told: Kit) -> None:
    assert ask(told, "cat", rev="main", path="moved.txt", lines="30-").content == "last\n"
    assert ask(told, "cat", rev="main", path="moved.txt", lines="1").content == "line 0\n"
    assert ask(told, "cat", rev="main", path="moved.txt", lines="31-40").content == ""
    for bad in ("0-3", "5-4", "x", "-3", ""):
        with pytest.raises(InvalidError):
            ask(told, "cat", rev="main", path="moved.txt", lines=bad)


def test_what_is_no_file_is_said(told: Kit) -> None:
    assert ask(told, "cat", rev="main", path="l").kind == "symlink"
    for path, wanted in (("dir", InvalidError), ("none", NotFoundError), ("", InvalidError), ("l/x", NotFoundError)):
        with pytest.raises(wanted) as caught:
            ask(told, "cat", rev="main", path=path)
        assert isinstance(caught.value, RopewalkError) and caught.value.hint


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_lists_what_git_lists(told: Kit, packed: bool) -> None:
    if packed:
        from ropewalk.store import maintain

        maintain.collect(told.store)
    rows = []
    after = None
    while True:
        page = ask(told, "ls", rev="main", depth=9, limit=2, **({"after": after} if after else {}))
        rows += page.entries
        if not page.truncated:
            assert page.next is None
            break
        after = page.next
    listed = told.stock("ls-tree", "-r", "-t", "-l", "-z", "main").split("\0")
    wanted = []
    for line in filter(None, listed):
        head, name = line.split("\t", 1)
        _, _, oid, size = head.split()
        wanted.append((path_text(name.encode("utf-8", "surrogateescape")), oid, None if size == "-" else int(size)))
    assert [(r.name, r.id, r.size) for r in rows] == wanted
    assert {r.name: r.kind for r in rows} | {"l": "symlink", "dir": "dir", "dir/b.txt": "exec"} == {
        r.name: r.kind for r in rows
    }
    assert [r.name for r in ask(told, "ls", rev="main", path="dir").entries] == ["b.txt"]
    assert [r.name for r in ask(told, "ls", rev="main", path="dir/b.txt").entries] == ["b.txt"]
    with pytest.raises(InvalidError):
        ask(told, "ls", rev="main", after="nothing")


def test_log_pages_give_every_commit_and_its_agent(told: Kit) -> None:
    rows, before = [], None
    while True:
        page = ask(told, "log", limit=3, **({"before": before} if before else {}))
        rows += page.entries
        if not page.truncated:
            break
        before = page.next
    assert [r.id for r in rows] == told.stock("rev-list", "main").split()
    assert [r.author_agent for r in rows] == ["one/x", "one/x", "two/y", "one/x", "two/y", "one/x", "seed/one"]
    assert {r.title for r in rows} == {"change", "first"}
    some = ask(told, "log", rev="main", path="moved.txt")
    assert [r.id for r in some.entries] == told.stock("rev-list", "main", "--", "moved.txt").split()
    with pytest.raises(InvalidError):
        ask(told, "log", before="0" * 40)


def test_show_says_who_made_and_who_landed(kit: Kit) -> None:
    kit.first(put("a", "1\n"))
    key = "11111111-1111-4111-8111-111111111111"
    made = kit.commit(put("a", "2\n"), put("b", "x\n"), link("c", "a"), agent="one/x", message="Title\n\nBody")
    landed = kit.land(made.changeset, agent="two/y", key=key)
    shown = ask(kit, "show", rev="main")
    assert (shown.id, shown.title, shown.author.agent) == (landed.landed, "Title", "one/x")
    assert shown.lander is not None and shown.lander.agent == "two/y"
    assert (shown.land_key, shown.source, shown.seq) == (key, made.changeset, kit.store.last_op())
    assert [(c.path, c.kind) for c in shown.changes] == [("a", "modified"), ("b", "added"), ("c", "added")]
    page = ask(kit, "show", rev="main", max_changes=2)
    assert page.truncated and page.next == "b"
    assert [c.path for c in ask(kit, "show", rev="main", max_changes=2, after="b").changes] == ["c"]
    plain = ask(kit, "show", rev=made.changeset)
    assert (plain.lander, plain.land_key, plain.author.agent) == (None, None, "one/x")


def test_a_path_is_followed_through_its_rename(told: Kit) -> None:
    rows = ask(told, "history", rev="main", path="moved.txt").entries
    assert [(r.path, r.kind, r.author_agent) for r in rows] == [
        ("moved.txt", "modified", "two/y"),
        ("moved.txt", "renamed", "one/x"),
        ("a.txt", "modified", "two/y"),
        ("a.txt", "modified", "one/x"),
        ("a.txt", "added", "seed/one"),
    ]
    first = ask(told, "history", rev="main", path="moved.txt", limit=2)
    rest = ask(told, "history", rev="main", path="moved.txt", limit=9, before=first.next)
    assert first.truncated and first.entries + rest.entries == rows
    assert len(ask(told, "history", rev="main", path="dir").entries) == 2
    odd = ask(told, "history", rev="main", path=path_text(b"\xe9t\xe9")).entries
    assert [(r.path, r.kind) for r in odd] == [(path_text(b"\xe9t\xe9"), "added")]


def test_diff_rows_and_text_are_gits(told: Kit) -> None:
    old = told.stock("rev-list", "--max-parents=0", "main")
    whole = ask(told, "diff", old=old, new="main", max_bytes=1 << 20)
    assert not whole.truncated and whole.next is None
    rows = {r.path: (r.kind, r.added, r.deleted) for r in whole.files}
    assert rows["moved.txt"] == ("renamed", 3, 3)
    assert rows["dir/b.txt"] == ("mode", 0, 0)
    assert rows["dir/sub/c.txt"] == ("deleted", 0, 1)
    assert rows["x.bin"] == ("added", None, None)
    assert rows[path_text(b"\xe9t\xe9")] == ("added", 1, 0)
    assert whole.text.encode() == told.stock("diff-tree", "-p", "-M", old, "main").encode() + b"\n"
    text, files, after = "", [], None
    while True:
        page = ask(told, "diff", old=old, new="main", limit=2, max_bytes=400, **({"after": after} if after else {}))
        text, files = text + page.text, files + page.files
        if page.next is None:
            break
        after = page.next
    assert [f.path for f in files] == [f.path for f in whole.files]
    assert text == whole.text or any(f.cut for f in files)
    one = ask(told, "diff", old=old, new="main", path="dir")
    assert sorted(f.path for f in one.files) == ["dir/b.txt", "dir/sub/c.txt"]


def test_a_file_longer_than_a_page_is_cut_at_a_line(kit: Kit) -> None:
    kit.first(put("a", "x\n"))
    kit.change(put("b", "y" * 50 + "\n" + "z\n" * 1000), put("c", "c\n"))
    page = ask(kit, "diff", old="main~1", new="main", max_bytes=300)
    assert [(f.path, f.cut) for f in page.files] == [("b", True)] and page.truncated and page.next == "b"
    assert page.text.endswith("\n") and len(page.text) <= 300
    rest = ask(kit, "diff", old="main~1", new="main", max_bytes=300, after="b")
    assert [(f.path, f.cut) for f in rest.files] == [("c", False)] and not rest.truncated


def test_a_file_that_became_a_link_keeps_its_text_in_its_row(kit: Kit) -> None:
    kit.first(put("a", "x\n"), put("b", "1\n"))
    kit.change(link("a", "b"), put("b", "2\n"))
    page = ask(kit, "diff", old="main~1", new="main", limit=1)
    assert [(f.path, f.kind) for f in page.files] == [("a", "type")]
    assert page.text.count("diff --git a/a b/a") == 2 and "b/b" not in page.text


def test_blame_names_the_agent_of_each_line(told: Kit) -> None:
    page = ask(told, "blame", rev="main", path="moved.txt")
    agents = {r.line: r.agent for r in page.lines}
    assert (agents[4], agents[21], agents[30], agents[1]) == ("one/x", "two/y", "two/y", "seed/one")
    assert "".join(r.text + "\n" for r in page.lines) == lines("3:three", "20:twenty", "29:last")
    first = ask(told, "blame", rev="main", path="moved.txt", lines="3-8", limit=4)
    assert [r.line for r in first.lines] == [3, 4, 5, 6] and first.truncated and first.next == 7
    assert ask(told, "blame", rev="main", path="moved.txt", lines="31-33").lines == []


def test_grep_pages_add_up(kit: Kit) -> None:
    kit.first(*[put(f"d{n % 3}/f{n:02}", f"needle {n}\nhay\nNeedle {n}\n") for n in range(70)], put("x", b"\0needle"))
    rows, after = [], None
    while True:
        page = ask(kit, "grep", pattern="n(ee)dle", limit=7, ignore_case=True, **({"after": after} if after else {}))
        rows += page.matches
        if not page.truncated:
            break
        after = page.next
    wanted = kit.stock("grep", "-I", "-n", "-i", "needle", "main").split("\n")
    assert [f"main:{r.path}:{r.line}:{r.text}" for r in rows] == wanted and len(rows) == 140
    assert len(ask(kit, "grep", pattern="needle", path="d1").matches) == 23
    with pytest.raises(InvalidError):
        ask(kit, "grep", pattern="n(e")
    assert ask(kit, "grep", pattern="n(e", fixed=True).matches == []


def test_reads_neither_write_nor_take_the_lock(told: Kit) -> None:
    held = told.again()
    held.store.lock.acquire(1)
    try:
        before = told.store.last_op()
        for name, request in (
            ("cat", {"rev": "main", "path": "l"}),
            ("ls", {"rev": "main"}),
            ("log", {}),
            ("show", {"rev": "main"}),
            ("diff", {"old": "main~1", "new": "main"}),
            ("blame", {"rev": "main", "path": "moved.txt"}),
            ("grep", {"pattern": "line"}),
            ("history", {"rev": "main", "path": "dir"}),
            ("resolve", {"rev": "main"}),
        ):
            ask(told, name, **request)
        assert told.store.last_op() == before
    finally:
        held.store.lock.release()
        held.close()


def test_every_list_says_whether_it_is_cut() -> None:
    for name in ("log", "ls", "show", "history", "diff", "blame", "grep"):
        response = load(name).response
        fields = {f.encode_name: f for f in msgspec.structs.fields(response)}
        assert fields["truncated"].required and "next" in fields, name
