"""What the gateway's tests stand on: a real gateway process in front of the scripted model server, and requests."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ropewalk.gateway import host, ledger, settings
from ropewalk.gateway.ledger import Activity, Entry
from ropewalk.gateway.process import Address
from ropewalk.gateway.settings import Lane, Settings, Upstream
from ropewalk.gateway.tokens import Tokens
from ropewalk.testing.models.reply import Usage

TOKEN = "rwl_token-of-the-lane-0123456789"
KEY = "sk-the-real-key-of-the-provider-0123456789"
PATHS = {
    "anthropic": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-flash:generateContent",
}
STREAM = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"


def body(wire: str, text: str = "hello", *, stream: bool = True, **more: Any) -> dict[str, Any]:
    """Gives a request of a format."""
    said = [{"role": "user", "content": text}]
    made: dict[str, Any]
    if wire == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": text}]}], **more}
    if wire == "responses":
        made = {"model": "gpt-5", "input": said}
    elif wire == "chat":
        made = {"model": "gpt-5", "messages": said}
    else:
        made = {"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": said}
    return {**made, "stream": stream, **more}


def path(wire: str, *, stream: bool = True) -> str:
    """Gives the path of a format."""
    return STREAM if wire == "gemini" and stream else PATHS[wire]


class Answer(NamedTuple):
    """Is an answer: `whole` says whether it came to its end as HTTP has it."""

    status: int
    headers: dict[str, str]
    data: bytes
    whole: bool

    def json(self) -> Any:
        """Gives its body."""
        return msgspec.json.decode(self.data)


def connection(address: str | int, timeout: float = 60) -> http.client.HTTPConnection:
    """Gives a connection to a port on the loopback address, or to a socket."""
    if isinstance(address, int):
        return http.client.HTTPConnection("127.0.0.1", address, timeout=timeout)
    made = http.client.HTTPConnection("gateway", timeout=timeout)
    made.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.sock.settimeout(timeout)
    try:
        made.sock.connect(address)
    except OSError:
        made.close()
        raise
    return made


def send(
    address: str | int, where: str, data: object = b"", *, method: str = "POST", timeout: float = 60,
    headers: Mapping[str, str] | None = None, token: str = TOKEN,
) -> Answer:  # fmt: skip
    """Gives the answer to one request."""
    made = connection(address, timeout)
    try:
        raw = data if isinstance(data, bytes) else msgspec.json.encode(data)
        given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
        made.request(method, where, raw, given)
        got = made.getresponse()
        whole = True
        try:
            read = got.read()
        except http.client.IncompleteRead as cut:
            read, whole = cut.partial, False
        except (ConnectionResetError, BrokenPipeError):
            read, whole = b"", False
        return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, read, whole)
    finally:
        made.close()


class Gateway:
    """Is a gateway of its own process, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.child: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.socket = ""

    def put(self, made: Settings) -> None:
        """Puts settings in place."""
        settings.write(self.folder, made)

    def start(self) -> Gateway:
        """Starts it and waits until it listens."""
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "ropewalk.gateway.process", self.folder], stdout=subprocess.PIPE, stderr=log
            )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, self.log()
        address = msgspec.json.decode(line, type=Address)
        self.port, self.socket = address.port, address.socket
        return self

    def kill(self) -> None:
        """Kills it in the middle of what it does."""
        assert self.child is not None and self.child.stdout is not None
        self.child.kill()
        self.child.wait(30)
        self.child.stdout.close()
        self.child = None

    def end(self, seconds: float = 45) -> int:
        """Ends it and gives its exit code."""
        assert self.child is not None and self.child.stdout is not None
        self.child.send_signal(signal.SIGTERM)
        code = self.child.wait(seconds)
        self.child.stdout.close()
        self.child = None
        return code

    def log(self) -> str:
        """Gives what it wrote into its log."""
        return Path(self.folder, "log").read_text(encoding="utf-8")

    def entries(self) -> list[Entry]:
        """Gives the ledger."""
        return list(ledger.entries(self.folder))

    def settled(self, count: int) -> list[Entry]:
        """Gives the ledger once it has so many entries and nothing is open: the last byte goes out before the line."""
        until(lambda: len(self.entries()) >= count and not ledger.unsettled(self.folder))
        return self.entries()

    def activity(self, lane: str = "run/one/1") -> Activity:
        """Gives what a lane's traffic does."""
        found = ledger.read_activity(os.path.join(self.folder, "activity"), lane)
        return found or Activity()

    def send(self, wire: str, text: str = "hello", *, stream: bool = True, **how: Any) -> Answer:
        """Gives the answer to a request of a format."""
        made = how.pop("body", None) or body(wire, text, stream=stream)
        return send(self.port, path(wire, stream=stream), made, **how)

    def swap(self, name: str, upstream: Upstream) -> None:
        """Puts another upstream in the place of one."""
        host.swap(self.folder, name, upstream)


@contextmanager
def gateway(folder: Path, made: Settings, *, started: bool = True) -> Iterator[Gateway]:
    """Gives a gateway that runs with these settings; it is killed at the end."""
    folder.mkdir(exist_ok=True)
    found = Gateway(folder)
    found.put(made)
    try:
        yield found.start() if started else found
    finally:
        if found.child is not None:
            found.kill()


def simple(url: str, **more: Any) -> Settings:
    """Gives settings of one lane with one upstream, `up`."""
    ups = more.pop("upstreams", None) or {"up": Upstream(url, KEY)}
    lane = Lane("run/one/1", "run", "one", "test", tuple(ups), more.pop("requests", 400), more.pop("volatile", {}),
                more.pop("tape", None))  # fmt: skip
    return Settings(upstreams=ups, lanes={TOKEN: lane}, **more)


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not become so"
        time.sleep(0.01)


def counted(usage: Usage, *, reasoning: bool = True, written: bool = True) -> Tokens:
    """Gives the server's count as the gateway counts; formats that tell of no writes to the cache call them input."""
    given = usage.input if written else usage.input + usage.cache_write
    return Tokens(given, usage.cache_read, usage.cache_write if written else 0, usage.output,
                  usage.reasoning if reasoning else 0)  # fmt: skip
