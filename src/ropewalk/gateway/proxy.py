"""The proxy: takes a lane's request, sends it on with the key that stays here, and passes the answer as it comes.

What is decided, in order: who sends (token), whether he still may (requests, budgets), where it goes (upstreams in
order, breaker, slots), whether it is tried again (before the first byte alone), what it used (read off the wire).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import aiohttp
from aiohttp import web

from ropewalk.core.errors import RopewalkError
from ropewalk.gateway import answers, asking, budget, cassette, ledger, offered
from ropewalk.gateway.answers import Failed, error
from ropewalk.gateway.asking import MOST, Ask
from ropewalk.gateway.budget import Budget, Expected, Refused, Reservation
from ropewalk.gateway.ledger import Activities, Entry, Ledger, Open
from ropewalk.gateway.prices import NOTHING, Cost, Price, Tables
from ropewalk.gateway.renewal import Broker
from ropewalk.gateway.sending import Sending, Swapped, Way
from ropewalk.gateway.settings import Current, Lane, Settings
from ropewalk.gateway.tokens import Tokens, Wire, wire_of
from ropewalk.gateway.traffic import Account
from ropewalk.gateway.usage import Usage, UsageReader

_BESIDE_SECONDS = 60.0
_FINAL = frozenset({400, 413, 422})
"""Are the answers that say that the request is wrong; another provider would say the same."""

_AGAIN_SECONDS = 5.0


class Proxy:
    """Is the application of one gateway: `folder` holds its settings, its ledger and what its lanes do."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.settings = Current(folder)
        self.ledger = Ledger(folder)
        self.activities = Activities(folder)
        self.logins = Broker(folder)
        self.budget = Budget()
        self.expected = Expected()
        self.accounts: dict[str, Account] = {}
        self.tapes: dict[str, cassette.Cassette] = {}
        self.cut = 0
        self._prices = Tables()
        self._session: aiohttp.ClientSession | None = None
        self._freed: set[asyncio.Future[None]] = set()
        self._take_over()

    def _take_over(self) -> None:
        """Charges what gateways before this one had sent, and as estimated what was open when they died (G25)."""
        behind = set(self.activities.begin())  # what was open when it died may be settled, and not shown yet
        for one in ledger.unsettled(self.folder):
            self.ledger.note(ledger.lost(one))
            behind.add(one.lane)
        used = {lane: (Tokens(), NOTHING) for lane in behind}
        totals = ledger.carried(self.folder)
        self.budget.carry(totals)
        for lane in behind:
            if (before := totals.get(f"lane:{lane}")) is not None:
                used[lane] = before.tokens, before.cost
        for entry in ledger.entries(self.folder, older=False):
            if entry.tokens is None:
                continue
            names = budget.names(entry.run, entry.task, entry.upstream, entry.at, entry.lane)
            self.budget.charge(names, entry.cost, entry.tokens, entry.at)
            if entry.lane in used:
                tokens, cost = used[entry.lane]
                used[entry.lane] = tokens + entry.tokens, cost + entry.cost
        for lane, (tokens, cost) in used.items():
            activity = self.activities.of(lane)
            activity.tokens, activity.cost = tokens, cost
            self.activities.show(lane)
        self._clear()

    def _clear(self) -> None:
        """Bounds what is kept of lanes that are gone."""
        self.activities.clear({one.lane for one in self.settings().lanes.values()})

    def note(self, one: Entry | Open) -> None:
        """Writes a line into the ledger, which begins a new file when it is full."""
        self.ledger.note(one)
        if self.ledger.is_full:
            self.budget.caps = self.settings.bounds
            self.ledger.turn(self.budget.totals(time.time()))
            self._clear()

    def application(self) -> web.Application:
        """Gives the application that a server runs."""
        app = web.Application(client_max_size=MOST + 1)
        app.router.add_route("*", "/{path:.*}", self.handle)
        app.on_startup.append(self._begin)
        app.on_cleanup.append(self._end)
        return app

    async def _begin(self, _: web.Application) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60), cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 18,
        )  # fmt: skip

    async def _end(self, _: web.Application) -> None:
        if self._session is not None:
            await self._session.close()
        self.ledger.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """Gives the connections to providers."""
        assert self._session is not None
        return self._session

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request of a lane."""
        settings = self.settings()
        self.budget.caps = self.settings.bounds
        if request.headers.get("upgrade"):
            return web.Response(status=426, text="there is no upgrade here", headers={"Upgrade": "HTTP/1.1"})
        held = asking.token(request)
        lane = settings.lanes.get(held)
        path = asking.path_of(request)
        wire = wire_of(path) if path is not None else None
        if lane is None:
            return error(wire, 401, "authentication_error", "the token is no lane's")
        if path is None or wire is None or request.method != "POST":
            return await self._beside(request, path, held, settings, lane)
        data = await asking.read(request, held, settings.first_byte)
        if isinstance(data, tuple):
            return error(wire, data[0], "invalid_request_error", data[1])
        ask = asking.asked(request, lane, wire, path, data, self.expected)
        return ask if isinstance(ask, web.Response) else await self._ask(request, path, held, settings, ask)

    async def _ask(
        self, request: web.Request, path: str, held: str, settings: Settings, ask: Ask
    ) -> web.StreamResponse:
        activity = self.activities.of(ask.lane.lane, held)
        if activity.requests >= ask.lane.requests:
            activity.error = "requests"
            self.activities.show(ask.lane.lane)
            return error(ask.wire, 400, "invalid_request_error",
                         f"the lane has made all of its {ask.lane.requests} requests")  # fmt: skip
        activity.requests += 1
        activity.open += 1
        activity.sent = time.time()
        activity.tools = activity.tools or offered.names(ask.body, ask.wire)
        self.activities.show(ask.lane.lane)
        try:
            if ask.lane.is_played:
                return await self._replayed(request, ask)
            answer = await self._sent(request, path, held, settings, ask)
            if answer.status >= 400 and (wait := answers.retry_after(answer.headers)) is not None:
                activity.until = max(activity.until, time.time() + wait)
            return answer
        finally:
            activity.open -= 1
            activity.ended = time.time()
            self.activities.show(ask.lane.lane)

    async def _sent(
        self, request: web.Request, path: str, held: str, settings: Settings, ask: Ask
    ) -> web.StreamResponse:
        """Sends a request to the first upstream that answers it."""
        names = _speaking(settings, ask.lane.upstreams, ask.wire)
        last: web.StreamResponse | None = None
        while names:
            name = names.pop(0)
            upstream = settings.upstreams[name]
            account = self._account(settings, name)
            if pause := account.is_open():
                last = last or error(ask.wire, 503, "overloaded_error", f"{name} is in trouble", retry_after=pause)
                continue
            price = upstream.price or self._prices(settings.prices).price(upstream.models.get(ask.model, ask.model))
            try:
                reserved = await self._reserve(settings, ask, name, price)
            except Refused as refused:
                last = self._refused(ask, name, refused)
                if refused.name != f"provider:{name}":
                    return last
                continue
            who = ask.lane
            self.note(
                Open(ask.id, ask.at, who.lane, who.run, who.task, who.harness, name, ask.model, ask.wire, ask.expected,
                     None if price is None else price.of(ask.expected))
            )  # fmt: skip
            one = Sending(self, request, path, held, settings, ask, Way(name, upstream, account, price, reserved))
            try:
                return await one.run()
            except Swapped:
                settings = self.settings()
                names = _speaking(settings, (name, *names), ask.wire)
            except Failed as failed:
                last = failed.response()
                if failed.status in _FINAL:
                    self._keep(ask, failed)
                    break
        if last is None:
            return error(ask.wire, 400, "invalid_request_error", f"no upstream of this lane speaks {ask.wire}")
        return last

    async def _reserve(self, settings: Settings, ask: Ask, name: str, price: Price | None) -> Reservation:
        """Holds back what a request may use; waits, no longer than a hold, for what others only reserved."""
        names = budget.names(ask.lane.run, ask.lane.task, name, ask.at, ask.lane.lane)
        while True:
            try:
                return self.budget.reserve(names, ask.expected.input, price, ask.expected.output, ask.most)
            except Refused as refused:
                left = ask.began + settings.hold - time.monotonic()
                if refused.spent or left <= 0:
                    raise
                mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._freed.add(mine)
                try:
                    await asyncio.wait({mine}, timeout=left)
                finally:
                    self._freed.discard(mine)

    def settled(self, held: Reservation, tokens: Tokens | None, price: Price | None, *, estimated: bool) -> Cost:
        """Charges what a request used, and lets those look again who wait for what it held back."""
        cost = self.budget.settle(held, tokens, price, estimated=estimated)
        for one in self._freed:
            if not one.done():
                one.set_result(None)
        return cost

    def _refused(self, ask: Ask, upstream: str, refused: Refused) -> web.Response:
        self.activities.of(ask.lane.lane).error = f"budget: {refused.name}"
        who, status = ask.lane, 400 if refused.spent else 429
        entry = Entry(
            ask.id, ask.at, who.lane, who.run, who.task, who.harness, upstream, ask.model, ask.wire, status, "refused",
            error=str(refused),
        )  # fmt: skip
        self.note(entry)
        if refused.spent:
            return error(ask.wire, 400, "invalid_request_error", str(refused))
        return error(ask.wire, 429, "rate_limit_error", str(refused), retry_after=_AGAIN_SECONDS)

    def _account(self, settings: Settings, name: str) -> Account:
        upstream = settings.upstreams[name]
        # what another endpoint had of troubles and pauses is not its own, though it has the other's name now
        key = upstream.account or f"{name} {upstream.url} {upstream.key}"
        if key not in self.accounts:
            self.accounts[key] = Account(upstream.slots, upstream.per_minute)
        found = self.accounts[key]
        if (found.slots, found.per_minute) != (upstream.slots, upstream.per_minute):
            found.allow(upstream.slots, upstream.per_minute)
        return found

    def tape(self, lane: Lane) -> cassette.Cassette | None:
        """Gives the cassette of a lane, or None; each lane plays it from its beginning."""
        if lane.tape is None:
            return None
        if lane.lane not in self.tapes:
            here = {one.lane for one in self.settings().lanes.values()}
            self.tapes = {name: tape for name, tape in self.tapes.items() if name in here}
            self.tapes[lane.lane] = cassette.Cassette(lane.tape.path, lane.tape.names)
        return self.tapes[lane.lane]

    def _keep(self, ask: Ask, failed: Failed) -> None:
        """Records a provider's answer that the request is wrong."""
        if (tape := self.tape(ask.lane)) is not None:
            tape.keep(ask.lane.recorded, ask.wire, ask.recorded, ask.lane.volatile.get(ask.wire, ()), failed.status,
                      failed.headers, [failed.body])  # fmt: skip

    async def _replayed(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        tape = self.tape(ask.lane)
        assert tape is not None
        found = tape.find(ask.lane.recorded, ask.wire, ask.recorded, ask.lane.volatile.get(ask.wire, ()))
        activity = self.activities.of(ask.lane.lane)
        if isinstance(found, str):
            activity.status = 400
            activity.error = f"cassette_miss: {found}"[:2000]
            if not tape.is_over(ask.lane.recorded):  # it may have left in the midst of one
                activity.missed = activity.missed or activity.error
            return error(ask.wire, 400, "cassette_miss", found)
        response = web.StreamResponse(status=found.status, headers=dict(found.headers))
        await response.prepare(request)
        reader = UsageReader(ask.wire, streamed="event-stream" in found.headers.get("content-type", ""))
        for part in found.parts():
            reader.feed(part)
            await response.write(part)
        await response.write_eof()
        usage = reader.end()
        activity.status, activity.error = found.status, usage.error
        self.note_answer(ask, usage)
        return response

    def note_answer(self, ask: Ask, usage: Usage) -> None:
        """Notes what an answer says about what comes next in its lane."""
        activity = self.activities.of(ask.lane.lane)
        activity.wants_tool = usage.wants_tool
        if usage.tokens is not None:
            activity.context = usage.tokens.total
            self.expected.note(ask.lane.lane, usage.tokens.output)

    async def _beside(
        self, request: web.Request, path: str | None, held: str, settings: Settings, lane: Lane
    ) -> web.StreamResponse:
        """Passes on what asks a model for nothing: lists of models, and counts of tokens; greets who greets."""
        if request.method in ("HEAD", "OPTIONS"):
            return web.Response(status=200)
        if path is None or not asking.is_beside(request.method, path):
            return error(None, 404, "not_found_error", "the gateway passes on nothing at this address")
        if lane.is_played:
            return error(None, 404, "not_found_error", "a cassette has no such answers")
        data = await asking.read(request, held, settings.first_byte)
        if isinstance(data, tuple):
            return error(None, data[0], "invalid_request_error", data[1])
        made = error(None, 404, "not_found_error", "this lane has no upstream")
        for name in lane.upstreams:
            upstream = settings.upstreams.get(name)
            if upstream is None:
                continue
            try:
                upstream = await self.logins.armed(upstream)
            except RopewalkError as refused:
                made = error(None, 401, "authentication_error", refused.message)
                continue
            there = asking.url(request, path, upstream, held)
            try:
                async with self.session.request(
                    request.method, there, data=data or None, headers=asking.headers(request, upstream, held),
                    allow_redirects=False, timeout=aiohttp.ClientTimeout(total=_BESIDE_SECONDS),
                ) as answer:  # fmt: skip
                    body = await answer.read()
                    for secret in asking.secrets(upstream, held):
                        body = body.replace(secret.encode(), b"<key>")
                    return web.Response(status=answer.status, body=body, headers=answers.kept(answer.headers))
            except (aiohttp.ClientError, OSError) as end:  # a time that is over is one of them
                made = error(None, 502, "api_error", f"{name} is out of reach: {type(end).__name__}")
        return made


def _speaking(settings: Settings, names: Iterable[str], wire: Wire) -> list[str]:
    """Gives the upstreams that there are and that speak a format, in their order."""
    there = ((name, settings.upstreams[name]) for name in names if name in settings.upstreams)
    return [name for name, upstream in there if not upstream.wires or wire in upstream.wires]
