"""Locks of a store that another process holds, stopped or at work: a worker waits, says who has it, and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.work.workkit import WorkKit, task

from ropewalk.plan.task import Limits

_HOLDER = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 66, 384), 2); print(flush=True); sys.stdin.read()"


@contextmanager
def locked(bench: WorkKit) -> Iterator[int]:
    """Has a stopped process hold the writer lock; gives its id."""
    words = [sys.executable, "-c", _HOLDER, os.path.join(bench.kit.root, "writer.lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"\n"
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            yield holder.pid
        finally:
            holder.kill()


def is_named(event: dict[str, Any], pid: int) -> bool:
    """Says whether an event names a stopped holder of the writer lock."""
    return (event["pid"], event["state"]) == (pid, "stopped") and f"process {pid} (python" in event["reason"]


def test_a_worker_waits_for_who_holds_the_store_and_says_who_it_is(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f"))
    with locked(bench) as pid:
        process = bench.start(lock_wait=0.1)
        assert is_named(process.until("store_busy"), pid)
        process.until("store_busy")
    assert process.end() == 0
    assert [t["how"] for t in process.report["tasks"]] == ["landed"]
    bench.lawful()


def test_what_an_agent_did_lands_once_the_lock_is_free(bench: WorkKit, tmp_path: Path) -> None:
    for name in ("gate", "began"):
        os.mkfifo(tmp_path / name)
    bench.add(task("one", f"echo x > {tmp_path}/began; cat {tmp_path}/gate; echo x > f"))
    process = bench.start(lock_wait=0.1)
    (tmp_path / "began").read_text()
    with locked(bench) as pid:
        (tmp_path / "gate").write_text("go\n")
        assert is_named(process.until("store_busy"), pid)
    assert process.end() == 0
    (end,) = process.report["tasks"]
    assert (end["how"], end["turns"]) == ("landed", 1)
    assert bench.leftovers() == []
    bench.lawful()


def test_its_patience_ends_and_the_reason_names_the_holder(bench: WorkKit, tmp_path: Path) -> None:
    """The claim that it could not give back is taken by another worker."""
    for name in ("gate", "began"):
        os.mkfifo(tmp_path / name)
    bench.add(task("one", f"echo x > {tmp_path}/began; cat {tmp_path}/gate; echo x > f", limits=Limits(heirs=1)))
    process = bench.start(lock_wait=0.1, patience=1)
    (tmp_path / "began").read_text()
    with locked(bench) as pid:
        (tmp_path / "gate").write_text("go\n")
        assert process.end() == 1
        assert process.report["ended"] == "gave_up" and bench.state("one") == "claimed"
        assert "E_BUSY" in process.report["reason"] and f"process {pid} " in process.report["reason"]
    for name in ("gate", "began"):
        (tmp_path / name).unlink()
        (tmp_path / name).write_text("")
    bench.work("w2")
    assert bench.state("one") == "done" and len(bench.fixes("one")) == 1
    assert bench.leftovers() == []
    bench.lawful()
