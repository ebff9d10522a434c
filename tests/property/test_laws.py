"""Laws that hold for every history: merges, undo, keys, change lists and reports."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ropewalk.core.errors import ConflictError, EmptyCommitError, InvalidError, KeyReusedError
from ropewalk.store import changes, merge, oplog, refs, trees
from ropewalk.store.changes import Change, Content, read_disk_file
from ropewalk.store.objects import Objects
from ropewalk.store.trees import EXEC, FILE
from storekit import MAIN, Files, Kit, delete, lines, move, put, read_tree, write_tree

settings.register_profile("exact", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("exact")

PATHS = [b"a", b"b", b"d/a", b"d/b", b"d/e/a", b"d/e/b", b"f/a", b"a.txt", b"d.txt", b"d/e.txt"]
TEXTS = [b"", b"1\n2\n3\n4\n5\n6\n7\n8\n", b"one\n2\n3\n4\n5\n6\n7\n8\n", b"1\n2\n3\n4\n5\n6\n7\neight\n", b"x\0y"]
MODELS = st.dictionaries(
    st.sampled_from(PATHS), st.tuples(st.sampled_from([FILE, EXEC]), st.sampled_from(TEXTS)), min_size=1, max_size=7
)


@contextmanager
def fresh() -> Iterator[Kit]:
    """Gives a store for one example."""
    with tempfile.TemporaryDirectory() as folder:
        kit = Kit(folder + "/s")
        try:
            yield kit
        finally:
            kit.close()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    """Gives the objects of one store for all examples."""
    kit = Kit(str(tmp_path_factory.mktemp("laws") / "s"))
    yield kit.store.objects
    kit.close()


@given(MODELS, MODELS)
def test_merging_with_an_untouched_side_gives_the_other(objects: Objects, base: Files, side: Files) -> None:
    b, x = write_tree(objects, base), write_tree(objects, side)
    assert merge.merge(objects, b, x, b).tree == x
    assert merge.merge(objects, b, b, x).tree == x
    assert merge.merge(objects, b, x, x).tree == x


@settings(max_examples=40)
@given(MODELS, MODELS, MODELS)
def test_cleanliness_and_result_do_not_depend_on_the_order_of_sides(
    objects: Objects, base: Files, one: Files, two: Files
) -> None:
    b, x, y = (write_tree(objects, m) for m in (base, one, two))
    forth, back = merge.merge(objects, b, x, y), merge.merge(objects, b, y, x)
    assert forth.clean == back.clean
    assert forth.by == back.by
    if forth.clean:
        assert forth.tree == back.tree
    else:
        assert {c.path for c in forth.conflicts} == {c.path for c in back.conflicts}


@settings(max_examples=15)
@given(st.permutations(range(5)), st.permutations(range(5)))
def test_disjoint_changes_land_in_any_order_to_the_same_tree(one: list[int], two: list[int]) -> None:
    ends = []
    for order in (one, two):
        with fresh() as kit:
            kit.first(*[put(f"d{n}/f.txt", lines()) for n in range(5)], put("shared.txt", lines(count=60)))
            made = [
                kit.commit(put(f"d{n}/f.txt", lines(f"{n}:mine")), put("shared.txt", lines(f"{n * 12}:{n}", count=60)),
                           agent=f"a/n{n}").changeset
                for n in range(5)
            ]  # fmt: skip
            for n in order:
                kit.land(made[n], agent=f"a/n{n}")
            ends.append(kit.store.objects.commit(kit.main()).tree)
    assert ends[0] == ends[1]


class Model:
    """Is what a change list should make of files: path to (mode, content)."""

    def __init__(self, files: dict[bytes, tuple[bytes, bytes]]) -> None:
        self.before = files
        self.gone: set[bytes] = set()
        self.new: dict[bytes, tuple[bytes, bytes]] = {}

    def below(self, path: bytes) -> list[bytes]:
        return [p for p in self.before if p == path or p.startswith(path + b"/")]

    def add(self, change: Change) -> None:
        """Applies one entry of a list; entries see the files as they were before the list."""
        path = change.path.encode()
        if change.op == "delete":
            self.gone.update(self.below(path))
        elif change.op == "move":
            source = (change.from_ or "").encode()
            self.gone.add(path)
            for old in self.below(source):
                self.gone.add(old)
                self.new[path + old[len(source) :]] = self.before[old]
        elif change.op == "mode":
            self.new[path] = (EXEC, self.before[path][1])
        else:
            kept = self.before[path][0] if path in self.before else FILE
            assert change.content is not None
            self.new[path] = (kept, (change.content.inline or "").encode())

    def result(self) -> dict[bytes, tuple[bytes, bytes]]:
        return {**{p: v for p, v in self.before.items() if p not in self.gone}, **self.new}


NAMES = [p.decode() for p in PATHS] + ["d", "d/e", "f", "new/x", "d/new"]
ENTRIES = st.one_of(
    st.builds(lambda p, t: put(p, t), st.sampled_from(NAMES), st.sampled_from(["", "p\n", "q\n"])),
    st.builds(delete, st.sampled_from(NAMES)),
    st.builds(move, st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.builds(lambda p: Change(path=p, op="mode", mode="100755"), st.sampled_from(NAMES)),
)


@settings(max_examples=600)
@given(MODELS, st.lists(ENTRIES, min_size=1, max_size=4))
def test_change_lists_do_to_a_tree_what_they_say(module_kit: Kit, files: Files, entries: list[Change]) -> None:
    """A list that is taken gives exactly the model's files; one that is refused says why."""
    assume(not any(q.startswith(p + b"/") for p in files for q in files))
    store = module_kit.store
    root = write_tree(store.objects, files)
    try:
        tree = changes.apply(store, root, entries, read_disk_file)
    except InvalidError:
        return
    model = Model(dict(files))
    for entry in entries:
        model.add(entry)
    wanted = model.result()
    assert read_tree(store.objects, tree) == wanted, entries
    assert tree == write_tree(store.objects, wanted), entries
    for path, entry in trees.walk(store.objects, tree):
        assert entry[0] in (FILE, EXEC), path
        assert store.objects.kind(entry[1].hex()) == "blob", path


@pytest.fixture(scope="module")
def module_kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """Gives one store for all examples."""
    kit = Kit(str(tmp_path_factory.mktemp("lists") / "s"))
    yield kit
    kit.close()


def test_removing_a_folder_and_filling_it_anew_leaves_only_the_new(kit: Kit) -> None:
    kit.first(put("d/old", "1\n"), put("d/e/old", "2\n"), put("keep", "k\n"))
    made = kit.commit(delete("d"), put("d/new", "3\n"))
    assert set(kit.files(made.changeset)) == {b"d/new", b"keep"}
    for entries in ([delete("d"), delete("d/old")], [delete("d/old"), delete("d")]):
        made = kit.commit(*entries)
        assert set(kit.files(made.changeset)) == {b"keep"}, entries


@pytest.mark.parametrize("extra", [{"mode": "100755"}, {"content": Content(inline="x")}])
def test_a_folder_that_moves_takes_neither_mode_nor_content(kit: Kit, extra: dict[str, Any]) -> None:
    """Else the tree would name a folder as a file, or a file as a folder."""
    kit.first(put("d/f", "1\n"))
    with pytest.raises(InvalidError):
        kit.commit(Change(path="e", op="move", from_="d", **extra))
    kit.fsck()


@settings(max_examples=20)
@given(st.lists(st.sampled_from(["land", "ref", "undo", "redo"]), min_size=1, max_size=8))
def test_an_undo_of_an_undo_gives_every_ref_back(steps: list[str]) -> None:
    """Whatever came before, undoing an operation twice leaves all refs where they were, and the log whole."""
    with fresh() as kit:
        kit.first(put("f", "0\n"))
        for n, step in enumerate(steps):
            if step == "land":
                kit.change(put(f"n{n}", f"{n}\n"), allow_reland=True)
            elif step == "ref":
                refs.move(kit.store, "a/b", [oplog.Move(f"refs/heads/r{n}", None, kit.main())], "ref_set")
            before = kit.store.refs()
            op, _, already = refs.undo(kit.store, "a/b", kit.store.last_op())
            assert not already
            assert kit.store.refs() != before
            refs.undo(kit.store, "a/b", op)
            assert kit.store.refs() == before
            if step == "undo" and kit.store.last_op() > 2 and n:
                refs.undo(kit.store, "a/b", kit.store.last_op())
            if kit.store.ref(MAIN) is None:
                return
        assert oplog.check_chain(kit.store.db) is None
        shown = kit.stock("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        assert [tuple(line.split(" ")) for line in shown] == kit.store.refs()


KEY = str(uuid.UUID(int=7))


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["same", "other", "empty"]), min_size=1, max_size=6))
def test_a_key_binds_the_first_request_that_succeeds(asks: list[str]) -> None:
    """Same key and request: the first result, replayed. Another request: refused. A failure binds nothing."""
    with fresh() as kit:
        head = kit.first(put("f", "0\n"))
        bound: str | None = None
        first = ""
        for ask in asks:
            entry = put("f", {"same": "1\n", "other": "2\n", "empty": "0\n"}[ask])
            ops = kit.store.last_op()
            if bound is not None and ask != bound:
                with pytest.raises(KeyReusedError):
                    kit.commit(entry, parent=head, key=KEY)
            elif ask == "empty":
                with pytest.raises(EmptyCommitError):
                    kit.commit(entry, parent=head, key=KEY)
            else:
                made = kit.commit(entry, parent=head, key=KEY)
                assert made.replayed == (bound is not None)
                first, bound = first or made.changeset, ask
                assert made.changeset == first
                if not made.replayed:
                    continue
            assert kit.store.last_op() == ops
        if bound is not None:
            landed = kit.land(first, key=KEY)
            assert landed.status == "landed"
            again = kit.land(first, key=KEY)
            assert (again.status, again.landed) == ("replayed", landed.landed)


@given(st.sets(st.integers(0, 39), min_size=1, max_size=4), st.sets(st.integers(0, 39), min_size=1, max_size=4))
@settings(max_examples=25)
def test_hunks_of_a_report_are_the_texts_that_clash(mine: set[int], yours: set[int]) -> None:
    """Each side of a hunk is, at its line numbers, what that side's file says there."""
    with fresh() as kit:
        kit.first(put("f", lines(count=40)))
        texts = {
            "base": lines(count=40),
            "ours": lines(*[f"{n}:mine {n}" for n in mine], count=40),
            "theirs": lines(*[f"{n}:yours {n}" for n in yours], count=40),
        }
        ours = kit.commit(put("f", texts["ours"]), agent="a/one").changeset
        kit.change(put("f", texts["theirs"]), agent="a/two")
        try:
            kit.land(ours, agent="a/one")
        except ConflictError as error:
            found = error.details["report"]
            assert found["theirs"] == kit.main()
            (file,) = found["files"]
            assert file["path"] == "f" and file["kinds"] == ["content"] and file["hunks"]
            for hunk in file["hunks"]:
                for side, text in texts.items():
                    part = hunk[side]
                    rows = text.splitlines(keepends=True)[part["start"] - 1 : part["start"] - 1 + part["count"]]
                    assert part["text"] == "".join(rows)
            parts = [h["ours"] for h in file["hunks"]]
            assert {n for p in parts for n in range(p["start"] - 1, p["start"] - 1 + p["count"])} & mine
        else:
            apart = min(abs(a - b) for a in mine for b in yours)
            assert apart >= 1
