"""Budgets: what may be spent by a run, a task, a provider and a day, reserved before a request and settled after it.

A reservation is what a request may cost at most, as far as can be told before it; a cap is never passed by more than
one reserved request, however many streams run at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ropewalk.gateway.prices import NOTHING, Cost, Price, cost
from ropewalk.gateway.tokens import Tokens, Wire

DAY = "day"
"""Is the name of the cap that holds for each day anew; what is spent stands under `day:YYYY-MM-DD`, in UTC."""

LONGEST = 128_000
"""Is how long an answer may be at most, in tokens, where a request names no bound."""

TOKENS_A_DOLLAR = 100_000
"""Is how many tokens without a known price a cap of dollars lets pass for each, where no cap of tokens goes with it."""

UNPRICED = "tokens without a known price"
NAMES, DAYS = 10_000, 35
"""Are of how many names sums are kept at most, and for how many days after the last request of one."""

_BYTES_A_TOKEN = 3
_TURNS = 20


class Cap(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what may be spent under a name: dollars, tokens, requests; None is no bound."""

    dollars: float | None = None
    tokens: int | None = None
    requests: int | None = None


class Total(msgspec.Struct, omit_defaults=True):
    """Is what was spent under a name: `unpriced` are tokens whose price nobody knows, `last` is when, since 1970."""

    cost: Cost = NOTHING
    tokens: Tokens = Tokens()
    requests: int = 0
    unpriced: int = 0
    last: float = 0.0

    def add(self, cost: Cost, tokens: Tokens, at: float) -> None:
        """Counts a request."""
        self.cost += cost
        self.tokens += tokens
        self.requests += 1
        self.unpriced += tokens.total if cost.dollars is None else 0
        self.last = max(self.last, at)


class Spent(Total, omit_defaults=False):
    """Is what was spent under a name, and what is reserved for requests that are on their way."""

    reserved_dollars: float = 0.0
    reserved_tokens: int = 0
    reserved_requests: int = 0
    reserved_unpriced: int = 0


class Reservation(NamedTuple):
    """Is what is held back for a request: the names it counts under, dollars (None: no price), and tokens.

    `output` is the bound that has to be set on the answer so that no more than this is used; None where the request's
    own bound fits.
    """

    id: int
    names: tuple[str, ...]
    dollars: float | None
    tokens: int
    output: int | None = None


class Refused(Exception):
    """A cap is reached; says which, and of what; `spent` when it is used up, and not only reserved for a while."""

    def __init__(self, name: str, what: str, limit: float, used: float, *, spent: bool) -> None:
        words = "is spent" if spent else "is held back by requests on their way"
        super().__init__(f"the budget of {name} {words}: {used:g} of {limit:g} {what}")
        self.name, self.what, self.limit, self.used, self.spent = name, what, limit, used, spent


class Budget:
    """Keeps the account of one gateway.

    What is used and what is reserved never passes a cap by more than the last request reserved: one that may make the
    longest answer it asks for without passing a cap is let through as it is; when that would pass one, its answer is
    bounded to what is likely, and it is the last until another is settled. What a request uses is no more than its
    reservation where the provider keeps to the bound and the input is no more than a token for each three bytes.
    """

    def __init__(self, caps: Mapping[str, Cap] | None = None) -> None:
        self.caps: Mapping[str, Cap] = caps or {}
        self.spent: dict[str, Spent] = {}
        self._open: dict[int, Reservation] = {}
        self._next = 1

    def reserve(
        self, names: Iterable[str], tokens: int, price: Price | None, likely: int, most: int | None = None
    ) -> Reservation:
        """Holds back what a request may use: `tokens` of input, and of answer `likely` and at `most`.

        Raises `Refused` when a cap is reached. Where a model has no price a cap of dollars can't hold: that of tokens
        which goes with it does, and without one as many tokens as its dollars stand for.
        """
        listed = tuple(dict.fromkeys(names))
        for name in listed:
            for what, limit, used, reserved in self._caps(name, price):
                # what reaches the cap is what may pass it
                if used + reserved >= limit:
                    raise Refused(name, what, limit, used + reserved, spent=used >= limit)
        output = max(likely, most or likely)
        fits = all(
            used + reserved + more <= limit
            for name in listed
            for what, limit, used, reserved in self._caps(name, price)
            if (more := _of(what, tokens + output, price, tokens, output)) is not None
        )
        bound = None
        if not fits and likely < output:
            output = bound = likely
        dollars = None if price is None else price.most(tokens, output)
        made = Reservation(self._next, listed, dollars, tokens + output, bound)
        self._next += 1
        self._open[made.id] = made
        for name in listed:
            account = self._account(name)
            account.reserved_dollars += dollars or 0.0
            account.reserved_tokens += made.tokens
            account.reserved_requests += 1
            account.reserved_unpriced += made.tokens if price is None else 0
        return made

    def _caps(self, name: str, price: Price | None) -> Iterator[tuple[str, float, float, float]]:
        """Yields the caps on a name: of what, the cap, what is used, and what is reserved."""
        cap = self.caps.get(name) or (self.caps.get(DAY) if name.startswith(f"{DAY}:") else None)
        if cap is None:
            return
        account = self._account(name)
        if cap.dollars is not None:
            yield "dollars", cap.dollars, account.cost.dollars or 0.0, account.reserved_dollars
            if price is None and cap.tokens is None:
                yield UNPRICED, cap.dollars * TOKENS_A_DOLLAR, account.unpriced, account.reserved_unpriced
        if cap.tokens is not None:
            yield "tokens", cap.tokens, account.tokens.total, account.reserved_tokens
        if cap.requests is not None:
            yield "requests", cap.requests, account.requests, account.reserved_requests

    def settle(self, held: Reservation, tokens: Tokens | None, price: Price | None, *, estimated: bool = False) -> Cost:
        """Charges what a request used in the place of what was held back; gives its cost.

        Without `tokens` it used nothing: it was refused, or never sent.
        """
        charged = NOTHING if tokens is None else cost(price, tokens, estimated=estimated)
        if self._open.pop(held.id, None) is None:
            return charged
        for name in held.names:
            account = self._account(name)
            account.reserved_requests -= 1
            account.reserved_tokens -= held.tokens
            # sums of fractions leave a rest, which would grow
            left = account.reserved_dollars - (held.dollars or 0.0)
            account.reserved_dollars = left if account.reserved_requests else 0.0
            account.reserved_unpriced -= held.tokens if held.dollars is None else 0
            if tokens is not None:
                account.add(charged, tokens, time.time())
        return charged

    def charge(self, names: Iterable[str], charged: Cost, tokens: Tokens, at: float = 0.0) -> None:
        """Counts what was used before this process began."""
        for name in dict.fromkeys(names):
            self._account(name).add(charged, tokens, at)

    def carry(self, totals: Mapping[str, Total]) -> None:
        """Goes on with sums that a gateway before this one kept."""
        for name, one in totals.items():
            self.spent[name] = Spent(one.cost, one.tokens, one.requests, one.unpriced, one.last)

    def totals(self, now: float) -> dict[str, Total]:
        """Gives the sums that are to be kept, and forgets the others: those of names that are not used any more."""
        kept = {
            name: one for name, one in self.spent.items()
            if name in self.caps or one.reserved_requests or name.startswith("provider:")
        }  # fmt: skip
        recent = [(one.last, name) for name, one in self.spent.items() if now - one.last < DAYS * 86_400]
        kept |= {name: self.spent[name] for _, name in sorted(recent)[-NAMES:]}
        self.spent = kept
        return {name: Total(one.cost, one.tokens, one.requests, one.unpriced, one.last) for name, one in kept.items()}

    def open(self) -> list[Reservation]:
        """Gives what is held back now."""
        return list(self._open.values())

    def _account(self, name: str) -> Spent:
        return self.spent.setdefault(name, Spent())


class Expected:
    """Expects how long the next answer of a lane may be: twice the longest but few of its last turns (G12)."""

    def __init__(self) -> None:
        self._last: dict[str, list[int]] = {}

    def note(self, lane: str, output: int) -> None:
        """Notes how long an answer was, in tokens."""
        self._last.setdefault(lane, []).append(output)
        del self._last[lane][:-_TURNS]

    def output(self, lane: str, body: Mapping[str, Any]) -> tuple[int, int]:
        """Gives how long an answer to a request is likely to be, and at most."""
        seen = sorted(self._last.get(lane, ()))
        likely = 2 * seen[min(len(seen) - 1, int(0.95 * len(seen)))] if seen else 4000
        thinking = body.get("thinking")
        planned = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
        if isinstance(planned, int):
            likely = max(likely, planned + 1024)  # a bound below it is refused
        most = asked_output(body) or LONGEST
        return min(max(likely, 256), most), most


def input_tokens(size: int) -> int:
    """Gives about how many tokens a request's body of so many bytes is."""
    return size // _BYTES_A_TOKEN


def asked_output(body: Mapping[str, Any]) -> int | None:
    """Gives the bound on the answer that a request names, in tokens; None when it names none."""
    config = body.get("generationConfig")
    places: list[object] = [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    places.append(config.get("maxOutputTokens") if isinstance(config, dict) else None)
    return next((one for one in places if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)


def bounded(body: Mapping[str, Any], wire: Wire, output: int, *, plain: bool = False) -> dict[str, Any]:
    """Gives a request with a bound on its answer; `plain` for servers that know the older field alone (G12)."""
    if wire == "gemini":
        config = body.get("generationConfig")
        inner = config if isinstance(config, dict) else {}
        return {**body, "generationConfig": {**inner, "maxOutputTokens": output}}
    if wire == "responses":
        return {**body, "max_output_tokens": output}
    older = wire == "anthropic" or plain or "max_tokens" in body
    return {**body, "max_tokens" if older else "max_completion_tokens": output}


def holds(cap: Cap, used: Total) -> str:
    """Says what holds a cap of dollars where tokens without a known price were used; empty where there were none."""
    if cap.dollars is None or not used.unpriced:
        return ""
    if cap.tokens is not None:
        return f"the price of {used.unpriced} tokens is unknown: the cap of {cap.tokens} tokens holds"
    most = cap.dollars * TOKENS_A_DOLLAR
    return f"the price of {used.unpriced} tokens is unknown: {most:g} such tokens stand for the dollars"


def names(run: str, task: str, upstream: str, at: float, lane: str) -> list[str]:
    """Gives the names that a request counts under."""
    found = [f"lane:{lane}", f"provider:{upstream}", day(at)]
    return found + ([f"run:{run}"] if run else []) + ([f"task:{run}/{task}"] if task else [])


def day(at: float) -> str:
    """Gives the name that what was spent on the day of a time counts under."""
    return f"{DAY}:{time.strftime('%Y-%m-%d', time.gmtime(at))}"


def _of(what: str, tokens: int, price: Price | None, given: int, made: int) -> float | None:
    if what == "dollars":
        return None if price is None else price.most(given, made)
    return 1 if what == "requests" else tokens
