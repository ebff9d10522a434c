"""OpenAI Responses: what a request says, and an answer whole or as a stream.

Tools are functions, custom tools of free text, namespaces of functions, and the provider's own `local_shell`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.testing.models import chat
from ropewalk.testing.models.conversation import Asked, Json, Offered, Said
from ropewalk.testing.models.reply import Call, Reply, Usage, all_text, event, pieces

NAME = "responses"
CALL_PREFIX = "call_"
TOO_LONG = chat.TOO_LONG
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")


def read(body: Json) -> Asked:
    """Gives what a request says."""
    said = [Said("system", all_text(body.get("instructions")))]
    given = body.get("input", [])
    for one in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = one.get("type", "message")
        if kind in _CALLS:
            said.append(Said("assistant", calls=(str(one.get("call_id") or one.get("id", "")),)))
        elif kind.endswith("_output"):
            said.append(Said("tool", all_text(one.get("output"))))
        elif kind == "message":
            role = str(one.get("role", "user"))
            said.append(Said("system" if role == "developer" else role, all_text(one.get("content"))))
    choice = body.get("tool_choice")
    form = (body.get("text") or {}).get("format") or {}
    return Asked(
        wire=NAME,
        model=str(body.get("model", "")),
        said=tuple(said),
        tools=tuple(t for tool in body.get("tools") or [] for t in _tools(tool)),
        streaming=bool(body.get("stream")),
        forced=_forced(choice),
        silent_tools=choice == "none",
        schema=form.get("schema"),
    )


def _forced(choice: object) -> str | None:
    if choice == "required":
        return ""
    return str(choice["name"]) if isinstance(choice, dict) and "name" in choice else None


def _tools(tool: Json) -> Iterator[Offered]:
    kind = str(tool.get("type", ""))
    if kind == "namespace":
        for inner in tool.get("tools") or []:
            yield Offered(str(inner.get("name", "")), inner.get("parameters") or {}, "function", str(tool["name"]))
    elif kind in ("function", "custom"):
        yield Offered(str(tool.get("name", "")), tool.get("parameters") or {}, kind)
    else:
        yield Offered(kind, {}, kind if kind == "local_shell" else "server")


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }


def _items(reply: Reply) -> list[Json]:
    made: list[Json] = []
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        made.append({"type": "reasoning", "id": f"rs_{reply.id}", "summary": summary, "encrypted_content": None})
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        made.append({"type": "message", "id": f"msg_{reply.id}", "status": "completed", "role": "assistant",
                     "content": [part]})  # fmt: skip
    made += [_call(c) for c in reply.calls]
    return made


def _call(call: Call) -> Json:
    base: Json = {"id": f"fc_{call.id}", "call_id": call.id, "status": "completed"}
    if call.kind == "local_shell":
        command = call.arguments["command"] if isinstance(call.arguments, dict) else [call.arguments]
        return {**base, "type": "local_shell_call", "action": {"type": "exec", "command": command, "env": {}}}
    if call.kind == "custom":
        return {**base, "type": "custom_tool_call", "name": call.name, "input": call.encoded()}
    space = {"namespace": call.namespace} if call.namespace else {}
    return {**base, "type": "function_call", "name": call.name, "arguments": call.encoded(), **space}


def whole(asked: Asked, reply: Reply) -> Json:
    """Gives an answer in one."""
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": 1_767_225_600,
        "status": "completed",
        "model": asked.model,
        "output": _items(reply),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "usage": None if reply.usage is None else _usage(reply.usage),
    }


def stream(asked: Asked, reply: Reply) -> Iterator[bytes]:
    """Yields an answer as events, numbered."""
    for number, made in enumerate(_events(asked, reply)):
        yield event({**made, "sequence_number": number}, made["type"])


def _events(asked: Asked, reply: Reply) -> Iterator[Json]:
    end = whole(asked, reply)
    begun = {**end, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(end["output"]):
        yield {"type": "response.output_item.added", "output_index": index, "item": _opened(item)}
        where = {"item_id": item["id"], "output_index": index}
        yield from _inside(item, where, reply.piece)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": end}


def _opened(item: Json) -> Json:
    empty: Json = {"content": [], "summary": [], "arguments": "", "input": ""}
    changed = {k: v for k, v in empty.items() if k in item}
    return {**item, **changed, **({"status": "in_progress"} if "status" in item else {})}


def _inside(item: Json, where: Json, size: int) -> Iterator[Json]:
    kind = item["type"]
    if kind == "message":
        part, at = item["content"][0], {**where, "content_index": 0}
        yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
        for piece in pieces(part["text"], size):
            yield {"type": "response.output_text.delta", **at, "delta": piece}
        yield {"type": "response.output_text.done", **at, "text": part["text"]}
        yield {"type": "response.content_part.done", **at, "part": part}
    elif kind == "reasoning":
        part, at = item["summary"][0], {**where, "summary_index": 0}
        yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
        for piece in pieces(part["text"], size):
            yield {"type": "response.reasoning_summary_text.delta", **at, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **at, "text": part["text"]}
        yield {"type": "response.reasoning_summary_part.done", **at, "part": part}
    elif kind in ("function_call", "custom_tool_call"):
        field = "arguments" if kind == "function_call" else "input"
        name = "function_call_arguments" if kind == "function_call" else "custom_tool_call_input"
        for piece in pieces(item[field], size):
            yield {"type": f"response.{name}.delta", **where, "delta": piece}
        yield {"type": f"response.{name}.done", **where, field: item[field]}


def error(status: int, message: str) -> Json:
    """Gives the body of an error."""
    return chat.error(status, message)


def stream_error(message: str) -> bytes:
    """Gives the event of an error within a stream."""
    failed: Json = {"id": "resp_failed", "object": "response", "status": "failed", "output": [], "usage": None,
              "error": {"code": "server_error", "message": message}}  # fmt: skip
    return event({"type": "response.failed", "response": failed}, "response.failed")
