"""What a task finds and leaves in its region, and what a death costs: cases of an earlier orchestrator."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.work.workkit import WorkKit, task

from ropewalk.lane import journal
from ropewalk.lane.programs import registry
from ropewalk.lane.programs.plain import Scripted
from ropewalk.plan.task import Limits, Task
from ropewalk.run.turn import Before
from ropewalk.run.work import loop
from ropewalk.run.work.options import Options
from ropewalk.run.work.sessions import Sessions
from storekit import STOCK, stock


def test_devflock_B1_a_task_sees_what_it_needs_from_another_region(bench: WorkKit) -> None:
    bench.add(task("a", "mkdir x; echo made > x/a", "test -s x/a", region="x"))
    bench.add(task("b", "mkdir y; cat x/a > y/b", "cmp x/a y/b", region="y", needs=("a",)))
    workers = [bench.start(f"w{n}") for n in range(2)]
    assert [worker.end() for worker in workers] == [0, 0]
    claim, landed = bench.status("b").claim, bench.status("a").returned
    assert claim is not None and claim.base and landed
    line = ["git", "merge-base", "--is-ancestor", landed, claim.base]
    assert subprocess.run(line, cwd=bench.kit.repo, env=STOCK).returncode == 0
    assert bench.files()["y/b"] == "made\n"


def test_devflock_B7_a_death_spends_none_of_the_tries_at_the_check(bench: WorkKit, tmp_path: Path) -> None:
    """Its first agent is killed, and its heir needs all of its three tries."""
    died = tmp_path / "died"
    script = f"test -e {died} || {{ touch {died}; kill -9 $$; }}\nn=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n"
    bench.add(task("one", script, 'test "$(cat n)" = 3', limits=Limits(attempts=3)))
    bench.work()
    assert bench.state("one") == "done" and bench.files()["n"] == "3\n"
    assert len(bench.archived("one")) == 1 and bench.said("one")["turns"] == "3"


def test_devflock_B10_what_a_failed_task_left_is_in_no_later_change_of_its_region(bench: WorkKit) -> None:
    bench.add(task("bad", "echo junk > junk; echo worse > README.md", "exit 4", region="r", limits=Limits(attempts=1)))
    bench.add(task("good", "test ! -e junk && echo x > good", "test -s good", region="r"))
    process = bench.work()
    assert [e["task"] for e in process.kinds("claim")] == ["bad", "good"]
    assert (bench.state("bad"), bench.state("good")) == ("failed", "done")
    (landed,) = bench.fixes("good")
    assert stock("show", "--format=", "--name-only", landed, cwd=bench.kit.repo).split() == [b"good"]
    attempt = bench.status("bad").claim
    assert attempt is not None
    (kept,) = [oid for _, oid in bench.board.below(f"refs/archive/ws/{attempt.attempt}/")]
    names = stock("ls-tree", "-r", "--name-only", kept, cwd=bench.kit.repo).split()
    assert names == [b"README.md", b"junk"], "what the failed task did is in the archive"


def test_devflock_B24_a_thread_that_waits_hears_at_once_that_a_task_ended(
    bench: WorkKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks become ready at once and wait for each other; a thread that only looked now and then would sleep."""
    monkeypatch.setattr(loop, "_FIRST_PAUSE", 1000.0)
    monkeypatch.setattr(loop, "_LONGEST_PAUSE", 1000.0)

    def scripted(name: str, *steps: dict[str, Any], needs: tuple[str, ...] = ()) -> Task:
        words = script(*steps, {"put": name, "text": "x\n"})
        return Task(name, f"test -e {name}", description=f"Do {name}\n\n{words}", needs=needs)

    both = {"barrier": str(tmp_path / "both"), "count": 2}
    bench.add(scripted("root"), scripted("left", both, needs=("root",)), scripted("right", both, needs=("root",)))
    options = Options(
        "w1", Scripted(), {"PATH": "/usr/bin:/bin"}, str(tmp_path / "data"), threading.Event(),
        lambda kind, **facts: None, until_empty=True, jobs=2, seconds=60.0,
    )  # fmt: skip
    done = loop.work(bench.board, bench.kit.store, options)
    assert sorted((t.task, t.how) for t in done.tasks) == [("left", "landed"), ("right", "landed"), ("root", "landed")]
    assert len(journal.lanes(bench.kit.store)) == 3


_CLAUDE = """#!/bin/sh
test "$1" != --version || { echo '2.1.332 (Claude Code)'; exit; }
read -r prompt
n=$(cat LOG/n 2>/dev/null || echo 0); n=$((n + 1)); echo $n > LOG/n
echo "$*" > LOG/words$n; printf '%s\\n' "$prompt" > LOG/prompt$n
say() { echo "{\\"type\\":\\"result\\",\\"session_id\\":\\"s$n\\",$1}"; }
case $n in
1) echo half > f; say '"subtype":"success","is_error":false,"result":"done"' ;;
2) say '"subtype":"success","is_error":true,"api_error_status":400,"result":"API Error: 400 prompt is too long"'
   exit 1 ;;
3) echo whole > f; say '"subtype":"success","is_error":false,"result":"done"' ;;
esac
"""


def test_devflock_B28_a_session_that_is_too_large_is_begun_anew_and_costs_no_try(
    bench: WorkKit, tmp_path: Path
) -> None:
    """Its check fails, its second turn finds the session full, and a new one is told all of the task."""
    program, log = tmp_path / "bin" / "claude", tmp_path / "log"
    log.mkdir()
    program.parent.mkdir()
    program.write_text(_CLAUDE.replace("LOG", str(log)))
    program.chmod(0o755)
    bench.add(Task("one", "grep -q whole f", description="Make it whole.", limits=Limits(attempts=2)))
    events: list[tuple[str, dict[str, Any]]] = []
    options = Options(
        "w1", registry.get("claude"), {"PATH": f"{program.parent}:/usr/bin:/bin"}, str(tmp_path / "data"),
        threading.Event(), lambda kind, **facts: events.append((kind, facts)), until_empty=True, seconds=60.0,
    )  # fmt: skip
    (end,) = loop.work(bench.board, bench.kit.store, options).tasks
    assert (end.how, end.turns) == ("landed", 2), (end, events)
    words = [(log / f"words{n}").read_text() for n in (1, 2, 3)]
    assert ["--resume s1" in one for one in words] == [False, True, False] and "--resume" not in words[2]
    told = (log / "prompt3").read_text()
    assert "too large for its model" in told and "Make it whole." in told and "attempt 2 of 2" in told
    assert [kind for kind, _ in events].count("session_full") == 1


def script(*steps: dict[str, Any]) -> str:
    """Gives the script of a scripted agent as a prompt has it."""
    return f"```script\n{msgspec.json.encode({'steps': list(steps)}).decode()}\n```"


def test_devflock_B28_a_session_is_gone_on_with_only_where_its_model_bears_more(tmp_path: Path) -> None:
    kept = Sessions(str(tmp_path / "kept"))
    for context, window, good in ((20_000, 32_768, False), (16_000, 32_768, True), (20_000, 0, True)):
        (tmp_path / f"lane-{context}-{window}" / "home").mkdir(parents=True)
        before = Before(str(tmp_path / f"lane-{context}-{window}"), "s1")
        assert kept.keep("r", "claude", before, context, window) is good
        assert (kept.take("r", "claude", str(tmp_path / f"into-{context}-{window}")) is not None) is good
