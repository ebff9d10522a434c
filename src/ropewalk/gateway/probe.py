"""Probing an endpoint: whether agents can work with a model server, found out by asking it (`rw probe`).

It asks what agents ask: who may come in, a stream, a call of a tool in a stream, a long prompt, a long answer. Each
check is `pass`, `warn` or `fail`; with a failure the endpoint is not usable, with a warning it is, but not for all.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, NamedTuple

import aiohttp
import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.gateway.settings import Auth
from ropewalk.gateway.tokens import Tokens, Wire
from ropewalk.gateway.usage import UsageReader

Grade = Literal["pass", "warn", "fail"]
Verdict = Literal["usable", "warnings", "not"]
EXITS: Mapping[Verdict, int] = {"usable": 0, "warnings": 10, "not": 13}

_TRIES = 5
_SLOW_PREFILL = 90.0
"""Is how long a prompt may take before its first byte: proxies and tunnels cut after 100 s."""

_SLOW_REPLY = 30.0
_PROOF = 100.0
"""Is how long an answer has to take to prove that nothing on the way cuts long ones."""

_SIZES = (4000, 16_000)
_BIG = (48_000, 100_000)
_WIRES: tuple[tuple[Wire, str], ...] = (("anthropic", "/v1/messages"), ("chat", "/v1/chat/completions"))
_OTHERS: tuple[tuple[Wire, str], ...] = (("responses", "/v1/responses"),)
_TOOL = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
         "required": ["path", "content"]}  # fmt: skip


class Waits(NamedTuple):
    """Is how long each question may take, in seconds."""

    health: float = 30.0
    request: float = 300.0
    long: float = 1200.0


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one check: its name, how it ended, what was found, and figures in seconds, tokens and tokens a second."""

    name: str
    grade: Grade
    found: str
    figures: dict[str, float] = {}


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what was found out about an endpoint.

    `wire` is the format that it was tried in, `wires` are all that it answers to, of those that it was asked in; `auth`
    is how the key was taken, `window` the context size, if told.
    """

    url: str
    verdict: Verdict
    checks: tuple[Check, ...]
    model: str = ""
    wire: Wire | None = None
    auth: Auth | None = None
    window: int | None = None
    slots: int | None = None
    wires: tuple[Wire, ...] = ()

    @property
    def exit(self) -> int:
        """Gives the exit code: 0 usable, 10 with warnings, 13 not."""
        return EXITS[self.verdict]


class _Reply(NamedTuple):
    """Is an answer: status, its parts with the seconds at which they came, and its usage."""

    status: int
    parts: list[tuple[float, bytes]]
    tokens: Tokens | None
    complete: bool
    tool: bool
    error: str

    @property
    def data(self) -> bytes:
        return b"".join(part for _, part in self.parts)

    def words(self) -> str:
        """Gives what went wrong, in a line."""
        said = self.error or self.data[:200].decode("utf-8", "replace")
        return " ".join(f"{self.status} {said}".split())[:240]


class _Gone(Exception):
    """The endpoint gave no answer; says why."""


def probe(
    url: str, key: str = "", *, model: str = "", big: bool = False, long: bool = False, waits: Waits = Waits()
) -> Report:
    """Gives what can be found out about an endpoint; it is asked up to 22 times, and nothing is kept of the key."""
    return asyncio.run(_probe(url.rstrip("/"), key, model, big, long, waits))


async def _probe(url: str, key: str, model: str, big: bool, long: bool, waits: Waits) -> Report:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=15)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
        one = _Probe(session, url, key, model, waits)
        try:
            await one.health()
            if await one.enter():
                await one.formats()
                await one.streams()
                await one.tools()
                for size in _SIZES + (_BIG if big else ()):
                    await one.prefill(size)
                if long:
                    await one.long()
        except _Gone as gone:
            one.add("reach", "fail", str(gone))
        grades = {check.grade for check in one.checks}
        verdict: Verdict = "not" if "fail" in grades else "warnings" if "warn" in grades else "usable"
        return Report(url, verdict, tuple(one.checks), one.model, one.wire, one.auth, one.window, one.slots,
                      tuple(one.wires))  # fmt: skip


class _Probe:
    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, model: str, waits: Waits) -> None:
        self.session, self.url, self.key, self.model, self.waits = session, url, key, model, waits
        self.checks: list[Check] = []
        self.wire: Wire | None = None
        self.wires: list[Wire] = []
        self.auth: Auth | None = None
        self.window: int | None = None
        self.slots: int | None = None
        self.path = ""
        self.salt = random.Random()

    def add(self, name: str, grade: Grade, found: str, **figures: float) -> None:
        shown = found.replace(self.key, "<key>") if self.key else found
        self.checks.append(Check(name, grade, shown, {k: round(v, 3) for k, v in figures.items()}))

    def headers(self, auth: Auth) -> dict[str, str]:
        found = {"anthropic-version": "2023-06-01", "Accept-Encoding": "identity"}
        if auth == "bearer":
            found["Authorization"] = f"Bearer {self.key}"
        elif auth != "none":
            found[auth] = self.key
        return found

    async def get(self, path: str, auth: Auth) -> tuple[int, Any]:
        try:
            async with (
                asyncio.timeout(self.waits.health),
                self.session.get(self.url + path, headers=self.headers(auth), allow_redirects=False) as answer,
            ):
                data = await answer.read()
                status = answer.status
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError) as error:
            raise _Gone(f"{path}: {type(error).__name__}") from None
        except (aiohttp.ClientError, OSError):
            return 0, None  # somebody is there, and has no such page: models may be reached all the same
        try:
            return status, msgspec.json.decode(data)
        except UNREADABLE:
            return status, None

    async def ask(self, auth: Auth, seconds: float, body: Mapping[str, Any]) -> _Reply:
        """Gives the answer to a request, with the time of each of its parts."""
        assert self.wire is not None
        reader = UsageReader(self.wire, streamed=bool(body.get("stream")))
        began = time.monotonic()
        parts: list[tuple[float, bytes]] = []
        status, why = 0, ""
        try:
            async with (
                asyncio.timeout(seconds),
                self.session.post(self.url + self.path, json=body, headers=self.headers(auth),
                                  allow_redirects=False) as answer,
            ):  # fmt: skip
                status = answer.status
                async for part in _parts(answer):
                    parts.append((time.monotonic() - began, part))
                    reader.feed(part)
        except TimeoutError:
            why = f"nothing more came in {seconds:g} s"
        except (aiohttp.ClientError, OSError) as error:
            why = f"the connection broke off: {type(error).__name__}"
        usage = reader.end()
        return _Reply(status, parts, usage.tokens, usage.complete and not why, usage.wants_tool, why or usage.error)

    def body(self, text: str, most: int, **more: object) -> dict[str, Any]:
        body = {"model": self.model, "max_tokens": most, "messages": [{"role": "user", "content": text}], **more}
        if self.wire == "chat" and more.get("stream"):
            body["stream_options"] = {"include_usage": True}
        return body

    # the checks

    async def health(self) -> None:
        """Finds out whether anyone is there, which models, and what llama-server and its like tell of themselves."""
        auth: Auth = "bearer" if self.key else "none"
        status, _ = await self.get("/health", auth)
        models_status, models = await self.get("/v1/models", auth)
        if self.key and models_status in (401, 403):
            models_status, models = await self.get("/v1/models", "x-api-key")
        listed = models.get("data") if isinstance(models, dict) else None
        names = [str(m.get("id")) for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        if not self.model and names:
            self.model = names[0]
        said = f"/health {status or 'no answer'}, /v1/models {models_status or 'no answer'}, {len(names)} models"
        if self.model and names and self.model not in names:
            self.add("health", "warn", f"{said}; {self.model} is not among them")
        else:
            self.add("health", "pass", said)
        _, props = await self.get("/props", auth)
        settings = props.get("default_generation_settings") if isinstance(props, dict) else None
        if isinstance(settings, dict) and isinstance(settings.get("n_ctx"), int):
            self.window = settings["n_ctx"]
        slots = props.get("total_slots") if isinstance(props, dict) else None
        if isinstance(slots, int):
            self.slots = slots
            words = "one slot" if slots == 1 else f"{slots} slots share the context and the speed"
            self.add("slots", "pass" if slots == 1 else "warn", words)
        if self.window is not None:
            grade: Grade = "pass" if self.window >= 32_000 else "warn"
            self.add("window", grade, f"{self.window} tokens of context", tokens=self.window)

    async def enter(self) -> bool:
        """Finds the format and the way to give the key; false when no request is answered."""
        words = ""
        for wire, path in _WIRES:
            self.wire, self.path = wire, path
            ways: tuple[Auth, ...] = ("x-api-key", "bearer") if self.key else ("none",)
            found: dict[Auth, _Reply] = {}
            began = time.monotonic()
            for way in ways:
                found[way] = await self.ask(way, self.waits.request, self.body("Say ok.", 16))
                began, seconds = time.monotonic(), time.monotonic() - began
            good = [way for way in ways if found[way].status == 200 and found[way].complete]
            if not good:
                words = words or found[ways[0]].words()
                if any(found[way].status != 404 for way in ways):
                    words = found[ways[0]].words()
                continue
            self.auth = good[0]
            self.add("reply", "warn" if seconds > _SLOW_REPLY else "pass", f"{wire}, answered in {seconds:.1f} s",
                     seconds=seconds)  # fmt: skip
            if self.key:
                open_to_all = (await self.ask("none", self.waits.request, self.body("Say ok.", 16))).status == 200
                bad = ["a request without a key is answered, too"] if open_to_all else []
                bad += [f"{way} is refused" for way in ways if way not in good]
                self.add("auth", "warn" if bad else "pass", "; ".join(bad) or "both ways, and none without a key")
            return True
        self.wire = None
        self.add("reply", "fail", f"no request is answered: {words}")
        return False

    async def formats(self) -> None:
        """Finds out which other formats it answers to, by one short question in each."""
        assert self.auth is not None and self.wire is not None
        self.wires = [self.wire]
        for wire, path in _WIRES[1:] + _OTHERS:
            if wire == self.wire:
                continue
            body: dict[str, Any] = {"model": self.model}
            if wire == "responses":
                body |= {"input": "Say ok.", "max_output_tokens": 16}
            else:
                body |= {"messages": [{"role": "user", "content": "Say ok."}], "max_tokens": 16}
            try:
                async with (
                    asyncio.timeout(self.waits.request),
                    self.session.post(self.url + path, json=body, headers=self.headers(self.auth),
                                      allow_redirects=False) as answer,
                ):  # fmt: skip
                    await answer.read()
                    if answer.status == 200:
                        self.wires.append(wire)
            except (aiohttp.ClientError, OSError):
                continue

    async def streams(self) -> None:
        """Finds out whether a stream comes as it is made, or at once at its end."""
        assert self.auth is not None
        body = self.body("Count from 1 to 300, one number a line.", 900, stream=True)
        got = await self.ask(self.auth, self.waits.request, body)
        events = got.data.count(b"data:")
        if got.status != 200 or not events:
            self.add("stream", "fail", f"no event came: {got.words()}")
            return
        first, last = got.parts[0][0], got.parts[-1][0]
        figures = {"first": first, "seconds": last, "events": float(events)}
        if got.tokens is not None and last > first:
            figures["speed"] = got.tokens.output / (last - first)
        if not got.complete:
            self.add("stream", "fail", f"it broke off: {got.words()}", **figures)
        elif events > 20 and last > 5 and last - first < 0.05 * last:
            self.add(
                "stream", "warn", f"buffered: {events} events in {last - first:.2f} s after {first:.1f} s", **figures
            )
        elif got.tokens is None:
            self.add("stream", "warn", "it tells no usage: cost and tokens are estimated", **figures)
        else:
            self.add("stream", "pass", f"{events} events, the first after {first:.2f} s", **figures)

    async def tools(self) -> None:
        """Finds out how often a call of a tool in a stream is what the tool asks for."""
        assert self.auth is not None
        good, bad = 0, ""
        for number in range(_TRIES):
            text = f"Use the tool write_file to write the text {number} into the file out{number}.txt."
            if self.wire == "anthropic":
                tools: list[Any] = [{"name": "write_file", "description": "Writes a file.", "input_schema": _TOOL}]
            else:
                function = {"name": "write_file", "description": "Writes a file.", "parameters": _TOOL}
                tools = [{"type": "function", "function": function}]
            got = await self.ask(self.auth, self.waits.request, self.body(text, 1000, stream=True, tools=tools))
            if got.status == 200 and got.complete and _called(got.data):
                good += 1
            else:
                bad = bad or (got.words() if got.status != 200 or not got.complete else "no call, or not of its shape")
        grade: Grade = "pass" if good == _TRIES else "warn" if good else "fail"
        self.add("tools", grade, f"{good} of {_TRIES} calls" + (f"; {bad}" if bad else ""), good=good)

    async def prefill(self, size: int) -> None:
        """Finds out how fast a prompt of about so many tokens is read; what is at its head defeats a cache."""
        assert self.auth is not None
        name = f"prefill-{size // 1000}k"
        if self.window is not None and size + 200 > self.window:
            self.add(name, "warn", f"the context of {self.window} tokens is too small for it")
            return
        words = [f"w{self.salt.randrange(10**4)}" for _ in range(size // 2)]
        body = self.body(f"{self.salt.random()} {' '.join(words)}\nSay ok.", 16, stream=True)
        got = await self.ask(self.auth, self.waits.request, body)
        if got.status != 200 or not got.complete:
            self.add(name, "fail", got.words())
            return
        first = got.parts[0][0]
        given = size if got.tokens is None else got.tokens.input + got.tokens.cache_read + got.tokens.cache_write
        speed = given / max(first, 1e-3)
        grade: Grade = "warn" if first > _SLOW_PREFILL else "pass"
        self.add(name, grade, f"first byte after {first:.1f} s, {speed:.0f} tokens/s", seconds=first, speed=speed)

    async def long(self) -> None:
        """Finds out whether anything on the way cuts an answer that takes minutes."""
        assert self.auth is not None
        body = self.body("Write a story of about 4000 words, and do not stop before.", 4000, stream=True)
        got = await self.ask(self.auth, self.waits.long, body)
        seconds = got.parts[-1][0] if got.parts else 0.0
        if got.status != 200 or not got.complete:
            self.add("long", "fail", got.words(), seconds=seconds)
        elif seconds > _PROOF:
            self.add("long", "pass", f"came to its end after {seconds:.0f} s", seconds=seconds)
        else:
            self.add("long", "warn", f"came to its end after {seconds:.1f} s, which proves nothing", seconds=seconds)


async def _parts(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while part := await answer.content.readany():
        yield part


def _called(data: bytes) -> bool:
    """Says whether a stream holds one call of the tool with arguments of its shape."""
    name, text = "", []
    for line in data.split(b"\n"):
        if not line.startswith(b"data:"):
            continue
        try:
            event = msgspec.json.decode(line[5:].strip())
            if isinstance(block := event.get("content_block"), dict) and block.get("type") == "tool_use":
                name += str(block.get("name"))
            if event.get("type") == "content_block_delta":
                text.append(str(event["delta"].get("partial_json", "")))
            for choice in event.get("choices") or []:
                for call in choice["delta"].get("tool_calls") or []:
                    name += str(call["function"].get("name") or "")
                    text.append(str(call["function"].get("arguments") or ""))
        except (*UNREADABLE, AttributeError, KeyError, TypeError):
            continue
    try:
        given = msgspec.json.decode("".join(text))
    except UNREADABLE:
        return False
    return (
        name == "write_file" and isinstance(given, dict)
        and all(isinstance(given.get(field), str) for field in ("path", "content"))
    )  # fmt: skip
