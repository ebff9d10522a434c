"""The loop: which task is taken, when a worker waits, and why it ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.work.workkit import WorkKit, task

from ropewalk.board import names, wire
from ropewalk.core.errors import InvalidError
from ropewalk.plan.task import Limits
from ropewalk.run.work.choice import Choice
from ropewalk.run.work.presence import Presence


def test_R3_four_workers_do_sixteen_tasks_once_each(bench: WorkKit) -> None:
    bench.add(*(task(f"t{n:02}", f"echo {n} > f{n:02}", f"test -f f{n:02}") for n in range(16)))
    workers = [bench.start(f"w{n}") for n in range(4)]
    assert [worker.end() for worker in workers] == [0] * 4, [w.words() for w in workers]
    assert {bench.state(f"t{n:02}") for n in range(16)} == {"done"}
    assert bench.files() == {"README.md": "# Demo\n", **{f"f{n:02}": f"{n}\n" for n in range(16)}}
    assert all(len(bench.fixes(f"t{n:02}")) == 1 for n in range(16))
    ended = [t for w in workers for t in w.report.get("tasks", ())]
    assert len(ended) == 16 and {t["how"] for t in ended} == {"landed"}
    assert bench.leftovers() == [] and os.listdir(Path(bench.board.folder, "workers")) == []
    bench.lawful()


def test_jobs_are_threads_of_one_worker(bench: WorkKit, tmp_path: Path) -> None:
    """Both agents wait for each other, so they have to be at work together."""
    (tmp_path / "there").mkdir()
    wait = (
        'touch "{0}/there/$ROPEWALK_TASK"; while [ $(ls "{0}/there" | wc -l) -lt 2 ]; do sleep 0.02; done; echo x > {1}'
    )
    bench.add(task("one", wait.format(tmp_path, "f")), task("two", wait.format(tmp_path, "g")))
    bench.add(task("three", "echo x > h", needs=("one", "two")))
    process = bench.work(jobs=2)
    assert sorted(bench.files()) == ["README.md", "f", "g", "h"]
    assert len(process.report["tasks"]) == 3
    bench.lawful()


def test_R25_devflock_B24_needs_priority_and_age_order_the_tasks(bench: WorkKit) -> None:
    bench.add(task("late", "echo x >> log", priority=-1))
    bench.add(task("leaf", "echo x >> log", needs=("root",)), task("root", "echo x >> log"))
    bench.add(task("alone", "echo x >> log"))
    bench.add(task("urgent", "echo x >> log", priority=5))
    process = bench.work()
    assert [e["task"] for e in process.kinds("claim")][:2] == ["urgent", "root"]
    assert [e["task"] for e in process.kinds("claim")][-1] == "late"
    assert bench.files()["log"] == "x\n" * 5


def test_what_needs_a_task_that_failed_is_left_and_named(bench: WorkKit) -> None:
    bench.add(task("root", "echo x > f", "false", limits=Limits(attempts=1)), task("leaf", "true", needs=("root",)))
    process = bench.work()
    assert process.report["left"] == [{"task": "leaf", "state": "waiting", "why": "it needs root, which failed"}]


def test_F19_devflock_B2_tasks_of_a_region_are_done_one_at_a_time(bench: WorkKit, tmp_path: Path) -> None:
    """Of each of two regions: by one worker with several jobs, and by others beside it."""
    regions = ("one", "two")
    logs = {region: tmp_path / region for region in regions}
    for n in range(6):
        region = regions[n % 2]
        script = f"echo in >> {logs[region]}; sleep 0.1; echo out >> {logs[region]}; echo x > f{n}"
        bench.add(task(f"t{n}", script, region=region))
    workers = [bench.start(f"w{n}", jobs=1 + 2 * (n == 0)) for n in range(3)]
    assert [worker.end() for worker in workers] == [0] * 3
    assert [log.read_text().split() for log in logs.values()] == [["in", "out"] * 3] * 2
    assert {bench.state(f"t{n}") for n in range(6)} == {"done"}
    bench.lawful()


def test_F9_until_empty_names_the_claims_that_it_did_not_wait_for(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f"), task("two", "echo x > g"))
    bench.take("one", "other", host="another-host/boot/1/2")
    process = bench.work(patience=0.2, exit=10)
    assert process.report["ended"] == "claims_left" and "one (att-other-" in process.report["reason"]
    assert bench.state("two") == "done" and bench.state("one") == "claimed"
    bench.lawful()


def test_until_empty_waits_for_a_claim_that_ends(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f"), task("two", "echo x > g", needs=("one",)))
    held = bench.take("one", "other", host="another-host/boot/1/2")
    process = bench.start()
    bench.done("one", "other", held=held)
    assert process.end() == 0
    assert [t["task"] for t in process.report["tasks"]] == ["two"]


def test_once_does_one_task(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f"), task("two", "echo x > g"))
    process = bench.work(once=True, until_empty=False)
    assert process.report["ended"] == "once" and len(process.report["tasks"]) == 1


def test_a_worker_watches_until_it_is_told_to_end(bench: WorkKit) -> None:
    import signal

    process = bench.start(until_empty=False)
    bench.add(task("one", "echo x > f"))
    process.until("attempted", task="one")
    bench.add(task("two", "echo x > g"))
    process.until("attempted", task="two")
    process.kill(signal.SIGINT)
    assert process.end() == 0 and process.report["ended"] == "stopped"


def test_tasks_of_flockwork_are_found_without_our_index(mixed: WorkKit) -> None:
    mixed.raw(names.spec("theirs"), b"spec theirs\n\nDo it.\n\n#!sh\necho x > f\n#!end\nverify: test -f f\n")
    process = mixed.work()
    assert [t["how"] for t in process.report["tasks"]] == ["landed"]
    assert mixed.state("theirs") == "done"
    mixed.lawful()


def test_only_named_tasks_and_own_harness(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f"), task("two", "echo x > g"), task("three", "true", harness="codex"))
    bench.work(only=["two", "three"])
    assert (bench.state("one"), bench.state("two"), bench.state("three")) == ("ready", "done", "ready")


def test_F27_a_newer_law_ends_the_worker_before_it_claims(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f"))
    law = bench.board.ref(names.LAW)
    assert law is not None
    bench.write(names.LAW, wire.law_words(wire.LAW + 1, mixed=False), over=law)
    process = bench.work(exit=1)
    assert "E_UNSUPPORTED" in process.report["reason"] and process.kinds("claim") == []


def test_F27_a_newer_law_ends_it_before_it_lands(bench: WorkKit, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    os.mkfifo(tmp_path / "began")
    bench.add(task("one", f"echo x > {tmp_path}/began; cat {tmp_path}/gate; echo x > f"))
    process = bench.start()
    (tmp_path / "began").read_text()
    law = bench.board.ref(names.LAW)
    bench.write(names.LAW, wire.law_words(wire.LAW + 1, mixed=False), over=law)
    (tmp_path / "gate").write_text("go\n")
    assert process.end() == 1 and "E_UNSUPPORTED" in process.report["reason"]
    assert "f" not in bench.files() and bench.board.ref(names.claim("one")) is None
    assert bench.leftovers() == []


def test_R22_a_worker_s_name_is_checked_first(bench: WorkKit) -> None:
    process = bench.start("my worker")
    assert process.end() == 2
    assert process.events[-1]["code"] == InvalidError.code


def test_idle_workers_begin_at_different_tasks(bench: WorkKit, tmp_path: Path) -> None:
    bench.add(*(task(f"t{n}", "true") for n in range(8)))
    statuses = [bench.status(f"t{n}") for n in range(8)]
    present = [Presence(str(tmp_path)) for _ in range(4)]
    choices = [Choice(one) for one in present]
    groups = [choice.ordered(statuses, [s.id for s in statuses]) for choice in choices]
    assert all([s.id for s in found] == [f"t{n}" for n in range(8)] for (found,) in groups)
    taken = [choice.pick(group[0], busy=0).id for choice, group in zip(choices, groups, strict=True)]
    assert sorted(taken) == ["t0", "t1", "t2", "t3"]
    for one in present[1:]:
        one.close()
    assert choices[0].pick(list(statuses), busy=0).id == "t0", "a worker that is alone takes the oldest"
    present[0].close()


@pytest.mark.slow
def test_R3_many_workers_lose_no_correct_fix(bench: WorkKit) -> None:
    bench.add(*(task(f"t{n:02}", f"echo {n} > f{n:02}", f"test -f f{n:02}") for n in range(64)))
    workers = [bench.start(f"w{n}") for n in range(32)]
    assert [worker.end() for worker in workers] == [0] * 32
    assert {bench.state(f"t{n:02}") for n in range(64)} == {"done"}
    assert len(bench.files()) == 65
    bench.lawful()
