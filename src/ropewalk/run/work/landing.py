"""Landing a task's change together with its return, its verdict and the closing claim, or not at all."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

from ropewalk.board.base import Board
from ropewalk.board.wire import Outcome
from ropewalk.run.work.lease import Lease
from ropewalk.store.store import Store


class Change(NamedTuple):
    """Is what is to land: `change` is a changeset of the store on the commit `base`, which was the target's.

    `outcome` is the verdict that goes with it (`{landed}` and `{tree}` in it stand for what lands), `command` a line
    for the shell that has to pass on the very tree that lands, within `seconds`, in a folder below `checks`. `key` (a
    UUID) is the same in all tries of one attempt. The claim is `lease.held`; whoever makes the step that closes it does
    so inside `lease.still()`. `lease.stop` is set when the claim is lost or the worker is to end.
    """

    lease: Lease
    change: str
    base: str
    outcome: Outcome
    key: str
    command: str
    seconds: float
    checks: str


How = Literal["landed", "pending", "unchanged", "conflict", "failed", "broken", "refused", "fenced", "retry", "stopped"]


class Result(NamedTuple):
    """Is how a land ended.

    `landed` (`commit` is on the target, everything is closed) and `pending` (it waits for a merge by others, the
    verdict says so) end the attempt. `unchanged`: the target has it all already. `conflict` has a `report` as
    `E_CONFLICT` has it. `failed`: the check ended with `rc` (124: out of time), `words` are its output. `broken`: the
    check could not be run to its end, which says nothing about the change. `refused`: the change may not land, `words`
    say why. `fenced`: the claim is another's. `retry`: nothing happened, and it may go well the next time. `stopped`:
    `lease.stop` was set.
    """

    how: How
    commit: str = ""
    tree: str = ""
    rc: int = 0
    words: str = ""
    report: dict[str, Any] | None = None


class Landing(Protocol):
    """Lands changes on a board's targets."""

    def head(self, board: Board, store: Store, target: str) -> str:
        """Gives the head of a target branch as the board has it now, and brings it into the store."""
        ...

    def ref(self, target: str) -> str:
        """Gives the full name of the store's ref that shows a target's head since the last `head`."""
        ...

    def land(self, board: Board, store: Store, change: Change) -> Result:
        """Lands a change and closes its task; a typed error of the board or the store is raised."""
        ...
