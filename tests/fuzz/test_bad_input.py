"""Bad input by command line and by MCP: one envelope, a documented code, and nothing changed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from fuzz_inputs import BASES, NOT_UTF8, PASSES_FORM, command_words, fill, requests, words
from fuzz_world import State, World
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ropewalk.cli.main import main
from ropewalk.operations import describe, registry

EACH, ROUNDS, FEW = 20, 15, 2
FULL = os.environ.get("RWTEST_FULL") == "1"
BOARDS = {"board", "upkeep", "reviewing", "instruments", "task", "steps", "work", "flockwork", "fwboard"}
"""Are the families that share how they find a board and a task, so that a few inputs each do, but in the full run."""
PROFILE = settings(
    max_examples=ROUNDS,
    derandomize=True,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
BRIEF = settings(PROFILE, max_examples=FEW)


def profile(operation: registry.Operation) -> settings:
    """Gives how many inputs an operation gets."""
    return BRIEF if operation.family in BOARDS and not FULL else PROFILE


OPERATIONS = registry.everything()
NAMES = [one.name for one in OPERATIONS]
BY_NAME = {one.name: one for one in OPERATIONS}
VALIDATORS = {
    one.name: jsonschema.Draft202012Validator(describe.schema(None, describe.SchemaRequest(one.name)).response)  # type: ignore[arg-type]
    for one in OPERATIONS
}
CODES = {one.name: {e.code: e for e in describe.error_classes(one)} for one in OPERATIONS}


def test_every_operation_has_bad_input() -> None:
    assert set(BASES) == set(registry.names())
    assert set(PASSES_FORM) <= {name for name, base in BASES.items() if base.shape_only}


def check(name: str, envelope: Any, code: int | None, given_input: object) -> bool:
    """Checks one envelope against what is documented and says whether it is an error."""
    shown = f"{name}: {str(given_input)[:300]} gave {json.dumps(envelope)[:600]}"
    assert envelope["op"] == name and envelope["api"] == 1 and isinstance(envelope["meta"], dict), shown
    if envelope["ok"]:
        assert set(envelope) <= {"ok", "op", "api", "result", "warnings", "meta"}, shown
        problem = next(VALIDATORS[name].iter_errors(envelope["result"]), None)
        assert problem is None, f"{shown}: {problem}"
        assert code in (0, 10, None), shown
        return False
    error = envelope["error"]
    assert set(envelope) == {"ok", "op", "api", "error", "meta"}, shown
    assert error["code"] in CODES[name] and error["code"] != "E_INTERNAL", shown
    known = CODES[name][error["code"]]
    assert (error["exit"], error["retryable"]) == (known.exit, known.retryable), shown
    assert error["message"] and isinstance(error["details"], dict), shown
    assert "Traceback" not in json.dumps(envelope), shown
    assert code in (known.exit, None), shown
    return True


def run_cli(line: list[str]) -> tuple[int, bytes, str]:
    """Runs a command line in this process and gives (exit code, standard output, standard error)."""
    out, err = io.BytesIO(), io.StringIO()
    kept = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(out), err
    try:
        code = main(line)
        sys.stdout.flush()
        return code, out.getvalue(), err.getvalue()
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(world.cwd)
    monkeypatch.setenv("ROPEWALK_STORE", str(world.root))
    monkeypatch.setenv("ROPEWALK_AGENT", "fuzz/one")
    return world


def same(before: State, after: State, shown: object) -> None:
    """Fails when an error left something behind."""
    assert after.refs == before.refs and after.op == before.op, f"{shown!s:.300} moved something"
    changed = sorted(before.files ^ after.files)
    assert not changed, f"{shown!s:.300} changed files: {changed[:5]}"


@pytest.mark.parametrize("name", NAMES)
def test_command_lines(name: str, here: World) -> None:
    operation = BY_NAME[name]
    state = here.state()

    def one(line: list[str]) -> None:
        nonlocal state
        line = ["--json", *name.split(" "), *fill(line, here.ids)]
        code, out, err = run_cli(line)
        assert out.count(b"\n") == 1 and out.endswith(b"\n"), f"{line!s:.300} printed {out[:300]!r}, {err[-500:]!r}"
        assert "Traceback" not in err
        failed = check(name, json.loads(out), code, line)
        if failed or not operation.writes:
            same(state, here.state(), line)
        else:
            state = here.state()

    @profile(operation)
    @given(st.lists(words(operation, here.inputs), min_size=EACH, max_size=EACH))
    def many(lines: list[list[str]]) -> None:
        for line in lines:
            one(line)

    many()
    for request in PASSES_FORM.get(name, []):
        one([w for w in command_words(operation, fill(request, here.ids), here.inputs)])
    assert not list(here.top.rglob("pwned"))


class Mcp:
    """Is a real `rw mcp` fed with lines."""

    def __init__(self, world: World) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ropewalk.cli.main", "mcp", "--profile", "full", "--as", "fuzz/one"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=world.cwd,
            env={**os.environ, "ROPEWALK_STORE": str(world.root)},
        )

    def ask(self, message: bytes) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(message + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), f"the server ended at {message[:300]!r}"
        return json.loads(line)


@pytest.fixture(scope="module")
def mcp(world: World) -> Any:
    server = Mcp(world)
    yield server
    out, err = server.process.communicate(timeout=30)
    assert (server.process.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize("name", [one.name for one in OPERATIONS if one.tool])
def test_tool_calls(name: str, here: World, mcp: Mcp) -> None:
    operation = BY_NAME[name]
    state = here.state()
    number = 0

    def one(request: Any) -> None:
        nonlocal state, number
        number += 1
        params = {"name": operation.tool, "arguments": fill(request, here.ids)}
        message = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()
        reply = mcp.ask(message)
        assert reply["id"] == number and reply["jsonrpc"] == "2.0"
        if "error" in reply:
            # JSON-RPC speaks of what is no call at all: arguments that are no object, text that is no Unicode
            assert reply["error"]["code"] in (-32602, -32700) and reply["error"]["message"]
            assert not isinstance(request, dict) or "\\ud" in message.decode(), reply
            return
        result = reply["result"]
        if operation.plain and not ("structuredContent" in result and "ok" in result["structuredContent"]):
            assert set(result) <= {"content", "isError", "structuredContent"} and result["content"][0]["text"]
            if result["isError"] or not operation.writes:
                same(state, here.state(), request)
            else:
                state = here.state()
            return
        envelope = result["structuredContent"]
        assert result.get("isError", False) == (not envelope["ok"])
        part = envelope["result"] if envelope["ok"] else envelope["error"]
        assert json.loads(result["content"][0]["text"]) == part
        if check(name, envelope, None, request) or not operation.writes:
            same(state, here.state(), request)
        else:
            state = here.state()

    @profile(operation)
    @given(st.lists(requests(operation), min_size=EACH, max_size=EACH))
    def many(found: list[Any]) -> None:
        for request in found:
            one(request)

    many()
    for request in PASSES_FORM.get(name, []):
        one(request)
    assert not list(here.top.rglob("pwned"))


@pytest.mark.parametrize("name", [one.name for one in OPERATIONS if FULL or one.family not in BOARDS])
def test_as_a_process(name: str, here: World) -> None:
    """The same from outside: an unknown option, and words that are not UTF-8."""
    state = here.state()
    for line in (["--no-such-option"], [os.fsencode(w) for w in NOT_UTF8] + [b"--no-such-option"]):
        done = subprocess.run(
            [sys.executable, "-m", "ropewalk.cli.main", *name.split(" "), *line], capture_output=True, check=False
        )
        assert done.stdout.count(b"\n") == 1 and done.stderr == b"", done
        assert check(name, json.loads(done.stdout), done.returncode, line)
        assert json.loads(done.stdout)["error"]["code"] == "E_USAGE" and done.returncode == 2
    same(state, here.state(), name)
