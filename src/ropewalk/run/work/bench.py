"""What an attempt works with, and how it ends: a thread's bench, and the ends that are told apart."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from ropewalk.board.base import Board
from ropewalk.board.claim import Held
from ropewalk.core.errors import os_error
from ropewalk.run.work.landing import Landing
from ropewalk.run.work.lease import Heart
from ropewalk.run.work.leftovers import Places
from ropewalk.run.work.options import Options, TaskEnd
from ropewalk.run.work.patience import Patience
from ropewalk.run.work.sessions import Sessions
from ropewalk.store.store import Store


class Bench(NamedTuple):
    """Is what a thread of a worker works with."""

    board: Board
    store: Store
    options: Options
    landing: Landing
    heart: Heart
    places: Places
    actor: str
    tell: Callable[..., object]
    patience: Patience
    sessions: Sessions


class Ending(NamedTuple):
    """Is how an attempt ended; with `structural` the fault is this host's, or the board's, and not the task's.

    With `spent` a budget, or what a provider gives, is used up.
    """

    end: TaskEnd
    structural: str = ""
    unreleased: Held | None = None
    spent: Exhausted | None = None


class Exhausted(Exception):
    """What the agent's model may be asked is used up: why, and until when (seconds since 1970; 0: nobody knows)."""

    def __init__(self, why: str, until: int = 0) -> None:
        super().__init__(why)
        self.why, self.until = why, until


class Stopped(Exception):
    """The worker is to end."""


class Lost(Exception):
    """The claim is another's."""


class Dead(Exception):
    """The attempt's surroundings failed: the exit code of its agent, and why."""

    def __init__(self, rc: int, why: str, *, structural: bool = True) -> None:
        super().__init__(why)
        self.rc, self.why, self.structural = rc, why, structural


class Unstartable(Exception):
    """The attempt could not even begin, so that it does not count as one."""


def words_of(error: OSError) -> str:
    """Gives what went wrong below an attempt, in words that name the file."""
    typed = os_error(error, "the attempt")
    return f"{typed.code} {typed.message}" + (f" ({os.path.basename(str(error.filename))})" if error.filename else "")
