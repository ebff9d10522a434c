"""A scan: everything that instruments read of a board, with one listing of its refs and one batch of its objects."""

from __future__ import annotations

from bisect import bisect_left
from calendar import timegm
from collections.abc import Iterable
from itertools import takewhile
from time import strptime
from typing import Any, NamedTuple, cast

from ropewalk.board import names, wire
from ropewalk.board.base import Board
from ropewalk.board.compact import history, task_of
from ropewalk.board.wire import Claim, Verdict


class Scan:
    """Is a board as it was seen at once: `refs` below `refs/swarm/`, and the messages behind them."""

    def __init__(self, board: Board, refs: dict[str, str]) -> None:
        self.board = board
        self.refs = refs
        self._contents: dict[str, bytes | None] = {}
        self._archived: dict[str, dict[str, list[tuple[str, str]]]] = {}
        self._reviews: dict[str, list[tuple[str, str]]] = {}
        for ref, oid in refs.items():
            if ref.startswith(names.ARCHIVE):
                kind, _, name = ref[len(names.ARCHIVE) :].partition("/")
                task, _, marker = name.partition("@")
                self._archived.setdefault(kind, {}).setdefault(task, []).append((marker, oid))
            elif ref.startswith(names.VERDICTS) and "@" in ref:
                task, _, reviewer = ref[len(names.VERDICTS) :].rpartition("@")
                self._reviews.setdefault(task, []).append((reviewer, oid))

    @property
    def tasks(self) -> list[str]:
        """Gives the names of all tasks that have a spec, held back or not."""
        return sorted({*self.named(names.SPECS), *self.named(names.HELD)})

    def named(self, prefix: str) -> list[str]:
        """Gives the names of the tasks that have a ref of a kind."""
        return [ref[len(prefix) :] for ref in self.refs if ref.startswith(prefix) and "@" not in ref]

    def spec_of(self, task: str) -> str | None:
        """Gives the id of a task's spec."""
        return self.refs.get(names.spec(task)) or self.refs.get(names.held(task))

    def archived(self, kind: str, task: str) -> list[tuple[str, str]]:
        """Gives (attempt, id) of what an archive keeps of a task, reviews as (reviewer@attempt, id)."""
        return self._archived.get(kind, {}).get(task, [])

    def archives(self, kind: str) -> list[tuple[str, str, str]]:
        """Gives (task, attempt, id) of all that an archive keeps of a kind."""
        return [(task, marker, oid) for task, kept in self._archived.get(kind, {}).items() for marker, oid in kept]

    def reviews(self, task: str) -> list[tuple[str, str]]:
        """Gives (reviewer, id) of a task's reviews."""
        return self._reviews.get(task, [])

    @property
    def reviewed(self) -> list[str]:
        """Gives the tasks that reviews name."""
        return sorted(self._reviews)

    def read(self, ids: Iterable[str]) -> None:
        """Reads commits at once, and keeps them for as long as the scan is used, however many they are."""
        wanted = [oid for oid in dict.fromkeys(ids) if oid not in self._contents]
        self.board.prefetch(wanted)
        self._contents |= {oid: self.board.content(oid) for oid in wanted}

    def content(self, oid: str | None) -> bytes | None:
        """Gives the content of a commit; None where it can't be read, or is none."""
        if oid is not None and oid not in self._contents:
            self.read([oid])
        return self._contents[oid] if oid is not None else None

    def words(self, oid: str | None) -> str | None:
        """Gives an object's message; None where it can't be read."""
        content = self.content(oid)
        return None if content is None else wire.message(content)

    def made_at(self, oid: str | None) -> int | None:
        """Gives when an object says that it was made; None where it does not say."""
        content = self.content(oid)
        return (wire.made_at(content) or None) if content is not None else None

    def claim(self, oid: str | None) -> Claim | None:
        """Gives the claim that an object is."""
        text = self.words(oid)
        return None if text is None else wire.read_claim(text)

    def verdict(self, oid: str | None) -> Verdict | None:
        """Gives the verdict that an object is."""
        text = self.words(oid)
        return None if text is None else wire.read_verdict(text)


class _Frozen:
    """Is a board whose refs stay as they were listed at once, branches apart; all else is the board's own."""

    def __init__(self, board: Board, refs: dict[str, str]) -> None:
        self._board = board
        self._refs = refs
        self._names = sorted(refs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._board, name)

    def ref(self, name: str) -> str | None:
        """Gives what a ref pointed to."""
        return self._refs.get(name) if name.startswith(names.ROOT) else self._board.ref(name)

    def below(self, prefix: str) -> list[tuple[str, str]]:
        """Gives (full name, id) of refs by name."""
        if not prefix.startswith(names.ROOT):
            return self._board.below(prefix)
        listed = self._names[bisect_left(self._names, prefix) :]
        return [(name, self._refs[name]) for name in takewhile(lambda name: name.startswith(prefix), listed)]


def frozen(board: Board) -> tuple[Board, dict[str, str]]:
    """Gives a board as it is now, whatever happens on it meanwhile, and its refs.

    What was compacted is there again, but for tasks of the same name that were added since.
    """
    past = history(board).refs
    refs = dict(board.below(names.ROOT))
    there = {ref[len(kind) :] for kind in (names.SPECS, names.HELD) for ref in refs if ref.startswith(kind)}
    refs = {ref: oid for ref, oid in past.items() if task_of(ref) not in there} | refs
    return cast(Board, _Frozen(board, refs)), refs


def scan(board: Board) -> Scan:
    """Reads a board, with what was compacted of it."""
    still, refs = frozen(board)
    found = Scan(still, refs)
    found.read(oid for ref, oid in refs.items() if not ref.startswith(names.OPEN) and ref != names.LOG)
    return found


class Attempt(NamedTuple):
    """Is one attempt at a task as the board shows it; `at` is what its newest object says, which no order rests on.

    `archived` says that its claim was archived, `is_live` that the task's claim or verdict now is this attempt's.
    """

    task: str
    id: str
    claim: Claim | None
    claim_id: str | None
    verdict: Verdict | None
    verdict_id: str | None
    at: int | None
    archived: bool
    is_live: bool

    @property
    def model(self) -> str:
        """Gives the model, of the claim before the verdict; `unknown` where neither names one."""
        said = self.claim.model if self.claim is not None else ""
        return said or self._said("model") or "unknown"

    @property
    def kind(self) -> str:
        """Gives whether the model is a chain or direct; `unknown` where nothing says so."""
        said = self.claim.values_of("kind") if self.claim is not None else []
        return (said[0] if said else "") or self._said("kind") or "unknown"

    @property
    def harness(self) -> str:
        """Gives the harness; `unknown` where none is named."""
        said = self.claim.harness if self.claim is not None else ""
        return said or self._said("harness") or "unknown"

    @property
    def began(self) -> int | None:
        """Gives when it was claimed, else its first checkpoint, in seconds since 1970; None where nothing says so."""
        if self.claim is None:
            return None
        said = self.claim.values_of("claimed")
        marks = (self.claim.marks.get(key, "") for key in ("dispatch_started", "work_started"))
        first = min((at for mark in marks if (at := stamped(mark)) is not None), default=None)
        return (stamped(said[0]) if said else None) or first

    @property
    def ended(self) -> str:
        """Gives how an archived claim ended, as its holder or whoever archived it said."""
        said = self.claim.values_of("ended") if self.claim is not None else []
        return said[0] if said else ""

    def _said(self, key: str) -> str:
        return self.verdict.values.get(key, "") if self.verdict is not None else ""


def attempts(found: Scan, task: str) -> list[Attempt]:
    """Gives all attempts at a task in order: by life and by time the archived ones, at the end the one that is live."""
    ids: dict[str, tuple[str | None, str | None]] = {}
    for attempt, oid in found.archived("claims", task):
        ids[attempt] = (oid, None)
    for attempt, oid in found.archived("verdicts", task):
        if "@" not in attempt:
            ids[attempt] = (ids.get(attempt, (None, None))[0], oid)
    listed = [_attempt(found, task, one, *pair, live=False) for one, pair in ids.items()]

    claim_id, verdict_id = found.refs.get(names.claim(task)), found.refs.get(names.verdict(task))
    claim, verdict = found.claim(claim_id), found.verdict(verdict_id)
    by_verdict = verdict.attempt if verdict is not None else ""
    if verdict is not None and by_verdict and (claim is None or claim.attempt != by_verdict):
        archived = next((a for a in listed if a.id == by_verdict), None)
        if archived is not None:
            listed.remove(archived)
        listed.append(_attempt(found, task, by_verdict, archived.claim_id if archived else None, verdict_id, live=True)
                      ._replace(archived=archived is not None))  # fmt: skip
    if claim is not None:
        same = claim.attempt == by_verdict
        listed.append(_attempt(found, task, claim.attempt, claim_id, verdict_id if same else None, live=True))
    by_life = all(a.claim is not None and a.claim.ours for a in listed)

    def key(one: Attempt) -> tuple[bool, int, bool, int, int, str]:
        life = one.claim.life if by_life and one.claim is not None else 0
        return one.is_live, life, one.at is None, one.at or 0, one.began or 0, one.id

    return sorted(listed, key=key)


def _attempt(found: Scan, task: str, name: str, claim_id: str | None, verdict_id: str | None, *, live: bool) -> Attempt:
    return Attempt(
        task, name, found.claim(claim_id), claim_id, found.verdict(verdict_id), verdict_id,
        found.made_at(claim_id if claim_id is not None else verdict_id), claim_id is not None and not live, live,
    )  # fmt: skip


def seconds_of(verdict: Verdict | None) -> float | None:
    """Gives for how long an attempt's agent ran, as its verdict says; None where it says nothing that can be."""
    text = verdict.values.get("oc_elapsed", "") if verdict is not None else ""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


def stamped(stamp: str) -> int | None:
    """Gives the seconds since 1970 of a time as flockwork writes it; None where it is none."""
    try:
        return timegm(strptime(stamp, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return None
