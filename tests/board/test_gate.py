"""Gates: when they fire, when they must not, and what may happen at the same moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.board import claim, gate, names, review, state, tasks, wire
from ropewalk.board.base import Board, Step
from ropewalk.board.claim import As
from ropewalk.board.local import LocalBoard
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import ForbiddenError, InvalidError, NotFoundError
from ropewalk.plan.task import Gate, Task
from ropewalk.store.oplog import Move
from storekit import Kit, put, rw, stock

ACTOR = "human/gatekeeper"


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
    return made


def returned(board: Board, head: str, name: str = "t", **words: object) -> None:
    """Adds a task that one of our workers did."""
    if state.need(board, name) is None:
        tasks.add(board, [Task(name, "true", **words)], ACTOR)  # type: ignore[arg-type]
        board.refresh()
    found = state.need(board, name)
    assert found is not None
    held = claim.take(board, found, As("w1", "claude/one", "script"))
    board.refresh()
    claim.close(board, held, Outcome(True, 0, 0, "script"), head)
    board.refresh()


def say(board: Board, reviewer: str, outcome: review.Vote = "agree", provider: str = "", task: str = "t") -> None:
    review.review(board, task, reviewer, outcome, f"human/{reviewer}", provider=provider)


def fire(board: Board, task: str = "t", **words: object) -> gate.Gated:
    return gate.gate(board, task, ACTOR, **words)  # type: ignore[arg-type]


def test_a_gate_fires_once_and_says_for_what(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(2, 3))
    say(board, "alice")
    found = fire(board)
    assert (found.fired, found.integrated, found.why) == (False, False, "1 of 2 agree")
    assert board.ref(names.integrated("t")) is None
    say(board, "bob")
    found = fire(board)
    assert found.fired and found.integrated and found.agree == ("alice", "bob") and found.commit == kit.main()
    oid = board.ref(names.integrated("t"))
    assert oid is not None
    assert wire.message(board.content(oid) or b"") == (
        f"integrated\ntask: t\nn: 2\nm: 3\nagreed: alice bob\nevidence: refs/swarm/tasks/t\ncommit: {kit.main()}\n"
    )
    again = fire(board)
    assert again.integrated and not again.fired and board.ref(names.integrated("t")) == oid
    status = state.need(board, "t")
    assert status is not None and status.state == "done" and status.claim is not None and status.claim.closed


def test_R15_more_agree_than_have_to(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(1, 2))
    for reviewer in ("alice", "bob", "carol"):
        say(board, reviewer)
    assert fire(board).fired


def test_R15_one_veto_is_final(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(1, 3))
    say(board, "alice")
    say(board, "bob")
    say(board, "carol", "veto")
    found = fire(board)
    assert not found.integrated and found.why == "carol vetoes" and found.veto == ("carol",)


def test_the_spec_wins_over_arguments(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(2, 2))
    say(board, "alice")
    found = fire(board, n=1, m=1)
    assert not found.integrated and (found.n, found.m) == (2, 2)


def test_arguments_count_where_the_spec_is_silent(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main())
    say(board, "alice")
    with pytest.raises(InvalidError, match="has no gate"):
        fire(board)
    for n, m in ((0, 1), (2, 1), (-1, 3), (1, 101)):
        with pytest.raises(InvalidError, match="can't be"):
            fire(board, n=n, m=m)
    with pytest.raises(NotFoundError):
        fire(board, "nowhere", n=1)
    assert fire(board, n=1, m=2).fired


@pytest.mark.parametrize("lines", ["n: 0\nm: 1", "n: two", "n: 3\nm: 2"])
def test_R15_a_spec_with_a_gate_that_cannot_be_is_refused_whatever_the_arguments(
    board: LocalBoard, kit: Kit, lines: str
) -> None:
    made = wire.make(f"spec t\n\nverify: true\n{lines}\n\ndo it\n", 1_700_000_000)
    board.push(Step("push", ACTOR, [Move(names.spec("t"), None, made.id)], [made]))
    returned(board, kit.main())
    say(board, "alice")
    with pytest.raises(InvalidError, match="its gate"):
        fire(board, n=1, m=1)


def test_providers_have_to_differ_where_that_is_asked_for(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(2, 3, providers=True))
    say(board, "alice", provider="acme")
    say(board, "bob", provider="ACME")
    say(board, "nobody")
    assert "1 providers" in fire(board).why
    say(board, "carol", provider="other")
    assert fire(board).fired
    returned(board, kit.main(), "u", gate=Gate(1, 1))
    say(board, "alice", task="u")
    assert "0 providers" in fire(board, "u", providers=True).why


def test_R15_a_red_pending_open_or_unlanded_task_never_integrates(board: LocalBoard, kit: Kit) -> None:
    main = kit.main()
    unlanded = kit.commit(put("side.txt", "x\n")).changeset
    tasks.add(board, [Task(n, "true", gate=Gate(1, 1)) for n in ("red", "pending", "open", "side", "again")], ACTOR)
    ends = {"red": Outcome(False, 0, 1, "script"), "pending": Outcome(True, 0, 0, "script", more={"landed": "pending"}),
            "side": Outcome(True, 0, 0, "script"), "again": Outcome(True, 0, 0, "script")}  # fmt: skip
    for name, outcome in ends.items():
        found = state.need(board, name)
        assert found is not None
        held = claim.take(board, found, As("w1", "claude/one", "script"))
        commit = {"red": None, "side": unlanded}.get(name, main)
        claim.close(board, held, outcome, commit)
    tasks.reopen(board, ["again"], ACTOR, done=True)
    for name in (*ends, "open"):
        text = f"review-verdict\ntask: {name}\nreviewer: fw\noutcome: agree\nevidence: refs/swarm/tasks/{name}\n"
        made = wire.make(text, 1_700_000_000)
        board.push(Step("push", ACTOR, [Move(names.review(name, "fw"), None, made.id)], [made]))
        found = fire(board, name)
        assert not found.integrated and found.why, name
        assert board.ref(names.integrated(name)) is None
    assert fire(board, "side").why == "side is not on main by the attempt that holds its claim"


def test_a_target_that_was_moved_away_blocks(board: LocalBoard, kit: Kit) -> None:
    first = kit.main()
    kit.change(put("b.txt", "b\n"))
    returned(board, kit.main(), gate=Gate(1, 1))
    say(board, "alice")
    board.push(Step("force", ACTOR, [Move("refs/heads/main", kit.main(), first)]))
    assert not fire(board).integrated


def test_R15_a_gate_of_an_earlier_return_is_void(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(1, 1))
    text = "integrated\ntask: t\nn: 1\nm: 1\nagreed: x\nevidence: refs/swarm/verdicts/t\n"
    made = wire.make(text, 1_700_000_000)
    board.push(Step("push", ACTOR, [Move(names.integrated("t"), None, made.id)], [made]))
    assert not fire(board).integrated
    say(board, "alice")
    assert fire(board).fired
    assert made.id in {oid for _, oid in board.below(names.ARCHIVE + "integrated/t@")}


class Meanwhile(LocalBoard):
    """Is a board on which something happens once, between the count and the push."""

    def __init__(self, kit: Kit, act: object) -> None:
        super().__init__(kit.store)
        self.act = act

    def push(self, step: Step) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()  # type: ignore[operator]
        super().push(step)


def test_a_veto_between_count_and_push_is_counted(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(1, 2))
    say(board, "alice")
    found = fire(Meanwhile(kit, lambda: say(board, "bob", "veto")))
    assert not found.integrated and found.why == "bob vetoes" and board.ref(names.integrated("t")) is None


def test_a_reopening_between_count_and_push_wins(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(1, 2))
    say(board, "alice")
    found = fire(Meanwhile(kit, lambda: tasks.reopen(board, ["t"], ACTOR, done=True)))
    assert not found.integrated and found.why == "t is ready" and board.ref(names.integrated("t")) is None


def test_a_veto_after_the_gate_is_told_that_it_is_late(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(1, 2))
    say(board, "alice")
    assert fire(board).fired
    assert review.review(board, "t", "bob", "veto", "human/bob").is_late


def test_R15_reviews_made_in_three_clones_count_in_a_fourth(tmp_path: Path) -> None:
    bare = str(tmp_path / "board.git")
    stock("init", "-q", "--bare", "-b", "main", bare)
    tree = stock("--git-dir", bare, "hash-object", "-w", "-t", "tree", "/dev/null").decode().strip()
    head = stock("--git-dir", bare, "commit-tree", "-m", "first", tree).decode().strip()
    stock("--git-dir", bare, "update-ref", "refs/heads/main", head)

    def clone(name: str) -> RemoteBoard:
        (tmp_path / name).mkdir()
        return RemoteBoard(bare, str(tmp_path / name))

    boards = [clone(name) for name in ("work", "alice", "bob", "carol", "gate")]
    work, alice, bob, carol, four = boards
    tasks.init(work, ACTOR, mixed=False)
    work.refresh()
    for name in ("t", "u"):
        returned(work, head, name, gate=Gate(2, 3))
        say(alice, "alice", task=name)
        say(bob, "bob", task=name)
    say(carol, "carol", "veto", task="u")
    found = fire(four)
    assert found.fired and found.agree == ("alice", "bob")
    found = fire(four, "u")
    assert not found.integrated and found.why == "carol vetoes"
    assert not stock("--git-dir", bare, "for-each-ref", names.integrated("u"))
    for one in boards:
        one.close()


def test_a_land_can_require_a_gate(board: LocalBoard, kit: Kit) -> None:
    board.push(Step("branch", ACTOR, [Move("refs/heads/release", None, kit.main())]))
    change = kit.commit(put("b.txt", "b\n"))
    kit.land(change.changeset)
    returned(board, kit.main(), gate=Gate(1, 1))
    other = kit.commit(put("c.txt", "c\n")).changeset
    for tried in (kit.main(), change.changeset):
        with pytest.raises(ForbiddenError, match="the gate of t did not let"):
            kit.land(tried, ref="refs/heads/release", gate="t")
    say(board, "alice")
    assert fire(board).fired
    for gated, tried in (("t", other), ("u", kit.main())):
        with pytest.raises(ForbiddenError):
            kit.land(tried, ref="refs/heads/release", gate=gated)
    assert kit.land(kit.main(), ref="refs/heads/release", gate="t").status == "landed"
    assert kit.land(change.changeset, ref="refs/heads/release", gate="t").status == "up_to_date"
    tasks.reopen(board, ["t"], ACTOR, done=True)
    with pytest.raises(ForbiddenError):
        kit.land(other, ref="refs/heads/release", gate="t")


def test_a_gate_of_flockwork_is_no_pass(board: LocalBoard, kit: Kit) -> None:
    returned(board, kit.main(), gate=Gate(1, 1))
    text = "integrated\ntask: t\nn: 1\nm: 1\nagreed: x\nevidence: refs/swarm/tasks/t\n"
    made = wire.make(text, 1_700_000_000)
    board.push(Step("push", ACTOR, [Move(names.integrated("t"), None, made.id)], [made]))
    with pytest.raises(ForbiddenError):
        kit.land(kit.main(), gate="t")


def test_the_command_takes_a_gate(kit: Kit) -> None:
    made = kit.commit(put("b.txt", "b\n")).changeset
    kit.close()
    code, envelope = rw(kit.root, "land", made, "--gate", "t")
    assert code == 5 and envelope["error"]["code"] == "E_FORBIDDEN", envelope
