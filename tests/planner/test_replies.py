"""What planning has to bear of a model's replies and a repository, each named after what others got wrong."""

from __future__ import annotations

import msgspec
import pytest

from planner.plannerkit import reply, task
from ropewalk.plan.overview import overview
from ropewalk.plan.packer import groups, pack
from ropewalk.plan.plan import Module, Plan, Reading, read
from ropewalk.plan.schedule import Schedule, frame
from ropewalk.plan.task import Task


def modules(*pairs: tuple[str, str]) -> Reading:
    """Gives the reading of a plan with modules of these names and paths, one task in each."""
    listed = [{"name": name, "path": path} for name, path in pairs]
    tasks = [{**task(f"t{n}"), "module": name} for n, (name, _) in enumerate(pairs)]
    return read(msgspec.json.encode({"modules": listed, "tasks": tasks}).decode())


def test_P1_two_tasks_that_write_one_file_never_run_at_once_and_it_is_shown() -> None:
    tasks = (Task("a", "make a", "write x", owns=("src/x.py",), module="m"),
             Task("b", "make b", "write x too", modifies=("src/*.py",), module="n"))  # fmt: skip
    view = overview(Plan("", (Module("m", "m"), Module("n", "n")), tasks), workers=2)
    first, second = view.bars
    assert first.end <= second.start
    wait = view.waits[0]
    assert (wait.id, wait.kind, wait.on) == ("b", "paths", ("a",)) and "a writes paths" in wait.text


def test_P7_a_task_starts_when_its_own_needs_are_done_and_waits_for_no_batch() -> None:
    tasks = [Task("a", "x"), Task("slow", "x"), Task("b", "x", needs=("a",))]
    run = Schedule(frame(tasks), 3)
    assert sorted(run.pick(0.0)) == ["a", "slow"]
    run.done("a", 1.0)
    assert run.pick(1.0) == ["b"] and run.state("slow") == "running"


def test_devflock_B12_overlapping_modules_are_refused_or_packed_together() -> None:
    for path in (".git", ".github/x", "../x", "/etc", "src/*"):
        assert modules(("m", path)).problems, path
    assert "differs in case alone" in modules(("a", "src/Api"), ("b", "src/api")).problems[0]
    assert "the same path" in modules(("a", "src"), ("b", "./src/")).problems[0]
    nested = modules(("a", "src"), ("b", "src/api"), ("c", "lib")).plan
    assert nested is not None and groups(nested) == [["a", "b"], ["c"]]
    packing = pack(nested, 3)
    assert packing.of["a"] == packing.of["b"] != packing.of["c"]


@pytest.mark.parametrize("name", ["Integration", "a b", "a/b", "../..", "x.lock", "", "a..b", "ü"])
def test_devflock_B13_a_module_that_is_no_slug_is_refused(name: str) -> None:
    assert modules((name, "src")).plan is None


@pytest.mark.parametrize("field", [
    {"needs": 3}, {"needs": "one"}, {"module": ["x"]}, {"module": {"x": 1}}, {"owns": 3}, {"owns": [1]},
    {"priority": "high"}, {"id": None}, {"check": ["true"]}, {"limits": "none"}, {"description": 7},
])  # fmt: skip
def test_devflock_B16_a_wrong_type_anywhere_is_a_fault_and_no_crash(field: dict[str, object]) -> None:
    got = read(reply({**task("one"), **field}))
    assert got.plan is None and got.problems and got.message


def test_devflock_B16_weights_that_are_no_numbers_long_chains_and_long_replies_are_borne() -> None:
    for weight in ("NaN", "Infinity", "-1", "0", '"2"', "1e400"):
        text = reply(task("one")).replace('"weight":1', f'"weight":{weight}')
        assert read(text).plan is None, weight
    chain = [task(f"t{n}", needs=[f"t{n - 1}"] if n else []) for n in range(5_000)]
    whole = read(reply(*chain))
    assert whole.plan is not None and len(whole.plan.tasks) == 5_000
    chain[0]["needs"] = ["t299"]
    assert any("circle" in words for words in read(reply(*chain[:300])).problems)
    assert read("x" * 1_000_000 + reply(task("one"))).plan is not None
    assert read("{" * 1_000_000).plan is None


def test_devflock_B17_the_last_plan_among_narration_and_fences_is_taken() -> None:
    first, last = reply(task("first")), reply(task("last"))
    around = 'I use {braces} and {"even": "json"}.\n' + first + "Better:\n" + last + "\nThat is {all}."
    got = read(around).plan
    assert got is not None and got.tasks[0].id == "last"
    inside = task("fenced", description='Write ```json {"tasks": []} ``` into a file, with { and }.')
    got = read(reply(inside)).plan
    assert got is not None and "```json" in got.tasks[0].description


@pytest.mark.parametrize("check", ["exit 0", "echo ok", "true; ", "pytest || true", ":", "true # pytest"])
def test_devflock_B18_a_check_that_says_nothing_is_refused(check: str) -> None:
    assert any("is no check" in words for words in read(reply(task("one", check=check))).problems)
    missing = read(reply(task("one", check="nosuchprogram x")), has_program=lambda name: False)
    assert any("no such program" in words for words in missing.problems)
