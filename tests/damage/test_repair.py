"""Repair with another place at hand, and the commands that hints name, as processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from damage.cells import emptied_log, flip, loose
from damage.world import Damaged, World
from storekit import Kit, put, rw, stock


@pytest.fixture
def damaged(world: World, tmp_path: Path) -> Damaged:
    return world.fresh(tmp_path)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "place", ["a clone", "a bundle", *(pytest.param(p, marks=SLOW) for p in ("a work tree", "a store", "a file URL"))]
)
def test_repair_takes_objects_from_any_repository(place: str, damaged: Damaged, tmp_path: Path) -> None:
    repo, there = str(damaged.world.root / "repo.git"), str(tmp_path / "there")
    if place == "a bundle":
        stock("--git-dir", repo, "bundle", "create", there, "--branches")
    elif place == "a store":
        shutil.copytree(damaged.world.backup, there)
    else:
        stock("clone", "-q", *(["--bare"] if place != "a work tree" else []), "-b", "loose", repo, there)
    for name in ("blob", "tree", "commit"):
        loose(name)(damaged).unlink()
    code, envelope = damaged.call("repair", **{"from": [f"file://{there}" if place == "a file URL" else there]})
    assert code == 0 and not envelope["result"]["left"], envelope
    done = "\n".join(envelope["result"]["done"])
    assert all(damaged.world.ids[name] in done for name in ("blob", "tree", "commit")) and there in done
    assert not damaged.unreadable()
    assert not list(damaged.root.glob("lent-*"))


def test_repair_finds_objects_in_a_workspace(damaged: Damaged) -> None:
    loose("in the workspace")(damaged).unlink()
    code, envelope = damaged.call("repair")
    assert code == 0 and "taken from the workspace w" in str(envelope["result"]["done"]), envelope
    assert not damaged.unreadable()


def test_what_another_place_gives_is_hashed(damaged: Damaged, tmp_path: Path) -> None:
    """A place whose own copy is damaged gives nothing, and the loss is listed."""
    there = tmp_path / "there"
    stock("init", "-q", "--bare", str(there))
    oid = damaged.world.ids["tree"]
    (there / "objects" / oid[:2]).mkdir()
    shutil.copy(loose("tree")(damaged), there / "objects" / oid[:2] / oid[2:])
    flip(there / "objects" / oid[:2] / oid[2:])
    loose("tree")(damaged).unlink()
    code, envelope = damaged.call("repair", **{"from": [str(there)]})
    assert code == 10 and [f["object"] for f in envelope["result"]["left"]] == [oid]
    assert envelope["result"]["left"][0]["refs"] == ["loose"]


def test_a_place_that_is_none_is_refused_and_nothing_is_done(damaged: Damaged, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, envelope = damaged.call("repair", **{"from": [str(tmp_path / "empty")]})
    assert (code, envelope["error"]["code"]) == (4, "E_NOT_FOUND")


def test_an_edited_log_is_named_by_its_first_bad_operation_and_can_be_closed(damaged: Damaged) -> None:
    con = apsw.Connection(str(damaged.root / "store.db"))
    con.execute("UPDATE ops SET actor = 'evil/one' WHERE op IN (3, 5)")
    con.close()
    for deep in (False, True):
        code, envelope = damaged.call("verify", deep=deep)
        chain = [f for f in envelope["result"]["findings"] if f["kind"] == "chain"]
        assert code == 10 and [f["object"] for f in chain] == ["3"], envelope
    code, envelope = damaged.call("repair", rebuild=True)
    assert code == 0 and "operations 3" in str(envelope["result"]["done"]), envelope
    kept = sorted(p.name for p in (damaged.root / "damaged").iterdir())
    assert "store.db.0" in kept
    assert damaged.refs() == damaged.world.refs


def test_a_store_that_lost_operations_is_read_with_a_warning_and_takes_no_write(damaged: Damaged) -> None:
    (damaged.root / "store.db-wal").unlink()
    store = str(damaged.root)
    code, envelope = rw(store, "log", "main")
    assert code == 0 and "lacks operation" in str(envelope["warnings"]), envelope
    changes = [{"path": "n", "content": {"inline": "n"}}]
    code, envelope = damaged.call("commit", message="m", parent="main", advance="main", changes=changes)
    assert (code, envelope["error"]["code"]) == (8, "E_STORE_CORRUPT") and "rw repair" in envelope["error"]["hint"]
    code, envelope = rw(store, "verify")
    assert code == 10 and "cut" in [f["kind"] for f in envelope["result"]["findings"]]
    code, envelope = rw(store, "repair")
    assert code == 0 and "lost" in str(envelope["result"]["done"]), envelope
    assert damaged.refs() == damaged.world.refs and not damaged.unreadable()
    code, envelope = rw(store, "op", "log")
    kinds = [op["kind"] for op in envelope["result"]["ops"]]
    assert kinds[0] == "recover" and "lost" in kinds


@SLOW
def test_a_lost_log_is_taken_from_a_backup_row_by_row(damaged: Damaged) -> None:
    (damaged.root / "store.db-wal").unlink()
    code, envelope = rw(str(damaged.root), "repair", "--from", str(damaged.world.backup))
    assert code == 0, envelope
    code, envelope = rw(str(damaged.root), "op", "log")
    assert "lost" not in [op["kind"] for op in envelope["result"]["ops"]], envelope


@pytest.mark.parametrize("what", ["FORMAT", "store.db", pytest.param("a header", marks=SLOW)])
def test_the_commands_that_hints_name_work(what: str, damaged: Damaged, tmp_path: Path) -> None:
    if what == "a header":
        emptied_log(damaged)
        flip(damaged.root / "store.db", 5)
    else:
        (damaged.root / what).unlink()
    store = str(damaged.root)
    code, envelope = rw(store, "info")
    assert (code, envelope["error"]["code"]) == (8, "E_STORE_CORRUPT"), envelope
    assert "rw repair" in envelope["error"]["hint"]
    code, envelope = rw(store, "verify")
    assert code == 10 and envelope["result"]["findings"][0]["object"] == ("FORMAT" if what == "FORMAT" else "store.db")
    if what != "FORMAT":
        code, envelope = rw(store, "repair")
        assert code == 8 and "rw repair --rebuild" in envelope["error"]["hint"], envelope
        code, envelope = rw(str(tmp_path / "restored"), "restore", str(damaged.world.backup))
        assert code == 0 and rw(str(tmp_path / "restored"), "verify", "--deep")[0] == 0
    code, envelope = rw(store, "repair", *([] if what == "FORMAT" else ["--rebuild"]))
    assert code == 0, envelope
    assert damaged.refs() == damaged.world.refs and not damaged.unreadable()
    assert rw(store, "verify", "--deep")[0] == 0


def test_a_rebuild_waits_for_nobody_who_has_the_database_open(damaged: Damaged) -> None:
    """What another process writes into the old file would be lost, so the rebuild is refused."""
    kit = Kit(str(damaged.root))
    kit.commit(put("f", "f\n"))
    code, envelope = rw(str(damaged.root), "repair", "--rebuild")
    kit.close()
    assert (code, envelope["error"]["code"]) == (6, "E_BUSY"), envelope
    assert damaged.call("repair", rebuild=True)[0] == 0


def test_a_newer_format_is_no_damage(damaged: Damaged) -> None:
    (damaged.root / "FORMAT").write_text('{"format": 99, "id": "x", "name": "y"}')
    for name in ("verify", "repair"):
        code, envelope = damaged.call(name)
        assert (code, envelope["error"]["code"]) == (8, "E_STORE_FORMAT")
