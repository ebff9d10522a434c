"""Runs by the real command: agents, checks and landers are processes; what is claimed is read back."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.board import runs as board_runs
from ropewalk.board import state
from ropewalk.board.local import LocalBoard
from ropewalk.run import figures
from ropewalk.store.store import Store

from .conftest import Runs, task


def by_id(envelope: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {t["id"]: t for t in envelope["result"]["tasks"]}


def test_tasks_land_on_a_ref_of_their_own(runs: Runs) -> None:
    todo = [task(f"t{n}", {"put": f"f{n}.txt", "text": f"{n}\n"}) for n in range(6)]
    code, envelope = runs.run(todo, "--jobs", "4")
    result = envelope["result"]
    assert (code, result["landed"], result["failed"], result["state"]) == (0, 6, 0, "done")
    files = runs.files(result["ref"])
    assert all(files[f"f{n}.txt"] == f"{n}\n" for n in range(6))
    assert "f0.txt" not in runs.files("main")
    with Store(runs.root) as store:
        board = LocalBoard(store)
        assert {f"{result['id']}.t{n}" for n in range(6)} == set(state.look(board, everything=True))
        assert figures.summary(board, board_runs.need(board, result["id"]), living=False).tasks == [
            msgspec.convert(one, figures.TaskReport) for one in result["tasks"]
        ]
    assert runs.rw("ws", "list")["result"]["workspaces"] == []
    log = runs.events(result["id"])
    assert log[0]["event"] == "run_started" and log[-1]["event"] == "run_ended"
    assert sum(e["event"] == "landed" for e in log) == 6
    assert [r["id"] for r in runs.rw("runs", "list")["result"]["runs"]] == [result["id"]]
    assert runs.rw("runs", "show", result["id"])["result"] == result


def test_a_conflict_goes_back_to_the_same_agent_and_is_resolved(runs: Runs, tmp_path: Path) -> None:
    todo = [
        task(
            name,
            {"barrier": str(tmp_path / "both"), "count": 2},
            {"replace": "src/b.py", "old": "b = 1\n", "new": f"b = '{name}'\n"},
            script={"on_conflict": "both"},
        )
        for name in ("left", "right")
    ]
    code, envelope = runs.run(todo, "--jobs", "2")
    assert code == 0, envelope
    text = runs.files(envelope["result"]["ref"])["src/b.py"]
    assert sorted(text.splitlines()) == ["b = 'left'", "b = 'right'"]
    found = by_id(envelope)
    assert sorted((t["turns"], t.get("conflicts", 0)) for t in found.values()) == [(1, 0), (2, 1)]


def test_an_agent_that_leaves_the_markers_fails_after_three_repairs(runs: Runs, tmp_path: Path) -> None:
    todo = [
        task(
            name,
            {"barrier": str(tmp_path / "both"), "count": 2},
            {"replace": "src/b.py", "old": "b = 1\n", "new": f"b = '{name}'\n"},
            script={"on_conflict": [{"print": "I do not care"}]},
        )
        for name in ("left", "right")
    ]
    code, envelope = runs.run(todo, "--jobs", "2")
    assert code == 3 and envelope["result"]["landed"] == 1
    failed = next(t for t in envelope["result"]["tasks"] if t["state"] == "failed")
    assert failed["turns"] == 4 and failed["conflicts"] == 4 and failed["reason"].startswith("conflict: "), failed
    assert "<<<<<<<" not in runs.files(envelope["result"]["ref"])["src/b.py"]
    assert failed["kept"] in str(runs.rw("recover")["result"]), runs.rw("recover")


def test_a_killed_agent_is_run_again_from_a_clean_start(runs: Runs, tmp_path: Path) -> None:
    once = task(
        "once",
        {"replace": "src/b.py", "old": "b = 1", "new": "b = 2"},
        {"die_once": str(tmp_path / "died")},
        {"put": "after", "text": "a\n"},
    )
    code, envelope = runs.run([once, task("always", {"die": True})])
    found = by_id(envelope)
    assert code == 10
    assert (found["once"]["state"], found["once"]["deaths"], found["once"]["turns"]) == ("landed", 1, 1)
    assert (found["always"]["state"], found["always"]["deaths"]) == ("failed", 3)
    assert "signal 9" in found["always"]["reason"] and found["always"]["attempts"] == 3
    files = runs.files(envelope["result"]["ref"])
    assert files["src/b.py"] == "b = 2\n" and files["after"] == "a\n"


def test_P8_failures_by_merit_block_what_needs_them_and_nothing_else(runs: Runs) -> None:
    todo = [
        task("bad", {"exit": 4}),
        task("idle", {"print": "nothing to do"}, guard=True),
        task("broken", {"put": "x.py", "text": "raise SystemExit(3)\n"}, check="python3 x.py"),
        task("good", {"put": "good", "text": "g\n"}, check="test -e good && test ! -e x.py"),
        task("next", {"run": "test -e good"}, {"put": "next", "text": "n\n"}, needs=["good"]),
        task("never", {"put": "never", "text": "n\n"}, needs=["bad", "good"]),
        task("nor-this", {"put": "nor", "text": "n\n"}, needs=["never"]),
    ]
    code, envelope = runs.run(todo, "--jobs", "3")
    found = by_id(envelope)
    assert code == 10
    assert {name: t["state"] for name, t in found.items()} == {
        "bad": "failed", "idle": "failed", "broken": "failed", "good": "landed", "next": "landed", "never": "blocked",
        "nor-this": "blocked",
    }  # fmt: skip
    assert "ended with 4" in found["bad"]["reason"] and "no_evidence" in found["idle"]["reason"]
    assert found["broken"]["turns"] == 3 and "bad failed" in found["never"]["reason"]
    assert found["broken"]["kept"] in str(runs.rw("recover")["result"])
    assert {"good", "next"} <= set(runs.files(envelope["result"]["ref"]))


def test_a_circle_starts_nothing(runs: Runs) -> None:
    todo = [task("a", {"print": "x"}, needs=["b"]), task("b", {"print": "x"}, needs=["a"])]
    code, envelope = runs.run(todo)
    assert code == 2 and envelope["error"]["code"] == "E_INVALID" and "circle" in envelope["error"]["message"]
    assert runs.rw("runs", "list")["result"]["runs"] == []


def test_any_program_can_be_the_agent(runs: Runs, tmp_path: Path) -> None:
    agent = tmp_path / "my-agent"
    agent.write_text('#!/bin/sh\ncat > prompt.txt\ntest -n "$TOKEN" && echo passed > token\nexit 0\n')
    agent.chmod(0o755)
    runs.env["TOKEN"] = "secret"
    todo = [{"id": "one", "prompt": "write this down\n", "check": "test -e prompt.txt"}]
    code, envelope = runs.run(todo, "--command", str(agent), "--onto", "main")
    assert code == 0, envelope
    files = runs.files("main")
    assert files["prompt.txt"].startswith("write this down\n") and "token" not in files
    assert envelope["result"]["tasks"][0]["harness"] == "command"
    code, envelope = runs.run(todo, "--command", str(agent), "--pass-env", "TOKEN")
    assert code == 0 and runs.files(envelope["result"]["ref"])["token"] == "passed\n"
    assert runs.run(todo)[1]["error"]["code"] == "E_INVALID"
    assert runs.run(todo, "--command", "no-such-agent")[0] == 11


def interrupted(runs: Runs, number: int) -> tuple[int, dict[str, Any]]:
    """Starts a run whose agents hang, stops it by a signal, and gives (exit code, envelope)."""
    hang = {"run": "echo hanging > began; exec sleep 600"}
    todo = [
        task("done", {"put": "done", "text": "d\n"}),
        task("a", {"put": "half", "text": "h\n"}, hang),
        task("b", {"put": "b", "text": "b\n"}, check="echo > ../../began; exec sleep 600", needs=["done"]),
        task("c", {"put": "c", "text": "c\n"}, needs=["a"]),
    ]
    child = subprocess.Popen(
        runs.argv(todo, "--jobs", "3"), cwd=runs.folder, env=runs.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stderr is not None
    landed = False
    while not (landed and sum("began" in names for _, _, names in os.walk(runs.folder / "data")) == 2):
        assert child.poll() is None, child.communicate()
        if select.select([child.stderr], [], [], 0.05)[0]:
            landed |= b"done: landed" in child.stderr.readline()
    child.send_signal(number)
    out, _ = child.communicate(timeout=30)
    return child.returncode, msgspec.json.decode(out)


def test_an_interrupt_leaves_no_process_and_keeps_the_work(runs: Runs) -> None:
    code, envelope = interrupted(runs, signal.SIGINT)
    assert code == 130
    result = envelope["result"]
    assert {t["id"]: t["state"] for t in result["tasks"]} == {
        "done": "landed", "a": "stopped", "b": "stopped", "c": "stopped"}  # fmt: skip
    assert runs.left(result["id"]) == []
    assert runs.files(result["ref"])["done"] == "d\n"
    assert by_id(envelope)["a"]["kept"] in str(runs.rw("recover")["result"])
    assert runs.rw("runs", "show", result["id"])["result"]["state"] == "stopped"


def test_a_termination_does_the_same(runs: Runs) -> None:
    code, envelope = interrupted(runs, signal.SIGTERM)
    assert code == 130 and runs.left(envelope["result"]["id"]) == []


def test_a_run_that_was_killed_is_listed_as_died(runs: Runs) -> None:
    todo = [task("one", {"put": "one", "text": "1\n"}), task("two", {"run": "exec sleep 600"}, needs=["one"])]
    child = subprocess.Popen(
        runs.argv(todo), cwd=runs.folder, env=runs.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert child.stderr is not None
    while b"two: started" not in child.stderr.readline():
        pass
    child.kill()
    child.wait()
    child.stderr.close()
    found = runs.rw("runs", "list")["result"]["runs"]
    assert [(r["state"], r["landed"], r["tasks"]) for r in found] == [("died", 1, 2)]
    for pid in runs.left(found[0]["id"]):
        os.kill(pid, signal.SIGKILL)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Gives every file of a repository but objects, the store, and the run's own new branch."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith((".git/objects", ".git/ropewalk", ".git/refs/heads/ropewalk")):
            found[name] = path.read_bytes()
    return found


def test_the_users_repository_gets_a_branch_and_is_else_untouched(runs: Runs, git: Any, tmp_path: Path) -> None:
    for number, clash in enumerate((False, True)):
        home = tmp_path / f"repo{number}"
        home.mkdir()
        (home / "a.txt").write_text("a\n")
        git("init", "-q", ".", folder=home)
        git("add", ".", folder=home)
        git("commit", "-qm", "first", folder=home)
        if clash:
            git("branch", "ropewalk", folder=home)
        (home / "a.txt").write_text("dirty\n")
        (home / "untracked").write_text("u\n")
        hook = home / ".git" / "hooks" / "reference-transaction"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)
        runs.root = str(home / ".git" / "ropewalk")
        assert runs.rw("init", str(home))["ok"]
        before = snapshot(home)
        code, envelope = runs.run([task("one", {"put": "new.txt", "text": "n\n"})])
        branch = envelope["result"]["branch"]
        assert code == 0 and branch.startswith("ropewalk-runs/" if clash else "ropewalk/")
        assert git("show", f"{branch}:new.txt", folder=home) == "n"
        after = snapshot(home)
        for name in [n for n in after if n.startswith(".git/refs/heads/ropewalk-runs/")]:
            del after[name]
        assert after == before
