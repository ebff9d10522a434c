"""One task's story: all that a board keeps of it, in the order in which it came to be, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ropewalk.board import names, state, wire
from ropewalk.board.base import Board
from ropewalk.board.scan import Scan, attempts, scan, stamped
from ropewalk.board.state import State
from ropewalk.core import clock
from ropewalk.core.errors import NotFoundError


class Shown(msgspec.Struct, frozen=True):
    """Is an object of the board: its id, when it says it was made, how long ago that is, and its message."""

    sha: str
    ts: int | None
    age_s: int | None
    body: str


class ShownVerdict(msgspec.Struct, frozen=True):
    """Is a verdict, and its fields."""

    sha: str
    ts: int | None
    age_s: int | None
    body: str
    fields: dict[str, str]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one thing that happened: `life` is how often the task had been opened again, `at` what objects say of when."""

    life: int
    what: str
    at: int | None = None
    att: str = ""
    ref: str = ""
    sha: str = ""
    words: str = ""


class Story(msgspec.Struct, frozen=True):
    """Is all of a task: how it stands, its objects as they are now, what is archived, and its events in order."""

    task: str
    state: State
    why: str
    spec: str
    claim: Shown | None
    checkpoints: dict[str, str]
    return_ref: str | None
    verdict: ShownVerdict | None
    archived: list[str]
    events: list[Event]


def debug(board: Board, task: str, *, found: Scan | None = None) -> Story:
    """Gives a task's story; `E_NOT_FOUND` where the board has nothing under its name.

    Within one attempt the order is that of the laws: claim, checkpoints, return, verdict. Attempts follow each other
    as the lives of the task say, and within a life as their objects' dates do, which come from several clocks.
    """
    seen = found or scan(board)
    status = state.need(seen.board, task)
    archived = sorted(
        f"{names.ARCHIVE}{kind}/{task}@{marker}"
        for kind in names.ARCHIVED.values()
        for marker, _ in seen.archived(kind, task)
    )
    live = [ref for ref in (names.claim(task), names.returned(task), names.verdict(task)) if ref in seen.refs]
    if status is None and not live and not archived:
        raise NotFoundError(f"the board has no task {task!r}", hint="`rw task list` shows the tasks", task=task)
    claim = _shown(seen, seen.refs.get(names.claim(task)))
    shown = _shown(seen, seen.refs.get(names.verdict(task)))
    read = wire.read_claim(claim.body) if claim is not None else None
    verdict = None
    if shown is not None:
        verdict = ShownVerdict(shown.sha, shown.ts, shown.age_s, shown.body, wire.fields(shown.body).values)
    return Story(
        task, status.state if status is not None else "invalid", status.why if status is not None else "it has no spec",
        status.spec.brief if status is not None else "", claim, dict(read.marks) if read is not None else {},
        seen.refs.get(names.returned(task)), verdict, archived, list(_events(seen, task)),
    )  # fmt: skip


def _shown(seen: Scan, oid: str | None) -> Shown | None:
    if oid is None:
        return None
    at = seen.made_at(oid)
    return Shown(oid, at, clock.now() - at if at is not None else None, (seen.words(oid) or "").rstrip("\n"))


def _events(seen: Scan, task: str) -> Iterator[Event]:
    spec_id = seen.spec_of(task)
    if spec_id is not None:
        ref = names.spec(task) if names.spec(task) in seen.refs else names.held(task)
        yield Event(0, "spec", seen.made_at(spec_id), ref=ref, sha=spec_id)
    life = 0
    returns = dict(seen.archived("tasks", task))
    fired = dict(seen.archived("integrated", task))
    for one in attempts(seen, task):
        claim = one.claim
        life = max(life, claim.life if claim is not None else 0)
        ref = names.archived(names.claim(task), one.id) if one.archived else names.claim(task)
        if one.claim_id is not None:
            words = ", ".join(f"{key} {value}" for key, value in (("harness", one.harness), ("model", one.model)))
            yield Event(life, "claim", None, one.id, ref, one.claim_id, words)
        for mark, stamp in (claim.marks if claim is not None else {}).items():
            yield Event(life, mark, stamped(stamp), one.id)
        now = one.is_live and one.verdict_id == seen.refs.get(names.verdict(task))
        returned = seen.refs.get(names.returned(task)) if one.is_live else returns.get(one.id)
        if returned is not None:
            ref = names.returned(task) if one.is_live else names.archived(names.returned(task), one.id)
            yield Event(life, "return", seen.made_at(returned), one.id, ref, returned)
        if one.verdict is not None and one.verdict_id is not None:
            ref = names.verdict(task) if now else names.archived(names.verdict(task), one.id)
            said = (
                "fixed" if one.verdict.fixed else one.verdict.reason or f"the check ended with {one.verdict.pytest_rc}"
            )
            yield Event(life, "verdict", seen.made_at(one.verdict_id), one.id, ref, one.verdict_id, said)
        yield from _reviews(seen, task, one.id, life, is_live=one.is_live)
        gate = seen.refs.get(names.integrated(task)) if one.is_live else fired.get(one.id)
        if gate is not None:
            yield Event(life, "integrated", seen.made_at(gate), one.id, sha=gate)
        if one.archived and one.verdict is None:
            yield Event(life, "archived", seen.made_at(one.claim_id), one.id, words=one.ended)
        elif one.archived or (one.verdict is not None and not one.is_live):
            by = one.verdict.values.get("reopened_by", "") if one.verdict is not None else ""
            life += 1
            yield Event(life, "reopened", None, one.id, words=f"by {by or 'external'}")


def _reviews(seen: Scan, task: str, attempt: str, life: int, *, is_live: bool) -> Iterator[Event]:
    listed = seen.reviews(task) if is_live else [
        (marker.rpartition("@")[0], oid) for marker, oid in seen.archived("verdicts", task)
        if marker.rpartition("@")[0] and marker.rpartition("@")[2] == attempt
    ]  # fmt: skip
    for reviewer, oid in listed:
        said = wire.read_review(seen.words(oid) or "", task, reviewer)
        yield Event(
            life, "review", seen.made_at(oid), attempt, sha=oid, words=f"{reviewer}: {said.outcome or said.problem}"
        )
