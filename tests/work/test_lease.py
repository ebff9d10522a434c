"""Leases: heartbeats of one thread for all claims of a process, and what a process does that has slept."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.board.boardkit import BoardKit

from ropewalk.board import claim, names, recover, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.local import LocalBoard
from ropewalk.core import clock
from ropewalk.run.work.lease import Heart, Lease, Stop
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store


class _Counting(LocalBoard):
    """Is a board that tells of its beats."""

    def __init__(self, store: Store, beaten: threading.Event) -> None:
        super().__init__(store)
        self._beaten = beaten
        self.asked: list[Mapping[str, str]] = []

    def beat(self, claims: Mapping[str, str], actor: str) -> dict[str, str | None]:
        """Notes a beat of claims."""
        self.asked.append(dict(claims))
        found = super().beat(claims, actor)
        self._beaten.set()
        return found


@pytest.fixture
def kit(tmp_path: Path) -> BoardKit:
    """Gives a board in a store."""
    return BoardKit(tmp_path / "store")


def _heart(kit: BoardKit, beaten: threading.Event, boards: list[_Counting], lease: float | None = None) -> Heart:
    def another() -> tuple[Board, Store]:
        store = Store(kit.kit.root)
        boards.append(_Counting(store, beaten))
        return boards[-1], store

    return Heart(another, 0.02, "test/one", lease, lambda kind, **facts: None)


def test_F11_one_beat_is_for_all_claims_of_a_process(kit: BoardKit) -> None:
    kit.add("one", "two")
    stop, beaten, boards = threading.Event(), threading.Event(), list[_Counting]()
    leases = [Lease(kit.take(name), stop) for name in ("one", "two")]
    heart = _heart(kit, beaten, boards)
    for lease in leases:
        heart.add(lease)
    assert beaten.wait(20)
    while kit.board.beats(leases[1].held.claim) < 2:
        assert beaten.wait(20)
    heart.close()
    assert boards[0].asked[-1] == {lease.held.task.id: lease.held.claim for lease in leases}
    assert not any(lease.lost or lease.stop.is_set() for lease in leases)
    kit.close()


def test_F10_a_process_that_slept_reads_its_claim_before_it_beats(kit: BoardKit) -> None:
    """With a lease so short that every pause is a sleep, a lost claim is not even asked to be beaten."""
    kit.add("one", "two")
    stop, beaten, boards = threading.Event(), threading.Event(), list[_Counting]()
    lost, kept = Lease(kit.take("one"), stop), Lease(kit.take("two"), stop)
    recover.evict(kit.board, kit.status("one"), "test/one", "by hand")
    heart = _heart(kit, beaten, boards, lease=1e-6)
    heart.add(lost)
    heart.add(kept)
    assert beaten.wait(20)
    heart.close()
    assert lost.lost and lost.stop.is_set() and not stop.is_set()
    assert all("one" not in asked for asked in boards[0].asked)
    assert not kept.lost and kit.board.ref(names.claim("two")) == kept.held.claim
    kit.close()


def test_a_step_that_rests_on_the_claim_keeps_beats_off(kit: BoardKit) -> None:
    kit.add("one")
    stop, beaten, boards = threading.Event(), threading.Event(), list[_Counting]()
    lease = Lease(kit.take("one"), stop)
    with lease.still() as held:
        heart = _heart(kit, beaten, boards)
        heart.add(lease)
        until = clock.monotonic() + 0.2
        while clock.monotonic() < until:
            assert kit.board.beats(held.claim) == 0
    assert beaten.wait(20)
    heart.close()
    kit.close()


def test_the_end_of_all_is_the_end_of_each() -> None:
    above = threading.Event()
    one, two = Stop(above), Stop(above)
    one.set()
    assert one.is_set() and not two.is_set() and not above.is_set()
    above.set()
    assert two.is_set()


def test_a_step_whose_end_was_not_heard_is_adopted_and_another_holder_is_not(kit: BoardKit) -> None:
    kit.add("a")
    held = kit.take("a")
    lease = Lease(held, threading.Event())
    marked = claim.mark(kit.board, held, "dispatch_started")  # as if nothing had been heard of it
    assert lease.held.claim == held.claim != marked.claim
    lease.adopt(kit.board)
    assert lease.held.claim == marked.claim and "dispatch_started" in lease.held.words

    text = wire.changed_claim(marked.words, host="another/boot/1/1")
    made = now_object(text)
    kit.board.push(Step("takeover", held.actor, [Move(names.claim("a"), marked.claim, made.id)], [made]))
    lease.adopt(kit.board)
    assert lease.held.claim == marked.claim, "it is another's by now"
