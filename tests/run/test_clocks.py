"""Clocks that differ: told where the times of attempts can't be of one clock, and never where they can."""

from __future__ import annotations

from itertools import permutations

from ropewalk.run.clocks import Times, against


def test_attempts_that_began_in_one_second_are_no_difference_whatever_order_they_are_listed_in() -> None:
    times = [Times(False, 0, 1000, 1000, True), Times(False, 0, 1000, 1014, True), Times(False, 0, 1014, 1020, True),
             Times(True, 1, 1031, 1033, False)]  # fmt: skip
    for listed in permutations(times):
        assert against(1000, listed, 1040) == 0


def test_what_comes_after_and_seems_earlier_is_told_by_its_seconds() -> None:
    first, heir = Times(False, 0, 1000, 1014, True), Times(True, 0, 950, 960, False)
    assert against(1000, [first, heir], 1040) == 64  # the heir's host is behind
    assert against(1000, [first], 900) == 114  # who reads is
    assert against(0, [Times(True, 0, 1000, 990, False)], 0) == 10
    assert against(0, [], 1000) == 0
