"""Anthropic Messages: what a request says, and an answer whole or as a stream."""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.testing.models.conversation import Asked, Json, Offered, Said
from ropewalk.testing.models.reply import Reply, Usage, all_text, event, pieces

NAME = "messages"
CALL_PREFIX = "toolu_"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
TOO_LONG = "prompt is too long: 210000 tokens > 200000 maximum"


def read(body: Json) -> Asked:
    """Gives what a request says."""
    said = [Said("system", all_text(body.get("system")))]
    for one in body.get("messages", []):
        role, content = str(one.get("role", "")), one.get("content", "")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role == "assistant":
            calls = tuple(str(b.get("id", "")) for b in blocks if b.get("type") == "tool_use")
            said.append(Said(role, all_text([b for b in blocks if b.get("type") == "text"]), calls))
            continue
        for block in blocks:
            kind = "tool" if block.get("type") == "tool_result" else role
            said.append(Said(kind, all_text(block)))
    choice = body.get("tool_choice") or {}
    form = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return Asked(
        wire=NAME,
        model=str(body.get("model", "")),
        said=tuple(said),
        tools=tuple(_tool(t) for t in body.get("tools") or []),
        streaming=bool(body.get("stream")),
        forced=str(choice["name"]) if choice.get("type") == "tool" else "" if choice.get("type") == "any" else None,
        silent_tools=choice.get("type") == "none",
        schema=form.get("schema") if isinstance(form, dict) else None,
    )


def _tool(tool: Json) -> Offered:
    known = "input_schema" in tool
    return Offered(str(tool.get("name", "")), tool.get("input_schema") or {}, "function" if known else "server")


def _usage(usage: Usage | None) -> Json:
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }


def _blocks(reply: Reply) -> list[Json]:
    made: list[Json] = []
    if reply.thinking:
        made.append({"type": "thinking", "thinking": reply.thinking, "signature": "c2NyaXB0ZWQ="})
    if reply.text:
        made.append({"type": "text", "text": reply.text})
    made += [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in reply.calls]
    return made


def whole(asked: Asked, reply: Reply) -> Json:
    """Gives an answer in one."""
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": _blocks(reply),
        "stop_reason": "tool_use" if reply.calls else "end_turn",
        "stop_sequence": None,
        "usage": _usage(reply.usage),
    }


def stream(asked: Asked, reply: Reply) -> Iterator[bytes]:
    """Yields an answer as events."""
    first = {**whole(asked, reply), "content": [], "stop_reason": None}
    first["usage"] = {**_usage(reply.usage), "output_tokens": min(1, reply.usage.output) if reply.usage else 0}
    yield event({"type": "message_start", "message": first}, "message_start")
    yield event({"type": "ping"}, "ping")
    calls = iter(reply.calls)
    for index, block in enumerate(_blocks(reply)):
        deltas: list[Json]
        if block["type"] == "thinking":
            start: Json = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": p} for p in pieces(reply.thinking, reply.piece)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": p} for p in pieces(reply.text, reply.piece)]
        else:
            start = {**block, "input": {}}
            encoded = next(calls).encoded()
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in ("", *pieces(encoded, reply.piece))]
        yield event({"type": "content_block_start", "index": index, "content_block": start}, "content_block_start")
        for delta in deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield event({"type": "content_block_stop", "index": index}, "content_block_stop")
    end = {"stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None}
    yield event({"type": "message_delta", "delta": end, "usage": _usage(reply.usage)}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def error(status: int, message: str) -> Json:
    """Gives the body of an error."""
    return {"type": "error", "error": {"type": _KINDS.get(status, "api_error"), "message": message}}


def stream_error(message: str) -> bytes:
    """Gives the event of an error within a stream."""
    return event({"type": "error", "error": {"type": "overloaded_error", "message": message}}, "error")
