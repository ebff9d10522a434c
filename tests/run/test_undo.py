"""Taking a run back by the real command: each way that fits, what was built on it, and a second time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.store.store import Store
from storekit import stock

from .conftest import Runs, task


def done(runs: Runs, *words: str, name: str = "one", text: str = "new\n") -> dict[str, Any]:
    """Runs a task that writes a file and changes a line of another; gives the run."""
    one = task(name, {"put": f"{name}.txt", "text": text}, {"replace": "src/b.py", "old": "b = 1", "new": "b = 2"})
    code, envelope = runs.run([one], *words)
    assert code == 0, envelope
    found: dict[str, Any] = envelope["result"]
    return found


def land(runs: Runs, onto: str, message: str, changes: list[dict[str, Any]]) -> str:
    """Lands a person's change on a branch and gives the land."""
    path = runs.folder / "changes.json"
    path.write_bytes(msgspec.json.encode(changes))
    made = runs.rw("commit", "-m", message, "--changes", str(path), "--parent", onto)["result"]["changeset"]
    found: str = runs.rw("land", made, "--onto", onto)["result"]["landed"]
    return found


def head(runs: Runs, name: str) -> str | None:
    with Store(runs.root) as store:
        return store.ref(name)


def last_op(runs: Runs) -> int:
    number: int = runs.rw("op", "log", "-n", "1")["result"]["ops"][0]["op"]
    return number


def test_F25_a_run_that_nobody_merged_loses_its_branch_and_op_undo_brings_it_back(runs: Runs) -> None:
    run = done(runs)
    ref, main = f"refs/heads/{run['ref']}", head(runs, "refs/heads/main")
    undone = runs.rw("runs", "undo", run["id"])["result"]
    assert (undone["how"], undone["kept"]) == ("dropped", f"refs/run-undone/{run['id']}")
    assert head(runs, ref) is None and head(runs, undone["kept"]) == run["head"]
    assert head(runs, "refs/heads/main") == main
    assert runs.rw("runs", "show", run["id"])["result"]["state"] == "undone"
    number = last_op(runs)
    again = runs.rw("runs", "undo", run["id"])["result"]
    assert again["already_applied"] and last_op(runs) == number
    refused = runs.rw("runs", "resume", run["id"])["error"]
    assert refused["code"] == "E_INVALID" and "op undo" in refused["hint"] and last_op(runs) == number
    assert runs.rw("op", "undo", str(number))["ok"]
    assert head(runs, ref) == run["head"] and head(runs, undone["kept"]) is None
    assert runs.rw("runs", "show", run["id"])["result"] == run
    assert runs.rw("verify")["ok"]


@pytest.mark.slow
def test_F25_a_branch_that_has_nothing_since_moves_back(runs: Runs) -> None:
    main = head(runs, "refs/heads/main")
    run = done(runs, "--onto", "main")
    assert head(runs, "refs/heads/main") == run["head"] != main
    undone = runs.rw("runs", "undo", run["id"])["result"]
    assert (undone["how"], undone["head"]) == ("moved", main) and head(runs, "refs/heads/main") == main
    assert runs.rw("op", "undo", str(last_op(runs)))["ok"]
    assert head(runs, "refs/heads/main") == run["head"]
    assert runs.rw("runs", "show", run["id"])["result"]["state"] == "done"


def test_F25_what_others_built_beside_it_stays(runs: Runs) -> None:
    two = [task(n, {"put": f"{n}.txt", "text": "n\n"}) for n in ("one", "two")]
    code, envelope = runs.run(two, "--onto", "main")
    run = envelope["result"]
    assert code == 0
    later = land(runs, "main", "beside it", [{"path": "other.txt", "content": {"inline": "mine\n"}}])
    undone = runs.rw("runs", "undo", run["id"], "--check", "test -e other.txt && test ! -e one.txt")["result"]
    assert undone["how"] == "reverted" and undone["commit"] == head(runs, "refs/heads/main"), undone
    files = runs.files("main")
    assert "one.txt" not in files and "two.txt" not in files and files["other.txt"] == "mine\n"
    message = stock("-C", runs.root + "/repo.git", "log", "-1", "--format=%P %B", undone["commit"]).decode()
    assert message.startswith(later) and f"Take back the run {run['id']}" in message
    number = last_op(runs)
    assert runs.rw("runs", "undo", run["id"])["result"]["already_applied"] and last_op(runs) == number
    assert runs.rw("op", "undo", str(number))["ok"]
    assert "one.txt" in runs.files("main") and runs.rw("runs", "show", run["id"])["result"]["state"] == "done"


def test_F25_what_others_built_on_it_is_named_and_nothing_changes(runs: Runs) -> None:
    run = done(runs, "--onto", "main")
    later = land(runs, "main", "b is three", [{"path": "src/b.py", "content": {"inline": "b = 3\n"}}])
    number = last_op(runs)
    error = runs.rw("runs", "undo", run["id"])["error"]
    assert error["code"] == "E_CONFLICT" and error["details"]["paths"] == ["src/b.py"], error
    assert [(one["id"], one["title"]) for one in error["details"]["built"]] == [(later, "b is three")]
    assert head(runs, "refs/heads/main") == later and last_op(runs) == number
    assert runs.rw("runs", "show", run["id"])["result"]["state"] == "done"


@pytest.mark.slow
def test_F25_a_check_that_fails_without_the_run_keeps_it(runs: Runs) -> None:
    run = done(runs, "--onto", "main")
    later = land(runs, "main", "needs it", [{"path": "use.txt", "content": {"inline": "u\n"}}])
    error = runs.rw("runs", "undo", run["id"], "--check", "test -e one.txt")["error"]
    assert error["code"] == "E_CHECK_FAILED" and head(runs, "refs/heads/main") == later
    assert runs.rw("runs", "show", run["id"])["result"]["state"] == "done"


@pytest.mark.parametrize("how", ["squashed", pytest.param("forwarded", marks=pytest.mark.slow)])
def test_F25_a_run_that_was_merged_is_taken_back_where_it_was_merged(runs: Runs, how: str) -> None:
    run = done(runs)
    if how == "squashed":
        land(runs, "main", "before", [{"path": "before.txt", "content": {"inline": "b\n"}}])
        assert runs.rw("land", run["head"], "--onto", "main")["ok"]
    else:
        assert runs.rw("ref", "set", "main", run["head"], "--expect", run["base"])["ok"]
        assert runs.rw("ref", "delete", run["ref"], "--expect", run["head"])["ok"]
    assert "one.txt" in runs.files("main")
    undone = runs.rw("runs", "undo", run["id"])["result"]
    assert (undone["how"], undone["ref"]) == ("reverted", "main"), undone
    files = runs.files("main")
    assert "one.txt" not in files and files["src/b.py"] == "b = 1\n"
    assert ("before.txt" in files) == (how == "squashed")


@pytest.mark.slow
def test_F25_only_the_lands_of_the_run_are_taken_back(runs: Runs, tmp_path: Path) -> None:
    first = done(runs, "--onto", "main", name="first")
    plain = [task("second", {"put": "second.txt", "text": "s\n"})]
    second = runs.run(plain, "--onto", "main")[1]["result"]
    undone = runs.rw("runs", "undo", first["id"])["result"]
    files = runs.files("main")
    assert undone["how"] == "reverted" and "first.txt" not in files and files["second.txt"] == "s\n"
    assert runs.rw("runs", "undo", second["id"])["result"]["how"] == "reverted"
    assert "second.txt" not in runs.files("main")
    assert runs.rw("runs", "undo", "no-such-run")["error"]["code"] == "E_NOT_FOUND"


@pytest.mark.slow
def test_F25_on_a_server_a_branch_that_was_landed_on_gets_a_change(runs: Runs, tmp_path: Path) -> None:
    bare = tmp_path / "board.git"
    stock("clone", "-q", "--bare", f"{runs.root}/repo.git", str(bare))
    assert runs.rw("board", "init", str(bare))["ok"]

    def at(name: str) -> str:
        return stock("-C", str(bare), "for-each-ref", "--format=%(objectname)", name).decode().strip()

    own = done(runs, "--board", str(bare))
    undone = runs.rw("runs", "undo", own["id"], "--board", str(bare))["result"]
    assert undone["how"] == "dropped" and at(f"refs/heads/{own['ref']}") == "" and at(undone["kept"]) == own["head"]
    run = done(runs, "--board", str(bare), "--onto", "main")
    assert at("refs/heads/main") == run["head"]
    assert runs.rw("board", "compact", "--days", "0", "--board", str(bare))["result"]["tasks"]
    error = runs.rw("runs", "undo", run["id"], "--check", "test -e one.txt", "--board", str(bare))["error"]
    assert error["code"] == "E_CHECK_FAILED" and at("refs/heads/main") == run["head"]
    undone = runs.rw("runs", "undo", run["id"], "--check", "test ! -e one.txt", "--board", str(bare))["result"]
    assert undone["how"] == "reverted" and undone["commit"] == at("refs/heads/main"), undone
    files = stock("-C", str(bare), "ls-tree", "-r", "--name-only", "main").decode().split()
    assert "one.txt" not in files and stock("-C", str(bare), "show", "main:src/b.py") == b"b = 1\n"
    assert runs.rw("runs", "undo", run["id"], "--board", str(bare))["result"]["already_applied"]
    assert at("refs/heads/main") == undone["commit"]


@pytest.mark.slow
def test_F25_a_run_at_work_is_stopped_first(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = {"run": f"until test -e {gate}; do sleep 0.05; done"}
    todo = [task("one", {"put": "one.txt", "text": "1\n"}), task("two", wait, {"put": "2", "text": "2\n"})]
    child = subprocess.Popen(runs.argv(todo, "--jobs", "2", "--onto", "main"), cwd=runs.folder, env=runs.env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert child.stderr is not None
    while b"one: landed" not in (line := child.stderr.readline()):
        assert line, "it ended"
    (row,) = runs.rw("runs", "list")["result"]["runs"]
    error = runs.rw("runs", "undo", row["id"])["error"]
    assert error["code"] == "E_BUSY" and f"runs stop {row['id']}" in error["hint"] and "one.txt" in runs.files("main")
    assert runs.rw("runs", "stop", row["id"])["ok"]
    child.communicate(timeout=30)
    assert runs.rw("runs", "undo", row["id"])["result"]["how"] == "moved" and "one.txt" not in runs.files("main")
    gate.touch()
    assert runs.rw("work", "--until-empty", "--harness", "scripted")["ok"]
    assert "2" not in runs.files("main")


@pytest.mark.slow
def test_F25_of_many_who_take_a_run_back_one_does(runs: Runs) -> None:
    run = done(runs)
    argv = [sys.executable, "-m", "ropewalk.cli.main", "runs", "undo", run["id"], "--store", runs.root]
    children = [subprocess.Popen(argv, cwd=runs.folder, env=runs.env, stdout=subprocess.PIPE) for _ in range(6)]
    found = [msgspec.json.decode(child.communicate(timeout=60)[0]) for child in children]
    assert all(one["ok"] for one in found), found
    assert sorted(bool(one["result"].get("already_applied")) for one in found) == [False] + [True] * 5
    kinds = [op["kind"] for op in runs.rw("op", "log")["result"]["ops"]]
    assert kinds.count("run_undo") == 1
