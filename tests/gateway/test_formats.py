"""The four formats through the gateway, streamed and whole: every byte, every token, and no key on the wrong side."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.gateway.kit import KEY, PATHS, TOKEN, Gateway, body, counted, gateway, path, send, simple, until

from ropewalk.gateway import settings
from ropewalk.gateway.settings import Upstream
from ropewalk.testing.model_server import ModelServer
from ropewalk.testing.models.answering import key_digest

WIRES = sorted(PATHS)
USAGE = {"input": 1234, "output": 321, "cache_read": 4567, "cache_write": 89, "reasoning": 100}
TEXT = 'Grüße, 世界 — "choices":[] and "usage":{ are words, too. ' * 20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[Gateway]:
    server.add("fixed", {"steps": [{"text": TEXT}], "message_id": "always", "usage": USAGE})
    server.add("silent", {"steps": [{"text": TEXT}], "silent_usage": True})
    server.add("tool", {"steps": [{"tool": "^take$", "args": {"x": 1}}], "usage": USAGE})
    with gateway(tmp_path_factory.mktemp("formats") / "gw", simple(server.url("lane", "fixed"))) as made:
        yield made


def point(made: Gateway, server: ModelServer, lane: str, scenario: str, **more: object) -> None:
    made.swap("up", Upstream(server.url(lane, scenario), KEY, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_passes_byte_for_byte(shared: Gateway, server: ModelServer, wire: str, stream: bool) -> None:
    lane = f"bytes-{wire}-{stream}"
    point(shared, server, lane, "fixed")
    base = f"/{lane}-direct/fixed"
    direct = send(int(server.base.rsplit(":", 1)[1]), base + path(wire, stream=stream), body(wire, stream=stream),
                  token=KEY)  # fmt: skip
    through = shared.send(wire, stream=stream)
    assert (through.status, through.whole) == (200, True)
    assert through.data == direct.data and len(through.data) > 1000
    assert through.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
def test_G13_tokens_are_the_servers(shared: Gateway, server: ModelServer, wire: str, stream: bool) -> None:
    lane = f"tokens-{wire}-{stream}"
    point(shared, server, lane, "fixed")
    before = len(shared.entries())
    for _ in range(3):  # all with the same message id
        assert shared.send(wire, stream=stream).status == 200
    mine = shared.settled(before + 3)[before:]
    entries = [e for e in server.entries(lane) if e.charged]
    assert len(mine) == len(entries) == 3
    for one, there in zip(mine, entries, strict=True):
        assert there.charged is not None
        assert one.tokens == counted(there.charged, reasoning=wire != "anthropic", written=wire == "anthropic")
        assert (one.outcome, one.estimated, one.mark) == ("answered", False, "")
        assert one.answer.endswith("always") and one.dollars is not None and one.dollars > 0
        assert one.first_ms is not None and 0 < one.first_ms <= one.total_ms


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_of_a_tool_is_seen(shared: Gateway, server: ModelServer, wire: str) -> None:
    point(shared, server, f"tool-{wire}", "tool")
    shape = {"type": "object", "properties": {"x": {"type": "integer"}}}
    function = {"name": "take", "parameters": shape}
    offered: object = {
        "anthropic": [{"name": "take", "input_schema": shape}],
        "chat": [{"type": "function", "function": function}],
        "responses": [{"type": "function", **function}],
        "gemini": [{"functionDeclarations": [function]}],
    }[wire]
    before = len(shared.entries())
    assert shared.send(wire, body=body(wire, tools=offered)).status == 200
    assert shared.settled(before + 1)[-1].wants_tool
    until(lambda: shared.activity().wants_tool)


@pytest.mark.parametrize("wire", ["responses", "chat", "gemini"])
def test_usage_that_nobody_tells_is_estimated_and_marked(shared: Gateway, server: ModelServer, wire: str) -> None:
    point(shared, server, f"silent-{wire}", "silent")
    before = len(shared.entries())
    assert shared.send(wire).status == 200
    one = shared.settled(before + 1)[-1]
    assert one.tokens is not None and one.tokens.total > 0 and one.estimated and one.mark == "≈"
    assert one.tokens.output >= len(TEXT) // 4


@pytest.mark.parametrize("asked", [None, False, True])
def test_G13_usage_is_asked_for_and_stripped(shared: Gateway, server: ModelServer, asked: bool | None) -> None:
    lane = f"include-{asked}"
    point(shared, server, lane, "fixed")
    more = {} if asked is None else {"stream_options": {"include_usage": asked}}
    got = shared.send("chat", body=body("chat", **more))
    events = [line[6:] for line in got.data.split(b"\n\n") if line.startswith(b"data: {")]
    shown = [msgspec.json.decode(event) for event in events]
    assert any(event.get("usage") for event in shown) == bool(asked)
    assert got.data.endswith(b"data: [DONE]\n\n")
    (entry,) = server.entries(lane)
    kept = msgspec.json.decode(server.body(entry.number) or b"")
    assert kept["stream_options"]["include_usage"] is True


def test_a_request_that_needs_no_change_goes_on_as_it_came(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "raw", "fixed")
    raw = b'{"model" : "claude-sonnet-4-5","max_tokens":50,\n "messages":[{"role":"user","content":"\\u0041"}]}'
    assert send(shared.port, PATHS["anthropic"], raw).status == 200
    assert server.body(server.entries("raw")[-1].number) == raw


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_G15_packed_requests_are_read(shared: Gateway, server: ModelServer, packing: str) -> None:
    point(shared, server, f"packed-{packing}", "fixed")
    raw = msgspec.json.encode(body("responses", "x" * 30_000))
    data = gzip.compress(raw) if packing == "gzip" else zlib.compress(raw)
    headers = {"Content-Encoding": packing, "Accept-Encoding": "zstd, br, gzip"}
    got = send(shared.port, PATHS["responses"], data, headers=headers)
    assert got.status == 200 and "content-encoding" not in got.headers
    (entry,) = server.entries(f"packed-{packing}")
    assert server.body(entry.number) == raw


def test_G15_an_upgrade_is_refused_with_426(shared: Gateway) -> None:
    for token in (TOKEN, "rwl_nobody"):
        got = send(shared.port, "/v1/responses", method="GET", token=token,
                   headers={"Connection": "Upgrade", "Upgrade": "websocket"})  # fmt: skip
        assert got.status == 426


@pytest.mark.parametrize(
    "header", [{"Authorization": f"Bearer {TOKEN}"}, {"x-api-key": TOKEN}, {"x-goog-api-key": TOKEN}, {"query": TOKEN}],
    ids=["bearer", "x-api-key", "x-goog-api-key", "query"],
)  # fmt: skip
def test_devflock_C1_keys_stay_on_their_side(shared: Gateway, server: ModelServer, header: dict[str, str]) -> None:
    lane = f"keys-{next(iter(header))}"
    point(shared, server, lane, "fixed")
    where = path("gemini")
    if "query" in header:
        where, header = f"{where}&key={header['query']}", {}
    # a program that shows its environment to the model, and one that sends the token in a place of its own
    text = f"GATEWAY_TOKEN={TOKEN}"
    got = send(shared.port, where, body("gemini", text), token="", headers={**header, "X-Mine": f"token {TOKEN}",
               **({} if header.get("Authorization") else {"Authorization": ""})})  # fmt: skip
    assert got.status == 200, got.data
    (entry,) = server.entries(lane)
    assert entry.canaries == () and entry.key == key_digest(KEY) and entry.auth == "ok"
    assert KEY.encode() not in got.data and KEY not in str(got.headers)


@pytest.mark.parametrize("auth", ["bearer", "x-api-key", "x-goog-api-key"])
def test_a_key_goes_where_its_provider_wants_it(shared: Gateway, server: ModelServer, auth: str) -> None:
    point(shared, server, f"auth-{auth}", "fixed", auth=auth)
    assert shared.send("anthropic").status == 200
    assert server.entries(f"auth-{auth}")[0].auth == "ok"


def test_no_file_but_the_settings_holds_a_secret(shared: Gateway) -> None:
    shared.settled(1)
    for folder, _, names in os.walk(shared.folder):
        for name in names:
            if Path(folder, name).is_socket():
                continue
            data = Path(folder, name).read_bytes()
            held = {word for word in (KEY, TOKEN) if word.encode() in data}
            assert not held or name == settings.FILE, name
            if name in (settings.FILE, "ledger.jsonl"):
                assert os.stat(os.path.join(folder, name)).st_mode & 0o077 == 0


def test_a_providers_error_shows_no_key(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple("http://127.0.0.1:9", hold=0.1)) as made:
        got = made.send("anthropic")
        assert got.status == 502 and got.json()["type"] == "error"
        wrong = "sk-another-key-which-is-wrong-0001"
        made.swap("up", Upstream(server.url("wrong", "fixed"), wrong))
        got = made.send("anthropic")
        assert got.status == 401 and wrong.encode() not in got.data and TOKEN.encode() not in got.data


def test_devflock_C2_an_unknown_token_and_a_dismissed_one_get_nothing(shared: Gateway, server: ModelServer) -> None:
    from ropewalk.gateway import host

    token = host.admit(shared.folder, settings.Lane("run/other/1", upstreams=("up",)))
    point(shared, server, "dismissed", "fixed")
    assert shared.send("anthropic", token=token).status == 200
    host.dismiss(shared.folder, token)
    asked = len(server.entries())
    for wire in WIRES:
        for given in (token, "", "rwl_wrong", KEY):
            got = shared.send(wire, token=given)
            assert got.status == 401 and got.headers["x-should-retry"] == "false"
    # a page that a browser shows has no token, and whoever has one administers nothing by it
    before = Path(shared.folder, settings.FILE).read_bytes()
    elsewhere = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"}
    for method, where in (("POST", "/_devflock/upstream"), ("PUT", "/settings"), ("POST", "/admin"), ("GET", "/stats")):
        assert (
            send(shared.port, where, {"base_url": "http://x"}, method=method, token="", headers=elsewhere).status == 401
        )
        assert send(shared.port, where, {"base_url": "http://x"}, method=method).status == 404
    assert Path(shared.folder, settings.FILE).read_bytes() == before
    assert len(server.entries()) == asked


def test_lists_of_models_and_counts_go_on_and_nothing_else_does(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "beside", "fixed")
    assert send(shared.port, "/v1/models", method="GET").json()["data"]
    assert send(shared.port, "/v1beta/models/gemini-2.5-flash", method="GET").status == 200
    assert send(shared.port, "/v1/messages/count_tokens?beta=true", body("anthropic")).json()["input_tokens"] > 0
    assert send(shared.port, "/v1beta/models/g:countTokens", body("gemini")).status == 200
    assert send(shared.port, "/", method="HEAD").status == 200
    asked = len(server.entries())
    for method, where in (
        ("POST", "/v1/messages/batches"), ("POST", "/v1/embeddings"), ("DELETE", "/v1/models/x"), ("GET", "/v1/files"),
        ("POST", "/v1/files%23/messages"), ("POST", "/v1/files%3Fx=/messages"), ("POST", "/v1/a/../files/messages"),
        ("POST", "/v1/%2e%2e/messages"), ("POST", "/v1/models"), ("PUT", "/v1/messages"), ("GET", "/v1/messages"),
        ("POST", "/v1//messages"),
    ):  # fmt: skip
        got = send(shared.port, where, body("anthropic") if method == "POST" else b"", method=method)
        assert got.status == 404, (method, where, got)
    assert len(server.entries()) == asked


def test_a_model_is_known_by_the_providers_name(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "names", "fixed", models={"gpt-5": "other-model", "gemini-2.5-flash": "flash-x"})
    for wire in ("chat", "gemini"):
        assert shared.send(wire).status == 200
    assert [e.model for e in server.entries("names")] == ["other-model", "flash-x"]


@pytest.mark.slow
def test_G17_a_request_of_64_mb_passes_and_one_more_byte_does_not(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "large", "fixed")
    frame = msgspec.json.encode(body("anthropic", ""))
    full = frame.replace(b'"content":""', b'"content":"' + b"x" * ((64 << 20) - len(frame)) + b'"')
    assert len(full) == 64 << 20
    assert send(shared.port, PATHS["anthropic"], full).status == 200
    assert server.entries("large")[-1].size == 64 << 20
    assert send(shared.port, PATHS["anthropic"], full + b" ").status == 413
