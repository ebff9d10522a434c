"""The scripted MCP client against a real `rw mcp`: what it sends, what it keeps, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHANGE = [{"path": "a.txt", "content": {"inline": "${text}\n"}}]
COMMIT = {"tool": "commit", "key": "one", "arguments": {"message": "m", "changes": CHANGE, "advance": "main"}}


def client(folder: Path, calls: Any, *words: str) -> tuple[int, list[Any], str]:
    """Runs a script and gives exit code, answers and what was said of errors."""
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.testing.mcp_client", "-", *words],
        input=json.dumps({"calls": calls}), cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "ROPEWALK_AGENT": "test/one", "ROPEWALK_STORE": str(folder / "store")},
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Is a folder with an empty store."""
    words = ["--store", str(tmp_path / "store"), "init", "--branch", "main"]
    subprocess.run([sys.executable, "-m", "ropewalk.cli.main", *words], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def test_answers_are_printed_kept_and_filled_in(folder: Path) -> None:
    keep = {"id": "result.changeset", "count": "result.files_changed"}
    read = {"tool": "read_file", "arguments": {"rev": "${id}", "path": "a.txt", "max_bytes": "${count}"}}
    expect = {"result.content": "h", "result.size": 6}
    code, answers, said = client(folder, [{**COMMIT, "keep": keep}, {**read, "expect": expect}], "--set", "text=hello")
    assert (code, said) == (0, "")
    assert answers[1]["result"]["content"] == "h"


def test_a_key_is_the_same_when_the_script_runs_again(folder: Path) -> None:
    first = client(folder, [COMMIT], "--set", "text=a")
    again = client(folder, [{**COMMIT, "expect": {"result.replayed": True}}], "--set", "text=a")
    other = client(folder, [{**COMMIT, "expect": {"error.code": "E_KEY_REUSED"}}], "--set", "text=b")
    assert [first[0], again[0], other[0]] == [0, 0, 0], (first, again, other)
    assert first[1][0]["result"]["changeset"] == again[1][0]["result"]["changeset"]


def test_repetitions_count(folder: Path) -> None:
    changes = [{"path": "${n}.txt", "content": {"inline": "${n}\n"}}]
    commit = {"tool": "commit", "arguments": {"message": "step ${n}", "changes": changes, "advance": "main"}}
    code, answers, said = client(folder, [{"repeat": 3, "calls": [commit]}, {"tool": "log", "arguments": {}}])
    assert (code, said) == (0, "")
    assert [entry["title"] for entry in answers[-1]["result"]["entries"]] == ["step 3", "step 2", "step 1"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"tool": "log", "arguments": {"rev": "absent"}}, "call 1 (log): ok is False, not True"),
        ({"tool": "info", "expect": {"result.name": "other"}}, "call 1 (info): result.name is "),
        ({"tool": "info", "expect": {"result.0.name": "other"}}, "result.0.name is None"),
        ({"tool": "info", "keep": {"x": "result.absent"}}, "there is no result.absent to keep"),
    ],
)
def test_an_answer_that_is_not_expected_ends_with_1(folder: Path, step: Any, words: str) -> None:
    code, answers, said = client(folder, [step, {"tool": "info"}])
    assert code == 1 and words in said and len(answers) == 1, said


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([{"tool": "log", "arguments": {"rev": "${nothing}"}}], "kept under the name 'nothing'"),
        ([{"tool": "no_such_tool"}], "tools/call failed"),
        ([{"no": "tool"}], "a step has `tool`"),
        ({"tool": "info"}, "must be a list"),
    ],
)
def test_a_script_that_can_not_be_used_ends_with_2(folder: Path, calls: Any, words: str) -> None:
    code, answers, said = client(folder, calls)
    assert code == 2 and words in said and not answers, said


def test_a_server_that_can_not_be_used_ends_with_2(folder: Path) -> None:
    for server, words in (
        ("no-such-program", "can't be started"),
        ("false", "the server "),
        ("cat", "initialize failed"),
    ):
        code, answers, said = client(folder, [{"tool": "info"}], "--", server)
        assert code == 2 and words in said and not answers, (server, said)


def test_a_kill_ends_with_137_and_leaves_a_store_that_works(folder: Path) -> None:
    code, answers, said = client(folder, [COMMIT, COMMIT], "--set", "text=a", "--kill-at", "1")
    assert (code, said) == (137, "")
    assert answers[0]["killed"] == "commit" and len(answers) == 1
    code, answers, said = client(folder, [COMMIT, {"tool": "log", "arguments": {}}], "--set", "text=a")
    assert (code, said) == (0, "")
    assert len(answers[1]["result"]["entries"]) == 1
    assert client(folder, [COMMIT], "--set", "text=a", "--kill-at", "2")[0] == 2
