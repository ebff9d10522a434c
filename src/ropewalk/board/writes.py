"""Write sets: tasks that write the same path of one branch are not worked on at once, so that they need no merge (F20).

Whoever claims a task locks what it writes, beside its claim. A store looks at these locks in the transaction of the
claim, so that none is missed; on a git server a worker goes by the last look, which another host may be ahead of (F19).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ropewalk.board import names, wire
from ropewalk.board.base import Board, now_object
from ropewalk.board.wire import Object
from ropewalk.plan.globs import Index
from ropewalk.plan.task import Task

_WAITS = "waits for "


class Met(NamedTuple):
    """Is another task that a task would meet: its name, and what both write, as the one says that says more of it."""

    task: str
    path: str

    @property
    def words(self) -> str:
        """Gives why a task waits for it."""
        return f"{_WAITS}{self.task}: both write {self.path}"


def of(task: Task) -> tuple[str, ...]:
    """Gives the globs of what a task writes; none where it does not say."""
    return (*task.owns, *task.modifies)


def is_words(why: str) -> bool:
    """Says whether a task waits because another one writes what it writes."""
    return why.startswith(_WAITS)


def lock(task: Task, attempt: str) -> Object:
    """Gives the object by which an attempt locks what its task writes."""
    lines = [f"lock writes\ntask: {task.id}\nattempt: {attempt}\ntarget: {task.target}"]
    return now_object("\n".join([*lines, *(f"writes: {glob}" for glob in of(task))]))


class Sets:
    """Is the write sets of some tasks, to find the one that another task would meet; of each branch apart."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._index: dict[str, Index] = {}
        self._known: dict[tuple[str, tuple[str, ...]], Met | None] = {}

    def add(self, task: str, target: str, globs: Iterable[str]) -> None:
        """Puts in what a task writes."""
        index = self._index.setdefault(target, Index())
        for glob in globs:
            index.add(glob, len(self._names))
        self._names.append(task)
        self._known.clear()

    def met(self, task: Task) -> Met | None:
        """Gives a task that writes what this one writes, None when there is none."""
        globs = of(task)
        index = self._index.get(task.target)
        if not globs or index is None:
            return None
        key = (task.target, globs)
        if key not in self._known:
            self._known[key] = self._find(index, globs)
        return self._known[key]

    def _find(self, index: Index, globs: Sequence[str]) -> Met | None:
        for glob in globs:
            for other, owner in index.meeting(glob):
                return Met(self._names[owner], max(glob, other, key=lambda one: (len(one), "*" not in one)))
        return None


def locked(board: Board) -> Sets:
    """Gives what the attempts in progress write."""
    found = Sets()
    listed = board.below(names.WRITES)
    board.prefetch(oid for _, oid in listed)
    for ref, oid in listed:
        content = board.content(oid)
        said = wire.fields(wire.message(content)) if content is not None else None
        if said is not None:
            globs = [line[len("writes: ") :] for line in said.lines if line.startswith("writes: ")]
            found.add(ref[len(names.WRITES) :], said.get("target"), globs)
    return found
