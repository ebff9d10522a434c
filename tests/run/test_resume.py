"""Runs that are stopped, killed and gone on with: nothing that is done is done again, and nothing is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.board import runs as records
from ropewalk.board.local import LocalBoard
from ropewalk.store.store import Store

from .conftest import Runs, task


def todo(gate: Path) -> list[dict[str, Any]]:
    """Gives four tasks, of which the second waits at a gate and the others do not."""
    wait = {"wait_for": str(gate)}
    return [
        task("one", {"append": "src/a.py", "text": "one = 1\n"}, check="grep -q one src/a.py"),
        task("two", wait, {"put": "two", "text": "2\n"}, needs=["one"], check="test -e two"),
        task("three", {"put": "three", "text": "3\n"}, needs=["two"], check="test -e three"),
        task("four", {"put": "four", "text": "4\n"}, needs=["one"], check="test -e four"),
    ]


def started(runs: Runs, tasks: list[dict[str, Any]], until: bytes, *words: str) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a run and gives it and its id, once it has told of something."""
    child = subprocess.Popen(
        runs.argv(tasks, *words), cwd=runs.folder, env=runs.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stderr is not None
    said = b""
    while until not in said:
        line = child.stderr.readline()
        assert line, said
        said += line
    return child, said.split(b"run ", 1)[1].split(b":")[0].decode()


def lands(runs: Runs, run: str) -> list[str]:
    """Gives the tasks whose changes are on a run's branch, as its commits say, oldest first."""
    with Store(runs.root) as store:
        out = store.git("log", "--reverse", "--format=%(trailers:key=Task,valueonly)", f"run/{run}", timeout=60).text()
    return [line.removeprefix(f"{run}.") for line in out.split() if line.startswith(run)]


def test_devflock_A6_a_run_that_was_killed_goes_on_where_it_was(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    child, run = started(runs, todo(gate), b"four: landed", "--jobs", "2")
    child.kill()
    child.communicate()
    assert [r["state"] for r in runs.rw("runs", "list")["result"]["runs"]] == ["died"]
    gate.touch()
    done = runs.rw("runs", "resume", run)
    result = done["result"]
    assert result["state"] == "done" and result["landed"] == 4, done
    assert sorted(lands(runs, run)) == ["four", "one", "three", "two"] and lands(runs, run)[0] == "one"
    assert runs.left(run) == []
    again = runs.rw("runs", "resume", run)["result"]
    assert again["head"] == result["head"] and again["landed"] == 4


def test_a_run_that_is_stopped_keeps_its_work_and_can_be_resumed(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    child, run = started(runs, todo(gate), b"four: landed", "--jobs", "2")
    said = runs.rw("runs", "stop", run, "--why", "lunch")["result"]
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130 and msgspec.json.decode(out)["result"]["state"] == "stopped"
    assert said["state"] == "stopped" and {t["id"]: t["state"] for t in said["tasks"]} == {
        "one": "landed", "two": "stopped", "three": "stopped", "four": "landed"}  # fmt: skip
    with Store(runs.root) as store:
        record = records.need(LocalBoard(store), run)
    assert record.stopped == "by person/me: lunch"
    assert runs.left(run) == []
    # nobody starts a stopped run's tasks
    worked = runs.rw("work", "--until-empty", "--harness", "scripted")["result"]
    assert worked.get("tasks", []) == [], worked
    assert {one["task"] for one in worked["left"]} == {f"{run}.two", f"{run}.three"}
    gate.touch()
    assert runs.rw("runs", "resume", run)["result"]["landed"] == 4
    assert sorted(lands(runs, run)) == ["four", "one", "three", "two"]


def test_a_second_driver_of_a_run_is_refused_and_says_who_drives_it(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    child, run = started(runs, todo(gate), b"four: landed", "--jobs", "2")
    error = runs.rw("runs", "resume", run)["error"]
    assert error["code"] == "E_BUSY" and str(child.pid) in error["message"]
    gate.touch()
    out, _ = child.communicate(timeout=90)
    assert msgspec.json.decode(out)["result"]["landed"] == 4


def test_another_worker_of_the_board_joins_a_run(runs: Runs, tmp_path: Path) -> None:
    """Whoever began it is gone; a worker that knows nothing of the run but its board does the rest."""
    gate = tmp_path / "gate"
    child, run = started(runs, todo(gate), b"four: landed", "--jobs", "2")
    child.kill()
    child.communicate()
    gate.touch()
    worked = runs.rw("work", "--until-empty", "--harness", "scripted", "--worker", "helper")["result"]
    assert {one["task"] for one in worked.get("tasks", [])} == {f"{run}.two", f"{run}.three"}, worked
    shown = runs.rw("runs", "show", run)["result"]
    assert shown["state"] == "done" and shown["landed"] == 4
    assert sorted(lands(runs, run)) == ["four", "one", "three", "two"]
