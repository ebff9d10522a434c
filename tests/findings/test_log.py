"""Findings about the log: SQLite's files and locks, flushes, and answers that rest on them (A15, A16, A20 to A24)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropewalk.core.errors import (
    CasMismatchError,
    ConflictError,
    FencedError,
    KeyReusedError,
    LandMismatchError,
    StoreIOError,
)
from ropewalk.remote import exporting
from ropewalk.store import changes, maintain, oplog, projection, readers, refs, store
from ropewalk.store.store import Store
from storekit import MAIN, SRC, Kit, child_env, lines, put, rw


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


def synced(kit: Kit) -> os.stat_result:
    """Syncs whatever the store has, and gives the file that was synced."""
    Path(kit.root, "flushed").unlink(missing_ok=True)
    kit.store.flush()
    return os.fstat(kit.store._wal)


def test_A23_a_log_that_another_tool_put_away_is_noticed(kit: Kit) -> None:
    """After a foreign checkpoint and close the next sync goes to the new file, not to the unlinked one."""
    kit.first(put("f", "0\n"))
    kit.change(put("f", "1\n"))
    path = Path(kit.root, "store.db-wal")
    assert synced(kit).st_ino == path.stat().st_ino
    kit.close()
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('select 1 from refs').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", code, os.path.join(kit.root, "store.db")], check=True, timeout=60)
    kit.store = Store(kit.root)
    assert kit.text("f") == "1\n"
    kit.change(put("f", "2\n"))
    assert synced(kit).st_ino == path.stat().st_ino
    assert oplog.check_chain(kit.store.db) is None


def test_A23_a_held_handle_follows_a_log_that_was_replaced(kit: Kit) -> None:
    kit.first(put("f", "0\n"))
    path = Path(kit.root, "store.db-wal")
    before = synced(kit)
    assert before.st_ino == path.stat().st_ino
    data = path.read_bytes()
    path.rename(path.with_name("aside"))
    path.write_bytes(data)
    after = synced(kit)
    assert after.st_ino == path.stat().st_ino != before.st_ino and after.st_nlink == 1


@pytest.mark.parametrize("who", ["writer", "reader"])
def test_A23_the_log_stays_when_the_last_of_us_goes(kit: Kit, who: str) -> None:
    """Every connection keeps it, those that only read too, so that nobody's descriptor is left without a name."""
    kit.first(put("f", "0\n"))
    path = Path(kit.root, "store.db-wal")
    inode = path.stat().st_ino
    kit.close()
    kit.store = Store(kit.root)
    if who == "writer":
        kit.commit(put("f", "1\n"))
    else:
        kit.main()
    kit.close()
    assert path.stat().st_ino == inode and path.stat().st_size > 0
    kit.store = Store(kit.root)


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


@pytest.mark.parametrize("question", ["committed", "reused", "replay lost", "exported", "conflict", "refused"])
def test_A15_other_answers_that_tell_of_anothers_write_are_on_disk_too(kit: Kit, tmp_path: Path, question: str) -> None:
    kit.first(put("f", lines()))
    key = "00000000-0000-0000-0000-000000000002"
    parent = kit.main()
    kit.commit(put("f", lines("3:one")), key=key, parent=parent)
    change = kit.commit(put("f", lines("9:one")), agent="a/c", parent=parent).changeset
    kit.change(put("f", lines("9:two")), agent="a/d")
    stale = kit.commit(put("f", lines()), agent="a/c").changeset
    mark = Path(kit.root, "flushed")
    mark.unlink()
    if question == "committed":
        assert kit.commit(put("f", lines("3:one")), key=key, parent=parent).replayed
    elif question == "reused":
        with pytest.raises(KeyReusedError):
            kit.commit(put("f", lines("3:two")), key=key, parent=parent)
    elif question == "replay lost":
        with pytest.raises(CasMismatchError):
            kit.commit(put("g", "g\n"), parent=parent, advance="main")
    elif question == "exported":
        exporting.export_branch(kit.store, str(tmp_path / "out.git"), "main", "main")
    elif question == "conflict":
        with pytest.raises(ConflictError):
            kit.land(change, agent="a/c")
    else:
        with pytest.raises(LandMismatchError):
            kit.land(stale, agent="a/c")
    assert int(mark.read_bytes().split()[1]) == kit.store.last_op()


def old_view(kit: Kit) -> subprocess.Popen[bytes]:
    """Starts a process that reads an old view of the database until it is told to end."""
    code = (
        "import sys; from ropewalk.store.store import Store\n"
        "s = Store(sys.argv[1])\nwith s.db.snapshot():\n"
        "    s.last_op(); print('reads', flush=True); sys.stdin.readline()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, kit.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env=child_env())  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == b"reads\n"
    return child


def test_A20_a_long_log_is_told_of_with_the_reader_that_keeps_it(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is 256 MiB; here it is a few pages, so that the test writes little."""
    assert readers.WARN_PAGES * 4096 == 256 << 20
    kit.first(put("f", "0\n"))
    monkeypatch.setattr(store, "WAL_PAGES", 10)
    monkeypatch.setattr(readers, "WARN_PAGES", 20)
    path = os.path.join(kit.root, "store.db")
    child = old_view(kit)
    try:
        assert readers.readers(path) == [child.pid]
        kit.store.warnings.clear()
        for n in range(20):
            kit.commit(put("f", f"{n + 1}\n"))
        told = [w for w in kit.store.warnings if "old view" in w]
        assert told and f"process {child.pid} (" in told[-1] and "MiB" in told[-1]
    finally:
        child.communicate(b"\n", timeout=30)
    assert readers.readers(path) == []
    kit.store.warnings.clear()
    for n in range(20):
        kit.commit(put("f", f"{n + 50}\n"))
    assert not [w for w in kit.store.warnings if "old view" in w]
    assert kit.store.db.wal_pages < 200  # nobody holds it back, so it starts over


def test_A20_no_checkpoint_but_the_passive_one_and_no_wait_in_it(kit: Kit) -> None:
    """TRUNCATE and RESTART wait for readers and stop writers; nothing in the package asks for them."""
    for path in Path(SRC).rglob("*.py"):
        words = path.read_text()
        assert "CHECKPOINT_TRUNCATE" not in words and "CHECKPOINT_RESTART" not in words, path
        assert "CHECKPOINT_FULL" not in words and "wal_checkpoint(" not in words.lower().replace("con.wal_", ""), path
    kit.first(put("f", "0\n"))
    child = old_view(kit)
    try:
        kit.commit(put("f", "1\n"))
        with kit.store.lock_held():
            started = time.monotonic()
            frames, moved = kit.store.db.checkpoint()
            assert moved < frames and time.monotonic() - started < 2
    finally:
        child.communicate(b"\n", timeout=30)


def test_A24_the_shared_memory_file_stays_and_no_one_opens_the_database_as_immutable(kit: Kit) -> None:
    """`immutable` beside a log that is not empty would leave out what is only in the log, without a word."""
    kit.first(put("f", "f\n"))
    kit.close()
    assert Path(kit.root, "store.db-shm").exists() and Path(kit.root, "store.db-wal").exists()
    kit.store = Store(kit.root)
    for path in Path(SRC).rglob("*.py"):
        assert "immutable=" not in path.read_text().lower(), path
    with Kit(kit.root).store as again:
        assert again.ref(MAIN) == kit.main()


@pytest.mark.parametrize("shm", ["there", "gone"])
def test_A24_a_read_only_store_reads_or_says_what_is_wrong(kit: Kit, shm: str) -> None:
    """With `-shm` all of it is read, what is only in the log too; without it the error is typed and says what to do."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    kit.first(put("f", "f\n"))
    kit.change(put("f", "g\n"))
    head = kit.main()
    kit.close()
    if shm == "gone":
        Path(kit.root, "store.db-shm").unlink()
    if subprocess.run(["mount", "--bind", kit.root, kit.root], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", kit.root], check=True)
        for words in (["log", "main"], ["ref", "list"], ["cat", "main:f"]):
            code, envelope = rw(kit.root, *words)
            if shm == "there":
                assert (code == 0 and head[:4] in str(envelope)) or words[0] == "cat", envelope
            else:
                assert (code, envelope["error"]["code"]) == (7, "E_IO"), envelope
                assert "mount" in envelope["error"]["hint"], envelope
        code, envelope = rw(kit.root, "ref", "set", "x", head, "--create")
        assert (code, envelope["error"]["code"]) == (7, "E_IO") and "mount" in envelope["error"]["hint"], envelope
    finally:
        subprocess.run(["umount", "-l", kit.root], check=True)
        kit.store = Store(kit.root)
    assert kit.main() == head and kit.text("f") == "g\n"
