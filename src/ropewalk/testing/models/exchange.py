"""The connection side of one request: its body, parts of the answer, waiting, and cutting it off."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import uuid
import zlib
from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

_LIMIT = 64 << 20


class Exchange:
    """Is the connection side of one request: its body, parts of the answer, waiting, and cutting it off."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, stopping: asyncio.Event,
        transports: Mapping[tuple[str, int], asyncio.Transport],
    ) -> None:  # fmt: skip
        self._scope, self._receive, self._send = scope, receive, send
        self._stopping, self._transports = stopping, transports
        self._watch: asyncio.Task[None] | None = None

    async def body(self) -> bytes:
        """Gives the request's body, unpacked; what is over the bound is left out."""
        parts, size = [], 0
        async for part in Request(self._scope, self._receive).stream():
            size += len(part)
            if size <= _LIMIT:
                parts.append(part)
        self._watch = asyncio.create_task(self._until_gone())
        body, packing = b"".join(parts), dict(self._scope["headers"]).get(b"content-encoding", b"")
        try:
            if packing == b"gzip":
                return gzip.decompress(body)
            return zlib.decompress(body) if packing == b"deflate" else body
        except (OSError, EOFError, zlib.error):
            return body

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def gone(self) -> bool:
        """Says whether the client has left."""
        return self._watch is not None and self._watch.done()

    async def wait(self, seconds: float | None) -> None:
        """Waits for a time (nothing: for ever), at most until the client leaves or the server stops."""
        assert self._watch is not None
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({self._watch, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()

    async def begin(self, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Sends the head of an answer."""
        fields = {"request-id": f"req_{uuid.uuid4().hex[:16]}", "cache-control": "no-cache", **(headers or {})}
        if kind:
            fields["content-type"] = kind
        raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in fields.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def part(self, data: bytes) -> None:
        """Sends a part."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Ends the answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self.close()

    async def whole(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, kind: str = "application/json"
    ) -> None:
        """Sends an answer in one."""
        await self.begin(kind, status, {"content-length": str(len(body)), **(headers or {})})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.close()

    async def cut(self, *, reset: bool) -> None:
        """Cuts the connection, by a TCP reset or an end without an end."""
        transport = self._transports[tuple(self._scope["client"])]
        if reset:
            plain = transport.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
        assert self._watch is not None
        await self._watch

    def close(self) -> None:
        """Ends the watch for a client that leaves."""
        if self._watch is not None:
            self._watch.cancel()
