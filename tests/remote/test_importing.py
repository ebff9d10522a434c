"""Import brings history in with the same ids, or says why not and records nothing."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from oddgit import SIGNATURE

from ropewalk.core.errors import (
    GitImportDivergedError,
    NotFoundError,
    RemoteError,
    ShallowError,
    UnsupportedError,
)
from ropewalk.remote import importing
from ropewalk.store import maintain

MAIN = "refs/heads/main"


def state(store: Any) -> tuple[Any, ...]:
    """Gives what an import that fails must leave as it is."""
    pack = os.listdir(os.path.join(store.layout.repo, "objects", "pack"))
    return store.refs(), store.last_op(), sorted(pack), sorted(os.listdir(store.layout.root)), store.objects.loose.ids()


def grow(git: Any, folder: Path, name: str, count: int, start: int = 0, branch: str = "main") -> str:
    """Adds commits to a bare repository's branch and gives its head."""
    old = git("rev-parse", "--quiet", "--verify", f"refs/heads/{branch}", folder=folder, ok=False)
    text = []
    for n in range(start, start + count):
        data = f"{name} {n}\n"
        text.append(
            f"commit refs/heads/{branch}\ncommitter A <a@example.org> {1_700_000_000 + n} +0000\ndata 2\nm\n"
            + (f"from {old}\n" if old and n == start else "")
            + f"M 100644 inline {name}/{n}\ndata {len(data)}\n{data}\n"
        )
    git("fast-import", "--quiet", folder=folder, stdin="".join(text).encode())
    return str(git("rev-parse", branch, folder=folder))


def test_odd_history_keeps_its_ids_and_bytes(new_store: Any, odd: Path, git: Any) -> None:
    store = new_store()
    done = importing.import_branch(store, str(odd), "main", into=None, actor="test/one")
    head = git("rev-parse", "main", folder=odd)
    listed = git("rev-list", "--objects", "--no-object-names", "main", folder=odd)
    assert done.head_changeset == done.git_head_sha == head == store.ref(MAIN)
    assert (done.imported, done.skipped, done.ref_moved, done.old_head) == (12, 0, True, None)
    assert (done.lossy, done.lossy_total) == ([], 0)
    for oid in listed.split():
        kind = git("cat-file", "-t", oid, folder=odd)
        assert store.objects.find(oid) == (kind, git.run("cat-file", kind, oid, folder=odd).stdout)
    assert SIGNATURE in store.objects.read(head)
    assert git("rev-parse", "main", folder=store.layout.repo) == head
    assert git("fsck", "--strict", folder=store.layout.repo) == git("fsck", "--strict", folder=odd) == ""


def test_history_goes_out_and_in_again(new_store: Any, odd: Path, tmp_path: Path, git: Any) -> None:
    from ropewalk.remote import exporting

    first, second = new_store("one"), new_store("two")
    importing.import_branch(first, str(odd), "main", into=None, actor="test/one")
    out = tmp_path / "deep" / "out.git"
    done = exporting.export_branch(first, str(out), "main", "trunk")
    assert (done.exported, done.incremental, done.branch_moved, done.old_sha) == (12, False, True, None)
    assert git("rev-parse", "trunk", folder=out) == git("rev-parse", "main", folder=odd)
    assert git("symbolic-ref", "HEAD", folder=out) == "refs/heads/trunk"
    back = importing.import_branch(second, str(out), None, into=MAIN, actor="test/one")
    assert back.head_changeset == done.head_sha and back.imported == 12
    assert git("fsck", "--strict", folder=out) == ""


def test_one_operation_that_can_be_undone(new_store: Any, odd: Path) -> None:
    from ropewalk.store import oplog, refs

    store = new_store()
    importing.import_branch(store, str(odd), "main", into="refs/heads/work", actor="test/one")
    found = oplog.find(store.db, 1)
    assert (found.kind, found.actor, store.last_op()) == ("git_import", "test/one", 1)
    refs.undo(store, "test/one", 1)
    assert store.ref("refs/heads/work") is None


def test_increments_count_what_is_new(new_store: Any, tmp_path: Path, git: Any) -> None:
    store, source = new_store(), tmp_path / "s.git"
    git("init", "--quiet", "--bare", str(source))
    one = grow(git, source, "a", 5)
    importing.import_branch(store, str(source), "main", into=None, actor="test/one")
    two = grow(git, source, "b", 3, start=10)
    done = importing.import_branch(store, str(source), "main", into=None, actor="test/one")
    assert (done.imported, done.skipped, done.old_head, done.head_changeset) == (3, 5, one, two)
    ops = store.last_op()
    again = importing.import_branch(store, str(source), "main", into=None, actor="test/one")
    assert (again.imported, again.skipped, again.ref_moved) == (0, 8, False)
    assert store.last_op() == ops


def test_a_large_import_stays_a_pack_and_small_ones_make_none(new_store: Any, tmp_path: Path, git: Any) -> None:
    store, source = new_store(), tmp_path / "s.git"
    git("init", "--quiet", "--bare", str(source))
    grow(git, source, "a", 400)
    importing.import_branch(store, str(source), "main", into=None, actor="test/one")
    assert len(maintain.packs(store)) == 1 and store.objects.loose.ids() == []
    for n in range(4):
        head = grow(git, source, f"s{n}", 2, start=1000 + n * 10)
        importing.import_branch(store, str(source), "main", into=None, actor="test/one")
    assert len(maintain.packs(store)) == 1
    journalled = {row[0] for row in store.db.rows("SELECT id FROM object_journal")}
    assert set(store.objects.loose.ids()) == journalled and head in journalled
    maintain.collect(store)
    assert git("fsck", "--strict", folder=store.layout.repo) == ""


def test_many_packs_are_put_into_one(new_store: Any, tmp_path: Path, git: Any, monkeypatch: Any) -> None:
    store, source = new_store(), tmp_path / "s.git"
    git("init", "--quiet", "--bare", str(source))
    monkeypatch.setattr(maintain, "PACKS_MAX", 2)
    monkeypatch.setattr(importing, "UNPACK_LIMIT", 1)
    for n in range(4):
        head = grow(git, source, f"s{n}", 2, start=n * 10)
        importing.import_branch(store, str(source), "main", into=None, actor="test/one")
        assert len(maintain.packs(store)) <= 2
    assert git("rev-list", "--count", head, folder=store.layout.repo) == "8"


def test_an_object_of_a_dead_writer_becomes_durable(new_store: Any, odd: Path, git: Any) -> None:
    store = new_store()
    head = git("rev-parse", "main~2", folder=odd)
    listed = git("rev-list", "--objects", "--no-object-names", "main~2", folder=odd).split()
    for oid in listed:
        kind = git("cat-file", "-t", oid, folder=odd)
        store.objects.loose.write(kind, git.run("cat-file", kind, oid, folder=odd).stdout)
    git("branch", "old", head, folder=odd)
    done = importing.import_branch(store, str(odd), "old", into=None, actor="test/one")
    journalled = {row[0] for row in store.db.rows("SELECT id FROM object_journal")}
    assert done.head_changeset == head
    assert journalled == set(listed)


def test_diverged_records_nothing(store: Any, odd: Path) -> None:
    before = state(store)
    with pytest.raises(GitImportDivergedError) as caught:
        importing.import_branch(store, str(odd), "main", into=MAIN, actor="test/one")
    assert caught.value.hint and caught.value.details["target_head"] == store.ref(MAIN)
    assert state(store) == before


def test_a_target_ahead_of_the_source_is_diverged(new_store: Any, odd: Path, git: Any) -> None:
    store = new_store()
    importing.import_branch(store, str(odd), "main", into=MAIN, actor="test/one")
    git("branch", "old", "main~1", folder=odd)
    before = state(store)
    with pytest.raises(GitImportDivergedError):
        importing.import_branch(store, str(odd), "old", into=MAIN, actor="test/one")
    assert state(store) == before


def test_a_tag_brings_the_commit_it_points_to(new_store: Any, odd: Path, git: Any) -> None:
    store = new_store()
    done = importing.import_branch(store, str(odd), "refs/tags/v1", into=MAIN, actor="test/one")
    assert done.head_changeset == git("rev-parse", "v1^{commit}", folder=odd)


def test_a_shallow_source_names_the_missing_commit(new_store: Any, odd: Path, tmp_path: Path, git: Any) -> None:
    store = new_store()
    git("clone", "--quiet", "--depth=2", f"file://{odd}", str(tmp_path / "cut"))
    before = state(store)
    with pytest.raises(ShallowError) as caught:
        importing.import_branch(store, str(tmp_path / "cut"), None, into=None, actor="test/one")
    assert caught.value.details["object"] == git("rev-parse", "main~2", folder=odd)
    assert "fetch --unshallow" in caught.value.hint
    assert state(store) == before


def test_a_missing_object_is_named(new_store: Any, odd: Path, git: Any) -> None:
    store = new_store()
    gone = git("rev-parse", "main", folder=odd)
    # the newest commit was written loose
    git("commit-tree", "-p", gone, "-m", "child", f"{gone}^{{tree}}", folder=odd)
    child = git("commit-tree", "-p", gone, "-m", "child", f"{gone}^{{tree}}", folder=odd)
    git("update-ref", "refs/heads/main", child, folder=odd)
    (odd / "objects" / gone[:2] / gone[2:]).unlink()
    with pytest.raises((ShallowError, RemoteError)) as caught:
        importing.import_branch(store, str(odd), "main", into=None, actor="test/one")
    assert gone in caught.value.message
    assert store.last_op() == 0


def test_grafts_and_replacements_do_not_change_what_comes(new_store: Any, odd: Path, git: Any) -> None:
    store = new_store()
    head = git("rev-parse", "main", folder=odd)
    below = git("rev-parse", "main~1", folder=odd)
    git("replace", "--graft", head, folder=odd)
    (odd / "info").mkdir(exist_ok=True)
    (odd / "info" / "grafts").write_text(f"{below}\n")
    assert git("rev-list", "--count", head, folder=odd) == "1"
    done = importing.import_branch(store, str(odd), "main", into=None, actor="test/one")
    assert (done.head_changeset, done.imported) == (head, 12)


@pytest.mark.parametrize("what", ["nothing", "folder", "branch", "sha256", "unborn"])
def test_what_is_no_source_is_said(new_store: Any, odd: Path, tmp_path: Path, git: Any, what: str) -> None:
    store, there = new_store(), tmp_path / "there"
    wanted: type[Exception] = NotFoundError
    if what == "folder":
        there.mkdir()
        (there / "file").write_text("x")
    elif what == "branch":
        git("clone", "--quiet", "--bare", str(odd), str(there))
    elif what == "sha256":
        git("init", "--quiet", "--bare", "--object-format=sha256", str(there))
        git("fast-import", "--quiet", folder=there,
            stdin=b"commit refs/heads/main\ncommitter A <a@b> 1 +0000\ndata 0\n\n")  # fmt: skip
        wanted = UnsupportedError
    elif what == "unborn":
        git("init", "--quiet", str(there))
    before = state(store)
    with pytest.raises(wanted) as caught:
        importing.import_branch(
            store, str(there), None if what == "unborn" else "nope" if what == "branch" else "main", into=MAIN,
            actor="test/one",
        )  # fmt: skip
    assert getattr(caught.value, "hint", "")
    assert state(store) == before


def test_a_strangers_configuration_runs_nothing(new_store: Any, odd: Path, tmp_path: Path, git: Any) -> None:
    store, mark = new_store(), tmp_path / "ran"
    bait = tmp_path / "bait.sh"
    bait.write_text(f'#!/bin/sh\necho "$0 $@" >>{mark}\ncat\n')
    bait.chmod(0o755)
    for key in ("uploadpack.packObjectsHook", "core.fsmonitor", "core.alternateRefsCommand", "core.sshCommand",
                "core.pager", "remote.origin.uploadpack", "diff.external"):  # fmt: skip
        git("config", key, str(bait), folder=odd)
    git("config", "core.hooksPath", str(tmp_path), folder=odd)
    if os.getuid() == 0:
        for folder, _, files in os.walk(odd):
            for name in [".", *files]:
                os.chown(os.path.join(folder, name), 65534, 65534)
    done = importing.import_branch(store, str(odd), "main", into=None, actor="test/one")
    assert done.imported == 12
    assert not mark.exists()


def test_a_work_tree_a_linked_one_and_a_bundle_are_sources(new_store: Any, odd: Path, tmp_path: Path, git: Any) -> None:
    head = git("rev-parse", "main", folder=odd)
    work, linked, bundle = tmp_path / "work", tmp_path / "linked", tmp_path / "b.bundle"
    git("clone", "--quiet", "--no-checkout", str(odd), str(work))
    git("worktree", "add", "--quiet", "--no-checkout", "-b", "side", str(linked), folder=work)
    git("bundle", "create", "--quiet", str(bundle), "main", folder=odd)
    for number, (source, branch) in enumerate([(work, None), (work / ".git", None), (linked, None), (bundle, "main")]):
        store = new_store(f"s{number}")
        done = importing.import_branch(store, str(source), branch, into=MAIN, actor="test/one")
        assert done.head_changeset == head
    assert importing.current_branch(str(work / ".git")) == ("main", head)
    assert importing.current_branch(str(work / ".git" / "worktrees" / "linked")) == ("side", head)


def test_current_branch_of_unborn_and_detached_is_none(odd: Path, tmp_path: Path, git: Any) -> None:
    git("init", "--quiet", str(tmp_path / "new"))
    assert importing.current_branch(str(tmp_path / "new" / ".git")) is None
    git("update-ref", "--no-deref", "HEAD", "main", folder=odd)
    assert importing.current_branch(str(odd)) is None


def test_leftovers_of_a_killed_import_go_and_those_at_work_stay(new_store: Any, odd: Path) -> None:
    store = new_store()
    root = Path(store.layout.root)
    for name in ("incoming-1-dead", "incoming-2-busy"):
        (root / name / "pack").mkdir(parents=True)
        os.utime(root / name, (1, 1))
    (root / "incoming-3-new").mkdir()
    held = os.open(root / "incoming-2-busy", os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        importing.import_branch(store, str(odd), "main", into=None, actor="test/one")
    finally:
        os.close(held)
    assert sorted(p.name for p in root.glob("incoming-*")) == ["incoming-2-busy", "incoming-3-new"]


def test_init_in_a_shallow_clone_leaves_no_store(rw: Any, odd: Path, tmp_path: Path, git: Any) -> None:
    git("clone", "--quiet", "--no-checkout", "--depth=2", f"file://{odd}", str(tmp_path / "cut"))
    error = rw.error("E_SHALLOW", "init", folder=tmp_path / "cut")
    assert error["details"]["object"] == git("rev-parse", "main~2", folder=odd)
    assert not (tmp_path / "cut" / ".git" / "ropewalk").exists()
    assert rw.ok("init", "--no-import", folder=tmp_path / "cut")["head"] is None


def test_the_command_line_round_trip(rw: Any, odd: Path, tmp_path: Path, git: Any) -> None:
    rw.store = str(tmp_path / "st")
    rw.ok("init", "--store", rw.store, str(tmp_path))
    done = rw.ok("git", "import", "odd.git", "--into", "work")
    assert done["target_ref"] == "work" and done["imported"] == 12
    out = rw.ok("git", "export", "out.git", "--ref", "work", "--branch", "back")
    assert out["head_sha"] == done["git_head_sha"]
    assert git("rev-parse", "back", folder=tmp_path / "out.git") == done["git_head_sha"]
    assert rw.ok("verify", "--deep")["problems"] == []
    error = rw.error("E_NOT_FOUND", "git", "import", "odd.git", "--ref", "nope")
    assert "main" in error["hint"]
