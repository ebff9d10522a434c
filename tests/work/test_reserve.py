"""Reservations: who waited long for a region is next there, whatever comes after it."""

from __future__ import annotations

import time

from tests.work.workkit import WorkKit, task

from ropewalk.board import claim, names, reserve, wire
from ropewalk.board.state import Status
from ropewalk.board.wire import Outcome


def aged(bench: WorkKit, name: str, seconds: float) -> None:
    """Has a task wait for so long already."""
    content = bench.board.content(bench.board.ref(names.spec(name)) or "")
    assert content is not None
    bench.raw(names.spec(name), wire.message(content).encode(), at=int(time.time() - seconds))


def over(bench: WorkKit, *tasks: str, bound: float = 60.0, mine: bool = True) -> set[str]:
    """Gives the tasks that are passed over."""
    found: list[Status] = [bench.status(name) for name in tasks]
    return reserve.passed_over(bench.board, found, bound, time.time(), lambda status: mine)


def test_F20_a_region_is_reserved_for_the_task_that_waits_longest_beyond_the_bound(bench: WorkKit) -> None:
    bench.add(*(task(name, "true", region="r") for name in ("a", "b", "c")), task("d", "true", region="s"))
    everything = ("a", "b", "c", "d")
    assert over(bench, *everything) == set()
    aged(bench, "b", 100)
    assert over(bench, *everything) == {"a", "c"}
    aged(bench, "c", 110)
    assert over(bench, *everything) == {"a", "b"}
    held = bench.take("a")
    assert bench.state("c") == "waiting" and over(bench, "b", "c", "d") == {"b"}
    claim.release(bench.board, held)
    assert over(bench, *everything, mine=False) == {"a", "b"}
    assert over(bench, *everything, bound=50, mine=False) == set(), "not for ever, when nobody here could do it"
    assert over(bench, *everything, bound=50) == {"a", "b"}


def test_F20_a_task_waits_from_the_end_of_what_it_needs(bench: WorkKit) -> None:
    bench.add("root", task("leaf", "true", region="r", needs=("root",)), task("other", "true", region="r"))
    aged(bench, "leaf", 1000)
    assert over(bench, "leaf", "other") == set(), "it could not be started yet"
    bench.done("root")
    assert bench.state("leaf") == "ready" and over(bench, "leaf", "other") == set()
    assert over(bench, "leaf", "other", bound=-1) != set()


def test_F20_the_bound_is_twice_the_median_of_tasks_that_ended(bench: WorkKit) -> None:
    bench.add(*(f"t{n}" for n in range(5)))
    assert reserve.patience(bench.board) == 1200
    for number, seconds in enumerate((3, 100, 9000)):
        held = bench.take(f"t{number}")
        claim.close(bench.board, held, Outcome(False, 0, 1, "command", seconds=seconds))
    assert reserve.patience(bench.board) == 200
    for number in (3, 4):
        held = bench.take(f"t{number}")
        claim.close(bench.board, held, Outcome(False, 0, 1, "command", seconds=1))
    assert reserve.patience(bench.board) == reserve.LEAST


def test_F20_a_task_that_waited_is_done_before_more_urgent_ones_of_its_region(bench: WorkKit) -> None:
    bench.add(task("wide", "echo x >> log", region="r", priority=-5))
    bench.add(*(task(f"n{n}", "echo x >> log", region="r", priority=5) for n in range(2)), task("free", "echo x > f"))
    assert [e["task"] for e in bench.work(once=True, until_empty=False).kinds("claim")] != ["wide"]
    aged(bench, "wide", 5000)
    claimed = [e["task"] for e in bench.work().kinds("claim")]
    assert claimed.index("wide") < min(claimed.index(name) for name in claimed if name in ("n0", "n1"))
    bench.lawful()
