"""Attempts: what lands, what a verdict says, and which deaths are told from failures by merit."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from tests.work.workkit import NO_HEIR, WorkKit, task

from ropewalk.board import names, wire
from ropewalk.lane import journal
from ropewalk.plan.task import Limits, Task
from ropewalk.store.store import Store
from storekit import stock


def test_R4_a_fix_is_on_main_with_its_return_and_its_verdict(bench: WorkKit) -> None:
    bench.add(task("one", "echo hi > f", "grep -q hi f", title="Say hi", model="m-1"))
    process = bench.work()
    assert process.report["ended"] == "empty"
    assert bench.state("one") == "done"
    assert bench.files()["f"] == "hi\n"
    landed = bench.board.ref(names.returned("one"))
    assert landed is not None and bench.fixes("one") == [landed]
    words = stock("show", "-s", "--format=%B", landed, cwd=bench.kit.repo).decode()
    (end,) = process.report["tasks"]
    assert words.startswith("fix one\n\nSay hi\n\nAttempt: ") and f"Attempt: {end['attempt']}\n" in words
    said = bench.said("one")
    assert said["landed"] == landed
    assert said["tree"] == stock("rev-parse", f"{landed}^{{tree}}", cwd=bench.kit.repo).decode().strip()
    assert (said["check"], said["oc_rc"], said["pytest_rc"]) == ("grep -q hi f", "0", "0")
    assert said["environment"] and said["model"] == "m-1" and said["harness"] == "command"
    assert bench.leftovers() == []
    bench.lawful()


def test_R7_a_closed_task_keeps_its_claim_with_a_closing_object(bench: WorkKit) -> None:
    bench.add(task("one", "echo hi > f"))
    bench.work()
    status = bench.status("one")
    assert status.claim is not None and status.claim.closed and status.claim.base
    assert status.verdict is not None and status.verdict.attempt == status.claim.attempt


def test_the_events_tell_what_metrics_count(bench: WorkKit) -> None:
    bench.add(task("one", "echo hi > f"))
    process = bench.work()
    (won,) = process.kinds("claim")
    (verdict,) = process.kinds("verdict")
    assert won["outcome"] == "won" and won["att"] == verdict["att"]
    assert verdict["fixed"] is True and verdict["verdict_pushed"] is True and verdict["task"] == "one"
    assert process.kinds("dispatch_started")


def test_R9_devflock_B9_an_agent_out_of_time_is_a_death_and_its_children_end(bench: WorkKit) -> None:
    bench.add(task("slow", "echo x > f\nsetsid sleep 300 & sleep 300 & sleep 300", limits=Limits(seconds=0.5)))
    process = bench.work()
    assert bench.state("slow") == "infrastructure"
    assert bench.said("slow")["oc_rc"] == "124" and "did not end" in bench.said("slow")["note"]
    assert [e["outcome"] for e in process.kinds("heir")] == ["requeued", "exhausted"]
    assert bench.leftovers() == [] and "f" not in bench.files()
    bench.lawful()


def test_B8_a_task_that_kills_its_agent_ends_as_infrastructure(bench: WorkKit) -> None:
    bench.add(task("poison", "echo x > f; kill -9 $$", limits=Limits(heirs=2)))
    process = bench.work(failures=9)
    assert len(process.report["tasks"]) == 3
    assert bench.said("poison")["reason"] == "infrastructure" and bench.said("poison")["oc_rc"] == "-9"
    assert len(bench.archived("poison")) == 2
    bench.work("w2")
    assert len(bench.archived("poison")) == 2, "what is closed stays closed"


def test_an_agent_that_fails_and_changes_nothing_is_a_provider_that_failed(bench: WorkKit) -> None:
    bench.add(task("one", "echo no credit >&2; exit 7", limits=NO_HEIR))
    bench.work()
    assert bench.state("one") == "infrastructure"
    assert bench.said("one")["oc_rc"] == "7" and bench.said("one")["note"].endswith("no credit")


def test_devflock_B7_an_agent_that_fails_after_a_change_is_judged_by_the_check(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f; exit 7", "test -f f"))
    bench.work()
    assert bench.state("one") == "done" and bench.said("one")["oc_rc"] == "7"


def test_R8_devflock_B7_a_program_that_is_missing_costs_no_attempt(bench: WorkKit) -> None:
    bench.agent.write_text("#!/nonexistent/shell\n")
    bench.add(task("one", "true"))
    began = time.monotonic()
    process = bench.work(exit=1)
    assert time.monotonic() - began < 30
    assert process.report["ended"] == "gave_up" and "3 attempts in a row" in process.report["reason"]
    assert "can't be started" in process.report["reason"]
    assert bench.state("one") == "ready" and len(bench.archived("one")) == 3
    assert all(ended.startswith("released") for ended in bench.archived("one"))
    assert bench.leftovers() == []


def test_R8_output_that_is_not_utf8_hurts_nobody(bench: WorkKit) -> None:
    bench.add(task("one", r"printf '\377\376\000\n'; printf '\377' >&2; echo x > f", r"printf '\377'; test -f f"))
    bench.add(task("two", r"printf '\377\n' >&2; exit 3", limits=NO_HEIR))
    bench.add(task("three", "echo x > g", r"printf '\377\n'; exit 1", limits=Limits(attempts=1)))
    bench.work()
    assert (bench.state("one"), bench.state("two"), bench.state("three")) == ("done", "infrastructure", "failed")


_COUNT = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n"


def test_an_agent_gets_three_tries_with_the_output_of_the_check(bench: WorkKit, tmp_path: Path) -> None:
    script = f'{_COUNT}\ncp "$HOME/prompt.md" {tmp_path}/prompt$(cat n)'
    bench.add(task("one", script, 'echo "n is $(cat n)"; test "$(cat n)" = 3'))
    process = bench.work()
    assert bench.state("one") == "done" and bench.files()["n"] == "3\n"
    assert len(process.kinds("claim")) == 1 and bench.said("one")["turns"] == "3"
    second = (tmp_path / "prompt2").read_text()
    assert "attempt 2 of 3" in second and "n is 1" in second and "Do one" in second
    assert "attempt 3 of 3" in (tmp_path / "prompt3").read_text()


def test_R13_a_failure_by_merit_is_said_once_and_stays(bench: WorkKit) -> None:
    bench.add(task("one", _COUNT, "echo because; exit 4"))
    process = bench.work()
    assert bench.state("one") == "failed"
    said = bench.said("one")
    assert (said["fixed"], said["pytest_rc"], said["note"], said["turns"]) == ("false", "4", "because", "3")
    assert len(process.kinds("claim")) == 1 and bench.archived("one") == []
    assert list(bench.files()) == ["README.md"]
    assert "tasks" not in bench.work("w2").report
    assert bench.leftovers() == []
    bench.lawful()


def test_R9_devflock_B9_a_check_out_of_time_says_124_and_its_children_end(bench: WorkKit) -> None:
    bench.add(
        task(
            "one",
            "echo x > f",
            "setsid sleep 311.7 & sleep 311.7 & sleep 300",
            limits=Limits(check_seconds=0.5, attempts=1),
        )
    )
    bench.work()
    said = bench.said("one")
    assert (said["fixed"], said["pytest_rc"], said["reason"]) == ("false", "124", "check_timeout")
    assert bench.leftovers() == []
    assert subprocess.run(["pgrep", "-fx", "sleep 311.7"], capture_output=True).stdout == b""


def test_R6_devflock_B11_what_a_check_makes_does_not_land(bench: WorkKit) -> None:
    bench.add(task("one", "echo x > f", "echo s3cret > .env; echo junk > junk; mkdir d; echo x > d/x; test -f f"))
    bench.work()
    assert sorted(bench.files()) == ["README.md", "f"]


def test_R6_ignored_files_and_other_commits_of_the_agent_do_not_land(bench: WorkKit) -> None:
    bench.add(
        task(
            "one",
            """git checkout -q -b wip
echo wip > wip.txt; git add wip.txt; git -c user.name=x -c user.email=x@x commit -qm 'wip'
git checkout -q -
echo '*.log' > .gitignore; echo noise > a.log; echo key > .env; echo x > f""",
            "test -f f",
        )
    )
    bench.work()
    assert sorted(bench.files()) == [".gitignore", "README.md", "f"]
    assert len(bench.fixes("one")) == 1
    assert stock("rev-list", "--count", "main", cwd=bench.kit.repo).strip() == b"2"


def test_R4_B16_what_an_agent_committed_itself_lands(bench: WorkKit) -> None:
    commit = "git add -A; git -c user.name=x -c user.email=x@x commit -qm mine"
    bench.add(task("one", f"echo x > f\necho '{{}}'\n{commit}", "test -f f"))
    bench.work()
    assert bench.files()["f"] == "x\n" and bench.said("one")["fixed"] == "true"
    assert len(bench.fixes("one")) == 1


def test_B18_devflock_B5_an_agent_that_did_nothing_has_no_evidence(bench: WorkKit) -> None:
    bench.add(task("one", "echo 'done, see docs/result.md'", "test -f docs/result.md"))
    bench.work()
    said = bench.said("one")
    assert (said["fixed"], said["reason"], said["pytest_rc"]) == ("false", "no_evidence", "1")
    assert bench.board.ref(names.returned("one")) is None
    bench.lawful()


def test_B18_nothing_to_do_is_told_from_nothing_done(bench: WorkKit) -> None:
    head = bench.main()
    bench.add(task("one", "echo it is there already", "test -f README.md"))
    process = bench.work()
    said = bench.said("one")
    assert (said["fixed"], said["already"], said["landed"]) == ("true", "satisfied", head)
    assert bench.board.ref(names.returned("one")) == head == bench.main()
    assert process.report["tasks"][0]["how"] == "satisfied" and bench.state("one") == "done"
    bench.lawful()


def test_B19_B20_the_verdict_rests_on_our_own_run_of_the_command(bench: WorkKit, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    bench.add(task("one", "echo 'test -f f: passed, exit code 0'; echo x > g", f"echo run >> {log}; test -f f",
                   limits=Limits(attempts=1)))  # fmt: skip
    bench.add(task("two", "echo FAILED >&2; echo x > f", f"echo run >> {log}; test -f f"))
    bench.work()
    assert bench.state("one") == "failed" and bench.said("one")["tree"]
    assert bench.state("two") == "done"
    assert len(log.read_text().split()) >= 2


def test_R5_the_check_runs_on_the_tree_that_lands(bench: WorkKit, tmp_path: Path) -> None:
    """Both fit the head they began on, and not each other: the later one may not land as it is."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    check = "test $(ls *.part 2>/dev/null | wc -l) -le 1"
    bench.add(task("one", f"cat {gate}; echo x > one.part", check, limits=Limits(attempts=1)))
    first = bench.start("w1")
    first.until("dispatch_started")
    bench.add(task("two", "echo x > two.part", check))
    bench.work("w2", only=["two"])
    gate.write_text("go\n")
    assert first.end() == 0
    assert bench.state("two") == "done" and bench.state("one") == "failed"
    assert sorted(bench.files()) == ["README.md", "two.part"]


def test_a_conflict_is_a_turn_of_the_same_agent(bench: WorkKit, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def scripted(name: str, *before: dict[str, str]) -> Task:
        steps = [*before, {"append": "README.md", "text": f"{name}\n"}]
        script = msgspec.json.encode({"steps": steps, "on_conflict": "both"}).decode()
        return Task(name, f"grep -q {name} README.md", description=f"Name {name}\n\n```script\n{script}\n```")

    bench.add(scripted("one", {"run": f"cat {gate}"}))
    first = bench.start("w1", scripted=True)
    first.until("dispatch_started")
    bench.add(scripted("two"))
    bench.work("w2", scripted=True, only=["two"])
    gate.write_text("go\n")
    assert first.end() == 0
    assert first.kinds("conflict") and bench.state("one") == "done"
    assert sorted(bench.files()["README.md"].splitlines()[1:]) == ["one", "two"]
    assert bench.said("one")["turns"] == "2" and "input_tokens=" in bench.said("one")["tokens"]
    bench.lawful()


def test_F26_an_agent_is_not_told_of_the_board(bench: WorkKit) -> None:
    bench.add(task("one", "env > seen"))
    bench.work(env={"SWARM_ORIGIN": "/somewhere", "ROPEWALK_BOARD": "/somewhere", "AWS_SECRET_ACCESS_KEY": "x"})
    seen = bench.files()["seen"]
    assert "SWARM_ORIGIN" not in seen and "ROPEWALK_BOARD" not in seen and "AWS_SECRET" not in seen
    assert "ROPEWALK_TASK=one" in seen


def test_a_claim_names_the_head_its_workspace_stands_on(bench: WorkKit) -> None:
    bench.add(task("one", "echo 1 > a"), task("two", "cat a > b", "test -s b", needs=("one",)))
    bench.work()
    assert bench.files()["b"] == "1\n"
    claim = wire.read_claim(wire.message(bench.board.content(bench.board.ref(names.claim("two")) or "") or b""))
    assert claim is not None and claim.base == bench.board.ref(names.returned("one"))


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own is made by root")
def test_R8_a_full_disk_is_given_up_with_its_reason(bench: WorkKit, tmp_path: Path) -> None:
    """The disk of the workspaces is full, the board's is not: nothing is said of the task, and the claim is free."""
    bench.data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(bench.data)], check=True)
    try:
        bench.add(task("one", "echo x > f"))
        (bench.data / "ballast").write_bytes(b"x" * 65_536)
        process = bench.work(exit=1, spare_disk=0)
        assert process.report["ended"] == "gave_up" and "E_NO_SPACE" in process.report["reason"]
        assert bench.state("one") == "ready"
        assert bench.board.below(names.CLAIMS) == []
    finally:
        subprocess.run(["umount", "-l", str(bench.data)], check=True)
    bench.work(only=["one"])
    assert bench.state("one") == "done"
    bench.lawful()


def test_devflock_B11_a_change_outside_of_what_a_task_owns_goes_back_to_its_agent(bench: WorkKit) -> None:
    """The first turn writes beside its paths; the second is told so, and puts it back."""
    told = 'if grep -q "not this [t]ask" "$HOME/prompt.md"; then rm stray; exit; fi'
    bench.add(task("one", f"{told}\nmkdir -p src; echo y > src/f; echo x > stray", "test -f src/f", owns=("src/**",)))
    process = bench.work()
    assert bench.state("one") == "done" and bench.said("one")["turns"] == "2"
    assert [event["reason"] for event in process.kinds("attempt_failed")] == ["refused"]
    assert set(bench.files()) >= {"src/f"} and "stray" not in bench.files()


_SHAPE = {"type": "object", "properties": {"status": {"const": "done"}}, "required": ["status"]}


def test_a_reply_of_another_shape_is_asked_for_once_more(bench: WorkKit) -> None:
    script = f'{_COUNT}; test $(cat n) = 2 && echo \'{{"status": "done"}}\' || echo no json'
    bench.add(task("one", script, reply=_SHAPE))
    bench.work()
    assert bench.state("one") == "done" and bench.said("one")["turns"] == "2"
    with Store(bench.kit.root) as store:
        second, first = (lane.result for lane in journal.lanes(store))
    assert first is not None and second is not None
    assert first.passed is False and first.gate.startswith("refused:") and not first.landed
    assert second.passed and second.landed and second.reply == {"status": "done"}


def test_a_reply_that_stays_wrong_fails_after_its_one_repair(bench: WorkKit) -> None:
    bench.add(task("one", f"{_COUNT}; echo no json", reply=_SHAPE, limits=Limits(attempts=9)))
    bench.work()
    assert bench.state("one") == "failed" and bench.said("one")["turns"] == "2"
