"""Findings about the writer lock and those who wait for it (A25 to A27, A29)."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.core.errors import BusyError, FencedError, RopewalkError
from ropewalk.store import land, oplog, spool
from ropewalk.store.land import Landed
from ropewalk.store.store import Store
from storekit import MAIN, Kit, child_env, lines, put, rw


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


def stopped_holder(kit: Kit) -> subprocess.Popen[bytes]:
    """Starts a process that takes the writer lock and stops; once continued it lets go and ends."""
    code = (
        "import os, signal, sys\nfrom ropewalk.store.lock import WriterLock\n"
        "l = WriterLock(sys.argv[1]); l.acquire(); print('held', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP); l.release()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, os.path.join(kit.root, "writer.lock")],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_env())  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    return child


@pytest.mark.parametrize("words", [["--unblock"], ["--unblock", "--kill"]], ids=["continue", "kill"])
def test_A26_repair_unblock_continues_the_holder_or_kills_it_when_asked(kit: Kit, words: list[str]) -> None:
    kit.first(put("f", "f\n"))
    child = stopped_holder(kit)
    try:
        code, refused = rw(kit.root, "gc", ROPEWALK_LOCK_WAIT="0.3")
        assert (code, refused["error"]["code"]) == (6, "E_BUSY") and "--unblock" in refused["error"]["hint"]
        assert refused["error"]["details"]["pid"] == child.pid
        code, envelope = rw(kit.root, "repair", *words)
        assert code == 0, envelope
        assert child.wait(30) == (-signal.SIGKILL if "--kill" in words else 0)
        assert kit.change(put("f", "g\n")).status == "landed"
    finally:
        end(child)


def test_A26_nobody_to_unblock_is_no_error_and_touches_nobody(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    assert rw(kit.root, "repair", "--unblock", "--kill")[0] == 0
    assert rw(kit.root, "repair", "--kill")[1]["error"]["code"] == "E_INVALID"


def test_A26_a_merge_under_the_lock_ends_with_the_process_that_asked_for_it(kit: Kit, tmp_path: Path) -> None:
    """A git that hangs in place of a merge, under the lock: the land is killed, and nothing of it runs on."""
    kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:mine"))).changeset
    kit.change(put("f", lines("20:yours")), agent="a/c")
    bin = tmp_path / "bin"
    bin.mkdir()
    git = shutil.which("git")
    (bin / "git").write_text(
        f'#!/bin/sh\ncase "$*" in *merge-tree*) echo $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid;'
        f' exec sleep 300;; esac\nexec {git} "$@"\n'
    )
    (bin / "git").chmod(0o755)
    code = (
        "import sys; sys.path.insert(0, sys.argv[3])\n"
        "from storekit import Kit, MAIN\nfrom ropewalk.store import land\n"
        "k = Kit(sys.argv[1]); r = land.request(agent='a/b', change=sys.argv[2], ref=MAIN)\n"
        "k.store.lock.acquire()\n"
        "with k.store.begun() as tx: land._one(k.store, tx, r, ort_seconds=60.0)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, kit.root, one, str(Path(__file__).parent.parent)],
                             env=child_env(PATH=f"{bin}:{os.environ['PATH']}"))  # fmt: skip
    try:
        wait_until(lambda: (tmp_path / "pid").exists())
        pid = int((tmp_path / "pid").read_text())
        child.kill()
        child.wait(30)
        wait_until(lambda: not running(pid))
        assert kit.land(one).status == "landed"
    finally:
        child.kill()
        child.wait(30)


def wait_until(what: Callable[[], bool], seconds: float = 30) -> None:
    """Returns once something is so; fails after a bound."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come about"
        select.select([], [], [], 0.01)


def running(pid: int) -> bool:
    """Says whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


LEADER = """
import os, sys
sys.path.insert(0, sys.argv[3])
from storekit import Kit, MAIN
from ropewalk.store import land, spool
k = Kit(sys.argv[1])
r = land.request(agent='a/leader', change=sys.argv[2], ref=MAIN)
def die(*args):
    os._exit(9)
if sys.argv[4] == 'dies':
    spool.put_answer = die
k.store.lock.acquire(); print('held', flush=True); sys.stdin.readline()
print(land._lead(k.store, r, None, 0, None).status, flush=True)
"""


@pytest.mark.parametrize("leader", ["answers", "dies"])
@pytest.mark.parametrize("what", ["lands", "is fenced", "settled"])
def test_A29_a_waiter_is_answered_once_with_its_own_name_though_its_leader_dies(
    kit: Kit, leader: str, what: str
) -> None:
    """Between the commit and the answer the leader is gone; the waiter finds its land in the log, as it was made."""
    kit.first(put("f", "f\n"), put("g", "g\n"))
    first = kit.commit(put("f", "leader\n"), agent="a/leader").changeset
    mine = kit.commit(put("g", "waiter\n"), agent="a/waiter").changeset
    if what == "settled":
        kit.land(mine, agent="a/waiter")
    before = kit.store.last_op()
    child = subprocess.Popen([sys.executable, "-c", LEADER, kit.root, first, str(Path(__file__).parent.parent), leader],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_env())  # fmt: skip
    assert child.stdout is not None and child.stdin is not None and child.stdout.readline() == b"held\n"
    answers: list[Landed | RopewalkError] = []

    def wait() -> None:
        with Store(kit.root) as own:
            fence = (MAIN, mine) if what == "is fenced" else None
            try:
                answers.append(land.land(own, land.request(agent="a/waiter", change=mine, ref=MAIN, fence=fence)))
            except RopewalkError as error:
                answers.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        wait_until(lambda: len(spool.waiting(kit.store.layout.spool, None)) == 1)
        out, _ = child.communicate(b"\n", timeout=30)
        assert (child.returncode, out) == ((9, b"") if leader == "dies" else (0, b"landed\n"))
        thread.join(30)
    finally:
        end(child)
    (found,) = answers
    ops = [(o.kind, o.actor) for o in oplog.after(kit.store.db, before, 9)]
    if what == "lands":
        assert isinstance(found, Landed) and (found.status, found.changed_paths) == ("landed", ["g"])
        assert ops == [("land", "a/leader"), ("land", "a/waiter")]
        assert kit.main() == found.landed and kit.text("g") == "waiter\n"
    elif what == "settled":
        assert isinstance(found, Landed) and found.status == "up_to_date" and ops == [("land", "a/leader")]
    else:
        assert isinstance(found, FencedError) and ops == [("land", "a/leader")]
    assert os.listdir(kit.store.layout.spool) == []


def test_A29_a_request_whose_owner_died_is_dropped(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    mine = kit.commit(put("f", "dead\n")).changeset
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[3])\n"
        "from storekit import Kit, MAIN\nfrom ropewalk.store import land\n"
        "k = Kit(sys.argv[1]); k.store.slot().put(land.request(agent='a/b', change=sys.argv[2], ref=MAIN))\n"
        "print('put', flush=True); sys.stdin.readline()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, kit.root, mine, str(Path(__file__).parent.parent)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_env())  # fmt: skip
    try:
        assert child.stdout is not None and child.stdout.readline() == b"put\n"
        assert [r.change for _, r in spool.waiting(kit.store.layout.spool, None)] == [mine]
    finally:
        end(child)
    kit.change(put("g", "g\n"))
    assert set(kit.files()) == {b"f", b"g"} and kit.text("f") == "f\n"
    assert os.listdir(kit.store.layout.spool) == []


def test_A29_the_records_of_waiters_do_not_pile_up(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    with kit.store.transaction() as tx:
        for n in range(10):
            tx.remember(land._WAITED, f"old{n}", b"", b"{}")
    kit.store.db.run("UPDATE keys SET op = op - ?", (land._WAITED_KEPT,))
    with kit.store.transaction() as tx:
        while tx.last_op % 256 != 255:
            tx.record("test", "a/b")
    change = kit.commit(put("f", "h\n"), key=None).changeset
    with kit.store.transaction() as tx:
        while tx.last_op % 256 != 255:
            tx.record("test", "a/b")
        land._for_other(kit.store, tx, land.request(agent="a/b", change=change, ref=MAIN))
    rows = kit.store.db.rows("SELECT key FROM keys WHERE scope = ?", (land._WAITED,))
    assert len(rows) == 1 and not rows[0][0].startswith("old")
