"""The cases of `cases/*.json`: checks, globs, plans, schedules and lints, each with what has to come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.plan import checks
from ropewalk.plan.globs import is_match, witness
from ropewalk.plan.lint import Around, lint
from ropewalk.plan.packets import Packet, parse, write
from ropewalk.plan.plan import Caps, read
from ropewalk.plan.schedule import Schedule, frame
from ropewalk.plan.task import Task

CASES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.glob("cases/*.json")}


def named(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in CASES[kind]]


@pytest.mark.parametrize("check", CASES["checks"]["say nothing"])
def test_a_check_that_says_nothing_is_told(check: str) -> None:
    assert checks.fault(check)


@pytest.mark.parametrize("check", CASES["checks"]["say something"])
def test_a_check_that_says_something_passes(check: str) -> None:
    assert not checks.fault(check)


@pytest.mark.parametrize(("check", "programs"), CASES["checks"]["programs"].items())
def test_the_programs_of_a_check(check: str, programs: list[str]) -> None:
    assert list(checks.programs(check)) == programs


@pytest.mark.parametrize(("one", "other"), CASES["globs"]["meet"])
def test_globs_that_meet_have_a_path_in_common(one: str, other: str) -> None:
    for a, b in ((one, other), (other, one)):
        path = witness(a, b)
        assert path is not None and is_match(path, [a]) and is_match(path, [b])


@pytest.mark.parametrize(("one", "other"), CASES["globs"]["apart"])
def test_globs_that_are_apart(one: str, other: str) -> None:
    assert witness(one, other) is None and witness(other, one) is None


@pytest.mark.parametrize("case", named("plans"))
def test_a_plan(case: dict[str, Any]) -> None:
    got = read(*case["replies"], caps=Caps(**case.get("caps", {})), passing=case.get("passing", ()),
               has_program=lambda name: name != "nosuchprogram")  # fmt: skip
    assert got.truncated == case.get("truncated", False)
    for wanted in case["problems"]:
        assert any(wanted in words for words in got.problems), got.problems
    if not case.get("loose"):
        assert len(got.problems) == len(case["problems"]), got.problems
    assert (got.plan is None) == bool(case["problems"])
    assert bool(got.message) == bool(case["problems"])
    if not got.truncated:
        assert all(words in got.message for words in got.problems)


@pytest.mark.parametrize("case", named("schedule"))
def test_a_schedule(case: dict[str, Any]) -> None:
    tasks = msgspec.convert(case["tasks"], list[Task])
    run = Schedule(frame(tasks, case.get("regions")), case["slots"], case.get("seconds"), case.get("states"))
    for number, step in enumerate(case["steps"]):
        now = step["at"]
        for name in step.get("done", ()):
            run.done(name, now)
        for name in step.get("failed", ()):
            run.failed(name)
        for name in step.get("gated", ()):
            run.gated(name)
        for name in step.get("again", ()):
            run.again(name, now, conflict=True)
        held = step.get("held", {})
        assert run.pick(now, lambda name, held=held: held.get(name, "")) == step["starts"], f"step {number}"
        waits = {one.id: one for one in run.waiting(now)}
        for name, (kind, on) in step.get("waits", {}).items():
            assert [waits[name].kind, list(waits[name].on)] == [kind, on], (number, waits[name])
            assert waits[name].text
    assert run.over == case["over"]
    for name, state in case.get("end", {}).items():
        assert run.state(name) == state


@pytest.mark.parametrize("case", named("lint"))
def test_a_lint(case: dict[str, Any]) -> None:
    packets = [msgspec.convert(one, Packet) for one in case["packets"]]
    around = msgspec.convert({"bounds": "none", **case.get("around", {})}, Around)
    report = lint(packets, around)
    assert [[f.check, f.severity, list(f.packets)] for f in report.findings] == case["findings"], report.findings
    assert report.failing == case.get("failing", False)
    states = {check.name: check.state for check in report.checks}
    assert {**states, **case.get("checks", {})} == states
    assert all(check.reason for check in report.checks if check.state != "armed")
    for packet in packets:
        assert parse(write(packet)) == packet
