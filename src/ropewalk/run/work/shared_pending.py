"""Landing where nobody may push the target: a branch for others to merge, and the task ends when they did (F13)."""

from __future__ import annotations

import os

import msgspec

from ropewalk.board import claim, names, probe, state, wire
from ropewalk.board.base import Step, attempt, now_object
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.state import Status
from ropewalk.core.errors import CasMismatchError, NotFoundError, RopewalkError
from ropewalk.run.work import shared_refs
from ropewalk.run.work.evidence import orders
from ropewalk.run.work.landing import Change, Result, refused
from ropewalk.store import land as lands
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store
from ropewalk.workspace import drive

_TRIES = 20
BRANCHES = "ropewalk/"
"""Is what the branches begin with that others are to merge."""


def is_protected(board: RemoteBoard, target: str) -> bool:
    """Says whether the last probe of the board on this host found that nobody may push a target."""
    known = probe.remembered(board, target)
    return known is not None and known.landing == "pr"


def land(board: RemoteBoard, store: Store, change: Change, jobs: int) -> Result:
    """Checks a change on the target's head and puts the result on the branch `ropewalk/TASK`, for others to merge.

    The verdict says `landed: pending`, and the task stays in the index of open ones until `settle` finds its change on
    the target. No lease is needed: the head does not move by this.
    """
    held = change.lease.held
    task = held.task
    board.refresh()
    head = board.ref(names.branch(task.target))
    if head is None:
        raise NotFoundError(
            f"there is no branch {task.target} on {board.name}", hint="a task lands on a branch that is there"
        )
    with shared_refs.brought(board, store, {"head": head}, held.actor) as folder:
        ref = f"{folder}head"
        how = orders(store, change.command, change.seconds, change.checks, change.lease.stop, change.cage)
        request = lands.request(agent=held.actor, change=change.change, ref=ref)
        try:
            (outcome,) = drive.land_checked(store, ref, [request], how._replace(jobs=jobs or how.jobs))
        except RopewalkError as error:
            return refused(error)
        if isinstance(outcome.result, RopewalkError):
            return refused(outcome.result)
        if outcome.result.status == "up_to_date":
            return Result("unchanged")
        return _push(board, store, change, outcome.result.landed, how.command.environment)


def _push(board: RemoteBoard, store: Store, change: Change, commit: str, environment: str) -> Result:
    store.expose()  # without a sync: what it says is the server's to keep, and nothing was promised here
    board.lend(os.path.join(store.layout.repo, "objects"))
    tree = store.objects.commit(commit).tree
    for _ in range(_TRIES):
        with change.lease.still() as held:
            branch = names.branch(BRANCHES + held.task.id)
            more = {**change.outcome.more, "check": change.command, "tree": tree, "environment": environment,
                    "landed": "pending", "branch": branch}  # fmt: skip
            said = msgspec.structs.replace(change.outcome, fixed=False, check_rc=0, reason="pending", more=more)
            verdict, closing = now_object(claim.verdict_words(held, said)), claim.closing_object(held)
            moves = [
                Move(names.claim(held.task.id), held.claim, closing.id), Move(branch, board.ref(branch), commit),
                Move(names.returned(held.task.id), None, commit), Move(names.verdict(held.task.id), None, verdict.id),
                *(move for move in claim.freed(board, held) if move.name != names.opened(held.task.id)),
            ]  # fmt: skip
            try:
                board.push(Step("land_pending", held.actor, moves, [closing, verdict]))
                return Result("pending", commit, tree)
            except CasMismatchError as error:
                words = error.message
                board.refresh()
                if board.ref(names.claim(held.task.id)) != held.claim:
                    return Result("fenced", words=f"{held.task.id} is not claimed by {held.attempt} any more")
    return Result("retry", words=words)


def settle(board: RemoteBoard, store: Store, actor: str, looked: dict[str, str] | None = None) -> list[str]:
    """Closes the tasks whose change others have merged into the target, as it is or as the same patch; gives them.

    It goes by the last look at the board. `looked` remembers the head at which each task was looked at last.
    """
    looked = {} if looked is None else looked
    done = []
    for status in state.look(board).values():
        head = board.ref(names.branch(status.spec.task.target))
        if status.state != "pending" or status.returned is None or head is None or looked.get(status.id) == head:
            continue
        at = _merged(board, store, status.returned, head, actor)
        if at is not None and attempt(board, _settled(board, status, at, actor)) is None:
            done.append(status.id)
        looked[status.id] = head
    return done


def _merged(board: RemoteBoard, store: Store, change: str, head: str, actor: str) -> str | None:
    """Gives the commit below a head that holds a change which waits, None while there is none."""
    if board.on_target([change], head):
        return change
    with shared_refs.brought(board, store, {"head": head, "change": change}, actor):
        sides = f"{head}...{change}"
        listed = store.git("rev-list", "--cherry-mark", "--left-only", "--no-merges", sides, timeout=600).text()
        return next((line[1:] for line in listed.splitlines() if line.startswith("=")), None)


def _settled(board: RemoteBoard, status: Status, at: str, actor: str) -> Step:
    assert status.verdict is not None
    ref = names.verdict(status.id)
    old = board.ref(ref)
    lines = []
    for line in (wire.message(board.content(old or "") or b"")).rstrip().split("\n"):
        name = line.partition(":")[0]
        if name == "fixed":
            lines.append("fixed: true")
        elif name == "landed":
            lines.append(f"landed: {at}")
        elif line != "reason: pending":
            lines.append(line)
    verdict = now_object("\n".join(lines))
    opened = board.ref(names.opened(status.id))
    moves = [Move(ref, old, verdict.id)]
    if at != status.returned:
        moves.append(Move(names.returned(status.id), status.returned, at))
    if opened is not None:
        moves.append(Move(names.opened(status.id), opened, None))
    return Step("land_merged", actor, moves, [verdict])
