"""Gemini generateContent and streamGenerateContent: what a request says, and an answer whole or as a stream."""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.testing.models.conversation import Asked, Json, Offered, Said
from ropewalk.testing.models.reply import Reply, Usage, all_text, event, pieces

NAME = "gemini"
CALL_PREFIX = "call_"
TOO_LONG = "The input token count (1210000) exceeds the maximum number of tokens allowed (1048576)."
_KINDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def read(body: Json) -> Asked:
    """Gives what a request says; the model, and whether to stream, stand in its address and not here."""
    system = body.get("systemInstruction") or body.get("system_instruction") or {}
    said = [Said("system", all_text(system.get("parts") if isinstance(system, dict) else system))]
    for number, one in enumerate(body.get("contents", [])):
        parts = one.get("parts") or []
        if one.get("role") == "model":
            calls = [p["functionCall"] for p in parts if "functionCall" in p]
            ids = tuple(str(c.get("id") or f"{number}.{i}") for i, c in enumerate(calls))
            spoken = all_text([p for p in parts if not p.get("thought")])
            said.append(Said("assistant", spoken, ids))
            continue
        for part in parts:
            if "functionResponse" in part:
                result = part["functionResponse"].get("response") or {}
                said.append(Said("tool", " ".join(str(v) for v in result.values())))
            else:
                said.append(Said("user", all_text(part)))
    config = body.get("generationConfig") or {}
    calling = ((body.get("toolConfig") or {}).get("functionCallingConfig")) or {}
    allowed = calling.get("allowedFunctionNames") or [""]
    return Asked(
        wire=NAME,
        model="",
        said=tuple(said),
        tools=tuple(t for tool in body.get("tools") or [] for t in _tools(tool)),
        forced=str(allowed[0]) if calling.get("mode") == "ANY" else None,
        silent_tools=calling.get("mode") == "NONE",
        schema=config.get("responseJsonSchema") or config.get("responseSchema"),
    )


def _tools(tool: Json) -> Iterator[Offered]:
    found = tool.get("functionDeclarations") or tool.get("function_declarations")
    for inner in found or []:
        schema = inner.get("parametersJsonSchema") or inner.get("parameters") or {}
        yield Offered(str(inner.get("name", "")), schema)
    if not found:
        yield from (Offered(name, {}, "server") for name in tool)


def _usage(usage: Usage) -> Json:
    return {
        "promptTokenCount": usage.prompt,
        "cachedContentTokenCount": usage.cache_read,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.prompt + usage.output,
    }


def _chunk(asked: Asked, reply: Reply, parts: list[Json], *, last: bool) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if last:
        candidate["finishReason"] = "STOP"
    made: Json = {"candidates": [candidate], "modelVersion": asked.model, "responseId": reply.id}
    return {**made, "usageMetadata": _usage(reply.usage)} if last and reply.usage is not None else made


def _calls(reply: Reply) -> list[Json]:
    return [{"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in reply.calls]


def whole(asked: Asked, reply: Reply) -> Json:
    """Gives an answer in one."""
    parts: list[Json] = [{"text": reply.thinking, "thought": True}] if reply.thinking else []
    parts += [{"text": reply.text}] if reply.text else []
    return _chunk(asked, reply, parts + _calls(reply), last=True)


def stream(asked: Asked, reply: Reply) -> Iterator[bytes]:
    """Yields an answer in chunks: events, or parts of one JSON array."""
    parts: list[Json] = []
    if reply.thinking:
        parts += [{"text": p, "thought": True} for p in pieces(reply.thinking, reply.piece)]
    if reply.text:
        parts += [{"text": p} for p in pieces(reply.text, reply.piece)]
    parts += _calls(reply) or ([] if parts else [{"text": ""}])
    for number, part in enumerate(parts):
        made = _chunk(asked, reply, [part], last=number == len(parts) - 1)
        data = event(made)
        if asked.array:
            data = (b"," if number else b"[") + data[6:-2] + b"\n"
        yield data
    if asked.array:
        yield b"]"


def error(status: int, message: str) -> Json:
    """Gives the body of an error."""
    kind = _KINDS.get(status, "UNAVAILABLE" if status >= 500 else "FAILED_PRECONDITION")
    return {"error": {"code": status, "message": message, "status": kind, "details": []}}


def stream_error(message: str) -> bytes:
    """Gives the event of an error within a stream."""
    return event(error(503, message))
