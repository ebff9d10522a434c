"""One request on its way to one upstream: its slot, its tries, its answer as it comes, and what it used."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
import msgspec
from aiohttp import web

from ropewalk.core.errors import LoginError, RopewalkError
from ropewalk.gateway import answers, asking, budget, rewrite
from ropewalk.gateway.answers import Failed
from ropewalk.gateway.asking import Ask
from ropewalk.gateway.budget import Reservation
from ropewalk.gateway.ledger import Entry, Outcome
from ropewalk.gateway.prices import Price
from ropewalk.gateway.settings import Settings, Upstream
from ropewalk.gateway.tokens import Tokens
from ropewalk.gateway.traffic import Account, Full
from ropewalk.gateway.usage import Usage, UsageReader

if TYPE_CHECKING:
    from ropewalk.gateway.proxy import Proxy

_TRIES = 4
_CONNECT = 15.0
_AGAIN = frozenset({0, 408, 429, 500, 502, 503, 504, 524, 529})
_ERROR = 1 << 20


class Swapped(Exception):
    """Another upstream stands in the place of the one that was asked, before it gave an answer."""


class Way(NamedTuple):
    """Is where a request goes: the upstream with its name, account and price, and what is held back for it."""

    name: str
    upstream: Upstream
    account: Account
    price: Price | None
    held: Reservation


class Sending:
    """Is one request on its way to one upstream; what becomes of it is settled once, however it ends."""

    def __init__(
        self, proxy: Proxy, request: web.Request, path: str, token: str, settings: Settings, ask: Ask, way: Way,
    ) -> None:  # fmt: skip
        self.proxy, self.request, self.path, self.token = proxy, request, path, token
        self.settings, self.ask, self.way = settings, ask, way
        self.upstream = way.upstream
        self.first_ms: float | None = None
        self.tries = 0
        self.until = ask.began + settings.hold
        self._flying = False  # a provider has it, and may charge for it
        self._reader: UsageReader | None = None
        self._settled = False

    async def run(self) -> web.StreamResponse:
        """Gives the answer that went to the program.

        `Failed` when another upstream may be tried, `Swapped` when the one that stands in its place is to be.
        """
        account = self.way.account
        probe = account.begin()
        try:
            async with account.slot(self.until):
                return await self._tried()
        except Full as full:
            self.settle(429, "refused", error="no slot came free")
            self.proxy.activities.of(self.ask.lane.lane).limited = time.time()
            words = f"{self.way.name} is busy"
            raise answers.failed(self.ask.wire, 429, "rate_limit_error", words, retry_after=full.seconds) from None
        except asyncio.CancelledError:
            self._left()
            raise
        finally:
            account.end(probe)
            self.settle(500, "failed", error="an error of the gateway")  # nothing to do but after an unexpected one

    def _left(self) -> None:
        """Settles a request whose program hung up: what it was told is known, what was still to come is estimated."""
        if self._settled:
            return
        usage = self._reader.end() if self._reader is not None else None
        if usage is not None and usage.complete and usage.tokens is not None:
            self._note(usage)
            self.settle(200, "answered", usage)
        else:
            self.settle(499, "cancelled", usage)

    async def _arm(self, spent: str = "") -> None:
        """Takes the token of a login, where the upstream has one: another than one that was refused."""
        try:
            self.upstream = await self.proxy.logins.armed(self.way.upstream, spent)
        except RopewalkError as error:
            gone = isinstance(error, LoginError)
            words = f"{error.message}; {error.hint}" if error.hint else error.message
            # at 401 a program would renew the login that it has, which is made up
            kind, status = ("permission_error", 403) if gone else ("api_error", 503)
            last = answers.failed(self.ask.wire, status, kind, words)
            self._failed(last)
            raise last from None

    async def _tried(self) -> web.StreamResponse:
        await self._arm()
        data, added = self._data()
        account = self.way.account
        last: Failed | None = None
        while True:
            if wait := account.limited(self.ask.model):
                self._told_to_wait(wait)
            try:
                await account.turn(self.until, self.ask.model)
            except Full:
                if last is None:
                    raise
                self._failed(last)
                raise last from None
            if self.proxy.settings().upstreams.get(self.way.name, self.way.upstream) != self.way.upstream:
                words = f"another was put in the place of {self.way.name}"
                self.settle(last.status or 502 if last is not None else 503, "failed", error=words)
                raise Swapped
            self.tries += 1
            try:
                return await self._once(data, strip=added)
            except Failed as failed:
                last = failed
            if last.status == 401 and self.upstream.login is not None and self.tries < _TRIES:
                await self._arm(self.upstream.key)
                continue
            asks = answers.retry_after(last.headers)
            wait = answers.backoff(self.tries) if asks is None else asks
            if last.status == 429:
                account.limit(wait, self.ask.model)
                self._told_to_wait(wait)
                if asks is None:
                    last.headers = {**last.headers, "retry-after": str(max(1, round(wait)))}
            late = time.monotonic() + wait > self.until
            if last.status not in _AGAIN or self.tries >= _TRIES or late or self._flying:
                self._failed(last)
                raise last
            if last.status != 429:  # the account's own pause is waited for above
                await asyncio.sleep(wait)

    def _told_to_wait(self, seconds: float) -> None:
        """Shows the lane's supervisor that its provider asked for a pause, and until when."""
        activity, now = self.proxy.activities.of(self.ask.lane.lane), time.time()
        activity.limited, activity.until = now, max(activity.until, now + seconds)
        self.proxy.activities.show(self.ask.lane.lane)

    def _failed(self, last: Failed) -> None:
        if last.status in _AGAIN and last.status != 429:
            self.way.account.failed()
        self.settle(last.status or 502, "failed", error=last.words)

    def _data(self) -> tuple[bytes, bool]:
        """Gives the body that is sent, which is the one that came where nothing has to be changed."""
        ask, upstream = self.ask, self.upstream
        body, added = rewrite.ask_usage(ask.body, ask.wire)
        body = rewrite.apply(body, ask.wire, upstream.rewrites)
        if ask.model in upstream.models and "model" in body:
            body = {**body, "model": upstream.models[ask.model]}
        if (bound := self.way.held.output) is not None:
            body = budget.bounded(body, ask.wire, bound, plain="plain_fields" in upstream.rewrites)
        return (ask.raw if body is ask.body else msgspec.json.encode(body)), added

    async def _once(self, data: bytes, *, strip: bool) -> web.StreamResponse:
        name, upstream = self.way.name, self.upstream
        there = asking.url(self.request, self.path, upstream, self.token, self.ask.model)
        answer: aiohttp.ClientResponse | None = None
        whole = False
        try:
            try:
                async with asyncio.timeout(self.settings.first_byte):
                    self._flying = True
                    answer = await self.proxy.session.post(
                        there, data=data, headers=asking.headers(self.request, upstream, self.token),
                        allow_redirects=False, timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT),
                    )  # fmt: skip
                    if answer.status >= 300:
                        raise await self._refusal(answer)
                    first = await answer.content.readany()
            except aiohttp.ClientConnectorError as error:
                raise self._broken(f"{name} is out of reach: {type(error).__name__}") from None
            except aiohttp.ServerTimeoutError:
                raise self._broken(f"{name} is out of reach: no connection in {_CONNECT:g} s") from None
            except TimeoutError:
                # it may be at work, and would be at it twice
                words = f"{name} sent nothing for {self.settings.first_byte:g} s"
                raise answers.failed(self.ask.wire, 0, "api_error", words) from None
            except (aiohttp.ClientError, OSError) as error:
                raise self._broken(f"{name} broke off before its answer: {type(error).__name__}") from None
            if not first:
                raise self._broken(f"{name} gave an empty answer")
            response, whole = await self._pass(answer, first, strip=strip)
            return response
        finally:
            if answer is not None and not whole:
                answer.close()

    def _broken(self, words: str) -> Failed:
        self._flying = False
        return answers.failed(self.ask.wire, 0, "api_error", words)

    async def _refusal(self, answer: aiohttp.ClientResponse) -> Failed:
        """Gives the failure that a provider's own error is."""
        text = bytearray()
        while len(text) < _ERROR and (part := await answer.content.readany()):
            text += part
        self._flying = False
        shown = bytes(text)
        for secret in asking.secrets(self.upstream, self.token):
            shown = shown.replace(secret.encode(), b"<key>")
        if answer.status < 400:
            words = f"{self.way.name} points elsewhere ({answer.status}), which is not followed"
            return answers.failed(self.ask.wire, 502, "api_error", words)
        return Failed(answer.status, shown, answers.kept(answer.headers), shown[:300].decode("utf-8", "replace"))

    async def _pass(
        self, answer: aiohttp.ClientResponse, part: bytes, *, strip: bool
    ) -> tuple[web.StreamResponse, bool]:
        """Passes an answer on as it comes; says whether it came to its end."""
        kind = answer.headers.get("content-type", "")
        streamed = "event-stream" in kind or (self.ask.stream and "json" not in kind)
        self._reader = reader = UsageReader(self.ask.wire, streamed=streamed)
        taken = rewrite.Strip() if strip and streamed else None
        headers = answers.kept(answer.headers)
        response = web.StreamResponse(status=answer.status, headers=headers)
        lane = self.ask.lane.lane
        activity = self.proxy.activities.of(lane)
        tape = self.proxy.tape(self.ask.lane)
        parts: list[bytes] = []
        self.first_ms = (time.monotonic() - self.ask.began) * 1000
        clock, between = asyncio.get_running_loop().time, self.settings.between
        writing = whole = False
        try:
            async with asyncio.timeout(between) as bound:
                writing = True
                await response.prepare(self.request)
                while part:
                    activity.byte = time.time()
                    self.proxy.activities.show(lane, now=not reader.fed)
                    reader.feed(part)
                    shown = part if taken is None else taken.feed(part)
                    writing = True
                    if shown:
                        if tape is not None:
                            parts.append(shown)  # as the program sees it
                        await response.write(shown)
                    bound.reschedule(clock() + between)
                    writing = False
                    part = await answer.content.readany()
                whole = True
                if taken is not None and (left := taken.end()):
                    parts.append(left)
                    writing = True
                    await response.write(left)
        except (aiohttp.ClientError, TimeoutError, OSError):
            if writing:  # the program left, or takes nothing
                self._left()
                self._abort()
                return response, whole
            self.proxy.cut += 1
        if whole and tape is not None:
            ask = self.ask
            tape.keep(ask.lane.recorded, ask.wire, ask.recorded, ask.lane.volatile.get(ask.wire, ()), answer.status,
                      headers, parts, asking.secrets(self.upstream, self.token))  # fmt: skip
        self._answered(answer.status, reader.end(), whole=whole)
        if whole:
            with suppress(ConnectionError):
                await response.write_eof()
        else:
            self._abort()  # a cut answer must not look like a whole one
        return response, whole

    def _abort(self) -> None:
        if self.request.transport is not None:
            self.request.transport.abort()

    def _answered(self, status: int, usage: Usage, *, whole: bool) -> None:
        good = whole and usage.complete and not (usage.error and not usage.tokens)
        if whole and not usage.error:
            self.way.account.worked()
        else:
            self.way.account.failed()
        self._note(usage)
        activity = self.proxy.activities.of(self.ask.lane.lane)
        activity.status, activity.error = status, usage.error
        self.settle(status, "answered" if good else "cut", usage)

    def _note(self, usage: Usage) -> None:
        self.proxy.note_answer(self.ask, usage)

    def settle(self, status: int, outcome: Outcome, usage: Usage | None = None, *, error: str = "") -> None:
        """Writes what became of the request into the account and the ledger, once."""
        if self._settled:
            return
        self._settled = True
        ask, way = self.ask, self.way
        tokens, estimated = self._used(outcome, usage)
        cost = self.proxy.settled(way.held, tokens, way.price, estimated=estimated)
        activity = self.proxy.activities.of(ask.lane.lane)
        if tokens is not None:
            activity.tokens += tokens
            activity.cost += cost
        if outcome in ("failed", "refused"):
            activity.status, activity.error = status, error[:500]
        entry = Entry(
            ask.id, ask.at, ask.lane.lane, ask.lane.run, ask.lane.task, ask.lane.harness, way.name, ask.model, ask.wire,
            status, outcome, tokens, estimated, None if tokens is None else cost.dollars,
            "" if tokens is None else cost.mark, None if self.first_ms is None else round(self.first_ms, 1),
            round((time.monotonic() - ask.began) * 1000, 1), usage.id if usage else "", usage.stop if usage else "",
            bool(usage and usage.wants_tool), max(1, self.tries), error or (usage.error if usage else ""),
        )  # fmt: skip
        self.proxy.note(entry)

    def _used(self, outcome: Outcome, usage: Usage | None) -> tuple[Tokens | None, bool]:
        """Gives the tokens to charge, and whether they are estimated; None for a request that no provider has."""
        if usage is None:
            return (self.ask.expected, True) if self._flying else (None, False)
        known = usage.tokens or Tokens()
        if usage.complete and usage.tokens is not None and outcome == "answered":
            return known, False
        # what was made is not known to its end
        given = known.input + known.cache_read + known.cache_write
        return msgspec.structs.replace(
            known, input=known.input if given else self.ask.expected.input, output=max(known.output, usage.made)
        ), True
