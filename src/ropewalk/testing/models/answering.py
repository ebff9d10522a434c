"""The server's application: takes a request, finds where its script stands, and answers, or fails as it is told to."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
import uuid
from collections.abc import Iterable, Mapping

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ropewalk.testing.models import fill, script
from ropewalk.testing.models.conversation import Asked, Json, Place, call_id, find_place
from ropewalk.testing.models.exchange import Exchange
from ropewalk.testing.models.faults import Fault, fault
from ropewalk.testing.models.ledger import Canaries, Entry, Ledger
from ropewalk.testing.models.oauth import Logins
from ropewalk.testing.models.reply import Call, Reply, Usage
from ropewalk.testing.models.script import Scenario, Script, ScriptError, Step
from ropewalk.testing.models.turn import Turn
from ropewalk.testing.models.wires import WIRES, Route, models, route

_SIDE_WORDS = re.compile(r"\b(?:titles?|summari[sz]e|summary|suggest(?:ion)?s?)\b", re.IGNORECASE)
_SIDE_USAGE = Usage(100, 10, 0, 0, 0)
_SHOWN = 2000


class Application:
    """Is the ASGI application; `transports` are the open connections by the client's address."""

    def __init__(
        self, ledger: Ledger, *, scripts: str | None = None, keys: Iterable[str] = (),
        canaries: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.ledger = ledger
        self.added: dict[str, Script] = {}
        self.logins = Logins()
        self.transports: dict[tuple[str, int], asyncio.Transport] = {}
        self._folder = scripts
        self._keys = frozenset(keys)
        self._canaries = Canaries(canaries or {})
        self._begun = time.monotonic()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends what hangs and stalls; no more requests are expected."""
        self._stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._stopping, self.transports)
        parts = scope["path"].lstrip("/").split("/", 2)
        if parts[0].startswith("_"):
            await self._about(exchange, scope["path"])
            return
        lane, name, path = (*parts, "", "")[:3]
        asks = route(scope["method"], path)
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        entry = self.ledger.open(
            lane=lane, scenario=name, wire=asks.wire.name, method=scope["method"], path=f"/{path}", model=asks.model,
            started=round(time.monotonic() - self._begun, 6), agent=headers.get("user-agent", ""),
        )  # fmt: skip
        turn = Turn(self.ledger, entry, exchange, asks.wire)
        try:
            body = await exchange.body()
        except ClientDisconnect:
            turn.note("left", 0, left=True)
            return
        query = scope["query_string"]
        values = b"\n".join(value for _, value in scope["headers"])
        self.ledger.keep(entry.number, body)
        key = _key(headers, query.decode("latin-1"))
        self.ledger.change(
            entry.number, size=len(body), canaries=self._canaries.found(body, values, query, scope["raw_path"]),
            key=key_digest(key), auth=self._auth(key, headers),
        )  # fmt: skip
        if self._auth(key, headers) not in ("ok", "unchecked") and asks.action != "hello":
            why = self.logins.why_not(key, headers) if self.logins else "the key is not the one expected"
            await turn.refuse("unauthorized", 401, f"scripted: {why}")
            return
        if asks.action == "hello":
            await self._other(turn, asks, body)
            return
        try:
            plan = script.scenario(name, self._folder, self.added)
        except ScriptError as error:
            await turn.refuse("bad-scenario", 400, f"scenario {name!r}: {error}")
            return
        if any(one.name == "always429" for one, _ in plan.faults):
            made = fault("always429")
            assert made is not None
            await turn.fail(made)
        elif asks.action != "answer":
            await self._other(turn, asks, body)
        else:
            await self._model(turn, plan, asks, body, b"alt=sse" in query)

    def _auth(self, key: str, headers: Mapping[str, str]) -> str:
        if not self._keys and not self.logins:
            return "unchecked"
        if key in self._keys or (self.logins and not self.logins.why_not(key, headers)):
            return "ok"
        return "wrong" if key else "missing"

    async def _about(self, exchange: Exchange, path: str) -> None:
        """Answers for the server itself: health, ledger, and the renewal of logins."""
        body = await exchange.body()
        kind, _, rest = path.strip("/").partition("/")
        if kind == "_oauth" and rest == "token":
            status, told = self.logins.renew(body)
            if self.logins.wait:
                await exchange.wait(self.logins.wait)
            await exchange.whole(status, msgspec.json.encode(told))
            return
        if kind == "_health":
            made: object = {"ok": True, "scripts": script.built_in()}
        elif kind == "_ledger" and rest == "counts":
            made = self.ledger.counts()
        elif kind == "_ledger" and rest.endswith("/body") and rest[:-5].isdigit():
            kept = self.ledger.body(int(rest[:-5]))
            await exchange.whole(404 if kept is None else 200, kept or b"")
            return
        elif kind == "_ledger":
            made = self.ledger.entries(rest.removeprefix("lane/") if rest.startswith("lane/") else None)
        else:
            await exchange.whole(404, b"{}")
            return
        await exchange.whole(200, msgspec.json.encode(made))

    async def _other(self, turn: Turn, asks: Route, body: bytes) -> None:
        if asks.action == "unknown":
            await turn.refuse("unknown", 404, "scripted: there is nothing at this address")
            return
        answers: dict[str, Json] = {"hello": {}, "models": models(asks.model)}
        counted = len(body) // 4
        answers["count"] = {"totalTokens": counted} if asks.wire.name == "gemini" else {"input_tokens": counted}
        turn.note("ok", 200, side=True)
        await turn.exchange.whole(200, msgspec.json.encode(answers[asks.action]))

    async def _model(self, turn: Turn, plan: Scenario, asks: Route, body: bytes, sse: bool) -> None:
        try:
            asked = asks.wire.read(msgspec.json.decode(body, type=Json))
            if asks.wire.name == "gemini":
                changed = {"model": asks.model, "streaming": asks.streaming, "array": asks.streaming and not sse}
                asked = msgspec.structs.replace(asked, **changed)
            place = find_place(asked.said)
            side = place.aside or _is_side(plan.script, asked, place)
            entry = self.ledger.change(
                turn.number, model=asked.model, streaming=asked.streaming, side=side, turn=place.turn, step=place.step,
                prompt=place.prompt[:_SHOWN], steers=tuple(s[:_SHOWN] for s in place.steers),
                tools=tuple(f"{t.namespace}__{t.name}" if t.namespace else t.name for t in asked.tools),
            )  # fmt: skip
            step = plan.script.step(place)
            made = _side if side else _main
            reply = made(entry, plan.script, asked, place)
        except (msgspec.MsgspecError, AttributeError, TypeError, KeyError, ValueError) as error:
            # whatever a client may send in place of what the format says
            await turn.refuse("bad-request", 400, f"scripted: the request can't be read: {error}")
            return
        falls = self._falls(plan, entry, place, side=side)
        if falls is None and not side and step.fail is not None:
            falls = fault(step.fail)
        if step.sleep and not side:
            await turn.exchange.wait(step.sleep)
        if falls is not None:
            await turn.fail(falls, asked, reply)
        else:
            await turn.answer(asked, reply, 0.0 if side else step.pace)

    def _falls(self, plan: Scenario, entry: Entry, place: Place, *, side: bool) -> Fault | None:
        """Gives the first fault that falls on a request; one that is counted is used up by the try."""
        for one in plan.candidates(place, side=side):
            if not one.times:
                return one
            digest = hashlib.sha256(place.prompt.encode()).hexdigest()
            what = (entry.lane, entry.scenario, one.name, str(one.first), f"{place.turn}.{place.step}", digest)
            self.ledger.tries[what] += 1
            if self.ledger.tries[what] <= one.times:
                return one
        return None


def _is_side(plan: Script, asked: Asked, place: Place) -> bool:
    if (case := plan.case(place)) is not None and not case.calls:
        return False  # it is asked for words alone
    verbs = plan.verbs()
    if verbs:
        return not fill.is_main(asked, verbs)
    if asked.forced or asked.tools:
        return bool(asked.forced)
    words = [one.text for one in asked.said if one.role == "system"] + [asked.said[-1].text if asked.said else ""]
    return any(_SIDE_WORDS.search(text[:_SHOWN]) for text in words)


def _main(entry: Entry, plan: Script, asked: Asked, place: Place) -> Reply:
    """Gives the answer of a step."""
    values = {"lane": entry.lane, "turn": place.turn, "step": place.step, "prompt": place.prompt,
              "steers": "; ".join(place.steers), "folder": ""}  # fmt: skip
    step: Step = plan.step(place)
    if b"{{folder}}" in msgspec.json.encode(step):  # it is looked for in all of the prompt
        values["folder"] = asked.folder()
    step = script.with_values(step, values)
    nonce, text, calls = uuid.uuid4().hex[:8], step.text or "", []
    for number, one in enumerate(step.calls):
        chosen = fill.choose(one, asked)
        if chosen is None:
            text = f"{text}\nTOOL-NOT-OFFERED: {one.tool}".strip()
            continue
        tool, arguments = chosen
        made = call_id(WIRES[asked.wire].call_prefix, place, number, nonce)
        calls.append(Call(made, tool.name, arguments, tool.kind, tool.namespace))
    usage = None if plan.silent_usage else step.usage or plan.usage
    name = plan.message_id or f"{entry.number}{nonce}"
    return Reply(name, text, step.thinking, tuple(calls), usage, plan.piece)


def _side(entry: Entry, plan: Script, asked: Asked, place: Place) -> Reply:
    """Gives the answer to a request that is not the agent's own: text, JSON of a schema, or the call asked for."""
    text = plan.side
    calls: tuple[Call, ...] = ()
    tool = next((t for t in asked.tools if t.name == asked.forced or (asked.forced == "" and t.kind != "server")), None)
    if asked.forced is not None and tool is not None:
        shape = {"type": "object", **tool.schema}
        made = Call(
            f"{WIRES[asked.wire].call_prefix}side{uuid.uuid4().hex[:8]}", tool.name, fill.value_of(shape), tool.kind
        )
        text, calls = "", (made,)
    elif asked.schema is not None:
        text = msgspec.json.encode(fill.value_of(asked.schema)).decode()
    return Reply(f"{entry.number}side", text, "", calls, None if plan.silent_usage else _SIDE_USAGE, plan.piece)


def _key(headers: Mapping[str, str], query: str) -> str:
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and bearer:
        return bearer.strip()
    for name in ("x-api-key", "x-goog-api-key", "api-key"):
        if name in headers:
            return headers[name]
    found = re.search(r"(?:^|&)key=([^&]*)", query)
    return found[1] if found else ""


def key_digest(key: str) -> str:
    """Gives what the ledger shows of a key."""
    return hashlib.sha256(key.encode()).hexdigest()[:12] if key else ""
