"""Taking a run back, by the way that fits: its branch is dropped, refs move back, or one change takes its lands back.

All that the undo moves moves in one step with the run's record, so that a second undo finds it done, and `op undo` of a
store brings work and record back together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from ropewalk.board import names, runs, state
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.local import LocalBoard
from ropewalk.board.runs import Run, Undone
from ropewalk.board.wire import WHO
from ropewalk.core import clock
from ropewalk.core.errors import (
    BusyError,
    CasMismatchError,
    CheckFailedError,
    ConflictError,
    FencedError,
    RopewalkError,
)
from ropewalk.core.ids import EMPTY_TREE, path_text, short_ref
from ropewalk.run import figures, report
from ropewalk.run.figures import Built
from ropewalk.run.work import evidence
from ropewalk.run.work.landing import Landing
from ropewalk.store import adoption, identity, land, merge, revisions, trees
from ropewalk.store.oplog import Move
from ropewalk.store.spool import Companion
from ropewalk.store.store import Store
from ropewalk.workspace import drive
from ropewalk.workspace.drive import Orders

KEPT = "refs/run-undone/"
"""Are the refs that keep the branches of runs that were dropped."""

_TRIES = 4
_SHOWN, _LISTED = 100, 1000


class Taken(NamedTuple):
    """Is how a run was taken back.

    `ref` is the branch that had its work, `head` where that is now (None: it is gone), `commit` the change that takes
    it back, `kept` the ref under which a dropped branch is kept. `built` are later changes on what the run made, and
    `holders` other branches that have its work. `already`: it was done before.
    """

    how: Undone
    ref: str
    head: str | None = None
    commit: str | None = None
    kept: str | None = None
    built: Sequence[Built] = ()
    holders: Sequence[str] = ()
    already: bool = False


def take_back(
    board: Board, store: Store, landing: Landing, run: Run, actor: str, check: Orders | None = None
) -> Taken:  # fmt: skip
    """Takes back what a run landed; nothing is changed on an error.

    A branch of its own that nobody merged is dropped, and kept aside. Where all that a branch got since the run began
    is the run's, and nobody else has it, the branch moves back. Else one change takes the run's lands back, newest
    first, once the check passed on the tree that this makes; `E_CONFLICT` names the paths on which later changes stand.
    """
    branch = names.branch(run.target)
    try:
        return _take_back(board, store, landing, run, actor, check)
    except (CasMismatchError, FencedError):
        board.refresh()
        now = runs.need(board, run.id)
        if not now.undone:
            raise
        return Taken(now.undone, branch, board.ref(branch), already=True)  # another was faster


def _take_back(
    board: Board, store: Store, landing: Landing, run: Run, actor: str, check: Orders | None
) -> Taken:  # fmt: skip
    branch = names.branch(run.target)
    head = board.ref(branch)
    if run.undone:
        return Taken(run.undone, branch, head, already=True)
    _refuse_at_work(board, store, run)
    if head is not None:
        landing.head(board, store, run.target)
    if run.target == f"run/{run.id}":
        place = _merged(board, store, run, head)
        if place is None:
            return _drop(board, store, run, actor, branch, head)
    else:
        lands = [] if head is None else _own(board, store, run, _between(store, head, run.base))
        place = None if head is None else _Place(branch, head, lands)
    if place is None or not place.lands:
        return _record(board, run, actor, Taken("nothing", branch, head), [])
    whole = place.branch == branch and set(_between(store, place.head, run.base)) == set(place.lands)
    if whole and isinstance(board, LocalBoard) and not _holders(board, store, place.lands[-1], branch):
        done = Taken("moved", branch, run.base)
        return _record(board, run, actor, done, [Move(branch, place.head, run.base)])
    if isinstance(board, LocalBoard):
        return _land(board, store, run, actor, place, check)
    return _push(board, store, landing, run, actor, place, check)


class _Place(NamedTuple):
    """Is a branch that has a run's work: its head, and the commits on it that are the run's, newest first."""

    branch: str
    head: str
    lands: Sequence[str]


def _refuse_at_work(board: Board, store: Store, run: Run) -> None:
    ids = [runs.task_name(run.id, task) for task in run.tasks]
    if report.running(store.layout, run.id) or figures.at_work(state.look(board, only=ids).values()):
        raise BusyError(
            f"the run {run.id} is at work", hint=f"`rw runs stop {run.id}` stops it; then take it back", run=run.id
        )


def _drop(board: Board, store: Store, run: Run, actor: str, branch: str, head: str | None) -> Taken:
    """Drops a run's own branch and keeps it aside."""
    if head is None:
        return _record(board, run, actor, Taken("nothing", branch), [])
    kept = KEPT + run.id
    holders = [] if head == run.base else _holders(board, store, head, branch)
    moves = [Move(branch, head, None), Move(kept, board.ref(kept), head)]
    return _record(board, run, actor, Taken("dropped", branch, None, None, kept, (), holders), moves)


def _own(board: Board, store: Store, run: Run, listed: Sequence[str]) -> list[str]:
    """Gives those of some commits that tasks of the run landed, in the same order."""
    mine = f"{run.id}."
    kinds = (names.SPECS, names.HELD)
    tasks = {ref[len(kind) :] for kind in kinds for ref, _ in board.below(kind + mine) if "@" not in ref}
    landed = set()
    for one in state.look(board, only=sorted(tasks)).values():
        # a task that was found to be done has the head of that moment, which is another's work
        if one.state == "done" and one.verdict is not None and "already" not in one.verdict.values:
            landed.add(one.returned)
    # of tasks that were packed away the commits themselves say whose they are
    return [
        oid for oid in listed if oid in landed or (store.objects.commit(oid).trailer("Task") or "").startswith(mine)
    ]


def _between(store: Store, head: str, base: str) -> list[str]:
    """Gives the commits that a head has over a base, newest first."""
    return store.git("rev-list", "--topo-order", head, f"^{base}", "--", timeout=600).text().split()


def _merged(board: Board, store: Store, run: Run, own: str | None) -> _Place | None:
    """Gives the default branch of the store where it has work of a run that has, or had, a branch of its own."""
    branch = revisions.default_branch(store)
    head = store.ref(branch)
    if not isinstance(board, LocalBoard) or head is None or own == run.base:
        return None
    there = _between(store, head, run.base)
    mine = set(_own(board, store, run, there))
    if own is not None:  # the branch as a whole may have become one land
        rows = store.db.rows("SELECT landed FROM landed WHERE change = ? AND ref = ?", (own, branch))
        mine.update(str(row[0]) for row in rows)
    lands = [oid for oid in there if oid in mine]
    return _Place(branch, head, lands) if lands else None


def _holders(board: Board, store: Store, commit: str, but: str) -> list[str]:
    """Gives the other branches that have a commit, those of remotes among them."""
    if not isinstance(board, LocalBoard):
        refs = [one for one in board.below(names.HEADS) if one[0] != but]
        return [short_ref(ref) for ref, oid in refs[:_LISTED] if board.on_target([commit], oid)]
    listed = store.git(
        "for-each-ref", "--format=%(refname)", f"--contains={commit}", "refs/heads/", "refs/remotes/", timeout=600
    )  # fmt: skip
    return [short_ref(ref) for ref in listed.text().split() if ref != but and store.ref(ref) is not None]


def _record(board: Board, run: Run, actor: str, done: Taken, moves: Sequence[Move]) -> Taken:
    """Moves refs together with the record that says how the run was taken back."""
    made = now_object(runs.words(runs.taken_back(run, done.how, actor)))
    record = Move(names.run(run.id), board.ref(names.run(run.id)), made.id)
    board.push(Step("run_undo", actor, [*(move for move in moves if move.old != move.new), record], [made]))
    return done


def _land(
    board: Board, store: Store, run: Run, actor: str, place: _Place, check: Orders | None
) -> Taken:  # fmt: skip
    """Lands the change that takes a run back."""
    commit, built = _revert(store, run, actor, place)
    if commit is None:
        return _record(board, run, actor, Taken("nothing", place.branch, place.head, built=built), [])
    words = runs.words(runs.taken_back(run, "reverted", actor))
    for name in ("{landed}", "{tree}"):  # a goal may have these words, which stand for ids in what goes with a land
        words = words.replace(name, "\\u007b" + name[1:])
    record = Companion(names.run(run.id), board.ref(names.run(run.id)), words, WHO)
    # the same undo within a second of its `op undo` is the same change
    req = land.request(
        agent=actor,
        change=commit,
        ref=place.branch,
        allow_revert=True,
        allow_reland=True,
        allow_mass_delete=True,
        together=[record],
    )
    if check is None:
        landed = land.land(store, req).landed
    else:
        (outcome,) = drive.land_checked(store, place.branch, [req], check)
        if isinstance(outcome.result, RopewalkError):
            raise outcome.result
        landed = outcome.result.landed
    return Taken("reverted", place.branch, landed, landed, built=built)


def _push(
    board: Board, store: Store, landing: Landing, run: Run, actor: str, place: _Place, check: Orders | None
) -> Taken:  # fmt: skip
    """Puts the change that takes a run back on a branch of a git server; a newer head is taken back from anew."""
    from ropewalk.board.remote import RemoteBoard

    left = _TRIES
    while True:
        commit, built = _revert(store, run, actor, place)
        if commit is None:
            return _record(board, run, actor, Taken("nothing", place.branch, place.head, built=built), [])
        if check is not None:
            _check(store, commit, check)
        adoption.secure(store, commit)
        store.expose()
        if isinstance(board, RemoteBoard):
            board.lend(f"{store.layout.repo}/objects")
        done = Taken("reverted", place.branch, commit, commit, built=built)
        try:
            return _record(board, run, actor, done, [Move(place.branch, place.head, commit)])
        except CasMismatchError:
            left -= 1
            if not left:
                raise
        board.refresh()
        run = runs.need(board, run.id)
        if run.undone:
            return Taken(run.undone, place.branch, board.ref(place.branch), already=True)
        head = landing.head(board, store, run.target)
        place = _Place(place.branch, head, _own(board, store, run, _between(store, head, run.base)))


def _check(store: Store, commit: str, check: Orders) -> None:
    verdict = evidence.look(store, commit, check)
    if verdict is None or verdict.kind != "passed":
        raise CheckFailedError(
            f"the check ended with {verdict.rc if verdict else 1} on the tree without the run's work",
            tree=store.objects.commit(commit).tree, command=list(check.command.argv),
            rc=verdict.rc if verdict else 1, output=verdict.output if verdict else "",
        )  # fmt: skip


def _revert(store: Store, run: Run, actor: str, place: _Place) -> tuple[str | None, list[Built]]:
    """Gives the change on a branch's head that takes the run's lands back, and the later changes on the same paths.

    None where the branch has nothing of it any more.
    """
    objects = store.objects
    objects.take_new()
    touched: set[bytes] = set()
    now = objects.commit(place.head).tree
    for oid in place.lands:
        touched.update(change.path for change in trees.diff(objects, _before(store, oid), objects.commit(oid).tree))
    built = _built(store, run, place, touched)
    for oid in place.lands:
        merged = merge.merge(objects, objects.commit(oid).tree, now, _before(store, oid))
        if not merged.clean:
            raise _conflict(store, oid, [one.path for one in merged.conflicts], built)
        now = merged.tree
    if now == objects.commit(place.head).tree:
        return None, built
    who = identity.person(store.layout, actor, clock.now())
    commit = objects.write_commit(now, [place.head], who, who, _message(store, run, place.lands).encode())
    store.objects.spill()
    return commit, built


def _before(store: Store, oid: str) -> str:
    parents = store.objects.commit(oid).parents
    return store.objects.commit(parents[0]).tree if parents else EMPTY_TREE


def _built(store: Store, run: Run, place: _Place, touched: Collection[bytes]) -> list[Built]:
    """Gives the changes that came after the run's first land, are not the run's, and touch its paths."""
    mine = set(place.lands)
    found = []
    for oid in _between(store, place.head, place.lands[-1])[:_LISTED]:
        commit = store.objects.commit(oid)
        if oid in mine or len(commit.parents) != 1:
            continue
        both = {change.path for change in trees.diff(store.objects, _before(store, oid), commit.tree)} & set(touched)
        if both:
            agent = store.agent_of(oid) or commit.author.name.decode("utf-8", "replace")
            found.append(Built(oid, agent, commit.title, sorted(map(path_text, both))[:_SHOWN]))
    return found


def _conflict(store: Store, land: str, paths: Iterable[bytes], built: Sequence[Built]) -> ConflictError:
    listed = sorted(path_text(path) for path in set(paths))
    stand = [one for one in built if set(one.paths) & set(listed)] or built
    words = ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
    return ConflictError(
        f"what {land[:12]} did can't be taken back alone: later changes stand on it in {words}",
        hint="take the later changes back first, or land a change that takes the work back by hand",
        paths=listed[:_SHOWN], land=land, title=store.objects.commit(land).title,
        built=msgspec.to_builtins(stand[:_SHOWN]),
    )  # fmt: skip


def _message(store: Store, run: Run, lands: Sequence[str]) -> str:
    lines = [f"Take back the run {run.id}", ""]
    if run.goal:
        goal = " ".join(run.goal.split())
        lines += [f"Its goal was: {goal[:200]}", ""]
    lines += [f"{oid[:12]} {store.objects.commit(oid).title}" for oid in lands[:_SHOWN]]
    if len(lands) > _SHOWN:
        lines.append(f"and {len(lands) - _SHOWN} more")
    return "\n".join(lines) + "\n"
