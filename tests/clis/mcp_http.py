"""A tool server over HTTP with one tool, as small as the protocol lets it be, that notes what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_ASKED: dict[str, list[str]] = {}


def asked(url: str) -> list[str]:
    """Gives the methods that a server was asked for, in their order."""
    return list(_ASKED.get(url, ()))


@contextmanager
def serving(tool: str) -> Iterator[str]:
    """Gives the URL of a server that offers one tool, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            _ASKED[url].append(str(body.get("method")))
            if self.headers.get("authorization") != "Bearer lane-token":
                return self._say(401, {"error": "the token is no lane's"})
            if "id" not in body:
                return self._say(202, None)
            self._say(200, {"jsonrpc": "2.0", "id": body["id"], "result": _answer(body, tool)})

        def do_GET(self) -> None:
            self._say(405, None)

        do_DELETE = do_GET

        def _say(self, status: int, what: Any) -> None:
            data = b"" if what is None else json.dumps(what).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    url = f"http://127.0.0.1:{server.server_port}/mcp"
    _ASKED[url] = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _answer(body: dict[str, Any], tool: str) -> dict[str, Any]:
    method, given = body.get("method"), body.get("params") or {}
    if method == "initialize":
        return {"protocolVersion": given.get("protocolVersion", "2025-06-18"), "capabilities": {"tools": {}},
                "serverInfo": {"name": "fleet", "version": "1"}}  # fmt: skip
    if method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return {"tools": [{"name": tool, "description": "Tells how the work goes.", "inputSchema": schema}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "noted"}]}
    return {}
