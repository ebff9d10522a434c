"""The doctor: what it says of programs that are there, broken, old or missing, and that it fails closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.gateway.settings import Upstream
from ropewalk.lane import doctor
from ropewalk.lane.doctor import Live, Report, examine
from ropewalk.lane.programs import registry
from ropewalk.testing.model_server import running

SYSTEM = "/usr/bin:/bin"
AGENT = """#!/usr/bin/env python3
import os, sys, urllib.request, json
if "--version" in sys.argv: sys.exit(print("agent 1.2.3"))
body = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": sys.stdin.read()}],
                   "tools": [{"name": "Write", "input_schema": {"type": "object"}}]}).encode()
asked = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body, {
    "x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"})
print(json.load(urllib.request.urlopen(asked))["content"][0]["text"])
"""


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


def look(folder: Path, *wanted: str, live: Live | None = None, level: str = "none", search: str = "") -> Report:
    return examine(
        wanted, search=search or f"{folder}:{SYSTEM}", caller={"LANG": "C.UTF-8"}, folder=str(folder / "later"),
        level=level, live=live,  # type: ignore[arg-type]
    )  # fmt: skip


def verdicts(report: Report, name: str) -> dict[str, tuple[str, str]]:
    one = next(one for one in report.harnesses if one.name == name)
    return {check.what: (check.status, check.words) for check in one.checks}


def test_a_program_of_a_tested_version_is_good(tmp_path: Path) -> None:
    program(tmp_path, "claude", "#!/bin/sh\necho '2.1.332 (Claude Code)'\n")
    report = look(tmp_path, "claude")
    one = report.harnesses[0]
    assert (report.status, report.ok, one.status, one.version) == ("ok", True, "ok", "2.1.332")
    assert one.path == str(tmp_path / "claude") and one.lanes > 0
    assert not report.live


def test_what_is_missing_fails_only_who_asked_for_it(tmp_path: Path) -> None:
    asked = look(tmp_path, "codex")
    assert (asked.status, asked.ok, asked.harnesses[0].status) == ("fail", False, "fail")
    assert "npm install" in asked.harnesses[0].checks[0].hint
    unasked = look(tmp_path)
    assert {one.name for one in unasked.harnesses} == set(registry.PROGRAMS)
    assert {one.status for one in unasked.harnesses} == {"unavailable"}
    assert unasked.ok and unasked.status == "advisory"


@pytest.mark.parametrize(
    ("text", "status", "what", "words"),
    [
        ("#!/bin/sh\necho 2.2.0\n", "advisory", "version", "newer"),
        ("#!/bin/sh\necho 2.1.9\n", "advisory", "version", "older"),
        ("#!/bin/sh\necho hello\n", "fail", "starts", "no version"),
        ("#!/bin/sh\necho no such library >&2; exit 127\n", "fail", "starts", "no such library"),
        ("#!/no/such/interpreter\n", "fail", "starts", "No such file"),
        ("\x7fELF nonsense", "fail", "starts", "xec format"),
    ],
)  # fmt: skip
def test_what_does_not_start_or_is_untested_is_told(
    tmp_path: Path, text: str, status: str, what: str, words: str
) -> None:
    program(tmp_path, "claude", text)
    found = verdicts(look(tmp_path, "claude"), "claude")[what]
    assert found[0] == status and words in found[1]


def test_a_program_that_hangs_is_a_failure_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "VERSION_SECONDS", 0.5)
    program(tmp_path, "claude", "#!/bin/sh\nsleep 600\n")
    assert verdicts(look(tmp_path, "claude"), "claude")["starts"][0] == "fail"


def test_a_program_sees_no_secret_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "real")
    program(tmp_path, "claude", f"#!/bin/sh\nenv > {tmp_path}/seen\npwd >> {tmp_path}/seen\necho 2.1.332\n")
    look(tmp_path, "claude")
    seen = (tmp_path / "seen").read_text()
    assert "real" not in seen and f"HOME={os.environ['HOME']}\n" not in seen


@pytest.mark.parametrize(("node", "status"), [("v22.19.0", "ok"), ("v20.1.0", "fail"), (None, "fail"), ("", "fail")])
def test_node_is_wanted_in_a_version_that_the_program_takes(tmp_path: Path, node: str | None, status: str) -> None:
    program(tmp_path, "pi", "#!/usr/bin/env node\n")
    if node is not None:
        program(tmp_path, "node", f'#!/bin/sh\n[ "$1" = --version ] && echo {node} || echo 1.6.0\n')
    # no system folder on the PATH, so that no node of the machine is found
    report = look(tmp_path, "pi", search=str(tmp_path))
    assert verdicts(report, "pi")["node"][0] == status
    assert report.ok == (status == "ok") or status == "ok"


def test_a_harness_that_nothing_has_fails_closed(tmp_path: Path) -> None:
    report = look(tmp_path, "cluade")
    assert (report.ok, report.harnesses[0].status) == (False, "fail")


def test_any_command_may_be_a_harness_without_a_version(tmp_path: Path) -> None:
    program(tmp_path, "agent.sh", "#!/bin/sh\nexit 3\n")
    report = look(tmp_path, f"command:{tmp_path}/agent.sh")
    assert report.ok and report.harnesses[0].status == "advisory"


def test_a_cage_that_is_asked_for_counts_and_others_do_not(tmp_path: Path) -> None:
    program(tmp_path, "claude", "#!/bin/sh\necho 2.1.332\n")
    for level in ("full", "files", "none"):
        report = look(tmp_path, "claude", level=level)
        found = {check.what: check.status for check in report.machine}
        assert set(found) >= {"cage full", "cage files", "cage none", "disk", "memory"}
        assert report.ok == (found[f"cage {level}"] == "ok")


def test_memory_says_how_many_lanes_there_may_be(tmp_path: Path) -> None:
    program(tmp_path, "claude", "#!/bin/sh\necho 2.1.332\n")
    program(tmp_path, "opencode", "#!/bin/sh\necho 1.18.33\n")
    report = look(tmp_path, "claude", "opencode")
    claude, opencode = report.harnesses
    assert claude.lanes > opencode.lanes > 0
    memory = next(check for check in report.machine if check.what == "memory")
    assert claude.lanes * registry.get("claude").memory << 20 <= memory.facts["available"]


def test_a_turn_is_taken_only_when_it_is_asked_for(tmp_path: Path) -> None:
    """One turn by a gateway of its own; a refused key is a failure, a provider in trouble unreachable."""
    program(tmp_path, "agent", AGENT)
    name = f"command:{tmp_path}/agent"
    gateway = tmp_path / "gateway"
    gateway.mkdir()
    words = [sys.executable, "-m", "ropewalk.gateway.process", str(gateway)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        with running() as server:
            look(tmp_path, name)
            assert server.entries() == []

            def live(scenario: str) -> Report:
                upstream = Upstream(server.url(scenario, scenario), "real-key", wires=("anthropic",))
                return look(tmp_path, name, live=Live(str(gateway), {"up": upstream}, level="none"))

            good = live("text")
            assert good.live and verdicts(good, name)["turn"][0] == "ok", good
            assert len(server.entries("text")) == 1
            bad = live("e401")
            assert not bad.ok and verdicts(bad, name)["turn"][0] == "fail"
            assert not look(tmp_path, name, live=Live(str(gateway), {}, level="none")).ok
        child.terminate()
