"""What a path below `/<lane>/<scenario>/` asks for, and the wire format it speaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ropewalk.testing.models import anthropic, chat, gemini, responses
from ropewalk.testing.models.conversation import Asked, Json
from ropewalk.testing.models.reply import Reply

MODEL = "scripted-model"


class Wire(NamedTuple):
    """Is a wire format: how it is read and written."""

    name: str
    call_prefix: str
    too_long: str
    read: Callable[[Json], Asked]
    whole: Callable[[Asked, Reply], Json]
    stream: Callable[[Asked, Reply], Iterator[bytes]]
    error: Callable[[int, str], Json]
    stream_error: Callable[[str], bytes]


def _wire(module: Any) -> Wire:
    return Wire(
        module.NAME, module.CALL_PREFIX, module.TOO_LONG, module.read, module.whole, module.stream, module.error,
        module.stream_error,
    )  # fmt: skip


WIRES = {module.NAME: _wire(module) for module in (anthropic, chat, responses, gemini)}


class Route(NamedTuple):
    """Is what is asked for: `action` is answer, count, models, hello, or unknown; `model` where the path names it."""

    wire: Wire
    action: str
    model: str = ""
    streaming: bool = False


def route(method: str, path: str) -> Route:
    """Gives what a method and a path ask for."""
    path = path.strip("/")
    if method in ("HEAD", "OPTIONS"):
        return Route(WIRES["messages"], "hello")
    if method == "GET":
        if "models" in path.split("/"):
            return Route(
                WIRES["gemini" if path.startswith("v1beta") else "chat"], "models", path.partition("models/")[2]
            )
        return Route(WIRES["chat"], "hello" if path in ("", "api/hello") else "unknown")
    for tail, name, action in (
        ("messages", "messages", "answer"),
        ("messages/count_tokens", "messages", "count"),
        ("chat/completions", "chat", "answer"),
        ("responses", "responses", "answer"),
    ):
        if path == tail or path.endswith("/" + tail):
            return Route(WIRES[name], action)
    name, colon, verb = path.partition("models/")[2].partition(":")
    actions = {"generateContent": "answer", "streamGenerateContent": "answer", "countTokens": "count"}
    if colon and verb in actions:
        return Route(WIRES["gemini"], actions[verb], name, verb == "streamGenerateContent")
    return Route(WIRES["chat"], "unknown")


def models(one: str = "") -> Json:
    """Gives the list of models, or one of them, in a form that all the formats' clients read."""
    entry: Json = {"id": one or MODEL, "object": "model", "created": 1_767_225_600, "owned_by": "scripted"}
    entry |= {"type": "model", "display_name": "Scripted", "created_at": "2026-01-01T00:00:00Z"}
    entry |= {"name": f"models/{one or MODEL}", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536,
              "supportedGenerationMethods": ["generateContent", "countTokens"]}  # fmt: skip
    if one:
        return entry
    return {"object": "list", "data": [entry], "models": [entry], "has_more": False}
