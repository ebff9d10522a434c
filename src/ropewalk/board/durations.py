"""Durations: for how long the agents of each model ran, and when each attempt began and ended."""

from __future__ import annotations

import msgspec

from ropewalk.board import wire
from ropewalk.board.base import Board
from ropewalk.board.scan import Attempt, Scan, attempts, scan, seconds_of
from ropewalk.board.spread import percentile

BOUND = 600.0
"""Is for how long an agent may run where its task does not say."""


class ModelDurations(msgspec.Struct, frozen=True):
    """Is how long the agents of a model ran, in seconds; `near_bound` when one ran for 0.9 of its bound or more."""

    n: int
    min_s: float
    max_s: float
    mean_s: float
    p50_s: float
    p90_s: float
    harness: str
    near_bound: bool


class Line(msgspec.Struct, frozen=True):
    """Is one attempt in time: when its spec was made, when it began and ended (seconds since 1970), as objects say."""

    task: str
    att: str
    model: str
    harness: str
    added: int | None
    began: int | None
    ended: int | None
    seconds: float | None
    fixed: bool | None


class Durations(msgspec.Struct, frozen=True):
    """Is the durations by model, and every attempt in time."""

    board: str
    bound_s: float
    models: dict[str, ModelDurations]
    timeline: list[Line]


def durations(board: Board, *, bound: float = BOUND, found: Scan | None = None) -> Durations:
    """Gives how long agents ran, as the verdicts say, archived ones too; a task's own limit counts before `bound`."""
    seen = found or scan(board)
    ran: dict[str, list[tuple[float, float, str]]] = {}
    timeline: list[Line] = []
    for task in seen.tasks:
        spec_id = seen.spec_of(task)
        text = seen.words(spec_id)
        limit = (wire.read_spec(task, text).task.limits.seconds if text is not None else None) or bound
        for one in attempts(seen, task):
            line = _line(seen, one, spec_id)
            timeline.append(line)
            if line.seconds is not None:
                ran.setdefault(one.model, []).append((line.seconds, limit, one.harness))
    far = 1 << 62
    timeline.sort(key=lambda line: (line.began or line.ended or far, line.ended or far, line.task))
    return Durations(board.name, bound, {m: _model(ran[m]) for m in sorted(ran)}, timeline)


def _line(seen: Scan, one: Attempt, spec_id: str | None) -> Line:
    over = one.verdict_id or (one.claim_id if one.archived else None)
    fixed = one.verdict.fixed if one.verdict is not None else None
    return Line(one.task, one.id, one.model, one.harness, seen.made_at(spec_id), one.began, seen.made_at(over),
                seconds_of(one.verdict), fixed)  # fmt: skip


def _model(ran: list[tuple[float, float, str]]) -> ModelDurations:
    values = sorted(seconds for seconds, _, _ in ran)
    return ModelDurations(
        len(values), round(values[0], 2), round(values[-1], 2), round(sum(values) / len(values), 2),
        round(percentile(values, 0.5), 2), round(percentile(values, 0.9), 2),
        ", ".join(sorted({harness for _, _, harness in ran})), any(s >= 0.9 * limit for s, limit, _ in ran),
    )  # fmt: skip
