"""Attribution: which model, harness and host made each attempt, and what its verdict was; and what is in progress."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ropewalk.board import holder, names
from ropewalk.board.base import Board
from ropewalk.board.observe import FLOCKWORK_LEASE
from ropewalk.board.scan import Attempt, Scan, attempts, scan
from ropewalk.core import clock


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one attempt: who made it with what, and its own verdict, null where it got none."""

    att: str
    model: str
    kind: str
    harness: str
    fixed: bool | None
    oc_rc: int | None
    pytest_rc: int | None
    host: str | None
    archived: bool
    reason: str = ""
    ended: str = ""


class Running(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a claim without a verdict; `claim_age_s` is null where its age can't be told, `note` says why it is here."""

    att: str
    status: str
    model: str
    harness: str
    claim_age_s: float | None
    bound_s: float
    work_started: bool
    note: str = ""


class Attribution(msgspec.Struct, frozen=True):
    """Is every attempt by task, and the claims without a verdict: in progress, or interrupted."""

    board: str
    tasks: dict[str, list[Row]]
    in_progress: dict[str, Running]
    interrupted: dict[str, Running]


def attribution(
    board: Board, *, bound: float = FLOCKWORK_LEASE, ages: Mapping[str, float] | None = None, found: Scan | None = None
) -> Attribution:
    """Gives who made which attempt.

    A claim is interrupted when its process is known to be gone, or when it is older than `bound`, in seconds, and its
    process is not known to live. `ages` are the ages that this host observed, by task; without one the claim's own
    date counts, as flockwork has it, unless it is in the future.
    """
    seen = found or scan(board)
    rows: dict[str, list[Row]] = {}
    running: dict[str, Running] = {}
    broken: dict[str, Running] = {}
    now = clock.now()
    for task in seen.tasks:
        listed = attempts(seen, task)
        rows[task] = [_row(one) for one in listed]
        if names.claim(task) not in seen.refs or names.verdict(task) in seen.refs or not listed:
            continue
        live = listed[-1]
        if live.claim is None or not live.is_live:
            continue
        made = now - live.at if live.at is not None else None
        age = (ages or {}).get(task, made)
        one = _running(live, age if age is not None and age >= 0 else None, bound)
        (broken if one.status == "interrupted" else running)[task] = one
    return Attribution(board.name, rows, running, broken)


def _row(one: Attempt) -> Row:
    verdict = one.verdict
    if verdict is None:
        return Row(one.id, one.model, one.kind, one.harness, None, None, None, None, one.archived, ended=one.ended)
    return Row(
        one.id, one.model, one.kind, one.harness, verdict.fixed, verdict.oc_rc, verdict.pytest_rc, verdict.host or None,
        one.archived, verdict.reason, one.ended,
    )  # fmt: skip


def _running(one: Attempt, age: float | None, bound: float) -> Running:
    claim = one.claim
    assert claim is not None
    started = any(key in claim.marks for key in ("dispatch_started", "work_started"))
    dead = holder.is_dead(claim.host)
    if dead:
        note = "its process is gone"
    elif dead is None and age is not None and age > bound:
        note = "older than its lease" + ("" if started else ", and no work was started")
    else:
        note = ""
    if "stalled" in claim.marks:
        note = f"{note}; stalled since {claim.marks['stalled']}".removeprefix("; ")
    is_over = bool(dead) or (dead is None and age is not None and age > bound)
    return Running(
        one.id, "interrupted" if is_over else "no_verdict_yet", one.model, one.harness,
        round(age, 1) if age is not None else None, bound, started, note,
    )  # fmt: skip
