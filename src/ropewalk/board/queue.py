"""The board's landing queue: finished changes that wait to be checked and landed, whoever does it (F7).

A place is a ref, `refs/swarm/queue/<target>/<number>.<task>`, at a commit on top of the change, so that the change
comes along with it. What did not land is told by the same ref: its owner finds a result there, and takes it away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ropewalk.board import claim, names, tidy, wire
from ropewalk.board.base import Board, Step, now_object, words
from ropewalk.board.claim import Held
from ropewalk.board.wire import WHO, Object, Outcome
from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.store.loose import object_id
from ropewalk.store.oplog import Move

_DIGITS = 10
_FIRST, _RESULT = "landing", "landing-result"


class Wanted(NamedTuple):
    """Is what an attempt wants landed: its change as one commit, with that commit's tree and the commit it is made on.

    `check` is a line for the shell with its bound in seconds; `outcome` holds what the verdict will say of the agent.
    """

    candidate: str
    tree: str
    base: str
    check: str
    check_seconds: float
    outcome: Outcome


class Entry(NamedTuple):
    """Is a place in the queue: its ref, what that is at, and what waits there."""

    ref: str
    id: str
    target: str
    task: str
    attempt: str
    worker: str
    actor: str
    region: str
    wanted: Wanted


class Gone(Exception):
    """A place counts no more: its attempt lost the claim, or left. Carries the place."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.task)
        self.entry = entry


# the owner's side


def put(board: Board, held: Held, wanted: Wanted) -> tuple[Entry, Held]:
    """Puts a change at the end of its target's queue; gives its place, and the attempt with the claim as it is then.

    What the attempt had in the queue before is taken away. `E_FENCED` when the claim is lost.
    """
    task = held.task
    text = wire.changed_claim(held.words, queued=wire.stamp(clock.now()), turn=_next(held.words))
    mark = now_object(text)
    found: list[Entry] = []

    def build() -> Step:
        number = 1 + max((_number(name) for name, _ in board.below(_prefix(task.target))), default=0)
        ref = f"{_prefix(task.target)}{number:0{_DIGITS}d}.{task.id}"
        entry = Entry(ref, "", task.target, task.id, held.attempt, held.worker, held.actor, task.region, wanted)
        made = _object(entry)
        found[:] = [entry._replace(id=made.id)]
        moves = [*drop_entries(board, task.id, held.attempt), Move(ref, None, made.id)]
        return Step("queue_put", held.actor, [Move(names.claim(task.id), held.claim, mark.id), *moves], [made, mark])

    claim.push(board, held, build)
    return found[0], held._replace(claim=mark.id, words=text)


def leave(board: Board, held: Held) -> Held:
    """Takes away what an attempt has in the queue, place or result; gives the attempt with the claim as it is then.

    `E_FENCED` when the claim is lost, which it is too when the change has landed meanwhile.
    """
    text = wire.changed_claim(held.words, queued="no", turn=_next(held.words))
    mark = now_object(text)
    if not drop_entries(board, held.task.id, held.attempt):
        return held

    def build() -> Step:
        moves = drop_entries(board, held.task.id, held.attempt)
        return Step("queue_leave", held.actor, [Move(names.claim(held.task.id), held.claim, mark.id), *moves], [mark])

    claim.push(board, held, build)
    return held._replace(claim=mark.id, words=text)


def _next(text: str) -> str:
    """Gives a number that makes the claim another object, also within one second (F2)."""
    return str(int(wire.fields(text).get("turn") or 0) + 1)


def drop_entries(board: Board, task: str, attempt: str) -> list[Move]:
    """Gives the moves by which what an attempt has in any queue goes, for a step that ends the attempt."""
    found = []
    for ref, oid in board.below(names.QUEUE):
        if tidy.queued(ref) == task:
            content = board.content(oid)
            text = wire.message(content) if content is not None else ""
            if wire.fields(text).get("attempt") in (attempt, ""):
                found.append(Move(ref, oid, None))
    return found


class Told(NamedTuple):
    """Is how a change ended that did not land: `state` is one word, `facts` what there is to say of it."""

    state: str
    facts: dict[str, Any]


def result(board: Board, entry: Entry) -> Told | None:
    """Gives why a change did not land; None while that is not decided."""
    text = words(board, entry.ref)
    found = wire.fields(text) if text is not None else None
    if found is None or found.first != f"{_RESULT} {entry.task}" or found.get("attempt") != entry.attempt:
        return None
    try:
        return Told(found.get("state"), msgspec.json.decode(found.get("facts"), type=dict[str, Any]))
    except UNREADABLE:
        return Told("retry", {"words": f"what is told of {entry.task} in the landing queue can't be read"})


# the holder's side


def waiting(board: Board, target: str) -> tuple[list[Entry], list[Move]]:
    """Gives what waits for a target, in order, and the moves that take away what nobody waits for any more.

    A place counts as long as its attempt holds the claim: what a dead worker finished is landed all the same.
    """
    there = board.below(_prefix(target))
    board.prefetch(oid for _, oid in there)
    tasks = {ref: tidy.queued(ref) for ref, _ in there}
    board.prefetch(oid for task in tasks.values() if (oid := board.ref(names.claim(task))) is not None)
    found, stale = [], []
    for ref, oid in there:
        content = board.content(oid)
        text = wire.message(content) if content is not None else ""
        if holder_of(board, tasks[ref]) != wire.fields(text).get("attempt"):
            stale.append(Move(ref, oid, None))
        elif content is not None and (entry := _read(ref, oid, target, content)) is not None:
            found.append(entry)
    return found, stale


def holder_of(board: Board, task: str) -> str | None:
    """Gives the attempt that holds the claim of a task and has not ended."""
    text = words(board, names.claim(task))
    found = wire.read_claim(text) if text is not None else None
    return None if found is None or found.closed or board.ref(names.verdict(task)) is not None else found.attempt


class Place(NamedTuple):
    """Is where a change came to: the commit, its tree, and the hash of the environment that its check ran in."""

    commit: str
    tree: str
    environment: str


def landed(board: Board, entry: Entry, at: Place) -> tuple[list[Move], list[Object]]:
    """Gives what moves when a change has landed: place, claim, return, verdict, index, region, paths.

    Raises `Gone` where the attempt does not hold its claim any more.
    """
    claimed, text = _claim(board, entry)
    task, outcome = entry.task, entry.wanted.outcome
    more = {**outcome.more, "check": entry.wanted.check, "landed": at.commit, "tree": at.tree,
            "environment": at.environment}  # fmt: skip
    said = msgspec.structs.replace(outcome, fixed=True, check_rc=0, reason="", more=more)
    verdict = now_object(wire.verdict_words(task, entry.attempt, entry.worker, said))
    closing = now_object(wire.changed_claim(text, closed=wire.stamp(clock.now())))
    moves = [
        Move(names.claim(task), claimed, closing.id), Move(names.returned(task), None, at.commit),
        Move(names.verdict(task), None, verdict.id), Move(entry.ref, entry.id, None),
        *claim.unlocked(board, task, entry.region, entry.attempt),
    ]  # fmt: skip
    if (opened := board.ref(names.opened(task))) is not None:
        moves.append(Move(names.opened(task), opened, None))
    return moves, [closing, verdict]


def told(entry: Entry, state: str, facts: Mapping[str, Any]) -> tuple[Move, Object]:
    """Gives the move by which the owner of a change that did not land learns how it ended."""
    lines = [f"{_RESULT} {entry.task}", f"attempt: {entry.attempt}", f"state: {state}"]
    lines += [f"{key}: {facts[key]}" for key in ("tree", "rc") if facts.get(key)]
    made = now_object("\n".join([*lines, f"facts: {msgspec.json.encode(facts).decode()}"]))
    return Move(entry.ref, entry.id, made.id), made


def _claim(board: Board, entry: Entry) -> tuple[str, str]:
    """Gives a claim's id and message while the attempt holds it and waits; raises `Gone` otherwise."""
    ref = names.claim(entry.task)
    claimed, text = board.ref(ref), words(board, ref)
    lost = holder_of(board, entry.task) != entry.attempt or board.ref(entry.ref) != entry.id
    if claimed is None or text is None or lost:
        raise Gone(entry)
    return claimed, text


# the form of a place


def _prefix(target: str) -> str:
    return f"{names.QUEUE}{target}/"


def _number(ref: str) -> int:
    text = ref.rsplit("/", 1)[1].partition(".")[0]
    return int(text) if text.isdigit() and len(text) <= _DIGITS else 0


def _object(entry: Entry) -> Object:
    """Gives the commit of a place: on top of the change, with the change's tree."""
    wanted = entry.wanted
    values = {"attempt": entry.attempt, "worker": entry.worker, "actor": entry.actor, "region": entry.region,
              "candidate": wanted.candidate, "base": wanted.base, "check_seconds": f"{wanted.check_seconds:g}",
              "check": wanted.check, "outcome": msgspec.json.encode(wanted.outcome).decode()}  # fmt: skip
    lines = [f"{_FIRST} {entry.task}"] + [f"{key}: {value}" for key, value in values.items() if value]
    who = f"{WHO} {clock.now()} +0000"
    text = "\n".join(lines)
    content = f"tree {wanted.tree}\nparent {wanted.candidate}\nauthor {who}\ncommitter {who}\n\n{text}\n".encode()
    return Object(object_id("commit", content), content)


def _read(ref: str, oid: str, target: str, content: bytes) -> Entry | None:
    """Gives what a place's commit says; None for a result, and for what is no place of ours."""
    found = wire.fields(wire.message(content))
    task = tidy.queued(ref)
    head = dict(_pairs(content.partition(b"\n\n")[0].decode("ascii", "replace").split("\n")))
    if found.first != f"{_FIRST} {task}" or head.get("parent") != found.get("candidate"):
        return None
    try:
        outcome = msgspec.json.decode(found.get("outcome"), type=Outcome)
        seconds = float(found.get("check_seconds"))
    except (*UNREADABLE, ValueError):
        return None
    wanted = Wanted(head["parent"], head.get("tree", ""), found.get("base"), found.get("check"), seconds, outcome)
    return Entry(ref, oid, target, task, found.get("attempt"), found.get("worker"), found.get("actor"),
                 found.get("region"), wanted)  # fmt: skip


def _pairs(lines: Sequence[str]) -> Iterable[tuple[str, str]]:
    return ((key, value) for key, _, value in (line.partition(" ") for line in reversed(lines)))
