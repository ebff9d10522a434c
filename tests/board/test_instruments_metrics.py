"""Metrics of files and of boards: nothing is made up, nothing breaks, and the five numbers count what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.board import flockwork
from tests.board.boardkit import ACTOR, BoardKit
from tests.board.flockwork import Flockwork

from ropewalk.board import claim, metrics, tasks
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import NotFoundError

DAY = 1_700_000_000.0


def stream(path: Path, *events: dict[str, Any] | bytes) -> str:
    """Writes a file of events, or of any lines."""
    path.write_bytes(b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in events))
    return str(path)


def said(event: str, ts: float | None, **more: Any) -> dict[str, Any]:
    """Gives an event."""
    return {"event": event, **({} if ts is None else {"ts": ts}), **more}


PLAIN = [
    said("seed", DAY, task="a", ok=True), said("seed", DAY, task="b", ok=True), said("seed", DAY, task="c", ok=False),
    said("claim", DAY + 5, task="a", att="att-1", outcome="won"), said("claim", DAY + 5, task="a", outcome="race"),
    said("claim", DAY + 6, task="b", att="att-2", outcome="won"),
    said("claim", DAY + 7, task="b", outcome="structural"),
    said("dispatch_started", DAY + 8, task="b", att="att-2"), said("crash", DAY + 10, task="b", att="att-2"),
    said("heir", DAY + 10, task="b", att="att-2", requeued=True),
    said("claim", DAY + 20, task="b", att="att-3", outcome="won"),
    said("verdict", DAY + 30, task="b", att="att-3", fixed=True, verdict_pushed=True),
    said("verdict", DAY + 86_400, task="a", att="att-1", fixed=True, verdict_pushed=True),
]  # fmt: skip
"""Is a stream that flockwork counts rightly."""


def read(path: Path, *events: dict[str, Any] | bytes) -> metrics.Metrics:
    """Gives the metrics of events."""
    return metrics.summary(metrics.read([stream(path / "events.jsonl", *events)]), with_dora=True)


@pytest.mark.compat
def test_R26_a_stream_that_flockwork_counts_rightly_gives_the_same(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.getbasetemp()
    package = flockwork.fetch(base.parent if base.name.startswith("popen-") else base)
    path = stream(tmp_path / "events.jsonl", *PLAIN, b"{torn", b"[1]", b"")
    theirs = Flockwork(package, "none", tmp_path / "peer").json("--dora", path, module="l2.metrics")
    ours = msgspec.to_builtins(metrics.summary(metrics.read([path]), with_dora=True))

    def covers(mine: Any, known: Any, where: str) -> None:
        if isinstance(known, dict) and where != "per_day":
            for key in known:
                covers(mine[key], known[key], key)
        else:
            assert mine == known, (where, mine, known)

    covers(ours, theirs, "")


def test_R20_lead_time_is_of_green_verdicts_alone(tmp_path: Path) -> None:
    found = read(
        tmp_path, said("seed", DAY, task="a", ok=True),
        said("verdict", DAY + 10, task="a", att="att-1", fixed=False, verdict_pushed=True),
        said("verdict", DAY + 50, task="a", att="att-2", fixed=True, verdict_pushed=False),
        said("verdict", DAY + 90, task="a", att="att-3", fixed=True, verdict_pushed=True),
    ).dora  # fmt: skip
    assert found is not None
    assert (found.lead_time_s.n, found.lead_time_s.max) == (1, 90.0)
    assert found.deployment_frequency.landed_total == 1


def test_R20_deaths_are_no_failed_changes(tmp_path: Path) -> None:
    found = read(
        tmp_path, said("verdict", DAY, task="a", att="1", fixed=True, verdict_pushed=True),
        said("verdict", DAY, task="b", att="2", fixed=False),
        said("verdict", DAY, task="c", att="3", fixed=False, env_death=True, heir_exhausted=True),
        said("verdict", DAY, task="d", att="4", fixed=False, heir_exhausted=True),
    )  # fmt: skip
    assert found.dora is not None
    rate = found.dora.change_failure_rate
    assert (rate.merit_fails, rate.total, rate.rate, rate.env_deaths) == (1, 2, 0.5, 2)
    assert (found.verdicts.fixed_false, found.verdicts.env_deaths, found.heirs.exhausted) == (3, 2, 2)


def test_R20_what_has_no_time_counts_where_none_is_needed(tmp_path: Path) -> None:
    found = read(
        tmp_path, said("seed", None, task="a", ok=True), said("claim", None, task="a", att="1", outcome="won"),
        said("verdict", None, task="a", att="1", fixed=True, verdict_pushed=True),
        said("verdict", DAY, task="b", att="2", fixed=True, verdict_pushed=True),
        *({"ts": ts, "event": "crash", "task": "a"} for ts in (1e300, -1.0, "soon", True)),
    )  # fmt: skip
    assert found.undated == 7
    assert found.dora is not None
    assert found.dora.deployment_frequency.per_day == {"2023-11-14": 1}
    assert (found.dora.deployment_frequency.landed_total, found.dora.deployment_frequency.undated) == (2, 1)
    assert (found.dora.recovery_s.failures, found.dora.recovery_s.n, found.latency_s.n) == (4, 0, 0)


def test_R20_bad_lines_are_counted_and_break_nothing(tmp_path: Path) -> None:
    lines: list[bytes] = [
        b"\xff\xfe not utf-8", b'{"event": "claim", "task": ["a"], "ts": 1}', b'{"event": ["claim"]}', b"null", b"12",
        b'{"event": "verdict", "att": {"x": 1}}', b"[" * 5000, b'{"ts": NaN, "event": "claim"}', b'{"event": "crash"',
        b'{"event": "claim", "pad": "' + b"x" * (3 << 20) + b'"}', b'{"event":"\\ud800"}',
    ]  # fmt: skip
    found = read(tmp_path, *lines, b"", b"   ", said("claim", DAY, task="a", att="1", outcome="won"))
    assert (found.malformed, found.events, found.claims.won) == (len(lines), 1, 1)
    msgspec.json.encode(found)


def test_no_file_is_no_empty_file(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.events, found.latency_s.p50) == (0, None)
    assert found.dora is not None and found.dora.change_failure_rate.rate is None
    with pytest.raises(NotFoundError):
        metrics.read([str(tmp_path / "none.jsonl")])
    (tmp_path / "torn.jsonl").write_bytes(b'{"event":"crash","task":"a"}')
    assert metrics.read([str(tmp_path / "torn.jsonl")]).listed[0].kind == "crash"


def test_R20_what_waits_for_a_merge_or_was_there_already_is_no_deployment(board: BoardKit, tmp_path: Path) -> None:
    green = {"fixed": True, "verdict_pushed": True}
    found = read(tmp_path, said("verdict", DAY, task="a", att="1", pending=True, **green),
                 said("verdict", DAY, task="b", att="2", already="satisfied", **green),
                 said("verdict", DAY, task="c", att="3", **green, pending=False, already="")).dora  # fmt: skip
    assert found is not None and found.deployment_frequency.landed_total == 1
    board.add("there", "waits")
    for task, more in (("there", {"already": "satisfied"}), ("waits", {"landed": "pending"})):
        claim.close(board.board, board.take(task), Outcome(True, 0, 0, "command", more=more), board.main())
    found = metrics.dora(metrics.of_board(board.board))
    assert (found.deployment_frequency.landed_total, found.change_failure_rate.total) == (0, 2)


def test_a_verdict_told_twice_lands_once(tmp_path: Path) -> None:
    once = said("verdict", DAY, task="a", att="1", fixed=True, verdict_pushed=True)
    found = read(tmp_path, once, once).dora
    assert found is not None
    assert (found.deployment_frequency.landed_total, found.rework_rate.redone_verdicts) == (1, 0)


def test_R20_a_board_tells_of_all_work_whoever_did_it(board: BoardKit, tmp_path: Path) -> None:
    board.add("a", "b", "c", "d", "gone")
    board.done("a")
    board.failed("b")
    for _ in range(2):
        claim.die(board.board, board.take("c"), Outcome(False, 124, 1, "command", reason="timeout"))
    claim.release(board.board, board.take("d"))
    tasks.cancel(board.board, "gone", board.who())
    tasks.reopen(board.board, ["b"], ACTOR)
    board.done("b", "w2")
    events = metrics.of_board(board.board)
    found = metrics.summary(events, with_dora=True)
    assert found.dora is not None
    assert (found.counts["seed"], found.verdicts.fixed_true, found.verdicts.fixed_false, found.verdicts.env_deaths) == (
        5, 2, 2, 1,
    )  # fmt: skip
    assert found.undated == 0
    rate = found.dora.change_failure_rate
    assert (rate.merit_fails, rate.total, rate.env_deaths) == (1, 3, 1)
    assert (found.dora.lead_time_s.n, found.dora.deployment_frequency.landed_total) == (2, 2)
    assert (found.heirs.requeues, found.heirs.exhausted, found.dora.recovery_s.n) == (1, 1, 1)

    attempt = board.verdict("a").attempt
    path = stream(tmp_path / "events.jsonl", said("claim", DAY, task="a", outcome="race"),
                  said("verdict", DAY, task="a", att=attempt, fixed=True, verdict_pushed=True))  # fmt: skip
    both = metrics.summary(metrics.merge(metrics.read([path]), events), with_dora=True)
    assert (both.claims.race_rejected, both.verdicts.total) == (1, found.verdicts.total)
