"""Memory of regions: what an agent that worked on a module leaves for those who come after, and for its neighbours.

It is a ref of the board for each module and run, so that a worker on any host has it. It names the commit that it was
learned at: where that is not part of a branch, nobody who works on the branch is told of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.board import names, runs, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import CasMismatchError
from ropewalk.plan.task import Task
from ropewalk.store.oplog import Move

MOST = 4000
"""Is how many bytes a memory may have."""

KEPT = 5
"""Is of how many runs the memory of a module is kept."""

_TRIES = 4
_MODULE = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}\Z")
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")

Line = Annotated[str, Meta(min_length=1, max_length=300)]
Lines = Annotated[tuple[Line, ...], Meta(max_length=30)]


class Public(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is what neighbours of a module are told: what it offers, and how it is tested."""

    exports: Lines = ()
    test: Annotated[str, Meta(max_length=300)] = ""


class Private(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is what those are told who work on the module next: conventions, and traps."""

    conventions: Lines = ()
    traps: Lines = ()


class Memory(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is what is remembered of a module."""

    public: Public = Public()
    private: Private = Private()

    @property
    def is_empty(self) -> bool:
        """Says whether it says nothing."""
        return self == Memory()


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a memory as a board has it: whose, of which module, learned at which commit, and when."""

    module: str
    run: str
    task: str
    attempt: str
    commit: str
    memory: Memory
    at: int = 0


def module_of(task: Task) -> str:
    """Gives what a task's memory is kept under: its module, else its region; empty for a task of neither."""
    name = task.module or runs.short(runs.of_task(task.id), task.region)
    return name if _MODULE.match(name) and ".." not in name and not name.endswith((".", ".lock")) else ""


def kept(board: Board, module: str, head: str) -> Kept | None:
    """Gives the newest memory of a module that was learned at a commit of a branch, whose head is given."""
    found = [one for one in _all(board, module) if one[1] is not None]
    on = board.on_target({one.commit for _, one in found if one is not None}, head) if found else set()
    fit = [one for _, one in found if one is not None and one.commit in on]
    return max(fit, key=lambda one: (one.at, one.run), default=None)


def keep(board: Board, made: Kept, actor: str) -> None:
    """Puts a memory in the place of the one of its module and run; those of the oldest runs make way for it."""
    for _ in range(_TRIES):
        board.refresh()
        text = f"memory {made.module}\n\nrecord: {msgspec.json.encode(made).decode()}"
        new = now_object(text)
        ref = names.memory(made.module, made.run)
        others = sorted(
            ((one.at if one is not None else 0, name) for name, one in _all(board, made.module) if name != ref),
            reverse=True,
        )  # fmt: skip
        gone = [Move(name, board.ref(name), None) for _, name in others[KEPT - 1 :]]
        try:
            board.push(Step("memory", actor, [Move(ref, board.ref(ref), new.id), *gone], [new]))
        except CasMismatchError as error:
            mismatch = error
            continue
        return
    raise mismatch


def plain(text: str) -> str:
    """Gives a text as one line in which nothing steers a terminal, or the order of what is read."""
    return " ".join(_NO_TEXT.sub(" ", text).split())


def shown(one: Memory, *, private: bool) -> list[str]:
    """Gives a memory as lines of text; of a neighbour's only what is public."""
    lines = [f"exports: {plain(line)}" for line in one.public.exports]
    lines += [f"test: {plain(one.public.test)}"] if one.public.test.strip() else []
    if private:
        lines += [f"convention: {plain(line)}" for line in one.private.conventions]
        lines += [f"trap: {plain(line)}" for line in one.private.traps]
    return lines


def _all(board: Board, module: str) -> list[tuple[str, Kept | None]]:
    """Gives the memories of a module by their refs; None for one that can't be read."""
    listed = board.below(names.memory(module, ""))
    board.prefetch(oid for _, oid in listed)
    return [(name, _read(board, oid, module)) for name, oid in listed]


def _read(board: Board, oid: str, module: str) -> Kept | None:
    content = board.content(oid)
    if content is None:
        return None
    try:
        found = msgspec.json.decode(wire.fields(wire.message(content)).get("record"), type=Kept)
    except UNREADABLE:
        return None
    return msgspec.structs.replace(found, at=wire.made_at(content)) if found.module == module else None


def modules(board: Board) -> Iterable[str]:
    """Gives the modules of which something is remembered."""
    return sorted({name[len(names.MEMORY) :].partition("/")[0] for name, _ in board.below(names.MEMORY)})
