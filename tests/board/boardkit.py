"""What the board's tests share: a store with a board in it, and short forms for its steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.board import invariants

from ropewalk.board import claim, names, state, tasks, wire
from ropewalk.board.base import Step, now_object, words
from ropewalk.board.claim import As, Held
from ropewalk.board.local import LocalBoard
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.state import Status
from ropewalk.board.wire import Object, Outcome, Verdict
from ropewalk.core.ids import EMPTY_TREE
from ropewalk.plan.task import Task
from ropewalk.store import land, refs
from ropewalk.store.land import Landed
from ropewalk.store.loose import object_id
from ropewalk.store.oplog import Move
from storekit import MAIN, Kit, put, stock

ACTOR = "test/one"


class BoardKit:
    """Is a store whose main has one commit, and its board."""

    def __init__(self, root: str | Path, *, mixed: bool = False, lock_wait: float = 60) -> None:
        is_new = not os.path.exists(root)
        self.kit = Kit(str(root), lock_wait=lock_wait)
        self.board = LocalBoard(self.kit.store)
        if is_new:
            self.kit.first(put("README.md", "# Demo\n"))
            tasks.init(self.board, ACTOR, mixed=mixed)

    def who(self, worker: str = "w1", **more: str) -> As:
        """Gives a worker's name for itself."""
        return As(worker, f"test/{worker}", "command", **more)

    def add(self, *found: Task | str, **how: Any) -> tuple[list[str], list[str]]:
        """Adds tasks; a name alone is a task whose check passes."""
        made = [Task(one, "true", description=f"Do {one}") if isinstance(one, str) else one for one in found]
        return tasks.add(self.board, made, ACTOR, **how)

    def status(self, task: str) -> Status:
        """Gives a task's status."""
        found = state.need(self.board, task)
        assert found is not None, f"{task} is not on the board"
        return found

    def state(self, task: str) -> str:
        """Gives a task's state."""
        return self.status(task).state

    def take(self, task: str, worker: str = "w1", **more: str) -> Held:
        """Claims a task."""
        return claim.take(self.board, self.status(task), self.who(worker, **more))

    def done(self, task: str, worker: str = "w1", *, held: Held | None = None) -> Held:
        """Claims a task, unless it is held, and lands a file for it with its return and verdict."""
        held = held or self.take(task, worker)
        landed = self.landed(held)
        assert landed.status == "landed"
        return held

    def landed(self, held: Held) -> Landed:
        """Lands a file for an attempt."""
        ref = names.branch(held.task.target)
        change = self.kit.commit(
            put(f"done/{held.task.id}-{held.attempt[-6:]}", f"{held.task.id}\n"), agent=held.actor, parent=ref,
            message=f"fix {held.task.id}\n\nAttempt: {held.attempt}\n",
        ).changeset  # fmt: skip
        outcome = Outcome(True, 0, 0, held.harness, more={"landed": "{landed}", "tree": "{tree}"})
        request = land.request(
            agent=held.actor, change=change, ref=ref, together=claim.companions(self.board, held, outcome)
        )
        return land.land(self.kit.store, request)

    def failed(self, task: str, worker: str = "w1") -> Held:
        """Claims a task and closes it as failed on merit."""
        held = self.take(task, worker)
        claim.close(self.board, held, Outcome(False, 0, 1, "command"))
        return held

    def verdict(self, task: str) -> Verdict:
        """Gives a task's verdict."""
        found = wire.read_verdict(words(self.board, names.verdict(task)) or "")
        assert found is not None
        return found

    def write(self, ref: str, text: str, *, over: str | None = None) -> str:
        """Puts an object with a message at a ref, as somebody else would, and gives its id."""
        made = now_object(text)
        self.board.push(Step("push", "stranger/one", [Move(ref, over, made.id)], [made]))
        return made.id

    def raw(self, ref: str, message: bytes, *, at: int = 1_700_000_000) -> str:
        """Puts an object with any bytes as its message at a ref, as a peer's push would."""
        return self.raws({ref: message}, at=at)[ref]

    def raws(self, messages: Mapping[str, bytes], *, at: int = 1_700_000_000) -> dict[str, str]:
        """Puts objects with any bytes as their messages at refs, by one push."""
        made = {ref: Object(object_id("commit", _commit(m, at)), _commit(m, at)) for ref, m in messages.items()}
        moves = [Move(ref, self.board.ref(ref), one.id) for ref, one in made.items()]
        self.board.push(Step("push", "stranger/one", moves, list(made.values())))
        return {ref: one.id for ref, one in made.items()}

    def force(self, ref: str, oid: str | None) -> None:
        """Moves a ref by force, as a person does."""
        refs.move(self.kit.store, "person/one", [Move(ref, self.board.ref(ref), oid)], "ref_set")

    def main(self) -> str:
        """Gives the head of main."""
        found = self.kit.store.ref(MAIN)
        assert found is not None
        return found

    def lawful(self) -> None:
        """Checks the laws by git alone."""
        assert invariants.broken(self.kit.repo) == []

    def close(self) -> None:
        """Closes the store."""
        self.kit.close()


def bare(path: Path, *, mixed: bool = False) -> RemoteBoard:
    """Makes a bare repository whose main has one commit, with a board's law in it, and gives the board."""
    stock("init", "-q", "--bare", "-b", "main", str(path))
    where = ("--git-dir", str(path))
    blob = stock(*where, "hash-object", "-w", "--stdin", stdin=b"# Demo\n").decode().strip()
    tree = stock(*where, "mktree", stdin=f"100644 blob {blob}\tREADME.md\n".encode()).decode().strip()
    stock(*where, "update-ref", MAIN, stock(*where, "commit-tree", tree, "-m", "first").decode().strip())
    board = RemoteBoard(str(path), f"{path}.mirror")
    tasks.init(board, ACTOR, mixed=mixed)
    return board


def raw(repository: str | Path, ref: str, message: bytes, *, at: int = 1_700_000_000) -> str:
    """Puts a commit over the empty tree with any bytes as its message at a ref, and gives its id."""
    where = ("--git-dir", str(repository))
    stock(*where, "hash-object", "-w", "-t", "tree", "--stdin", stdin=b"")
    words = ("hash-object", "-w", "-t", "commit", "--literally", "--stdin")
    made = stock(*where, *words, stdin=_commit(message, at)).decode().strip()
    stock(*where, "update-ref", ref, made)
    return made


def _commit(message: bytes, at: int) -> bytes:
    who = b"x <x@example.com> %d +0000" % at
    return b"tree %s\nauthor %s\ncommitter %s\n\n%s" % (EMPTY_TREE.encode(), who, who, message)
