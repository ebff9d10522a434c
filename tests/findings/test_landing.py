"""Findings about landing: bases, silent reverts, integrity, several in one go (A10 to A12, A29)."""

from __future__ import annotations

import time

import pytest

from ropewalk.core.errors import (
    LandMismatchError,
    RopewalkError,
)
from ropewalk.store import guard, land, merge, oplog, refs, trees
from ropewalk.store.merge import Merged
from ropewalk.store.objects import Objects
from storekit import (
    MAIN,
    Kit,
    delete,
    lines,
    move,
    put,
    refused,
)


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


@pytest.mark.parametrize(
    ("was", "wrote"),
    [
        ("3:was", "3:fixed"),
        ("3:was\nold", "3:fixed"),
        ("3:line 3", "3:line 3\ncheck()"),
        ("3:line 3\ncheck()", "3:line 3"),
    ],
    ids=["replaced", "fewer", "inserted", "removed"],
)
@pytest.mark.parametrize("shift", [0, 2])
def test_A11_lines_are_held_against_a_land_where_they_stand_now(kit: Kit, was: str, wrote: str, shift: int) -> None:
    """Lines that were added above move the place along; what else the change does hides nothing."""
    kit.first(put("f", lines(was)))
    kit.change(put("f", lines(wrote)), agent="a/fixer")
    above = "".join(f"new {n}\n" for n in range(shift))
    if shift:
        kit.change(put("f", above + kit.text("f")), agent="a/other")
    with pytest.raises(LandMismatchError) as caught:
        kit.change(put("f", above + lines(was, "27:mine")), agent="a/stale")
    assert refused(caught.value) == ("E_LAND_MISMATCH", "reverts_lands")
    assert [r["agent"] for r in caught.value.details["reverts"]] == ["a/fixer"]
    kit.change(put("f", above + lines(wrote, "27:mine")), agent="a/stale")
    assert kit.text("f") == above + lines(wrote, "27:mine")


def test_A11_an_unrelated_line_that_reads_alike_is_no_revert(kit: Kit) -> None:
    """A land made one `x = 1` an `x = 2`; another agent makes another `x = 2` an `x = 1`."""
    kit.first(put("f", lines("3:x = 1", "20:x = 2")))
    kit.change(put("f", lines("3:x = 2", "20:x = 2")), agent="a/fixer")
    assert kit.change(put("f", lines("3:x = 2", "20:x = 1")), agent="a/other").status == "landed"
    with pytest.raises(LandMismatchError):
        kit.change(put("f", lines("3:x = 1", "20:x = 3")), agent="a/other")


def test_A11_a_stale_copy_older_than_many_lands_of_the_file_is_refused(kit: Kit) -> None:
    kit.first(put("f", lines()))
    for n in range(12):
        kit.change(put("f", lines(*[f"{k}:fixed" for k in range(n + 1)])), agent=f"a/n{n}")
    with pytest.raises(LandMismatchError) as caught:
        kit.change(put("f", lines()), agent="a/stale")
    assert [r["agent"] for r in caught.value.details["reverts"]] == ["a/n0"]


def test_A11_only_lands_since_the_creation_base_count(kit: Kit) -> None:
    """What landed before the workspace was made was in view when the work began."""
    kit.first(put("f", lines()))
    made_on = kit.change(put("f", lines("3:fixed")), agent="a/fixer").landed
    since = guard.op_of(kit.store, MAIN, made_on)
    assert since is not None
    stale = kit.commit(put("f", lines()), agent="a/other").changeset
    with pytest.raises(LandMismatchError):
        kit.land(stale, agent="a/other")
    with pytest.raises(LandMismatchError):
        kit.land(stale, agent="a/other", since=since - 1)
    assert kit.land(stale, agent="a/other", since=since).status == "landed"
    kit.change(put("f", lines("9:fixed")), agent="a/fixer")
    with pytest.raises(LandMismatchError):
        kit.change(put("f", lines()), agent="a/other", since=since)


@pytest.mark.parametrize("size", [5_000])
def test_A11_large_files_of_like_lines_are_compared_in_time(kit: Kit, size: int) -> None:
    """The check runs under the lock; a file made to be slow to compare may not hold it."""
    rows = [b"x" if n % 2 else b"y%d" % (n % 7) for n in range(size)]
    kit.first(put("f", b"\n".join(rows)))
    kit.change(put("f", b"\n".join(rows[::-1])), agent="a/fixer")
    change = kit.commit(put("f", b"\n".join(rows[1::2] + rows[::2])), agent="a/other").changeset
    started = time.monotonic()
    assert kit.land(change, agent="a/other").status == "landed"
    assert time.monotonic() - started < 2


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
