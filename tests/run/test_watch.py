"""Following: a run that another process drives, or that a worker goes on with when its driver is dead, and a board."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ropewalk.core import events
from ropewalk.run import following

from .conftest import Runs, task
from .test_resume import started, todo


def watching(runs: Runs, *words: str) -> subprocess.Popen[bytes]:
    """Starts a watch."""
    argv = [sys.executable, "-m", "ropewalk.cli.main", "watch", *words, "--store", runs.root]
    return subprocess.Popen(argv, cwd=runs.folder, env=runs.env, stdout=subprocess.PIPE)


def until(child: subprocess.Popen[bytes], words: bytes) -> list[bytes]:
    """Reads lines of a process until one has these words."""
    assert child.stdout is not None
    found = [child.stdout.readline()]
    while words not in found[-1]:
        assert found[-1], found
        found.append(child.stdout.readline())
    return found


def rest(child: subprocess.Popen[bytes]) -> bytes:
    """Reads what a process prints until it ends; `communicate` would lose what was read ahead of its lines."""
    assert child.stdout is not None
    with child.stdout:
        said = child.stdout.read()
    child.wait(timeout=60)
    return said


def test_a_watch_tells_what_the_driver_tells_and_ends_as_it_does(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    tasks = [*todo(gate), task("bad", {"exit": 4}, needs=["two"])]
    child, run = started(runs, tasks, b"four: landed", "--jobs", "2")
    follower, reader = watching(runs, run), watching(runs, run)
    said = until(follower, b'"landed"')
    until(reader, b'"landed"')
    assert reader.stdout is not None
    reader.stdout.close()  # nobody reads this one any more: it ends by itself, while the run goes on
    assert reader.wait(timeout=30) == 0 and child.poll() is None
    gate.touch()
    child.communicate(timeout=60)
    said.append(rest(follower))
    assert child.returncode == follower.returncode == 10
    *told_events, end = [msgspec.json.decode(line) for line in b"".join(said).splitlines()]
    assert told_events == runs.events(run)
    assert end["op"] == "watch" and end["result"]["run"]["landed"] == 4


@pytest.mark.slow
def test_a_run_without_its_driver_is_followed_by_the_board_until_a_worker_ended_it(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    child, run = started(runs, todo(gate), b"four: landed", "--jobs", "2")
    child.kill()
    child.communicate()
    alone = watching(runs, run, "--patience", "0")
    out, _ = alone.communicate(timeout=60)
    assert alone.returncode == 10 and msgspec.json.decode(out.splitlines()[-1])["result"]["run"]["state"] == "died"

    follower, board = watching(runs, run), watching(runs, "--human")
    told = until(follower, b'"task":"four","report"')
    until(board, b"four: done")
    gate.touch()
    runs.rw("work", "--until-empty", "--harness", "scripted")
    told.append(rest(follower))
    lines = rest(board)
    *told_events, end = [msgspec.json.decode(line) for line in b"".join(told).splitlines()]
    assert end["result"]["run"]["state"] == "done"
    assert (follower.returncode, board.returncode) == (0, 0)
    assert told_events[0]["event"] == "run_started" and told_events[-1]["event"] == "run_ended", told_events
    assert told_events[-1]["state"] == "done" and told_events[-1]["landed"] == 4
    ended = [one["task"] for one in told_events if one["event"] == "task_ended"]
    assert sorted(ended) == ["four", "one", "three", "two"]
    assert f"{run}.three: done".encode() in lines


def test_a_watch_draws_on_a_terminal_and_says_the_end(runs: Runs) -> None:
    code, envelope = runs.run([task("t", {"put": "t", "text": "t\n"})])
    run = envelope["result"]["id"]
    ours, theirs = pty.openpty()
    follower = subprocess.Popen(
        [sys.executable, "-m", "ropewalk.cli.main", "watch", run, "--store", runs.root], cwd=runs.folder,
        env=runs.env | {"TERM": "xterm"}, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert (code, follower.wait(timeout=30)) == (0, 0)
    assert b"\x1b[J" in said and f"run {run} is done: 1 landed".encode() in said


def test_no_run_of_that_name_is_an_error(runs: Runs) -> None:
    assert runs.rw("watch", "nothing")["error"]["code"] == "E_NOT_FOUND"


def test_events_are_told_from_the_last_drive_on(tmp_path: Path) -> None:
    log = events.EventLog(str(tmp_path / "events.jsonl"))
    for _ in range(2):
        log.emit("run_started", run="r", tasks=[])
        log.emit("agent_message", text='{"event":"run_started"}\n"event":"run_started"')
        log.emit("run_ended", run="r")
    log.close()
    start = following._begin(log.path)
    assert [one["event"] for one in events.read(log.path, start)[0]] == ["run_started", "agent_message", "run_ended"]
    assert start > 0 and following._begin(str(tmp_path / "none")) == 0
