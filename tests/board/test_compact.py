"""Compaction: the refs of tasks that are closed for long go into one chain, on both kinds of board, and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.board.boardkit import BoardKit
from tests.board.remotekit import ACTOR, MAIN, states, task, who

from ropewalk.board import claim, compact, names, state, tasks, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.plan.task import Task
from ropewalk.store.oplog import Move
from storekit import stock

REVIEW = wire.review_words("t0", "anna", "agree", "x")


class Ground:
    """Is a board of either kind, and the repository in which git shows it."""

    def __init__(self, board: Board, repo: str, again: Callable[[], Board]) -> None:
        self.board, self.repo, self.again = board, repo, again

    def refs(self) -> dict[str, str]:
        """Gives the refs as stock git shows them."""
        listed = stock("--git-dir", self.repo, "for-each-ref", "--format=%(refname) %(objectname)").decode()
        return dict(line.split(" ") for line in listed.splitlines())


@pytest.fixture(params=["local", "remote"])
def ground(request: Any, tmp_path: Path, new_board: Callable[..., BoardKit]) -> Iterator[Ground]:
    if request.param == "local":
        kit = new_board()
        yield Ground(kit.board, kit.kit.repo, lambda: kit.board)
        return
    stock("init", "-q", "--bare", "-b", "main", str(tmp_path / "o.git"))
    tree = stock("--git-dir", str(tmp_path / "o.git"), "mktree", stdin=b"").decode().strip()
    head = stock("--git-dir", str(tmp_path / "o.git"), "commit-tree", tree, "-m", "x").decode().strip()
    stock("--git-dir", str(tmp_path / "o.git"), "update-ref", MAIN, head)
    opened: list[RemoteBoard] = []

    def again() -> Board:
        opened.append(RemoteBoard(str(tmp_path / "o.git"), str(tmp_path / f"h{len(opened)}")))
        return opened[-1]

    board = again()
    tasks.init(board, ACTOR, mixed=False)
    yield Ground(board, str(tmp_path / "o.git"), again)
    for one in opened:
        one.close()


def close(board: Board, name: str, *, fixed: bool = True) -> None:
    """Claims a task and closes it."""
    board.refresh()
    found = state.need(board, name)
    assert found is not None
    held = claim.take(board, found, who())
    outcome = Outcome(fixed, 0, 0 if fixed else 1, "command")
    claim.close(board, held, outcome, board.ref(MAIN) if fixed else None)


def test_F5_the_refs_of_closed_tasks_become_one_and_come_back_as_they_were(ground: Ground) -> None:
    board = ground.board
    tasks.add(board, [task(f"t{n}") for n in range(4)] + [task("u", needs=("t3",)), task("v")], ACTOR)
    board.refresh()
    held = claim.take(board, state.look(board)["t0"], who("w9"))
    assert claim.die(board, held, Outcome(False, 124, 0, "command", reason="timeout"))
    for n in (0, 1, 3):
        close(board, f"t{n}")
    close(board, "t2", fixed=False)
    made = now_object(REVIEW)
    board.push(Step("review", ACTOR, [Move(names.review("t0", "anna"), None, made.id)], [made]))
    before, was = ground.refs(), states(board)
    assert compact.compact(board, ACTOR).tasks == [], "they were closed a moment ago"
    said: list[str] = []
    found = compact.compact(board, ACTOR, days=0, tell=said.append)
    assert sorted(found.tasks) == ["t0", "t1", "t2"], "what an open task needs stays"
    assert found.refs == 6 + 4 + 3 and found.log and "flockwork no longer sees" in found.note and said
    after = ground.refs()
    gone = set(before) - set(after)
    assert set(after) - set(before) == {names.LOG} and len(gone) == found.refs
    assert all(name.rsplit("/", 1)[1].partition("@")[0] in found.tasks for name in gone)
    assert states(board) == {"t3": "done", "u": "ready", "v": "ready"}
    past = compact.history(ground.again())
    assert past.refs == {name: before[name] for name in gone} and past.log == after[names.LOG]
    assert past.below(names.VERDICTS)[0] == (names.verdict("t0"), before[names.verdict("t0")])
    content = ground.board.content(before[names.spec("t1")])
    assert content is not None and b"spec t1" in content
    stock("--git-dir", ground.repo, "fsck", "--strict", "--no-dangling")
    # the chain alone keeps what was moved there
    kept = stock("--git-dir", ground.repo, "rev-list", after[names.LOG]).decode().split()
    assert {before[name] for name in gone} <= set(kept)
    other = ground.again()
    assert compact.restore(other, ["t0", "t1"], ACTOR).refs == 10
    assert compact.restore(other, ["t2"], ACTOR).tasks == ["t2"]
    back = ground.refs()
    assert {name: back[name] for name in before} == before and states(board) == was
    assert compact.history(board).refs == {}
    line = stock("--git-dir", ground.repo, "rev-list", "--first-parent", back[names.LOG]).decode().split()
    assert after[names.LOG] in line, "the chain is only added to"


def test_a_task_that_is_not_compacted_is_not_restored(ground: Ground) -> None:
    tasks.add(ground.board, [task("a")], ACTOR)
    before = ground.refs()
    with pytest.raises(NotFoundError):
        compact.restore(ground.board, ["a"], ACTOR)
    assert compact.compact(ground.board, ACTOR, days=0).tasks == [] and ground.refs() == before


def test_tasks_are_moved_whole_however_little_a_push_holds(ground: Ground) -> None:
    board = ground.board
    tasks.add(board, [task(f"t{n}") for n in range(5)], ACTOR)
    for n in range(5):
        close(board, f"t{n}")
    board.most_moves = 9  # type: ignore[misc]
    before = ground.refs()
    assert compact.closed_refs(board) == 20
    found = compact.compact(board, ACTOR, days=0)
    assert len(found.tasks) == 5 and found.refs == 20
    assert len(stock("--git-dir", ground.repo, "rev-list", "--first-parent", str(found.log)).split()) == 3 + 1
    assert len(compact.history(board).refs) == 20 and compact.closed_refs(board) == 0
    assert set(ground.refs()) == {n for n in before if not n.rsplit("/", 1)[1].startswith("t")} | {names.LOG}


def test_a_task_that_is_opened_again_meanwhile_is_left_alone(ground: Ground) -> None:
    """The second board has seen the task closed; a push that rests on that is refused, and it looks again."""
    board, other = ground.board, ground.again()
    tasks.add(board, [task("a"), task("b")], ACTOR)
    close(board, "a", fixed=False)
    close(board, "b", fixed=False)
    other.refresh()
    tasks.reopen(board, ["a"], ACTOR)
    assert compact._batch(other, ACTOR, 0) == {"b": 3}
    assert states(board) == {"a": "ready"}
    assert set(compact.history(board).refs) == {names.spec("b"), names.claim("b"), names.verdict("b")}


def test_a_task_that_was_compacted_is_told_from_one_that_never_was(board: BoardKit) -> None:
    board.add("old")
    board.done("old")
    compact.compact(board.board, ACTOR, days=0)
    who = board.who()
    with pytest.raises(NotFoundError) as caught:
        tasks.cancel(board.board, "old", who)
    assert "was compacted" in caught.value.message and "rw board restore old" in caught.value.hint
    with pytest.raises(InvalidError) as refused:
        board.add(Task("new", "true", needs=("old",)))
    assert "rw board restore old" in refused.value.hint
    compact.restore(board.board, ["old"], ACTOR)
    board.add(Task("new", "true", needs=("old",)))
    assert board.state("new") == "ready"
    with pytest.raises(NotFoundError, match="there is no task"):
        tasks.cancel(board.board, "never", who)
