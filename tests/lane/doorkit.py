"""What the tests of doors share: requests at both entrances of a lane's door, and a tool that tells who called it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from ropewalk.core.errors import NotFoundError
from ropewalk.lane import door
from ropewalk.lane.door import Answer, Given, Who


class Heard(NamedTuple):
    """Is an answer: its status, its headers, and its body, decoded where it is JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Unix(HTTPConnection):
    """Is a connection to a socket in a folder."""

    def __init__(self, path: Path, timeout: float = 30) -> None:
        super().__init__("127.0.0.1", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def connection(given: Given, *, port: bool = False) -> HTTPConnection:
    """Gives a connection to a lane's own entrance, or to the port."""
    if port:
        return HTTPConnection("127.0.0.1", given.port, timeout=30)
    return Unix(Path(given.folder) / door.SOCKET)


def send(
    given: Given, body: bytes | str, *, port: bool = False, method: str = "POST", path: str = "/mcp",
    token: str | None = None, headers: Mapping[str, str] | None = None,
) -> Heard:  # fmt: skip
    """Sends a body as it is and gives the answer; an empty token sends none."""
    made = connection(given, port=port)
    said = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    token = given.token if token is None else token
    said |= {"Authorization": f"Bearer {token}"} if token else {}
    try:
        made.request(method, path, body, {**said, **(headers or {})})
        answer = made.getresponse()
        data = answer.read()
        kind = answer.headers.get("content-type", "")
        return Heard(answer.status, dict(answer.headers), json.loads(data) if "json" in kind else data.decode())
    finally:
        made.close()


def ask(given: Given, method: str, params: Mapping[str, Any] | None = None, **how: Any) -> Any:
    """Gives the result of a request that has to have one."""
    heard = send(given, json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}), **how)
    assert heard.status == 200 and heard.body["id"] == 7, heard
    return heard.body["result"]


def call(given: Given, tool: str, arguments: Mapping[str, Any] | None = None, **how: Any) -> Any:
    """Calls a tool and gives what it says."""
    return ask(given, "tools/call", {"name": tool, "arguments": arguments or {}}, **how)


class Echo:
    """Is a tool that says who called it, and can fail or wait for the test."""

    name = "echo"
    description = "Says who called it"
    schema: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
    writes = False

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.most = self.now = 0
        self._guard = threading.Lock()

    def call(self, who: Who, arguments: Mapping[str, Any]) -> Answer:
        with self._guard:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            assert self.go.wait(30)
            if arguments.get("text") == "typed":
                raise NotFoundError("there is none", hint="look elsewhere")
            if arguments.get("text") == "fault":
                raise ZeroDivisionError("a fault of ours")
            return Answer(f"{who.lane}: {arguments.get('text', '')}", {"lane": who.lane})
        finally:
            with self._guard:
                self.now -= 1
