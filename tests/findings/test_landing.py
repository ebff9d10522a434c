"""Findings about landing: bases, silent reverts, integrity, merges that hide conflicts (A9 to A12, A29, A42)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropewalk.core.errors import (
    CasMismatchError,
    ConflictError,
    FencedError,
    InvalidError,
    LandMismatchError,
    RopewalkError,
)
from ropewalk.store import land, merge, oplog, refs, trees
from ropewalk.store.changes import Content
from ropewalk.store.merge import Merged
from ropewalk.store.objects import Objects
from storekit import MAIN, FileResolution, Kit, answer, delete, lines, link, move, put, refused, stock


def conflicts(kit: Kit, change: str, agent: str = "a/b") -> dict[str, list[str]]:
    """Gives path to kinds of the conflict that a land meets."""
    before = kit.store.last_op(), kit.store.refs()
    with pytest.raises(ConflictError) as caught:
        kit.land(change, agent=agent)
    assert (kit.store.last_op(), kit.store.refs()) == before
    return {f["path"]: f["kinds"] for f in caught.value.details["report"]["files"]}


# A9


def test_A9_two_renames_of_one_file(kit: Kit) -> None:
    kit.first(put("x", lines()))
    one, two = kit.commit(move("x", "n1")).changeset, kit.commit(move("x", "n2"), agent="a/c").changeset
    kit.land(one)
    assert any("rename_rename" in kinds for kinds in conflicts(kit, two, "a/c").values())


def test_A9_removal_against_a_rename(kit: Kit) -> None:
    kit.first(put("x", lines()), put("y", "y\n"))
    one, two = kit.commit(delete("x")).changeset, kit.commit(move("x", "n"), agent="a/c").changeset
    kit.land(one)
    assert any("rename_delete" in kinds for kinds in conflicts(kit, two, "a/c").values())


def test_A9_both_remove_a_file_and_add_ones_that_resemble_it(kit: Kit) -> None:
    kit.first(put("x", lines()), put("y", "y\n"))
    one = kit.commit(delete("x"), put("p", lines("3:one"))).changeset
    two = kit.commit(delete("x"), put("q", lines("9:two")), agent="a/c").changeset
    kit.land(one)
    assert any("rename_rename" in kinds for kinds in conflicts(kit, two, "a/c").values())


def test_A9_the_same_one_level_down_in_folders_both_changed_alike(kit: Kit) -> None:
    """`d` has the same new id on both sides, yet a file that left it went to two places."""
    kit.first(put("d/x", lines()), put("d/y", "y\n"))
    one = kit.commit(move("d/x", "n1"), put("d/y", "z\n")).changeset
    two = kit.commit(move("d/x", "n2"), put("d/y", "z\n"), agent="a/c").changeset
    trees_of = [trees.lookup(kit.store.objects, kit.store.objects.commit(c).tree, b"d") for c in (one, two)]
    assert trees_of[0] == trees_of[1]
    kit.land(one)
    assert any("rename_rename" in kinds for kinds in conflicts(kit, two, "a/c").values())


# A10


def test_A10_a_stack_lands_one_change_after_the_other(kit: Kit) -> None:
    kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:one"))).changeset
    two = kit.commit(put("g", "g\n"), parent=one).changeset
    kit.land(one)
    kit.change(put("f", lines("3:one, polished")), agent="a/c")
    landed = kit.land(two)
    assert landed.changed_paths == ["g"]
    assert kit.text("f") == lines("3:one, polished")


def test_A10_an_undone_change_does_not_come_back_with_its_child(kit: Kit) -> None:
    kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:one"))).changeset
    two = kit.commit(put("g", "g\n"), parent=one).changeset
    kit.land(one)
    op, _, _ = refs.undo(kit.store, "a/b", kit.store.last_op())
    for change in (one, two):
        with pytest.raises(LandMismatchError) as caught:
            kit.land(change)
        assert refused(caught.value) == ("E_LAND_MISMATCH", "undone")
    assert kit.text("f") == lines()
    # an undo of the undo makes it count as landed again
    refs.undo(kit.store, "a/b", op)
    assert kit.land(one).status == "up_to_date"
    assert kit.land(two).changed_paths == ["g"]


def test_A10_an_undone_change_lands_again_on_purpose_in_the_same_second(kit: Kit) -> None:
    """The commit may come out with the very id it had before."""
    kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:one"))).changeset
    for _ in range(3):
        kit.land(one, allow_reland=True)
        assert kit.text("f") == lines("3:one")
        refs.undo(kit.store, "a/b", kit.store.last_op())
        assert kit.text("f") == lines()
    assert kit.land(one, allow_reland=True).status == "landed"
    assert kit.land(one).status == "up_to_date"


def test_A10_relanding_a_child_does_not_land_its_parent_twice(kit: Kit) -> None:
    """Only what was undone comes back: the parent stays landed, with what others made of it."""
    kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:one"))).changeset
    two = kit.commit(put("g", "g\n"), parent=one).changeset
    kit.land(one)
    kit.change(put("f", lines("3:polished")), agent="a/c")
    kit.land(two)
    refs.undo(kit.store, "a/b", kit.store.last_op())
    assert kit.land(two, allow_reland=True).changed_paths == ["g"]
    assert kit.text("f") == lines("3:polished")


def test_A10_a_land_that_a_ref_was_moved_back_from_is_not_called_up_to_date(kit: Kit) -> None:
    """`ref set main OLD` takes a land off too; its change is refused as undone, and lands when that is meant."""
    first = kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:one"))).changeset
    kit.land(one)
    refs.move(kit.store, "a/b", [oplog.Move(MAIN, kit.main(), first)], "ref_set")
    with pytest.raises(LandMismatchError) as caught:
        kit.land(one)
    assert refused(caught.value) == ("E_LAND_MISMATCH", "undone")
    assert kit.land(one, allow_reland=True).status == "landed"
    assert kit.text("f") == lines("3:one")


# A11


def test_A11_a_stale_tree_on_a_new_parent_is_refused(kit: Kit) -> None:
    """An agent commits the files of its old copy with the target's head as parent."""
    kit.first(put("f", lines()), put("g", "g\n"))
    kit.change(put("f", lines("3:fixed")), agent="a/fixer")
    stale = kit.commit(put("f", lines()), put("h", "h\n"), agent="a/stale").changeset
    with pytest.raises(LandMismatchError) as caught:
        kit.land(stale, agent="a/stale")
    assert refused(caught.value) == ("E_LAND_MISMATCH", "reverts_lands")
    assert [r["path"] for r in caught.value.details["reverts"]] == ["f"]
    assert kit.text("f") == lines("3:fixed")
    kit.land(stale, agent="a/stale", allow_revert=True)
    assert kit.text("f") == lines()


def test_A11_taking_back_some_lines_of_a_land_is_refused(kit: Kit) -> None:
    kit.first(put("f", lines()))
    kit.change(put("f", lines("3:fixed")), agent="a/fixer")
    stale = kit.commit(put("f", lines("20:mine")), agent="a/stale").changeset
    with pytest.raises(LandMismatchError) as caught:
        kit.land(stale, agent="a/stale")
    assert refused(caught.value) == ("E_LAND_MISMATCH", "reverts_lands")


@pytest.mark.parametrize("what", ["removed", "added"])
def test_A11_a_file_that_comes_back_or_goes_again_is_refused(kit: Kit, what: str) -> None:
    kit.first(put("f", lines()), put("keep", "k\n"))
    kit.change(delete("f") if what == "removed" else put("new", "n\n"), agent="a/fixer")
    entry = put("f", lines()) if what == "removed" else delete("new")
    with pytest.raises(LandMismatchError):
        kit.change(entry, agent="a/stale")


def test_A11_ones_own_reverts_and_toggles_are_fine(kit: Kit) -> None:
    kit.first(put("f", lines()))
    for n in range(3):
        kit.change(put("f", lines("3:on")), agent="a/b")
        kit.change(put("f", lines(f"20:{n}")), agent="a/b")
        kit.change(put("f", lines()), agent="a/b")


def test_A11_what_was_set_again_since_may_be_kept(kit: Kit) -> None:
    """A value that is on the target now puts nothing back, whoever replaced it in between."""
    kit.first(put("f", lines()), put("g", "g\n"))
    kit.change(put("f", lines("3:fixed")), agent="a/fixer")
    kit.change(put("f", lines()), agent="a/other", allow_revert=True)
    kit.change(put("g", "h\n"), agent="a/stale")
    kit.change(put("f", lines("4:more")), agent="a/stale")
    assert kit.text("f") == lines("4:more")


def test_A11_an_edit_of_the_same_lines_to_something_new_is_no_revert(kit: Kit) -> None:
    kit.first(put("f", lines()))
    kit.change(put("f", lines("3:fixed")), agent="a/fixer")
    kit.change(put("f", lines("3:better")), agent="a/other")
    assert kit.text("f") == lines("3:better")


def test_A11_an_undo_is_exempt(kit: Kit) -> None:
    kit.first(put("f", lines()))
    kit.change(put("f", lines("3:fixed")), agent="a/fixer")
    refs.undo(kit.store, "a/other", kit.store.last_op())
    assert kit.text("f") == lines()


# A12, S25, S26


def test_A12_two_agents_that_fix_one_typo_both_land(kit: Kit) -> None:
    kit.first(put("f", lines("5:tyop")), put("g", "g\n"))
    one = kit.commit(put("f", lines("5:typo"))).changeset
    two = kit.commit(put("f", lines("5:typo")), put("g", "h\n"), agent="a/c").changeset
    three = kit.commit(put("f", lines("5:typo")), agent="a/d").changeset
    kit.land(one)
    assert kit.land(two, agent="a/c").changed_paths == ["g"]
    assert kit.land(three, agent="a/d").status == "up_to_date"


Tamper = dict[bytes, tuple[bytes, bytes] | None]


@pytest.mark.parametrize("by", ["trees", "ort"])
@pytest.mark.parametrize(
    "wrong",
    [
        {b"untouched": (trees.FILE, b"other\n")},
        {b"untouched": None},
        {b"theirs": (trees.FILE, b"back\n")},
        {b"theirs": None},
        {b"mine": (trees.FILE, b"not what the change says\n")},
        {b"mine": None},
        {b"mine": (trees.EXEC, b"mine 2\n")},
        {b"extra": (trees.FILE, b"x\n")},
    ],
    ids=repr,
)
def test_A12_S26_a_merge_that_does_something_else_is_never_published(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, wrong: Tamper, by: str
) -> None:
    """Whatever the merge code gets wrong on a path that only one side touched, or none, is found."""
    kit.first(put("untouched", "u\n"), put("theirs", "t\n"), put("mine", "mine 1\n"), put("both", lines()))
    extra = [put("both", lines("3:mine"))] if by == "ort" else []
    change = kit.commit(put("mine", "mine 2\n"), *extra).changeset
    kit.change(put("theirs", "t 2\n"), *([put("both", lines("20:theirs"))] if by == "ort" else []), agent="a/c")
    right = {"trees": merge.merge_plain, "ort": merge.merge_ort}[by]

    def tampered(objects: Objects, *rest: str, **words: float) -> Merged | None:
        found = right(objects, *rest, **words)
        if found is None:
            return None
        edit = trees.Edit(objects, found.tree)
        for path, value in wrong.items():
            edit.set(path, None if value is None else (value[0], bytes.fromhex(objects.write("blob", value[1]))))
        return found._replace(tree=edit.write())

    head = kit.main()
    monkeypatch.setattr(merge, right.__name__, tampered)
    with pytest.raises(LandMismatchError) as caught:
        kit.land(change)
    assert refused(caught.value) == ("E_LAND_MISMATCH", "integrity")
    assert kit.main() == head
    monkeypatch.undo()
    assert kit.land(change).status == "landed"


def test_A12_a_path_both_touched_that_no_merge_named_is_refused(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-process rule never merges a file that both sides changed differently; if it did, it would be found."""
    kit.first(put("both", lines()), put("f", "f\n"))
    change = kit.commit(put("both", lines("3:mine"))).changeset
    kit.change(put("both", lines("20:theirs")), agent="a/c")

    def wrong(objects: Objects, base: str, ours: str, theirs: str) -> Merged:
        return Merged(ours, "trees")

    monkeypatch.setattr(merge, "merge_plain", wrong)
    with pytest.raises(LandMismatchError) as caught:
        kit.land(change)
    assert refused(caught.value) == ("E_LAND_MISMATCH", "integrity")


def test_S25_a_change_on_an_old_base_keeps_what_landed_since(kit: Kit) -> None:
    base = kit.first(put("f", lines()), put("g", "g\n"))
    kit.change(put("fix.txt", "fix\n"), agent="a/c")
    kit.change(put("g", "h\n"), parent=base)
    assert kit.text("fix.txt") == "fix\n" and kit.text("g") == "h\n"


def test_moving_most_files_is_no_mass_deletion(kit: Kit) -> None:
    """Files that only get other names are not gone (A5)."""
    kit.first(*[put(f"src/f{n}", lines(f"1:{n}")) for n in range(12)], put("README", "r\n"))
    assert kit.change(move("src", "lib")).status == "landed"
    with pytest.raises(LandMismatchError) as caught:
        kit.change(*[delete(f"lib/f{n}") for n in range(12)])
    assert refused(caught.value) == ("E_LAND_MISMATCH", "mass_delete")


# A15


def test_A15_an_answer_that_only_reports_state_is_on_disk_too(kit: Kit) -> None:
    """What another process wrote and did not sync yet is synced before a lost race or a replay is told."""
    kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:one"))).changeset
    key = "00000000-0000-0000-0000-000000000001"
    kit.land(one, key=key)
    mark = Path(kit.root, "flushed")

    def ask(question: str) -> None:
        mark.unlink(missing_ok=True)
        if question == "replayed":
            assert kit.land(one, key=key).status == "replayed"
        elif question == "up_to_date":
            assert kit.land(one).status == "up_to_date"
        elif question == "expect":
            with pytest.raises(CasMismatchError):
                kit.land(kit.commit(put("h", "h\n")).changeset, expect_target=one)
        elif question == "fence":
            change = kit.commit(put("h", "i\n")).changeset
            mark.unlink(missing_ok=True)
            with pytest.raises(FencedError):
                kit.land(change, fence=(MAIN, one))
        elif question == "undone":
            with pytest.raises(CasMismatchError):
                refs.move(kit.store, "a/b", [oplog.Move(MAIN, one, one[::-1])], "ref_set")
        else:
            assert refs.move(kit.store, "a/b", [oplog.Move(MAIN, None, kit.main())], "ref_set")[1]

    for question in ("replayed", "up_to_date", "expect", "fence", "undone", "already"):
        ask(question)
        assert int(mark.read_bytes().split()[1]) == kit.store.last_op(), question


# A42, S-cases of merges


def test_A42_the_users_settings_have_no_part_in_a_merge(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renames off, another conflict style and drivers of the user's and of the caller's environment change nothing."""
    kit.first(put("x.txt", lines()), put("f.txt", lines()))
    renamed = kit.commit(move("x.txt", "y.txt")).changeset
    clash = kit.commit(put("f.txt", lines("3:mine"))).changeset
    kit.change(put("x.txt", lines("20:edit")), put("f.txt", lines("3:yours")), agent="a/c")
    config = tmp_path / "config"
    config.write_text(
        "[merge]\n renames = false\n directoryRenames = true\n conflictStyle = merge\n default = evil\n"
        f'[merge "evil"]\n driver = touch {tmp_path}/ran; true\n[core]\n attributesFile = {tmp_path}/attributes\n'
    )
    (tmp_path / "attributes").write_text("* merge=evil\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(config))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(config.read_text())
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    kit.land(renamed)
    assert kit.text("y.txt") == lines("20:edit")
    assert conflicts(kit, clash) == {"f.txt": ["content"]}
    assert not (tmp_path / "ran").exists()


def test_S7_a_rename_against_an_edit_is_clean(kit: Kit) -> None:
    kit.first(put("a.py", lines()))
    one, two = kit.commit(move("a.py", "b.py")).changeset, kit.commit(put("a.py", lines("20:B")), agent="a/c").changeset
    kit.land(one)
    assert kit.land(two, agent="a/c").merged_by == "ort"
    assert set(kit.files()) == {b"b.py"} and kit.text("b.py") == lines("20:B")


def test_S9_a_link_against_a_file_is_a_conflict_that_can_be_answered(kit: Kit) -> None:
    kit.first(put("lib.py", "x\n"), put("link", "plain\n"))
    one = kit.commit(link("link", "lib.py")).changeset
    two = kit.commit(put("link", "other\n"), agent="a/c").changeset
    kit.land(one)
    found = conflicts(kit, two, "a/c")
    assert list(found) == ["link"] and "distinct_types" in found["link"]
    kit.land(two, agent="a/c", answer=answer(kit, {"link": FileResolution(take="ours")}))
    assert kit.files()[b"link"] == (trees.FILE, b"other\n")
    assert set(kit.files()) == {b"lib.py", b"link"}


def test_S9_an_empty_file_is_not_a_removed_one(kit: Kit) -> None:
    kit.first(put("f", lines()), put("g", "g\n"))
    one, two = kit.commit(put("f", "")).changeset, kit.commit(delete("f"), agent="a/c").changeset
    kit.land(one)
    assert kit.files()[b"f"] == (trees.FILE, b"")
    assert "f" in conflicts(kit, two, "a/c")


@pytest.mark.parametrize("take", ["ours", "theirs", "both"])
def test_S9_a_file_against_a_folder_is_answered_under_its_own_name(kit: Kit, take: str) -> None:
    """The report names the path people know, and a fresh process can answer it."""
    kit.first(put("keep", "k\n"))
    one = kit.commit(put("thing/part", "p\n")).changeset
    two = kit.commit(put("thing", "file\n"), agent="a/c").changeset
    kit.land(one)
    assert conflicts(kit, two, "a/c") == {"thing": ["directory_file"]}
    how = FileResolution(move_to="thing.txt") if take == "both" else FileResolution(take=take)  # type: ignore[arg-type]
    landed = kit.land(two, agent="a/c", answer=answer(kit, {"thing": how}))
    assert landed.status == ("up_to_date" if take == "theirs" else "landed")
    wanted = {
        "ours": {b"keep", b"thing"}, "theirs": {b"keep", b"thing/part"}, "both": {b"keep", b"thing/part", b"thing.txt"},
    }  # fmt: skip
    assert set(kit.files()) == wanted[take]
    kit.fsck()


def test_S14_names_that_differ_in_case_land_with_a_warning(kit: Kit) -> None:
    kit.first(put("src/f", "f\n"))
    one, two = (
        kit.commit(put("src/README", "a\n")).changeset,
        kit.commit(put("src/readme", "b\n"), agent="a/c").changeset,
    )
    kit.land(one)
    kit.store.warnings.clear()
    kit.land(two, agent="a/c")
    assert set(kit.files()) == {b"src/f", b"src/README", b"src/readme"}
    assert any("case" in w and "src/readme" in w for w in kit.store.warnings), kit.store.warnings


@pytest.mark.parametrize(
    "name", [b"bad-\xff.py", "v\udcbb".encode("utf-8", "surrogateescape"), b"new\nline", b'q"uote']
)
def test_S15_names_that_are_no_text_round_trip(kit: Kit, tmp_path: Path, name: bytes) -> None:
    from ropewalk.core.ids import path_text

    kit.first(put("f", "f\n"))
    one = kit.commit(put(path_text(name), lines())).changeset
    assert kit.land(one).changed_paths == [path_text(name)]
    two, three = (kit.commit(put(path_text(name), lines(f"{n}:x")), agent=f"a/n{n}").changeset for n in (3, 20))
    kit.land(two, agent="a/n3")
    kit.land(three, agent="a/n20")
    assert kit.files()[name] == (trees.FILE, lines("3:x", "20:x").encode())
    four, five = (
        kit.commit(put(path_text(name), lines("3:x", f"7:{n}", "20:x")), agent=f"a/n{n}").changeset for n in (1, 2)
    )
    kit.land(four, agent="a/n1")
    assert list(conflicts(kit, five, "a/n2")) == [path_text(name)]
    stock("clone", "--quiet", kit.repo, str(tmp_path / "clone"))
    assert name in os.listdir(os.fsencode(tmp_path / "clone"))


def test_S17_a_latin_1_file_merges_byte_for_byte(kit: Kit) -> None:
    text = "".join(f"Zeile {n} äöü\n" for n in range(30)).encode("latin-1")
    kit.first(put("f", text))
    one = kit.commit(put("f", text.replace(b"Zeile 3 ", b"Stra\xdfe "))).changeset
    two = kit.commit(put("f", text.replace(b"Zeile 25 ", b"\xa7 ")), agent="a/c").changeset
    three = kit.commit(put("f", text.replace(b"Zeile 25 ", b"\xb6 ")), agent="a/d").changeset
    kit.land(one)
    kit.land(two, agent="a/c")
    merged = text.replace(b"Zeile 3 ", b"Stra\xdfe ").replace(b"Zeile 25 ", b"\xa7 ")
    assert kit.files()[b"f"][1] == merged
    with pytest.raises(ConflictError) as caught:
        kit.land(three, agent="a/d")
    (hunk,) = caught.value.details["report"]["files"][0]["hunks"]
    assert hunk["ours"]["encoding"] == "base64"


def test_S38_histories_with_no_common_root_are_refused(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    with pytest.raises(LandMismatchError) as caught:
        kit.land(_root(kit))
    assert refused(caught.value) == ("E_LAND_MISMATCH", "unrelated")


def _root(kit: Kit) -> str:
    from storekit import NOBODY, write_tree

    objects = kit.store.objects
    made = objects.write_commit(write_tree(objects, {b"f": (trees.FILE, b"other\n")}), [], NOBODY, NOBODY, b"root\n")
    with kit.store.transaction() as tx:
        tx.record("import", "a/b", [oplog.Move("refs/heads/other", None, made)], [(made, "a/b")])
        tx.journal(objects.take_new())
    return made


# resolutions


def test_a_resolution_is_stale_only_when_its_path_moved_on(kit: Kit) -> None:
    kit.first(put("f", lines()), put("g", "g\n"))
    mine = kit.commit(put("f", lines("3:mine"))).changeset
    kit.change(put("f", lines("3:yours")), agent="a/c")
    against = kit.main()
    kit.change(put("g", "h\n"), agent="a/c")
    resolved = FileResolution(content=Content(inline=lines("3:both")))
    kit.change(put("f", lines("3:yours", "9:more")), agent="a/c")
    with pytest.raises(ConflictError) as caught:
        kit.land(mine, answer=answer(kit, {"f": resolved}, against))
    assert caught.value.details["stale"] == ["f"]
    kit.land(mine, answer=answer(kit, {"f": resolved}))
    assert kit.text("f") == lines("3:both") and kit.text("g") == "h\n"


def test_what_git_merged_beside_a_resolved_conflict_is_journalled(kit: Kit) -> None:
    """Else a power loss could take a file of a land that was answered."""
    kit.first(put("f", lines()), put("d/g", lines()))
    mine = kit.commit(put("f", lines("3:mine")), put("d/g", lines("3:mine"))).changeset
    kit.change(put("f", lines("3:yours")), put("d/g", lines("20:yours")), agent="a/c")
    kit.land(mine, answer=answer(kit, {"f": FileResolution(content=Content(inline=lines("3:both")))}))
    tree = kit.store.objects.commit(kit.main()).tree
    wanted = {raw.hex() for _, (_, raw) in trees.walk(kit.store.objects, tree)}
    folder = trees.lookup(kit.store.objects, tree, b"d")
    assert folder is not None
    journalled = {row[0] for row in kit.store.db.rows("SELECT id FROM object_journal")}
    assert {*wanted, tree, folder[1].hex(), kit.main()} <= journalled


def test_a_resolution_of_a_path_that_is_not_in_conflict_is_refused(kit: Kit) -> None:
    kit.first(put("f", lines()), put("g", "g\n"))
    mine = kit.commit(put("f", lines("3:mine"))).changeset
    kit.change(put("f", lines("3:yours")), agent="a/c")
    files = {"f": FileResolution(take="ours"), "g": FileResolution(take="ours")}
    with pytest.raises(InvalidError):
        kit.land(mine, answer=answer(kit, files))


def test_A29_many_changes_in_one_go_are_operations_of_their_own(kit: Kit) -> None:
    kit.first(put("f", lines()), put("g", "g\n"))
    made = [kit.commit(put(f"n{n}", f"{n}\n"), agent=f"a/n{n}").changeset for n in range(5)]
    made.insert(2, kit.commit(put("f", lines("3:x")), agent="a/x").changeset)
    kit.change(put("f", lines("3:y")), agent="a/y")
    before = kit.store.last_op()
    results = land.land_many(kit.store, [land.request(agent="a/z", change=c, ref=MAIN) for c in made])
    assert [isinstance(r, RopewalkError) for r in results] == [False, False, True, False, False, False]
    ops = oplog.after(kit.store.db, before, 100)
    assert [o.kind for o in ops] == ["land"] * 5
    assert [o.body.moves[0].old for o in ops[1:]] == [o.body.moves[0].new for o in ops[:-1]]
