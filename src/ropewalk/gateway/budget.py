"""Budgets: what may be spent by a run, a task, a provider and a day, reserved before a request and settled after it.

A reservation is what a request may cost at most, as far as can be told before it; a cap is never passed by more than
one reserved request, however many streams run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from ropewalk.gateway.prices import NOTHING, Cost, Price, cost
from ropewalk.gateway.tokens import Tokens

_BYTES_A_TOKEN = 3
_TURNS = 20


class Cap(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what may be spent under a name: dollars, tokens, requests; None is no bound."""

    dollars: float | None = None
    tokens: int | None = None
    requests: int | None = None


class Spent(msgspec.Struct, omit_defaults=False):
    """Is what was spent under a name, and what is reserved for requests that are on their way."""

    cost: Cost = NOTHING
    tokens: Tokens = Tokens()
    requests: int = 0
    reserved_dollars: float = 0.0
    reserved_tokens: int = 0
    reserved_requests: int = 0


class Reservation(NamedTuple):
    """Is what is held back for a request: the names it counts under, dollars (None: no price), and tokens."""

    id: int
    names: tuple[str, ...]
    dollars: float | None
    tokens: int


class Refused(Exception):
    """A cap would be passed; says which, and of what."""

    def __init__(self, name: str, what: str, limit: float, used: float) -> None:
        super().__init__(f"the budget of {name} is spent: {used:g} of {limit:g} {what}")
        self.name, self.what, self.limit, self.used = name, what, limit, used


class Budget:
    """Keeps the account of one gateway."""

    def __init__(self, caps: Mapping[str, Cap] | None = None) -> None:
        self.caps = dict(caps or {})
        self.spent: dict[str, Spent] = {}
        self._open: dict[int, Reservation] = {}
        self._next = 1

    def reserve(self, names: Iterable[str], tokens: int, price: Price | None, output: int) -> Reservation:
        """Holds back what a request may use: `tokens` of input and `output` of answer; `Refused` when a cap is there.

        Where a model has no price a cap of dollars can't hold; a cap of tokens does.
        """
        listed = tuple(dict.fromkeys(names))
        dollars = None if price is None else price.of(Tokens(input=tokens, output=output))
        for name in listed:
            self._check(name)
        made = Reservation(self._next, listed, dollars, tokens + output)
        self._next += 1
        self._open[made.id] = made
        for name in listed:
            account = self._account(name)
            account.reserved_dollars += dollars or 0.0
            account.reserved_tokens += made.tokens
            account.reserved_requests += 1
        return made

    def _check(self, name: str) -> None:
        cap, account = self.caps.get(name), self._account(name)
        if cap is None:
            return
        used: list[tuple[str, float | None, float]] = [
            ("dollars", cap.dollars, (account.cost.dollars or 0.0) + account.reserved_dollars),
            ("tokens", cap.tokens, account.tokens.total + account.reserved_tokens),
            ("requests", cap.requests, account.requests + account.reserved_requests),
        ]
        for what, limit, there in used:
            # at or above the cap: the request that reaches it is the one that may pass it
            if limit is not None and there >= limit:
                raise Refused(name, what, limit, there)

    def settle(self, held: Reservation, tokens: Tokens | None, price: Price | None, *, estimated: bool = False) -> Cost:
        """Charges what a request used in the place of what was held back; gives its cost.

        Without `tokens` it used nothing: it was refused, or never sent.
        """
        self._open.pop(held.id, None)
        charged = NOTHING if tokens is None else cost(price, tokens, estimated=estimated)
        for name in held.names:
            account = self._account(name)
            account.reserved_dollars = max(0.0, account.reserved_dollars - (held.dollars or 0.0))
            account.reserved_tokens = max(0, account.reserved_tokens - held.tokens)
            account.reserved_requests = max(0, account.reserved_requests - 1)
            if tokens is not None:
                self._charge(account, charged, tokens)
        return charged

    def charge(self, names: Iterable[str], charged: Cost, tokens: Tokens) -> None:
        """Counts what was used before this process began."""
        for name in dict.fromkeys(names):
            self._charge(self._account(name), charged, tokens)

    def _charge(self, account: Spent, charged: Cost, tokens: Tokens) -> None:
        account.cost += charged
        account.tokens += tokens
        account.requests += 1

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

    def output(self, lane: str, asked: int | None, most: int = 32_000) -> int:
        """Gives what to reserve for an answer; `asked` is the bound that the request itself names."""
        seen = sorted(self._last.get(lane, ()))
        expected = 2 * seen[min(len(seen) - 1, int(0.95 * len(seen)))] if seen else 4000
        return min(bound for bound in (asked, expected, most) if bound is not None)


def input_tokens(size: int) -> int:
    """Gives about how many tokens a request's body of so many bytes is."""
    return size // _BYTES_A_TOKEN


def asked_output(body: Mapping[str, Any]) -> int | None:
    """Gives the bound on the answer that a request names, in tokens; None when it names none."""
    config = body.get("generationConfig")
    places: list[object] = [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    places.append(config.get("maxOutputTokens") if isinstance(config, dict) else None)
    return next((one for one in places if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)
