"""Landing on a shared board: what waits in its queue is checked and landed by one worker at a time, for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.work.sharedkit import Shared, Worker, answers, start, until

from ropewalk.board import holder, lease, names, queue
from ropewalk.run.work.landing import Result

MakeWorker = Callable[..., Worker]


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    """Gives a board on a path."""
    return Shared(tmp_path)


@pytest.fixture
def worker(shared: Shared) -> Iterator[MakeWorker]:
    """Gives a way to make workers in this process."""
    made: list[Worker] = []

    def make(name: str = "w1", **how: Any) -> Worker:
        made.append(Worker(shared, name, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Land(threading.Thread):
    """Is a land in a thread with a worker of its own, which gives `result`."""

    def __init__(self, shared: Shared, task: str, files: dict[str, str] | None = None, **how: Any) -> None:
        super().__init__(daemon=True)
        self.shared, self.task, self.files, self.how = shared, task, files, how
        self.result: Result | None = None
        self.seconds = 0.0
        self.worker: Worker | None = None
        self.start()

    def run(self) -> None:
        self.worker = Worker(self.shared, f"w-{self.task}", **self.how)
        self.worker.take(self.task)
        change = self.worker.change(self.task, self.files)
        began = time.monotonic()
        self.result = self.worker.land(self.task, change=change)
        self.seconds = time.monotonic() - began
        self.worker.close()

    def end(self, seconds: float = 60) -> Result:
        """Waits for the end and gives the result."""
        self.join(seconds)
        assert self.result is not None, f"{self.task} has not ended"
        return self.result


def queued(shared: Shared, target: str = "main") -> list[str]:
    """Gives the tasks that wait, in order."""
    return [ref.rsplit("/", 1)[1].split(".", 1)[1] for ref in shared.git(
        "for-each-ref", "--format=%(refname)", f"{names.QUEUE}{target}/"
    ).split()]  # fmt: skip


class Closed:
    """Is the landing lease in the hands of somebody who lives and does nothing, so that changes gather in the queue."""

    def __init__(self, shared: Shared, target: str = "main") -> None:
        self.board = shared.board("door")
        self.board.refresh()
        found = lease.take(self.board, target, "att-door-000000", holder.mine(), "test/door", 1.0)
        assert found is not None
        self.lease = found

    def open(self) -> None:
        """Lets the lease go."""
        lease.release(self.board, self.lease)
        self.board.close()


def test_a_change_lands_with_return_verdict_and_closing_claim(shared: Shared, worker: MakeWorker) -> None:
    shared.add("a", region="core")
    one = worker()
    result = one.do("a")
    assert result.how == "landed", result
    assert result.commit == shared.main()[-1] == shared.git("rev-parse", names.returned("a"))
    verdict = shared.verdict("a")
    assert verdict.fixed and verdict.values["landed"] == result.commit
    assert verdict.values["tree"] == shared.git("rev-parse", "main^{tree}") == result.tree
    assert shared.git("log", "-1", "--format=%s|%(trailers:key=Attempt,valueonly)", "main").split("|") == [
        "fix a", verdict.attempt
    ]  # fmt: skip
    assert "closed: " in shared.git("log", "-1", "--format=%B", names.claim("a"))
    assert shared.state("a") == "done" and not shared.git("for-each-ref", names.opened("a"))
    assert [name for name, _ in one.store.refs("refs/board/")] == [one.landing.ref("main")]
    shared.lawful()


def test_eight_processes_land_sixteen_disjoint_changes(shared: Shared) -> None:
    ids = [f"t{n:02d}" for n in range(16)]
    shared.add(*ids)
    children = [start(shared, f"w{n}", ids[n], ids[n + 8], host=("one", "two")[n % 2]) for n in range(8)]
    said = answers(children)
    assert [one["how"] for one in said] == ["landed"] * 16, said
    assert sorted(shared.landed()) == ids
    shared.lawful()


def test_a_conflict_and_a_failure_in_the_queue_keep_back_nobody(shared: Shared) -> None:
    broken = {"b": {"common": "two\n"}, "c": {"broken": "x\n"}}
    shared.add("a", "b", "c", "d", check=shared.logged("echo looked; test ! -e broken"))
    door = Closed(shared)
    lands: dict[str, Land] = {}
    for task in "abcd":
        lands[task] = Land(shared, task, {"a": {"common": "one\n"}, **broken}.get(task))
        until(lambda: len(queued(shared)) == len(lands))
    assert queued(shared) == ["a", "b", "c", "d"]
    door.open()
    results = {task: one.end() for task, one in lands.items()}
    assert {task: one.how for task, one in results.items()} == {
        "a": "landed", "b": "conflict", "c": "failed", "d": "landed"
    }  # fmt: skip
    report = results["b"].report
    assert report is not None and [one["path"] for one in report["files"]] == ["common"]
    assert results["c"].rc == 1 and "looked" in results["c"].words and len(results["c"].tree) == 40
    assert shared.landed() == ["a", "d"] and shared.state("c") == "claimed" and queued(shared) == []
    # its owner mends it, and lands with the same claim
    mended = Worker(shared, "w-b")
    assert lands["b"].worker is not None
    mended.leases = lands["b"].worker.leases
    assert mended.land("b", {"common": "both\n"}).how == "landed"
    mended.close()
    shared.lawful()


def test_a_head_that_a_person_moves_meanwhile_is_landed_on_again(shared: Shared) -> None:
    gate = shared.folder / "gate"
    shared.add("a", check=shared.logged(f"until test -e {gate}; do sleep 0.05; done"))
    landing = Land(shared, "a")
    until(lambda: list((shared.folder / "run").glob("check-*")))
    by_hand = shared.plain_push({"person": "x\n"})
    gate.touch()
    result = landing.end()
    assert result.how == "landed" and shared.main()[-2:] == [by_hand, result.commit]
    assert len(shared.checks()) == 2, "once on each head"
    shared.lawful()


def test_a_heartbeat_of_another_between_look_and_push_costs_nothing_but_a_look(shared: Shared) -> None:
    gate = shared.folder / "gate"
    shared.add("a", "b", check=shared.logged(f"until test -e {gate}; do sleep 0.05; done"))
    door = Closed(shared)
    lands = [Land(shared, "a")]
    until(lambda: queued(shared) == ["a"])
    lands.append(Land(shared, "b"))
    until(lambda: queued(shared) == ["a", "b"])
    door.open()
    until(lambda: list((shared.folder / "run").glob("check-*")))
    beating = lands[1].worker
    assert beating is not None
    with beating.leases["b"].still() as held:
        board = shared.board("heart")
        board.refresh()
        new = board.beat({"b": held.claim}, "test/b")["b"]
        assert new is not None
        beating.leases["b"].set(held._replace(claim=new))
        board.close()
    gate.touch()
    assert [one.end().how for one in lands] == ["landed", "landed"]
    assert len(shared.checks()) == 2, "the checks were not run again"
    shared.lawful()


def test_a_place_whose_attempt_lost_its_claim_is_passed_over_and_taken_away(shared: Shared, worker: MakeWorker) -> None:
    shared.add("a", "b")
    one = worker("w1")
    held = one.take("a")
    change = one.change("a")
    one.store.expose()
    one.board.lend(f"{one.store.layout.repo}/objects")
    wanted = queue.Wanted(change.change, one.store.objects.commit(change.change).tree, change.base, "true", 9.0,
                          change.outcome)  # fmt: skip
    queue.put(one.board, held, wanted)
    shared.git("update-ref", "-d", names.claim("a"))
    assert queued(shared) == ["a"]
    assert worker("w2").do("b").how == "landed"
    assert shared.landed() == ["b"] and queued(shared) == []


def test_who_is_to_end_leaves_the_queue(shared: Shared, worker: MakeWorker) -> None:
    shared.add("a")
    door = Closed(shared)
    landing = Land(shared, "a")
    until(lambda: queued(shared) == ["a"])
    began = time.monotonic()
    assert landing.worker is not None
    landing.worker.stop.set()
    assert landing.end().how == "stopped"
    assert time.monotonic() - began < 5 and queued(shared) == [] and shared.state("a") == "claimed"
    door.open()


def test_who_is_to_end_while_landing_for_others_lets_the_lease_go(shared: Shared) -> None:
    gate = shared.folder / "gate"
    shared.add("a", "b", check=shared.logged(f"until test -e {gate}; do sleep 0.05; done"))
    first = Land(shared, "a")
    until(lambda: list((shared.folder / "run").glob("check-*")))
    second = Land(shared, "b")
    until(lambda: queued(shared) == ["a", "b"])
    assert first.worker is not None
    first.worker.stop.set()
    assert first.end(5).how == "stopped"
    gate.touch()
    assert second.end().how == "landed", second.end()
    assert shared.landed() == ["b"]
    shared.lawful()


def test_a_change_that_is_there_already_is_told_so(shared: Shared, worker: MakeWorker) -> None:
    shared.add("a")
    one = worker()
    one.take("a")
    change = one.change("a", {"same": "x\n"})
    shared.plain_push({"same": "x\n"})
    assert one.land("a", change=change).how == "unchanged"
    assert queued(shared) == [] and shared.state("a") == "claimed"


@pytest.mark.race
@pytest.mark.parametrize("count", [8, pytest.param(32, marks=pytest.mark.slow)])
def test_F7_waiting_changes_need_one_check_each_and_land_in_order(shared: Shared, count: int) -> None:
    ids = [f"t{n:02d}" for n in range(count)]
    shared.add(*ids, check=shared.logged(f"sleep {count / 64}"))
    door = Closed(shared)
    lands = [Land(shared, one, host=("one", "two")[n % 2]) for n, one in enumerate(ids)]
    until(lambda: len(queued(shared)) == count, 120)
    order = queued(shared)
    door.open()
    assert {one.end(180).how for one in lands} == {"landed"}
    # who came first waited for nobody who came later
    assert shared.landed() == order
    assert len(shared.checks()) <= 1.3 * count
    holders = [facts["waiting"] for one in lands if one.worker for kind, facts in one.worker.events
               if kind == "landing_batch"]  # fmt: skip
    assert sum(holders) <= 1.3 * count, "a holder landed for others what waited, and then passed the lease on"
    shared.lawful()


def test_a_return_that_is_there_already_refuses_that_change_alone(shared: Shared, worker: MakeWorker) -> None:
    shared.add("a", "b")
    door = Closed(shared)
    first = Land(shared, "a")
    until(lambda: queued(shared) == ["a"])
    second = Land(shared, "b")
    until(lambda: queued(shared) == ["a", "b"])
    shared.git("update-ref", names.returned("a"), "main")
    door.open()
    assert first.end().how == "refused" and "tasks/a" in first.end().words
    assert second.end().how == "landed", second.end()
    assert shared.landed() == ["b"]


def test_a_branch_that_is_gone_refuses_what_waits_for_it(shared: Shared) -> None:
    shared.git("branch", "side", "main")
    shared.add("a", target="side")
    door = Closed(shared, "side")
    landing = Land(shared, "a")
    until(lambda: queued(shared, "side") == ["a"])
    shared.git("branch", "-D", "side")
    door.open()
    result = landing.end()
    assert result.how == "refused" and "side" in result.words


def test_two_targets_are_landed_on_at_the_same_time(shared: Shared) -> None:
    shared.git("branch", "side", "main")
    shared.add("a")
    shared.add("b", target="side")
    door = Closed(shared)
    waiting = Land(shared, "a")
    assert Land(shared, "b").end().how == "landed"
    assert shared.landed() == [] and shared.git("log", "-1", "--format=%s", "side") == "fix b"
    door.open()
    assert waiting.end().how == "landed"
    shared.lawful(everything_checked=False)
