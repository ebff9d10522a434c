"""Lanes in use: what a process gets, how its end is told, that nothing of it is left, and what the journal keeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import AdapterMismatchError, HarnessError, InvalidError
from ropewalk.lane import journal, lanes, supervisor
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.lanes import Outcome, Wish
from ropewalk.lane.programs import registry
from ropewalk.lane.programs.plain import Command, Scripted
from ropewalk.lane.waits import Limits, Waits
from ropewalk.store.store import Store

CANARY = "canary-b54d0e9a-of-the-caller"
CALLER = {
    "PATH": os.environ["PATH"], "HOME": "/root", "SECRET_TOKEN": CANARY, "ANTHROPIC_API_KEY": CANARY, "GIT_DIR": CANARY,
}  # fmt: skip
FULL = os.environ.get("RWTEST_FULL") == "1"
Run = Callable[..., Outcome]


class Lanes:
    """Runs shell scripts and scripted agents as lanes of a store."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.work = folder / "work"
        self.work.mkdir()
        self.count = 0

    def wish(self, script: str | list[dict[str, Any]], **words: Any) -> Wish:
        """Gives the lane that follows a script, at level none unless told otherwise."""
        self.count += 1
        adapter: Any = Scripted()
        if isinstance(script, str):
            place = self.folder / f"script-{self.count}.sh"
            place.write_text(script)
            adapter = Command(f"/bin/sh {place}")
        seconds, turns = words.pop("seconds", 30.0), words.pop("turns", 100)
        given: dict[str, Any] = {
            "prompt": "the prompt\n", "level": "none", "script": None if isinstance(script, str) else script,
            "limits": Limits(seconds=seconds, turns=turns), **words,
        }  # fmt: skip
        name = f"run-{os.getpid()}/{self.folder.name}/{self.count}"
        return Wish(
            name, "a/b", given.pop("adapter", adapter), workspace=str(self.work), repo="repo",
            folder=str(self.folder / f"lane-{self.count}"), gateway=str(self.folder / "gateway"),
            search=given.pop("search", CALLER["PATH"]), caller=CALLER, run="run", task="one", **given,
        )  # fmt: skip

    def run(self, script: str | list[dict[str, Any]], **words: Any) -> Outcome:
        """Runs a lane to its end."""
        events: list[Event] = words.pop("events", [])
        stop, meanwhile = words.pop("stop", lambda: False), words.pop("meanwhile", lambda: None)
        return lanes.run(self.store, self.wish(script, **words), stop=stop, tell=events.append, meanwhile=meanwhile)


@pytest.fixture
def kit(store: Store, tmp_path: Path) -> Lanes:
    """Gives a way to run lanes."""
    return Lanes(store, tmp_path)


def alive(pid: int) -> bool:
    """Says whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_done_meanwhile(kit: Lanes, tmp_path: Path) -> None:
    """The agent waits for a file that appears only when somebody acts while it works."""
    go = tmp_path / "go"
    done = kit.run(f"while ! test -e {go}; do sleep 0.05; done\n", meanwhile=go.touch)
    assert (done.result.state, done.result.code) == ("done", 0)


def test_what_a_process_gets(kit: Lanes) -> None:
    done = kit.run("cat > got; env > env; tr '\\0' ' ' < /proc/$$/cmdline > argv; echo said; echo wrong >&2; exit 3\n")
    assert (done.result.state, done.result.code, done.lane.stderr) == ("failed", 3, "wrong")
    assert (kit.work / "got").read_text() == "the prompt\n"
    assert "prompt" not in (kit.work / "argv").read_text()
    env = dict(line.split("=", 1) for line in (kit.work / "env").read_text().splitlines())
    assert env["HOME"] == str(kit.folder / "lane-1" / "home") and env["ROPEWALK_AGENT"] == "a/b"
    assert not {"SECRET_TOKEN", "ANTHROPIC_API_KEY", "GIT_DIR"} & set(env)
    assert (kit.folder / "lane-1" / "stdout").read_text() == "said\n"


def test_devflock_C1_a_canary_of_the_callers_is_nowhere_in_a_lane(kit: Lanes) -> None:
    """Not in its environment, its files, its streams, nor in the journal or anything else of the store."""
    done = kit.run("env; cat /proc/$PPID/environ; tr '\\0' '\\n' < /proc/self/environ > env\n")
    assert done.result.state == "done"
    places = [kit.work, kit.folder / "lane-1", Path(kit.store.layout.root)]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    assert CANARY not in repr(journal.lanes(kit.store))


@pytest.mark.skipif(not os.path.exists("/usr/bin/bwrap"), reason="bubblewrap is not installed")
def test_what_a_caged_lane_is_given_is_on_no_command_line(kit: Lanes) -> None:
    """Everybody on the machine sees command lines; a variable that is passed on reaches the lane all the same."""
    secret = f"given-{os.getpid()}-to-the-lane"
    seen: list[str] = []

    def look() -> None:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                said = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if secret.encode() in said:
                seen.append(said.decode("utf-8", "replace"))

    done = kit.run("echo $GIVEN; env | sort > env; sleep 0.3\n", level="full", network="none",
                   extra={"GIVEN": secret}, meanwhile=look)  # fmt: skip
    assert (done.result.state, done.result.text) == ("done", secret) and not seen
    inside = dict(line.split("=", 1) for line in (kit.work / "env").read_text().splitlines())
    assert inside["HOME"] == "/lane" and inside["PWD"].startswith("/work/")
    assert not {"SECRET_TOKEN", "ANTHROPIC_API_KEY", "GIT_DIR", "ROPEWALK_STORE"} & set(inside)


def test_a_scripted_agent_is_a_real_process_that_edits_and_reports(kit: Lanes) -> None:
    events: list[Event] = []
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
    done = kit.run(steps, events=events)
    assert (done.result.state, done.result.code) == ("done", 0)
    assert (kit.work / "a" / "b.txt").read_text() == "one\n2\nthree\nfour\n"
    assert os.access(kit.work / "m", os.X_OK)
    kinds = [event.kind for event in events]
    assert kinds[0] == "started" and kinds[-2:] == ["usage", "result"] and "message" in kinds
    assert done.result.tools == 7 and done.result.tokens is not None and done.result.tokens.output > 0
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
def test_failures_are_told(kit: Lanes, steps: list[dict[str, Any]], code: int, words: str) -> None:
    done = kit.run(steps)
    assert (done.result.state, done.result.code) == ("failed", code)
    assert not done.lane.ending.ok and words in done.lane.ending.error


def test_a_death_by_signal_is_told_apart(kit: Lanes) -> None:
    done = kit.run([{"die": True}])
    assert (done.result.state, done.result.code) == ("dead", -9)


@pytest.mark.skipif(not os.path.exists("/usr/bin/bwrap"), reason="bubblewrap is not installed")
def test_a_death_by_signal_is_told_apart_in_a_cage(kit: Lanes) -> None:
    done = kit.run("kill -9 $$\n", level="full", network="none")
    assert (done.result.state, done.result.code, done.result.level) == ("dead", -9, "full")


def test_L13_devflock_B9_children_go_with_it_even_those_in_sessions_of_their_own(kit: Lanes, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"import os,signal,sys; signal.signal(15, signal.SIG_IGN); print(os.getpid(), file=open({str(pids)!r}, 'a'))"
    hold = f'{sys.executable} -c "{code}; sys.stdin.close(); import time; time.sleep(600)"'
    began = time.monotonic()
    done = kit.run(f"{hold} & setsid {hold} & while test $(cat {pids} 2>/dev/null | wc -l) -lt 2; do :; done; exit 0\n")
    found = [int(word) for word in pids.read_text().split()]
    assert len(found) == 2 and not any(alive(pid) for pid in found)
    assert done.result.state == "done" and time.monotonic() - began < 10


def test_L14_a_pipe_held_open_delays_nothing(kit: Lanes) -> None:
    done = kit.run("sleep 600 & echo done; exit 0\n")
    assert done.result.state == "done" and done.result.seconds < 10


def test_L14_a_result_without_an_exit_gets_a_grace(kit: Lanes, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"""import subprocess, sys; child = subprocess.Popen(["sleep", "600"])
with open({str(pid)!r}, "w") as file: file.write(str(child.pid))
print('{{"event": "result", "ok": true, "text": "fine"}}', flush=True); sys.stdin.read()
import time; time.sleep(600)"""

    class Hanging(Scripted):
        def launch(self, start: Start) -> Launch:
            return Launch([sys.executable, "-c", script], {})

    done = kit.run([], adapter=Hanging(), waits=Waits(grace=0.3))
    assert (done.result.state, done.result.text) == ("done", "fine") and done.result.seconds < 20
    assert not alive(int(pid.read_text())), "a child that held the pipe is gone too"


def test_L15_one_that_says_nothing_and_writes_files_is_not_stalled(kit: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LOOK", 0.1)
    script = "n=0; while test $n -lt 20; do n=$((n+1)); head -c 8192 /dev/zero > f$n; sleep 0.1; done; exit 0\n"
    done = kit.run(script, waits=Waits(neither=1.0))
    assert (done.result.state, done.result.code, done.result.reason) == ("done", 0, "")
    assert done.result.seconds > 1.5 and len(list(kit.work.glob("f*"))) == 20


@pytest.mark.parametrize(
    ("words", "state", "reason"),
    [
        ({"seconds": 0.5}, "failed", "timeout: 0.5 s of wall clock"),
        ({"waits": Waits(neither=0.5)}, "stalled", "nothing: no sign of life for 0.5 s"),
    ],
)
def test_L17_limits_end_in_named_states(kit: Lanes, words: dict[str, Any], state: str, reason: str) -> None:
    done = kit.run("sleep 600\n", **words)
    assert (done.result.state, done.result.reason) == (state, reason)
    found = journal.need(kit.store, f"run-{os.getpid()}/{kit.folder.name}/1")
    assert found.state == state and found.ended is not None


def test_it_can_be_stopped(kit: Lanes) -> None:
    stop = threading.Event()
    stop.set()
    assert kit.run("sleep 600\n", stop=stop.is_set).result.state == "cancelled"


def test_L25_a_version_that_refuses_its_command_line_says_so_in_its_own_words(kit: Lanes, tmp_path: Path) -> None:
    """A resumed turn of a codex that takes no `-C` ends as a mismatch and is no failure of the agent."""
    program = tmp_path / "codex"
    program.write_text("#!/bin/sh\necho \"error: unexpected argument '-C' found\" >&2\nexit 2\n")
    program.chmod(0o755)
    adapter = registry.get("codex")
    given = Start("Do it.", "/p", "/work/x", "/lane", None, "m", session="0198-session")
    first, again = adapter.launch(given._replace(session="")).argv, adapter.launch(given).argv
    assert first[:3] == again[:3] == ["codex", "exec", "--json"] and again[-3:] == ["resume", "0198-session", "-"]
    assert first[-1] == "-" and "resume" not in first and again.index("-C") < again.index("resume")
    with pytest.raises(AdapterMismatchError, match="unexpected argument '-C' found"):
        kit.run("", adapter=adapter, search=f"{tmp_path}:{CALLER['PATH']}", session="0198-session", model="m")


def test_a_program_that_is_missing_is_named_and_noted(kit: Lanes) -> None:
    with pytest.raises(HarnessError, match="no-such-agent"):
        kit.run([], adapter=Command("no-such-agent --fast"))
    (found,) = journal.lanes(kit.store)
    assert found.result is not None and found.state == "failed" and "no-such-agent" in found.result.reason


def test_a_program_that_can_not_be_started_is_named(kit: Lanes) -> None:
    broken = kit.folder / "broken"
    broken.write_text("#!/nonexistent/shell\n")
    broken.chmod(0o755)
    with pytest.raises(HarnessError, match="can't be started"):
        kit.run([], adapter=Command(str(broken)))


def test_much_output_and_odd_bytes_do_no_harm(kit: Lanes) -> None:
    done = kit.run("head -c 3000000 /dev/urandom; yes | head -n 100000; exit 0\n")
    assert done.result.code == 0
    assert (kit.folder / "lane-1" / "stdout").stat().st_size == 3_200_000


def test_a4_git_in_a_workspace_without_its_own_repository_finds_no_other(kit: Lanes) -> None:
    subprocess.run(["git", "init", "-q", str(kit.folder)], check=True, capture_output=True)
    (kit.folder / "users.txt").write_text("not committed\n")
    done = kit.run("git status; git add -A; exit $?\n")
    assert done.result.code == 128 and "not a git repository" in done.lane.stderr
    assert not (kit.folder / ".git" / "index").exists()


# the journal, and who goes on with a lane


def test_a_lane_is_noted_once_with_all_it_depends_on(kit: Lanes) -> None:
    wish = kit.wish([{"put": "f", "text": "x"}], base="b" * 40, check="true")
    done = lanes.run(kit.store, wish)
    found = journal.need(kit.store, wish.id)
    assert found.result == done.result and found.record.pid and found.record.start and found.record.boot
    assert found.record.key == lanes.key(wish)[0] != lanes.key(wish._replace(base="c" * 40))[0]
    with pytest.raises(InvalidError, match="already"):
        lanes.run(kit.store, wish)
    with pytest.raises(InvalidError, match="has ended"):
        lanes.adopt(kit.store, wish.id)


def test_a_verdict_is_added_once_and_makes_a_result_one_to_replay(kit: Lanes) -> None:
    wish = kit.wish([{"put": "f", "text": "x"}])
    lanes.run(kit.store, wish)
    hashed = lanes.key(wish)[0]
    assert journal.replay(kit.store, hashed) is None
    first = journal.set_verdict(kit.store, wish.id, True, tree="t" * 40, changeset="c" * 40)
    again = journal.set_verdict(kit.store, wish.id, False, "late")
    assert first == again and first is not None and first.passed and first.tree == "t" * 40
    found = journal.replay(kit.store, hashed)
    assert found is not None and found.record.lane == wish.id


_SUPERVISOR = """
import os, signal, sys
import msgspec
sys.path[:0] = {paths!r}
from tests.lane.test_lanes import Lanes
from pathlib import Path
from ropewalk.lane import lanes
from ropewalk.store.store import Store
root, folder, die = sys.argv[1], sys.argv[2], int(sys.argv[3])
kit = Lanes.__new__(Lanes)
kit.store, kit.folder, kit.work, kit.count = Store(root), Path(folder), Path(folder) / "work", 0
seen = 0
def tell(event):
    global seen
    if event.kind == "message":
        print(event.facts["text"], flush=True)
        seen += 1
        if seen == die:
            os.kill(os.getpid(), signal.SIGKILL)
running = lanes.start(kit.store, kit.wish(Path(folder, "agent.sh").read_text()), tell)
print("lane " + running.lane, flush=True)
if die == 0:
    os.kill(os.getpid(), signal.SIGKILL)
lanes.follow(kit.store, running)
"""


@pytest.mark.parametrize("die", [0, 1, 7, *([13, 20] if FULL else [])])
def test_G4_a_lane_whose_supervisor_was_killed_is_adopted_with_every_line(kit: Lanes, die: int) -> None:
    """Lines told before the kill and after the adoption are all of them, in order."""
    script = "for n in 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 20; do echo line $n; sleep 0.05; done\n"
    (kit.folder / "agent.sh").write_text(script)
    root = str(Path(__file__).resolve().parents[2])
    code = _SUPERVISOR.format(paths=[f"{root}/src", root, f"{root}/tests"])
    done = subprocess.run([sys.executable, "-c", code, kit.store.layout.root, str(kit.folder), str(die)],
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    first = done.stdout.splitlines()
    (lane,) = [line.removeprefix("lane ") for line in first if line.startswith("lane ")]
    told = [line for line in first if line.startswith("line ")]
    found = journal.need(kit.store, lane)
    assert found.result is None and found.state == "running"
    events: list[Event] = []
    ended = lanes.follow(kit.store, lanes.adopt(kit.store, lane, events.append))
    after = [str(event.facts["text"]) for event in events if event.kind == "message"]
    every = [f"line {number:02}" for number in range(1, 21)]
    # what was said in the moment of the kill is said again rather than never
    assert sorted({*told, *after}) == every and after == every[20 - len(after) :]
    assert (ended.result.state, ended.result.text) == ("done", "line 20")
    assert not supervisor.is_alive(found.record.folder)


def test_G4_a_lane_that_ended_unseen_is_read_to_its_end(kit: Lanes) -> None:
    running = lanes.start(kit.store, kit.wish("echo one; echo two; exit 4\n"))
    running.supervised.leave()
    _wait(lambda: not supervisor.is_alive(running.supervised.folder))
    events: list[Event] = []
    done = lanes.follow(kit.store, lanes.adopt(kit.store, running.lane, events.append))
    assert [event.facts["text"] for event in events] == ["one", "two"]
    assert (done.result.state, done.result.code) == ("failed", 4)


@pytest.mark.parametrize("level", ["none", "full"])
def test_G3_when_the_shim_is_killed_the_lane_is_dead_and_nothing_of_it_runs(kit: Lanes, level: str) -> None:
    if level == "full" and not os.path.exists("/usr/bin/bwrap"):
        pytest.skip("bubblewrap is not installed")
    mark = f"sleep 6{os.getpid() % 100_000:05}"
    running = lanes.start(kit.store, kit.wish(f"setsid {mark} & {mark}\n", level=level, network="none"))
    _wait(lambda: len(_with_words(mark)) >= 2)
    os.kill(running.supervised.pid, signal.SIGKILL)
    done = lanes.follow(kit.store, running)
    assert (done.result.state, done.result.reason) == ("dead", "its shim died")
    _wait(lambda: not _with_words(mark))


def test_G4_a_lane_that_was_never_started_is_not_started_late(kit: Lanes) -> None:
    """Its supervisor died between the note in the journal and the shim: who goes on finds nothing to go on with."""
    wish = kit.wish("touch ran\n")
    lanes.run(kit.store, wish._replace(id=f"{wish.id}/other", folder=f"{wish.folder}-other"))
    (kit.work / "ran").unlink()
    hashed, what = lanes.key(wish)
    journal.begin(kit.store, journal.Record(wish.id, hashed, "run", "one", 1, "a/b", what, wish.folder, str(kit.work),
                                            1, 1.0, "boot"))  # fmt: skip
    launch = Path(f"{wish.folder}-other", "launch.json")
    Path(wish.folder).mkdir()
    Path(wish.folder, "launch.json").write_bytes(launch.read_bytes())
    assert lanes.go_on(kit.store, wish.id) is None
    found = journal.need(kit.store, wish.id)
    assert found.result is not None and (found.state, found.result.reason) == ("dead", "it was never started")
    shim = os.path.join(os.path.dirname(supervisor.__file__), "shim.py")
    late = subprocess.run([sys.executable, "-I", "-S", shim, wish.folder], capture_output=True, timeout=30)
    assert late.returncode != 0 and not (kit.work / "ran").exists()


def test_G4_of_one_that_ended_with_a_result_that_was_written_the_account_is_read_again(kit: Lanes) -> None:
    events: list[Event] = []
    wish = kit.wish("echo one; echo two; exit 3\n")
    done = lanes.run(kit.store, wish, tell=events.append)
    again = lanes.go_on(kit.store, wish.id, tell=events.append)
    assert again is not None and again.result == done.result
    assert (again.lane.state, again.lane.ending, again.lane.exit) == (done.lane.state, done.lane.ending, done.lane.exit)
    assert [event.facts["text"] for event in events] == ["one", "two"]


def test_what_a_dead_supervisor_left_is_ended_and_noted(kit: Lanes) -> None:
    running = lanes.start(kit.store, kit.wish("sleep 600\n"))
    assert lanes.abandon(kit.store, running.lane.rsplit("/", 1)[0]) == [running.lane]
    assert not supervisor.is_alive(running.supervised.folder)
    found = journal.need(kit.store, running.lane)
    assert found.state == "dead" and found.result is not None
    running.supervised.leave()


@pytest.mark.parametrize("count", [20, *([100] if FULL else [])])
def test_many_lanes_at_once_are_all_recorded(kit: Lanes, count: int) -> None:
    root = kit.store.layout.root
    wishes = [kit.wish([{"put": f"f{number}", "text": "x"}], seconds=300.0) for number in range(count)]
    errors: list[BaseException] = []

    def one(wish: Wish) -> None:
        try:
            with Store(root, lock_wait=60.0) as store:
                lanes.run(store, wish)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(wish,)) for wish in wishes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[:3]
    found = journal.lanes(kit.store)
    assert {one.record.lane for one in found} == {wish.id for wish in wishes}
    assert journal.totals(found) == {"done": count}
    assert len([name for name in os.listdir(kit.work) if name.startswith("f")]) == count


def _wait(so: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until something is so; fails when it is not in time."""
    until = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if so():
            return
        until.wait(0.02)
    raise AssertionError("it did not become so")


def _with_words(words: str) -> list[int]:
    """Gives the living processes whose command line is exactly these words."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                said = file.read().replace(b"\0", b" ").strip()
        except OSError:
            continue
        if said == words.encode():
            found.append(int(name))
    return found


def test_the_journal_of_a_lane_is_plain_json(kit: Lanes) -> None:
    done = kit.run([{"put": "f", "text": "x"}])
    found = msgspec.json.decode(msgspec.json.encode(done.result))
    assert found["state"] == "done" and found["level"] == "none"
