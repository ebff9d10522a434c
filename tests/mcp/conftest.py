"""A client that speaks to a real `rw mcp` line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Client:
    """Is a `rw mcp` process, its input and its output."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ropewalk.cli.main", "mcp", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
        )
        self.number = 0

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), f"the server ended: {self.process.stderr and self.process.stderr.read()!r}"
        return json.loads(line)

    def ask(self, line: bytes) -> Any:
        self.send(line)
        return self.receive()

    def request(self, method: str, params: Any = None) -> Any:
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method}
        if params is not None:
            message["params"] = params
        reply = self.ask(json.dumps(message).encode())
        assert reply["id"] == self.number
        return reply

    def call(self, tool: str, **arguments: Any) -> Any:
        """Gives the envelope of a call."""
        result = self.request("tools/call", {"name": tool, "arguments": arguments})["result"]
        envelope = result["structuredContent"]
        assert result.get("isError", False) == (not envelope["ok"])
        part = envelope["result"] if envelope["ok"] else envelope["error"]
        assert json.loads(result["content"][0]["text"]) == part
        return envelope

    def end(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


def cli(folder: Path, *words: str) -> Any:
    """Runs a command line as a process and gives its envelope."""
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.main", *words], cwd=folder, capture_output=True, check=False
    )
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Is a folder with a store whose main has one file."""
    assert cli(tmp_path, "init", "--branch", "main")["ok"]
    (tmp_path / "changes.json").write_text(json.dumps([{"path": "a.txt", "content": {"inline": "one\ntwo\nthree\n"}}]))
    made = cli(tmp_path, "commit", "-m", "first", "--changes", "changes.json", "--advance", "main", "--as", "test/one")
    assert made["ok"], made
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Client]]:
    """Starts servers in the folder and ends them."""
    clients: list[Client] = []

    def begin(*words: str) -> Client:
        clients.append(Client(folder, *words))
        return clients[-1]

    yield begin
    for client in clients:
        if client.process.poll() is None:
            client.process.kill()
        client.end()
