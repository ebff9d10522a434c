"""Figures as words: times, durations, tokens and costs, each with its mark; and text of others made harmless."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ropewalk.gateway.prices import Cost
from ropewalk.run.account import Share, Tokens

UNKNOWN = "unknown"

_KINDS = (("input_tokens", "input"), ("cache_read_tokens", "from cache"), ("cache_write_tokens", "to cache"),
          ("output_tokens", "output"), ("reasoning_tokens", "reasoning"))  # fmt: skip

# control characters, what turns the direction of text around, and halves of characters: none can be in a page
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufffe\uffff\ud800-\udfff]")


def clean(text: str) -> str:
    """Gives a text in which what no page may hold is replaced; line ends and tabs stay."""
    return _HARMFUL.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """Gives a text as one clean line."""
    return " ".join(clean(text).split())


def moment(at: int) -> str:
    """Gives a time as text; unknown for 0."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S") if at > 0 else UNKNOWN


def span(seconds: float | None) -> str:
    """Gives a duration as text."""
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s".replace(".0 s", " s")


def money(cost: Cost) -> str:
    """Gives a cost with its mark before it; what has no price is unknown, and never 0."""
    if cost.dollars is None or (cost.mark == "*" and not cost.dollars):
        return UNKNOWN
    return f"{cost.mark}${cost.dollars:,.4f}"


def count(tokens: Tokens) -> str:
    """Gives how many tokens, with their mark before them."""
    return UNKNOWN if tokens.total is None else f"{tokens.mark}{tokens.total:,}"


def kinds(tokens: Tokens) -> str:
    """Gives tokens by kind."""
    if tokens.by_kind is None:
        return UNKNOWN
    known = dict(_KINDS)
    order = [key for key, _ in _KINDS if key in tokens.by_kind] + sorted(set(tokens.by_kind) - set(known))
    return ", ".join(f"{known.get(key, key)} {tokens.by_kind[key]:,}" for key in order) or "none"


def worked(share: Share) -> str:
    """Gives for how long the agents of a share ran, marked where that is not known of all of its attempts."""
    if not share.timed:
        return UNKNOWN if share.attempts else span(0)
    return f"{'' if share.timed == share.attempts else '*'}{span(share.seconds)}"


def many(number: int, thing: str) -> str:
    """Gives a number of things."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
