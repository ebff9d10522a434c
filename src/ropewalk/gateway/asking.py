"""Requests of lanes: who sends one, what it asks for, and what of it goes on to a provider."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import StrOrURL

from ropewalk.core.decoding import UNREADABLE
from ropewalk.gateway import budget, logins
from ropewalk.gateway.answers import error
from ropewalk.gateway.budget import Expected
from ropewalk.gateway.settings import Lane, Upstream
from ropewalk.gateway.tokens import Tokens, Wire

MOST = 64 << 20
"""Is how long a request may be, in bytes (G17)."""

_DROPPED = frozenset({"host", "content-length", "transfer-encoding", "connection", "authorization", "x-api-key",
                      "x-goog-api-key", "api-key", "accept-encoding", "content-encoding", "expect", "keep-alive", "te",
                      "trailer", "upgrade", "proxy-authorization", "proxy-connection", "cookie", "forwarded",
                      "x-forwarded-for", "x-real-ip"})  # fmt: skip
_BESIDE = re.compile(r"(/[\w.-]+)*/(models(/[\w.:@/-]+)?|messages/count_tokens|models/[\w.@/-]+:countTokens)")
_HIDDEN = b"rwl_hidden"


class Ask(NamedTuple):
    """Is a request as it is handled; `raw` is its body as it came, `most` how long the answer may be at most."""

    id: str
    lane: Lane
    wire: Wire
    model: str
    body: dict[str, Any]
    raw: bytes
    stream: bool
    expected: Tokens
    most: int
    began: float
    at: float

    @property
    def recorded(self) -> dict[str, Any]:
        """Gives the request as a cassette compares it, with what stands in its path."""
        return {**self.body, "model": self.model, "stream": self.stream}


def token(request: web.Request) -> str:
    """Gives the token of a request, wherever its format puts it; empty without one."""
    bearer = request.headers.get("authorization", "")
    return (
        request.headers.get("x-api-key")
        or request.headers.get("x-goog-api-key")
        or (bearer[7:] if bearer.lower().startswith("bearer ") else "")
        or request.query.get("key", "")
    ).strip()


def path_of(request: web.Request) -> str | None:
    """Gives a request's path, still encoded; None for one that could mean another behind a provider's own parser."""
    raw = request.rel_url.raw_path
    plain = unquote(raw)
    strange = any(sign in plain for sign in "#?\\") or any(ord(sign) < 0x21 for sign in plain)
    return None if strange or ".." in plain or "//" in plain or not plain.startswith("/") else raw


def is_beside(method: str, path: str) -> bool:
    """Says whether a request asks a model for nothing, and may go on: lists of models, and counts of tokens."""
    found = _BESIDE.fullmatch(unquote(path))
    counts = path.endswith(("/count_tokens", ":countTokens"))
    return found is not None and method == ("POST" if counts else "GET")


async def read(request: web.Request, held: str, seconds: float) -> bytes | tuple[int, str]:
    """Gives a request's body, without the lane's own token, or the status and the reason why it can't be taken."""
    try:
        async with asyncio.timeout(seconds):
            data = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return 413, f"the request is larger than {MOST >> 20} MiB"
    except TimeoutError:
        return 408, f"the request was not whole within {seconds:g} s"
    except (HttpProcessingError, web.HTTPException, web.RequestPayloadError, ConnectionError) as end:
        return 400, f"the request's body can't be read: {type(end).__name__}"
    if len(data) > MOST:
        return 413, f"the request is larger than {MOST >> 20} MiB"
    return data.replace(held.encode(), _HIDDEN)  # a program that shows its environment to the model


def asked(
    request: web.Request, lane: Lane, wire: Wire, path: str, data: bytes, expected: Expected
) -> Ask | web.Response:
    """Gives what a request asks for, or the answer that it is no request."""
    try:
        body = msgspec.json.decode(data)
    except UNREADABLE:
        return error(wire, 400, "invalid_request_error", "the request is no JSON")
    if not isinstance(body, dict):
        return error(wire, 400, "invalid_request_error", "the request is no JSON object")
    if wire == "gemini":
        name = unquote(path).partition("/models/")[2] or unquote(path).rsplit("/", 1)[-1]
        model, _, verb = name.rpartition(":")
        stream = verb == "streamGenerateContent"
    else:
        model, stream = str(body.get("model") or ""), bool(body.get("stream"))
    likely, most = expected.output(lane.lane, body)
    tokens = Tokens(input=budget.input_tokens(len(data)), output=likely)
    return Ask(
        uuid.uuid4().hex, lane, wire, model, body, data, stream, tokens, most, time.monotonic(), round(time.time(), 3)
    )


def url(request: web.Request, path: str, upstream: Upstream, held: str, model: str = "") -> StrOrURL:
    """Gives the address at a provider, with its name of a model, and nothing of the lane's token.

    What came encoded goes on as it was.
    """
    if model and model in upstream.models:
        path = path.replace(f"/{model}:", f"/{upstream.models[model]}:")
    path = logins.path_at(upstream, path)
    pairs = request.rel_url.raw_query_string.split("&")
    query = "&".join(one for one in pairs if one and not one.startswith("key=") and held not in unquote(one))
    rest = path + (f"?{query}" if query else "")
    address = type(request.url)
    try:
        return address(str(address(upstream.url)).rstrip("/") + rest, encoded=True)
    except ValueError:
        return upstream.url.rstrip("/") + rest  # whoever sends says what is wrong with it


def headers(request: web.Request, upstream: Upstream, held: str) -> dict[str, str]:
    """Gives the headers that go on, with the key in the place of the token."""
    ours = _DROPPED | {name.lower() for name in upstream.headers}
    found: dict[str, str] = {}
    first: dict[str, str] = {}
    for k, v in request.headers.items():
        if k.lower() not in ours and held not in v:
            k = first.setdefault(k.lower(), k)  # a repeated header is one with all its values
            found[k] = f"{found[k]}, {v}" if k in found else v
    found["Accept-Encoding"] = "identity"  # usage is read off the wire (G15)
    name = next((one for one in found if one.lower() == "anthropic-beta"), "anthropic-beta")
    if beta := logins.flags(upstream, found.pop(name, "")):
        found[name] = beta
    if upstream.auth == "bearer" and upstream.key:
        found["Authorization"] = f"Bearer {upstream.key}"
    elif upstream.auth != "none" and upstream.key:
        found[upstream.auth] = upstream.key
    return {**found, **upstream.headers}


def secrets(upstream: Upstream, held: str) -> list[str]:
    """Gives what must be shown to nobody: the key, what is in headers of the user's, and the lane's token."""
    return [one for one in (upstream.key, *upstream.headers.values(), held) if len(one) >= 6]
