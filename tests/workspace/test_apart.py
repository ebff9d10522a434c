"""A check outside the queue whose process was killed: whoever comes next ends it and removes its folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from ropewalk.store.store import Store
from ropewalk.workspace import drive, queue

_PROGRAM = """
import os, signal, sys
from ropewalk.store.store import Store
from ropewalk.workspace import drive
store = Store(sys.argv[1])
tree = store.objects.commit(store.ref("refs/heads/main")).tree
running = drive.Apart(store, tree, drive.orders(["sleep", "300"], 600.0, sys.argv[2]))
print(running._running.pid, flush=True)
if sys.argv[3] == "stop":
    running.stop()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def begun(store: Store, folder: Path, how: str) -> tuple[int, int]:
    """Starts a check in a process of its own that then dies; gives how that ended, and the check's process."""
    argv = [sys.executable, "-c", _PROGRAM, store.layout.root, str(folder), how]
    done = subprocess.run(argv, capture_output=True, timeout=120)
    return done.returncode, int(done.stdout)


def test_the_check_of_a_killed_process_is_ended_and_its_folder_removed(store: Store, tmp_path: Path) -> None:
    code, pid = begun(store, tmp_path / "checks", "die")
    (place,) = (tmp_path / "checks").iterdir()
    (job,) = os.listdir(queue.folder(store))
    assert code == -signal.SIGKILL and job == f"job-{place.name}" and _is_there(pid)
    left = msgspec.json.decode(Path(queue.folder(store), job).read_bytes())
    assert (left["pid"], left["place"]) == (pid, str(place))
    drive.sweep_jobs(store)
    assert not place.exists() and os.listdir(queue.folder(store)) == [] and _ends(pid)


def test_one_that_is_stopped_leaves_nothing(store: Store, tmp_path: Path) -> None:
    code, pid = begun(store, tmp_path / "checks", "stop")
    assert code == 0 and _ends(pid)
    assert list((tmp_path / "checks").iterdir()) == [] and os.listdir(queue.folder(store)) == []


def _ends(pid: int) -> bool:
    """Says whether a process that was told to end has, or does within a minute."""
    until = time.monotonic() + 60
    while _is_there(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not _is_there(pid)


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False
