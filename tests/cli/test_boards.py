"""The board on the command line: tasks, steps, exit codes, and what a caller can neither claim nor land."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TASKS = """## one: The first
verify: test -f one.txt
priority: 5

Make one.txt.

## two
verify: test -f two.txt && test ! -f junk.txt
needs: one

Make two.txt.
"""


@pytest.fixture
def shop(rw: Any, git: Any, tmp_path: Path) -> Any:
    """Is a repository with a store, a board and two tasks; commands run in it."""
    git("init", "-q")
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / ".gitignore").write_text("ignored/\n")
    git("add", ".")
    git("commit", "-qm", "first")
    rw.ok("init")
    rw.ok("board", "init")
    (tmp_path / "tasks.md").write_text(TASKS)
    assert rw.ok("task", "add", "tasks.md")["added"] == ["one", "two"]
    return rw


def test_a_task_from_its_file_to_its_verdict(shop: Any, tmp_path: Path) -> None:
    rw = shop
    assert rw.ok("task", "next")["task"]["id"] == "one"
    assert {t["id"]: t["state"] for t in rw.ok("task", "list")["tasks"]} == {"one": "ready", "two": "waiting"}
    assert rw.ok("task", "add", "tasks.md")["unchanged"] == ["one", "two"]
    attempt = rw.ok("claim", "one")["attempt"]
    assert rw("claim", "one", exit=3)["error"]["code"] == "E_CLAIMED"
    assert rw("judge", "one", ".", exit=10)["result"]["rc"] == 1
    (tmp_path / "one.txt").write_text("1\n")
    (tmp_path / "junk.txt").write_text("junk\n")
    assert rw("judge", "one", ".", exit=0)["result"]["timed_out"] is False
    landed = rw.ok("return", "one", attempt, ".", "one.txt")["landed"]
    changed = rw.ok("show", landed)["changes"]
    assert [c["path"] for c in changed] == ["one.txt"]
    shown = rw.ok("task", "show", "one")
    assert (shown["state"], shown["landed"], shown["verdict"]["fixed"]) == ("done", landed, "true")
    assert shown["verdict"]["landed"] == landed
    assert rw.ok("verdict", "one", attempt, "fixed") == {
        "task": "one", "attempt": attempt, "state": "done", "written": False,
    }  # fmt: skip
    assert rw.ok("task", "next")["task"]["id"] == "two"
    assert rw("board", "audit", exit=0)["result"]["healthy"]


def test_R6_only_named_paths_land_and_what_is_nothing_is_refused(shop: Any, tmp_path: Path) -> None:
    rw = shop
    attempt = rw.ok("claim", "one")["attempt"]
    refs = rw.ok("ref", "list")["refs"]
    rw.error("E_INVALID", "return", "one", attempt, ".", "nowhere.txt")
    rw.error("E_INVALID", "return", "one", attempt, ".", "../etc")
    rw.error("E_EMPTY_COMMIT", "return", "one", attempt, ".", "a.txt")
    rw.error("E_NOT_FOUND", "return", "one", attempt, "nowhere")
    (tmp_path / "b.txt").write_text("b\n")
    assert rw.error("E_CHECK_FAILED", "return", "one", attempt, ".", "b.txt")["details"]["rc"] == 1
    rw.error("E_CHECK_FAILED", "return", "one", attempt, ".", "--satisfied")
    assert rw.ok("ref", "list")["refs"] == refs
    (tmp_path / "one.txt").write_text("1\n")
    (tmp_path / "ignored").mkdir()
    (tmp_path / "ignored" / "x").write_text("x\n")
    (tmp_path / ".env").write_text("KEY=1\n")
    landed = rw.ok("return", "one", attempt, ".")["landed"]
    assert {c["path"] for c in rw.ok("show", landed)["changes"]} == {"one.txt", "b.txt", "tasks.md"}


def test_R16_a_verdict_needs_the_claim_and_fixed_needs_a_return(shop: Any) -> None:
    rw = shop
    rw.error("E_FENCED", "verdict", "one", "att-nobody-000001", "failed")
    attempt = rw.ok("claim", "one")["attempt"]
    stranger = ["one", "att-nobody-000001"]
    for words in (["verdict", *stranger, "failed"], ["heartbeat", *stranger], ["return", *stranger, "."]):
        rw.error("E_FENCED", *words)
    rw.error("E_INVALID", "verdict", "one", attempt, "fixed")
    assert rw.ok("work-started", "one", attempt)["marks"].keys() == {"work_started"}
    assert rw.ok("verdict", "one", attempt, "failed", "--check-rc", "3", "-m", "no way")["state"] == "failed"
    rw.error("E_FENCED", "heartbeat", "one", attempt)
    assert rw.ok("task", "show", "two")["state"] == "waiting"
    assert rw.ok("task", "retry")["opened"] == ["one"]
    assert rw.ok("task", "show", "one")["earlier"] == [attempt]


def test_a_task_is_evicted_cancelled_and_opened_again(shop: Any) -> None:
    rw = shop
    attempt = rw.ok("claim", "one")["attempt"]
    rw.error("E_CLAIMED", "task", "cancel", "one")
    assert rw.ok("board", "evict", "one")["attempt"] == attempt
    rw.error("E_FENCED", "verdict", "one", attempt, "failed")
    assert rw.ok("task", "cancel", "one", "-m", "not wanted")["state"] == "cancelled"
    assert rw.ok("task", "reopen", "one")["opened"] == ["one"]
    rw.error("E_NOT_FOUND", "task", "show", "nowhere")
    assert rw("board", "drop", exit=0)["result"]["dropped"] is False
    assert rw.ok("board", "drop", "--yes")["dropped"]
    assert rw.error("E_NO_BOARD", "board", "drop", "--yes")["exit"] == 4
    assert [r["name"] for r in rw.ok("ref", "list")["refs"]] == ["main"]


def test_law_7_nothing_is_contacted_without_a_board(rw: Any, tmp_path: Path) -> None:
    rw.store = None
    for words in (["task", "list"], ["claim", "one"], ["board", "audit"], ["work", "--once", "--command", "true"]):
        assert rw(*words, exit=4)["error"]["code"] == "E_NO_BOARD"
    assert not list(tmp_path.iterdir())


def test_R23_a_worker_does_what_there_is_on_a_board_elsewhere(rw: Any, tmp_path: Path) -> None:
    rw.ok("board", "scratch", "b.git")
    rw.env |= {"ROPEWALK_BOARD": str(tmp_path / "b.git"), "XDG_DATA_HOME": str(tmp_path / "d"),
               "XDG_CACHE_HOME": str(tmp_path / "c")}  # fmt: skip
    assert rw.ok("task", "add", "-", stdin=TASKS)["added"] == ["one", "two"]
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\nsed -n "s/.*Make \\([a-z]*.txt\\).*/\\1/p" | while read f; do echo x > $f; done\n')
    agent.chmod(0o755)
    done = rw(
        "work", "--until-empty", "--command", str(agent), "--cage", "none", "--events", "events", exit=0, timeout=120
    )["result"]
    assert [(t["task"], t["how"]) for t in done["tasks"]] == [("one", "landed"), ("two", "landed")]
    assert rw.ok("board", "audit")["healthy"]
    assert rw.ok("metrics", "events")["verdicts"]["fixed_true"] == 2
    rw.ok("board", "review", "one", "--outcome", "agree", agent="other/one")
    assert rw("board", "gate", "one", "--n", "1", exit=0)["result"]["fired"]
    rw.error("E_FORBIDDEN", "board", "review", "two", "--outcome", "agree")


def test_R18_a_refused_file_adds_nothing(shop: Any) -> None:
    rw = shop
    lines = [f'{{"id": "t{n}", "check": "true"}}' for n in range(50)] + ['{"id": "bad"}']
    error = rw.error("E_INVALID", "task", "add", "-", stdin="\n".join(lines))
    assert error["details"]["problems"] == ["line 51 (bad): it has no check, so nobody could say whether it is done"]
    assert rw.error("E_INVALID", "task", "add", "-", stdin=b'[{"id": "\xff"}]')["message"].endswith("line 1")
    error = rw.error("E_INVALID", "task", "add", "-", stdin='[{"id": "x", "check": "true", "needs": ["nowhere"]}]')
    assert rw.ok("task", "list")["counts"] == {"ready": 1, "waiting": 1} and "nowhere" in error["message"]
    assert rw.ok("task", "add", "-", stdin="\n".join(lines[:-1]))["added"].__len__() == 50


NAMES = [
    "",
    "a/b",
    "..",
    "a\n",
    "-x",
    "x" * 300,
    "\u00e9\u202e",
    "~",
    "a@b",
    "a b",
    "*",
    "$(touch pwned)",
    "\x7f",
    "a.lock",
]
BODIES = [
    b"", b"\xff\xfe", b"[]", b"{}", b"null", b"[" * 50_000, b'{"id": 1}', b"## \n", b"---\n", b'{"t": 3}',
    b'[{"id": "t\\u0000"}]', b'{"t": "no check"}', b"\0", b"tasks = 1", b'[{"id":"q","check":"x\\ny"}]',
]  # fmt: skip


def test_R21_bad_input_is_one_typed_line_and_nothing_changes(shop: Any, tmp_path: Path) -> None:
    rw, draw = shop, random.Random(21)
    log = rw.ok("op", "log", "-n", "1")["ops"][0]["op"]
    env = {**rw.env, "ROPEWALK_AGENT": "test/one"}
    script = (
        "import io, json, sys\nfrom ropewalk.cli.main import main\n"
        "for line in sys.stdin:\n"
        "    words, body = json.loads(line)\n"
        "    old, out, sys.stdin = sys.stdout, io.TextIOWrapper(io.BytesIO()), "
        "io.TextIOWrapper(io.BytesIO(bytes.fromhex(body)))\n"
        "    sys.stdout = out\n    code = main(['--json', *words])\n    out.flush()\n"
        "    got, sys.stdout = out.buffer.getvalue(), old\n"
        "    print(json.dumps([code, got.decode()]), flush=True)\n"
    ).replace("for line in sys.stdin:", "for line in list(sys.stdin):")
    verbs = [["claim"], ["brief"], ["task", "show"], ["task", "cancel"], ["task", "reopen"], ["board", "debug"],
             ["board", "evict"], ["board", "sweep"], ["board", "gate", "--n", "1"]]  # fmt: skip
    asked: list[tuple[list[str], str]] = []
    for _ in range(200):
        kind = draw.randrange(4)
        if kind == 0:
            asked.append((["task", "add", "-"], draw.choice(BODIES).hex()))
        elif kind == 1:
            asked.append(([*draw.choice(verbs), "--", draw.choice(NAMES)], ""))
        elif kind == 2:
            verb = draw.choice(["heartbeat", "work-done", "judge"])
            asked.append(([verb, "--", draw.choice(NAMES), draw.choice(NAMES)], ""))
        else:
            where = draw.choice(["nowhere", "/etc/passwd", "ext::touch pwned", "http://", "git://127.0.0.1:1/x", "-u"])
            asked.append((["task", "list", f"--board={where}"], ""))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, timeout=120,
                          input="".join(json.dumps(one) + "\n" for one in asked).encode())  # fmt: skip
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr[-2000:]
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(replies) == 200
    for (words, _), (code, out) in zip(asked, replies, strict=True):
        found = json.loads(out)
        assert out.count("\n") == 1 and not found["ok"], (words, out)
        error = found["error"]
        assert code == error["exit"] and error["code"] != "E_INTERNAL", (words, error)
        # what a server or git said of it may take more than a line
        assert "\n" not in error["message"] or error["code"] == "E_REMOTE", (words, error)
        assert words[1:2] != ["add"] or code == 2
    assert rw.ok("op", "log", "-n", "1")["ops"][0]["op"] == log and not (tmp_path / "pwned").exists()


def test_instruments_and_upkeep_are_told_to_people_in_sentences(shop: Any, tmp_path: Path) -> None:
    rw = shop
    attempt = rw.ok("claim", "one")["attempt"]

    def said(*words: str) -> str:
        return str(rw.run("--human", *words).stdout.decode())

    story = said("board", "debug", "one")
    assert story.startswith(f"one: claimed ({attempt})\n") and f"  {attempt}\n" in story and "  spec  " in story
    assert said("board", "reconcile") == "0 tasks closed, 1 in work; nothing was to be done\n"
    assert said("board", "evict", "one") == f"{attempt} does not hold one any more; it is open again\n"
    numbers = said("metrics", "--dora")
    assert "  claims    1 of 1 won; 0 lost a race" in numbers and "  lead time nothing was measured" in numbers
    assert "  heirs     1 went to one, 0 had none left\n" in numbers
    rw.ok("board", "scratch", "trial.git")
    probed = said("board", "probe", "trial.git")
    assert ": usable; changes land on main by a push\n" in probed and "  ok  move several or none\n" in probed
