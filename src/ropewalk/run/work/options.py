"""What a worker is asked, and what it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ropewalk.board.base import Board
from ropewalk.lane.adapter import Adapter
from ropewalk.plan.task import Task
from ropewalk.run.staff import Pick, Staff
from ropewalk.run.turn import Ways
from ropewalk.run.work.admission import SPARE_DISK, SPARE_MEMORY
from ropewalk.store.store import Store

if TYPE_CHECKING:
    from ropewalk.run.work.landing import Landing

SECONDS, CHECK_SECONDS = 600.0, 600.0
LOOK_SECONDS = 30.0

How = Literal["landed", "satisfied", "pending", "failed", "requeued", "infrastructure", "released", "fenced"]
Ended = Literal["once", "empty", "claims_left", "stopped", "gave_up"]


class Options(NamedTuple):
    """Is how a worker works.

    `only` are the tasks to do (all without it), `within` a run whose tasks alone are to be done.
    `caller` is the environment of whoever started it, `data_home` where workspaces go. `another` opens the same board
    for another thread's store, None where the board is the store's own; `landing` lands, None for that of a local
    board. `patience` is for how many seconds claims of others are waited for (None: until they end, or their lease
    does), `outage_seconds` for how long a board that is out of reach is. With `replay` what the journal has of an
    unchanged task is taken for its agent's work, `sample` asks for independent attempts. `staff` are the programs to
    choose from by task, `harness` alone without it. `emit` gets each event, kind and facts. While less than
    `spare_memory` and `spare_disk` (bytes) would be left to all else, no further agent is started.
    """

    worker: str
    harness: Adapter
    caller: Mapping[str, str]
    data_home: str
    stop: threading.Event
    emit: Callable[..., object] = lambda kind, **facts: None
    model: str = ""
    kind: str = ""
    only: tuple[str, ...] = ()
    within: str = ""
    once: bool = False
    until_empty: bool = False
    jobs: int = 1
    seconds: float = SECONDS
    check_seconds: float = CHECK_SECONDS
    attempts: int = 3
    heirs: int = 1
    failures: int = 3
    patience: float | None = None
    look_seconds: float = LOOK_SECONDS
    outage_seconds: float = 600.0
    spare_memory: int = SPARE_MEMORY
    spare_disk: int = SPARE_DISK
    another: Callable[[Store], Board] | None = None
    landing: Landing | None = None
    ways: Ways = Ways()
    replay: bool = False
    sample: int = 0
    staff: Staff | None = None

    @property
    def team(self) -> Staff:
        """Gives the agent programs to choose from."""
        return self.staff or Staff((self.harness,), model=self.model)

    def actor(self, pick: Pick | None = None) -> str:
        """Gives who does all this, or a task, as family/instance."""
        return f"{(pick.adapter if pick is not None else self.harness).family}/{self.worker.lower()}"

    def pick(self, task: Task) -> Pick | None:
        """Gives who does a task, None for one that is for another worker."""
        return self.team.pick(harness=task.harness, model=task.model, task_class=task.class_, effort=task.effort)


class TaskEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what became of one attempt: `turns` are starts of its agent, `tokens` what they used, by kind."""

    task: str
    attempt: str
    how: How
    reason: str = ""
    landed: str | None = None
    turns: int = 0
    seconds: float = 0.0
    tokens: dict[str, int] = {}


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a task that was left behind, and why."""

    task: str
    state: str
    why: str = ""


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what a worker did, and why it ended: `left` are tasks that are not closed, with what they wait for."""

    worker: str
    ended: Ended
    reason: str = ""
    tasks: list[TaskEnd] = []
    left: list[Left] = []
    races: int = 0
    evicted: list[str] = []
    seconds: float = 0.0

    @property
    def exit(self) -> int:
        """Gives the exit code: 10 when claims of others are left that were not waited for, 1 when it gave up."""
        return {"claims_left": 10, "gave_up": 1}.get(self.ended, 0)
