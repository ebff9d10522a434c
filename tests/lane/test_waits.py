"""Waits and limits, judged on what was seen at a clock of our own (G10)."""

from __future__ import annotations

import pytest

from ropewalk.core.errors import InvalidError
from ropewalk.lane import waits
from ropewalk.lane.waits import Facts, Limits, Waits

WAITS = Waits(first_byte=300, between=180, tool=1800, neither=120, grace=10)
NOW = 10_000.0


def facts(**words: object) -> Facts:
    """Gives facts of a lane that began long ago and printed just now."""
    return Facts(NOW - 3000, NOW, output=NOW)._replace(**words)


@pytest.mark.parametrize(
    ("seen", "state", "reason", "ends"),
    [
        (facts(), "running", "", False),
        (facts(output=NOW - 31), "quiet", "", False),
        (facts(output=NOW - 119), "quiet", "", False),
        (facts(output=NOW - 121), "stalled", "nothing", True),
        (facts(output=NOW - 121, progress=NOW - 5), "running", "", False),
        (facts(output=NOW - 121, progress=NOW - 100), "quiet", "", False),
        # at a model: before its first byte, between bytes, and when it asks to wait
        (facts(open=1, sent=NOW - 299, output=NOW - 299), "quiet", "at a model", False),
        (facts(open=1, sent=NOW - 301), "stalled", "model: no answer", True),
        (facts(open=1, sent=NOW - 900, byte=NOW - 179), "running", "at a model", False),
        (facts(open=1, sent=NOW - 900, byte=NOW - 181), "stalled", "model: silent", True),
        (facts(open=1, sent=NOW - 900, byte=NOW - 901), "stalled", "model: no answer", True),
        (facts(open=1, sent=NOW - 500, limited=NOW - 59), "rate_limited", "provider", False),
        # told to wait: by an answer that has ended, and for a while behind that
        (facts(sent=NOW - 700, ended=NOW - 690, output=NOW - 690, until=NOW + 5),
         "rate_limited", "told to wait", False),
        (facts(sent=NOW - 700, ended=NOW - 690, output=NOW - 690, until=NOW - 119), "quiet", "", False),
        (facts(sent=NOW - 700, ended=NOW - 690, output=NOW - 690, until=NOW - 121), "stalled", "nothing", True),
        (facts(open=1, sent=NOW - 301, until=NOW + 5), "rate_limited", "provider", False),
        # at a tool: its own limit and a minute, else half an hour, longer while it works
        (facts(wants_tool=True, sent=NOW - 200, ended=NOW - 190, output=NOW - 190), "quiet", "at a tool", False),
        (facts(wants_tool=True, sent=NOW - 1900, ended=NOW - 1801, output=NOW - 1801), "stalled", "tool", True),
        (facts(wants_tool=True, sent=NOW - 1900, ended=NOW - 1801, output=NOW - 1801, progress=NOW - 1), "quiet",
         "at a tool", False),
        (facts(wants_tool=True, sent=NOW - 900, ended=NOW - 600, output=NOW - 600, tool_limit=500.0), "stalled", "tool",
         True),
        (facts(wants_tool=True, sent=NOW - 900, ended=NOW - 550, output=NOW - 550, tool_limit=500.0), "quiet",
         "at a tool", False),
        (facts(needs_input=True, output=NOW - 5000), "needs_input", "asks", False),
        (facts(result=NOW - 9), "running", "", False),
        (facts(result=NOW - 11), "done", "did not end", True),
    ],
)  # fmt: skip
def test_G10_L15_L17_each_wait_has_its_own_bound(seen: Facts, state: str, reason: str, ends: bool) -> None:
    found = waits.judge(seen, Limits(), WAITS)
    assert (found.state, found.end) == (state, ends) and reason in found.reason


@pytest.mark.parametrize(
    ("seen", "limits", "state", "reason"),
    [
        (facts(), Limits(seconds=2999), "failed", "timeout: 2999 s"),
        (facts(turns=5), Limits(turns=4), "partial", "turns: more than 4"),
        (facts(tokens=101), Limits(tokens=100), "partial", "tokens: more than 100"),
        (facts(dollars=1.01), Limits(dollars=1.0), "partial", "money: more than 1 dollars"),
        (facts(tokens=100, refused=True), Limits(tokens=100), "partial", "tokens: 100 of 100 are used"),
        (facts(dollars=1.0, refused=True), Limits(dollars=1.0), "partial", "money: 1 of 1 dollars are used"),
    ],
)
def test_limits_end_in_named_states(seen: Facts, limits: Limits, state: str, reason: str) -> None:
    found = waits.judge(seen, limits, WAITS)
    assert (found.state, found.end) == (state, True) and found.reason.startswith(reason)


def test_what_is_at_its_limit_goes_on_and_unknown_cost_is_no_cost() -> None:
    at = facts(turns=4, tokens=100, dollars=1.0)
    assert not waits.judge(at, Limits(turns=4, tokens=100, dollars=1.0), WAITS).end
    assert not waits.judge(facts(dollars=None), Limits(dollars=0.0), WAITS).end


def test_behind_a_gateway_the_first_request_that_it_refuses_ends_a_lane() -> None:
    over = facts(turns=4, tokens=101, dollars=1.01, refused=False)
    assert not waits.judge(over, Limits(tokens=100, dollars=1.0), WAITS).end, "it may come to its own end"
    held_back = facts(tokens=99, dollars=0.9, refused=True)
    assert not waits.judge(held_back, Limits(tokens=100, dollars=1.0), WAITS).end


@pytest.mark.parametrize("limits", [Limits(seconds=0), Limits(turns=0)])
def test_limits_that_nothing_could_keep_are_refused(limits: Limits) -> None:
    with pytest.raises(InvalidError):
        waits.check(limits)
