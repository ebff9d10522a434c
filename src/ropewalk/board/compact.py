"""Compaction: the refs of tasks that are closed for long move into one chain, because a push costs all refs (F5).

`refs/swarm/log` is an append-only chain of commits. The tree of each names all that is compacted, by kind and task;
its further parents are what was moved there, so that a server keeps it. `restore` brings a task's refs back.
flockwork does not read the chain: its workers and its audit no longer see those tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from urllib.parse import quote, unquote

import msgspec

from ropewalk.board import names, state, wire
from ropewalk.board.base import Board, Step
from ropewalk.board.state import Status
from ropewalk.board.wire import Object
from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError, NotFoundError, StoreCorruptError
from ropewalk.store import trees
from ropewalk.store.loose import object_id
from ropewalk.store.oplog import Move

DAYS = 30.0
"""Is for how long a task has to be closed before it is compacted, where nobody said."""

MANY = 2000
"""Is how many refs of closed tasks a board should not have: from there on each push is slowed by them."""

_TRIES = 4
_LIVE = (names.SPECS, names.CLAIMS, names.RETURNS, names.VERDICTS, names.INTEGRATED)


class Compacted(msgspec.Struct, frozen=True):
    """Is what a compaction did: the tasks, how many refs moved, and where the chain ends now."""

    tasks: list[str]
    refs: int
    log: str | None
    note: str = "flockwork no longer sees these tasks; `rw board restore` brings them back"


class History(msgspec.Struct, frozen=True):
    """Is what is compacted: the ids by the full name of the ref that each had."""

    log: str | None
    refs: dict[str, str]

    def below(self, prefix: str) -> list[tuple[str, str]]:
        """Gives (full name, id) of the refs that begin with a prefix, by name."""
        return sorted((name, oid) for name, oid in self.refs.items() if name.startswith(prefix))


def compact(
    board: Board, actor: str, *, days: float = DAYS, tell: Callable[[str], None] = lambda line: None
) -> Compacted:
    """Moves the refs of tasks into the chain that have been closed for so many days and that no open task needs.

    Each push moves whole tasks, all or none, with the chain. A task that somebody touched meanwhile stays.
    """
    board.refresh()
    done: list[str] = []
    count = 0
    while moved := _batch(board, actor, days):
        done += moved
        count += sum(moved.values())
        tell(f"{len(done)} tasks, {count} refs")
    return Compacted(done, count, board.log())


def restore(board: Board, tasks: Collection[str], actor: str) -> Compacted:
    """Brings the refs of compacted tasks back, all or none; `E_NOT_FOUND` for one that is not in the chain."""
    mismatch: CasMismatchError | None = None
    for _ in range(_TRIES):
        past = history(board)
        by_task = _by_task(past.refs)
        for task in tasks:
            if task not in by_task:
                raise NotFoundError(f"{task} is not among the compacted tasks", task=task)
        back = {name: past.refs[name] for task in dict.fromkeys(tasks) for name in by_task[task]}
        if not back:
            return Compacted([], 0, past.log)
        left = {name: oid for name, oid in past.refs.items() if name not in back}
        objects = _entry(past.log, left, [], f"restored {len(set(tasks))} tasks")
        moves = [Move(names.LOG, past.log, objects[0].id), *(Move(name, None, oid) for name, oid in back.items())]
        try:
            board.push(Step("board_restore", actor, moves, objects))
            return Compacted(list(dict.fromkeys(tasks)), len(back), objects[0].id)
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
            if (ref := str(error.details.get("ref"))) != names.LOG and board.ref(ref) is not None:
                raise
    assert mismatch is not None
    raise mismatch


def history(board: Board) -> History:
    """Gives what is compacted; on a git server by a fetch of its own."""
    log = board.log()
    if log is None:
        return History(None, {})
    found: dict[str, str] = {}
    _walk(board, _tree_of(board, log), "", found)
    return History(log, found)


def closed_refs(board: Board) -> int:
    """Gives how many refs of closed tasks a board has, from the refs alone; above `MANY` it wants to be compacted."""
    refs = _refs(board)
    return sum(
        len(mine) for task, mine in refs.items() if names.verdict(task) in mine and names.opened(task) not in mine
    )


def _batch(board: Board, actor: str, days: float) -> dict[str, int]:
    """Moves as many whole tasks as one push holds; gives the number of refs of each that moved."""
    mismatch: CasMismatchError | None = None
    for _ in range(_TRIES):
        # before the states: a task that is opened after this look has lost a ref that the push rests on
        refs = _refs(board)
        part: dict[str, dict[str, str]] = {}
        size = 1
        for status in _old(board, days):
            mine = refs.get(status.id, {})
            if part and board.most_moves and size + len(mine) > board.most_moves:
                break
            if mine:
                part[status.id] = mine
                size += len(mine)
        if not part:
            return {}
        past = history(board)
        gone = {name: oid for mine in part.values() for name, oid in mine.items()}
        kept = {name: oid for name, oid in gone.items() if not name.startswith(names.OPEN)}
        objects = _entry(past.log, past.refs | kept, kept.values(), f"compacted {len(part)} tasks")
        moves = [Move(names.LOG, past.log, objects[0].id), *(Move(name, oid, None) for name, oid in gone.items())]
        try:
            board.push(Step("board_compact", actor, moves, objects))
            return {task: len(mine) for task, mine in part.items()}
        except CasMismatchError as error:
            mismatch = error
            board.refresh()
    assert mismatch is not None
    raise mismatch


def _old(board: Board, days: float) -> list[Status]:
    """Gives the closed tasks whose end is so long ago, and which no task that may still be done needs."""
    statuses = state.look(board, everything=True)
    needed = {need for s in statuses.values() if s.state not in state.CLOSED for need in s.spec.task.needs}
    latest = clock.now() - days * 86_400
    found = [s for s in statuses.values() if s.state in state.CLOSED and s.id not in needed]
    return [s for s in found if _ended(board, s) <= latest]


def _ended(board: Board, status: Status) -> int:
    """Gives when a task was closed, in seconds since 1970, as its verdict says."""
    oid = board.ref(names.verdict(status.id))
    content = board.content(oid) if oid is not None else None
    return wire.made_at(content) if content is not None else status.at


def _refs(board: Board) -> dict[str, dict[str, str]]:
    """Gives the refs of each task, its index and its archive among them."""
    listed = [pair for prefix in (*_LIVE, names.ARCHIVE, names.OPEN) for pair in board.below(prefix)]
    values = dict(listed)
    return {task: {name: values[name] for name in mine} for task, mine in _by_task(values).items()}


def _by_task(refs: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in refs:
        found.setdefault(task_of(name), []).append(name)
    return found


def task_of(ref: str) -> str:
    """Gives the task that a ref below `refs/swarm/` is of."""
    rest = ref[len(names.ARCHIVE) :].partition("/")[2] if ref.startswith(names.ARCHIVE) else ""
    return (rest or ref[len(names.ROOT) :].partition("/")[2]).partition("@")[0]


# the chain's objects


def _entry(past: str | None, refs: Mapping[str, str], kept: Iterable[str], words: str) -> list[Object]:
    """Gives the next commit of the chain, first, and the trees it needs."""
    made: list[Object] = []
    root = _write({_path(name): oid for name, oid in refs.items()}, made)
    if past is None:
        # the chain is its commits' first parents, so it has a beginning of its own
        made.append(first := wire.make("log", clock.now()))
        past = first.id
    at = clock.now()
    lines = [f"tree {root}", *(f"parent {oid}" for oid in dict.fromkeys([past, *kept]))]
    lines += [f"author {wire.WHO} {at} +0000", f"committer {wire.WHO} {at} +0000", "", f"log\n{words}", ""]
    content = "\n".join(lines).encode()
    return [Object(object_id("commit", content), content), *made]


def _path(name: str) -> tuple[str, ...]:
    """Gives a ref's place in the tree; a task is one name there, so that `a` and `a/b` do not clash."""
    kind, _, rest = name[len(names.ROOT) :].partition("/")
    if name.startswith(names.ARCHIVE):
        folder, _, rest = rest.partition("/")
        return kind, folder, quote(rest, safe="@")
    return kind, quote(rest, safe="@")


def _write(files: Mapping[tuple[str, ...], str], made: list[Object]) -> str:
    entries: dict[bytes, trees.Entry] = {}
    below: dict[str, dict[tuple[str, ...], str]] = {}
    for path, oid in files.items():
        if len(path) > 1:
            below.setdefault(path[0], {})[path[1:]] = oid
        else:
            entries[path[0].encode()] = (trees.GITLINK, bytes.fromhex(oid))
    for name, inner in below.items():
        entries[name.encode()] = (trees.TREE, bytes.fromhex(_write(inner, made)))
    content = trees.serialize(trees.in_order(entries))
    oid = object_id("tree", content)
    made.append(Object(oid, content, "tree"))
    return oid


def _tree_of(board: Board, commit: str) -> str:
    content = board.content(commit)
    if content is None or not content.startswith(b"tree "):
        raise StoreCorruptError("the board's log can't be read", object=commit)
    return content[5:45].decode("ascii")


def _walk(board: Board, tree: str, above: str, found: dict[str, str]) -> None:
    raw = board.raw(tree)
    if raw is None or raw[0] != "tree":
        raise StoreCorruptError("a tree of the board's log can't be read", object=tree)
    for name, (mode, oid) in trees.parse(raw[1], tree).items():
        if mode == trees.TREE:
            _walk(board, oid.hex(), f"{above}{name.decode()}/", found)
        else:
            found[f"{names.ROOT}{above}{unquote(name.decode())}"] = oid.hex()
