"""Waits and limits: when a lane is quiet, stalled or out of what it may use; a pure judgement of what was seen (G10).

A lane waits for one of three: a model, while a request of its is open; a tool, when the last answer asked for one and
no request followed; neither of both. One timer for all would kill builds, or let a dead stream live.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ropewalk.core.errors import InvalidError

State = Literal[
    "queued", "preparing", "running", "quiet", "needs_input", "rate_limited", "stalled", "dead", "unknown", "done",
    "failed", "partial", "cancelled", "escaped",
]  # fmt: skip
FINAL: frozenset[State] = frozenset({"stalled", "dead", "done", "failed", "partial", "cancelled", "escaped"})


class Limits(NamedTuple):
    """Is what a lane may use: wall clock in seconds, turns, tokens, dollars, requests to models; None is no bound."""

    seconds: float = 3600.0
    turns: int | None = 100
    tokens: int | None = None
    dollars: float | None = None
    requests: int = 400


class Waits(NamedTuple):
    """Is for how long a lane may wait, in seconds: for a model's first byte, between its bytes, for a tool that shows
    no sign of work, and without any of them; `grace` is from its result to its end."""

    first_byte: float = 300.0
    between: float = 180.0
    tool: float = 1800.0
    neither: float = 120.0
    grace: float = 10.0


class Facts(NamedTuple):
    """Is what was seen of a lane; times are seconds of one clock, 0 for never.

    `progress` is when its processes last used processor time or moved bytes, `output` when it last printed, `result`
    when it gave its result. `limited` is when its provider last asked it to wait, `until` until when it was told to.
    `tool_limit` is the bound of the tool that runs, where it named one. `refused` says whether
    the gateway refused it a request because its budget is spent; None where it goes through no gateway.
    """

    began: float
    now: float
    open: int = 0
    sent: float = 0.0
    byte: float = 0.0
    ended: float = 0.0
    wants_tool: bool = False
    limited: float = 0.0
    until: float = 0.0
    progress: float = 0.0
    output: float = 0.0
    result: float = 0.0
    turns: int = 0
    tokens: int = 0
    dollars: float | None = 0.0
    needs_input: bool = False
    tool_limit: float | None = None
    refused: bool | None = None


class Judgement(NamedTuple):
    """Is how a lane stands, why, and whether it is to be ended for it."""

    state: State
    reason: str = ""
    end: bool = False


QUIET = 30.0
"""After how many seconds without a word a lane is called quiet."""


def judge(facts: Facts, limits: Limits, waits: Waits) -> Judgement:
    """Gives how a running lane stands."""
    now = facts.now
    if facts.result and now - facts.result > waits.grace:
        return Judgement("done", "it did not end after its result", end=True)
    if now - facts.began > limits.seconds:
        return Judgement("failed", f"timeout: {limits.seconds:g} s of wall clock", end=True)
    if limits.turns is not None and facts.turns > limits.turns:
        return Judgement("partial", f"turns: more than {limits.turns}", end=True)
    if over := _over(facts, limits):
        return Judgement("partial", over, end=True)
    if facts.needs_input:
        return Judgement("needs_input", "it asks something")
    if facts.open:
        return _at_model(facts, waits)
    if facts.until > now and facts.sent <= facts.ended:
        return Judgement("rate_limited", f"it was told to wait for {facts.until - now:.0f} s more")
    last = max(facts.began, facts.output, facts.progress, facts.ended, facts.until)
    idle = now - last
    if facts.wants_tool and facts.ended and facts.sent <= facts.ended:
        bound = facts.tool_limit + 60.0 if facts.tool_limit is not None else waits.tool
        if idle > bound:
            return Judgement("stalled", f"tool: no sign of work for {bound:g} s", end=True)
        return Judgement("quiet" if now - max(facts.output, facts.ended) > QUIET else "running", "at a tool")
    if idle > waits.neither:
        return Judgement("stalled", f"nothing: no sign of life for {waits.neither:g} s", end=True)
    return Judgement("quiet" if idle > QUIET else "running")


def _over(facts: Facts, limits: Limits) -> str:
    """Gives what of its budget a lane has used up, empty while there is some left.

    Behind a gateway that is said by the first request it may not make: what asks for no more comes to its own end.
    """
    dollars = facts.dollars or 0.0
    if facts.refused is None:
        if limits.tokens is not None and facts.tokens > limits.tokens:
            return f"tokens: more than {limits.tokens}"
        if limits.dollars is not None and dollars > limits.dollars:
            return f"money: more than {limits.dollars:g} dollars"
    elif facts.refused:
        if limits.tokens is not None and facts.tokens >= limits.tokens:
            return f"tokens: {facts.tokens} of {limits.tokens} are used"
        if limits.dollars is not None and dollars >= limits.dollars:
            return f"money: {dollars:g} of {limits.dollars:g} dollars are used"
    return ""


def _at_model(facts: Facts, waits: Waits) -> Judgement:
    now = facts.now
    if facts.until > now or (facts.limited and now - facts.limited < 60.0):
        return Judgement("rate_limited", "its provider asks it to wait")
    if facts.byte >= facts.sent and facts.byte:
        if now - facts.byte > waits.between:
            return Judgement("stalled", f"model: silent for {waits.between:g} s in the middle of an answer", end=True)
        return Judgement("running", "at a model")
    if now - facts.sent > waits.first_byte:
        return Judgement("stalled", f"model: no answer for {waits.first_byte:g} s", end=True)
    return Judgement("quiet" if now - facts.sent > QUIET else "running", "at a model")


def check(limits: Limits) -> Limits:
    """Gives limits back; `E_INVALID` for those that nothing could keep."""
    if limits.seconds <= 0 or (limits.turns is not None and limits.turns < 1):
        raise InvalidError("a lane needs some seconds and at least one turn", hint="--seconds, --turns")
    return limits
