"""Recovery: what dead holders left is ended by whoever comes, and nobody who lives loses a task."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.board import claim, holder, names, observe, recover, state, tasks, tidy, wire
from ropewalk.board.base import Board, Step, now_object
from ropewalk.board.claim import As, Held
from ropewalk.board.local import LocalBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import ClaimedError, FencedError, InvalidError
from ropewalk.plan.task import Limits, Task
from ropewalk.store.oplog import Move
from storekit import Kit, put

ACTOR = "test/one"
FAR = 1e9
"""Is an age, in seconds, past every lease."""


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


def task(name: str, **words: object) -> Task:
    return Task(name, "true", **words)  # type: ignore[arg-type]


def take(board: Board, name: str, worker: str = "w1", host: str = "") -> Held:
    found = state.need(board, name)
    assert found is not None and found.state == "ready", found
    return claim.take(board, found, As(worker, ACTOR, "script", host=host))


def reconcile(board: Board, age: float = FAR, **words: bool) -> recover.Census:
    seen = state.look(board, everything=True)
    return recover.reconcile(board, dict.fromkeys(seen, age), ACTOR, **words)


def stands(board: Board, name: str) -> str:
    found = state.need(board, name)
    assert found is not None
    return found.state


def dead_process() -> str:
    child = subprocess.Popen(["sleep", "60"])
    named = holder.mine(child.pid)
    child.kill()
    child.wait()
    return named


def raw(board: Board, ref: str, text: str, at: int = 1_700_000_000) -> str:
    """Puts a ref as flockwork's workers do."""
    made = wire.make(text, at)
    board.push(Step("push", ACTOR, [Move(ref, board.ref(ref), made.id)], [made]))
    return made.id


def test_evict_frees_all_that_an_attempt_held_as_one_step(board: LocalBoard, kit: Kit) -> None:
    tasks.add(board, [task("a", region="r"), task("b", region="r")], ACTOR)
    held = take(board, "a")
    place = f"{names.QUEUE}main/0000000001.a"
    raw(board, place, f"queue\nattempt: {held.attempt}")
    raw(board, names.landing_lock("main"), f"lease main\nattempt: {held.attempt}")
    found = state.need(board, "a")
    assert found is not None and stands(board, "b") == "waiting"
    before = kit.store.last_op()
    ended = recover.evict(board, found, ACTOR, "it was silent")
    assert (ended.attempt, ended.requeued) == (held.attempt, True)
    assert kit.store.last_op() == before + 1
    assert board.ref(place) is None and board.ref(names.landing_lock("main")) is None
    assert stands(board, "a") == stands(board, "b") == "ready"
    kept = board.ref(names.archived(names.claim("a"), held.attempt))
    assert kept is not None and b"\nended: evicted: it was silent\n" in (board.content(kept) or b"")
    with pytest.raises(FencedError):
        claim.close(board, held, Outcome(True, 0, 0, "script"), kit.main())


def test_evict_is_fenced_on_what_was_observed(board: LocalBoard) -> None:
    tasks.add(board, [task("a")], ACTOR)
    held = take(board, "a")
    observed = state.need(board, "a")
    assert observed is not None
    claim.mark(board, held, "work_started")
    with pytest.raises(FencedError):
        recover.evict(board, observed, ACTOR, "late")
    assert stands(board, "a") == "claimed"


def test_R8_when_the_heirs_are_spent_the_task_is_closed_with_the_dead_attempt(board: LocalBoard) -> None:
    tasks.add(board, [task("a"), task("never", limits=Limits(heirs=0))], ACTOR)
    first = take(board, "a")
    assert reconcile(board).swept == [first.attempt]
    second = take(board, "a")
    done = reconcile(board)
    assert done.swept == [second.attempt] and done.closed == ["a"]
    found = state.need(board, "a")
    assert found is not None and found.state == "infrastructure" and found.verdict is not None
    assert found.verdict.attempt == second.attempt and found.claim is not None and found.claim.closed
    assert board.ref(names.opened("a")) is None
    take(board, "never")
    assert reconcile(board).closed == ["never"]
    tasks.reopen(board, ["a"], ACTOR)
    third = take(board, "a")
    assert third.life == 1
    done = reconcile(board)
    assert done.swept == [third.attempt] and not done.closed  # a new life has its own heirs


def test_R11_a_dead_holder_on_this_host_is_recovered_at_once(board: LocalBoard) -> None:
    tasks.add(board, [task("dead"), task("alive")], ACTOR)
    gone = take(board, "dead", host=dead_process())
    take(board, "alive", host=holder.mine())
    done = recover.recover(board, 60.0, ACTOR)
    assert done.swept == [gone.attempt] and done.fresh == ["alive"]


def test_a_holder_that_lives_gets_the_time_its_task_may_take(board: LocalBoard) -> None:
    tasks.add(board, [task("a", limits=Limits(seconds=100.0, check_seconds=50.0))], ACTOR)
    take(board, "a", host=holder.mine())
    lease = observe.lease(True, board.beat_seconds)
    assert not reconcile(board, lease + 149).swept
    assert reconcile(board, lease + 151).swept


def test_R12_a_claim_dated_2099_is_reclaimed_by_what_was_observed(board: LocalBoard) -> None:
    tasks.add(board, [task("t1"), task("t2")], ACTOR)
    raw(board, names.claim("t1"), "claim t1\nharness: opencode\natt-future-abc123", at=4_080_000_000)
    raw(board, names.claim("t2"), "claim t2\nharness: opencode\natt-past-abc123", at=0)
    assert reconcile(board, 0.0).fresh == ["t1", "t2"]  # nor does an old date make it old
    done = reconcile(board, observe.FLOCKWORK_LEASE - 1)
    assert not done.swept and [one["task"] for one in done.aging] == ["t1", "t2"]
    assert reconcile(board, observe.FLOCKWORK_LEASE + 1).swept == ["att-future-abc123", "att-past-abc123"]


def test_R13_what_is_closed_stays_closed_until_it_is_reopened(board: LocalBoard) -> None:
    tasks.add(board, [task("a"), task("b")], ACTOR)
    claim.close(board, take(board, "a"), Outcome(False, 0, 1, "script"))
    # flockwork leaves its claim as it was, and the index of open tasks, which it does not know
    raw(board, names.claim("b"), "claim b\natt-fw-abc123")
    raw(board, names.verdict("b"), "verdict\ntask: b\nattempt: att-fw-abc123\nfixed: false\noc_rc: 0\npytest_rc: 1")
    for _ in range(3):
        done = reconcile(board)
        assert done.healthy == ["a", "b"] and not done.swept
    assert stands(board, "a") == stands(board, "b") == "failed"
    assert board.ref(names.opened("b")) is None
    tasks.reopen(board, ["a"], ACTOR)
    assert stands(board, "a") == "ready"


def test_B19_the_half_attempt_of_a_dead_flockwork_worker_is_archived_and_tried_anew(
    board: LocalBoard, kit: Kit
) -> None:
    tasks.add(board, [task("a"), task("b")], ACTOR)
    raw(board, names.claim("a"), "claim a\natt-fw-abc123")
    for name in ("a", "b"):
        board.push(Step("push", ACTOR, [Move(names.returned(name), None, kit.main())]))
    assert reconcile(board, 0.0).fresh == ["a", "b"]
    done = reconcile(board)
    assert done.swept[0] == "att-fw-abc123" and stands(board, "a") == stands(board, "b") == "ready"
    assert board.ref(names.archived(names.returned("a"), "att-fw-abc123")) == kit.main()


def test_half_attempts_are_bounded_too(board: LocalBoard) -> None:
    tasks.add(board, [task("a")], ACTOR)
    for number in range(2):
        attempt = f"att-fw-abc12{number}"
        raw(board, names.claim("a"), f"claim a\n{attempt}")
        raw(board, names.verdict("a"), f"verdict\ntask: a\nattempt: {attempt}\nfixed: true\noc_rc: 0\npytest_rc: 0")
        assert stands(board, "a") == "half"
        reconcile(board)
        assert stands(board, "a") == ("ready" if number == 0 else "infrastructure")


def test_B23_a_claim_that_cannot_be_read_is_no_dead_end(board: LocalBoard) -> None:
    tasks.add(board, [task("a")], ACTOR)
    oid = raw(board, names.claim("a"), "claim a\natt-my worker")
    done = reconcile(board)
    assert done.swept == [f"att-unknown-{oid[:6]}"] and stands(board, "a") == "ready"
    assert done.anomalies == [{"task": "a", "reason": "its claim can't be read"}]
    raw(board, names.claim("a"), "nonsense")
    assert reconcile(board).closed == ["a"]
    found = state.need(board, "a")
    assert found is not None and found.state == "infrastructure" and found.claim is not None


def test_an_attempts_id_used_twice_is_no_dead_end(board: LocalBoard) -> None:
    tasks.add(board, [task("a", limits=Limits(heirs=9))], ACTOR)
    for end in ("", ".2", ".3"):
        raw(board, names.claim("a"), "claim a\natt-fw-abc123")
        assert reconcile(board).swept == ["att-fw-abc123"]
        assert board.ref(names.archived(names.claim("a"), f"att-fw-abc123{end}")) is not None


def test_F9_an_observer_that_is_new_waits_a_whole_lease_and_what_was_seen_persists(
    board: LocalBoard, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.add(board, [task("a")], ACTOR)
    take(board, "a", host="elsewhere/boot/1/1")
    now = 1000.0
    monkeypatch.setattr("ropewalk.core.clock.monotonic", lambda: now)
    lease = observe.lease(True, board.beat_seconds)
    assert recover.recover(board, 60.0, ACTOR).fresh == ["a"]
    other = LocalBoard(kit.store)  # as another process that starts
    for _ in range(int(lease // 60)):
        now += 60.0
        assert not recover.recover(other, 60.0, ACTOR).swept
    now += 60.0
    assert len(recover.recover(other, 60.0, ACTOR).swept) == 1


def test_F10_an_observer_that_slept_evicts_nobody(board: LocalBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.add(board, [task("a")], ACTOR)
    take(board, "a", host="elsewhere/boot/1/1")
    now = 1000.0
    monkeypatch.setattr("ropewalk.core.clock.monotonic", lambda: now)
    recover.recover(board, 60.0, ACTOR)
    now += 100_000.0
    done = recover.recover(board, 60.0, ACTOR)
    assert done.fresh == ["a"] and not done.swept


def test_F10_a_beat_makes_a_claim_young(board: LocalBoard) -> None:
    tasks.add(board, [task("a")], ACTOR)
    held = take(board, "a", host="elsewhere/boot/1/1")
    seen = state.need(board, "a")
    assert seen is not None
    before = recover.mark(board, seen)
    claim.beat(board, held)
    assert recover.mark(board, seen) != before
    assert recover.ages(board, {"a": seen}, 60.0) == {"a": 0.0}


def test_F6_specs_that_flockwork_seeded_get_into_the_index(board: LocalBoard) -> None:
    raw(board, names.spec("seeded"), "spec seeded\n\ndo it\nverify: true")
    assert "seeded" not in state.look(board)
    assert reconcile(board).tidied == [names.opened("seeded")]
    assert state.look(board)["seeded"].state == "ready"
    assert not reconcile(board).tidied


def test_F19_locks_and_places_without_their_attempt_go(board: LocalBoard) -> None:
    tasks.add(board, [task("a", region="r"), task("b", region="r2")], ACTOR)
    held = take(board, "b")
    raw(board, names.lock("r"), "lock r\ntask: a\nattempt: att-gone-abc123")
    raw(board, f"{names.QUEUE}main/0000000007.a", "queue\nattempt: att-gone-abc123")
    raw(board, f"{names.QUEUE}main/0000000008.b", f"queue\nattempt: {held.attempt}")
    assert stands(board, "a") == "waiting"
    done = reconcile(board, 0.0)
    assert done.tidied == [names.lock("r"), f"{names.QUEUE}main/0000000007.a"]
    assert stands(board, "a") == "ready" and board.ref(names.lock("r2")) is not None


def test_F8_what_flockwork_would_do_wrongly_stays_hidden_when_it_is_open_again(kit: Kit) -> None:
    board = LocalBoard(kit.store)
    tasks.init(board, ACTOR, mixed=True)
    tasks.add(board, [task("a"), task("b", needs=("a",)), task("c", owns=("x/*",))], ACTOR)
    held = take(board, "a")
    claim.close(board, held, Outcome(True, 0, 0, "script"), kit.main())
    assert board.ref(names.spec("b")) is None
    assert reconcile(board).tidied == [names.held("b"), names.spec("b")]
    assert board.ref(names.spec("b")) is not None and board.ref(names.spec("c")) is None
    for end in ("evict", "release", "reopen"):
        held = take(board, "c")
        assert board.ref(names.spec("c")) is not None
        if end == "evict":
            assert reconcile(board).swept == [held.attempt]
        elif end == "release":
            claim.release(board, held)
        else:
            claim.close(board, held, Outcome(False, 0, 1, "script"))
            tasks.reopen(board, ["c"], ACTOR)
        assert board.ref(names.spec("c")) is None and board.ref(names.held("c")) is not None, end
        assert stands(board, "c") == "ready"


def test_B22_sweep_refuses_what_is_done_and_what_is_held(board: LocalBoard, kit: Kit) -> None:
    tasks.add(board, [task("a"), task("b"), task("c")], ACTOR)
    claim.close(board, take(board, "a"), Outcome(True, 0, 0, "script"), kit.main())
    held = take(board, "b", host=holder.mine())
    gone = take(board, "c", host=dead_process())
    with pytest.raises(InvalidError, match="a is done"):
        recover.sweep(board, "a", ACTOR)
    with pytest.raises(ClaimedError, match=held.attempt):
        recover.sweep(board, "b", ACTOR)
    assert recover.sweep(board, "c", ACTOR).att == gone.attempt
    again = recover.sweep(board, "c", ACTOR)
    assert again.archived == again.deleted == []
    done = recover.sweep(board, "a", ACTOR, force=True)
    assert set(done.deleted) == {names.claim("a"), names.returned("a"), names.verdict("a")}
    assert recover.sweep(board, "b", ACTOR, force=True).att == held.attempt
    assert {stands(board, name) for name in "abc"} == {"ready"}


def test_relabel_gives_archived_refs_their_attempt(board: LocalBoard) -> None:
    raw(board, f"{names.ARCHIVE}claims/a@unknown", "claim a\natt-fw-abc123")
    raw(board, f"{names.ARCHIVE}verdicts/a@unknown", "verdict\ntask: a\nattempt: att-fw-abc123\nfixed: false")
    raw(board, f"{names.ARCHIVE}claims/b@unknown", "nothing to see")
    raw(board, f"{names.ARCHIVE}claims/c@unknown", "claim c\natt-fw-abc123")
    raw(board, f"{names.ARCHIVE}claims/c@att-fw-abc123", "claim c\nkind: x\natt-fw-abc123")
    done = recover.relabel(board, ACTOR)
    assert [one["from"] for one in done.relabeled] == [
        f"{names.ARCHIVE}claims/a@unknown", f"{names.ARCHIVE}verdicts/a@unknown"
    ]  # fmt: skip
    assert board.ref(f"{names.ARCHIVE}verdicts/a@att-fw-abc123") is not None
    assert [one["ref"] for one in done.skipped] == [
        f"{names.ARCHIVE}claims/b@unknown", f"{names.ARCHIVE}claims/c@unknown"
    ]  # fmt: skip
    assert not done.errors


def test_strays_are_named_and_left(board: LocalBoard, kit: Kit) -> None:
    raw(board, names.claim("nobody"), "claim nobody\natt-fw-abc123")
    raw(board, names.integrated("nobody"), "integrated\ntask: nobody")
    done = reconcile(board)
    assert {one["task"] for one in done.anomalies} == {"nobody"} and len(done.anomalies) == 2
    assert board.ref(names.claim("nobody")) is not None


def test_places_in_a_queue_are_read_whatever_the_names_hold() -> None:
    assert tidy.queued(f"{names.QUEUE}main/0000000001.run.one") == "run.one"
    assert tidy.queued(f"{names.QUEUE}release/1.2/0000000001.a/b") == "a/b"
    assert tidy.queued(f"{names.QUEUE}main/strange") == ""
    assert now_object("x").id
