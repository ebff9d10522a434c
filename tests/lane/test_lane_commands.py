"""Lanes by the real command: started in the background, looked at, stopped, collected, swept up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core import clock
from ropewalk.lane import attend, journal
from ropewalk.lane.journal import Ingredients, Record, Result
from ropewalk.store.store import Store

CAGE = os.path.exists("/usr/bin/bwrap")


class Kit:
    """Is a store with commands as processes, and agents that are shell scripts."""

    def __init__(self, store: Store, folder: Path, env: dict[str, str]) -> None:
        self.store, self.root, self.folder = store, store.layout.root, folder
        self.env = {k: v for k, v in env.items() if not k.startswith("GIT_")} | {
            "XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config"),
            "ROPEWALK_AGENT": "person/me", "ROPEWALK_CAGE": "none", "PYTHONDEVMODE": "",
        }  # fmt: skip

    def agent(self, script: str) -> str:
        """Gives the command line of an agent that runs a script."""
        path = self.folder / f"agent-{len(list(self.folder.glob('agent-*')))}.sh"
        path.write_text(f"cat > /dev/null\n{script}\n")
        return f"sh {path}"

    def rw(self, *words: str, exit: int = 0) -> dict[str, Any]:
        """Runs a command and gives its result, or its error."""
        done = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", *words, "--store", self.root, "--json"],
                              cwd=self.folder, env=self.env, capture_output=True, timeout=120)  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        assert done.returncode == exit, (done.returncode, found)
        return dict(found["result"] if found["ok"] else found["error"])

    def start(self, name: str, script: str, *words: str, exit: int = 0) -> dict[str, Any]:
        """Starts a lane."""
        return self.rw("lane", "start", name, f"do {name}", "--command", self.agent(script), *words, exit=exit)

    def until(self, so: Callable[[], bool]) -> None:
        """Waits until something is so."""
        end = time.monotonic() + 60
        while not so():
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.fixture
def kit(store: Store, tmp_path: Path, clean: dict[str, str]) -> Kit:
    """Gives commands on a store."""
    return Kit(store, tmp_path, clean)


def test_a_lane_is_started_collected_and_landed(kit: Kit) -> None:
    begun = kit.start("greet", "echo hello > hello.txt; echo 'TESTS: pass'")
    assert begun["lane"]["lane"] == "lane/greet/1" and begun["workspace"] == "greet"
    got = kit.rw("lane", "collect", "greet", "--check", "grep hello hello.txt", "--owns", "hello.txt")
    assert got["passed"] and got["changed"] == ["hello.txt"] and got["reply"] == {"tests": "pass"}
    shown = kit.rw("lane", "show", "lane/greet/1")
    assert shown["tree"] == got["tree"] and shown["lane"]["passed"] is True and shown["lane"]["state"] == "done"
    assert kit.rw("lane", "logs", "greet")["lines"] == ["TESTS: pass"]
    assert kit.rw("ws", "land", "greet", "--message", "Greet")["land"]["status"] == "landed"
    listed = kit.rw("lane", "list")
    assert listed["totals"] == {"done": 1} and listed["lanes"][0]["harness"] == "command"


@pytest.mark.parametrize(
    ("script", "words", "reason"),
    [
        ("echo x > f", ["--check", "echo no; exit 3"], "check: it ended with 3"),
        ("echo x > f", ["--owns", "src/**"], "scope: 1 files outside"),
        ("echo x > f; echo 'TESTS: all passed'", ["--check", "false"], "the agent says"),
        (
            "echo \"k = 'sk-ant-$(printf 'a%.0s' $(seq 40))'\" > f",
            [],
            "held back: f: it holds what looks",
        ),
        ("head -c 11000000 /dev/zero > f", [], "held back: f: it is larger than 10 MiB"),
        ("echo x > f; echo '{\"a\": 1}'", ["--reply", "shape.json"], "reply: a:"),
    ],
)
def test_the_gate_refuses_with_its_reason(kit: Kit, script: str, words: list[str], reason: str) -> None:
    (kit.folder / "shape.json").write_text('{"properties": {"a": {"type": "string"}}, "required": ["a"]}')
    kit.start("one", script)
    got = kit.rw("lane", "collect", "one", *words, exit=10)
    assert not got["passed"] and [one for one in got["reasons"] if reason in one], got["reasons"]
    assert reason in kit.rw("lane", "show", "one")["gate"]


def test_a_lane_is_stopped_with_all_its_processes(kit: Kit) -> None:
    mark = f"sleep 7{os.getpid() % 100_000:05}"
    kit.start("long", f"setsid {mark} & {mark}")
    kit.until(lambda: len(_with_words(mark)) == 2)
    assert kit.rw("lane", "steer", "long", "hurry", exit=2)["code"] == "E_UNSUPPORTED"
    ended = kit.rw("lane", "stop", "long")
    assert (ended["lane"]["state"], ended["lane"]["reason"]) == ("cancelled", "it was stopped")
    assert _with_words(mark) == []
    assert kit.rw("lane", "stop", "long", exit=2)["code"] == "E_INVALID"
    assert kit.rw("lane", "collect", "long", exit=130)["changed"] == []


def test_G4_who_attends_to_a_lane_is_killed_and_it_goes_on(kit: Kit, tmp_path: Path) -> None:
    go = tmp_path / "go"
    kit.start("one", f"for n in 1 2 3; do echo line $n; done; while ! test -e {go}; do sleep 0.05; done; echo line 4")
    pid = _attending(kit.root)
    os.kill(pid, signal.SIGKILL)
    folder = kit.rw("lane", "list", "--open")["lanes"] and kit.rw("lane", "show", "one")["folder"]
    kit.until(lambda: attend.is_attended(folder))
    assert _attending(kit.root) != pid
    go.touch()
    got = kit.rw("lane", "collect", "one")
    assert got["lane"]["state"] == "done" and got["text"] == "line 4"
    assert kit.rw("lane", "logs", "one", "--lines", "2")["lines"] == ["line 3", "line 4"]


def test_a_second_turn_goes_on_in_the_same_workspace(kit: Kit) -> None:
    kit.start("one", "echo 1 > f", "--wait")
    second = kit.start("one", "cat f > g", "--wait")
    assert second["lane"]["lane"] == "lane/one/2" and second["workspace"] == "one"
    assert kit.rw("lane", "collect", "one")["changed"] == ["f", "g"]


def test_an_open_lane_has_its_name_alone(kit: Kit) -> None:
    kit.start("one", "sleep 600")
    assert kit.start("one", "true", exit=6)["code"] == "E_BUSY"
    kit.rw("lane", "stop", "one")


def test_how_a_lane_ended_is_the_exit_code(kit: Kit) -> None:
    assert kit.start("died", "kill -9 $$", "--wait", exit=14)["lane"]["state"] == "dead"
    assert kit.start("said-no", "exit 3", "--wait", exit=10)["lane"]["state"] == "failed"
    assert kit.start("late", "sleep 600", "--wait", "--seconds", "0.5", exit=10)["lane"]["reason"].startswith("timeout")
    assert kit.rw("lane", "start", "no", "x", "--command", "no-such-program", exit=11)["code"] == "E_HARNESS"
    assert kit.rw("lane", "start", "no", "x", "--harness", "nothing", exit=2)["code"] == "E_INVALID"
    assert kit.rw("lane", "show", "nothing", exit=4)["code"] == "E_NOT_FOUND"


@pytest.mark.skipif(not CAGE, reason="bubblewrap is not installed")
def test_a_lane_in_a_full_cage_sees_no_store_and_its_work_comes_back(kit: Kit) -> None:
    done = kit.start("one", f"test ! -e {kit.root}/store.db && echo \"$PWD $ROPEWALK_STORE\" > where", "--cage", "full",
                     "--wait")  # fmt: skip
    assert done["lane"]["cage"] == "full" and done["lane"]["state"] == "done"
    assert kit.rw("lane", "collect", "one", "--check", "grep '^/work/[a-z]* $' where")["passed"]
    path = Path(kit.rw("ws", "info", "one")["path"], "where")
    assert path.stat().st_uid == os.geteuid()


def test_a_session_that_a_person_drives_is_a_lane(kit: Kit) -> None:
    made = kit.rw("chip", "open", "mine", "mend it")
    Path(made["path"], "f").write_text("mine\n")
    assert kit.rw("lane", "list")["totals"] == {"running": 1}
    assert [one["verdict"] for one in kit.rw("sweep")["lanes"]] == ["active"]
    assert kit.rw("chip", "close", "mine", "mended")["state"] == "done"
    assert [one["state"] for one in kit.rw("chip", "list")["chips"]] == ["done"]
    assert kit.rw("lane", "collect", "mine")["changed"] == ["f"]


def test_sweeping_takes_what_holds_no_work_and_nothing_else(kit: Kit) -> None:
    kit.start("landed", "echo x > f", "--wait")
    kit.rw("ws", "land", "landed", "--message", "x")
    kit.start("works", "echo y > g", "--wait")
    kit.start("ignores", "echo z.log > .gitignore; echo z > z.log", "--wait")
    kit.rw("ws", "land", "ignores", "--message", "z")
    kit.start("runs", "sleep 600")
    want = {"landed": "reclaimable", "works": "holds-work", "ignores": "landed-untracked", "runs": "active"}
    found = kit.rw("sweep")
    assert {one["lane"].split("/")[1]: one["verdict"] for one in found["lanes"]} == want and found["bytes"] == 0
    assert kit.rw("sweep", "--older-than", "1")["lanes"] == []
    dry = kit.rw("sweep", "--reclaim", "--dry-run")
    assert dry["bytes"] > 0 and not [one for one in dry["lanes"] if one.get("removed")]
    (gone,) = [one for one in kit.rw("sweep", "--reclaim")["lanes"] if one.get("removed")]
    assert gone["lane"] == "lane/landed/1"
    with tarfile.open(gone["archive"]) as packed:
        assert {"stdout", "exit.json", "launch.json"} <= set(packed.getnames())
    assert kit.rw("lane", "archive", "landed")["archive"] == gone["archive"]
    left = {one["lane"].split("/")[1] for one in kit.rw("sweep")["lanes"]}
    assert left == {"works", "ignores", "runs"}
    kit.rw("lane", "stop", "runs")


def test_nothing_goes_when_it_can_not_be_archived(kit: Kit) -> None:
    kit.start("one", "true", "--wait")
    folder = kit.rw("lane", "show", "one")["folder"]
    archive = Path(folder).parents[2] / "archive"
    archive.write_text("in the way\n")
    assert kit.rw("sweep", "--reclaim", exit=7)["code"] == "E_IO"
    assert Path(folder, "stdout").exists() and Path(kit.rw("ws", "info", "one")["path"]).exists()


def test_the_doctor_the_gateway_and_a_dead_endpoint(kit: Kit) -> None:
    found = kit.rw("doctor", "--for", "scripted")
    assert found["ok"] and found["harnesses"][0]["status"] in ("ok", "advisory") and not found["live"]
    assert not kit.rw("doctor", "--for", "no-such-harness", exit=11)["ok"]
    status = kit.rw("gateway", "status")
    assert (status["running"], status["lanes"]) == (False, [])
    assert kit.rw("gateway", "swap", "a", "b", exit=4)["code"] == "E_NOT_FOUND"
    assert kit.rw("probe", "http://127.0.0.1:9", exit=13)["verdict"] == "not"
    assert kit.rw("probe", "nowhere", exit=2)["code"] == "E_INVALID"


def test_the_status_of_a_thousand_lanes_is_quick(kit: Kit) -> None:
    what = Ingredients("command", "", "", "", "", "", "p" * 2000, "", "none", "open")
    with kit.store.transaction() as tx:
        for number in range(1000):
            lane = f"lane/many/{number}"
            record = Record(lane, "k", "lane", "many", number, "a/b", what, str(kit.folder / "none"), "/w", 1, 0.0, "b")
            result = Result("done", "", "text" * 100, 1.0, None, 0.0, "", 1, 1, "none")
            packed = msgspec.msgpack.encode(record), msgspec.msgpack.encode(result)
            tx.db.run("INSERT INTO lanes VALUES (?, 'k', 'lane', 'many', 'done', ?, ?, ?, ?)",
                      (lane, clock.now(), clock.now(), *packed))  # fmt: skip
    began = time.perf_counter()
    found = journal.lanes(kit.store, limit=1000)
    for one in found:
        attend.renew(kit.store, one)
    took = time.perf_counter() - began
    assert len(found) == 1000 and took < 0.3
    assert kit.rw("lane", "list", "--limit", "1000")["totals"] == {"done": 1000}


def _with_words(words: str) -> list[int]:
    """Gives the living processes whose command line is exactly these words."""
    return [pid for pid, said in _commands() if said == words]


def _attending(root: str) -> int:
    """Gives the process that attends to the only lane of a store."""
    (found,) = [pid for pid, said in _commands() if "ropewalk.lane.attend" in said and root in said]
    return found


def _commands() -> list[tuple[int, str]]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                found.append((int(name), file.read().replace(b"\0", b" ").strip().decode("utf-8", "replace")))
        except OSError:
            continue
    return found


def test_a_session_of_a_persons_is_ended_by_its_own_command_alone(kit: Kit) -> None:
    """There is no process and no folder of ours: nothing is looked for, and nothing made, where the command is run."""
    kit.rw("chip", "open", "mine", "mend it")
    for name in ("stdout", "stderr"):
        (kit.folder / name).write_text("not the lane's\n")
    before = sorted(path.name for path in kit.folder.iterdir())
    assert kit.rw("chip", "open", "mine", "again", exit=6)["code"] == "E_BUSY"
    assert "attended" not in kit.rw("lane", "show", "mine")
    assert kit.rw("lane", "logs", "mine", exit=4)["code"] == "E_NOT_FOUND"
    assert "rw chip close" in kit.rw("lane", "stop", "mine", exit=2)["hint"]
    assert "rw chip close" in kit.rw("lane", "steer", "mine", "x", exit=2)["hint"]
    assert [one["state"] for one in kit.rw("chip", "list")["chips"]] == ["running"]
    assert sorted(path.name for path in kit.folder.iterdir()) == before
    kit.rw("chip", "close", "mine")
    assert kit.rw("chip", "open", "mine", "once more")["lane"] == "chip/mine/2"
    kit.rw("chip", "close", "mine")
    swept = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", "sweep", "--reclaim", "--human", "--store",
                            kit.root], cwd=kit.folder, env=kit.env, capture_output=True, timeout=120)  # fmt: skip
    assert swept.returncode == 0 and b"(removed; it had no files)" in swept.stdout, swept.stderr.decode()
