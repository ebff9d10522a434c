"""Reviews: who may say what of which change, and what does not count."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.board import claim, names, review, state, tasks, wire
from ropewalk.board.base import Board, Step
from ropewalk.board.claim import As
from ropewalk.board.local import LocalBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import ClaimedError, ForbiddenError, InvalidError, NotFoundError, RopewalkError
from ropewalk.plan.task import Task
from ropewalk.store.oplog import Move
from storekit import Kit, put

ACTOR = "human/alice"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", "a\n"))
    yield made
    made.close()


@pytest.fixture
def board(kit: Kit) -> LocalBoard:
    made = LocalBoard(kit.store)
    tasks.init(made, ACTOR, mixed=False)
    tasks.add(made, [Task("t", "true"), Task("open", "true"), Task("red", "true")], ACTOR)
    done(made, kit, "t")
    found = state.need(made, "red")
    assert found is not None
    claim.close(made, claim.take(made, found, As("w1", "claude/one", "script")), Outcome(False, 0, 1, "script"))
    return made


def done(board: Board, kit: Kit, task: str, worker: str = "w1", actor: str = "claude/one") -> None:
    found = state.need(board, task)
    assert found is not None
    held = claim.take(board, found, As(worker, actor, "script"))
    claim.close(board, held, Outcome(True, 0, 0, "script"), kit.main())


def words_of(board: Board, ref: str) -> str:
    oid = board.ref(ref)
    assert oid is not None
    return wire.message(board.content(oid) or b"")


def forge(board: Board, task: str, reviewer: str, text: str) -> None:
    """Puts a review as flockwork's gate module does, which checks nothing."""
    made = wire.make(text, 1_700_000_000)
    board.push(Step("push", ACTOR, [Move(names.review(task, reviewer), None, made.id)], [made]))


def flockwork(task: str, reviewer: str, outcome: str = "agree", evidence: str = "") -> str:
    lines = ["review-verdict", f"task: {task}", f"reviewer: {reviewer}", f"outcome: {outcome}"]
    return "\n".join([*lines, f"evidence: {evidence or names.returned(task)}", ""])


def test_a_review_is_flockworks_with_the_commit_and_the_identity(board: LocalBoard, kit: Kit) -> None:
    made = review.review(board, "t", "alice", "agree", ACTOR, provider="acme", note="fine,\nreally")
    assert made.is_new and made.commit == kit.main() and not made.is_late
    assert words_of(board, made.ref) == (
        "review-verdict\ntask: t\nreviewer: alice\noutcome: agree\nevidence: refs/swarm/tasks/t\n"
        f"commit: {kit.main()}\nagent: human/alice\nprovider: acme\nnote: fine, really\n"
    )


def test_the_evidence_is_the_return_or_its_commit(board: LocalBoard, kit: Kit) -> None:
    for number, evidence in enumerate(("refs/swarm/tasks/t", "swarm/tasks/t", kit.main())):
        review.review(board, "t", f"r{number}", "agree", ACTOR, evidence=evidence)
    for evidence in ("*", "refs/swarm/verdicts/t", "refs/swarm/tasks/*", "refs/heads/main", "0" * 40, "refs/swarm/"):
        with pytest.raises(InvalidError, match="is not the return of t"):
            review.review(board, "t", "bob", "agree", ACTOR, evidence=evidence)
    assert board.ref(names.review("t", "bob")) is None


@pytest.mark.parametrize(
    ("reviewer", "actor"),
    [("w1", "human/alice"), ("W1", "human/alice"), ("bob", "claude/one"), ("claude-one", "x/y"), ("claude.one", "x/y")],
)
def test_R15_nobody_reviews_their_own_work(board: LocalBoard, reviewer: str, actor: str) -> None:
    with pytest.raises(ForbiddenError, match="nobody reviews their own"):
        review.review(board, "t", reviewer, "agree", actor)
    assert board.below(names.review("t", "")) == []


def test_what_is_not_returned_is_not_reviewed(board: LocalBoard) -> None:
    with pytest.raises(NotFoundError):
        review.review(board, "nowhere", "bob", "agree", ACTOR)
    for task in ("open", "red"):
        with pytest.raises(InvalidError, match="no return to review"):
            review.review(board, task, "bob", "agree", ACTOR)


@pytest.mark.parametrize("reviewer", ["", "a@b", "a/b", "a b", "a..b", "a.lock", "-a", "a\nb", "ä", "x" * 65])
def test_R22_a_reviewers_name_is_checked(board: LocalBoard, reviewer: str) -> None:
    with pytest.raises(InvalidError, match="reviewer's name"):
        review.review(board, "t", reviewer, "agree", ACTOR)


def test_a_review_stands(board: LocalBoard) -> None:
    first = review.review(board, "t", "alice", "veto", ACTOR)
    again = review.review(board, "t", "alice", "veto", ACTOR, note="once more")
    assert not again.is_new and again.id == first.id
    with pytest.raises(ClaimedError, match="said veto of t already"):
        review.review(board, "t", "alice", "agree", ACTOR)


def test_a_review_of_an_earlier_return_is_replaced_and_kept(board: LocalBoard, kit: Kit) -> None:
    first = review.review(board, "t", "alice", "veto", ACTOR)
    # flockwork's sweep archives the attempt, and leaves reviews where they are
    moves = []
    for ref in (names.claim("t"), names.returned("t"), names.verdict("t")):
        moves += [Move(ref, board.ref(ref), None), Move(names.archived(ref, "att-w1-abc123"), None, board.ref(ref))]
    board.push(Step("push", ACTOR, moves))
    kit.change(put("a.txt", "b\n"))
    done(board, kit, "t", worker="w2", actor="claude/two")
    status = state.need(board, "t")
    assert status is not None and review.said(board, status).invalid[0][0] == "alice"
    second = review.review(board, "t", "alice", "agree", ACTOR)
    assert second.is_new and second.commit == kit.main() != first.commit
    assert first.id in {oid for _, oid in board.below(names.ARCHIVE + "verdicts/t@alice@")}
    status = state.need(board, "t")
    assert status is not None and [one.reviewer for one in review.said(board, status).agree] == ["alice"]


def test_R15_what_is_invalid_is_named_and_not_counted(board: LocalBoard, kit: Kit) -> None:
    good = flockwork("t", "fw")
    forge(board, "t", "fw", good)
    forge(board, "t", "star", flockwork("t", "star", evidence="*"))
    forge(board, "t", "verdict", flockwork("t", "verdict", evidence="refs/swarm/verdicts/t"))
    forge(board, "t", "w1", flockwork("t", "w1"))
    forge(board, "t", "thief", good)
    forge(board, "t", "maybe", flockwork("t", "maybe", outcome="maybe"))
    forge(board, "t", "noise", "noise")
    forge(board, "t", "old", flockwork("t", "old", evidence="refs/swarm/tasks/t@" + "1" * 40))
    forge(board, "t", "sha", flockwork("t", "sha", evidence=kit.main()))
    review.review(board, "t", "alice", "agree", "human/alice")
    review.review(board, "t", "alice2", "agree", "human/alice")
    board.push(Step("push", ACTOR, [Move(names.review("t", "commit"), None, kit.main())]))
    status = state.need(board, "t")
    assert status is not None
    said = review.said(board, status)
    assert [one.reviewer for one in said.agree] == ["alice", "fw", "sha"] and not said.veto
    assert {who: why.split()[-1] for who, why in said.invalid} == {
        "alice2": "alice", "star": "return", "verdict": "return", "w1": "work", "thief": "ref", "maybe": "'maybe'",
        "noise": "review", "old": "return", "commit": "review",
    }  # fmt: skip


def test_a_line_in_a_note_is_no_field(board: LocalBoard) -> None:
    made = review.review(board, "t", "alice", "agree", ACTOR, note="x\noutcome: veto")
    assert words_of(board, made.ref).count("\noutcome: ") == 1
    with pytest.raises(RopewalkError):
        review.review(board, "t", "bob", "agree", ACTOR, provider="x\noutcome: veto")


def test_reopening_archives_what_was_said(board: LocalBoard, kit: Kit) -> None:
    review.review(board, "t", "alice", "agree", ACTOR)
    tasks.reopen(board, ["t"], ACTOR, done=True)
    assert board.below(names.review("t", "")) == [] and claim.lives(board, "t") == 1
    done(board, kit, "t", worker="w2", actor="claude/two")
    assert review.review(board, "t", "alice", "veto", ACTOR).is_new
