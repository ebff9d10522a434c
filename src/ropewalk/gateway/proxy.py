"""The proxy: takes a lane's request, sends it on with the key that stays here, and passes the answer as it comes.

What is decided, in order: who sends (token), whether he still may (requests, budgets), where it goes (upstreams in
order, breaker, slots), whether it is tried again (before the first byte alone), what it used (read off the wire).
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp import web

from ropewalk.core.decoding import UNREADABLE
from ropewalk.gateway import budget, cassette, ledger, prices, rewrite
from ropewalk.gateway.budget import Budget, Expected, Refused, Reservation
from ropewalk.gateway.ledger import Activities, Entry, Ledger, Open, Outcome
from ropewalk.gateway.prices import Price
from ropewalk.gateway.settings import Current, Lane, Settings, Upstream
from ropewalk.gateway.tokens import Tokens, Wire, wire_of
from ropewalk.gateway.traffic import Account, Full
from ropewalk.gateway.usage import Usage, UsageReader

MOST = 64 << 20
"""Is how long a request may be, in bytes (G17)."""

_TRIES = 4
_DICE = random.Random()
_AGAIN = frozenset({408, 429, 500, 502, 503, 504, 529})
_PASSED = ("content-type", "retry-after", "request-id", "x-request-id", "cache-control")
_DROPPED = frozenset({"host", "content-length", "transfer-encoding", "connection", "authorization", "x-api-key",
                      "x-goog-api-key", "accept-encoding", "content-encoding", "expect", "keep-alive", "te", "upgrade",
                      "proxy-authorization", "cookie"})  # fmt: skip


class _Ask(NamedTuple):
    """Is a request as it is handled."""

    id: str
    lane: Lane
    wire: Wire
    model: str
    body: dict[str, Any]
    stream: bool
    expected: Tokens
    began: float


class _Failed(Exception):
    """An upstream gave no answer that goes on: status, body and headers of the last try."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str], tries: int, words: str) -> None:
        super().__init__(words)
        self.status, self.body, self.headers, self.tries, self.words = status, body, headers, tries, words


class Proxy:
    """Is the application of one gateway: `folder` holds its settings, its ledger and what its lanes do."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.settings = Current(folder)
        for one in ledger.unsettled(folder):
            note = Ledger(folder)
            note.note(ledger.lost(one))
            note.close()
        self.ledger = Ledger(folder)
        self.activities = Activities(folder)
        self.budget = Budget()
        self.expected = Expected()
        self.accounts: dict[str, Account] = {}
        self.tapes: dict[str, cassette.Cassette] = {}
        self.cut = 0
        self._session: aiohttp.ClientSession | None = None
        self._prices = prices.read()
        for entry in ledger.entries(folder):
            if entry.tokens is not None:
                self.budget.charge(_names(entry.run, entry.task, entry.upstream, entry.at, entry.lane), entry.cost,
                                   entry.tokens)  # fmt: skip

    def application(self) -> web.Application:
        """Gives the application that a server runs."""
        app = web.Application(client_max_size=MOST)
        app.router.add_route("*", "/{path:.*}", self.handle)
        app.on_startup.append(self._begin)
        app.on_cleanup.append(self._end)
        return app

    async def _begin(self, _: web.Application) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60), auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )  # fmt: skip

    async def _end(self, _: web.Application) -> None:
        if self._session is not None:
            await self._session.close()
        self.ledger.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request of a lane."""
        settings = self.settings()
        self.budget.caps = dict(settings.caps)
        lane = settings.lanes.get(_token(request))
        if request.headers.get("upgrade"):
            return web.Response(status=426, text="there is no upgrade here")
        if lane is None:
            return _error(None, 401, "authentication_error", "the token is no lane's")
        wire = wire_of(request.path)
        if wire is None or request.method != "POST":
            return await self._beside(request, settings, lane)
        body, why = await _body(request)
        if body is None:
            return _error(wire, 400, "invalid_request_error", why)
        return await self._ask(request, settings, _asked(request, lane, wire, body, self.expected))

    async def _ask(self, request: web.Request, settings: Settings, ask: _Ask) -> web.StreamResponse:
        activity = self.activities.of(ask.lane.lane)
        if activity.requests >= ask.lane.requests:
            activity.error = "requests"
            self.activities.show(ask.lane.lane)
            return _error(ask.wire, 400, "invalid_request_error",
                          f"the lane has made all of its {ask.lane.requests} requests")  # fmt: skip
        activity.requests += 1
        activity.open += 1
        activity.sent = time.time()
        self.activities.show(ask.lane.lane)
        try:
            if settings.tape is not None and settings.tape.mode == "replay":
                return await self._replayed(request, settings, ask)
            return await self._sent(request, settings, ask)
        finally:
            activity.open -= 1
            activity.ended = time.time()
            self.activities.show(ask.lane.lane)

    async def _sent(self, request: web.Request, settings: Settings, ask: _Ask) -> web.StreamResponse:
        """Sends a request to the first upstream that answers it."""
        names = [n for n in ask.lane.upstreams if n in settings.upstreams]
        names = [n for n in names if not settings.upstreams[n].wires or ask.wire in settings.upstreams[n].wires]
        if not names:
            return _error(ask.wire, 400, "invalid_request_error", f"no upstream of this lane speaks {ask.wire}")
        last: web.StreamResponse | None = None
        for place, name in enumerate(names):
            upstream = settings.upstreams[name]
            price = upstream.price or self._price(settings, ask.model)
            account = self._account(name, upstream)
            final = place == len(names) - 1
            if (pause := account.is_open()) and not final:
                continue
            try:
                held = self.budget.reserve(_names(ask.lane.run, ask.lane.task, name, time.time(), ask.lane.lane),
                                           ask.expected.input, price, ask.expected.output)  # fmt: skip
            except Refused as refused:
                return self._refused(ask, name, refused)
            who = ask.lane
            self.ledger.note(
                Open(ask.id, round(time.time(), 3), who.lane, who.run, who.task, who.harness, name, ask.model, ask.wire,
                     ask.expected)
            )  # fmt: skip
            one = _Sending(self, request, settings, ask, name, upstream, account, held, price)
            if pause:
                one.settle(503, "refused", error="the breaker is open")
                return _error(ask.wire, 503, "overloaded_error", f"{name} is in trouble", retry_after=pause)
            try:
                return await one.run()
            except _Failed as failed:
                last = _passed(failed)
                if failed.status in (400, 401, 403, 404, 413, 422) and final:
                    break
        assert last is not None
        return last

    def _refused(self, ask: _Ask, upstream: str, refused: Refused) -> web.Response:
        activity = self.activities.of(ask.lane.lane)
        activity.error = f"budget: {refused.name}"
        who = ask.lane
        entry = Entry(
            ask.id, round(time.time(), 3), who.lane, who.run, who.task, who.harness, upstream, ask.model, ask.wire, 400,
            "refused", error=str(refused),
        )  # fmt: skip
        self.ledger.note(entry)
        return _error(ask.wire, 400, "invalid_request_error", str(refused))

    def _price(self, settings: Settings, model: str) -> Price | None:
        if settings.prices:
            return prices.read(settings.prices).price(model)
        return self._prices.price(model)

    def _account(self, name: str, upstream: Upstream) -> Account:
        key = upstream.account or name
        found = self.accounts.setdefault(key, Account(upstream.slots, upstream.per_minute))
        found.slots, found.per_minute = upstream.slots, upstream.per_minute
        return found

    def tape(self, settings: Settings) -> cassette.Cassette | None:
        """Gives the cassette in use, or None."""
        if settings.tape is None:
            return None
        return self.tapes.setdefault(settings.tape.folder, cassette.Cassette(settings.tape.folder))

    async def _replayed(self, request: web.Request, settings: Settings, ask: _Ask) -> web.StreamResponse:
        tape = self.tape(settings)
        assert tape is not None
        found = tape.find(ask.lane.lane, ask.wire, ask.body, ask.lane.volatile.get(ask.wire, ()))
        if isinstance(found, str):
            activity = self.activities.of(ask.lane.lane)
            activity.error = "cassette_miss"
            return _error(ask.wire, 400, "cassette_miss", found)
        response = web.StreamResponse(status=found.status, headers=dict(found.headers))
        await response.prepare(request)
        reader = UsageReader(ask.wire, streamed=ask.stream)
        for part in found.parts():
            reader.feed(part)
            await response.write(part)
        await response.write_eof()
        self._note_answer(ask, reader.end())
        return response

    def _note_answer(self, ask: _Ask, usage: Usage) -> None:
        activity = self.activities.of(ask.lane.lane)
        activity.wants_tool = usage.wants_tool
        if usage.tokens is not None:
            self.expected.note(ask.lane.lane, usage.tokens.output)

    async def _beside(self, request: web.Request, settings: Settings, lane: Lane) -> web.StreamResponse:
        """Passes on what asks a model for nothing: lists of models, counts of tokens, greetings."""
        if request.method == "HEAD":
            return web.Response(status=200)
        for name in lane.upstreams:
            upstream = settings.upstreams.get(name)
            if upstream is None:
                continue
            assert self._session is not None
            url = upstream.url.rstrip("/") + _tail(request, upstream)
            data = await request.read()
            try:
                async with self._session.request(
                    request.method, url, data=data or None, headers=_headers(request, upstream),
                    timeout=aiohttp.ClientTimeout(total=60),
                ) as answer:  # fmt: skip
                    return web.Response(status=answer.status, body=await answer.read(), headers=_kept(answer.headers))
            except (aiohttp.ClientError, TimeoutError) as error:
                return _error(None, 502, "api_error", f"{name} is out of reach: {type(error).__name__}")
        return _error(None, 404, "not_found_error", "this lane has no upstream")


class _Sending:
    """Is one request on its way to one upstream."""

    def __init__(
        self, proxy: Proxy, request: web.Request, settings: Settings, ask: _Ask, name: str, upstream: Upstream,
        account: Account, held: Reservation, price: Price | None,
    ) -> None:  # fmt: skip
        self.proxy, self.request, self.settings, self.ask = proxy, request, settings, ask
        self.name, self.upstream, self.account, self.held, self.price = name, upstream, account, held, price
        self.first_ms: float | None = None
        self.tries = 0
        self._settled = False
        self.until = time.monotonic() + settings.hold

    async def run(self) -> web.StreamResponse:
        """Gives the answer that went to the program; `_Failed` when another upstream may be tried."""
        try:
            async with self.account.slot(max(0.0, self.until - time.monotonic())):
                return await self._tried()
        except Full as full:
            self.settle(429, "refused", error="no slot")
            self.proxy.activities.of(self.ask.lane.lane).limited = time.time()
            answer = _error(self.ask.wire, 429, "rate_limit_error", f"{self.name} is busy", retry_after=full.seconds)
            raise _Failed(
                429, answer.body if isinstance(answer.body, bytes) else b"", answer.headers, 0, "no slot"
            ) from None
        except asyncio.CancelledError:
            # the program hung up; what was sent may be charged
            self.settle(499, "cancelled", sent=self.tries > 0)
            raise

    async def _tried(self) -> web.StreamResponse:
        body, added = rewrite.ask_usage(self.ask.body, self.ask.wire)
        body = rewrite.apply(body, self.ask.wire, self.upstream.rewrites)
        if self.ask.model in self.upstream.models and "model" in body:
            body = {**body, "model": self.upstream.models[self.ask.model]}
        data = msgspec.json.encode(body)
        while True:
            self.tries += 1
            try:
                return await self._once(data, strip=added)
            except _Failed as failed:
                again = failed.status in _AGAIN or failed.status == 0
                if again and failed.status != 429:
                    self.account.failed()
                wait = _wait(failed, self.tries)
                if failed.status == 429:
                    self.account.limit(wait)
                    self.proxy.activities.of(self.ask.lane.lane).limited = time.time()
                if not again or self.tries >= _TRIES or time.monotonic() + wait > self.until:
                    self.settle(failed.status or 502, "failed", error=failed.words)
                    failed.tries = self.tries
                    raise
            await asyncio.sleep(wait)

    async def _once(self, data: bytes, *, strip: bool) -> web.StreamResponse:
        session = self.proxy._session
        assert session is not None
        url = self.upstream.url.rstrip("/") + _tail(self.request, self.upstream, self.ask.model)
        waits = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=self.settings.first_byte)
        try:
            answer = await session.post(url, data=data, headers=_headers(self.request, self.upstream), timeout=waits)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = f"{self.name} is out of reach: {type(error).__name__}"
            made = _error(self.ask.wire, 502, "api_error", words)
            raise _Failed(0, made.body if isinstance(made.body, bytes) else b"", made.headers, 1, words) from None
        try:
            if answer.status >= 400:
                text = await answer.content.read(1 << 20)
                raise _Failed(answer.status, text, _kept(answer.headers), 1, text[:300].decode("utf-8", "replace"))
            return await self._pass(answer, strip=strip)
        finally:
            answer.release()

    async def _pass(self, answer: aiohttp.ClientResponse, *, strip: bool) -> web.StreamResponse:
        """Passes an answer on as it comes."""
        streamed = "event-stream" in answer.headers.get("content-type", "") or self.ask.stream
        reader = UsageReader(self.ask.wire, streamed=streamed)
        taken = rewrite.Strip() if strip else None
        response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
        activity = self.proxy.activities.of(self.ask.lane.lane)
        tape = self.proxy.tape(self.settings)
        parts: list[bytes] = []
        whole = hung_up = False
        try:
            iterator = answer.content.iter_any()
            while True:
                try:
                    part = await asyncio.wait_for(
                        anext(iterator), self.settings.between if parts or self.first_ms else None
                    )
                except StopAsyncIteration:
                    break
                if self.first_ms is None:
                    self.first_ms = (time.monotonic() - self.ask.began) * 1000
                    await response.prepare(self.request)
                first, activity.byte = activity.byte < activity.sent, time.time()
                self.proxy.activities.show(self.ask.lane.lane, now=first)
                reader.feed(part)
                if tape is not None:
                    parts.append(part)
                shown = part if taken is None else taken.feed(part)
                if shown:
                    await response.write(shown)
            if self.first_ms is None:
                await response.prepare(self.request)
            if taken is not None and (left := taken.end()):
                await response.write(left)
            whole = True
        except ConnectionResetError:
            hung_up = True  # the program left, with the answer or without its end
        except (aiohttp.ClientError, TimeoutError):
            self.proxy.cut += 1
        usage = reader.end()
        if tape is not None and whole:
            tape.keep(self.ask.lane.lane, self.ask.wire, self.ask.body, self.ask.lane.volatile.get(self.ask.wire, ()),
                      answer.status, _kept(answer.headers), parts)  # fmt: skip
        self._answered(answer.status, usage, whole=whole or (hung_up and usage.complete))
        if whole:
            with suppress(ConnectionResetError):
                await response.write_eof()
        elif self.request.transport is not None:
            self.request.transport.abort()  # a cut answer must not look like a whole one
        return response

    def _answered(self, status: int, usage: Usage, *, whole: bool) -> None:
        if whole:
            self.account.worked()
        else:
            self.account.failed()
        self.proxy._note_answer(self.ask, usage)
        activity = self.proxy.activities.of(self.ask.lane.lane)
        activity.status, activity.error = status, usage.error
        self.settle(status, "answered" if whole else "cut", usage)

    def settle(
        self, status: int, outcome: Outcome, usage: Usage | None = None, *, sent: bool = False, error: str = ""
    ) -> None:
        """Writes what became of the request into the account and the ledger, once."""
        if self._settled:
            return
        self._settled = True
        ask = self.ask
        tokens, estimated = (usage.tokens if usage is not None else None), False
        if outcome in ("cut", "cancelled") and (sent or usage is not None):
            # what was made is not known to its end
            known = tokens or Tokens()
            tokens = Tokens(known.input or ask.expected.input, known.cache_read, known.cache_write,
                            max(known.output, ask.expected.output if sent else 1), known.reasoning)  # fmt: skip
            estimated = True
        elif outcome == "answered" and tokens is None:
            tokens, estimated = ask.expected, True
        cost = self.proxy.budget.settle(self.held, tokens, self.price, estimated=estimated)
        if tokens is not None:
            activity = self.proxy.activities.of(ask.lane.lane)
            activity.tokens += tokens
            activity.cost += cost
        entry = Entry(
            ask.id, round(time.time(), 3), ask.lane.lane, ask.lane.run, ask.lane.task, ask.lane.harness, self.name,
            ask.model, ask.wire, status, outcome, tokens, estimated, None if tokens is None else cost.dollars,
            "" if tokens is None else cost.mark, None if self.first_ms is None else round(self.first_ms, 1),
            round((time.monotonic() - ask.began) * 1000, 1), usage.id if usage else "", usage.stop if usage else "",
            bool(usage and usage.wants_tool), max(1, self.tries), error or (usage.error if usage else ""),
        )  # fmt: skip
        self.proxy.ledger.note(entry)


def _names(run: str, task: str, upstream: str, at: float, lane: str) -> list[str]:
    """Gives the names that a request counts under."""
    day = time.strftime("%Y-%m-%d", time.gmtime(at))
    found = [f"lane:{lane}", f"provider:{upstream}", f"day:{day}", "day"]
    return found + ([f"run:{run}"] if run else []) + ([f"task:{run}/{task}"] if task else [])


def _token(request: web.Request) -> str:
    bearer = request.headers.get("authorization", "")
    return (
        request.headers.get("x-api-key")
        or request.headers.get("x-goog-api-key")
        or (bearer[7:] if bearer.lower().startswith("bearer ") else "")
        or request.query.get("key", "")
    ).strip()


async def _body(request: web.Request) -> tuple[dict[str, Any] | None, str]:
    """Gives a request's body, or why it can't be taken."""
    try:
        data = await request.read()
        found = msgspec.json.decode(data)
    except web.HTTPRequestEntityTooLarge:
        return None, f"the request is larger than {MOST >> 20} MiB"
    except UNREADABLE:
        return None, "the request is no JSON"
    return (found, "") if isinstance(found, dict) else (None, "the request is no JSON object")


def _asked(request: web.Request, lane: Lane, wire: Wire, body: dict[str, Any], expected: Expected) -> _Ask:
    if wire == "gemini":
        name = request.path.rsplit("/", 1)[-1]
        model, stream = name.split(":", 1)[0], ":streamGenerateContent" in name
    else:
        model, stream = str(body.get("model") or ""), bool(body.get("stream"))
    size = request.content_length or len(msgspec.json.encode(body))
    likely = Tokens(input=budget.input_tokens(size), output=expected.output(lane.lane, budget.asked_output(body)))
    return _Ask(uuid.uuid4().hex, lane, wire, model, body, stream, likely, time.monotonic())


def _tail(request: web.Request, upstream: Upstream, model: str = "") -> str:
    """Gives the path and the query that go on, without a key of the lane's, and with the upstream's name of a model."""
    path = request.path
    if model and model in upstream.models:
        path = path.replace(f"/{model}:", f"/{upstream.models[model]}:")
    query = "&".join(f"{k}={v}" for k, v in request.query.items() if k != "key")
    return path + (f"?{query}" if query else "")


def _headers(request: web.Request, upstream: Upstream) -> dict[str, str]:
    found = {k: v for k, v in request.headers.items() if k.lower() not in _DROPPED}
    found["Accept-Encoding"] = "identity"  # usage is read off the wire (G15)
    if upstream.auth == "bearer" and upstream.key:
        found["Authorization"] = f"Bearer {upstream.key}"
    elif upstream.auth != "none" and upstream.key:
        found[upstream.auth] = upstream.key
    return {**found, **upstream.headers}


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    low = {k.lower(): v for k, v in headers.items()}
    return {k: v for k, v in low.items() if k in _PASSED or k.startswith(("anthropic-", "x-ratelimit", "openai-"))}


def _wait(failed: _Failed, tries: int) -> float:
    """Gives how long to wait before another try: what the provider asks for, else a growing time with jitter."""
    text = next((v for k, v in failed.headers.items() if k.lower() == "retry-after"), "")
    try:
        return max(0.0, float(text)) + _DICE.uniform(0, 0.25)
    except ValueError:
        return min(8.0, 0.5 * 2.0 ** (tries - 1)) * _DICE.uniform(0.75, 1.25)


def _passed(failed: _Failed) -> web.Response:
    headers = {k: v for k, v in failed.headers.items() if k.lower() not in ("content-length",)}
    return web.Response(status=failed.status or 502, body=failed.body, headers=headers)


def _error(wire: Wire | None, status: int, kind: str, words: str, *, retry_after: float | None = None) -> web.Response:
    """Gives an error in the words of a format; one that no try will mend says so to programs that ask."""
    body: dict[str, Any]
    if wire == "anthropic":
        body = {"type": "error", "error": {"type": kind, "message": words}}
    elif wire == "gemini":
        body = {
            "error": {
                "code": status,
                "message": words,
                "status": "INVALID_ARGUMENT" if status == 400 else "UNAVAILABLE",
            }
        }
    else:
        body = {"error": {"message": words, "type": kind, "code": kind}}
    headers = {"x-should-retry": "true" if retry_after is not None else "false"}
    if retry_after is not None:
        headers["retry-after"] = str(max(1, round(retry_after)))
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)
