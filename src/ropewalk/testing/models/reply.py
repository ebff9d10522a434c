"""What the model answers, whatever the wire format: text, thinking, tool calls, and the tokens it cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ropewalk.testing.models.conversation import Json


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is what an answer cost in tokens: `input` is without the cache's, `output` is with the reasoning's."""

    input: int = 1000
    output: int = 50
    cache_read: int = 200
    cache_write: int = 0
    reasoning: int = 0

    @property
    def prompt(self) -> int:
        """Is all that was read: fresh, from the cache, and into the cache."""
        return self.input + self.cache_read + self.cache_write


class Call(msgspec.Struct, frozen=True):
    """Is a call of a tool; `arguments` is an object, or text for a tool of free text."""

    id: str
    name: str
    arguments: Json | str
    kind: str = "function"
    namespace: str = ""

    def encoded(self) -> str:
        """Gives the arguments as the wire has them, in text."""
        return self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()


class Reply(msgspec.Struct, frozen=True):
    """Is one answer; `usage` is nothing where the server keeps it to itself."""

    id: str
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage | None = None
    piece: int = 24
    """Is how many characters a delta of a stream carries."""


def pieces(text: str, size: int) -> Iterator[str]:
    """Yields a text in parts of a size, at least one."""
    yield text[:size]
    for start in range(size, len(text), size):
        yield text[start : start + size]


def event(data: Any, name: str = "") -> bytes:
    """Gives a server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def all_text(content: Any) -> str:
    """Gives the text of a content: text itself, or the text of its blocks."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        for key in ("text", "content", "output", "refusal"):
            if key in content:
                return all_text(content[key])
        return ""
    if isinstance(content, list):
        return "\n".join(text for one in content if (text := all_text(one)))
    return ""
