"""Findings about refs on disk: torn files, names, and refs that others move (A14, A22, A30 to A32)."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from ropewalk.core.errors import CasMismatchError, InvalidError
from ropewalk.remote import importing
from ropewalk.store import adoption, land, maintain, oplog, projection, refs, repair, verify
from ropewalk.store.store import Store
from ropewalk.workspace import checkout
from storekit import MAIN, STOCK, Kit, lines, put, rw, stock


@pytest.mark.parametrize("torn", [b"", b"\0" * 41, b"0123456789abcdef", b"ref: refs/heads/gone\n"])
def test_A14_a_torn_ref_is_repaired_by_the_next_projection(kit: Kit, torn: bytes) -> None:
    kit.first(put("f", "f\n"))
    path = Path(kit.repo, MAIN)
    path.unlink()
    path.write_bytes(torn)
    kit.change(put("f", "g\n"))
    assert path.read_text().strip() == kit.main()
    assert kit.stock("rev-parse", "main") == kit.main()


def test_A14_after_a_power_loss_every_ref_is_written_anew(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    head = kit.main()
    refs.move(kit.store, "a/b", [oplog.Move(f"refs/heads/b{n}", None, head) for n in range(5)], "ref_set")
    Path(kit.repo, "refs/heads/b1").write_bytes(b"")
    Path(kit.repo, "refs/heads/b2").write_bytes(b"\0" * 41)
    Path(kit.repo, "refs/heads/b3").unlink()
    power_loss(kit)
    fresh = kit.again()
    assert fresh.store.recovered["damaged"] == 0
    assert {kit.stock("rev-parse", f"b{n}") for n in range(5)} == {head}
    fresh.close()


def power_loss(kit: Kit) -> None:
    """Makes the store look as if the machine had been booted since the last write."""
    kit.store.db.run("BEGIN IMMEDIATE")
    kit.store.db.set_meta("boot_id", "another")
    kit.store.db.run("COMMIT")


def test_A14_the_torn_file_of_a_ref_that_was_removed_goes(kit: Kit) -> None:
    kit.first(put("a", "1\n"))
    refs.move(kit.store, "a/b", [oplog.Move("refs/heads/gone", None, kit.main())], "ref_set")
    refs.move(kit.store, "a/b", [oplog.Move("refs/heads/gone", kit.main(), None)], "ref_delete")
    path = Path(kit.repo, "refs/heads/gone")
    assert not path.exists()
    path.write_bytes(b"")
    power_loss(kit)
    fresh = kit.again()
    assert not path.exists()
    kit.fsck()
    fresh.close()


def test_A14_loose_objects_that_a_power_loss_tore_come_back_from_the_journal(kit: Kit) -> None:
    kit.first(*[put(f"f{n}", lines(f"1:{n}")) for n in range(10)])
    ids = kit.store.objects.loose.ids()
    for number, oid in enumerate(ids):
        if number % 3 == 0:
            kit.damage(oid, 0.3)
        elif number % 3 == 1:
            os.unlink(kit.loose(oid))
    power_loss(kit)
    fresh = kit.again()
    assert fresh.store.recovered["restored"] == sum(n % 3 != 2 for n in range(len(ids)))
    assert fresh.store.recovered["damaged"] == 0
    kit.fsck()
    fresh.close()
    again = kit.again()
    assert again.store.recovered == {}
    again.close()


def test_A14_a_ref_to_a_commit_that_a_power_loss_took_is_not_kept(kit: Kit) -> None:
    """A projected value whose operation was lost names nothing; keeping it would break clones."""
    kit.first(put("f", "f\n"))
    Path(kit.repo, MAIN).write_text("1234567890" * 4 + "\n")
    power_loss(kit)
    kit.again().close()
    assert kit.stock("rev-parse", "main") == kit.main()
    assert kit.stock("for-each-ref", "refs/ropewalk") == ""
    kit.fsck()


def test_A22_private_refs_are_neither_shown_nor_mirrored_nor_taken(kit: Kit, tmp_path: Path) -> None:
    kit.first(put("f", "f\n"))
    hidden = Path(kit.repo, "refs/ropewalk/foreign/1-0/heads/x")
    hidden.parent.mkdir(parents=True)
    hidden.write_text(kit.main() + "\n")
    assert "refs/ropewalk" not in stock("ls-remote", kit.repo).decode()
    stock("clone", "--quiet", "--mirror", kit.repo, str(tmp_path / "mirror"))
    assert "refs/ropewalk" not in stock("--git-dir", str(tmp_path / "mirror"), "for-each-ref").decode()
    done = subprocess.run(["git", "push", "--quiet", kit.repo, f"{kit.main()}:refs/ropewalk/x"], env=STOCK,
                          cwd=tmp_path / "mirror", capture_output=True, timeout=60)  # fmt: skip
    assert done.returncode != 0


def by_hand(kit: Kit, *parents: str, text: str = "by hand\n", path: str = "hand") -> str:
    """Makes a commit with stock git in `repo.git`: the files of its first parent and one more; gives its id."""
    tree = "\n".join(row for row in kit.stock("ls-tree", parents[0]).split("\n") if not row.endswith(f"\t{path}"))
    blob = stock("--git-dir", kit.repo, "hash-object", "-w", "--stdin", stdin=text.encode()).decode().strip()
    entries = f"{tree}\n100644 blob {blob}\t{path}\n".encode()
    root = stock("--git-dir", kit.repo, "mktree", stdin=entries).decode().strip()
    asked = [word for parent in parents for word in ("-p", parent)]
    return stock("--git-dir", kit.repo, "commit-tree", "-m", "by hand", *asked, root).decode().strip()


def parked(kit: Kit) -> str:
    """Gives what is kept apart, one id a line."""
    return kit.stock("for-each-ref", "--format=%(objectname)", "refs/ropewalk/foreign")


def found(kit: Kit) -> dict[str, str]:
    """Gives what `verify` finds: object to kind."""
    return {f.object: f.kind for f in verify.verify(kit.store, deep=False, progress=lambda _: None).findings}


@pytest.mark.parametrize("how", ["loose", "packed"])
def test_A30_what_was_moved_forward_is_adopted_and_a_land_merges_onto_it(kit: Kit, how: str) -> None:
    """The log has it as an operation of `external`, with its objects as durable as any, and an undo takes it back."""
    base = kit.first(put("f", lines()))
    change = kit.commit(put("f", lines("3:mine"))).changeset
    kit.store.expose()
    foreign = by_hand(kit, by_hand(kit, base), text="two\n")
    if how == "packed":
        new = kit.stock("rev-list", "--objects", "--no-object-names", foreign, f"^{base}").encode() + b"\n"
        stock("--git-dir", kit.repo, "pack-objects", "-q", f"{kit.repo}/objects/pack/pack", stdin=new)
        stock("--git-dir", kit.repo, "prune-packed")
    Path(kit.repo, MAIN).write_text(foreign + "\n")
    assert found(kit) == {MAIN: "foreign_move"}
    kit.store.warnings.clear()
    landed = kit.land(change)
    assert landed.merged_onto == foreign
    assert any(f"{foreign} without ropewalk; adopted" in w for w in kit.store.warnings)
    assert kit.text("hand") == "two\n" and kit.text("f") == lines("3:mine")
    last, adopted = oplog.page(kit.store.db, None, 2)
    moved = oplog.Move(MAIN, base, foreign)
    assert (adopted.kind, adopted.actor, adopted.body.moves) == ("adopt", "external", (moved,))
    assert last.kind == "land" and oplog.check_chain(kit.store.db) is None
    if how == "loose":
        names = kit.stock("rev-list", "--objects", "--no-object-names", foreign, f"^{base}").split()
        assert len(names) == 6
        assert set(names) <= {row[0] for row in kit.store.db.rows("SELECT id FROM object_journal")}
    assert parked(kit) == "" and found(kit) == {}
    assert kit.stock("rev-parse", "main") == kit.main()
    kit.fsck()
    refs.undo(kit.store, "a/b", last.op)
    refs.undo(kit.store, "a/b", adopted.op)
    assert kit.main() == base


@pytest.mark.parametrize("how", ["commit", "move", "undo", "repair", "preview", "several", "import"])
def test_A30_every_write_to_a_ref_adopts_first(kit: Kit, tmp_path: Path, how: str) -> None:
    base = kit.first(put("f", lines()))
    change = kit.commit(put("g", "g\n")).changeset
    refs.move(kit.store, "a/b", [oplog.Move("refs/heads/x", None, base)], "ref_set")
    made = kit.store.last_op()
    kit.store.expose()
    name = "refs/heads/x" if how in ("move", "undo") else MAIN
    foreign = by_hand(kit, base)
    Path(kit.repo, name).write_text(foreign + "\n")
    if how == "commit":
        assert kit.commit(put("g", "h\n"), parent=None, advance="main").parent == foreign
    elif how == "move":
        with pytest.raises(CasMismatchError) as caught:
            refs.move(kit.store, "a/b", [oplog.Move(name, base, change)], "ref_set")
        assert caught.value.details["actual"] == foreign
    elif how == "undo":
        with pytest.raises(CasMismatchError):
            refs.undo(kit.store, "a/b", made)
    elif how == "import":
        stock("clone", "-q", kit.repo, str(tmp_path / "clone"))
        tip = by_hand(kit, foreign, path="later")
        stock("--git-dir", str(tmp_path / "clone/.git"), "fetch", "-q", kit.repo, f"{tip}:refs/heads/next")
        done = importing.import_branch(kit.store, str(tmp_path / "clone"), "next", into=MAIN, actor="a/b")
        assert (done.old_head, kit.main()) == (foreign, tip)
    elif how == "repair":
        mended = repair.repair(kit.store, progress=lambda _: None)
        assert any("adopted" in line for line in mended.done) and mended.left == []
    elif how == "preview":
        ready = land.preview(kit.store, land.request(agent="a/b", change=change, ref=MAIN))
        assert ready.target == foreign  # type: ignore[union-attr]
    else:
        (one,) = land.land_many(kit.store, [land.request(agent="a/b", change=change, ref=MAIN)])
        assert one.merged_onto == foreign  # type: ignore[union-attr]
    if how in ("move", "undo", "repair"):
        assert kit.store.ref(name) == foreign
    assert next(o.actor for o in oplog.after(kit.store.db, made, 9)) == "external"
    assert parked(kit) == ""


def test_A30_a_tag_is_adopted_too_and_other_refs_are_kept_apart(kit: Kit) -> None:
    base = kit.first(put("f", "f\n"))
    kit.store.expose()
    foreign = by_hand(kit, base)
    for name in ("refs/tags/v1", "refs/swarm/task"):
        refs.move(kit.store, "a/b", [oplog.Move(name, None, base)], "ref_set")
        Path(kit.repo, name).write_text(foreign + "\n")
    repair.repair(kit.store, progress=lambda _: None)
    assert (kit.store.ref("refs/tags/v1"), kit.store.ref("refs/swarm/task")) == (foreign, base)
    assert parked(kit) == foreign and kit.stock("rev-parse", "refs/swarm/task") == base


@pytest.mark.parametrize(
    "what", ["aside", "file gone", "file torn", "folder gone", "commit gone", "no commit", "odd tree"]
)
def test_A30_what_does_not_go_on_or_is_not_whole_is_kept_apart(kit: Kit, what: str) -> None:
    """The log stays as it is, later lands and clones work, and `gc` is not upset by what is missing."""
    base = kit.first(put("f", lines()))
    head = kit.change(put("f", lines("3:x"))).landed
    kit.store.expose()
    below = by_hand(kit, base if what == "aside" else head, text="unique\n")
    foreign = by_hand(kit, below, path="other") if what != "aside" else below
    if what == "no commit":
        foreign = kit.stock("rev-parse", f"{foreign}^{{tree}}")
    if what == "odd tree":
        blob = bytes.fromhex(kit.stock("rev-parse", f"{below}:hand"))
        odd = kit.store.objects.loose.write(
            "tree", b"".join(b"100644 %s\0%s" % (n, blob) for n in (b".git", b"a", b"a"))
        )
        foreign = stock("--git-dir", kit.repo, "commit-tree", "-m", "odd", "-p", head, odd).decode().strip()
    name = {"file": f"{below}:hand", "folder": f"{below}^{{tree}}"}.get(what.split()[0], below)
    target = kit.loose(kit.stock("rev-parse", name))
    if what.endswith("gone"):
        os.unlink(target)
    elif what.endswith("torn"):
        os.chmod(target, 0o644)
        os.truncate(target, os.path.getsize(target) // 2)
    Path(kit.repo, MAIN).write_text(foreign + "\n")
    assert found(kit) == {MAIN: "foreign_move"}
    kit.store.warnings.clear()
    assert kit.change(put("g", "g\n")).merged_onto == head
    assert any("kept under refs/ropewalk/foreign" in w for w in kit.store.warnings), kit.store.warnings
    assert {o.kind for o in oplog.page(kit.store.db, None, 99)} == {"commit", "land"}
    assert kit.stock("rev-parse", "main") == kit.main()
    assert parked(kit) == foreign or what == "commit gone"
    assert found(kit) == {}
    maintain.collect(kit.store)
    assert kit.stock("rev-list", "--count", "main") == "3"


def test_A30_a_ref_to_nothing_is_written_over_and_told(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    Path(kit.repo, MAIN).write_text("1234567890" * 4 + "\n")
    assert found(kit) == {MAIN: "foreign_move"}
    kit.store.warnings.clear()
    kit.change(put("f", "g\n"))
    assert any("does not exist" in w for w in kit.store.warnings)
    assert kit.stock("rev-parse", "main") == kit.main() and parked(kit) == ""


def test_A30_a_branch_that_others_made_is_named_and_kept_apart_by_repair(kit: Kit) -> None:
    """It is no step forward of anything the store has, so it is not adopted; its work can be landed by its id."""
    base = kit.first(put("f", lines()))
    kit.store.expose()
    foreign = by_hand(kit, base)
    Path(kit.repo, "refs/heads/topic").write_text(foreign + "\n")
    assert found(kit) == {"refs/heads/topic": "foreign_ref"}
    kit.change(put("f", lines("3:x")))
    assert kit.store.ref("refs/heads/topic") is None and kit.stock("rev-parse", "topic") == foreign
    repair.repair(kit.store, progress=lambda _: None)
    assert parked(kit) == foreign and kit.stock("for-each-ref", "refs/heads/topic") == ""
    assert kit.land(foreign).status == "landed"
    assert kit.text("hand") == "by hand\n" and kit.text("f") == lines("3:x")


def test_A30_a_name_that_others_took_first_is_kept_apart_when_ropewalk_needs_it(kit: Kit) -> None:
    base = kit.first(put("f", lines()))
    kit.store.expose()
    foreign = by_hand(kit, base)
    Path(kit.repo, "refs/heads/topic").write_text(foreign + "\n")
    refs.move(kit.store, "a/b", [oplog.Move("refs/heads/topic", None, base)], "ref_set")
    assert kit.stock("rev-parse", "topic") == base and parked(kit) == foreign


def test_A30_a_ref_that_others_removed_or_put_back_is_shown_again(kit: Kit) -> None:
    """A deletion or a step back by hand takes nothing from the log, and nothing new would be lost."""
    base = kit.first(put("f", "f\n"))
    head = kit.change(put("f", "g\n")).landed
    path = Path(kit.repo, MAIN)
    path.unlink()
    assert found(kit) == {MAIN: "projection"}
    kit.store.warnings.clear()
    kit.change(put("f", "h\n"))
    assert any("removed from repo.git" in w for w in kit.store.warnings)
    path.write_text(base + "\n")
    assert found(kit) == {MAIN: "projection"}
    repair.repair(kit.store, progress=lambda _: None)
    assert path.read_text().strip() == kit.main() != head and parked(kit) == ""


def test_A30_two_that_adopt_at_once_record_it_once(kit: Kit) -> None:
    base = kit.first(put("f", "f\n"))
    kit.store.expose()
    foreign = by_hand(kit, base)
    others = [kit.again() for _ in range(4)]
    Path(kit.repo, MAIN).write_text(foreign + "\n")
    gate = threading.Barrier(4)

    def take_in(one: Kit) -> None:
        with Store(one.root) as own:  # a store belongs to one thread
            gate.wait(30)
            adoption.adopt(own, MAIN)

    threads = [threading.Thread(target=take_in, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [o.kind for o in oplog.after(kit.store.db, 1, 9)] == ["adopt"]
    assert kit.main() == foreign
    for one in others:
        one.close()


@pytest.mark.parametrize("how", ["land", "parent", "ref", "workspace"])
def test_A3_a_commit_that_only_another_tool_wrote_is_made_durable_before_anything_stands_on_it(
    kit: Kit, tmp_path: Path, how: str
) -> None:
    """That its objects can be read is no evidence that they were synced."""
    base = kit.first(put("f", lines()))
    kit.store.expose()
    foreign = by_hand(kit, base)
    names = set(kit.stock("rev-list", "--objects", "--no-object-names", foreign, f"^{base}").split())
    if how == "land":
        kit.land(foreign)
    elif how == "parent":
        kit.commit(put("g", "g\n"), parent=foreign)
    elif how == "workspace":
        ws, _ = checkout.create(kit.store, checkout.Asked("one", "a/b", foreign, MAIN, str(tmp_path / "one")))
        Path(ws.path, "g").write_text("g\n")
        assert rw(kit.root, "ws", "land", "one", "-m", "one")[0] == 0
    else:
        refs.move(kit.store, "a/b", [oplog.Move("refs/heads/x", None, foreign)], "ref_set")
    assert len(names) == 3
    assert names <= {row[0] for row in kit.store.db.rows("SELECT id FROM object_journal")}


def test_A30_stock_git_can_not_move_a_ref_and_is_told_how(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    done = subprocess.run(["git", "--git-dir", kit.repo, "update-ref", "refs/heads/x", kit.main()], env=STOCK,
                          capture_output=True, timeout=60)  # fmt: skip
    assert done.returncode != 0 and b"rw ref set" in done.stderr
    assert kit.stock("for-each-ref", "refs/heads/x") == ""


@pytest.mark.parametrize(("there", "new"), [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b")])
def test_A31_names_that_are_folders_of_each_other_are_refused(kit: Kit, there: str, new: str) -> None:
    head = kit.first(put("f", "f\n"))
    refs.move(kit.store, "a/b", [oplog.Move(f"refs/heads/{there}", None, head)], "ref_set")
    with pytest.raises(InvalidError):
        refs.move(kit.store, "a/b", [oplog.Move(f"refs/heads/{new}", None, head)], "ref_set")
    # in one go, one may take the other's place
    moves = [oplog.Move(f"refs/heads/{new}", None, head), oplog.Move(f"refs/heads/{there}", head, None)]
    with pytest.raises(InvalidError):
        refs.move(kit.store, "a/b", moves, "ref_move")
    refs.move(kit.store, "a/b", [moves[1]], "ref_delete")
    refs.move(kit.store, "a/b", [moves[0]], "ref_set")
    assert kit.stock("for-each-ref", "--format=%(refname:short)") == "\n".join(sorted([new, "main"]))


def test_A31_a_clash_with_a_foreign_ref_fails_no_write(kit: Kit) -> None:
    head = kit.first(put("f", "f\n"))
    Path(kit.repo, "refs/heads/topic").write_text(head + "\n")
    kit.store.warnings.clear()
    refs.move(kit.store, "a/b", [oplog.Move("refs/heads/topic/one", None, head)], "ref_set")
    assert any("clashes" in w for w in kit.store.warnings)
    Path(kit.repo, "refs/heads/topic").unlink()
    kit.change(put("f", "g\n"))
    assert kit.stock("rev-parse", "topic/one") == head


def test_A32_a_git_that_holds_a_refs_lock_fails_no_land(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    lock = Path(kit.repo, MAIN + ".lock")
    lock.write_bytes(b"")
    kit.store.warnings.clear()
    before = kit.main()
    assert kit.change(put("f", "g\n")).status == "landed"
    assert any("locked" in w for w in kit.store.warnings)
    assert kit.stock("rev-parse", "main") == before
    lock.unlink()
    fresh = kit.again()
    assert projection.project(fresh.store) == []
    assert kit.stock("rev-parse", "main") == kit.main()
    fresh.close()


def test_A32_a_deleted_ref_that_git_packed_goes_when_the_lock_does(kit: Kit) -> None:
    head = kit.first(put("f", "f\n"))
    refs.move(kit.store, "a/b", [oplog.Move("refs/heads/x", None, head)], "ref_set")
    kit.store.objects.close()
    subprocess.run(["git", "--git-dir", kit.repo, "-c", "core.hooksPath=/dev/null", "pack-refs", "--all"], env=STOCK,
                   check=True, timeout=60)  # fmt: skip
    assert not Path(kit.repo, "refs/heads/x").exists()
    lock = Path(kit.repo, "packed-refs.lock")
    lock.write_bytes(b"")
    kit.store.warnings.clear()
    refs.move(kit.store, "a/b", [oplog.Move("refs/heads/x", head, None)], "ref_delete")
    assert any("packed-refs" in w for w in kit.store.warnings)
    lock.unlink()
    projection.project(kit.store)
    assert kit.stock("for-each-ref", "--format=%(refname)") == MAIN


def test_a_projection_that_can_not_be_written_fails_no_land(kit: Kit) -> None:
    """The land is on disk; only the picture of it is late."""
    kit.first(put("f", "f\n"))
    heads = Path(kit.repo, "refs/heads")
    aside = Path(kit.repo, "aside")
    heads.rename(aside)
    heads.write_text("not a folder\n")
    kit.store.warnings.clear()
    assert kit.change(put("f", "g\n")).status == "landed"
    assert kit.store.warnings
    heads.unlink()
    aside.rename(heads)
    projection.project(kit.store)
    assert kit.stock("rev-parse", "main") == kit.main()


def test_A31_names_that_differ_in_case_alone_are_refused_where_the_disk_knows_no_case(kit: Kit) -> None:
    """What tells such a disk is that `HEAD` is there as `head` too; a second name for the file does the same here."""
    head = kit.first(put("f", "f\n"))

    def make(name: str) -> None:
        refs.move(kit.store, "a/b", [oplog.Move(f"refs/heads/{name}", None, head)], "ref_set")

    make("topic")
    make("Topic")
    assert kit.stock("for-each-ref", "--format=%(refname:short)").split() == ["Topic", "main", "topic"]
    os.link(os.path.join(kit.repo, "HEAD"), os.path.join(kit.repo, "head"))
    for name in ("MAIN", "Main/sub", "tOpic"):
        with pytest.raises(InvalidError) as caught:
            make(name)
        assert "case" in caught.value.hint
    make("mainly")
    refs.move(kit.store, "a/b", [oplog.Move("refs/heads/topic", head, None)], "ref_delete")


@pytest.mark.parametrize("name", [MAIN + ".lock", "packed-refs.lock", "HEAD.lock", "config.lock"])
def test_A32_a_lock_file_that_was_left_is_named_by_verify_and_removed_by_repair(kit: Kit, name: str) -> None:
    """Not a fresh one, which a living git may own, and not one that a process has open, however old."""
    kit.first(put("f", "f\n"))
    path = Path(kit.repo, name)
    path.write_bytes(b"")
    assert found(kit) == {}
    repair.repair(kit.store, progress=lambda _: None)
    assert path.exists()
    os.utime(path, (time.time() - 700, time.time() - 700))
    # by another name of the folder, as a process elsewhere may see it
    aside = Path(kit.root).parent / "aside"
    aside.symlink_to(kit.root)
    with open(aside / "repo.git" / name, "rb"):
        assert found(kit) == {}
        repair.repair(kit.store, progress=lambda _: None)
        assert path.exists()
    assert found(kit) == {f"repo.git/{name}": "stale_lock"}
    done = repair.repair(kit.store, progress=lambda _: None)
    assert done.left == [] and any(name in line for line in done.done)
    assert not path.exists() and found(kit) == {}
    kit.change(put("f", "g\n"))
    assert kit.stock("rev-parse", "main") == kit.main()
