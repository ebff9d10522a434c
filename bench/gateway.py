"""The gateway against a direct connection: time to the first byte, streams at once, and memory.

The upstream is a process of its own that answers every request at once with a stream of Anthropic's events, so that
what is measured is the way and no model. Direct requests and those through the gateway take turns in one run.

first byte  one connection that stays, one request after another, with a body of 2 KB and of 200 KB
streams     32 at once, each 200 events at 100 a second, as a fast model writes; and as fast as they come
memory      of the gateway's process, after the runs
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import common

EVENTS, PACE, STREAMS = 200, 0.01, 32
KEY, TOKEN = "sk-bench-key", "rwl_bench-token"
WAYS = ("direct", "gateway")


def event(kind: str, data: dict[str, object]) -> bytes:
    """Gives an event as a chunk of HTTP."""
    text = f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = event("message_start", {"message": {"id": "msg_1", "usage": {"input_tokens": 9, "output_tokens": 1}}})
DELTA = event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "some words of a model"}})
LAST = event("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": EVENTS}})
LAST += event("message_stop", {}) + b"0\r\n\r\n"


async def upstream() -> None:
    """Answers requests for ever: the path says how many events, and how many seconds lie between two."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                _, events, pace, _ = head.split(b" ", 2)[1].split(b"/", 3)
                length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:")
                await reader.readexactly(length)
                writer.write(HEAD + FIRST)
                begun = time.monotonic()
                for number in range(int(events)):
                    if wait := float(pace):
                        await asyncio.sleep(max(0.0, begun + wait * (number + 1) - time.monotonic()))
                    writer.write(DELTA)
                    await writer.drain()
                writer.write(LAST)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Client:
    """Is a connection that stays."""

    def __init__(self, port: int, path: str, size: int) -> None:
        self.port = port
        body = json.dumps({"model": "claude-x", "max_tokens": 9, "stream": True,
                           "messages": [{"role": "user", "content": "x" * size}]}).encode()  # fmt: skip
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nx-api-key: {TOKEN}\r\nContent-Type: application/json\r\n"
        self.request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def __aenter__(self) -> Client:
        """Connects."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes."""
        self.writer.close()

    async def ask(self) -> tuple[float, int]:
        """Gives the seconds to the first byte of the answer's first event, and the answer's size."""
        begun = time.perf_counter()
        self.writer.write(self.request)
        data = b""
        while b"message_start" not in data:
            data += await self.reader.read(1 << 16)
            assert data.startswith(b"HTTP/1.1 200"), data[:200]
        first, size, tail = time.perf_counter() - begun, len(data), data[-16:]
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await self.reader.read(1 << 16)
            assert data, "the answer broke off"
            size, tail = size + len(data), (tail + data)[-16:]
        return first, size


async def first_byte(ports: dict[str, int], count: int, size: int) -> dict[str, float]:
    """Gives the median time to the first byte for each way, in ms."""
    paths = {"direct": "/0/0/v1/messages", "gateway": "/v1/messages"}
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    async with (
        Client(ports["direct"], paths["direct"], size) as one,
        Client(ports["gateway"], paths["gateway"], size) as two,
    ):
        for _ in range(20):
            await one.ask()
            await two.ask()
        for _ in range(count):
            for way, client in (("direct", one), ("gateway", two)):
                found[way].append((await client.ask())[0] * 1000)
    return {way: common.median(times) for way, times in found.items()}


async def streams(port: int, path: str, count: int) -> float:
    """Gives the seconds that so many streams at once take to their ends."""

    async def one() -> None:
        async with Client(port, path, 2000) as client:
            await client.ask()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - begun


def resident(pid: int) -> float:
    """Gives a process's memory in MB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS"))


def point(folder: Path, port: int, events: int, pace: float) -> None:
    """Leads the gateway's lane to an upstream that answers so."""
    from ropewalk.gateway import settings

    up = settings.Upstream(f"http://127.0.0.1:{port}/{events}/{pace:g}", KEY, slots=1000)
    lane = settings.Lane("bench/1", "bench", upstreams=("up",), requests=1_000_000)
    settings.write(str(folder), settings.Settings({"up": up}, {TOKEN: lane}))


def measured(at: Path, rounds: int, count: int) -> dict[str, object]:
    """Gives all figures."""
    server = subprocess.Popen([sys.executable, __file__, "--upstream"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    there = int(server.stdout.readline())
    point(at, there, 0, 0)
    words = [sys.executable, "-m", "ropewalk.gateway.process", str(at)]
    gate = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=common.environment())
    try:
        assert gate.stdout is not None
        ports = {"direct": there, "gateway": json.loads(gate.stdout.readline())["port"]}
        figures: dict[str, object] = {"memory_start_mb": resident(gate.pid)}
        for name, size in (("small", 2000), ("large", 200_000)):
            figures[f"first_{name}_ms"] = asyncio.run(first_byte(ports, count, size))
        for name, events, pace in (("paced", EVENTS, PACE), ("flat_out", EVENTS * 5, 0.0)):
            point(at, there, events, pace)
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way in WAYS:
                    path = f"/{events}/{pace:g}/v1/messages" if way == "direct" else "/v1/messages"
                    seconds[way].append(asyncio.run(streams(ports[way], path, STREAMS)))
            made = STREAMS * events
            figures[f"streams_{name}"] = {way: made / common.median(times) for way, times in seconds.items()}
        figures["memory_end_mb"] = resident(gate.pid)
        return figures
    finally:
        for child in (gate, server):
            child.terminate()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def rows(figures: dict[str, object]) -> Sequence[Sequence[object]]:
    """Gives the rows of the table."""
    found: list[Sequence[object]] = []
    for name, value in figures.items():
        if isinstance(value, dict):
            direct, gateway = value["direct"], value["gateway"]
            other = gateway - direct if name.endswith("_ms") else f"{100 * gateway / direct:.0f} %"
            found.append((name, direct, gateway, other))
        else:
            found.append((name, "", value, ""))
    return found


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--upstream", action="store_true", help="be the upstream, for ever")
    asked = parser.parse_args()
    if asked.upstream:
        asyncio.run(upstream())
        return 0
    with common.folder() as at:
        figures = measured(at, 1 if asked.quick else 5, 50 if asked.quick else 400)
    common.table("direct and through the gateway", ("what", "direct", "gateway", "added, or of direct"), rows(figures))
    common.finish("gateway", figures, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
