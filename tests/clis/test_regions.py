"""Tasks of one region, done by a real agent program one after the other: in one session, until it is too large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clis.test_limits import Bench, folder, server
from tests.clis.test_tools import needed

from ropewalk.lane import journal
from ropewalk.plan.task import Task
from ropewalk.run.work.sessions import CONTEXT
from ropewalk.testing.model_server import ModelServer

pytestmark = [pytest.mark.clis, pytest.mark.slow, pytest.mark.compat]

__all__ = ["folder", "server"]


@pytest.fixture
def bench(folder: Path, server: ModelServer, request: pytest.FixtureRequest) -> Iterator[Bench]:
    needed(request.param)
    made = Bench(folder, server, request.param)
    yield made
    made.close()


def sessions(bench: Bench, tokens: int) -> list[str | None]:
    """Does two tasks of one region, whose answers say that they are so large; gives the sessions of their lanes."""
    usage = {"input": tokens, "output": 10, "cache_read": 0}
    bench.server.add("many", [{"text": "FINAL-ANSWER: it is there already", "usage": usage}])
    for name in ("a", "b"):
        bench.add(Task(name, "test -e README.md", description=f"Please do {name}.", region="core"))
    events = bench.run()
    ends = [(e["task"], e["how"]) for e in events if e["event"] == "attempted"]
    assert ends == [("a", "satisfied"), ("b", "satisfied")], events
    lanes = sorted(journal.lanes(bench.board.kit.store), key=lambda lane: (lane.record.began, lane.record.task))
    assert all(lane.result is not None and lane.result.context == tokens + 10 for lane in lanes), lanes
    return [lane.result.session for lane in lanes if lane.result is not None]


@pytest.mark.parametrize("bench", ["claude", "codex"], indirect=True)
def test_devflock_B25_the_next_task_of_a_region_goes_on_in_its_session(bench: Bench) -> None:
    first, second = sessions(bench, 1_000)
    assert first and first == second
    last = [e for e in bench.server.entries(bench.program) if e.message_id][-1]
    assert "Please do b." in last.prompt


@pytest.mark.parametrize("bench", ["codex"], indirect=True)
def test_devflock_A3_a_session_that_is_too_large_is_not_gone_on_with(bench: Bench) -> None:
    first, second = sessions(bench, CONTEXT + 1)
    assert first and second and first != second
