"""Rewrites: small changes to requests that strict servers want, each by name, and what is asked of every server."""

from __future__ import annotations

import re
from typing import Any

from ropewalk.gateway.tokens import Wire

NAMES = ("fold_system", "plain_fields", "text_content")
"""Are the rewrites: system messages folded into one at the head, unknown fields dropped, text parts joined to text."""

_CHAT = frozenset({
    "model", "messages", "tools", "tool_choice", "temperature", "top_p", "max_tokens", "max_completion_tokens",
    "stream",
    "stream_options", "stop", "seed", "presence_penalty", "frequency_penalty", "n", "response_format", "logit_bias",
    "parallel_tool_calls", "user",
})  # fmt: skip


def apply(body: dict[str, Any], wire: Wire, names: tuple[str, ...]) -> dict[str, Any]:
    """Gives a request's body as an upstream with these rewrites wants it."""
    if "plain_fields" in names and wire == "chat":
        body = {key: value for key, value in body.items() if key in _CHAT}
    if "text_content" in names and wire == "chat":
        body = {**body, "messages": [_joined(one) for one in _listed(body)]}
    if "fold_system" in names and wire == "chat":
        body = {**body, "messages": _folded(_listed(body))}
    return body


def _joined(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or any(not isinstance(p, dict) or p.get("type") != "text" for p in content):
        return message
    return {**message, "content": "\n".join(str(p.get("text", "")) for p in content)}


def _listed(body: dict[str, Any]) -> list[Any]:
    messages = body.get("messages")
    return messages if isinstance(messages, list) else []


def _folded(messages: list[Any]) -> list[Any]:
    system = [m for m in messages if isinstance(m, dict) and m.get("role") in ("system", "developer")]
    rest = [m for m in messages if m not in system]
    if not system:
        return rest
    texts = [_joined(m).get("content") for m in system]
    return [{"role": "system", "content": "\n\n".join(t for t in texts if isinstance(t, str))}, *rest]


def ask_usage(body: dict[str, Any], wire: Wire) -> tuple[dict[str, Any], bool]:
    """Gives a body that asks for usage where the format leaves it out, and whether that was added by us (G13)."""
    if wire != "chat" or not body.get("stream"):
        return body, False
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if options.get("include_usage"):
        return body, False
    return {**body, "stream_options": {**options, "include_usage": True}}, True


class Strip:
    """Takes the chunk with the usage that we asked for out of a stream, and leaves every other byte as it is."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Gives what goes on to the program; an event that is not whole yet waits for its end."""
        parts = _END.split(self._rest + data)
        self._rest = parts.pop()
        events = zip(parts[::2], parts[1::2], strict=True)
        return b"".join(event + end for event, end in events if not _is_ours(event))

    def end(self) -> bytes:
        """Gives what is left."""
        rest, self._rest = self._rest, b""
        return b"" if _is_ours(rest) else rest


_END = re.compile(rb"(\r?\n\r?\n)")


def _is_ours(event: bytes) -> bool:
    squeezed = event.replace(b" ", b"")
    return b'"choices":[]' in squeezed and b'"usage":{' in squeezed
