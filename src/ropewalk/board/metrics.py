"""Metrics: what files of events say of a swarm, and the five numbers of DORA, from files or from a board itself.

An event is a JSON object on a line, in flockwork's words: `ts`, `event` and its fields. A line that is none is counted
and passed over. What an event does not say is not made up: without a time it counts where no time is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from ropewalk.board.base import Board
from ropewalk.board.scan import Attempt, Scan, attempts, scan, seconds_of, stamped
from ropewalk.board.spread import Spread, spread
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import NotFoundError, os_error

KINDS = ("seed", "claim", "verdict", "heir", "crash", "eviction", "lease_expired", "dispatch_started")
_LINE = 1 << 20
_FAR = 4e9


class Happened(NamedTuple):
    """Is one event; `ts` is None where it has no time that can be.

    `env` says that surroundings ended the attempt, `landed` that its change came onto the target by it.
    """

    kind: str
    ts: float | None
    task: str
    att: str
    outcome: str = ""
    fixed: bool | None = None
    pushed: bool | None = None
    env: bool = False
    exhausted: bool = False
    requeued: bool = False
    seeded: bool = False
    landed: bool = False


class Events(NamedTuple):
    """Is what was read: the events in the order in which they were read, and how many lines were none."""

    listed: list[Happened]
    malformed: int
    files: tuple[str, ...] = ()


class Claims(msgspec.Struct, frozen=True):
    """Is how claims went; `reject_rate` is the share of races and structural failures."""

    attempts: int
    won: int
    race_rejected: int
    structural: int
    reject_rate: float


class Verdicts(msgspec.Struct, frozen=True):
    """Is what verdicts said; those that `fixed_false` counts include deaths by infrastructure, `env_deaths`."""

    total: int
    fixed_true: int
    fixed_false: int
    env_deaths: int
    push_failures: int


class Heirs(msgspec.Struct, frozen=True):
    """Is how often a task went to an heir, and how often none was left."""

    requeues: int
    exhausted: int


class Deployments(msgspec.Struct, frozen=True):
    """Is how many changes landed, by day (UTC); `undated` landed too, nobody knows when."""

    landed_total: int
    per_day: dict[str, int]
    days_active: int
    mean_per_active_day: float | None
    undated: int


class Failures(msgspec.Struct, frozen=True):
    """Is how many verdicts failed by merit, of those that are by merit; deaths by infrastructure stand beside."""

    merit_fails: int
    total: int
    rate: float | None
    env_deaths: int


class Recovery(msgspec.Struct, frozen=True):
    """Is how many attempts broke, and in how many seconds the next one at the task had its verdict."""

    failures: int
    n: int
    p50: float | None
    p90: float | None
    max: float | None


class Rework(msgspec.Struct, frozen=True):
    """Is what was done over, for each claim that was tried."""

    requeues: int
    race_rejections: int
    redone_verdicts: int
    events: int
    attempts: int
    rate: float | None


class Dora(msgspec.Struct, frozen=True):
    """Is the five numbers; null stands for a rate or a time that nothing was measured for.

    `lead_time_s` is from a task's spec to its first landed verdict that says fixed.
    """

    deployment_frequency: Deployments
    lead_time_s: Spread
    change_failure_rate: Failures
    recovery_s: Recovery
    rework_rate: Rework


class Metrics(msgspec.Struct, frozen=True):
    """Is the summary; `undated` are events without a time, `latency_s` from a won claim to its verdict."""

    events: int
    malformed: int
    undated: int
    counts: dict[str, int]
    claims: Claims
    latency_s: Spread
    verdicts: Verdicts
    heirs: Heirs
    dispatch: dict[str, int]
    files: list[str]
    dora: Dora | None = None


def read(paths: Sequence[str]) -> Events:
    """Reads files of events; `E_NOT_FOUND` where one is missing, because no data and no file are not the same."""
    listed: list[Happened] = []
    malformed = 0
    for path in paths:
        try:
            with open(path, "rb") as file:
                while line := file.readline(_LINE):
                    whole = line.endswith(b"\n") or len(line) < _LINE
                    while not line.endswith(b"\n") and (rest := file.readline(_LINE)):
                        line = rest
                    if whole and not line.strip():
                        continue
                    found = _event(line) if whole else None
                    if found is None:
                        malformed += 1
                    else:
                        listed.append(found)
        except FileNotFoundError:
            raise NotFoundError(f"there is no file {path!r}", hint="name a file of events", path=path) from None
        except OSError as error:
            raise os_error(error, "reading events") from None
    return Events(listed, malformed, tuple(paths))


def _event(line: bytes) -> Happened | None:
    try:
        said = msgspec.json.decode(line)
    except UNREADABLE:
        return None
    if not isinstance(said, dict):
        return None
    for key in ("event", "task", "att", "outcome", "reason"):
        if not isinstance(said.get(key, ""), str | None):
            return None
    ts = said.get("ts")
    dated = isinstance(ts, int | float) and not isinstance(ts, bool) and 0 <= ts < _FAR
    return Happened(
        said.get("event") or "", float(ts) if dated and ts is not None else None, said.get("task") or "",
        said.get("att") or "", said.get("outcome") or "", _flag(said, "fixed"), _flag(said, "verdict_pushed"),
        _is_env(said), _flag(said, "heir_exhausted") is True, _flag(said, "requeued") is True,
        _flag(said, "ok") is True, _has_landed(said),
    )  # fmt: skip


def _flag(said: dict[str, Any], key: str) -> bool | None:
    value = said.get(key)
    return value if isinstance(value, bool) else None


def _has_landed(said: dict[str, Any]) -> bool:
    """Says whether a verdict's change landed: not where it waits for a merge, or was there without it."""
    is_green = said.get("fixed") is True and said.get("verdict_pushed") is True
    return is_green and not said.get("pending") and not said.get("already")


def _is_env(said: dict[str, Any]) -> bool:
    by_reason = str(said.get("reason") or "").startswith(("infrastructure", "heir_exhausted_env_death"))
    return _flag(said, "env_death") is True or _flag(said, "heir_exhausted") is True or by_reason


def of_board(board: Board, *, found: Scan | None = None) -> Events:
    """Gives the events that a board itself tells of, whoever worked on it and by whatever way.

    Lost races leave nothing on a board. When a claim was made is known where it says so, or has a checkpoint.
    """
    seen = found or scan(board)
    listed: list[Happened] = []
    for task in seen.tasks:
        spec = seen.made_at(seen.spec_of(task))
        listed.append(Happened("seed", float(spec) if spec is not None else None, task, "", seeded=True))
        for one in attempts(seen, task):
            listed += _of_attempt(seen, one)
    return Events(listed, 0)


def _of_attempt(seen: Scan, one: Attempt) -> list[Happened]:
    verdict, marks = one.verdict, one.claim.marks if one.claim is not None else {}
    if verdict is not None and verdict.reason == "cancelled":
        return []
    began = one.began
    over = seen.made_at(one.verdict_id) if verdict is not None else one.at
    ran = seconds_of(verdict)
    if began is None and over is not None and ran is not None:
        began = int(over - ran)
    found = [Happened("claim", float(began) if began is not None else None, one.task, one.id, "won")]
    if "dispatch_started" in marks:
        at = stamped(marks["dispatch_started"])
        found.append(Happened("dispatch_started", float(at) if at is not None else None, one.task, one.id))
    ended = float(over) if over is not None else None
    if verdict is not None:
        env = verdict.reason.startswith("infrastructure") or (verdict.fixed is False and verdict.oc_rc == 124)
        landed = verdict.fixed is True and verdict.values.get("landed") != "pending" and "already" not in verdict.values
        found.append(Happened("verdict", ended, one.task, one.id, fixed=verdict.fixed, pushed=True, env=env,
                              exhausted=env, landed=landed))  # fmt: skip
    elif one.archived and not one.ended.startswith("released"):
        found.append(Happened("heir", ended, one.task, one.id, requeued=True))
        found.append(Happened("lease_expired" if one.ended.startswith("evicted") else "crash", ended, one.task, one.id))
    return found


def merge(files: Events, board: Events) -> Events:
    """Gives the events of files, and those of a board that no file tells of."""
    known = {(one.kind, one.att or one.task) for one in files.listed if one.outcome in ("", "won")}
    return files._replace(
        listed=files.listed + [one for one in board.listed if (one.kind, one.att or one.task) not in known]
    )


def summary(events: Events, *, with_dora: bool = False) -> Metrics:
    """Gives the summary of events, and the numbers of DORA where they are wanted."""
    listed = events.listed
    counts = {kind: sum(one.kind == kind for one in listed) for kind in KINDS}
    claims = [one for one in listed if one.kind == "claim"]
    won, race, structural = (sum(one.outcome == how for one in claims) for how in ("won", "race", "structural"))
    verdicts = [one for one in listed if one.kind == "verdict"]
    start = {one.att: one.ts for one in claims if one.outcome == "won" and one.att and one.ts is not None}
    end = {one.att: one.ts for one in verdicts if one.att and one.ts is not None}
    return Metrics(
        len(listed), events.malformed, sum(one.ts is None for one in listed), counts,
        Claims(len(claims), won, race, structural, round((race + structural) / len(claims), 4) if claims else 0.0),
        spread(end[att] - start[att] for att in end if att in start and end[att] >= start[att]),
        Verdicts(
            len(verdicts), sum(one.fixed is True for one in verdicts), sum(one.fixed is False for one in verdicts),
            sum(one.fixed is False and one.env for one in verdicts), sum(one.pushed is False for one in verdicts),
        ),
        Heirs(sum(one.kind == "heir" and one.requeued for one in listed), sum(one.exhausted for one in verdicts)),
        {"dispatch_started": counts["dispatch_started"]}, list(events.files), dora(events) if with_dora else None,
    )  # fmt: skip


def dora(events: Events) -> Dora:
    """Gives the five numbers of DORA; a verdict that is told twice counts once."""
    listed = events.listed
    verdicts = _once([one for one in listed if one.kind == "verdict"])
    claims = [one for one in listed if one.kind == "claim"]
    landed = [one for one in verdicts if one.landed]
    merit = sum(one.fixed is False and not one.env for one in verdicts)
    judged = merit + sum(one.fixed is True for one in verdicts)
    races = sum(one.outcome == "race" for one in claims)
    requeues = sum(one.kind == "heir" and one.requeued for one in listed)
    tasks = [one.task for one in verdicts if one.task]
    again = len(tasks) - len(set(tasks))
    rework = requeues + races + again
    return Dora(
        _deployments(landed), spread(_leads(listed, landed)),
        Failures(merit, judged, round(merit / judged, 4) if judged else None,
                 sum(one.fixed is False and one.env for one in verdicts)),
        _recovery(listed, verdicts),
        Rework(requeues, races, again, rework, len(claims), round(rework / len(claims), 4) if claims else None),
    )  # fmt: skip


def _once(verdicts: Iterable[Happened]) -> list[Happened]:
    found: dict[tuple[str, str] | int, Happened] = {}
    for number, one in enumerate(verdicts):
        found.setdefault((one.task, one.att) if one.att else number, one)
    return list(found.values())


def _deployments(landed: Sequence[Happened]) -> Deployments:
    days: dict[str, int] = {}
    for one in landed:
        if one.ts is not None:
            day = time.strftime("%Y-%m-%d", time.gmtime(one.ts))
            days[day] = days.get(day, 0) + 1
    dated = sum(days.values())
    mean = round(dated / len(days), 2) if days else None
    return Deployments(len(landed), dict(sorted(days.items())), len(days), mean, len(landed) - dated)


def _leads(listed: Iterable[Happened], landed: Iterable[Happened]) -> list[float]:
    seeds: dict[str, float] = {}
    for one in listed:
        if one.kind == "seed" and one.seeded and one.task and one.ts is not None:
            seeds[one.task] = min(one.ts, seeds.get(one.task, one.ts))
    ends: dict[str, float] = {}
    for one in landed:
        if one.ts is not None and one.ts >= seeds.get(one.task, _FAR):
            ends[one.task] = min(one.ts, ends.get(one.task, one.ts))
    return [end - seeds[task] for task, end in ends.items()]


def _recovery(listed: Sequence[Happened], verdicts: Iterable[Happened]) -> Recovery:
    ends: dict[str, float] = {}
    for one in verdicts:
        if one.att and one.ts is not None:
            ends[one.att] = min(one.ts, ends.get(one.att, one.ts))
    won: dict[str, list[tuple[float, str]]] = {}
    for one in listed:
        if one.kind == "claim" and one.outcome == "won" and one.ts is not None and one.att:
            won.setdefault(one.task, []).append((one.ts, one.att))
    for claims in won.values():
        claims.sort()
    failures = [one for one in listed if one.kind in ("crash", "lease_expired") and one.task]
    spans = []
    for one in failures:
        at = one.ts
        if at is None:
            continue
        # an event and the claim after it may be of the same second
        later = next(((ts, att) for ts, att in won.get(one.task, ()) if ts >= at and att != one.att), None)
        if later is not None and ends.get(later[1], -1.0) >= later[0]:
            spans.append(ends[later[1]] - at)
    lie = spread(spans)
    return Recovery(len(failures), lie.n, lie.p50, lie.p90, lie.max)
