"""Findings about merges: what hides conflicts, odd names and bytes, answers to conflicts (A9, A42, S7 to S17)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropewalk.core.errors import (
    ConflictError,
    InvalidError,
)
from ropewalk.store import maintain, trees
from ropewalk.store.changes import Content
from storekit import (
    FileResolution,
    Kit,
    answer,
    delete,
    lines,
    link,
    move,
    put,
    stock,
)


def conflicts(kit: Kit, change: str, agent: str = "a/b") -> dict[str, list[str]]:
    """Gives path to kinds of the conflict that a land meets."""
    before = kit.store.last_op(), kit.store.refs()
    with pytest.raises(ConflictError) as caught:
        kit.land(change, agent=agent)
    assert (kit.store.last_op(), kit.store.refs()) == before
    return {f["path"]: f["kinds"] for f in caught.value.details["report"]["files"]}


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


@pytest.mark.parametrize("where", ["journal", "packs"])
@pytest.mark.parametrize(
    ("there", "new", "both"),
    [
        ("Docs/a", "docs/b", "Docs"),
        ("x/Stra\xdfe", "x/STRASSE\u00e9", None),
        ("x/\xc4", "x/\xe4", "\xc4"),
        ("x/e\u0301", "x/\xe9", "e\u0301"),
        ("a/b/c", "a/b/C", "c"),
    ],
)
def test_S14_folders_and_accents_are_looked_at_wherever_the_objects_are(
    kit: Kit, there: str, new: str, both: str | None, where: str
) -> None:
    """A land of many files too: the colliding one is not among the first that the answer lists."""
    kit.first(put(there, "a\n"), put("z", "z\n"))
    if where == "packs":
        maintain.collect(kit.store)
    many = [put(f"many/{n}", "m\n") for n in range(250)]
    change = kit.commit(*many, put(new, "b\n"), agent="a/c").changeset
    if where == "packs":
        maintain.collect(kit.store)
    fresh = kit.again()
    fresh.land(change, agent="a/c")
    told = [w for w in fresh.store.warnings if w.startswith("case_collision")]
    assert len(told) == (both is not None) and all(repr(both) in w for w in told), fresh.store.warnings
    fresh.close()


def test_S14_two_names_in_one_change_and_many_of_them(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    kit.store.warnings.clear()
    kit.change(*[put(f"d/{name}{n}", "x\n") for n in range(30) for name in ("a", "A")])
    told = [w for w in kit.store.warnings if w.startswith("case_collision")]
    assert len(told) == 21 and told[-1] == "case_collision: 40 more names differ in case alone"


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
