"""The real agent programs against the scripted model server: one script drives them all.

They are those that `python tests/clis/install.py` installs; what is not there is skipped, but with CI=true and
RWTEST_CLIS=1 it is a failure.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clis import commands, install
from tests.clis.run import end_all, prepare, run

from ropewalk.testing.model_server import ModelServer, running

pytestmark = [pytest.mark.clis, pytest.mark.compat]
WIRES = {"claude": "messages", "codex": "responses", "gemini": "gemini"}
# what a run asks for beside the agent's own turns: titles, a line for the list of sessions
SIDE = {"grok": 2, "opencode": 1}
# their exit code says nothing
ALWAYS_ZERO = {"pi"}
PROMPT = "Please write hello.txt."


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with running(keep_bodies=True) as made:
        yield made


@pytest.fixture(autouse=True)
def no_homes_stay(tmp_path: Path) -> Iterator[None]:
    """Removes the homes that programs filled."""
    yield
    shutil.rmtree(tmp_path / "home", ignore_errors=True)


@pytest.fixture(params=sorted(commands.STARTS))
def program(request: pytest.FixtureRequest) -> str:
    """Gives the name of an installed program."""
    return needed(str(request.param))


def needed(name: str) -> str:
    """Gives a program's name, skips where it is not there."""
    held = install.default_folder()
    missing = [one for one in ("node", name) if install.binary(held, one) is None]
    if missing and os.environ.get("CI") == "true" and os.environ.get("RWTEST_CLIS") == "1":
        pytest.fail(f"{', '.join(missing)} is not in {held}")
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed (python tests/clis/install.py)")
    return name


@pytest.mark.parametrize("scenario", ["write", "shell"])
def test_one_script_drives_every_program(server: ModelServer, program: str, scenario: str, tmp_path: Path) -> None:
    lane = f"{program}-{scenario}"
    ran = run(program, server.url(lane, scenario), tmp_path, PROMPT)
    assert ran.code == 0, ran.err
    assert (ran.work / "hello.txt").read_text(encoding="utf-8") == f"hello from {lane}\n"
    assert "FINAL-ANSWER" in ran.out
    entries = [e for e in server.entries(lane) if e.message_id]
    mine = [e for e in entries if not e.side]
    assert [(e.turn, e.step, len(e.called)) for e in mine] == [(0, 0, 1), (0, 1, 0)]
    assert {e.wire for e in mine} == {WIRES.get(program, "chat")}
    assert all(PROMPT in e.prompt and e.streaming and not e.steers for e in mine)
    counts = server.counts()[lane]
    assert (counts.answers, counts.side, counts.failed, counts.open) == (2, SIDE.get(program, 0), 0, 0)


@pytest.mark.parametrize("failure", ["e401", "ctx"])
def test_a_failure_reaches_every_program(server: ModelServer, program: str, failure: str, tmp_path: Path) -> None:
    lane = f"{program}-{failure}"
    ran = run(program, server.url(lane, failure), tmp_path, PROMPT)
    assert (ran.code == 0) == (program in ALWAYS_ZERO), ran
    assert not (ran.work / "hello.txt").exists()
    outcomes = server.counts()[lane].outcomes
    assert set(outcomes) == {failure} and server.counts()[lane].answers == 0


USAGE = [
    {
        "tool": "shell",
        "cmd": "echo hi > hello.txt",
        "usage": {"input": 900, "output": 70, "cache_read": 40, "cache_write": 8, "reasoning": 30},
    },
    {
        "text": "FINAL-ANSWER",
        "usage": {"input": 1900, "output": 170, "cache_read": 140, "cache_write": 18, "reasoning": 130},
    },
]


def counted(program: str, out: str) -> tuple[int, int, int]:
    """Gives the tokens a program says it used: all it read, of that from the cache, all it wrote with reasoning."""
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    ends = ("result", "turn.completed", "end", "agent_end")
    last: dict[str, Any] = next((e for e in reversed(events) if e["type"] in ends), {})
    usage = last.get("usage", {})
    if program == "opencode":  # input is without the cache's, output without reasoning
        steps = [e["part"]["tokens"] for e in events if e["type"] == "step_finish"]
        read = sum(t["cache"]["read"] for t in steps)
        written = sum(t["cache"]["write"] for t in steps)
        return sum(t["input"] for t in steps) + read + written, read, sum(t["output"] + t["reasoning"] for t in steps)
    if program == "pi":  # input is without the cache's
        turns = [m["usage"] for m in last["messages"] if m["role"] == "assistant"]
        read = sum(t["cacheRead"] for t in turns)
        written = sum(t["cacheWrite"] for t in turns)
        return sum(t["input"] for t in turns) + read + written, read, sum(t["output"] for t in turns)
    if program == "gemini":  # its output leaves reasoning out, the total does not
        stats = last["stats"]
        return stats["input_tokens"], stats["cached"], stats["total_tokens"] - stats["input_tokens"]
    if program in ("claude", "grok"):  # input is without the cache's
        read = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + read + usage["cache_creation_input_tokens"], read, usage["output_tokens"]
    read = usage["cached_input_tokens" if program == "codex" else "cache_read_input_tokens"]
    return usage["input_tokens"], read, usage["output_tokens"]


# copilot says no tokens for a provider of one's own
@pytest.mark.parametrize("program", sorted(commands.STARTS.keys() - {"copilot"}), indirect=True)
def test_L26_a_program_counts_what_it_was_told(server: ModelServer, program: str, tmp_path: Path) -> None:
    server.add("usage", USAGE)
    ran = run(program, server.url(f"{program}-usage", "usage"), tmp_path, PROMPT)
    told = [e.usage for e in server.entries(f"{program}-usage") if e.usage is not None and not e.side]
    assert len(told) == 2
    expected = sum(u.prompt for u in told), sum(u.cache_read for u in told), sum(u.output for u in told)
    assert counted(program, ran.out) == expected == (3006, 180, 240)


def test_claude_is_steered_within_a_turn(server: ModelServer, tmp_path: Path) -> None:
    """A steer during a tool's work is in the next request, the script goes on, and the next prompt begins anew."""
    name = needed("claude")
    server.add("slow", [{"tool": "shell", "cmd": "while [ ! -e go ]; do sleep 0.05; done"}, {"text": "One is done."}])
    words, env, work = prepare(name, server.url("steer", "slow"), tmp_path, PROMPT)
    del words[words.index("-p") + 1]
    words += ["--input-format", "stream-json", "--replay-user-messages"]
    child = subprocess.Popen(
        words, cwd=work, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        results, called = 0, False
        say(child, PROMPT)
        for line in child.stdout:
            event = json.loads(line)
            if event["type"] == "assistant" and not called:
                called = True
                say(child, "Hurry up, please.")
                while unread(child.stdin.fileno()):
                    assert child.poll() is None
                (work / "go").touch()
            elif event["type"] == "result":
                results += 1
                if results == 1:
                    say(child, "A second prompt.")
                else:
                    break
        child.stdin.close()
        assert child.wait(60) == 0
    finally:
        end_all(tmp_path / "home")
        child.wait()
        child.stdout.close()
    places = [(e.turn, e.step, bool(e.steers)) for e in server.entries("steer") if e.message_id]
    assert places[:2] == [(0, 0, False), (0, 1, True)]
    assert places[2:] == [(1, 0, False), (1, 1, False)]


def unread(pipe: int) -> int:
    """Gives how many bytes of a pipe nobody has read yet."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0])


def say(child: subprocess.Popen[str], text: str) -> None:
    """Sends a line of a person to claude's standard input."""
    assert child.stdin is not None
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    child.stdin.write(json.dumps({"type": "user", "message": message}) + "\n")
    child.stdin.flush()


RESUME = {
    "claude": ["--continue"],
    "codex": ["--last", "Please write it again."],
    "copilot": ["--continue"],
    "gemini": ["--resume", "latest"],
    "grok": ["--continue"],
    "opencode": ["--continue"],
    "pi": ["--continue"],
    "qwen": ["--continue"],
}


def test_L25_a_resumed_session_is_the_next_turn(server: ModelServer, program: str, tmp_path: Path) -> None:
    lane, url = f"{program}-resumed", server.url(f"{program}-resumed", "write")
    assert run(program, url, tmp_path, PROMPT).code == 0
    # codex has a command for it, where others have a flag
    again = "resume" if program == "codex" else "Please write it again."
    assert run(program, url, tmp_path, again, RESUME[program]).code == 0
    places = [(e.turn, e.step) for e in server.entries(lane) if e.message_id and not e.side]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
