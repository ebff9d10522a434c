"""OpenAI Chat Completions: what a request says, and an answer whole or as a stream."""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.testing.models.conversation import Asked, Json, Offered, Said
from ropewalk.testing.models.reply import Call, Reply, Usage, all_text, event, pieces

NAME = "chat"
CALL_PREFIX = "call_"
TOO_LONG = (
    "This model's maximum context length is 200000 tokens. However, your messages resulted in 210000 tokens. "
    "Please reduce the length of the messages."
)
_KINDS = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "forbidden"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


def read(body: Json) -> Asked:
    """Gives what a request says."""
    said = []
    for one in body.get("messages", []):
        role, text = str(one.get("role", "")), all_text(one.get("content"))
        calls = tuple(str(c.get("id", "")) for c in one.get("tool_calls") or [])
        said.append(Said("system" if role == "developer" else role, text, calls if role == "assistant" else ()))
    choice = body.get("tool_choice")
    form = body.get("response_format") or {}
    return Asked(
        wire=NAME,
        model=str(body.get("model", "")),
        said=tuple(said),
        tools=tuple(_tool(t) for t in body.get("tools") or []),
        streaming=bool(body.get("stream")),
        forced=_forced(choice),
        silent_tools=choice == "none",
        schema=(form.get("json_schema") or {}).get("schema"),
        wants_usage=not body.get("stream") or bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _forced(choice: object) -> str | None:
    if choice == "required":
        return ""
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        inner = choice.get(choice["type"], choice)
        return str(inner.get("name", ""))
    return None


def _tool(tool: Json) -> Offered:
    kind = str(tool.get("type", "function"))
    inner = tool.get(kind) or {}
    return Offered(str(inner.get("name", kind)), inner.get("parameters") or {}, kind)


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _call(call: Call, arguments: str) -> Json:
    if call.kind == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def whole(asked: Asked, reply: Reply) -> Json:
    """Gives an answer in one."""
    message: Json = {"role": "assistant", "content": reply.text or None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = [_call(c, c.encoded()) for c in reply.calls]
    choice = {"index": 0, "message": message, "finish_reason": _reason(reply)}
    made: Json = {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": 1_767_225_600,
        "model": asked.model,
        "choices": [choice],
    }
    return made if reply.usage is None else {**made, "usage": _usage(reply.usage)}


def _reason(reply: Reply) -> str:
    return "tool_calls" if reply.calls else "stop"


def stream(asked: Asked, reply: Reply) -> Iterator[bytes]:
    """Yields an answer as events; usage comes last, and only when the request asks for it."""
    base = {k: v for k, v in whole(asked, reply).items() if k in ("id", "created", "model")}
    base["object"] = "chat.completion.chunk"

    def chunk(delta: Json, reason: str | None = None) -> bytes:
        return event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    yield chunk({"role": "assistant", "content": ""})
    if reply.thinking:
        for piece in pieces(reply.thinking, reply.piece):
            yield chunk({"reasoning_content": piece})
    if reply.text:
        for piece in pieces(reply.text, reply.piece):
            yield chunk({"content": piece})
    for index, call in enumerate(reply.calls):
        yield chunk({"tool_calls": [{"index": index, **_call(call, "")}]})
        field = "input" if call.kind == "custom" else "arguments"
        for piece in pieces(call.encoded(), reply.piece):
            yield chunk({"tool_calls": [{"index": index, call.kind: {field: piece}}]})
    yield chunk({}, _reason(reply))
    if asked.wants_usage and reply.usage is not None:
        yield event({**base, "choices": [], "usage": _usage(reply.usage)})
    yield b"data: [DONE]\n\n"


def error(status: int, message: str) -> Json:
    """Gives the body of an error."""
    kind, code = _KINDS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    if message == TOO_LONG:
        code = "context_length_exceeded"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def stream_error(message: str) -> bytes:
    """Gives the event of an error within a stream."""
    return event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})
