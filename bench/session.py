"""A small MCP client over the pipes of `rw mcp`: one JSON object a line, one request at a time."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import common


class Session:
    """Is one server process and the talk with it."""

    def __init__(self, store: str, agent: str, *words: str) -> None:
        env = common.environment(ROPEWALK_STORE=store, ROPEWALK_AGENT=agent)
        self.child = subprocess.Popen(
            [*common.rw_command(), "mcp", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=store
        )
        self._next = 0
        self.sent = self.received = 0
        asked = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "ropewalk-bench", "version": "1"},
        }
        self.server = self.request("initialize", asked)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Gives the result of a request; `sent` and `received` say how many bytes it took."""
        self._next += 1
        self._write({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        assert self.child.stdout is not None
        while True:
            line = self.child.stdout.readline()
            if not line:
                raise SystemExit("rw mcp ended without an answer")
            reply = json.loads(line)
            if reply.get("id") == self._next:
                break
        self.received = len(line)
        if "error" in reply:
            raise SystemExit(f"{method}: {reply['error']}")
        result: dict[str, Any] = reply["result"]
        return result

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Gives the envelope that a tool answers."""
        envelope: dict[str, Any] = self.request("tools/call", {"name": tool, "arguments": arguments})[
            "structuredContent"
        ]
        return envelope

    def close(self) -> None:
        """Ends the server by closing its input."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(timeout=30)

    def _write(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.sent = len(data)
        assert self.child.stdin is not None
        self.child.stdin.write(data)
        self.child.stdin.flush()
