"""Usage: what an answer of a model says that it cost, read off the wire, streamed or whole, format by format (G13).

The reader takes bytes as they pass and keeps nothing but the line that is not whole yet, so that it delays nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.gateway.tokens import Tokens, Wire

_MOST = 8 << 20
"""Is how much of an answer is kept at most that is not a stream, or of one line, in bytes."""


class Usage(NamedTuple):
    """Is what an answer said: tokens (None: nothing), its own id, whether it came to its end, and what it ends with.

    `wants_tool` says that the model asked for a tool and the program is to run it now. `made` is about how many tokens
    long the answer is, by its text: an estimate for one that was cut.
    """

    tokens: Tokens | None
    id: str
    complete: bool
    stop: str
    wants_tool: bool
    error: str
    made: int = 0


class UsageReader:
    """Reads one answer of a model as it passes."""

    def __init__(self, wire: Wire, *, streamed: bool) -> None:
        self._wire, self._streamed = wire, streamed
        self._rest = bytearray()
        self._dropped = False
        self._seen: dict[str, int] = {}
        self._id = self._stop = self._error = ""
        self._complete = self._tool = False
        self._made = 0
        self.fed = False
        self._take = {"anthropic": self._anthropic, "chat": self._chat, "responses": self._responses,
                      "gemini": self._gemini}[wire]  # fmt: skip

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the body."""
        self.fed = True
        if not self._streamed:
            self._keep(data)
            return
        if (end := data.rfind(b"\n") + 1) == 0:
            self._keep(data)
            return
        lines = (bytes(self._rest) + data[:end]).split(b"\n")
        self._rest.clear()
        for line in lines:
            if line and not self._dropped:
                self._line(line)
            self._dropped = False  # it was the rest of a line too long to keep
        self._keep(data[end:])

    def _keep(self, data: bytes) -> None:
        if self._dropped or len(self._rest) + len(data) > _MOST:
            self._rest.clear()
            self._dropped = True
        else:
            self._rest += data

    def end(self) -> Usage:
        """Gives what the answer said, once its last byte has passed or the connection was cut."""
        rest, self._rest = bytes(self._rest), bytearray()
        if self._streamed:
            self._line(rest)
        elif not self._dropped and not self._json(rest):
            for line in rest.split(b"\n"):  # an array that was cut, or events that do not say that they are
                self._line(line)
            self._made = self._made or len(rest)
        return Usage(self._tokens(), self._id, self._complete, self._stop, self._tool, self._error, -(-self._made // 3))

    def _line(self, line: bytes) -> None:
        if line.startswith(b"event:"):
            return
        line = line.strip()
        if line.startswith(b"data:"):
            line = line[5:].strip()
        if line == b"[DONE]":
            self._complete = True
        elif line.startswith((b"{", b"[", b",")):
            self._json(line.strip(b",[] \r") if self._wire == "gemini" else line)

    def _json(self, text: bytes) -> bool:
        try:
            found = msgspec.json.decode(text)
        except UNREADABLE:
            return False
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, dict):
                self._event(one)
        return True

    def _event(self, event: dict[str, Any]) -> None:
        if isinstance(error := event.get("error"), dict):
            self._error = str(error.get("message") or error.get("type") or "error")[:500]
        self._take(event)

    def _anthropic(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        message = event.get("message") if kind == "message_start" else event if kind == "message" else None
        if isinstance(message, dict):
            self._id = str(message.get("id") or self._id)
            self._count(message.get("usage"), _ANTHROPIC)
            content = message.get("content")
            for block in content if isinstance(content, list) else []:
                self._tool = self._tool or _kind(block) == "tool_use"
            if kind == "message":
                self._complete, self._stop = True, str(message.get("stop_reason") or "")
        elif kind == "message_delta":
            # the input is known from the beginning; some servers say it here alone, others say nothing of it: 0
            usage = event.get("usage")
            usage = usage if isinstance(usage, dict) else {}
            self._count({k: v for k, v in usage.items() if v or k == "output_tokens"}, _ANTHROPIC)
            if isinstance(delta := event.get("delta"), dict) and delta.get("stop_reason"):
                self._stop = str(delta["stop_reason"])
        elif kind == "content_block_delta":
            self._note(event.get("delta"), "text", "thinking", "partial_json")
        elif kind == "content_block_start":
            self._tool = self._tool or _kind(event.get("content_block")) == "tool_use"
        elif kind == "message_stop":
            self._complete = True

    def _chat(self, event: dict[str, Any]) -> None:
        self._id = str(event.get("id") or self._id)
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._count(usage, {"prompt_tokens": "in", "completion_tokens": "out", "total_tokens": "all"})
            self._count(usage.get("prompt_tokens_details"), {"cached_tokens": "cached"})
            self._count(usage.get("completion_tokens_details"), {"reasoning_tokens": "reasoning"})
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if not isinstance(choice, dict):
                continue
            if choice.get("finish_reason"):
                self._stop = str(choice["finish_reason"])
                self._complete = True
            part = choice.get("delta") or choice.get("message")
            self._note(part, "content", "reasoning_content", "reasoning")
            calls = part.get("tool_calls") if isinstance(part, dict) else None
            self._tool = self._tool or bool(calls)
            for call in calls if isinstance(calls, list) else []:
                self._note(call.get("function") if isinstance(call, dict) else None, "arguments")

    def _responses(self, event: dict[str, Any]) -> None:
        kind = str(event.get("type") or "")
        whole = event if event.get("object") == "response" else event.get("response")
        if not isinstance(whole, dict):
            if kind.endswith(".delta"):
                self._note(event, "delta")
            return
        self._id = str(whole.get("id") or self._id)
        if kind in ("response.completed", "response.incomplete", "response.failed") or whole is event:
            self._complete = True
            self._stop = str(whole.get("status") or kind.removeprefix("response."))
            usage = whole.get("usage")
            if isinstance(usage, dict):
                self._count(usage, {"input_tokens": "in", "output_tokens": "out"})
                self._count(usage.get("input_tokens_details"), {"cached_tokens": "cached"})
                self._count(usage.get("output_tokens_details"), {"reasoning_tokens": "reasoning"})
            output = whole.get("output")
            for item in output if isinstance(output, list) else []:
                self._tool = self._tool or _kind(item).endswith("_call")
            if isinstance(error := whole.get("error"), dict):
                self._error = str(error.get("message") or error.get("code") or "error")[:500]

    def _gemini(self, event: dict[str, Any]) -> None:
        self._id = str(event.get("responseId") or self._id)
        names = {"promptTokenCount": "in", "toolUsePromptTokenCount": "tools", "cachedContentTokenCount": "cached",
                 "candidatesTokenCount": "out", "thoughtsTokenCount": "reasoning"}  # fmt: skip
        self._count(event.get("usageMetadata"), names)
        candidates = event.get("candidates")
        for candidate in candidates if isinstance(candidates, list) else []:
            if not isinstance(candidate, dict):
                continue
            if candidate.get("finishReason"):
                self._stop, self._complete = str(candidate["finishReason"]), True
            content = candidate.get("content")
            parts = content.get("parts") if isinstance(content, dict) else None
            for part in parts if isinstance(parts, list) else []:
                self._note(part, "text")
                self._tool = self._tool or (isinstance(part, dict) and "functionCall" in part)

    def _note(self, part: object, *names: str) -> None:
        """Notes how long the text of a part of the answer is."""
        if isinstance(part, dict):
            self._made += sum(len(text) for name in names if isinstance(text := part.get(name), str))

    def _count(self, usage: object, names: dict[str, str]) -> None:
        """Notes the counts of a usage record; a later one of the same name replaces an earlier one."""
        if isinstance(usage, dict):
            for name, mine in names.items():
                value = usage.get(name)
                if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                    self._seen[mine] = value

    def _tokens(self) -> Tokens | None:
        seen = self._seen
        if not seen:
            return None
        if self._wire == "anthropic":
            return Tokens(seen.get("in", 0), seen.get("read", 0), seen.get("write", 0), seen.get("out", 0))
        cached, reasoning = seen.get("cached", 0), seen.get("reasoning", 0)
        # what is cached is a part of the prompt; Gemini's thoughts are not a part of its candidates
        given = seen.get("in", 0) + seen.get("tools", 0)
        output = seen.get("out", 0)
        if self._wire == "gemini" or (reasoning and seen.get("all") == given + output + reasoning):
            output += reasoning  # xAI's completion is without it, too
        return Tokens(max(0, given - cached), cached, 0, output, reasoning)


_ANTHROPIC = {"input_tokens": "in", "cache_read_input_tokens": "read", "cache_creation_input_tokens": "write",
              "output_tokens": "out"}  # fmt: skip


def _kind(block: object) -> str:
    return str(block.get("type") or "") if isinstance(block, dict) else ""
