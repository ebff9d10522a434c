"""Answers of the gateway's own: errors in the words of each format, and what of a provider's answer goes on."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from ropewalk.gateway.tokens import Wire

LONGEST = 3600.0
"""Is the longest pause, in seconds, that a provider can ask for."""

_DICE = random.Random()
_PASSED = ("content-type", "retry-after", "request-id", "x-request-id", "cache-control", "x-should-retry")
_PREFIXES = ("anthropic-ratelimit", "x-ratelimit", "openai-processing")
_GEMINI = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}


class Failed(Exception):
    """An upstream gave no answer that goes on: status (0: none came), body and headers of the last try, and why."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str], words: str) -> None:
        super().__init__(words)
        self.status, self.body, self.headers, self.words = status, body, headers, words

    def response(self) -> web.Response:
        """Gives what the program is told."""
        return web.Response(status=self.status or 502, body=self.body, headers=self.headers)


def failed(wire: Wire, status: int, kind: str, words: str, *, retry_after: float | None = None) -> Failed:
    """Gives a failure in the gateway's own words."""
    made = error(wire, status or 502, kind, words, retry_after=retry_after)
    assert isinstance(made.body, bytes)
    headers = {k.lower(): v for k, v in made.headers.items() if k.lower() != "content-length"}
    return Failed(status, made.body, headers, words)


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Gives the headers of an answer that go on to the program."""
    low = {k.lower(): v for k, v in headers.items()}
    return {k: v for k, v in low.items() if k in _PASSED or k.startswith(_PREFIXES)}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Gives for how many seconds a provider asks to be left alone, by any of the ways to say so; None when it doesn't.

    The header has seconds or a date; OpenAI's own says it in milliseconds.
    """
    low = {k.lower(): v.strip() for k, v in headers.items()}
    try:
        milliseconds = low.get("retry-after-ms")
        seconds = float(low.get("retry-after", "")) if milliseconds is None else float(milliseconds) / 1000
    except ValueError:
        seconds = _until(low.get("retry-after", ""))
    return min(LONGEST, seconds) if math.isfinite(seconds) and seconds > 0 else None


def _until(date: str) -> float:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return math.nan


def backoff(tries: int) -> float:
    """Gives how long to wait before another try where the provider says nothing: a growing time with jitter."""
    return min(8.0, 0.5 * 2.0 ** (tries - 1)) * _DICE.uniform(0.75, 1.25)


def error(wire: Wire | None, status: int, kind: str, words: str, *, retry_after: float | None = None) -> web.Response:
    """Gives an error in the words of a format; one that no try will mend says so to programs that ask."""
    body: dict[str, Any]
    if wire == "anthropic":
        body = {"type": "error", "error": {"type": kind, "message": words}}
    elif wire == "gemini":
        body = {"error": {"code": status, "message": words, "status": _GEMINI.get(status, "UNAVAILABLE")}}
    else:
        body = {"error": {"message": words, "type": kind, "code": kind}}
    headers = {"x-should-retry": "true" if retry_after is not None else "false"}
    if retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after)))
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)
