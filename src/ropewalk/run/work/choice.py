"""Choice: which of the ready tasks a worker tries, so that many workers do not all try the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ropewalk.board import state
from ropewalk.board.state import Status
from ropewalk.run.work.presence import Presence

_MOST_RACES = 6


class Choice:
    """Chooses for one worker.

    A worker that is alone takes the first task. Those that are idle together begin at different places among the
    tasks of equal standing; one that lost a race draws among twice as many, and comes back as it wins.
    """

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._races = 0

    def lost(self) -> None:
        """Notes a lost race."""
        self._races = min(self._races + 1, _MOST_RACES)

    def won(self) -> None:
        """Notes a claim."""
        self._races = max(0, self._races - 1)

    def ordered(self, statuses: Sequence[Status], ready: Sequence[str]) -> list[list[Status]]:
        """Gives the ready tasks in groups of equal standing, best first, oldest first in each."""
        standing = state.standing(statuses)
        wanted = set(ready)
        groups: list[list[Status]] = []
        for status in state.order(statuses):
            if status.id not in wanted:
                continue
            if groups and standing[groups[-1][0].id] == standing[status.id]:
                groups[-1].append(status)
            else:
                groups.append([status])
        return groups

    def pick(self, group: list[Status], busy: int) -> Status:
        """Takes a task out of a group and gives it; `busy` is how many of this host's workers hold a claim."""
        rank, living = self._presence.rank() if len(group) > 1 else (0, 1)
        width = min(len(group), max(1, living - busy) << self._races)
        return group.pop(random.randrange(width) if self._races else rank % width)
