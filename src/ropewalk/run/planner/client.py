"""One prompt to a model, in any of the four formats, through the gateway on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import ProviderError
from ropewalk.gateway.tokens import Wire

TOKENS = 32_000
"""Is how long an answer may be, in tokens."""

_MOST = 64 << 20


def ask(port: int, token: str, wire: Wire, model: str, prompt: str, *, seconds: float = 900.0,
        tokens: int = TOKENS) -> str:  # fmt: skip
    """Gives a model's answer as text, however far it came; `E_PROVIDER` when there is none."""
    import http.client

    path, body = request(wire, model, prompt, tokens)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json",
                   "anthropic-version": "2023-06-01"}  # fmt: skip
        connection.request("POST", path, msgspec.json.encode(body), headers)
        got = connection.getresponse()
        status, data = got.status, got.read(_MOST)
    except (OSError, http.client.HTTPException) as error:
        raise ProviderError(f"the gateway gave no answer: {type(error).__name__}", model=model) from None
    finally:
        connection.close()
    try:
        value: Any = msgspec.json.decode(data)
    except UNREADABLE:
        value = None
    if status != 200:
        raise ProviderError(f"the model gave {status}: {_words(value, data)}", model=model, status=status)
    text = text_of(wire, value)
    if text is None:
        raise ProviderError("the model's answer is of no form that is known", model=model)
    return text


def request(wire: Wire, model: str, prompt: str, tokens: int) -> tuple[str, dict[str, Any]]:
    """Gives path and body of a request."""
    said = [{"role": "user", "content": prompt}]
    if wire == "gemini":
        parts = [{"role": "user", "parts": [{"text": prompt}]}]
        return (f"/v1beta/models/{model}:generateContent",
                {"contents": parts, "generationConfig": {"maxOutputTokens": tokens}})  # fmt: skip
    if wire == "responses":
        return "/v1/responses", {"model": model, "input": said, "max_output_tokens": tokens}
    if wire == "chat":
        return "/v1/chat/completions", {"model": model, "messages": said, "max_tokens": tokens}
    return "/v1/messages", {"model": model, "messages": said, "max_tokens": tokens}


def text_of(wire: Wire, value: Any) -> str | None:
    """Gives the text of an answer, None for what is none."""
    try:
        if wire == "gemini":
            parts = value["candidates"][0]["content"].get("parts") or []
            return "".join(str(part.get("text") or "") for part in parts if not part.get("thought"))
        if wire == "responses":
            blocks = [b for item in value["output"] if item.get("type") == "message" for b in item["content"]]
            return "".join(str(b.get("text") or "") for b in blocks if b.get("type") == "output_text")
        if wire == "chat":
            content = value["choices"][0]["message"].get("content")
            if isinstance(content, list):
                return "".join(str(part.get("text") or "") for part in content)
            return str(content or "")
        return "".join(str(b.get("text") or "") for b in value["content"] if b.get("type") == "text")
    except (LookupError, TypeError, AttributeError):
        return None


def _words(value: Any, data: bytes) -> str:
    said: Any = value
    for key in ("error", "message"):
        if isinstance(said, Mapping) and key in said:
            said = said[key]
    text = said if isinstance(said, str) else data[:200].decode("utf-8", "replace")
    return " ".join(text.split())[:300]
