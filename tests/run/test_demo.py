"""The demo shows what it claims, on the sample and on a repository it has never seen, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.clis import install

from ropewalk.plan.plan import read
from ropewalk.run.demo import cleaner, script
from ropewalk.testing import sample

SECONDS = 900
COMMAND = [sys.executable, "-m", "ropewalk.cli.main", "demo"]


class Place:
    """Is an empty folder in which the demo is run, with a folder of its own for what is temporary."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.here, self.temporary = folder / "here", folder / "tmp"
        self.here.mkdir()
        self.temporary.mkdir()
        self.env = {**env, "TMPDIR": str(self.temporary)}

    def demo(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """Runs it and gives (exit code, envelope, what it said meanwhile)."""
        done = subprocess.run([*COMMAND, *words], cwd=self.here, env=self.env, capture_output=True, timeout=SECONDS)
        return done.returncode, msgspec.json.decode(done.stdout), done.stderr.decode()

    def begun(self) -> subprocess.Popen[bytes]:
        """Starts it and gives it when agents are at work."""
        child = subprocess.Popen([*COMMAND, "--sample"], cwd=self.here, env=self.env, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
        assert child.stderr is not None
        for line in child.stderr:
            if b": started (" in line:
                return child
        raise AssertionError("no agent was started")

    def is_left(self) -> list[object]:
        """Gives what is left of it: files, and processes that work there; what ends by itself has time to."""
        until = time.monotonic() + SECONDS
        while (left := [*self.temporary.iterdir(), *cleaner.users(str(self.temporary))]) and time.monotonic() < until:
            time.sleep(0.05)
        return left


@pytest.fixture
def place(tmp_path: Path, clean: dict[str, str]) -> Place:
    """Gives an empty folder."""
    return Place(tmp_path, clean)


def test_the_whole_story_on_the_sample(place: Place) -> None:
    code, envelope, err = place.demo("--sample", "--report", "report.html")
    result = envelope["result"]
    assert code == 0 and result["failed"] == [], (result, err)
    assert result["tasks"] == result["changes"] == result["run"]["landed"] == 14 and result["crossing"] >= 6
    assert sorted(result["regions"]) == ["docs (4)", "larder (6)", "tests (4)"]
    assert result["goal"] == sample.GOAL and result["run"]["mode"] == "goal" and not result["real"]
    assert len(result["mended"]) == 2 and "planning, try 2 of 3" in err and result["mended"][0] in err
    assert [c["resolved"] for c in result["conflicts"]] == [True]
    assert result["repaired"] == ["negative"] and result["killed"] == ["export"]
    assert result["fsck"] == "clean" and result["verified"].endswith("sound")
    assert result["history"].count("\n") >= 14
    assert result["report"].startswith("# Run ") and "| conflicts | 1 |" in result["report"]
    assert result["file"] == str(place.here / "report.html") and "<svg" in (place.here / "report.html").read_text()
    assert place.is_left() == []


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGTERM))]
)
def test_nothing_is_left_of_a_demo_that_is_ended_on_its_way(place: Place, number: int) -> None:
    child = place.begun()
    assert list(place.temporary.iterdir()) and cleaner.users(str(place.temporary))
    os.kill(child.pid, number)
    out, err = child.communicate(timeout=SECONDS)
    assert child.returncode == (-9 if number == signal.SIGKILL else 130), err
    assert out == b"" and b"Traceback" not in err
    assert place.is_left() == []


@pytest.mark.slow
def test_two_at_once_on_a_repository_they_have_never_seen(place: Place, git: Any) -> None:
    git("init", "-q", "-b", "trunk", ".", folder=place.here)
    (place.here / "code.txt").write_text("a line of some length\n" * 2 + "another line, once\n")
    git("add", ".", folder=place.here)
    git("commit", "-qm", "first", folder=place.here)
    before = {p: p.read_bytes() for p in place.here.rglob("*") if p.is_file()}
    both = [subprocess.Popen(COMMAND, cwd=place.here, env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)]  # fmt: skip
    for one in both:
        out, err = one.communicate(timeout=SECONDS)
        envelope = msgspec.json.decode(out)
        assert one.returncode == 0, (envelope, err)
        assert envelope["result"]["repository"] == "here" and envelope["result"]["changes"] >= 14
    assert {p: p.read_bytes() for p in place.here.rglob("*") if p.is_file()} == before
    assert place.is_left() == []


@pytest.mark.slow
def test_by_itself_in_a_home_that_nobody_may_write(place: Place) -> None:
    place.env |= {"HOME": "/proc", "PATH": "/usr/bin:/bin"}
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        place.env.pop(name, None)
    code, envelope, err = place.demo("--sample", "--agents", "4")
    assert code == 0, (envelope, err)
    assert envelope["result"]["agents"] == 4 and "none is installed" in envelope["result"]["more"][0]


def test_what_is_not_shown_is_refused_before_anything_is_made(place: Place) -> None:
    for words, said in (
        (["--harness", "claude"], "E_HARNESS"),
        (["--real"], "E_INVALID"),
        (["--harness", "scripted", "--real"], "E_INVALID"),
        (["--report", "nowhere/report.html"], "E_INVALID"),
        (["/proc"], "E_INVALID"),
    ):
        place.env["PATH"] = "/usr/bin:/bin"
        code, envelope, _ = place.demo(*words)
        assert code != 0 and envelope["error"]["code"] == said, (words, envelope)
    assert place.is_left() == []


_PROGRAM = """
import json, os, sys
told = sys.stdin.read()
task = {"module": "larder", "role": "Builder", "class": "build", "description": "Write a.txt, for the sake of it."}
if "# The plan" in told:
    print(json.dumps({"summary": "One file", "modules": [{"name": "larder", "path": "larder"}],
                      "tasks": [{"id": "one", "check": "test -s larder/a.txt", **task}]}))
elif "No plan yet" in told:
    print(json.dumps({"parts": [], "tests": [], "notes": []}))
else:
    open("larder/a.txt", "w").write(os.environ["ANTHROPIC_BASE_URL"])
"""


def test_a_model_of_ones_own_is_asked_where_it_is_named(place: Place, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(_PROGRAM)
    config = tmp_path / "config" / "ropewalk"
    config.mkdir(parents=True)
    (config / "endpoints.toml").write_text('[endpoints.mine]\nurl = "http://127.0.0.1:9"\nkey = "k"\n')
    (config / "endpoints.toml").chmod(0o600)
    place.env |= {"XDG_CONFIG_HOME": str(tmp_path / "config"), "ROPEWALK_CAGE": "none"}
    code, envelope, err = place.demo("--sample", "--real", "--harness", f"command:{sys.executable} {agent}")
    result = envelope["result"]
    assert code == 0, (envelope, err)
    assert result["real"] and result["changes"] == 1 and result["conflicts"] == [] and result["cage"] == "none"
    assert place.is_left() == []


@pytest.mark.clis
@pytest.mark.slow
@pytest.mark.compat
def test_real_programs_side_by_side_with_a_scripted_model(place: Place) -> None:
    held = install.default_folder()
    found = [install.binary(held, name) for name in ("node", "claude", "codex")]
    if None in found or not shutil.which("bwrap"):
        if os.environ.get("CI") == "true" and os.environ.get("RWTEST_CLIS") == "1":
            pytest.fail("claude, codex, node or bubblewrap is not there")
        pytest.skip("claude, codex, node or bubblewrap is not installed (python tests/clis/install.py)")
    place.env["PATH"] = ":".join([*(str(one.parent) for one in found if one), "/usr/local/bin:/usr/bin:/bin"])
    code, envelope, err = place.demo("--sample", "--harness", "claude,codex")
    result = envelope["result"]
    assert code == 0 and result["failed"] == [], (result, err)
    by = {task["id"]: task["harness"] for task in result["run"]["tasks"]}
    assert by["export"] == "claude" and by["usage-export"] == "codex" and result["cage"] == "full"
    assert result["repaired"] == ["negative"] and result["killed"] == ["export"]
    assert [c["resolved"] for c in result["conflicts"]] == [True]
    assert place.is_left() == []


def test_the_first_plan_is_refused_for_what_is_wrong_with_it_and_the_second_is_taken() -> None:
    good = read(sample.plan())
    assert good.plan is not None
    bad = read(msgspec.json.encode(script.flawed(good.plan)).decode())
    assert bad.plan is None and len(bad.problems) == 2
    spread = script.shared_out(good.plan, ("claude", "codex"))
    assert not any("```script" in task.description for task in spread.tasks)
    assert {task.harness for task in spread.tasks} == {"claude", "codex"}


def test_the_samples_history_is_the_same_each_time(tmp_path: Path, git: Any) -> None:
    heads = set()
    for name in ("one", "two"):
        sample.build(str(tmp_path / name))
        heads.add(git("rev-parse", "HEAD", folder=tmp_path / name))
        assert git("status", "--porcelain", folder=tmp_path / name) == ""
    assert len(heads) == 1
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"], cwd=tmp_path / "one", capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
