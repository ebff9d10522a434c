"""Prices: what tokens cost, by a dated table that the user can edit; a model that is not in it has no known price."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ropewalk.core.errors import InvalidError, RopewalkError, os_error
from ropewalk.gateway.tokens import Tokens

Dollars = Annotated[float, Meta(ge=0, le=100_000)]
Mark = Literal["", "≈", "*"]
"""Is what stands beside a cost: `≈` where a part is estimated, `*` where a part has no price."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is the price of a model in dollars for a million tokens; without one for the cache, that of input counts."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None

    def of(self, tokens: Tokens) -> float:
        """Gives what tokens cost, in dollars."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (
            tokens.input * self.input + tokens.cache_read * read + tokens.cache_write * write
            + tokens.output * self.output
        ) / 1e6  # fmt: skip

    def most(self, given: int, made: int) -> float:
        """Gives what a request can cost at most, in dollars, however its input is split over the cache."""
        dearest = max(self.input, self.cache_read or 0.0, self.cache_write or 0.0)
        return (given * dearest + made * self.output) / 1e6


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is a table of prices: its date, and prices by pattern of the model's name."""

    as_of: str
    models: dict[str, Price]

    def price(self, model: str) -> Price | None:
        """Gives the price of a model; None when no pattern fits its name."""
        name = model.rsplit("/", 1)[-1].lower()
        fits = [pattern for pattern in self.models if fnmatchcase(name, pattern.lower())]
        return self.models[max(fits, key=len)] if fits else None

    def over(self, other: Table) -> Table:
        """Gives this table with the prices of another where it has none."""
        return Table(self.as_of, {**other.models, **self.models})


class Cost(msgspec.Struct, frozen=True, omit_defaults=False):
    """Is a cost in dollars with its mark; None when nothing of it has a price. What is unknown is never 0."""

    dollars: float | None
    mark: Mark = ""

    def __add__(self, other: Cost) -> Cost:
        """Gives the sum; what has no price stays marked, and makes no 0 of itself beside what cost nothing."""
        if NOTHING in (self, other):
            return other if self == NOTHING else self
        known = [one.dollars for one in (self, other) if one.dollars is not None]
        marks = {self.mark, other.mark} | ({"*"} if None in (self.dollars, other.dollars) else set())
        mark: Mark = "*" if "*" in marks else "≈" if "≈" in marks else ""
        return Cost(sum(known) if known else None, mark)


NOTHING = Cost(0.0)


def cost(price: Price | None, tokens: Tokens | None, *, estimated: bool = False) -> Cost:
    """Gives what tokens of a model cost."""
    if price is None or tokens is None:
        return Cost(None, "*")
    return Cost(price.of(tokens), "≈" if estimated else "")


def read(path: str | None = None) -> Table:
    """Gives the table of a file over the package's own; `E_INVALID` when it can't be read as one."""
    return _own() if path is None or not os.path.exists(path) else _parsed(path).over(_own())


@cache
def _own() -> Table:
    return _parsed(os.path.join(os.path.dirname(os.path.abspath(__file__)), "prices.toml"))


def _parsed(path: str) -> Table:
    import tomllib

    try:
        with open(path, "rb") as file:
            return msgspec.convert(tomllib.load(file), Table)
    except OSError as error:
        raise os_error(error, "read of the prices") from None
    except (ValueError, RecursionError) as error:  # what is no TOML, and what is no table of prices
        words = f"the prices of {os.path.basename(path)} can't be used: {error}"
        raise InvalidError(
            words, hint='"model*" = { input = 1.0, output = 5.0 } stands under [models]', file=path
        ) from None


class Tables:
    """Gives tables of prices, read again when their file was put in place anew."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[int, int, int], Table]] = {}

    def __call__(self, path: str) -> Table:
        """Gives the table of a file, the package's own without one; one that can't be read leaves that before it."""
        if not path:
            return _own()
        stamp, before = self._kept.get(path, ((0, 0, 0), _own()))
        try:
            found = os.stat(path)
        except OSError:
            return before
        now = (found.st_mtime_ns, found.st_ino, found.st_size)
        if now != stamp:
            try:
                before = read(path)
            except RopewalkError:
                pass
            self._kept[path] = (now, before)
        return before
