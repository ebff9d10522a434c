"""Planning: what a manager is asked and told, what of its answers is taken, and what it costs to be wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planner.plannerkit import (
    GOOD,
    MAP,
    Told,
    around,
    in_lanes,
    planned,
    reply,
    scripted,
    task,
)
from ropewalk.core.errors import InvalidError, PlanningError
from ropewalk.lane.cage.checks import CagedChecks
from ropewalk.plan.asking import Goal
from ropewalk.plan.decisions import Decision
from ropewalk.plan.plan import Caps, Plan
from ropewalk.plan.replies import find
from ropewalk.run.planner import baseline, planning, refuting
from ropewalk.run.planner.baseline import Bounds
from ropewalk.run.planner.manager import Answer
from ropewalk.workspace import state
from storekit import Kit, put

GOAL = Goal("Teach the cart discounts.\nKeep the word DISCOUNT-7.", "workers", 2)


def test_a_plan_comes_with_map_workers_and_what_it_took(kit: Kit, tmp_path: Path) -> None:
    with in_lanes(kit, scripted(tmp_path, MAP, GOOD)) as manager:
        done = planned(kit, tmp_path, manager)
        assert [t.id for t in done.plan.tasks] == ["one", "two"] and done.plan.modules[1].folder == "shop/mail"
        assert (done.tries, done.asks, done.manager, done.problems) == (1, 2, "scripted", ())
        assert done.map.by == "files and model" and done.map.parts[0].about == "what is bought"
        assert "make test" in [t.command for t in done.map.tests] and done.map.notes == ("be kind",)
        assert done.advice.workers == done.advice.ceiling == 1 and done.advice.low <= done.advice.high
        assert done.tokens is not None and done.tokens.total > 0 and done.cost.dollars == 0
        assert len(state.listed(kit.store)) == 1
    assert not state.listed(kit.store)
    assert not list(tmp_path.glob("manager/*/home")) and list(tmp_path.glob("manager/*/stdout"))


def test_what_a_manager_writes_is_thrown_away(kit: Kit, tmp_path: Path) -> None:
    before = kit.main()
    lanes = scripted(tmp_path)._replace(scripts=[
        [{"put": "shop/cart/sum.py", "text": text}, {"put": "new.txt", "text": "x"}, {"commit": "mine"},
         {"print": text}] for text in (MAP, GOOD)])  # fmt: skip
    with in_lanes(kit, lanes) as manager:
        planned(kit, tmp_path, manager)
    assert kit.main() == before and not state.listed(kit.store)
    assert not [p for p in tmp_path.rglob("new.txt")]


def test_devflock_A4_a_read_only_mapping_phase_is_kept_and_given_to_planning(kit: Kit, tmp_path: Path) -> None:
    manager = Told(MAP, GOOD)
    events: list[tuple[str, dict[str, Any]]] = []
    done = planned(kit, tmp_path, manager, GOAL, events=events)
    first, second = manager.asked
    assert "`shop/mail`" in first and "`make test` (Makefile)" in first and '"modules"' not in first
    assert "what is bought" in second and "be kind" in second and '"modules"' in second
    assert msgspec.json.decode(msgspec.json.encode(done.map), type=type(done.map)) == done.map
    assert [kind for kind, _ in events] == ["mapping", "mapped", "planning", "checking", "planned"]


def test_a_map_that_names_what_is_not_there_is_told_and_not_taken(kit: Kit, tmp_path: Path) -> None:
    bad = '{"parts": [{"name": "x", "path": "nowhere"}, {"name": "B", "path": "shop/cart"}], "tests": ["true"]}'
    manager = Told(bad, bad, GOOD)
    done = planned(kit, tmp_path, manager)
    assert all(words in manager.asked[1] for words in ("no folder 'nowhere'", "part 'B'", "'true' is none"))
    assert done.map.by == "files" and any("what the files say" in words for words in done.problems)


def test_an_idea_is_planned_without_a_map_of_what_is_not_there(kit: Kit, tmp_path: Path) -> None:
    manager = Told(GOOD)
    planned(kit, tmp_path, manager, Goal("A shop for boats.", "idea"))
    assert "no project yet" in manager.asked[0] and "A shop for boats." in manager.asked[0]


def test_P6_all_that_is_wrong_goes_back_in_one_message_three_times_at_most(kit: Kit, tmp_path: Path) -> None:
    bad = reply(task("one", needs=["two"]), task("two", "mail", needs=["one"]), task("x", "none", check="true"),
                task("y", check="nosuchprogram --run", needs=["nobody"]))  # fmt: skip
    manager = Told(MAP, bad, GOOD)
    done = planned(kit, tmp_path, manager, GOAL)
    told = manager.asked[2]
    for words in ("one → two → one", "'none' is none of the plan's", "'true' is no check", "'nosuchprogram'",
                  "'nobody', which is no task"):  # fmt: skip
        assert words in told
    assert done.tries == 2 and len(done.problems) >= 5
    manager = Told(MAP, bad, bad, bad)
    with pytest.raises(PlanningError) as raised:
        planned(kit, tmp_path, manager, GOAL)
    assert raised.value.exit == 15 and raised.value.code == "E_PLAN" and not manager.answers
    assert len(raised.value.details["problems"]) >= 5 and raised.value.details["tries"] == 3


def test_P4_a_plan_above_a_cap_is_asked_for_again_and_never_cut(kit: Kit, tmp_path: Path) -> None:
    many = reply(*(task(f"t{n}") for n in range(10)))
    few = reply(*(task(f"t{n}") for n in range(8)))
    goal = Goal("Ten things.", "auto", caps=Caps(tasks=8))
    manager = Told(MAP, many, few)
    done = planned(kit, tmp_path, manager, goal)
    assert "At most 1000 modules and 8 tasks" in manager.asked[1]
    assert "10 of them, and at most 8" in manager.asked[2] and len(done.plan.tasks) == 8
    with pytest.raises(PlanningError, match="at most 8"):
        planned(kit, tmp_path, Told(MAP, many, many, many), goal)


def test_devflock_B6_after_a_session_error_the_goal_and_the_mode_are_said_again(kit: Kit, tmp_path: Path) -> None:
    manager = Told(MAP, Answer("", "its session timed out"), reply(task("one", check="true")), GOOD)
    done = planned(kit, tmp_path, manager, GOAL)
    assert done.tries == 3
    for prompt in manager.asked:
        assert "DISCOUNT-7" in prompt and "plan for 2 agents" in prompt
    assert "its session timed out" in manager.asked[2] and '"modules"' in manager.asked[2]
    with pytest.raises(PlanningError, match="broke down"):
        planned(kit, tmp_path, Told(MAP, *[Answer("", "it broke down")] * 3))


def test_a_lane_that_dies_is_a_try_and_the_next_has_a_session_of_its_own(kit: Kit, tmp_path: Path) -> None:
    lanes = scripted(tmp_path)._replace(scripts=[[{"print": MAP}], [{"die": True}], [{"print": GOOD}]])
    with in_lanes(kit, lanes) as manager:
        done = planned(kit, tmp_path, manager)
    assert done.tries == 2 and done.asks == 3 and "its session died" in done.problems[0]


def test_a_truncated_reply_is_asked_for_in_parts(kit: Kit, tmp_path: Path) -> None:
    whole = reply(*(task(f"t{n}") for n in range(5)))
    body = find(whole, ("tasks",)).value
    assert body is not None
    head = msgspec.json.encode({"summary": "s", "modules": body["modules"]}).decode()
    parts = [msgspec.json.encode({"tasks": body["tasks"][a:b]}).decode() for a, b in ((0, 3), (3, 5))]
    manager = Told(MAP, whole[: len(whole) // 2], head, *parts, '{"tasks": []}')
    done = planned(kit, tmp_path, manager, GOAL)
    assert [t.id for t in done.plan.tasks] == [f"t{n}" for n in range(5)] and (done.tries, done.parts) == (2, 3)
    assert "None of it is here yet" in manager.asked[2] and "2 of its parts arrived" in manager.asked[4]
    assert all("DISCOUNT-7" in prompt for prompt in manager.asked)


def test_a_part_that_breaks_off_is_asked_for_again_and_smaller(kit: Kit, tmp_path: Path) -> None:
    body = find(reply(task("a"), task("b")), ("tasks",)).value
    assert body is not None
    head = msgspec.json.encode({"modules": body["modules"]}).decode()
    tasks = msgspec.json.encode({"tasks": body["tasks"]}).decode()
    manager = Told(MAP, tasks[:-9], head, tasks[:-9], tasks, '{"tasks": []}')
    done = planned(kit, tmp_path, manager)
    assert len(done.plan.tasks) == 2 and "next 20 tasks" in manager.asked[3] and "next 5 tasks" in manager.asked[4]


def test_devflock_B18_a_check_that_passes_on_the_base_is_a_fault_unless_it_is_a_guard(kit: Kit, tmp_path: Path) -> None:
    early = reply(task("one", check="test -s Makefile"), task("two", "mail", check="test -s README.md", guard=True))
    manager = Told(MAP, early, reply(task("one"), task("two", "mail", check="test -s gone", guard=True)), GOOD)
    done = planned(kit, tmp_path, manager)
    assert "one: its check passes already" in manager.asked[2] and "two: its check passes" not in manager.asked[2]
    assert "two: it is marked guard, and its check fails" in manager.asked[3] and done.tries == 3


def test_checks_on_the_base_are_bounded_and_run_at_once(kit: Kit, tmp_path: Path) -> None:
    tree = kit.store.objects.commit(kit.main()).tree
    began = time.monotonic()
    lines = [f"sleep 0.5; exit {n % 2}" for n in range(4)]
    found = baseline.run(kit.store, tree, [*lines, "sleep 60"], str(tmp_path / "checks"), Bounds(2.0, 30.0, 5))
    assert [found[line].kind for line in lines] == ["passed", "failed", "passed", "failed"]
    assert found["sleep 60"].reason == "timeout" and time.monotonic() - began < 20
    began = time.monotonic()
    assert not baseline.run(kit.store, tree, ["sleep 60"], str(tmp_path / "checks"), Bounds(60.0, 0.5))
    assert time.monotonic() - began < 10 and not os.listdir(tmp_path / "checks")


def test_a_check_that_nobody_saw_the_end_of_is_named(kit: Kit, tmp_path: Path) -> None:
    slow = reply(task("one", check="sleep 60; test -s x"))
    done = planned(kit, tmp_path, Told(MAP, slow), surroundings=around(tmp_path, bounds=Bounds(0.3, 5.0)))
    assert "nobody knows whether 'sleep 60" in done.problems[0]


def test_the_decisions_and_the_rules_are_told_to_the_manager(kit: Kit, tmp_path: Path) -> None:
    decision = Decision("ADR-7", "d/7.md", "Money is in cents", "accepted", ("shop/**",))
    old = Decision("ADR-6", "d/6.md", "Money is in floats", "superseded", ("shop/**",))
    manager = Told(MAP, GOOD)
    how = around(tmp_path, decisions=(decision, old), rules=("Never use ``` in a name.",))
    planned(kit, tmp_path, manager, surroundings=how)
    assert "ADR-7: Money is in cents (governs shop/**)" in manager.asked[1]
    assert "ADR-6" not in manager.asked[1] and "Never use" in manager.asked[1] and "````text" in manager.asked[1]


def test_planning_stops_when_it_is_told_to(kit: Kit, tmp_path: Path) -> None:
    with pytest.raises(PlanningError) as raised:
        planned(kit, tmp_path, Told(), stop=lambda: True)
    assert raised.value.details["stopped"] is True
    lanes = scripted(tmp_path)._replace(scripts=[[{"run": "sleep 60"}]])
    began = time.monotonic()
    with pytest.raises(PlanningError, match="stopped"), in_lanes(kit, lanes) as manager:
        planned(kit, tmp_path, manager, stop=lambda: time.monotonic() - began > 0.5)
    assert time.monotonic() - began < 30 and not state.listed(kit.store)


# what speaks against a plan, and splitting tasks


def plan_of(text: str) -> Plan:
    return msgspec.convert(find(text, ("tasks",)).value, Plan)


def test_a_plan_is_refuted_by_another_provider_and_by_no_other(kit: Kit) -> None:
    plan = plan_of(GOOD)
    bad = '{"verdict": "refuted", "findings": [{"tasks": ["zzz"], "severity": "warn", "text": "x"}]}'
    good = '{"verdict": "refuted", "findings": [{"tasks": ["two"], "severity": "hard", "text": "two has no test"}]}'
    manager = Told(bad, Answer("", "it broke"), good, provider="openai")
    done = refuting.refute(GOAL, plan, "anthropic", manager)
    assert done.refuted and done.tries == 3 and done.objections[0].tasks == ("two",)
    assert "no task 'zzz'" in manager.asked[1] and "at least one hard finding" in manager.asked[1]
    assert all("DISCOUNT-7" in prompt for prompt in manager.asked) and "two has no test" in done.text()
    with pytest.raises(InvalidError, match="anthropic's"):
        refuting.refute(GOAL, plan, "anthropic", Told(provider="anthropic"))
    with pytest.raises(PlanningError):
        refuting.refute(GOAL, plan, "", Told("no", "no", "no"))
    assert not refuting.refute(GOAL, plan, "", Told('{"verdict": "stands", "findings": []}')).refuted


def test_a_task_is_split_and_who_needed_it_needs_what_stands_in_its_place(kit: Kit, tmp_path: Path) -> None:
    whole = plan_of(reply(task("zero"), task("one", needs=["zero"]), task("two", "mail", needs=["one"])))
    alone = msgspec.json.encode({"tasks": [task("one-a")]}).decode()
    split = msgspec.json.encode({"tasks": [task("one-a"), task("one-b", needs=["one-a"]), task("one-c")]}).decode()
    manager = Told(alone, split)
    done, ids = planning.expand(kit.store, kit.main(), GOAL, whole, "one", manager, around(tmp_path))
    assert "two tasks or more" in manager.asked[1] and ids == ("one-a", "one-b", "one-c")
    needs = {t.id: t.needs for t in done.tasks}
    assert needs == {"zero": (), "one-a": ("zero",), "one-b": ("one-a",), "one-c": ("zero",), "two": ("one-b", "one-c")}
    with pytest.raises(PlanningError):
        planning.expand(kit.store, kit.main(), GOAL, whole, "one", Told("x", "x", "x"), around(tmp_path))


def test_devflock_C6_a_check_of_a_plan_sees_a_checkout_of_its_own_and_no_secret(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "canary-of-the-caller")
    kit.change(put("kept.txt", "kept\n"))
    tree = kit.store.objects.commit(kit.main()).tree
    line = 'test -z "$SECRET_TOKEN" && test -s kept.txt && rm -rf shop && ! test -d shop'
    found = baseline.run(kit.store, tree, [line], str(tmp_path / "checks"), Bounds(20.0))
    assert found[line].kind == "passed" and "shop/cart/sum.py" in dict(baseline.files(kit.store, tree))


@pytest.mark.skipif(not os.path.exists("/usr/bin/bwrap"), reason="bubblewrap is not installed")
def test_devflock_C6_in_a_cage_it_reaches_nothing_but_its_checkout(kit: Kit, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    tree = kit.store.objects.commit(kit.main()).tree
    lines = [f"test -s Makefile && touch mine && ! touch {outside}/made 2> /dev/null && ! test -e {outside}",
             "! python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9), 2)' 2> /dev/null"]  # fmt: skip
    found = baseline.run(kit.store, tree, lines, str(tmp_path / "checks"), Bounds(30.0), cage=CagedChecks())
    assert [found[line].kind for line in lines] == ["passed", "passed"], found
    assert not list(outside.iterdir())
