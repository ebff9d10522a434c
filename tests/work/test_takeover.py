"""Takeovers: a worker was killed, and the next one goes on with its attempts; agents run once, nothing is lost.

Any worker of the host does so, of the same name or another; of two that want it one gets it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.work.test_deaths import began, blocked
from tests.work.workkit import Process, WorkKit, task

from ropewalk.board import names, takeover, wire
from ropewalk.board.base import words
from ropewalk.board.claim import As
from ropewalk.core.errors import FencedError
from ropewalk.lane import journal, supervisor
from ropewalk.run.work import progress
from ropewalk.store.store import Store


def wait(until: Any, seconds: float = 20) -> None:
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


def killed(bench: WorkKit, process: Process) -> None:
    """Kills a worker."""
    process.kill(signal.SIGKILL)
    assert process.end() == -signal.SIGKILL


def lane(bench: WorkKit) -> str:
    """Gives the folder of the only lane."""
    with Store(bench.kit.root) as store:
        (found,) = journal.lanes(store)
        return found.record.folder


@pytest.mark.parametrize("worker", ["w1", "w2"])
def test_G4_an_attempt_goes_on_when_its_worker_was_killed(bench: WorkKit, tmp_path: Path, worker: str) -> None:
    """The agent goes on, its words are told once, and attempt, claim and land are as if nothing had happened."""
    gate = f'echo said-1\n{blocked(tmp_path)}\necho said-2; echo ran >> "{tmp_path}/runs"'
    bench.add(task("one", gate, "test -f f", region="r"))
    first = bench.start("w1")
    began(tmp_path)
    first.until("agent_message", text="said-1")
    attempt = first.kinds("claim")[0]["att"]
    folder = Path(lane(bench))
    wait(lambda: (folder / "told.json").exists())
    killed(bench, first)
    second = bench.start(worker)
    assert second.until("takeover")["att"] == attempt
    status = bench.status("one")
    assert status.claim is not None and status.claim.attempt == attempt
    assert f"/{second.child.pid}/" in status.claim.host
    (tmp_path / "gate").write_text("go\n")
    assert second.end() == 0, second.words()
    assert (tmp_path / "runs").read_text() == "ran\n" and bench.files()["f"] == "old\n"
    assert [e["text"] for e in second.kinds("agent_message")] == ["said-2"]
    assert [(t["attempt"], t["how"], t["turns"]) for t in second.report["tasks"]] == [(attempt, "landed", 1)]
    assert bench.verdict("one").attempt == attempt and bench.archived("one") == []
    assert not second.kinds("eviction") and bench.leftovers() == []
    with Store(bench.kit.root) as store:
        (found,) = journal.lanes(store)
    assert found.result is not None and (found.state, found.result.passed) == ("done", True)
    bench.lawful()


def test_G4_an_agent_that_ended_meanwhile_is_judged_by_what_it_left(bench: WorkKit, tmp_path: Path) -> None:
    bench.add(task("one", f"{blocked(tmp_path)}\necho last; exit 3", "test -f f"))
    first = bench.start("w1")
    began(tmp_path)
    folder = lane(bench)
    killed(bench, first)
    (tmp_path / "gate").write_text("go\n")
    wait(lambda: not supervisor.is_alive(folder))
    second = bench.work("w1")
    (ended,) = second.kinds("agent_ended")
    assert ended["code"] == 3 and [e["text"] for e in second.kinds("agent_message")] == ["last"]
    assert bench.files()["f"] == "old\n" and bench.said("one")["oc_rc"] == "3"
    bench.lawful()


def test_G4_of_two_workers_one_goes_on_with_it(bench: WorkKit, tmp_path: Path) -> None:
    bench.add(task("one", blocked(tmp_path)))
    first = bench.start("w1")
    began(tmp_path)
    killed(bench, first)
    others = [bench.start(f"o{number}", jobs=2, look_seconds=0.05) for number in range(3)]
    wait(lambda: "taken_over: 1" in "\n".join(_claim(bench)))
    (tmp_path / "gate").write_text("go\n")
    assert [other.end() for other in others] == [0, 0, 0]
    assert sum(len(other.kinds("takeover")) for other in others) == 1
    assert sum(len(other.kinds("eviction")) for other in others) == 0
    assert bench.files()["f"] == "old\n" and len(bench.fixes("one")) == 1
    assert bench.leftovers() == []
    bench.lawful()


def _claim(bench: WorkKit) -> tuple[str, ...]:
    found = bench.status("one").claim
    return () if found is None else found.lines


def test_F1_whoever_saw_an_older_claim_takes_nothing_over(bench: WorkKit, tmp_path: Path) -> None:
    """Two that saw the same claim: the step of the second is refused, and so is whatever the first holder does."""
    bench.add(task("one", "true"))
    held = bench.take("one", host="h/b/1/1")
    status = bench.status("one")
    assert not takeover.is_open(status, 1)  # of another host
    mine = takeover.take(bench.board, status, As("w2", "test/w2", "command", host="h/b/2/2"), 1)
    assert (mine.attempt, mine.worker) == (held.attempt, "w1")
    with pytest.raises(FencedError):
        takeover.take(bench.board, status, As("w3", "test/w3", "command", host="h/b/3/3"), 1)
    with pytest.raises(FencedError):
        bench.done("one", held=held)
    bench.done("one", held=mine)
    bench.lawful()


def test_a_holder_that_lives_or_is_of_another_boot_is_not_followed(bench: WorkKit) -> None:
    from ropewalk.board import holder

    host, boot, _, start = holder.mine().split("/")
    cases = (
        (holder.mine(), False), (f"{host}/{boot}/1/1", True), (f"{host}/0000/1/1", False), (f"x/{boot}/1/1", False),
        (f"{host}/{boot}/{2**22 + 1}/{start}", True), ("", False),
    )  # fmt: skip
    for number, (name, dead) in enumerate(cases):
        assert holder.died_here(name) is dead, name
        one = f"t{number}"
        bench.add(task(one, "true"))
        bench.take(one, host=name)
        assert takeover.is_open(bench.status(one), 1) is dead
        for turn in (1, 2):  # one that gets on is not what kills its workers
            for count in range(1, takeover.MOST + 1):
                takeover.take(bench.board, bench.status(one), As("w2", "test/w2", "command", host=name), turn)
                assert takeover.is_open(bench.status(one), turn) is (dead and count < takeover.MOST)


_CLAUDE = """#!/bin/sh
case "$*" in *--version*) echo "2.1.0 (Claude Code)"; exit;; esac
session=$(printf '%s\\n' "$*" | sed -n 's/.*--\\(session-id\\|resume\\) \\([^ ]*\\).*/\\2/p')
case "$*" in *--resume*) how=resumed;; *) how=fresh;; esac
echo "$how $session" >> "{folder}/runs"
echo '{{"type":"system","subtype":"init","session_id":"'$session'"}}'
test $how = resumed || {{ echo half > f; echo x > "{folder}/began"; cat "{folder}/gate"; }}
head -n 1 | grep -o 'You were cut off' >> "{folder}/runs"
echo more >> f
echo '{{"type":"result","subtype":"success","is_error":false,"num_turns":1,"result":"done","session_id":"'$session'"}}'
"""


@pytest.mark.parametrize("worker_too", [True, False])
def test_a_lane_whose_shim_died_goes_on_in_its_agent_s_session(
    bench: WorkKit, tmp_path: Path, worker_too: bool
) -> None:
    """A program with sessions is asked to go on in the same tree, in the same attempt, with or without its worker."""
    os.mkfifo(tmp_path / "gate")
    os.mkfifo(tmp_path / "began")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "claude").write_text(_CLAUDE.format(folder=tmp_path))
    (programs / "claude").chmod(0o755)
    bench.add(task("one", "true", "test -f f"))
    options: dict[str, Any] = {"harness": "claude", "env": {"PATH": f"{programs}:{os.environ['PATH']}"}}
    first = bench.start("w1", **options)
    began(tmp_path)
    folder = lane(bench)
    if worker_too:
        killed(bench, first)
    os.kill(int(supervisor._read(folder, "proc.json")["pid"]), signal.SIGKILL)
    last = bench.start("w1", **options) if worker_too else first
    assert last.end() == 0, last.words()
    fresh, resumed, said = (tmp_path / "runs").read_text().splitlines()
    assert fresh.split()[0] == "fresh" and resumed == f"resumed {fresh.split()[1]}" and said == "You were cut off"
    assert bench.files()["f"] == "half\nmore\n" and bench.archived("one") == []
    assert len(bench.fixes("one")) == 1 and bench.leftovers() == []
    bench.lawful()


def test_an_agent_without_sessions_whose_shim_died_too_goes_to_an_heir(bench: WorkKit, tmp_path: Path) -> None:
    bench.add(task("one", blocked(tmp_path)))
    first = bench.start("w1")
    began(tmp_path)
    folder = lane(bench)
    killed(bench, first)
    os.kill(int(supervisor._read(folder, "proc.json")["pid"]), signal.SIGKILL)
    second = bench.work("w1")
    assert second.kinds("takeover") and [e["outcome"] for e in second.kinds("heir")] == ["requeued"]
    assert bench.files()["f"] == "new\n" and len(bench.archived("one")) == 1 and bench.leftovers() == []
    bench.lawful()


def test_what_turns_were_spent_on_is_known_to_the_next_worker(bench: WorkKit, tmp_path: Path) -> None:
    """Killed after the second failure of its check: the third turn is the last, as it was to be."""
    script = f'echo x >> n; cp "$HOME/prompt.md" {tmp_path}/prompt$(wc -l < n)'
    bench.add(task("one", script, 'echo "lines: $(wc -l < n)"; false'))
    first = bench.start("w1", die_at="attempt_failed")
    assert first.end() == -signal.SIGKILL
    second = bench.start("w1", die_at="attempt_failed")
    assert second.end() == -signal.SIGKILL and second.kinds("takeover")[0]["turn"] == 1
    third = bench.work("w1")
    assert third.kinds("takeover")[0]["turn"] in (1, 2)
    assert bench.state("one") == "failed" and bench.said("one")["turns"] == "3"
    assert "attempt 3 of 3" in " ".join((tmp_path / "prompt3").read_text().split())
    assert not (tmp_path / "prompt4").exists() and bench.leftovers() == []
    bench.lawful()


def test_progress_that_is_torn_is_none(tmp_path: Path) -> None:
    made = progress.Progress("att-w-1", "command", "key", 2, "text", "0" * 40, usage={"input_tokens": 3})
    progress.write(str(tmp_path), made)
    assert progress.read(str(tmp_path)) == made
    data = (tmp_path / "progress.json").read_bytes()
    for size in range(len(data)):
        (tmp_path / "progress.json").write_bytes(data[:size])
        assert progress.read(str(tmp_path)) is None
    assert progress.read(str(tmp_path / "gone")) is None


def test_what_an_attempt_had_in_the_landing_queue_goes_with_its_first_holder(bench: WorkKit) -> None:
    bench.add(task("one", "true", region="r"))
    held = bench.take("one", host="h/b/1/1")
    lease = names.landing_lock("main")
    place = f"{names.QUEUE}main/000000001.one"
    bench.write(lease, f"lease main\nattempt: {held.attempt}")
    bench.write(place, f"landing one\nattempt: {held.attempt}")
    takeover.take(bench.board, bench.status("one"), As("w2", "test/w2", "command", host="h/b/2/2"), 1)
    assert bench.board.ref(lease) is None and bench.board.ref(place) is None
    assert wire.fields(words(bench.board, names.lock("r")) or "").get("attempt") == held.attempt
    bench.lawful()
