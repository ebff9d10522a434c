"""Landing on a shared board: what waits in its queue is checked and landed by one worker at a time, for all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.work.sharedkit import Shared, Worker, answers, start

from ropewalk.board import names, queue


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    """Gives a board on a path."""
    return Shared(tmp_path)


def test_a_change_lands_with_return_verdict_and_closing_claim(shared: Shared) -> None:
    shared.add("a", region="core")
    worker = Worker(shared)
    result = worker.do("a")
    assert result.how == "landed", result
    assert result.commit == shared.main()[-1] == shared.git("rev-parse", names.returned("a"))
    verdict = shared.verdict("a")
    assert verdict.fixed and verdict.values["landed"] == result.commit
    assert verdict.values["tree"] == shared.git("rev-parse", "main^{tree}") == result.tree
    assert shared.git("log", "-1", "--format=%s|%(trailers:key=Attempt,valueonly)", "main").split("|") == [
        "fix a", verdict.attempt
    ]  # fmt: skip
    assert "closed: " in shared.git("log", "-1", "--format=%B", names.claim("a"))
    assert shared.state("a") == "done" and not shared.git("for-each-ref", names.opened("a"))
    assert [name for name, _ in worker.store.refs("refs/board/")] == [worker.landing.ref("main")]
    worker.close()
    shared.lawful()
