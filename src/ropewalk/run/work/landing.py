"""Landing a task's change together with its return, its verdict and the closing claim, or not at all."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

from ropewalk.board import claim, names, state
from ropewalk.board.base import Board
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import (
    BusyError,
    CasMismatchError,
    CasRetryExhaustedError,
    CheckFailedError,
    ConflictError,
    FencedError,
    ForbiddenError,
    InvalidError,
    LandMismatchError,
    NotFoundError,
    RopewalkError,
)
from ropewalk.run.work import evidence
from ropewalk.run.work.lease import Lease
from ropewalk.store import guard, land
from ropewalk.store.spool import LandRequest
from ropewalk.store.store import Store
from ropewalk.workspace import drive
from ropewalk.workspace.check import Cage

_TRIES = 4


class Change(NamedTuple):
    """Is what is to land: `change` is a changeset of the store on the commit `base`, which was the target's.

    `outcome` is the verdict that goes with it (`{landed}` and `{tree}` in it stand for what lands), `command` a line
    for the shell that has to pass on the very tree that lands, within `seconds`, in a folder below `checks` and in
    `cage`. `key` (a UUID) is the same in all tries of one attempt. The claim is `lease.held`; whoever makes the step
    that closes it does so inside `lease.still()`. `lease.stop` is set when the claim is lost or the worker is to end.
    """

    lease: Lease
    change: str
    base: str
    outcome: Outcome
    key: str
    command: str
    seconds: float
    checks: str
    cage: Cage | None = None


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
        """Lands a change and closes its task; the law is read again before that (F27).

        A typed error of the board or the store is raised.
        """
        ...

    def settle(self, board: Board, store: Store, actor: str) -> list[str]:
        """Closes the tasks whose change waited to be merged by others and was, as the last look shows; gives them."""
        ...


class LocalLanding:
    """Lands through the store's landing queue; return, verdict and claim move in the operation of the land."""

    def head(self, board: Board, store: Store, target: str) -> str:
        """Gives the head of a target branch."""
        found = store.ref(self.ref(target))
        if found is None:
            raise NotFoundError(f"there is no branch {target}", hint="a task lands on a branch that is there")
        return found

    def ref(self, target: str) -> str:
        """Gives the target's own ref."""
        return names.branch(target)

    def land(self, board: Board, store: Store, change: Change) -> Result:
        """Lands a change once its check passed on the very tree that it makes."""
        result = Result("retry")
        for _ in range(_TRIES):
            state.law(board)
            result = self._once(store, self._request(board, store, change), change)
            if result.how == "fenced":
                with change.lease.still() as held:
                    if board.ref(names.claim(held.task.id)) != held.claim:
                        return result
                # the claim is as it was, so what moved was something that goes with it
                result = Result("retry", words=result.words)
            if result.how != "retry":
                break
        return result

    def settle(self, board: Board, store: Store, actor: str) -> list[str]:
        """Gives nothing: what lands here waits for nobody."""
        return []

    def _request(self, board: Board, store: Store, change: Change) -> LandRequest:
        with change.lease.still() as held:
            ref = names.branch(held.task.target)
            return land.request(
                agent=held.actor, change=change.change, ref=ref, key=change.key,
                since=guard.op_of(store, ref, change.base), together=claim.companions(board, held, change.outcome),
            )  # fmt: skip

    def _once(self, store: Store, req: LandRequest, change: Change) -> Result:
        how = evidence.orders(store, change.command, change.seconds, change.checks, change.lease.stop, change.cage)
        try:
            (outcome,) = drive.land_checked(store, req.ref, [req], how)
        except CheckFailedError as error:
            return failed(error)
        if isinstance(outcome.result, BusyError):
            raise outcome.result
        if isinstance(outcome.result, RopewalkError):
            return refused(outcome.result)
        if outcome.result.status == "up_to_date":
            return Result("unchanged")
        return Result("landed", outcome.result.landed, store.objects.commit(outcome.result.landed).tree)


def refused(error: RopewalkError) -> Result:
    """Gives the result that an error of a land stands for; raises it when it says nothing about the change."""
    if isinstance(error, ConflictError):
        return Result("conflict", words=error.message, report=error.details.get("report"))
    if isinstance(error, CheckFailedError):
        return failed(error)
    if isinstance(error, FencedError):
        return Result("fenced", words=error.message)
    if isinstance(error, (CasMismatchError, CasRetryExhaustedError, BusyError)):
        return Result("retry", words=error.message)
    if isinstance(error, (LandMismatchError, ForbiddenError, InvalidError)):
        return Result("refused", words=f"{error.message}. {error.hint}".rstrip(". "))
    raise error


def failed(error: CheckFailedError) -> Result:
    """Gives the result that a failed check stands for: out of time counts as the change's own fault."""
    facts = error.details
    reason, tree = str(facts.get("reason", "")), str(facts.get("tree", ""))
    if reason == "stopped":
        return Result("stopped", words=error.message)
    if reason == "cancelled":
        return Result("retry", words=error.message)
    words = "\n".join(part for part in (error.message, str(facts.get("output", "")).strip()) if part)
    if facts.get("kind") == "infrastructure" and reason != "timeout":
        return Result("broken", tree=tree, rc=int(facts.get("rc", 1)), words=words)
    return Result("failed", tree=tree, rc=int(facts.get("rc", 1)), words=words)
