"""MCP frames at byte level: cut anywhere, damaged anyhow, the server answers each line and goes on."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import pytest
from fuzz_world import World

CODES = {-32700, -32600, -32601, -32602, -32022}
ROUNDS = 1500 if os.environ.get("RWTEST_FULL") else 300


class Pipe:
    """Is a real `rw mcp` that takes bytes and gives bytes, never waited for without a bound."""

    def __init__(self, world: World) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ropewalk.cli.main", "mcp", "--profile", "full", "--as", "fuzz/one"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=world.cwd,
            env={**os.environ, "ROPEWALK_STORE": str(world.root)},
        )  # fmt: skip
        assert self.process.stdin and self.process.stdout
        self.into, self.out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._read = b""
        self._pings = 0

    def talk(self, data: bytes, cuts: list[int] | None = None) -> list[Any]:
        """Sends bytes in pieces, then a ping, and gives every answer that came before the ping's."""
        self._pings += 1
        mark = f"ping-{self._pings}"
        ping = json.dumps({"jsonrpc": "2.0", "id": mark, "method": "ping"}).encode()
        data += b"\n" + ping + b"\n"
        bounds = [0, *sorted(cuts or []), len(data)]
        view = memoryview(data)
        pieces = [view[a:b] for a, b in pairwise(bounds) if a < b]
        answers: list[Any] = []
        end = time.monotonic() + 120
        while True:
            ready_in, ready_out, _ = select.select([self.out], [self.into] if pieces else [], [], 5)
            assert time.monotonic() < end, f"no answer to the ping after {data[:200]!r}"
            if ready_out:
                sent = os.write(self.into, pieces[0][:60_000])
                pieces = [pieces[0][sent:], *pieces[1:]] if sent < len(pieces[0]) else pieces[1:]
            if ready_in:
                chunk = os.read(self.out, 1 << 16)
                assert chunk, (
                    f"the server ended after {data[:200]!r}: {self.process.stderr and self.process.stderr.read()!r}"
                )
                self._read += chunk
                *lines, self._read = self._read.split(b"\n")
                for line in lines:
                    found = json.loads(line.decode("utf-8"))
                    if isinstance(found, dict) and found.get("id") == mark:
                        assert found == {"jsonrpc": "2.0", "id": mark, "result": {}} and not self._read
                        return answers
                    answers.append(found)


@pytest.fixture(scope="module")
def pipe(world: World) -> Any:
    server = Pipe(world)
    yield server
    out, err = server.process.communicate(timeout=30)
    assert (server.process.returncode, out, err) == (0, b"", b"")


def checked(answer: Any) -> None:
    """Checks that an answer is one of JSON-RPC: a result or an error with a documented code."""
    for one in answer if isinstance(answer, list) else [answer]:
        assert one["jsonrpc"] == "2.0" and "id" in one and ("result" in one) != ("error" in one), one
        if "error" in one:
            assert one["error"]["code"] in CODES and one["error"]["message"], one


def call(number: object, **arguments: Any) -> dict[str, Any]:
    """Gives a call of a reading tool."""
    params = {"name": "resolve", "arguments": {"rev": "main", **arguments}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


DEEP = b"[" * 100_000
FRAMES: dict[str, tuple[bytes, int | None]] = {
    "nothing": (b"\n\n \n\r\n\t\n", 0),
    "no JSON": (b"hello", -32700),
    "half a message": (b'{"jsonrpc": "2.0", "id": 1, "method": "pi', -32700),
    "a byte that is no text": (b'{"jsonrpc": "2.0", "id": 1, "method": "ping\xff"}', None),
    "a NUL": (b"\0", -32700),
    "UTF-16": ('{"jsonrpc": "2.0"}'.encode("utf-16"), -32700),
    "a byte order mark": (b"\xef\xbb\xbf" + b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}', -32700),
    "deep nesting": (DEEP, -32700),
    "deep nesting in params": (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": ' + DEEP + b"}", None),
    "deep nesting in an id": (b'{"jsonrpc": "2.0", "id": ' + DEEP + b', "method": "ping"}', None),
    "deep nesting in arguments": (
        json.dumps(call(1)).encode().replace(b'"main"', b'{"a":' * 30_000 + b"1" + b"}" * 30_000), None),
    "an array of nothing": (b"[]", -32600),
    "a number": (b"7", -32600),
    "wrong version": (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
    "no version": (b'{"id": 1, "method": "ping"}', -32600),
    "no method": (b'{"jsonrpc": "2.0", "id": 1}', -32600),
    "method of another type": (b'{"jsonrpc": "2.0", "id": 1, "method": [1]}', -32600),
    "unknown method": (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/burn"}', -32601),
    "params that are no object": (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": 3}', -32602),
    "a response": (b'{"jsonrpc": "2.0", "id": 1, "result": {}}', 0),
    "a notification": (b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}', 0),
    "a key twice": (b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "ping", "method": "pong"}', None),
    "a number beyond all": (b'{"jsonrpc": "2.0", "id": 1e999, "method": "ping"}', None),
    "half a surrogate": (b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "ping"}', None),
    "five megabytes": (b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * (5 << 20) + b'"}', -32601),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_a_bad_frame_has_its_answer(name: str, pipe: Pipe, world: World) -> None:
    frame, wanted = FRAMES[name]
    before = world.state()
    answers = pipe.talk(frame)
    for one in answers:
        checked(one)
    if wanted == 0:
        assert answers == []
    elif wanted is not None:
        assert [a["error"]["code"] for a in answers] == [wanted]
    else:
        assert len(answers) == 1
    assert world.state() == before


def test_a_line_beyond_the_bound_is_dropped_and_the_next_one_read(pipe: Pipe) -> None:
    answers = pipe.talk(b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * (65 << 20) + b'"}')
    assert [a["error"]["code"] for a in answers] == [-32600]


def test_batches_and_ids_come_back_as_they_went(pipe: Pipe) -> None:
    ids = [1, 1, "1", "", None, -7, 1.5, 2**62, "é\u202e", "x" * 5000]
    (batch,) = pipe.talk(json.dumps([call(i) for i in ids]).encode())
    assert [one["id"] for one in batch] == ids and all(not one["result"].get("isError") for one in batch)
    (mixed,) = pipe.talk(json.dumps([call(1), 7, [], {}, {"jsonrpc": "2.0", "method": "note"}, call(2)]).encode())
    assert [one.get("id") for one in mixed] == [1, None, None, None, 2]
    checked(mixed)
    assert pipe.talk(json.dumps([{"jsonrpc": "2.0", "method": "note"}]).encode()) == []
    (big,) = pipe.talk(json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 1001).encode())
    assert big["error"]["code"] == -32600


def test_frames_that_are_cut_and_mixed_are_whole_again(pipe: Pipe) -> None:
    """Many calls at once, in pieces of any length, one behind the other: each has its answer, in order."""
    rng = random.Random(1)
    for _ in range(10):
        data = b"\n".join(json.dumps(call(n)).encode() for n in range(20))
        answers = pipe.talk(data, [rng.randrange(len(data)) for _ in range(rng.randrange(60))])
        assert [a["id"] for a in answers] == list(range(20))


def test_damaged_frames(pipe: Pipe, world: World) -> None:
    """Good messages with bytes changed, lost and doubled; what writes would be seen in the store."""
    rng = random.Random(int(os.environ.get("RWTEST_SEED", "1")))
    good = [json.dumps(m).encode() for m in (
        call(1), call("two", rev="main~1"), {"jsonrpc": "2.0", "id": 3, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "info"}}, [call(6), call(7)],
    )]  # fmt: skip
    before = world.state()
    for _ in range(ROUNDS):
        frame = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(frame) or 1)
            how = rng.randrange(4)
            if how == 0 and frame:
                frame[at] = rng.randrange(256)
            elif how == 1:
                del frame[at : at + rng.randrange(9)]
            elif how == 2:
                frame[at:at] = frame[at : at + rng.randrange(30)]
            else:
                frame[at:at] = rng.choice([b"\n", b"\0", b"\xff", b'"', b"{", b"[", b"\\u0000", b"\\ud83d", b"1e400"])
        for one in pipe.talk(bytes(frame), [rng.randrange(len(frame) + 1)]):
            checked(one)
    assert world.state() == before
