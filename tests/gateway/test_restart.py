"""A gateway that dies and starts again at the same socket, that is told to end, and that gets what it can't use."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.gateway.kit import KEY, PATHS, TOKEN, Answer, Gateway, body, gateway, send, simple, until

from ropewalk.gateway import budget, host, ledger, settings
from ropewalk.gateway.budget import Budget, Cap, Spent
from ropewalk.gateway.ledger import Entry, Ledger, Open
from ropewalk.gateway.process import TAKEN, read_address
from ropewalk.gateway.settings import Lane, Upstream
from ropewalk.gateway.tokens import Tokens
from ropewalk.testing.model_server import ModelServer


@pytest.fixture(autouse=True)
def scripts(server: ModelServer) -> None:
    server.add("slow", [{"text": "word " * 40, "pace": 0.03}])


def _retried(made: Gateway, text: str, ended: threading.Event) -> Answer | None:
    """Gives an answer that is whole, by the socket, as a bridge and a program try again; None at the end."""
    while not ended.is_set():
        try:
            got = send(made.socket, PATHS["chat"], body("chat", text), timeout=20)
        except OSError:
            time.sleep(0.02)
            continue
        if got.status == 200 and got.whole and got.data.endswith(b"[DONE]\n\n"):
            return got
    return None


def _killed(made: Gateway, server: ModelServer, lane: str, kills: int, seed: int) -> None:
    """Kills a gateway under load at random moments; what was in flight is charged once, the rest exactly."""
    dice, ended = random.Random(seed), threading.Event()
    killed_at = []
    with ThreadPoolExecutor(6) as pool:

        def run(worker: int) -> int:
            whole = 0
            for number in range(1000):
                if ended.is_set():
                    break
                whole += _retried(made, f"{worker}-{number}", ended) is not None
            return whole

        jobs = [pool.submit(run, worker) for worker in range(6)]
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.0, 0.5))
                killed_at.append(len(made.entries()))
                made.kill()
                made.start()
            time.sleep(0.3)
        finally:
            ended.set()
        whole = sum(job.result() for job in jobs)
    entries = made.settled(1)
    until(lambda: made.activity().open == 0)
    entries = made.entries()
    assert len({e.id for e in entries}) == len(entries)  # each once
    assert not ledger.unsettled(made.folder)
    answered = [e for e in entries if e.outcome == "answered"]
    assert len(answered) >= whole > 0
    lost = [e for e in entries if e.outcome == "lost"]
    assert all(e.estimated and e.mark == "≈" and e.dollars for e in lost)
    used = sum(((e.tokens or Tokens()) for e in entries), Tokens())
    assert made.activity().tokens.total == used.total
    assert made.activity().requests <= len(server.entries(lane)) + len(lost)
    # the next one counts the same from its files
    made.end()
    assert (
        ledger.unsettled(made.folder) == [] and sum((e.tokens or Tokens()).total for e in made.entries()) == used.total
    )


def test_G5_G25_killed_at_random_moments(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple(server.url("kill", "slow"), requests=100_000)) as made:
        _killed(made, server, "kill", 4, 1)


@pytest.mark.slow
def test_G5_G25_killed_at_many_random_moments(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple(server.url("kills", "slow"), requests=100_000)) as made:
        _killed(made, server, "kills", 40, 2)


def test_G25_what_was_open_when_it_died_is_charged_once(tmp_path: Path, server: ModelServer) -> None:
    folder = tmp_path / "gw"
    caps = {"run:run": Cap(tokens=8000)}
    with gateway(folder, simple(server.url("dead", "text"), caps=caps), started=False) as made:
        before = Ledger(str(folder))
        before.note(Entry("c" * 32, time.time(), "run/one/1", "run", "one", "test", "up", "gpt-5", "chat", 200,
                          "answered", Tokens(7), dollars=0.5))  # fmt: skip
        before.note(Open("a" * 32, time.time(), "run/one/1", "run", "one", "test", "up", "gpt-5", "chat",
                         Tokens(3000, output=2000), 0.25))  # fmt: skip
        before.note(Open("b" * 32, time.time(), "run/one/1", "run", "one", "test", "up", "unknown", "chat", Tokens(1)))
        before.close()
        with open(before.path, "ab") as file:
            file.write(b'{"id":"torn')  # a power loss
        # settled, but killed before that was shown
        shown = ledger.Activities(str(folder))
        shown.of("run/one/1").open = 2
        shown.show("run/one/1")
        for _ in range(2):
            made.start()
            seen = made.activity()
            assert (seen.tokens.total, seen.open, seen.cost.dollars, seen.cost.mark) == (5008, 0, 0.75, "*")
            made.kill()
        found = [(e.outcome, e.dollars, e.mark) for e in made.entries()]
        assert found == [("answered", 0.5, ""), ("lost", 0.25, "≈"), ("lost", None, "*")]
        made.start()
        assert made.send("chat").status == 200  # the line after the torn one is whole
        assert len(made.settled(4)) == 4
        host.cap(made.folder, {"run:run": Cap(tokens=5001)})
        assert made.send("chat").status == 400


def test_told_to_end_it_takes_no_more_and_lets_answers_end(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple(server.url("drain", "slow"))) as made, ThreadPoolExecutor(1) as pool:
        job = pool.submit(send, made.socket, PATHS["chat"], body("chat"))
        until(lambda: len(server.entries("drain")) == 1 and made.activity().byte > 0)
        assert made.end() == 0
        got = job.result()
        assert got.status == 200 and got.whole and got.data.endswith(b"[DONE]\n\n")
        assert made.entries()[-1].outcome == "answered"
        assert read_address(made.folder) is None
        assert made.log() == ""


def test_one_gateway_a_folder_and_ensure_finds_it(tmp_path: Path, server: ModelServer) -> None:
    folder = tmp_path / "gw"
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: host.ensure(str(folder)), range(6)))
    try:
        assert len(set(found)) == 1
        done = subprocess.run([sys.executable, "-m", "ropewalk.gateway.process", str(folder)], capture_output=True)
        assert done.returncode == TAKEN and read_address(str(folder)) == found[0]
    finally:
        os.kill(found[0].pid, signal.SIGTERM)
    until(lambda: read_address(str(folder)) is None)


def test_G5_a_gateway_that_was_killed_comes_back_at_its_port(tmp_path: Path) -> None:
    """Lanes that no mount holds were told the port; where another has it by then, it takes a free one."""
    folder = str(tmp_path / "gw")
    first = host.ensure(folder)
    assert not host.revive(folder)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: read_address(folder) is None)
    with ThreadPoolExecutor(4) as pool:
        started = list(pool.map(lambda _: host.revive(folder), range(4)))
    assert started.count(True) == 1
    second = host.ensure(folder)
    assert (second.port, second.socket) == (first.port, first.socket) and second.pid != first.pid
    os.kill(second.pid, signal.SIGKILL)
    until(lambda: read_address(folder) is None)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", first.port))
        other.listen()
        third = host.ensure(folder)
    assert third.port != first.port
    os.kill(third.pid, signal.SIGTERM)
    until(lambda: read_address(folder) is None)


def test_settings_that_are_damaged_or_gone_leave_those_before(tmp_path: Path, server: ModelServer) -> None:
    folder = tmp_path / "gw"
    with gateway(folder, simple(server.url("damaged", "text"))) as made:
        assert made.send("chat").status == 200
        path = folder / settings.FILE
        good = path.read_bytes()
        for bad in (b"", b"{", b"[" * 100_000, good[:-5], b'{"upstreams": 3}', b'{"unknown": 1}', b"\xff"):
            path.write_bytes(bad)
            assert made.send("chat").status == 200
        path.unlink()
        path.mkdir()
        assert made.send("chat").status == 200
        path.rmdir()
        assert made.send("chat").status == 200
        other = simple(server.url("repaired", "text"))
        made.put(other)
        assert made.send("chat").status == 200 and len(server.entries("repaired")) == 1
        assert made.log() == ""


@pytest.mark.parametrize("start", [b"", b"{", None])
def test_it_starts_with_settings_that_are_damaged_or_missing(tmp_path: Path, start: bytes | None) -> None:
    folder = tmp_path / "gw"
    folder.mkdir()
    if start is not None:
        (folder / settings.FILE).write_bytes(start)
    made = Gateway(folder).start()
    try:
        assert made.send("chat").status == 401
    finally:
        made.kill()


def test_odd_requests_are_answered_and_do_no_harm(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple(server.url("odd", "text"), first_byte=1.0)) as made:
        where = PATHS["chat"]
        for data in (b"", b"{", b"[]", b"3", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5000):
            got = send(made.port, where, data)
            assert got.status == 400 and got.headers["x-should-retry"] == "false", data[:20]
        for data in (
            b'{"model":3,"stream":"yes"}',
            b'{"messages":{"a":1},"model":null}',
            b'{"stream_options":[],"stream":1}',
        ):
            assert send(made.port, where, data).status in (200, 400)
        assert send(made.port, where, b"nonsense", headers={"Content-Encoding": "gzip"}).status == 400
        assert send(made.port, where, b"x", headers={"Content-Encoding": "zstd"}).status in (400, 415)
        assert send(made.port, where, b"{}", headers={"X-Large": "x" * 100_000}).status == 400
        for raw in (
            b"\x16\x03\x01\x02\x00",
            b"GET\r\n\r\n",
            b"POST / HTTP/9.9\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", made.port)) as one:
                one.settimeout(10)
                one.sendall(raw)
                one.shutdown(socket.SHUT_WR)
                assert b"HTTP/1" in one.recv(200) or raw
        # a request that never becomes whole is given up
        with socket.create_connection(("127.0.0.1", made.port)) as one:
            one.settimeout(10)
            head = f"POST {where} HTTP/1.1\r\nHost: x\r\nx-api-key: {TOKEN}\r\nContent-Length: 50\r\n\r\n{{"
            one.sendall(head.encode())
            assert b" 408 " in one.recv(200)
        assert made.send("chat").status == 200
        until(lambda: made.activity().open == 0)  # the last byte goes out before that is written
        log = made.log()
        assert not [word for word in (TOKEN, KEY, "Traceback") if word in log], log


def _memory(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) * 1024


def _requests(made: Gateway, count: int) -> None:
    import http.client

    data = msgspec.json.encode(body("chat", "x" * 20_000))

    def run(number: int) -> None:
        one = http.client.HTTPConnection("127.0.0.1", made.port, timeout=60)
        for _ in range(count // 4):
            one.request("POST", PATHS["chat"], data, {"x-api-key": TOKEN})
            assert one.getresponse().read()
        one.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


@pytest.mark.slow
def test_memory_is_bounded_over_2000_requests(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple(server.url("memory", "text"), requests=10_000)) as made:
        assert made.child is not None
        _requests(made, 400)
        before = _memory(made.child.pid)
        _requests(made, 2000)
        grown = _memory(made.child.pid) - before
        assert grown < 6 << 20, f"{grown} bytes"
        assert len(os.listdir(f"/proc/{made.child.pid}/task")) == 1  # no threads
        assert len(os.listdir(f"/proc/{made.child.pid}/fd")) < 40


def test_it_has_one_thread(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple(server.url("thread", "text"))) as made:
        assert made.child is not None and made.send("anthropic").status == 200
        assert len(os.listdir(f"/proc/{made.child.pid}/task")) == 1


def test_a_ledger_of_many_lines_is_read_at_the_start(tmp_path: Path, server: ModelServer) -> None:
    folder = tmp_path / "gw"
    with gateway(
        folder, simple(server.url("old", "text"), caps={"run:run": Cap(requests=5001)}), started=False
    ) as made:
        before = Ledger(str(folder))
        old = Entry("", 1e9, "run/one/1", "run", "one", "test", "up", "m", "chat", 200, "answered", Tokens(1))
        for number in range(5000):
            before.note(msgspec.structs.replace(old, id=f"{number:032x}"))
        before.close()
        made.start()
        assert [made.send("chat").status for _ in range(2)] == [200, 400]


def test_a_full_ledger_goes_on_in_a_new_file_and_no_sum_is_lost(tmp_path: Path) -> None:
    account, kept = Budget({"run:r": Cap(tokens=10**9)}), Ledger(str(tmp_path), largest=20_000)
    now = time.time()

    def note(number: int, lane: str) -> None:
        names = budget.names("r", "t", "up", now, lane)
        held = account.reserve(names, 100, None, 100)
        kept.note(Open(f"q{number}", now, lane, "r", "t", "h", "up", "m", "chat", Tokens(100, output=100)))
        if kept.is_full:
            kept.turn(account.totals(now))
        if number % 10:
            account.settle(held, Tokens(100, output=50), None)
            kept.note(Entry(f"q{number}", now, lane, "r", "t", "h", "up", "m", "chat", 200, "answered",
                            Tokens(100, output=50), mark="*"))  # fmt: skip
            if kept.is_full:
                kept.turn(account.totals(now))

    for number in range(1000):
        note(number, f"r/t{number % 7}/1")
    kept.close()
    sizes = [os.stat(tmp_path / name).st_size for name in (ledger.FILE, ledger.BEFORE)]
    assert max(sizes) < 20_000 + 50_000 and len(os.listdir(tmp_path)) == 2
    found = ledger.spent(str(tmp_path))
    assert len(ledger.unsettled(str(tmp_path))) == 100
    one = found.spent["run:r"]
    assert (one.requests, one.tokens.total, one.unpriced) == (900, 900 * 150, 900 * 150)
    assert (one.reserved_requests, one.reserved_tokens) == (100, 100 * 200)
    assert found.spent["lane:r/t3/1"].requests == account.spent["lane:r/t3/1"].requests
    # names that are not used any more are forgotten, those in force are not
    account.spent["lane:old"] = Spent(last=now - 40 * 86_400)
    account.spent["run:r"].last = 0.0
    assert "run:r" in account.totals(now) and "lane:old" not in account.totals(now)


def test_lanes_come_and_go_at_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "gw")
    with ThreadPoolExecutor(8) as pool:
        tokens = list(
            pool.map(lambda n: host.admit(folder, Lane(f"r/{n}/1"), {f"u{n}": Upstream("http://x")}), range(40))
        )
    assert set(settings.read(folder).lanes) == set(tokens) and len(set(tokens)) == 40
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda token: host.dismiss(folder, token), tokens[::2]))
    assert set(settings.read(folder).lanes) == set(tokens[1::2])
