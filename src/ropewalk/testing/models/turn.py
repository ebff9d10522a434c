"""One request being answered, or failed; the ledger knows before the last byte goes out."""

from __future__ import annotations

import time

import msgspec

from ropewalk.testing.models.conversation import Asked
from ropewalk.testing.models.exchange import Exchange
from ropewalk.testing.models.faults import Fault
from ropewalk.testing.models.ledger import Entry, Ledger
from ropewalk.testing.models.reply import Reply
from ropewalk.testing.models.wires import Wire


class Turn:
    """Is one request being answered, noted in the ledger before its last byte goes out."""

    def __init__(self, ledger: Ledger, entry: Entry, exchange: Exchange, wire: Wire) -> None:
        self.ledger, self.number, self.exchange, self.wire = ledger, entry.number, exchange, wire
        self._begun = time.monotonic()

    def note(self, outcome: str, status: int, **fields: object) -> None:
        """Notes how it ends."""
        seconds = round(time.monotonic() - self._begun, 6)
        self.ledger.change(self.number, outcome=outcome, status=status, seconds=seconds, **fields)

    async def refuse(self, outcome: str, status: int, message: str) -> None:
        """Answers with an error that has nothing to do with the script."""
        self.note(outcome, status)
        body = msgspec.json.encode(self.wire.error(status, message))
        await self.exchange.whole(status, body, {"x-should-retry": "false"})

    async def answer(self, asked: Asked, reply: Reply, pace: float) -> None:
        """Answers as the script says."""
        called = tuple(c.name for c in reply.calls)
        outcome = "no-tool" if "TOOL-NOT-OFFERED: " in reply.text and not called else "ok"
        told = reply.usage if asked.wants_usage else None
        good: dict[str, object] = {"usage": told, "charged": reply.usage, "message_id": reply.id, "called": called}
        if self.exchange.gone():
            self.note("left", 0, charged=reply.usage, left=True)
        elif not asked.streaming:
            self.note(outcome, 200, **good)
            await self.exchange.whole(200, msgspec.json.encode(self.wire.whole(asked, reply)))
        else:
            await self._stream(asked, reply, pace, outcome, good)

    async def _stream(self, asked: Asked, reply: Reply, pace: float, outcome: str, good: dict[str, object]) -> None:
        frames = list(self.wire.stream(asked, reply))
        await self.exchange.begin(_stream_type(asked))
        for number, frame in enumerate(frames):
            if self.exchange.gone():
                self.note("left", 200, charged=reply.usage, left=True)
                return
            if number == len(frames) - 1:
                self.note(outcome, 200, **good)
            await self.exchange.part(frame)
            if pace and number < len(frames) - 1:
                await self.exchange.wait(pace)
        await self.exchange.end()

    async def fail(self, falls: Fault, asked: Asked | None = None, reply: Reply | None = None) -> None:
        """Fails as a fault says."""
        if falls.status:
            message = self.wire.too_long if falls.name == "ctx" else falls.message
            headers = {} if falls.retry_after is None else {"retry-after": str(falls.retry_after)}
            self.note(falls.name, falls.status)
            await self.exchange.whole(
                falls.status, msgspec.json.encode(self.wire.error(falls.status, message)), headers
            )
        elif falls.name == "hang":
            self.note("open", 0)
            await self.exchange.wait(None)
            await self._let_go("hang", 0)
        elif falls.name == "reset":
            self.note("reset", 0)
            await self.exchange.cut(reset=True)
        elif falls.name == "empty":
            self.note("empty", 200)
            await self.exchange.whole(200, b"", kind="text/event-stream" if asked and asked.streaming else "")
        else:
            assert asked is not None and reply is not None
            await self._broken(falls.name, asked, reply)

    async def _let_go(self, name: str, status: int) -> None:
        """Notes the end of a silence, and cuts the connection where it is the server's."""
        left = self.exchange.gone()
        self.note(name, status, left=left)
        if not left:
            await self.exchange.cut(reset=False)

    async def _broken(self, name: str, asked: Asked, reply: Reply) -> None:
        """Sends an answer that begins well and ends badly."""
        if asked.streaming:
            frames, kind = list(self.wire.stream(asked, reply)), _stream_type(asked)
        else:
            body = msgspec.json.encode(self.wire.whole(asked, reply))
            frames, kind = [body[i : i + 64] for i in range(0, len(body), 64)], "application/json"
        if name == "sseerr" and not asked.streaming:
            self.note(name, 500)
            await self.exchange.whole(500, msgspec.json.encode(self.wire.error(500, "scripted error in the stream")))
            return
        await self.exchange.begin(kind)
        for frame in frames[:2] if name != "trunc" else frames[: max(1, len(frames) // 2)]:
            await self.exchange.part(frame)
        if name == "stall":
            self.note("open", 200, charged=reply.usage)
            await self.exchange.wait(None)
            await self._let_go("stall", 200)
            return
        self.note(name, 200, charged=reply.usage)
        if name == "trunc":
            rest = frames[max(1, len(frames) // 2)] if len(frames) > 1 else b""
            await self.exchange.part(rest[: len(rest) // 2])
            await self.exchange.cut(reset=False)
            return
        broken = b'event: broken\ndata: {"broken": [}\n\n' if asked.streaming else b'"broken": [}'
        await self.exchange.part(broken if name == "malformed" else self.wire.stream_error("scripted error"))
        await self.exchange.end()


def _stream_type(asked: Asked) -> str:
    return "application/json" if asked.array else "text/event-stream; charset=utf-8"
