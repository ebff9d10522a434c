"""A lane: what its process gets, how its end is told, and that nothing of it is left."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import HarnessError
from ropewalk.lane import supervise
from ropewalk.lane.harness.base import LaneEvent
from ropewalk.lane.harness.command import CommandHarness
from ropewalk.lane.harness.scripted import ScriptedHarness
from ropewalk.lane.supervise import Lane, LaneResult, run_lane

CALLER = {"PATH": os.environ["PATH"], "HOME": "/root", "SECRET_TOKEN": "x", "ANTHROPIC_API_KEY": "x", "GIT_DIR": "/x"}
Run = Callable[..., LaneResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Gives a way to run a shell script, or a scripted agent's steps, as a lane."""
    work = tmp_path / "work"
    work.mkdir()

    def start(script: str | list[dict[str, Any]], **words: Any) -> LaneResult:
        events: list[LaneEvent] = words.pop("events", [])
        stop = words.pop("stop", None)
        meanwhile = words.pop("meanwhile", lambda: None)
        harness: Any = ScriptedHarness()
        prompt = harness.prompt("do it", script)
        if isinstance(script, str):
            place = tmp_path / "script.sh"
            place.write_text(script)
            harness, prompt = CommandHarness(f"/bin/sh {place}", CALLER["PATH"]), b"the prompt\n"
        given = {"seconds": 20.0, "prompt": prompt, **words}
        lane = Lane(f"run-{os.getpid()}/{tmp_path.name}", "a/b", str(work), str(tmp_path / "lane"), **given)
        return run_lane(lane, harness, CALLER, stop=stop, tell=events.append, meanwhile=meanwhile)

    return start


def alive(pid: int) -> bool:
    """Says whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_done_meanwhile(run: Run, tmp_path: Path) -> None:
    """The agent waits for a file that appears only when somebody acts while it works."""
    go = tmp_path / "go"
    done = run(f"while ! test -e {go}; do sleep 0.05; done\n", meanwhile=go.touch)
    assert (done.how, done.code) == ("done", 0)


def test_what_a_process_gets(run: Run, tmp_path: Path) -> None:
    done = run("cat > got; env > env; tr '\\0' ' ' < /proc/$$/cmdline > argv; echo said; echo wrong >&2; exit 3\n")
    assert (done.how, done.code, done.tail) == ("done", 3, "wrong")
    work = tmp_path / "work"
    assert (work / "got").read_text() == "the prompt\n"
    assert "prompt" not in (work / "argv").read_text()
    env = dict(line.split("=", 1) for line in (work / "env").read_text().splitlines())
    assert env["HOME"] == str(tmp_path / "lane" / "home") and env["ROPEWALK_AGENT"] == "a/b"
    assert not {"SECRET_TOKEN", "ANTHROPIC_API_KEY", "GIT_DIR"} & set(env)
    assert (tmp_path / "lane" / "stdout").read_text() == "said\n"


def test_a_scripted_agent_is_a_real_process_that_edits_and_reports(run: Run, tmp_path: Path) -> None:
    events: list[LaneEvent] = []
    steps: list[dict[str, Any]] = [
        {"put": "a/b.txt", "text": "one\ntwo\n"},
        {"replace": "a/b.txt", "old": "two", "new": "2"},
        {"append": "a/b.txt", "text": "three\n"},
        {"symlink": "l", "to": "a/b.txt"},
        {"exec": "a/b.txt"},
        {"move": "l", "to": "m"},
        {"run": "echo four >> a/b.txt"},
        {"print": "hello"},
    ]
    done = run(steps, events=events)
    assert (done.how, done.code) == ("done", 0)
    assert (tmp_path / "work" / "a" / "b.txt").read_text() == "one\n2\nthree\nfour\n"
    assert os.access(tmp_path / "work" / "m", os.X_OK)
    kinds = [event.kind for event in events]
    assert kinds[0] == "started" and kinds[-2:] == ["usage", "result"] and "message" in kinds
    assert done.tools == 7 and done.usage["output_tokens"] > 0
    assert events[0].facts["pid"] != os.getpid()


@pytest.mark.parametrize(
    ("steps", "code", "words"),
    [
        ([{"exit": 7}], 7, ""),
        ([{"replace": "no", "old": "a", "new": "b"}], 1, "replace failed"),
        ([{"fly": "away"}], 1, "no verb"),
        ([{"run": "exit 9"}], 1, "ended with 9"),
    ],
)
def test_failures_are_told(run: Run, steps: list[dict[str, Any]], code: int, words: str) -> None:
    done = run(steps)
    assert (done.how, done.code) == ("done", code) and words in done.tail
    assert done.reported is not None and done.reported.facts["ok"] is False


def test_a_death_by_signal_is_told_apart(run: Run) -> None:
    done = run([{"die": True}])
    assert (done.how, done.code) == ("died", -9)


def test_children_go_with_it_even_those_in_sessions_of_their_own(run: Run, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"import os,signal,sys; signal.signal(15, signal.SIG_IGN); print(os.getpid(), file=open({str(pids)!r}, 'a'))"
    hold = f'{sys.executable} -c "{code}; sys.stdin.close(); import time; time.sleep(600)"'
    run(f"{hold} & setsid {hold} & while test $(cat {pids} 2>/dev/null | wc -l) -lt 2; do :; done; exit 0\n")
    found = [int(word) for word in pids.read_text().split()]
    assert len(found) == 2 and not any(alive(pid) for pid in found)


def test_l14_a_pipe_held_open_delays_nothing(run: Run) -> None:
    done = run("sleep 600 & echo done; exit 0\n")
    assert done.how == "done" and done.seconds < 5


def test_l14_a_result_without_an_exit_gets_a_grace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "GRACE", 0.3)
    script = """import sys; print('{"event": "result", "ok": true, "text": "fine"}', flush=True); sys.stdin.read()
import time; time.sleep(600)"""

    class Hanging(ScriptedHarness):
        def argv(self) -> list[str]:
            return [sys.executable, "-c", script]

    events: list[LaneEvent] = []
    monkeypatch.setattr("lane.test_supervise.ScriptedHarness", Hanging)
    done = run([], events=events)
    assert done.reported is not None and done.reported.facts["text"] == "fine"
    assert done.how == "done" and done.seconds < 5


def test_the_time_limit_ends_it(run: Run) -> None:
    done = run("sleep 600\n", seconds=0.5)
    assert (done.how, done.code) == ("timeout", -9)


def test_it_can_be_stopped(run: Run) -> None:
    stop = threading.Event()
    stop.set()
    assert run("sleep 600\n", stop=stop).how == "stopped"


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(HarnessError, match="no-such-agent"):
        CommandHarness("no-such-agent --fast", CALLER["PATH"])


def test_much_output_and_odd_bytes_do_no_harm(run: Run, tmp_path: Path) -> None:
    events: list[LaneEvent] = []
    done = run("head -c 3000000 /dev/urandom; yes | head -n 100000; exit 0\n", events=events)
    assert done.code == 0
    assert (tmp_path / "lane" / "stdout").stat().st_size == 3_200_000


def test_a4_git_in_a_workspace_without_its_own_repository_finds_no_other(run: Run, tmp_path: Path) -> None:
    import subprocess

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, capture_output=True)
    (tmp_path / "users.txt").write_text("not committed\n")
    done = run("git status; git add -A; exit $?\n")
    assert done.code == 128 and "not a git repository" in done.tail
    index = tmp_path / ".git" / "index"
    assert not index.exists()
