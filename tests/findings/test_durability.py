"""Findings about objects, locks, the log and refs on disk (A1 to A3, A13 to A17, A20 to A27, A30 to A32, S1)."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropewalk.core.errors import BusyError, InvalidError, RopewalkError, StoreCorruptError, StoreIOError
from ropewalk.store import changes, loose, maintain, oplog, projection, refs
from ropewalk.store.store import Store
from ropewalk.store.trees import FILE
from storekit import MAIN, SRC, STOCK, Kit, child_env, lines, put, stock


def blob_of(kit: Kit, path: bytes) -> str:
    """Gives the id of a file on `main`."""
    from ropewalk.store import trees

    entry = trees.lookup(kit.store.objects, kit.store.objects.commit(kit.main()).tree, path)
    assert entry is not None
    return entry[1].hex()


# A1, A2, A3


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("size", [20, 100_000])
def test_A1_a_cut_loose_object_is_an_error_at_once(kit: Kit, keep: float, size: int) -> None:
    kit.first(put("f", os.urandom(size)))
    oid = blob_of(kit, b"f")
    kit.only_loose(oid)
    kit.damage(oid, keep)
    fresh = kit.again()
    started = time.monotonic()
    with pytest.raises(StoreCorruptError):
        fresh.store.objects.read(oid)
    with pytest.raises(StoreCorruptError):
        fresh.store.objects.kind(oid)
    assert fresh.store.objects.read_many([oid]) == [None]
    assert time.monotonic() - started < 5
    fresh.close()


@pytest.mark.parametrize("what", ["commit", "tree", "blob"])
def test_A1_a_land_over_damage_fails_with_a_type_and_changes_nothing(kit: Kit, what: str) -> None:
    kit.first(put("d/f", lines()), put("g", "g\n"))
    change = kit.commit(put("d/f", lines("3:mine"))).changeset
    kit.change(put("d/f", lines("20:yours")), agent="a/c")
    objects = kit.store.objects
    tree = objects.commit(change).tree
    oid = {"commit": change, "tree": tree, "blob": objects.tree(objects.tree(tree)[b"d"][1].hex())[b"f"][1].hex()}[what]
    kit.only_loose(oid)
    kit.damage(oid)
    fresh = kit.again()
    before = fresh.store.last_op()
    with pytest.raises(RopewalkError) as caught:
        fresh.land(change)
    assert caught.value.code in ("E_STORE_CORRUPT", "E_INTERNAL", "E_NOT_FOUND")
    assert fresh.store.last_op() == before
    fresh.close()


def test_A2_a_damaged_twin_of_a_packed_object_does_not_matter(kit: Kit) -> None:
    kit.first(put("f", lines()))
    oid = blob_of(kit, b"f")
    maintain.collect(kit.store)
    assert not os.path.exists(kit.loose(oid))
    os.makedirs(os.path.dirname(kit.loose(oid)), exist_ok=True)
    Path(kit.loose(oid)).write_bytes(b"x\x9c torn")
    fresh = kit.again()
    assert fresh.store.objects.read(oid) == lines().encode()
    assert fresh.change(put("f", lines("3:x"))).status == "landed"
    fresh.close()


def test_A2_a_checkpoint_leaves_no_loose_twin_and_builds_from_the_journal(kit: Kit) -> None:
    """Loose files that were damaged since do not get into the pack."""
    kit.first(*[put(f"f{n}", lines(f"1:{n}")) for n in range(20)])
    oid = blob_of(kit, b"f3")
    kit.damage(oid)
    maintain.collect(kit.store)
    assert kit.store.objects.loose.ids() == []
    assert kit.store.db.rows("SELECT * FROM object_journal") == []
    kit.fsck()
    assert kit.stock("cat-file", "blob", oid) == lines("1:3").rstrip("\n")


def test_A3_a_damaged_object_is_replaced_when_it_is_written_again(kit: Kit) -> None:
    kit.first(put("f", lines()), put("g", "g\n"))
    oid = blob_of(kit, b"f")
    for keep in (0.0, 0.5):
        kit.damage(oid, keep)
        fresh = kit.again()
        fresh.commit(put(f"copy{keep}", lines()))
        fresh.store.expose()
        assert fresh.store.objects.loose.read(oid) == ("blob", lines().encode())
        fresh.close()


def test_A3_a_damaged_file_where_a_merges_result_belongs_is_replaced(kit: Kit) -> None:
    """Git takes the file for the object and writes nothing; the land must not rest on it."""
    kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:mine"))).changeset
    kit.change(put("f", lines("20:yours")), agent="a/c")
    merged = kit.store.objects.loose.write("blob", lines("3:mine", "20:yours").encode())
    kit.damage(merged)
    assert kit.land(one).merged_by == "ort"
    assert kit.store.objects.loose.read(merged) == ("blob", lines("3:mine", "20:yours").encode())
    kit.fsck()


def test_two_contents_under_one_id_are_refused(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collision is never taken for the object that is there."""
    store = kit.store.objects.loose
    there = store.write("blob", b"one")
    monkeypatch.setattr(loose, "inflate", lambda packed, oid: ("blob", b"two"))
    with pytest.raises(StoreCorruptError):
        store.write("blob", b"one")
    assert there


# A13, A14


def test_A13_many_packs_become_one_at_a_checkpoint(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.first(put("f", "f\n"))
    for n in range(maintain.PACKS_MAX + 5):
        oid = stock("--git-dir", kit.repo, "hash-object", "-w", "--stdin", stdin=b"%d" % n).decode().strip()
        stock("--git-dir", kit.repo, "pack-objects", f"{kit.repo}/objects/pack/pack", stdin=oid.encode() + b"\n")
    assert len(maintain.packs(kit.store)) > maintain.PACKS_MAX
    maintain.checkpoint_if_due(kit.store)
    assert len(maintain.packs(kit.store)) == 1
    assert kit.change(put("f", "g\n")).status == "landed"
    kit.fsck()


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


# A15 to A17


def test_A16_nothing_imports_another_sqlite() -> None:
    for path in Path(SRC).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] in ("sqlite3", "pysqlite2") for n in names), path


def test_A16_only_the_log_is_opened_beside_sqlite(kit: Kit) -> None:
    """A descriptor of `store.db` or its `-shm` that is not SQLite's own would free its locks when closed."""
    trace = Path(kit.root, "trace")
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from storekit import Kit, put\n"
        "k = Kit(sys.argv[1]); k.first(put('f', 'f\\n')); k.change(put('f', 'g\\n')); k.close()\n"
    )
    subprocess.run(
        ["strace", "-f", "-e", "trace=openat,close", "-o", str(trace), sys.executable, "-c", code, kit.root,
         str(Path(__file__).parent.parent)],
        env=child_env(), check=True, timeout=120, capture_output=True,
    )  # fmt: skip
    opened = [line for line in trace.read_text().splitlines() if "store.db" in line and "openat" in line]
    assert sum('store.db"' in line for line in opened) == 1
    assert sum('store.db-shm"' in line for line in opened) == 1


def test_A17_a_persons_clean_up_deletes_nothing_that_only_the_log_names(kit: Kit) -> None:
    kit.first(put("f", lines()))
    kept = [kit.commit(put("f", lines(f"3:{n}"))).changeset for n in range(3)]
    kit.land(kept[0])
    refs.undo(kit.store, "a/b", kit.store.last_op())
    for command in (
        ["gc", "--prune=now"],
        ["prune", "--expire=now"],
        ["gc", "--aggressive", "--prune=now"],
        ["maintenance", "run", "--task=gc"],
        ["repack", "-a", "-d"],
        ["prune-packed"],
        ["pack-refs", "--all"],
    ):
        stock("--git-dir", kit.repo, *command, ok=False)
    fresh = kit.again()
    for change in kept:
        assert fresh.files(change)[b"f"][0] == FILE
    assert fresh.land(kept[1]).status == "landed"
    assert kit.stock("rev-parse", "main") == fresh.main()
    fresh.close()
    kit.fsck()


def test_A18_our_own_collection_works_on_a_repository_that_keeps_everything(kit: Kit) -> None:
    kit.first(put("f", lines()))
    alone = kit.commit(put("f", lines("1:only the log names me"))).changeset
    for n in range(3):
        kit.change(put("f", lines(f"3:{n}")))
        done = maintain.collect(kit.store)
        assert done.packs_after == 1
    assert kit.files(alone)
    assert kit.stock("config", "extensions.preciousObjects") == "true"
    kit.fsck()


def test_S22_what_killed_writers_left_half_written_is_swept_by_a_collection(kit: Kit) -> None:
    """An old file goes; a fresh one may be a living writer's."""
    kit.first(put("f", "f\n"))
    folder = Path(kit.repo, "objects")
    for name, age in (("tmp_rw_1_2_3", 7200), ("tmp_obj_x", 7200), ("tmp_rw_9_9_9", 10)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age, time.time() - age))
    maintain.collect(kit.store)
    assert [n for n in os.listdir(folder) if n.startswith("tmp_")] == ["tmp_rw_9_9_9"]


# A20, A21, A23


def test_A20_a_reader_with_an_old_view_holds_nobody_up(kit: Kit) -> None:
    kit.first(put("f", "0\n"))
    reader = kit.again()
    with reader.store.db.snapshot():
        before = reader.store.last_op()
        for n in range(5):
            kit.change(put("f", f"{n + 1}\n"))
            started = time.monotonic()
            maintain.collect(kit.store)
            assert time.monotonic() - started < 20
        assert reader.store.last_op() == before
    assert reader.store.last_op() == kit.store.last_op()
    reader.close()


def test_A21_a_failed_sync_refuses_all_later_writes_until_repair(kit: Kit) -> None:
    """The failure is the kernel's, in another process; the mark it leaves binds every process."""
    kit.first(put("f", lines()))
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from storekit import Kit, put\n"
        "from ropewalk.core.errors import RopewalkError\n"
        "k = Kit(sys.argv[1])\n"
        "try:\n    k.commit(put('f', 'lost\\n'))\n    print('ok')\nexcept RopewalkError as e:\n    print(e.code)\n"
    )
    done = subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1", "-o", "/dev/null",
         sys.executable, "-c", code, kit.root, str(Path(__file__).parent.parent)],
        env=child_env(), timeout=120, capture_output=True,
    )  # fmt: skip
    assert done.stdout.decode().strip() == "E_IO", done.stderr.decode()
    for writer in (kit, kit.again()):
        with pytest.raises(StoreIOError) as caught:
            writer.commit(put("f", "more\n"))
        assert "repair" in caught.value.hint
    assert kit.text("f") == lines()
    from ropewalk.store import repair

    repair.repair(kit.store, progress=lambda _: None)
    assert kit.commit(put("f", "again\n")).changeset


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


def test_A23_a_log_that_another_tool_put_away_is_noticed(kit: Kit) -> None:
    """After a foreign checkpoint and close the next sync goes to the new file, not to the unlinked one."""
    kit.first(put("f", "0\n"))
    kit.change(put("f", "1\n"))
    old = kit.store._wal_handle()[0]
    inode = os.fstat(old).st_ino
    kit.close()
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('select 1 from refs').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", code, os.path.join(kit.root, "store.db")], check=True, timeout=60)
    kit.store = Store(kit.root)
    assert kit.text("f") == "1\n"
    kit.change(put("f", "2\n"))
    now = os.stat(os.path.join(kit.root, "store.db-wal"))
    assert os.fstat(kit.store._wal_handle()[0]).st_ino == now.st_ino
    assert inode > 0 and oplog.check_chain(kit.store.db) is None


def test_A23_a_held_handle_follows_a_log_that_was_replaced(kit: Kit) -> None:
    kit.first(put("f", "0\n"))
    path = Path(kit.root, "store.db-wal")
    first, _ = kit.store._wal_handle()
    assert os.fstat(first).st_ino == path.stat().st_ino
    data = path.read_bytes()
    path.rename(path.with_name("aside"))
    path.write_bytes(data)
    second, fresh = kit.store._wal_handle()
    assert os.fstat(second).st_ino == path.stat().st_ino
    assert fresh or os.fstat(second).st_nlink == 1


# A25 to A27, S1


def hold(kit: Kit) -> subprocess.Popen[bytes]:
    """Starts a process that holds the writer lock and says so."""
    code = (
        "import sys, time\nfrom ropewalk.store.lock import WriterLock\n"
        "l = WriterLock(sys.argv[1]); l.acquire(); print('held', flush=True); sys.stdin.readline(); l.release()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, os.path.join(kit.root, "writer.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_env(),
    )
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    """Ends a child that the test started."""
    child.kill()
    child.communicate(timeout=30)


def test_A25_a_child_of_a_writer_does_not_keep_its_lock(kit: Kit) -> None:
    """A writer that is killed frees the lock, though children of it live on."""
    code = (
        "import subprocess, sys\nfrom ropewalk.store.lock import WriterLock\n"
        "l = WriterLock(sys.argv[1]); l.acquire()\n"
        "c = subprocess.Popen(['sleep', '60'], close_fds=False); print(c.pid, flush=True); sys.stdin.readline()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, os.path.join(kit.root, "writer.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_env(),
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        child.kill()
        child.wait(timeout=30)
        os.kill(grandchild, 0)
        kit.first(put("f", "f\n"))
    finally:
        os.kill(grandchild, signal.SIGKILL)
        child.stdout.close()
        assert child.stdin is not None
        child.stdin.close()


def test_A26_a_stopped_holder_is_named_and_waiters_go_on_when_it_does(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    waiter = kit.again(lock_wait=0.3)
    change = waiter.commit(put("f", "g\n")).changeset
    child = hold(kit)
    try:
        os.kill(child.pid, signal.SIGSTOP)
        for what in (lambda: waiter.commit(put("f", "h\n")), lambda: waiter.land(change)):
            with pytest.raises(BusyError) as caught:
                what()
            assert caught.value.details["pid"] == child.pid
            assert caught.value.details["state"] == "stopped"
            assert caught.value.retryable
        assert waiter.store.ref(MAIN) is not None  # readers do not wait
        os.kill(child.pid, signal.SIGCONT)
        child.communicate(b"\n", timeout=30)
        assert waiter.land(change).status == "landed"
    finally:
        end(child)
        waiter.close()


def test_A26_terminal_stops_are_held_back_inside_the_section(kit: Kit) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with kit.store.lock_held():
        inside = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU} <= inside
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_A27_a_lock_file_that_someone_removed_does_not_make_two_writers(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    path = Path(kit.root, "writer.lock")
    other = kit.again(lock_wait=0.2)
    with kit.store.lock_held():
        with pytest.raises(BusyError):
            other.commit(put("f", "g\n"))
        path.unlink()
    # whoever waits on the removed file looks again
    with other.store.lock_held():
        assert path.exists()
        assert not kit.store.lock.try_acquire()
    assert kit.commit(put("f", "h\n")).changeset
    other.close()


def test_S1_a_killed_holder_and_leftover_files_stop_nobody(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    child = hold(kit)
    end(child)
    Path(kit.root, "writer.lock").write_text("junk")
    Path(kit.root, "spool", "dead-1.req").write_bytes(b"junk")
    Path(kit.root, "spool", "dead-1.ans").write_bytes(b"junk")
    started = time.monotonic()
    assert kit.change(put("f", "g\n")).status == "landed"
    assert time.monotonic() - started < 2
    assert not [n for n in os.listdir(os.path.join(kit.root, "spool")) if n.startswith("dead")]


# A30 to A32: refs in repo.git


def test_A30_a_ref_that_someone_moved_is_kept_apart_and_told(kit: Kit, tmp_path: Path) -> None:
    kit.first(put("f", "f\n"))
    theirs = stock("--git-dir", kit.repo, "commit-tree", "-m", "by hand", "-p", kit.main(), f"{kit.main()}^{{tree}}")
    foreign = theirs.decode().strip()
    Path(kit.repo, MAIN).write_text(foreign + "\n")
    kit.store.warnings.clear()
    kit.change(put("f", "g\n"))
    assert any("without ropewalk" in w for w in kit.store.warnings)
    assert kit.stock("rev-parse", "main") == kit.main()
    assert foreign in kit.stock("for-each-ref", "--format=%(objectname)", "refs/ropewalk/foreign")


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


def test_a_key_that_two_processes_send_at_once_is_answered_once(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second looks before the first is done, and writes after it."""
    kit.first(put("f", "f\n"))
    other = kit.again()
    key = "00000000-0000-0000-0000-00000000000a"
    parent = kit.main()
    first: list[changes.Committed] = []
    right = changes.write_changeset

    def late(*args: object, **words: object) -> changes.Committed:
        if not first:
            monkeypatch.setattr(changes, "write_changeset", right)
            first.append(other.commit(put("f", "g\n"), key=key, parent=parent))
        return right(*args, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(changes, "write_changeset", late)
    again = kit.commit(put("f", "g\n"), key=key, parent=parent)
    assert again.replayed and again.changeset == first[0].changeset
    other.close()


def test_no_ref_is_shown_before_its_operation_is_on_disk(kit: Kit) -> None:
    """One process has committed and not synced yet; another that shows refs syncs for it first."""
    kit.first(put("f", "f\n"))
    change = kit.commit(put("f", "g\n")).changeset
    with kit.store.lock_held(), kit.store.begun() as tx:
        tx.record("ref_set", "a/b", [oplog.Move("refs/heads/new", None, change)])
    mark = Path(kit.root, "flushed")
    assert int(mark.read_bytes().split()[1]) < tx.last_op
    other = kit.again()
    projection.project(other.store)
    assert kit.stock("rev-parse", "new") == change
    assert int(mark.read_bytes().split()[1]) >= tx.last_op
    other.close()
