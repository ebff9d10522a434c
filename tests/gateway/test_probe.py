"""Probing endpoints: the scripted model server with its faults, and servers that buffer or tell of themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import msgspec
import pytest
from tests.served import served

from ropewalk.gateway import probe as probing
from ropewalk.gateway.probe import Report, Waits, probe
from ropewalk.testing.model_server import ModelServer, running

KEY = "sk-the-key-of-the-endpoint"
WAITS = Waits(10, 10, 10)
CALL = {"tool": "^write_file$", "args": {"path": "out.txt", "content": "1"}}


@pytest.fixture(scope="module")
def there() -> Iterator[ModelServer]:
    with running(keys=[KEY]) as made:
        made.add("good", [CALL])
        made.add("words", [{"text": "I would rather talk."}])
        made.add("wrong", [{"tool": "^write_file$", "args": {"path": 3}}])
        yield made


def grades(report: Report) -> dict[str, str]:
    return {check.name: check.grade for check in report.checks}


def test_a_good_endpoint_is_usable(there: ModelServer) -> None:
    report = probe(there.url("good", "good"), KEY, model="scripted-model", waits=WAITS)
    names = ("health", "reply", "auth", "stream", "tools", "prefill-4k", "prefill-16k")
    assert grades(report) == dict.fromkeys(names, "pass")
    assert (report.verdict, report.exit, report.wire, report.auth) == ("usable", 0, "anthropic", "x-api-key")
    assert KEY.encode() not in msgspec.json.encode(report)
    sizes = [e.size for e in there.entries("good") if e.size > 5000]
    assert len(sizes) == 2 and sizes[1] > 3 * sizes[0]


def test_the_model_is_the_first_that_is_listed(there: ModelServer) -> None:
    assert probe(there.url("listed", "good"), KEY, waits=WAITS).model == "scripted-model"
    report = probe(there.url("unlisted", "good"), KEY, model="nobody", waits=WAITS)
    assert grades(report)["health"] == "warn" and report.exit == 10


@pytest.mark.parametrize(("scenario", "grade", "exit"), [("words", "fail", 13), ("wrong", "fail", 13)])
def test_an_endpoint_that_calls_no_tool_is_not_usable(there: ModelServer, scenario: str, grade: str, exit: int) -> None:
    report = probe(there.url(f"tools-{scenario}", scenario), KEY, waits=WAITS)
    assert grades(report)["tools"] == grade and report.exit == exit


@pytest.mark.parametrize("fault", ["e401", "e404", "e500", "trunc", "empty", "reset", "malformed", "hang", "stall"])
def test_an_endpoint_that_fails_is_not_usable(there: ModelServer, fault: str) -> None:
    report = probe(there.url(f"fails-{fault}", f"good+{fault}"), KEY, waits=Waits(5, 0.5, 1))
    assert (report.verdict, report.exit, report.wire) == ("not", 13, None)
    assert grades(report)["reply"] == "fail" and report.checks[-1].found


def test_a_wrong_key_and_a_dead_address_are_said(there: ModelServer) -> None:
    assert probe(there.url("key", "good"), "sk-wrong-key", waits=WAITS).exit == 13
    report = probe("http://127.0.0.1:9", KEY, waits=WAITS)
    assert report.exit == 13 and report.checks[0].grade == "fail" and report.checks[0].name == "reach"
    assert probe("nonsense", waits=WAITS).exit == 13


def test_an_endpoint_that_lets_everybody_in_is_warned_of() -> None:
    with running() as made:
        made.add("good", [CALL])
        report = probe(made.url("open", "good"), KEY, waits=WAITS)
        assert grades(report)["auth"] == "warn" and report.exit == 10
        report = probe(made.url("none", "good"), waits=WAITS)
        assert "auth" not in grades(report) and (report.exit, report.auth) == (0, "none")


def test_a_long_answer_that_is_short_proves_nothing(there: ModelServer) -> None:
    report = probe(there.url("long", "good"), KEY, long=True, big=True, waits=WAITS)
    assert grades(report)["long"] == "warn" and report.exit == 10
    assert grades(report)["prefill-100k"] == "pass"


@contextmanager
def server(answer: Any) -> Iterator[str]:
    """Gives the address of a server that answers with what a function gives for a method and a path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer(self)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with served(Handler) as address:
        yield address


def reply(handler: BaseHTTPRequestHandler, status: int, *parts: bytes, wait: float = 0.0) -> None:
    handler.send_response(status)
    handler.end_headers()
    handler.wfile.flush()
    time.sleep(wait)
    for part in parts:
        handler.wfile.write(part)


def llama(window: int, slots: int, *, buffered: float = 0.0) -> Any:
    """Gives what a server of OpenAI's format answers that tells of itself; `buffered` holds its stream back."""
    chunk = b'data: {"choices":[{"delta":{"content":"1"}}]}\n\n'
    usage = b'"usage":{"prompt_tokens":9,"completion_tokens":30}'
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],' + usage + b"}\n\ndata: [DONE]\n\n"

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/props":
            props = {"default_generation_settings": {"n_ctx": window}, "total_slots": slots}
            reply(handler, 200, msgspec.json.encode(props))
        elif handler.path in ("/health", "/v1/models"):
            reply(handler, 200, b'{"data":[{"id":"local"}]}')
        elif handler.path == "/v1/chat/completions":
            reply(handler, 200, chunk * 40, end, wait=buffered)
        else:
            reply(handler, 404)

    return answer


def test_context_and_slots_are_told_where_the_server_tells_them() -> None:
    with server(llama(8192, 4)) as url:
        report = probe(url, waits=WAITS)
    assert (report.window, report.slots, report.wire, report.model) == (8192, 4, "chat", "local")
    found = grades(report)
    assert (found["slots"], found["window"], found["prefill-4k"], found["prefill-16k"]) == (
        "warn",
        "warn",
        "pass",
        "warn",
    )
    assert found["tools"] == "fail"


@pytest.mark.slow
def test_a_stream_that_comes_all_at_once_is_told_from_one_that_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_SIZES", ())
    monkeypatch.setattr(probing, "_TRIES", 0)
    with server(llama(100_000, 1, buffered=5.2)) as url:
        report = probe(url, waits=WAITS)
    (stream,) = [check for check in report.checks if check.name == "stream"]
    assert stream.grade == "warn" and stream.found.startswith("buffered: ") and stream.figures["first"] > 5
