"""Deaths of workers: told to end, killed at each step, stopped and woken; what they held is recovered by any other."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
from tests.work.workkit import WorkKit, task

from ropewalk.board import names, observe, recover, takeover
from ropewalk.core import clock
from ropewalk.plan.task import Limits

_FIRST = """if mkdir "{folder}/first" 2>/dev/null; then
  echo x > "{folder}/began"; cat "{folder}/gate" > /dev/null; echo old > f
else echo new > f; fi"""


def blocked(folder: Path) -> str:
    """Gives a script whose first run waits at a gate and writes `old`; later ones write `new`."""
    os.mkfifo(folder / "gate")
    os.mkfifo(folder / "began")
    return _FIRST.format(folder=folder)


def began(folder: Path) -> None:
    """Waits until the first run is at its gate."""
    assert (folder / "began").read_text() == "x\n"


def ends_soon(process: object, bench: WorkKit) -> None:
    """Sends SIGTERM and holds that the worker is gone within five seconds, with all that belonged to it."""
    from tests.work.workkit import Process

    assert isinstance(process, Process)
    at = time.monotonic()
    process.kill(signal.SIGTERM)
    assert process.end() == 0, process.words()
    assert time.monotonic() - at < 5
    assert process.report["ended"] == "stopped"
    assert bench.leftovers() == []


def test_R10_sigterm_while_the_agent_works(bench: WorkKit, tmp_path: Path) -> None:
    bench.add(task("one", f"(sleep 300 &) ; {blocked(tmp_path)}"))
    process = bench.start()
    began(tmp_path)
    ends_soon(process, bench)
    assert bench.state("one") == "ready" and bench.archived("one")[0].startswith("released")
    bench.work("w2")
    assert bench.files()["f"] == "new\n"
    bench.lawful()


def test_R10_sigterm_while_the_check_runs(bench: WorkKit, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "checking")
    check = f'test -e "{tmp_path}/free" || {{ echo x > "{tmp_path}/checking"; sleep 300; }}'
    bench.add(task("one", "echo x > f", check))
    process = bench.start()
    (tmp_path / "checking").read_text()
    ends_soon(process, bench)
    assert bench.state("one") == "ready" and "f" not in bench.files()
    (tmp_path / "free").touch()
    bench.work("w2")
    assert bench.state("one") == "done" and len(bench.fixes("one")) == 1
    bench.lawful()


@pytest.mark.parametrize("moment", ["claim", "dispatch_started", "agent_ended", "landing", "attempted"])
def test_R10_sigterm_between_two_steps(bench: WorkKit, moment: str) -> None:
    bench.add(task("one", "echo x > f", "sleep 0.3"), task("two", "echo x > g", "sleep 0.3"))
    process = bench.start()
    process.until(moment)
    ends_soon(process, bench)
    assert {bench.state("one"), bench.state("two")} <= {"ready", "done"}
    bench.lawful()
    bench.work("w2")
    assert bench.state("one") == bench.state("two") == "done"
    assert len(bench.fixes("one")) == len(bench.fixes("two")) == 1
    bench.lawful()


def test_R10_sigterm_while_it_waits_for_tasks(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f"))
    process = bench.start(until_empty=False)
    process.until("attempted")
    ends_soon(process, bench)


@pytest.mark.parametrize("step", ["claim", "dispatch_started", "agent_ended", "landing", "verdict"])
def test_B14_R11_killed_at_a_step_and_recovered_by_another(bench: WorkKit, step: str) -> None:
    bench.add(task("one", "echo x > f", "test -f f"))
    process = bench.start(die_at=step)
    assert process.end() == -signal.SIGKILL
    assert bench.state("one") == ("done" if step == "verdict" else "claimed")
    other = bench.work("w2")
    assert bench.state("one") == "done" and len(bench.fixes("one")) == 1
    assert len(other.kinds("eviction")) == (step in ("claim", "dispatch_started"))
    assert len(other.kinds("takeover")) == (step in ("agent_ended", "landing"))
    assert bench.leftovers() == []
    bench.lawful()


def test_B7_R11_a_worker_killed_with_its_agent_at_work(bench: WorkKit, tmp_path: Path) -> None:
    """The agent outlives its worker; whoever can't go on with it ends it, so that it can't write any more."""
    bench.add(task("one", blocked(tmp_path)))
    process = bench.start()
    began(tmp_path)
    process.kill(signal.SIGKILL)
    process.end()
    assert any(left.startswith("process") for left in bench.leftovers())
    for left in bench.data.glob("ropewalk/*/work/*/progress.json"):
        left.write_bytes(b"{")
    bench.work("w2")
    assert bench.leftovers() == [] and bench.files()["f"] == "new\n"
    assert "dead" in bench.archived("one")[0]
    bench.lawful()


def test_B14_killed_while_its_check_runs(bench: WorkKit, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "checking")
    check = f'test -e "{tmp_path}/free" || {{ echo x > "{tmp_path}/checking"; sleep 300; }}'
    bench.add(task("one", "echo x > f", check))
    process = bench.start()
    (tmp_path / "checking").read_text()
    process.kill(signal.SIGKILL)
    process.end()
    (tmp_path / "free").touch()
    bench.work("w2")
    assert bench.state("one") == "done" and len(bench.fixes("one")) == 1
    assert bench.leftovers() == []
    bench.lawful()


def test_B8_workers_that_a_task_kills_are_bounded(bench: WorkKit) -> None:
    """A task that takes its worker along ends as infrastructure, and never as a failure by merit."""
    bench.add(task("poison", "echo x > f"))
    for number in range(2 * (1 + takeover.MOST)):
        process = bench.start(f"w{number}", die_at="landing")
        assert process.end() == -signal.SIGKILL
        assert bool(process.kinds("takeover")) == bool(number % (1 + takeover.MOST))
    bench.work("w9")
    assert bench.state("poison") == "infrastructure" and len(bench.archived("poison")) == 1
    assert bench.leftovers() == []
    bench.lawful()


def test_R7_a_worker_that_slept_lands_nothing_and_goes_on(bench: WorkKit, tmp_path: Path) -> None:
    bench.add(task("one", blocked(tmp_path)))
    sleeper = bench.start("sleeper")
    began(tmp_path)
    sleeper.kill(signal.SIGSTOP)
    recover.evict(bench.board, bench.status("one"), "test/one", "it was silent")
    bench.work("w2")
    assert bench.files()["f"] == "new\n"
    bench.add(task("two", "echo x > g"))
    (tmp_path / "gate").write_text("go\n")
    sleeper.kill(signal.SIGCONT)
    assert sleeper.end() == 0
    assert [(t["task"], t["how"]) for t in sleeper.report["tasks"]] == [("one", "fenced"), ("two", "landed")]
    assert bench.files()["f"] == "new\n" and len(bench.fixes("one")) == 1
    assert bench.leftovers() == []
    bench.lawful()


def test_F10_a_lost_claim_ends_its_agent(bench: WorkKit, tmp_path: Path) -> None:
    """A beat that finds the claim gone ends the agent at once, and not only when it wants to land."""
    bench.add(task("one", blocked(tmp_path)))
    worker = bench.start("w1", beat=0.1)
    began(tmp_path)
    recover.evict(bench.board, bench.status("one"), "test/one", "by hand")
    worker.until("attempted", task="one", how="fenced")
    assert worker.end() == 0
    assert bench.files()["f"] == "new\n"
    bench.lawful()


def test_B5_R11_a_long_call_is_kept_alive_by_heartbeats(bench: WorkKit, tmp_path: Path) -> None:
    bench.add(task("one", blocked(tmp_path)))
    worker = bench.start("w1", beat=0.05)
    began(tmp_path)
    claim = bench.board.ref(names.claim("one"))
    assert claim is not None
    until = time.monotonic() + 30
    while bench.board.beats(claim) < 5:
        assert time.monotonic() < until, "no beats came"
        os.sched_yield()
    other = bench.start("w2", patience=0.3, look_seconds=0.1)
    assert other.end() == 10, "a live holder is not evicted"
    (tmp_path / "gate").write_text("go\n")
    assert worker.end() == 0
    assert bench.files()["f"] == "old\n"
    bench.lawful()


def test_R12_a_claim_whose_date_is_far_off_ends_with_its_lease(mixed: WorkKit) -> None:
    """Its age is what this host saw, and no date counts; what was seen before this process began counts too."""
    mixed.add(task("one", "echo x > f"))
    text = "claim one\nharness: opencode\natt-other-123456"
    oid = mixed.raw(names.claim("one"), text.encode(), at=4_070_908_800)
    seen = recover.mark(mixed.board, mixed.status("one"))
    assert oid in seen
    process = mixed.work("w1", patience=0, exit=10)
    assert "one (att-other-123456)" in process.report["reason"] and process.report["left"][0]["task"] == "one"
    known = {"boot": clock.boot_id(), "at": clock.monotonic(), "seen": {"one": {"mark": seen, "age": 1801.0}}}
    Path(mixed.board.folder, "observed.json").write_bytes(msgspec.json.encode(known))
    assert observe.FLOCKWORK_LEASE < 1801
    process = mixed.work("w1")
    assert process.kinds("lease_expired") and mixed.state("one") == "done"
    mixed.lawful()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4 if os.environ.get("RWTEST_FULL") else 1))
def test_B14_R11_killed_at_any_moment_nothing_is_lost_or_done_twice(bench: WorkKit, seed: int) -> None:
    """Two workers at a time, one of them killed again and again, at times that nobody chose."""
    import random
    import subprocess

    draw = random.Random(seed)
    count = 12
    bench.add(
        *(task(f"t{n:02}", f"echo {n} > f{n:02}", f"test -f f{n:02}", limits=Limits(heirs=50)) for n in range(count))
    )
    kills = 0
    while {bench.state(f"t{n:02}") for n in range(count)} != {"done"}:
        victim, other = bench.start(f"v{kills}"), bench.start(f"o{kills}", once=True, until_empty=False)
        try:
            victim.child.wait(timeout=draw.uniform(0.3, 3.0))
        except subprocess.TimeoutExpired:
            victim.kill(signal.SIGKILL)
        victim.end()
        assert other.end() == 0, other.words()
        kills += 1
        bench.lawful()
        assert kills < 60
    bench.work("last")
    assert all(len(bench.fixes(f"t{n:02}")) == 1 for n in range(count))
    assert bench.files() == {"README.md": "# Demo\n", **{f"f{n:02}": f"{n}\n" for n in range(count)}}
    assert bench.leftovers() == []
