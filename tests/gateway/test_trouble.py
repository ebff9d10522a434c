"""Providers in trouble: tries, pauses, slots, the breaker, fallbacks, silence, and answers that break off."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.gateway.kit import KEY, PATHS, TOKEN, Gateway, body, connection, gateway, simple, until

from ropewalk.gateway import host, settings
from ropewalk.gateway.ledger import unsettled
from ropewalk.gateway.settings import Lane, Upstream
from ropewalk.testing.model_server import ModelServer

WIRES = sorted(PATHS)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[Gateway]:
    server.add("slow", [{"text": "word " * 100, "pace": 0.05}])
    server.add("late", [{"text": "late", "sleep": 1.0}])
    settings = simple(server.url("lane", "text"), hold=3.0, first_byte=1.5, between=1.0, requests=100_000)
    with gateway(tmp_path_factory.mktemp("trouble") / "gw", settings) as made:
        yield made


def point(made: Gateway, server: ModelServer, lane: str, scenario: str, **more: object) -> None:
    # an account of its own: what one test leaves is not another's
    made.swap("up", Upstream(server.url(lane, scenario), KEY, account=lane, **more))  # type: ignore[arg-type]


def head(wire: str, size: int) -> bytes:
    """Gives the head of a request as it goes over the wire."""
    return f"POST {PATHS[wire]} HTTP/1.1\r\nHost: x\r\nx-api-key: {TOKEN}\r\nContent-Length: {size}\r\n\r\n".encode()


@contextmanager
def raw(answer: bytes, then: str = "close") -> Iterator[str]:
    """Gives the address of a server that answers every connection with these bytes, and then closes or waits."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while True:
            try:
                made, _ = listening.accept()
            except OSError:
                return
            made.recv(1 << 16)
            made.sendall(answer)
            if then == "wait":
                ended.wait(30)
                made.close()
                continue
            made.shutdown(socket.SHUT_WR)
            while made.recv(1 << 16):
                pass  # what is unread when it closes would be a reset
            made.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


@pytest.mark.parametrize("fault", ["e500x1", "e529x2", "e429ra1x1", "resetx1", "emptyx1", "e503x1"])
def test_what_fails_before_the_first_byte_is_tried_again(shared: Gateway, server: ModelServer, fault: str) -> None:
    lane = f"again-{fault}"
    point(shared, server, lane, f"text+{fault}")
    before = len(shared.entries())
    began = time.monotonic()
    got = shared.send("anthropic")
    assert (got.status, got.whole) == (200, True)
    if "429" in fault:
        assert time.monotonic() - began >= 1.0
    one = shared.settled(before + 1)[-1]
    assert one.outcome == "answered" and one.tries == len(server.entries(lane)) > 1 and not one.estimated


@pytest.mark.parametrize("fault", ["e400", "e401", "e403", "e404", "ctx"])
@pytest.mark.parametrize("wire", WIRES)
def test_what_no_try_mends_is_told_at_once(shared: Gateway, server: ModelServer, wire: str, fault: str) -> None:
    lane = f"final-{wire}-{fault}"
    point(shared, server, lane, f"text+{fault}")
    got = shared.send(wire)
    assert got.status == (400 if fault == "ctx" else int(fault[1:])) and "error" in got.json()
    assert len(server.entries(lane)) == 1
    one = shared.entries()[-1]
    assert one.outcome == "failed" and one.tokens is None and one.dollars is None


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_devflock_B21_an_answer_that_breaks_off_looks_broken(
    shared: Gateway, server: ModelServer, wire: str, stream: bool
) -> None:
    server.add("long", [{"text": "word " * 2000}])
    lane = f"cut-{wire}-{stream}"
    point(shared, server, lane, "long+trunc")
    before = len(shared.entries())
    got = shared.send(wire, stream=stream)
    assert got.status == 200 and not got.whole and got.data
    assert len(server.entries(lane)) == 1  # something was told: it is not tried again
    one = shared.settled(before + 1)[-1]
    assert (one.outcome, one.estimated, one.mark) == ("cut", True, "≈")
    assert one.tokens is not None and one.tokens.output > 100


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_within_a_stream_is_passed_and_counted(shared: Gateway, server: ModelServer, wire: str) -> None:
    server.add("long", [{"text": "word " * 2000}])
    point(shared, server, f"sse-{wire}", "long+sseerr")
    before = len(shared.entries())
    got = shared.send(wire)
    assert got.whole and b"scripted error" in got.data
    one = shared.settled(before + 1)[-1]
    assert one.outcome == "cut" and one.estimated and "scripted" in one.error


def test_devflock_B21_silence_has_bounds(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "hang", "text+hang")
    before = len(shared.entries())
    began = time.monotonic()
    got = shared.send("anthropic")
    assert got.status == 502 and 1.4 < time.monotonic() - began < 5
    one = shared.settled(before + 1)[-1]
    # the provider may be at work on it: estimated, and not sent a second time
    assert len(server.entries("hang")) == 1 and one.outcome == "failed" and one.estimated and one.tokens is not None
    point(shared, server, "stall", "text+stall")
    began = time.monotonic()
    got = shared.send("anthropic")
    assert got.status == 200 and not got.whole and 0.9 < time.monotonic() - began < 5
    assert shared.settled(before + 2)[-1].outcome == "cut"


def test_G6_L20_devflock_B21_always_429_is_held_a_while_and_then_told_with_retry_after(
    shared: Gateway, server: ModelServer
) -> None:
    point(shared, server, "always", "always429")
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: shared.send(WIRES[n % 4]), range(8)))
    assert time.monotonic() - began < 3 + 3
    assert all(got.status == 429 and int(got.headers["retry-after"]) >= 1 for got in found)
    assert shared.activity().limited > 0
    assert len(server.entries("always")) <= 8 * 4


def test_L19_sixteen_lanes_wait_as_one_was_asked_to_and_all_finish(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "storm", "text+e429ra2x1@0", slots=16)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: shared.send("anthropic", "the same"), range(16)))
    assert {got.status for got in found} == {200}
    entries = sorted(server.entries("storm"), key=lambda e: e.started)
    refused = [e.started for e in entries if e.status == 429]
    again = [e.started for e in entries if e.status == 200 and e.started > refused[0] + 1.0]
    assert not [at for at in again if at < refused[0] + 1.9], "somebody did not wait"
    assert len(entries) <= 16 * 2


def test_L21_a_pause_of_one_model_is_not_anothers(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "model", "text+e429ra3")
    assert shared.send("anthropic", body=body("anthropic", model="a")).status == 429
    assert shared.activity().until > time.time() + 0.5  # told to wait, so that it is no stall
    point(shared, server, "model", "text")
    began = time.monotonic()
    assert shared.send("anthropic", body=body("anthropic", model="b")).status == 200
    assert time.monotonic() - began < 1.0


def test_a_pause_that_one_was_asked_for_holds_for_all_of_the_account(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "pause", "text+e429ra2x1")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared.send, "anthropic", "one")
        until(lambda: len(server.entries("pause")) == 1 and server.entries("pause")[0].status == 429)
        point(shared, server, "pause", "text")
        began = time.monotonic()
        second = pool.submit(shared.send, "anthropic", "two")
        assert first.result().status == second.result().status == 200
    assert time.monotonic() - began > 1.0


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2065 07:28:00 GMT", "1e9", "3600"])
def test_a_long_pause_is_told_and_not_held(shared: Gateway, value: str) -> None:
    head = f"HTTP/1.1 429 Too Many\r\nRetry-After: {value}\r\nContent-Length: 2\r\n\r\n{{}}"
    with raw(head.encode()) as url:
        shared.swap("up", Upstream(url, KEY, account=f"long-{value}"))
        began = time.monotonic()
        assert shared.send("anthropic").status == 429
        got = shared.send("anthropic")
        assert got.status == 429 and int(got.headers["retry-after"]) > 3000
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("value", ["nan", "-5"])
def test_a_pause_that_is_none_does_no_harm(shared: Gateway, value: str) -> None:
    head = f"HTTP/1.1 429 Too Many\r\nRetry-After: {value}\r\nContent-Length: 2\r\n\r\n{{}}"
    with raw(head.encode()) as url:
        shared.swap("up", Upstream(url, KEY, account=f"odd-{value}"))
        got = shared.send("anthropic")
        assert got.status == 429


def test_slots_bound_what_is_open_at_once_and_grow_by_a_swap(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "slots", "late", slots=2)
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(shared.send, "anthropic", f"n{n}") for n in range(6)]
        until(lambda: server.counts().get("slots") is not None and server.counts()["slots"].open == 2)
        assert len(server.entries("slots")) == 2
        point(shared, server, "slots", "late", slots=6)
        assert shared.send("chat").status == 200  # with the settings, the new slots are there
        assert [job.result().status for job in jobs] == [200] * 6
    began = sorted(e.started for e in server.entries("slots"))
    assert began[5] - began[0] < 1.9


def test_G6_without_a_slot_in_time_it_is_429(shared: Gateway, server: ModelServer) -> None:
    server.add("endless", [{"text": "word " * 1000, "pace": 0.1}])
    point(shared, server, "busy", "endless", slots=1)
    held = connection(shared.port)
    held.request("POST", PATHS["chat"], b'{"stream":true,"messages":[]}', {"Authorization": f"Bearer {TOKEN}"})
    until(lambda: len(server.entries("busy")) == 1)
    began = time.monotonic()
    got = shared.send("anthropic")
    assert got.status == 429 and "retry-after" in got.headers and 2 < time.monotonic() - began < 6
    held.close()
    # whoever hangs up gives the slot back
    point(shared, server, "busy", "text", slots=1)
    assert shared.send("anthropic").status == 200


def test_devflock_B21_a_hang_up_at_every_stage_leaves_nothing_behind(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "leave", "slow", slots=1)
    before = len(shared.entries())

    def begin(count: int) -> list[object]:
        found = []
        for _ in range(count):
            made = connection(shared.port)
            made.request("POST", PATHS["chat"], b'{"stream":true,"messages":[]}', {"x-api-key": TOKEN})
            found.append(made)
        return found

    active, *queued = begin(4)
    until(lambda: shared.activity().open == 4 and len(server.entries("leave")) == 1)
    for one in queued:
        one.close()  # type: ignore[attr-defined]
    until(lambda: shared.activity().open == 1)
    assert len(server.entries("leave")) == 1
    active.close()  # type: ignore[attr-defined]
    until(lambda: shared.activity().open == 0)
    half = socket.create_connection(("127.0.0.1", shared.port))
    half.sendall(
        f"POST {PATHS['chat']} HTTP/1.1\r\nHost: x\r\nx-api-key: {TOKEN}\r\nContent-Length: 900\r\n\r\n{{".encode()
    )
    half.close()
    mine = shared.settled(before + 4)[before:]
    assert [one.outcome for one in mine] == ["cancelled"] * 4
    assert sorted(one.tokens is None for one in mine) == [False, True, True, True]  # what was never sent costs nothing
    assert not unsettled(shared.folder)
    point(shared, server, "leave", "text", slots=1)
    for _ in range(6):  # hang-ups are not the provider's fault: no breaker
        assert shared.send("chat").status == 200


def test_a_program_that_reads_to_the_end_and_leaves_is_charged_exactly(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "reader", "text")
    before = len(shared.entries())
    for _ in range(20):
        made = socket.create_connection(("127.0.0.1", shared.port))
        data = b'{"stream":true,"max_tokens":9,"messages":[]}'
        made.sendall(head("anthropic", len(data)) + data)
        got = b""
        while b"message_stop" not in got.replace(b"event: message_stop", b""):
            part = made.recv(65536)
            assert part
            got += part
        made.close()  # without the end of the HTTP answer
    mine = shared.settled(before + 20)[before:]
    assert all(one.outcome == "answered" and not one.estimated for one in mine)


def test_devflock_B21_a_program_that_reads_nothing_is_let_go(shared: Gateway, server: ModelServer) -> None:
    server.add("huge", {"steps": [{"text": "x" * 30_000_000}], "piece": 100_000})
    point(shared, server, "idle", "huge")
    before = len(shared.entries())
    made = socket.create_connection(("127.0.0.1", shared.port))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    data = b'{"stream":true,"messages":[]}'
    made.sendall(head("chat", len(data)) + data)
    one = shared.settled(before + 1)[-1]
    assert one.outcome == "cancelled" and one.estimated
    made.close()


def test_the_breaker_opens_and_lets_one_through(shared: Gateway, server: ModelServer) -> None:
    up = Upstream(server.url("broken", "text+e500"), KEY, account="breaker")
    shared.put(simple("", upstreams={"up": up}, hold=0.0, requests=1000))
    assert [shared.send("anthropic").status for _ in range(5)] == [500] * 5
    asked = len(server.entries("broken"))
    got = shared.send("anthropic")
    assert got.status == 503 and int(got.headers["retry-after"]) >= 1
    assert len(server.entries("broken")) == asked == 5


def test_fallbacks_are_tried_in_order(tmp_path: Path, server: ModelServer) -> None:
    ups = {
        "dead": Upstream("http://127.0.0.1:9", KEY),
        "ill": Upstream(server.url("ill", "text+e503"), KEY),
        "locked": Upstream(server.url("locked", "text"), "sk-not-the-key-it-wants"),
        "other": Upstream(server.url("other", "text"), KEY, wires=("gemini",)),
        "good": Upstream(server.url("good", "text"), KEY),
    }
    with gateway(tmp_path / "gw", simple("", upstreams=ups, hold=0.1)) as made:
        assert made.send("anthropic").status == 200
        assert [(e.upstream, e.outcome) for e in made.settled(4)] == [
            ("dead", "failed"), ("ill", "failed"), ("locked", "failed"), ("good", "answered")
        ]  # fmt: skip
        assert not server.entries("other")
        made.swap("ill", Upstream(server.url("wrong", "text+ctx"), KEY))
        assert made.send("anthropic").status == 400  # the request is wrong, and would be so elsewhere
        assert len(server.entries("good")) == 1


def test_an_upstream_is_swapped_in_mid_run(shared: Gateway, server: ModelServer) -> None:
    point(shared, server, "before", "slow")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(shared.send, "chat")
        until(lambda: len(server.entries("before")) == 1)
        point(shared, server, "after", "text")
        assert shared.send("chat").status == 200 and len(server.entries("after")) == 1
        got = first.result()
        assert got.status == 200 and got.whole  # it goes on where it is


def test_a_redirect_is_not_followed_with_the_key(shared: Gateway, server: ModelServer) -> None:
    there = server.url("redirected", "text") + PATHS["anthropic"]
    with raw(f"HTTP/1.1 307 Elsewhere\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n".encode()) as url:
        shared.swap("up", Upstream(url, KEY, account="redirect", auth="x-api-key"))
        assert shared.send("anthropic").status == 502
    assert not server.entries("redirected")


@pytest.mark.parametrize("ends", [b"\n\n", b"\r\n\r\n"], ids=["lf", "crlf"])
def test_a_stream_with_either_line_end_passes_at_once(shared: Gateway, ends: bytes) -> None:
    first = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"hi"}}]}' + ends
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9000\r\n\r\n"
    with raw(head + first, "wait") as url:
        shared.swap("up", Upstream(url, KEY, account=f"ends{len(ends)}"))
        made = connection(shared.port)
        made.request("POST", PATHS["chat"], b'{"stream":true,"messages":[]}', {"x-api-key": TOKEN})
        got = made.getresponse()
        assert got.read1(4096) == first
        made.close()


def test_devflock_B21_a_lanes_requests_end_and_opencodes_loop_with_them(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple(server.url("loop", "text+empty"), requests=10, hold=0.0)) as made:
        found = [made.send("chat").status for _ in range(25)]
        assert found[10:] == [400] * 15 and 400 not in found[:10]
        assert len(server.entries("loop")) <= 10
        got = made.send("chat")
        assert got.headers["x-should-retry"] == "false" and "10 requests" in got.json()["error"]["message"]
        assert made.activity().requests == 10


@pytest.mark.parametrize("fault", ["e503", "always429", "dead"])
def test_devflock_B20_a_swap_counts_for_the_next_try_of_a_request_that_is_under_way(
    shared: Gateway, server: ModelServer, fault: str
) -> None:
    """Its endpoint is in trouble, and a better one is put in its place before the request is given up."""
    ill = "always429" if fault == "always429" else f"text+{fault}"
    url = "http://127.0.0.1:9" if fault == "dead" else server.url(f"ill-{fault}", ill)
    shared.put(simple("", upstreams={"up": Upstream(url, KEY)}, hold=20.0, requests=100_000))
    before = len(shared.entries())
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(shared.send, "anthropic")
        until(lambda: shared.activity().open == 1 and (fault == "dead" or bool(server.entries(f"ill-{fault}"))))
        shared.swap("up", Upstream(server.url(f"well-{fault}", "text"), KEY))
        assert job.result().status == 200
    assert [e.status for e in server.entries(f"well-{fault}")] == [200]
    assert [e.outcome for e in shared.settled(before + 2)[before:]] == ["failed", "answered"]


def test_devflock_B20_an_endpoint_in_anothers_place_has_not_its_troubles(shared: Gateway, server: ModelServer) -> None:
    """The breaker of the one before stays behind, though the name is the same."""
    shared.put(simple(server.url("gone", "text+e500"), hold=0.0, requests=100_000))
    assert [shared.send("anthropic").status for _ in range(6)] == [500] * 5 + [503]
    shared.swap("up", Upstream(server.url("here", "text"), KEY))
    assert shared.send("anthropic").status == 200


def test_devflock_A5_a_swap_holds_for_lanes_to_come_until_the_user_says_otherwise(tmp_path: Path) -> None:
    folder = str(tmp_path)
    old, new, edited = (Upstream(f"http://127.0.0.1:{port}", KEY) for port in (1, 2, 3))
    host.admit(folder, Lane("r/one/1", upstreams=("up",)), {"up": old})
    host.swap(folder, "up", new)
    host.admit(folder, Lane("r/two/1", upstreams=("up",)), {"up": old})
    assert settings.read(folder).upstreams == {"up": new}
    host.swap(folder, "up", old)
    host.admit(folder, Lane("r/three/1", upstreams=("up",)), {"up": old})
    assert settings.read(folder).upstreams == {"up": old} and not settings.read(folder).swapped
    host.swap(folder, "up", new)
    host.admit(folder, Lane("r/four/1", upstreams=("up",)), {"up": edited})
    assert settings.read(folder).upstreams == {"up": edited} and not settings.read(folder).swapped


def test_devflock_B20_an_encoded_path_and_repeated_headers_go_on_as_they_came(shared: Gateway) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    shared.swap("up", Upstream(f"http://127.0.0.1:{listening.getsockname()[1]}", KEY, account="heads"))
    mine = socket.create_connection(("127.0.0.1", shared.port))
    mine.sendall(
        f"POST /v1beta/models/a%2Fb%3Ac:generateContent?x=%26&x=2 HTTP/1.1\r\nHost: x\r\nx-goog-api-key: {TOKEN}\r\n"
        "X-Flag: one\r\nx-flag: two\r\nContent-Length: 2\r\n\r\n{}".encode()
    )
    made, _ = listening.accept()
    got = b""
    while not got.endswith(b"{}"):
        got += made.recv(1 << 16)
    lines = got.decode().split("\r\n")
    assert lines[0] == "POST /v1beta/models/a%2Fb%3Ac:generateContent?x=%26&x=2 HTTP/1.1"
    assert [line for line in lines if line.lower().startswith("x-flag:")] == ["X-Flag: one, two"]
    for one in (made, mine, listening):
        one.close()
