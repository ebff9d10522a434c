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
    FencedError,
    StoreIOError,
)
from ropewalk.store import changes, maintain, oplog, projection, refs
from ropewalk.store.store import Store
from storekit import (
    MAIN,
    SRC,
    Kit,
    child_env,
    lines,
    put,
)


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
