"""Our client of the Agent Client Protocol against agents that say whatever they like, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ropewalk.lane.adapter import Ending, Event, McpServer, Start
from ropewalk.lane.programs import registry

AGENT = """
import json, sys
def say(**what): print(json.dumps({"jsonrpc": "2.0", **what}), flush=True)
def update(**what): say(method="session/update", params={"sessionId": "s1", "update": what})
def words(text): update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})
def tool(number, status, **more):
    update(sessionUpdate="tool_call" if status == "pending" else "tool_call_update", toolCallId=number, status=status,
           title="edit", **more)
log = open("log", "a")
prompts, held = [], []
for line in sys.stdin:
    got = json.loads(line)
    log.write(line); log.flush()
    method, number = got.get("method"), got.get("id")
    if method == "initialize":
        say(id=number, result={"protocolVersion": 1, "agentCapabilities": CAN})
    elif method == "session/new":
        say(id=number, result={"sessionId": "s1", "modes": {"currentModeId": "ask", "availableModes": [
            {"id": "ask"}, {"id": "yolo"}]}})
    elif method == "session/load":
        words("of old")
        say(id=number, result=None)
    elif method == "session/set_mode":
        say(id=number, error={"code": -1, "message": "no"})
    elif method == "session/cancel":
        for one in held: say(id=one, result={"stopReason": "cancelled"})
    elif method == "session/prompt":
        prompts.append(number)
        BODY
"""


CAN = {"loadSession": True, "mcpCapabilities": {"http": True}}


def agent(folder: Path, body: str, can: Any = CAN) -> str:
    path = folder / "agent.py"
    path.write_text(
        AGENT.replace("CAN", repr(can)).replace("        BODY", textwrap.indent(textwrap.dedent(body).strip(), " " * 8))
    )
    return f"acp:{sys.executable} {path}"


class Talk:
    """Is the client with an agent behind it, as a lane has them, without a cage."""

    def __init__(self, folder: Path, harness: str, **more: Any) -> None:
        home = folder / "home"
        (folder / "work").mkdir()
        adapter = registry.get(harness)
        launch = adapter.launch(
            Start("the task", f"{home}/prompt.md", str(folder / "work"), str(home), None, "", **more)
        )  # fmt: skip
        for name, data in launch.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(data)
        self.adapter, self.log = adapter, folder / "work" / "log"
        self.child = subprocess.Popen(launch.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      env={**launch.env, "PATH": os.defpath})  # fmt: skip
        assert self.child.stdin is not None and self.child.stdout is not None
        self.input, self.output = self.child.stdin, self.child.stdout
        self.input.write(launch.stdin)
        self.input.flush()
        self.reader, self.events = adapter.reader(), list[Event]()

    def until(self, kind: str) -> Event:
        for line in self.output:
            found = self.reader.line(line)
            self.events += found
            if one := next((event for event in found if event.kind == kind), None):
                return one
        raise AssertionError(f"no {kind} came: {self.events}")

    def say(self, data: bytes | None) -> None:
        assert data is not None
        self.input.write(data)
        self.input.flush()

    def end(self) -> Ending:
        self.input.close()
        for line in self.output:
            self.events += self.reader.line(line)
        self.output.close()
        return self.reader.ending(self.child.wait(20), "")

    def heard(self, method: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [one.get("params", {}) for one in lines if one.get("method") == method]

    def answers(self) -> list[dict[str, Any]]:
        return [one for one in map(json.loads, self.log.read_text().splitlines()) if "method" not in one]


def test_a_task_is_done_and_its_questions_are_answered(tmp_path: Path) -> None:
    body = """
        if len(prompts) == 1:
            words("I will. ")
            tool("t1", "pending", rawInput={"command": "make"}, locations=[{"path": "a.py"}])
            say(id=77, method="session/request_permission", params={"options": [
                {"kind": "reject_once", "optionId": "no"}, {"kind": "allow_always", "optionId": "yes"}]})
            say(id=78, method="fs/read_text_file", params={"path": "/etc/shadow"})
            say(method="x.ai/whatever", params={})
            print("no JSON at all", flush=True)
            tool("t1", "in_progress")
            tool("t1", "completed")
            words("All "); words("done.")
            say(id=number, result={"stopReason": "end_turn", "usage": {"inputTokens": 7, "outputTokens": 3}})
    """
    server = McpServer("fleet", "http://127.0.0.1:1/mcp", {"A": "b"})
    talk = Talk(tmp_path, agent(tmp_path, body), servers=(server,))
    talk.until("result")
    ending = talk.end()
    assert (ending.ok, ending.text, ending.session, ending.turns) == (True, "All done.", "s1", 2)
    assert ending.tokens is not None and (ending.tokens.input, ending.tokens.output) == (7, 3)
    tool = next(event.facts for event in talk.events if event.kind == "tool")
    assert (tool["path"], tool["command"]) == ("a.py", "make")
    kinds = [event.kind for event in talk.events]
    assert kinds == ["started", "turn", "message", "tool", "message", "tool_end", "usage", "turn", "result"] or (
        kinds.count("turn") >= 1 and kinds.count("tool") == kinds.count("tool_end") == 1
    )
    made = talk.heard("session/new")[0]
    assert made["mcpServers"] == [{"type": "http", "name": "fleet", "url": "http://127.0.0.1:1/mcp",
                                   "headers": [{"name": "A", "value": "b"}]}]  # fmt: skip
    assert talk.heard("session/set_mode") == [{"sessionId": "s1", "modeId": "yolo"}]
    answers = {one["id"]: one for one in talk.answers()}
    assert answers[77]["result"]["outcome"] == {"outcome": "selected", "optionId": "yes"}
    assert answers[78]["error"]["code"] == -32601


def test_a_steered_agent_ends_with_its_last_answer(tmp_path: Path) -> None:
    body = """
        if len(prompts) == 1:
            tool("t1", "pending")
        else:
            words("heard " + got["params"]["prompt"][0]["text"])
            for one in prompts: say(id=one, result={"stopReason": "end_turn"})
    """
    talk = Talk(tmp_path, agent(tmp_path, body))
    talk.until("tool")
    talk.say(talk.adapter.steer("the word"))
    talk.until("result")
    ending = talk.end()
    assert ending.ok and ending.text == "heard the word"
    assert [event.kind for event in talk.events].count("result") == 1


def test_an_interrupted_agent_says_so(tmp_path: Path) -> None:
    talk = Talk(tmp_path, agent(tmp_path, 'held.append(number); tool("t1", "pending")'))
    talk.until("tool")
    talk.say(talk.adapter.interrupt())
    talk.until("result")
    ending = talk.end()
    assert (ending.ok, ending.reason) == (False, "interrupted")


def test_a_session_is_loaded_and_what_was_before_is_no_news(tmp_path: Path) -> None:
    body = 'words("new"); say(id=number, result={"stopReason": "end_turn"})'
    talk = Talk(tmp_path, agent(tmp_path, body), session="s0")
    talk.until("result")
    ending = talk.end()
    assert (ending.ok, ending.text, ending.session) == (True, "new", "s0")
    assert talk.heard("session/load")[0]["sessionId"] == "s0" and not talk.heard("session/new")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('say(id=number, error={"code": 1, "message": "Internal error", "data": "401 the key is invalid"})',
         "authentication"),
        ('say(id=number, error={"code": 1, "message": "x", "data": {"details": "429 Too Many Requests"}})',
         "rate_limited"),
        ('say(id=number, result={"stopReason": "max_turn_requests"})', "max_turns"),
        ('say(id=number, result={"stopReason": "max_tokens"})', "context_full"),
        ('say(id=number, result={"stopReason": "refusal"})', "no_result"),
        ("sys.exit(3)", "crashed"),
        ('import os, signal; os.kill(os.getpid(), signal.SIGKILL)', "crashed"),
    ],
)  # fmt: skip
def test_a_failure_has_its_reason(tmp_path: Path, body: str, reason: str) -> None:
    talk = Talk(tmp_path, agent(tmp_path, body))
    for line in talk.output:
        talk.events += talk.reader.line(line)
        if any(event.kind in ("result", "error") for event in talk.events):
            break
    ending = talk.end()
    assert (ending.ok, ending.reason) == (False, reason), ending


@pytest.mark.parametrize("more", [{"session": "s0"}, {"servers": (McpServer("a", "http://127.0.0.1:1", {}),)}])
def test_what_an_agent_can_not_do_is_no_silence(tmp_path: Path, more: Any) -> None:
    talk = Talk(tmp_path, agent(tmp_path, "pass", {}), **more)
    talk.until("result")
    ending = talk.end()
    assert (ending.ok, ending.reason) == (False, "session_lost" if "session" in more else "api_error")


def test_an_error_that_comes_as_words_is_one(tmp_path: Path) -> None:
    """Copilot ends its turn well whatever its model's provider said."""
    words = "Info: Request failed. Retrying...Error: Authentication failed with provider (HTTP 401)."
    line = json.dumps({"event": "result", "ok": True, "text": words, "stop": "end_turn"}).encode()
    for harness, ok in (("acp:copilot --acp", False), ("acp:gemini --acp", True)):
        reader = registry.get(harness).reader()
        reader.line(line)
        ending = reader.ending(0, "")
        assert ending.ok is ok
        assert ending.reason == ("" if ok else "authentication")


def test_a_good_end_without_words_is_empty(tmp_path: Path) -> None:
    talk = Talk(tmp_path, agent(tmp_path, 'say(id=number, result={"stopReason": "end_turn"})'))
    talk.until("result")
    assert (talk.end().ok, talk.reader.ending(0, "").reason) == (True, "empty")


def test_an_agent_that_outlives_its_input_is_ended(tmp_path: Path) -> None:
    body = """
        import os, time
        open("pid", "w").write(str(os.getpid()))
        say(id=number, result={"stopReason": "end_turn"})
        time.sleep(600)
    """
    talk = Talk(tmp_path, agent(tmp_path, body))
    talk.until("result")
    pid = int((tmp_path / "work" / "pid").read_text())
    talk.end()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_client_told_to_end_takes_its_agent_along(tmp_path: Path) -> None:
    talk = Talk(tmp_path, agent(tmp_path, 'tool("t1", "pending")'))
    talk.until("tool")
    talk.child.send_signal(signal.SIGTERM)
    assert talk.child.wait(20) == 143
    assert talk.output.read() == b""  # nobody holds its output any more
    talk.input.close()
    talk.output.close()


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    talk = Talk(tmp_path, "acp:no-such-agent-anywhere")
    ending = talk.end()
    assert not ending.ok and talk.child.returncode == 127
