"""The scripted model server, by plain HTTP: wire formats, places in a script, faults, and an exact ledger."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.testing.model_client import SHELL_SCHEMA, Client, events

from ropewalk.testing.model_server import ModelServer, running
from ropewalk.testing.models import fill, script
from ropewalk.testing.models.answering import key_digest
from ropewalk.testing.models.conversation import Place, Said, find_place, plain
from ropewalk.testing.models.ledger import Canaries
from ropewalk.testing.models.reply import Usage

WIRES = ("messages", "chat", "responses", "gemini")
CANARY = "s3cret/+canary=value"
SCRIPT = {
    "steps": [
        {
            "tools": [
                {"tool": "write", "path": "a/{{lane}}.txt", "content": 'one\n"two" ä\n'},
                {"tool": "shell", "cmd": "echo {{step}}"},
            ],
            "text": "Working on it, with words enough for two pieces.",
            "thinking": "I think of what to do, at some length.",
            "usage": {"input": 900, "output": 70, "cache_read": 40, "cache_write": 8, "reasoning": 30},
        },
        {"text": "All is done."},
    ]
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """Gives a server for tests that have lanes of their own."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "mine.json").write_text(json.dumps(SCRIPT), encoding="utf-8")
    (folder / "bad.json").write_text('[{"tol": "write"}]', encoding="utf-8")
    with running(scripts=str(folder), canaries={"planted": CANARY}, keep_bodies=True) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_script_runs_in_every_wire_format(shared: ModelServer, wire: str, stream: bool) -> None:
    lane = f"run-{wire}-{stream}"
    client = Client(shared, wire, lane, "mine", stream=stream)
    client.say("Do it.")
    first = client.ask()
    assert first["text"] == "Working on it, with words enough for two pieces."
    assert first["thinking"] == "I think of what to do, at some length."
    write = {"file_path": f"a/{lane}.txt", "content": 'one\n"two" ä\n', "mode": "create"}
    assert [(c["name"], c.get("args")) for c in first["calls"]] == [("Write", write), ("Bash", {"command": "echo 0"})]
    # what a format has no field for is part of the input there
    whole = Usage(900, 70, 40, 8, 30)
    assert first["usage"] == (Usage(900, 70, 40, 8) if wire == "messages" else Usage(908, 70, 40, 0, 30))
    client.give_results(first["calls"])
    second = client.ask()
    assert (second["text"], second["calls"]) == ("All is done.", [])
    one, two = shared.entries(lane)
    assert (one.wire, one.model, one.streaming, one.tools) == (wire, "m1", stream, ("Write", "Bash"))
    assert (one.turn, one.step, two.turn, two.step) == (0, 0, 0, 1)
    assert one.usage == one.charged == whole
    assert (two.usage, two.called, one.called) == (Usage(), (), ("Write", "Bash"))
    assert first["id"].endswith(one.message_id) and one.message_id != two.message_id
    assert shared.counts()[lane].answers == 2


@pytest.mark.parametrize("wire", WIRES)
def test_steers_resumes_and_interruptions_keep_the_place(shared: ModelServer, wire: str) -> None:
    lane = f"steer-{wire}"
    client = Client(shared, wire, lane, "mine", stream=False)
    client.say("First prompt.")
    calls = client.ask()["calls"]
    client.give_results(calls)
    client.say("Please hurry.")
    assert client.ask()["text"] == "All is done."
    client.say("<system-reminder>Some context.</system-reminder>Second prompt.")
    calls = client.ask()["calls"]
    assert len(calls) == 2
    client.give_results(calls, "[Operation Cancelled] Reason: the user stopped it")
    client.say("Third prompt.")
    calls = client.ask()["calls"]
    assert len(calls) == 2
    client.give_results(calls)
    client.say("[script: restart] Fourth prompt.")
    client.ask()
    places = [(e.turn, e.step, e.steers) for e in shared.entries(lane)]
    assert places == [(0, 0, ()), (0, 1, ("Please hurry.",)), (1, 0, ()), (2, 0, ()), (3, 0, ())]
    prompts = [e.prompt for e in shared.entries(lane)]
    assert prompts[1:4] == ["First prompt.", "Second prompt.", "Third prompt."]


def test_a_shortened_history_keeps_its_place() -> None:
    cut = [Said("user", "Go on with it."), Said("assistant", calls=("toolu_t3s7n0xabc",)), Said("tool", "ok")]
    assert (find_place(cut).turn, find_place(cut).step) == (3, 8)


def test_a_steer_within_a_tools_result_is_seen() -> None:
    told = (
        "no output\n\n<system-reminder>\nThe user sent a new message while you were working:\nHurry up.\n\n"
        "This is how it is surfaced.\n</system-reminder>"
    )
    said = [Said("user", "Go."), Said("assistant", calls=("a",)), Said("tool", told)]
    assert find_place(said) == Place(0, 1, "Go.", ("Hurry up.",))
    said += [Said("assistant", "Done."), Said("user", "Next.")]
    assert find_place(said) == Place(1, 0, "Next.")


def test_results_between_parallel_calls_are_one_step() -> None:
    said = [Said("user", "Go.")]
    for number in range(3):
        said += [Said("assistant", calls=(f"call_t0s0n{number}xabc",)), Said("tool", "ok")]
    assert find_place(said).step == 1


def test_context_alone_is_no_prompt() -> None:
    assert plain("<environment_context>\n<cwd>/w</cwd>\n</environment_context>") == ""
    assert plain("<user_query>\nDo it.\n</user_query>") == "Do it."
    assert plain("a < b and c > d") == "a < b and c > d"
    assert plain("Do <b>it</b><system-reminder>x</system-reminder> now.") == "Do <b>it</b> now."


def test_a_long_prompt_of_open_tags_is_read_in_time() -> None:
    text = "<a>" * 300_000 + "<system-reminder>" * 100_000
    begun = time.process_time()
    assert find_place([Said("user", text)]).prompt == text
    assert time.process_time() - begun < 2


def test_a_user_who_speaks_of_a_cancelled_request_steers() -> None:
    said = [Said("user", "Go."), Said("assistant", calls=("a",)), Said("tool", "ok")]
    told = "The request was cancelled by the customer: handle that, too."
    assert find_place([*said, Said("user", told)]) == Place(0, 1, "Go.", (told,))


def test_turns_have_steps_of_their_own(shared: ModelServer) -> None:
    shared.add("turns", {"turns": [[{"text": "one"}], [{"text": "two"}]]})
    client = Client(shared, "messages", "turns", "turns", stream=True)
    said = []
    for prompt in ("a", "b", "c"):
        client.say(prompt)
        said.append(client.ask()["text"])
    assert said == ["one", "two", "two"]


STATUS = {"e400": 400, "e401": 401, "e403": 403, "e404": 404, "e429": 429, "e429ra": 429, "e500": 500, "e503ra7": 503,
          "e529": 529, "always429": 429, "ctx": 400}  # fmt: skip


@pytest.mark.parametrize("wire", WIRES)
def test_errors_have_the_words_of_their_format(shared: ModelServer, wire: str) -> None:
    waits = {"e429ra": "1", "always429": "1", "e503ra7": "7"}
    for name, status in STATUS.items():
        client = Client(shared, wire, f"error-{wire}", name, stream=True)
        client.say("Do it.")
        got, raw, headers = client.post()
        error = json.loads(raw)["error"]
        assert (got, headers["retry-after"]) == (status, waits.get(name))
        if wire == "gemini":
            assert error["code"] == status and re.fullmatch("[A-Z_]+", error["status"])
        else:
            assert error["type"] and error["message"]
        entry = shared.entries(f"error-{wire}")[-1]
        assert (entry.status, entry.outcome, entry.usage, entry.charged) == (status, name, None, None)
    assert "prompt is too long" in raw.decode() or "exceeds" in raw.decode() or b"context_length_exceeded" in raw


@pytest.mark.parametrize("wire", WIRES)
def test_answers_that_break_do_so_in_every_format(shared: ModelServer, wire: str) -> None:
    lane = f"broken-{wire}"
    good = Client(shared, wire, lane, "write", stream=True)
    good.say("Do it.")
    good.ask()
    for stream in (True, False):
        for name in ("malformed", "trunc", "empty", "reset", "sseerr"):
            client = Client(shared, wire, lane, name, stream=stream)
            client.say("Do it.")
            if name == "reset":
                with pytest.raises(ConnectionResetError) as reset:
                    client.post()
                assert not isinstance(reset.value, http.client.RemoteDisconnected), "an end is no reset"
            elif name == "trunc":
                with pytest.raises(http.client.IncompleteRead) as cut:
                    client.post()
                assert good.raw.startswith(cut.value.partial[:20]) or not stream
            elif name == "empty":
                assert client.post()[:2] == (200, b"")
            elif name == "sseerr" and not stream:
                assert client.post()[0] == 500
            else:
                status, raw, _ = client.post()
                assert status == 200
                if name == "malformed":
                    with pytest.raises(ValueError):
                        events(raw) if stream else json.loads(raw)
                else:
                    assert "scripted error" in json.dumps(events(raw)[-1])
            entry = shared.entries(lane)[-1]
            assert (entry.outcome, entry.usage) == (name, None)
            assert (entry.charged is not None) == (name not in ("empty", "reset") and entry.status == 200)


def test_silence_lasts_until_the_client_leaves(shared: ModelServer) -> None:
    for name, begun in (("hang", b""), ("stall", b"message_start")):
        client = Client(shared, "messages", name, name, stream=True)
        client.say("Do it.")
        path, body = client.request()
        data = json.dumps(body).encode()
        head = f"POST {client.base.path}{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection((client.base.hostname or "", client.base.port or 0), timeout=10) as plug:
            plug.sendall(head.encode() + data)
            if begun:
                got = b""
                while begun not in got:
                    got += plug.recv(4096)
            else:
                plug.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    plug.recv(1)
            assert shared.counts()[name].open == 1
        entry = wait_for(shared, name)
        assert (entry.outcome, entry.left, entry.status) == (name, True, 200 if begun else 0)


def wait_for(server: ModelServer, lane: str) -> Any:
    """Gives a lane's last entry, once it is no longer open."""
    ended = threading.Event()
    for _ in range(500):
        if (entry := server.entries(lane)[-1]).outcome != "open":
            return entry
        ended.wait(0.01)
    raise AssertionError(f"{lane} is still open")


def test_what_hangs_is_let_go_when_the_server_stops() -> None:
    with ThreadPoolExecutor(1) as pool:
        with running() as server:
            client = Client(server, "chat", "l", "hang", stream=True)
            client.say("Do it.")
            asked = pool.submit(client.post)
            while not [e for e in server.entries("l") if e.prompt]:
                assert not asked.done()
            assert server.entries("l")[-1].outcome == "open"
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            asked.result(20)
        assert (server.entries("l")[-1].outcome, server.entries("l")[-1].left) == ("hang", False)


def test_tries_are_counted_by_place(shared: ModelServer) -> None:
    def statuses(scenario: str, lane: str) -> list[int]:
        client = Client(shared, "chat", lane, scenario, stream=False)
        client.say("Do it.")
        got = []
        for _ in range(6):
            got.append(client.post()[0])
            if got[-1] == 200:
                client.give_results(client.ask()["calls"])
        return got

    assert statuses("flaky2", "flaky-a") == [503, 503, 200, 200, 200, 200]
    assert statuses("flaky2", "flaky-b") == [503, 503, 200, 200, 200, 200]
    assert statuses("write+e429x1", "flaky-c")[:4] == [429, 200, 429, 200]
    assert statuses("mine+e500@1", "flaky-d") == [200, 500, 500, 500, 500, 500]


def test_a_step_that_fails(shared: ModelServer) -> None:
    shared.add("fails", [{"tool": "write", "path": "a", "content": "b"}, {"fail": "e529"}])
    client = Client(shared, "messages", "fails", "fails", stream=True)
    client.say("Do it.")
    client.give_results(client.ask()["calls"])
    assert client.post()[0] == 529


def test_side_requests_are_answered_and_not_counted(shared: ModelServer) -> None:
    client = Client(shared, "chat", "side", "write", stream=True)
    client.tools = False
    client.say("Give a title to this.")
    assert client.ask()["text"] == "Scripted title"
    client = Client(shared, "chat", "side", "write+e500@1", stream=False)
    client.say("Do it.")
    client.give_results(client.ask()["calls"])
    client.tools = False
    assert client.ask()["text"] == "Scripted title"
    tool = {"type": "function", "function": {"name": "set_title", "parameters": {
        "type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}}}  # fmt: skip
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool],
            "tool_choice": {"type": "function", "function": {"name": "set_title"}}}  # fmt: skip
    answer = json.loads(post(shared, "side", "write", "/v1/chat/completions", body)[1])
    called = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (called["name"], json.loads(called["arguments"])) == ("set_title", {"title": "scripted title"})
    shell = {"type": "function", "function": {"name": "bash", "parameters": SHELL_SCHEMA}}
    answer = json.loads(post(shared, "forced", "write", "/v1/chat/completions", {**body, "tools": [shell, tool]})[1])
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "set_title"
    assert [e.side for e in shared.entries("forced")] == [True]
    form = {"type": "json_schema", "json_schema": {"schema": {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}}}  # fmt: skip
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": form}
    answer = json.loads(post(shared, "side", "write", "/v1/chat/completions", body)[1])
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"n": 3}
    counts = shared.counts()["side"]
    assert (counts.requests, counts.answers, counts.side, counts.failed) == (5, 1, 4, 0)


def test_what_follows_a_finished_turn_without_a_word_is_aside(shared: ModelServer) -> None:
    client = Client(shared, "messages", "aside", "write", stream=False)
    client.say("Do it.")
    client.give_results(client.ask()["calls"])
    client.ask()
    client.say("<system-reminder>Write one line about the last turn.</system-reminder>")
    assert client.ask()["text"] == "Scripted title"
    assert [e.side for e in shared.entries("aside")] == [False, False, True]


def post(
    server: ModelServer | str, lane: str, scenario: str, path: str, body: Any,
    headers: dict[str, str] | None = None, method: str = "POST",
) -> tuple[int, bytes]:  # fmt: skip
    """Gives status and body of an answer."""
    where = server if isinstance(server, str) else server.base
    base = urllib.parse.urlsplit(f"{where}/{lane}/{scenario}")
    connection = http.client.HTTPConnection(base.hostname or "", base.port, timeout=20)
    try:
        connection.request(method, base.path + path, None if body is None else json.dumps(body), headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_responses_tools_of_every_kind(shared: ModelServer) -> None:
    shared.add("kinds", [{"tools": [
        {"tool": "write", "path": "a.txt", "content": "x\ny\n"},
        {"tool": "shell", "cmd": "ls"},
        {"tool": "mcp__fleet__report_status", "args": {"status": "ok"}},
    ]}])  # fmt: skip
    tools = [
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        {"type": "local_shell"},
        {"type": "web_search"},
        {"type": "namespace", "name": "mcp__fleet", "tools": [
            {"type": "function", "name": "report_status", "parameters": {"type": "object", "properties": {}}}]},
    ]  # fmt: skip
    for stream in (False, True):
        body = {"model": "m", "input": "Do it.", "tools": tools, "stream": stream}
        _, raw = post(shared, "kinds", "kinds", "/v1/responses", body)
        output = events(raw)[-1]["response"]["output"] if stream else json.loads(raw)["output"]
        patch, shell, status = output
        assert patch["type"] == "custom_tool_call"
        assert patch["input"] == "*** Begin Patch\n*** Add File: a.txt\n+x\n+y\n*** End Patch\n"
        assert (shell["type"], shell["action"]["command"]) == ("local_shell_call", ["bash", "-lc", "ls"])
        assert (status["name"], status["namespace"]) == ("report_status", "mcp__fleet")
        assert json.loads(status["arguments"]) == {"status": "ok"}
    history = [{"role": "user", "content": "Do it."}, *output,
               *({"type": f"{i['type']}_output", "call_id": i["call_id"], "output": "ok"} for i in output)]  # fmt: skip
    body = {"model": "m", "input": history, "tools": tools}
    _, raw = post(shared, "kinds", "kinds", "/v1/responses", body)
    assert json.loads(raw)["output"][0]["content"][0]["text"] == "FINAL-ANSWER: done"


def test_a_tool_that_is_not_offered_is_said_and_noted(shared: ModelServer) -> None:
    shared.add("absent", [{"tool": "mcp__fleet__.*", "args": {}}])
    client = Client(shared, "chat", "absent", "absent", stream=False)
    client.say("Do it.")
    client.tools = False
    assert client.ask()["text"] == "Scripted title"
    client.tools, client.history = True, client.history[:1]
    assert client.ask()["text"] == "TOOL-NOT-OFFERED: mcp__fleet__.*"
    assert [e.outcome for e in shared.entries("absent")] == ["ok", "no-tool"]


def test_arguments_follow_the_schema() -> None:
    shape = {
        "type": "object",
        "properties": {
            "kind": {"$ref": "#/$defs/kind"},
            "maybe": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
            "list": {"type": "array", "items": {"type": "number"}, "minItems": 2},
            "inner": {"type": ["null", "object"], "properties": {"x": {"const": 7}}, "required": ["x"]},
            "left_out": {"type": "string"},
        },
        "required": ["kind", "maybe", "list", "inner"],
        "$defs": {"kind": {"enum": ["first", "second"]}},
    }
    assert fill.value_of(shape) == {"kind": "first", "maybe": False, "list": [1, 1], "inner": {"x": 7}}
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
                                                    "required": ["a"]}}}  # fmt: skip
    assert json.dumps(fill.value_of(endless)).count("a") <= 8


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        ({"X-Api-Key": "right"}, "/v1/messages"),
        ({"Authorization": "Bearer right"}, "/v1/chat/completions"),
        ({"x-goog-api-key": "right"}, "/v1beta/models/m:generateContent"),
        ({}, "/v1beta/models/m:generateContent?key=right"),
    ],
)
def test_keys(headers: dict[str, str], path: str) -> None:
    body: dict[str, Any] = {"messages": [], "contents": []}
    with running(keys=["right"]) as server:
        assert post(server, "l", "text", path, body, headers)[0] == 200
        wrong = {name: value.replace("right", "wrong") for name, value in headers.items()}
        assert post(server, "l", "text", path.replace("right", "wrong"), body, wrong)[0] == 401
        assert post(server, "l", "text", path.partition("?")[0], body)[0] == 401
        noted = [(e.auth, e.key, e.outcome) for e in server.entries("l")]
    digests = [key_digest("right"), key_digest("wrong"), ""]
    assert noted == list(zip(("ok", "wrong", "missing"), digests, ("ok", "unauthorized", "unauthorized"), strict=True))


def test_canaries_are_found_where_they_hide(shared: ModelServer) -> None:
    hidden = [
        CANARY,
        urllib.parse.quote(CANARY, safe=""),
        CANARY.encode().hex(),
        *(base64.b64encode(b"." * skip + CANARY.encode() + b"..").decode() for skip in range(3)),
    ]
    for text in hidden:
        post(shared, "canary", "text", "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})
    post(shared, "canary", "text", "/v1/chat/completions", {"messages": []}, {"X-Some": CANARY})
    post(shared, "canary", "text", "/v1/models?x=" + urllib.parse.quote(CANARY, safe=""), None, method="GET")
    assert [e.canaries for e in shared.entries("canary")] == [("planted",)] * 8
    post(shared, "canary", "text", "/v1/chat/completions", {"messages": [{"role": "user", "content": CANARY[:-3]}]})
    assert shared.entries("canary")[-1].canaries == ()
    assert Canaries({"empty": ""}).found(b"anything") == ()


def test_other_addresses(shared: ModelServer) -> None:
    assert json.loads(post(shared, "o", "write", "/v1/models", None, method="GET")[1])["data"][0]["id"]
    counted = json.loads(post(shared, "o", "write", "/v1/messages/count_tokens", {"messages": []})[1])
    assert counted == {"input_tokens": len('{"messages": []}') // 4}
    counted = json.loads(post(shared, "o", "write", "/v1beta/models/m:countTokens", {"contents": []})[1])
    assert counted == {"totalTokens": len('{"contents": []}') // 4}
    assert post(shared, "o", "write", "/api/hello", None, method="HEAD") == (200, b"")
    assert post(shared, "o", "always429", "/v1/messages/count_tokens", {})[0] == 429
    assert post(shared, "o", "write", "/v1/embeddings", {})[0] == 404
    assert post(shared, "o", "write", "/v1/messages", [1])[0] == 400
    assert post(shared, "o", "write", "/v1/messages", {"messages": ["x"]})[0] == 400
    odd = {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "bash", "input_schema": True}]}
    assert post(shared, "o", "shell", "/v1/messages", odd)[0] == 400
    assert post(shared, "o", "nothing", "/v1/messages", {})[0] == 400
    status, raw = post(shared, "o", "bad", "/v1/messages", {})
    assert status == 400 and b"unknown field" in raw
    outcomes = ["ok"] * 4 + ["always429", "unknown", *["bad-request"] * 3, *["bad-scenario"] * 2]
    assert [e.outcome for e in shared.entries("o")] == outcomes
    assert shared.counts()["o"].answers == 0


def test_gemini_streams_an_array_where_no_events_are_asked_for(shared: ModelServer) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}]}
    _, raw = post(shared, "array", "long1", "/v1beta/models/m:streamGenerateContent", body)
    chunks = json.loads(raw)
    assert len("".join(c["candidates"][0]["content"]["parts"][0]["text"] for c in chunks)) == 1024
    assert len(chunks) == 4


def test_usage_may_be_kept_silent_and_ids_repeated(shared: ModelServer) -> None:
    shared.add("silent", {"steps": [{"text": "x"}], "silent_usage": True})
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "stream": True}
    _, raw = post(shared, "silent", "silent", "/v1/chat/completions", body)
    assert b"usage" not in raw
    _, raw = post(shared, "silent", "text", "/v1/chat/completions", body)
    assert b"usage" not in raw, "nobody asked for it"
    told = [(e.usage, e.charged) for e in shared.entries("silent")]
    assert told == [(None, None), (None, Usage())]
    for wire in WIRES:
        client = Client(shared, wire, "same", "sameid", stream=True)
        client.say("Do it.")
        first = client.ask()
        client.give_results(first["calls"])
        assert client.ask()["id"] == first["id"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "truncated"),
        ('[{"fail": "e999x"}]', "no fault"),
        ("[{}]", "has to have"),
        ('[{"tool": "("}]', "no pattern"),
        ('{"turns": [[{"text": 1}]]}', "str"),
    ],
)
def test_a_bad_script_is_refused(text: str, words: str) -> None:
    with pytest.raises(script.ScriptError, match=words):
        script.decode(text.encode())


def test_a_scenario_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text('[{"text": "x"}]', encoding="utf-8")
    (tmp_path / "in").mkdir()
    for name in ("../out", "..", "", ".out"):
        with pytest.raises(script.ScriptError):
            script.scenario(name, str(tmp_path / "in"), {})


def test_the_ledger_is_exact_under_many_lanes_at_once(shared: ModelServer) -> None:
    def drive(number: int) -> None:
        client = Client(shared, WIRES[number % 4], f"many{number}", "mine", stream=bool(number % 2))
        client.say(f"Do {number}.")
        client.give_results(client.ask()["calls"])
        assert client.ask()["text"] == "All is done."

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(drive, range(40)))
    counts = shared.counts()
    for number in range(40):
        mine = counts[f"many{number}"]
        assert (mine.requests, mine.answers, mine.side, mine.failed, mine.open) == (2, 2, 0, 0, 0)
        assert mine.charged == Usage(1900, 120, 240, 8, 30)
        assert {e.prompt for e in shared.entries(f"many{number}")} == {f"Do {number}."}
        assert all(f"Do {number}.".encode() in (shared.body(e.number) or b"") for e in shared.entries(f"many{number}"))


def test_small_parts_are_sent_at_once(shared: ModelServer) -> None:
    """A head and its body are two parts: with Nagle's algorithm each answer would wait 40 ms for the other's word."""
    base = urllib.parse.urlsplit(shared.base)
    connection = http.client.HTTPConnection(base.hostname or "", base.port, timeout=20)
    took = []
    for _ in range(30):
        begun = time.monotonic()
        connection.request("GET", "/quick/text/v1/models")
        connection.getresponse().read()
        took.append(time.monotonic() - begun)
    connection.close()
    assert min(took[5:]) < 0.03


def test_the_command_serves_and_ends(tmp_path: Path) -> None:
    (tmp_path / "hi.json").write_text('[{"text": "hi"}]', encoding="utf-8")
    words = [sys.executable, "-m", "ropewalk.testing.model_server", "--scripts", str(tmp_path), "--key", "k"]
    child = subprocess.Popen([*words, "--canary", "c=planted"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        server = json.loads(child.stdout.readline())["url"]
        body = {"messages": [{"role": "user", "content": "planted"}]}
        status, raw = post(server, "l", "hi", "/v1/chat/completions", body, {"Authorization": "Bearer k"})
        assert (status, json.loads(raw)["choices"][0]["message"]["content"]) == (200, "hi")
        [entry] = json.loads(post(server, "_ledger", "lane", "/l", None, method="GET")[1])
        assert (entry["outcome"], entry["canaries"], entry["auth"]) == ("ok", ["c"], "ok")
        counts = json.loads(post(server, "_ledger", "counts", "", None, method="GET")[1])
        assert counts["l"]["answers"] == 1
        child.terminate()
        assert child.wait(20) in (0, -15)
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
