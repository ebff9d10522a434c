"""A client of the scripted model server that speaks its four wire formats and keeps the conversation."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from typing import Any

from ropewalk.testing.model_server import ModelServer
from ropewalk.testing.models.reply import Usage

WRITE_SCHEMA = {
    "type": "object",
    "properties": {
        "file_path": {"type": "string"},
        "content": {"type": "string"},
        "mode": {"enum": ["create", "append"]},
    },
    "required": ["file_path", "content", "mode"],
}
SHELL_SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


class Client:
    """Speaks one wire format as an agent program does, and keeps the conversation."""

    def __init__(self, server: ModelServer, wire: str, lane: str, scenario: str, *, stream: bool) -> None:
        self.server, self.wire, self.lane, self.stream = server, wire, lane, stream
        self.base = urllib.parse.urlsplit(server.url(lane, scenario))
        self.history: list[Any] = []
        self.tools = True
        self.raw = b""

    def say(self, text: str) -> None:
        if self.wire == "gemini":
            self.history.append({"role": "user", "parts": [{"text": text}]})
        elif self.wire == "messages" and self.history and self.history[-1]["role"] == "user":
            self.history[-1]["content"].append({"type": "text", "text": text})
        elif self.wire == "messages":
            self.history.append({"role": "user", "content": [{"type": "text", "text": text}]})
        else:
            self.history.append({"role": "user", "content": text})

    def request(self) -> tuple[str, dict[str, Any]]:
        """Gives path and body of the next request."""
        shapes = {"Write": WRITE_SCHEMA, "Bash": SHELL_SCHEMA} if self.tools else {}
        body: dict[str, Any] = {"model": "m1", "stream": self.stream}
        if self.wire == "gemini":
            verb = "streamGenerateContent?alt=sse" if self.stream else "generateContent"
            made = [{"functionDeclarations": [{"name": n, "parametersJsonSchema": s} for n, s in shapes.items()]}]
            return f"/v1beta/models/m1:{verb}", {"contents": self.history, "tools": made if shapes else []}
        if self.wire == "messages":
            tools = [{"name": n, "input_schema": s} for n, s in shapes.items()]
            return "/v1/messages", {**body, "max_tokens": 99, "messages": self.history, "tools": tools}
        if self.wire == "chat":
            tools = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in shapes.items()]
            body |= {"stream_options": {"include_usage": True}} if self.stream else {}
            return "/v1/chat/completions", {**body, "messages": self.history, "tools": tools}
        tools = [{"type": "function", "name": n, "parameters": s} for n, s in shapes.items()]
        return "/v1/responses", {**body, "input": self.history, "tools": tools}

    def post(self, headers: dict[str, str] | None = None) -> tuple[int, bytes, http.client.HTTPMessage]:
        path, body = self.request()
        connection = http.client.HTTPConnection(self.base.hostname or "", self.base.port, timeout=20)
        try:
            connection.request("POST", self.base.path + path, json.dumps(body), headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def ask(self) -> dict[str, Any]:
        """Gives text, thinking, calls, usage and id of an answer, and takes it into the history."""
        status, self.raw, _ = self.post()
        assert status == 200, self.raw
        made: dict[str, Any] = globals()[f"read_{self.wire}"](self.raw, self.stream)
        self.history += made.pop("history")
        return made

    def give_results(self, calls: list[dict[str, Any]], text: str = "ok") -> None:
        """Puts the tools' results into the history."""
        if self.wire == "messages":
            blocks = [{"type": "tool_result", "tool_use_id": c["id"], "content": text} for c in calls]
            self.history.append({"role": "user", "content": blocks})
        elif self.wire == "chat":
            self.history += [{"role": "tool", "tool_call_id": c["id"], "content": text} for c in calls]
        elif self.wire == "responses":
            self.history += [{"type": "function_call_output", "call_id": c["id"], "output": text} for c in calls]
        else:
            parts = [{"functionResponse": {"name": c["name"], "response": {"output": text}}} for c in calls]
            self.history.append({"role": "user", "parts": parts})


def events(raw: bytes) -> list[dict[str, Any]]:
    """Gives the data of a stream of events, each named as its data says where it has a name."""
    found = []
    for block in raw.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "data" in fields and fields["data"] != "[DONE]":
            found.append(json.loads(fields["data"]))
            assert fields.get("event", found[-1].get("type")) == found[-1].get("type")
    return found


def read_messages(raw: bytes, stream: bool) -> dict[str, Any]:
    if stream:
        blocks: list[dict[str, Any]] = []
        for one in events(raw):
            if one["type"] == "message_start":
                message = one["message"]
            elif one["type"] == "content_block_start":
                blocks.append({**one["content_block"], "json": ""})
                assert one["index"] == len(blocks) - 1
            elif one["type"] == "content_block_delta":
                delta, block = one["delta"], blocks[one["index"]]
                kind = delta["type"].removesuffix("_delta")
                name = {"input_json": "partial_json"}.get(kind, kind)
                block["json" if kind == "input_json" else name] += delta[name]
            elif one["type"] == "message_delta":
                message = {**message, "usage": {**message["usage"], **one["usage"]}, **one["delta"]}
        assert events(raw)[-1]["type"] == "message_stop"
        for block in blocks:
            text = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = json.loads(text)
        message["content"] = blocks
    else:
        message = json.loads(raw)
    calls = [
        {"id": b["id"], "name": b["name"], "args": b["input"]} for b in message["content"] if b["type"] == "tool_use"
    ]
    assert message["stop_reason"] == ("tool_use" if calls else "end_turn")
    usage = message["usage"]
    told = Usage(
        usage["input_tokens"],
        usage["output_tokens"],
        usage["cache_read_input_tokens"],
        usage["cache_creation_input_tokens"],
    )
    joined = {
        kind: "".join(b.get(kind, "") for b in message["content"] if b["type"] == kind) for kind in ("text", "thinking")
    }
    turn = {"role": "assistant", "content": message["content"]}
    return {**joined, "calls": calls, "usage": told, "id": message["id"], "history": [turn]}


def read_chat(raw: bytes, stream: bool) -> dict[str, Any]:
    if stream:
        assert raw.endswith(b"data: [DONE]\n\n")
        message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
        for one in events(raw):
            usage, name = one.get("usage") or {}, one["id"]
            for choice in one["choices"]:
                delta = choice["delta"]
                for key in ("content", "reasoning_content"):
                    message[key] += delta.get(key) or ""
                for call in delta.get("tool_calls", []):
                    if "id" in call:
                        message["tool_calls"].append({k: v for k, v in call.items() if k != "index"})
                    else:
                        held = message["tool_calls"][call["index"]]["function"]
                        held["arguments"] += call["function"]["arguments"]
                reason = choice["finish_reason"]
    else:
        whole = json.loads(raw)
        message, usage, name = whole["choices"][0]["message"], whole["usage"], whole["id"]
        reason = whole["choices"][0]["finish_reason"]
    calls = [
        {"id": c["id"], "name": c["function"]["name"], "args": json.loads(c["function"]["arguments"])}
        for c in message.get("tool_calls") or []
    ]
    assert reason == ("tool_calls" if calls else "stop")
    read = usage["prompt_tokens_details"]["cached_tokens"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    told = Usage(usage["prompt_tokens"] - read, usage["completion_tokens"], read, 0, reasoning)
    return {
        "text": message["content"] or "",
        "thinking": message.get("reasoning_content") or "",
        "calls": calls,
        "usage": told,
        "id": name,
        "history": [message],
    }


def read_responses(raw: bytes, stream: bool) -> dict[str, Any]:
    if stream:
        got = events(raw)
        assert [one["sequence_number"] for one in got] == list(range(len(got)))
        assert [got[0]["type"], got[-1]["type"]] == ["response.created", "response.completed"]
        whole = got[-1]["response"]
        assert whole["output"] == [one["item"] for one in got if one["type"] == "response.output_item.done"]
        added = [one["item"].get("status", "") for one in got if one["type"] == "response.output_item.added"]
        assert set(added) <= {"in_progress", ""}
        deltas: dict[str, str] = {}
        for one in got:
            if one["type"].endswith(".delta"):
                deltas[one["item_id"]] = deltas.get(one["item_id"], "") + one["delta"]
        for item in whole["output"]:
            held = item.get("arguments") or (item.get("content") or item.get("summary"))[0]["text"]
            assert deltas[item["id"]] == held
    else:
        whole = json.loads(raw)
    calls = [
        {"id": i["call_id"], "name": i["name"], "args": json.loads(i["arguments"])}
        for i in whole["output"]
        if i["type"] == "function_call"
    ]
    usage: dict[str, Any] = whole["usage"]
    read = usage["input_tokens_details"]["cached_tokens"]
    reasoning = usage["output_tokens_details"]["reasoning_tokens"]
    told = Usage(usage["input_tokens"] - read, usage["output_tokens"], read, 0, reasoning)
    kinds = {"message": "content", "reasoning": "summary"}
    said = {i["type"]: i[kinds[i["type"]]][0]["text"] for i in whole["output"] if i["type"] in kinds}
    return {
        "text": said.get("message", ""),
        "thinking": said.get("reasoning", ""),
        "calls": calls,
        "usage": told,
        "id": whole["id"],
        "history": whole["output"],
    }


def read_gemini(raw: bytes, stream: bool) -> dict[str, Any]:
    chunks = events(raw) if stream else [json.loads(raw)]
    parts = [p for c in chunks for p in c["candidates"][0]["content"]["parts"]]
    assert [c["candidates"][0].get("finishReason") for c in chunks] == [None] * (len(chunks) - 1) + ["STOP"]
    usage = chunks[-1]["usageMetadata"]
    read, reasoning = usage["cachedContentTokenCount"], usage["thoughtsTokenCount"]
    told = Usage(usage["promptTokenCount"] - read, usage["candidatesTokenCount"] + reasoning, read, 0, reasoning)
    calls = [p["functionCall"] for p in parts if "functionCall" in p]
    # its clients may drop the ids
    kept = [{"functionCall": {k: v for k, v in p["functionCall"].items() if k != "id"}} if "functionCall" in p else p
            for p in parts]  # fmt: skip
    return {
        "text": "".join(p.get("text", "") for p in parts if not p.get("thought")),
        "thinking": "".join(p["text"] for p in parts if p.get("thought")),
        "calls": calls,
        "usage": told,
        "id": chunks[0]["responseId"],
        "history": [{"role": "model", "parts": kept}],
    }
