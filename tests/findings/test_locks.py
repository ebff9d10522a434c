"""Findings about the writer lock and those who wait for it (A25 to A27, A29)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropewalk.core.errors import (
    BusyError,
)
from storekit import (
    MAIN,
    Kit,
    child_env,
    put,
)


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
