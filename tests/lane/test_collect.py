"""The collect gate and the journal's key: what decides is our check, and what a result depends on is all in its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ropewalk.lane import journal
from ropewalk.lane.adapter import Ending
from ropewalk.lane.collect import Changed, Checked, decide
from ropewalk.lane.journal import Ingredients, Record, Result
from ropewalk.plan.task import Task
from ropewalk.store.store import Store

TASK = Task("one", "make test", owns=("src/**",))
FILE = Changed("src/a.py", 3, lambda: b"x\n")
TREE = "a" * 40
GOOD = Checked(TREE, 0)


@pytest.mark.parametrize(
    ("ending", "changed", "note"),
    [
        (Ending(True, "It is so already."), [], "nothing was changed"),  # satisfied: the check says so
        (Ending(True, ""), [FILE], "the last message is empty"),
        (Ending(False, "", "no_result", "no last line"), [FILE], "no_result"),
        (Ending(False, "", "max_turns"), [FILE], "max_turns"),  # useful work at the limit of turns
        (Ending(False, "", "crashed"), [FILE], "crashed"),
        (Ending(True, "LGTM", denied=2), [], "2 uses of tools were denied"),  # a task that reads alone
    ],
)
def test_G23_what_looks_like_a_failure_explains_and_does_not_decide(
    ending: Ending, changed: list[Changed], note: str
) -> None:
    gate = decide(TASK, ending, changed, GOOD, tools=0, tree=TREE)
    assert gate.passed and gate.reasons == () and gate.tree == TREE
    assert any(note in one for one in gate.notes) and "no tool was used" in gate.notes
    failed = decide(TASK, ending, changed, Checked(TREE, 2, "1 failed"), tools=0, tree=TREE)
    assert not failed.passed and failed.reasons == ("check: it ended with 2",) and "1 failed" in failed.repair


@pytest.mark.parametrize(
    ("ending", "changed", "checked", "reason"),
    [
        (Ending(True, "all done"), [FILE], None, "check: it was not run"),
        (Ending(True, "TESTS: all pass"), [FILE], Checked(TREE, 1), "tests: the agent says"),
        (Ending(True, "TESTS: 2 failed"), [FILE], GOOD, "tests: the agent says"),
        (Ending(True, "x"), [FILE._replace(path="docs/b.md")], GOOD, "scope: 1 files outside"),
        (Ending(True, "x"), [FILE._replace(read=lambda: b"AKIA" + b"A" * 16)], GOOD, "held back: src/a.py"),
        (Ending(True, "x"), [FILE._replace(size=11 << 20)], GOOD, "held back: src/a.py"),
    ],
)
def test_G23_a_good_account_passes_nothing_that_is_not(
    ending: Ending, changed: list[Changed], checked: Checked | None, reason: str
) -> None:
    gate = decide(TASK, ending, changed, checked, tools=3, tree=TREE)
    assert not gate.passed and any(one.startswith(reason) for one in gate.reasons)


WHAT = Ingredients("claude", "1", "2.1.0", "sonnet", "https://a", "high", "do it", "b" * 40, "full", "gateway")
OTHER: dict[str, Any] = {
    "harness": "codex", "adapter": "2", "version": "2.1.1", "model": "opus", "endpoint": "https://b", "effort": "low",
    "prompt": "do that", "base": "c" * 40, "cage": "files", "network": "open", "permission": "edit", "schema": "{}",
    "check": "true", "environment": "e", "tools": ("x",), "options": ("y",), "sample": 1, "cassette": "replay c",
}  # fmt: skip


def test_G24_every_ingredient_is_in_the_key() -> None:
    assert set(OTHER) == set(Ingredients.__struct_fields__)
    keys = {journal.key(msgspec.structs.replace(WHAT, **{name: value})) for name, value in OTHER.items()}
    assert len(keys | {journal.key(WHAT)}) == len(OTHER) + 1


def _lane(store: Store, name: str, state: str, passed: bool | None, environment: str = "") -> str:
    what = msgspec.structs.replace(WHAT, environment=environment)
    hashed = journal.key(what)
    journal.begin(store, Record(name, hashed, "r", "t", 1, "a/b", what, "", "", 1, 1.0, "boot"))
    made: Callable[..., Result] = Result
    journal.finish(store, name, made(state, "", "", 1.0, None, None, "", 1, 0, "full", tree=TREE))
    if passed is not None:
        journal.set_verdict(store, name, passed, tree=TREE)
    return hashed


def test_G24_only_what_is_done_and_passed_stands_for_another(store: Store) -> None:
    states = ("stalled", "dead", "failed", "partial", "cancelled", "escaped")
    hashed = {_lane(store, f"r/{state}", state, True) for state in states}
    hashed |= {_lane(store, "r/refused", "done", False), _lane(store, "r/unasked", "done", None)}
    (one,) = hashed
    assert journal.replay(store, one) is None
    _lane(store, "r/good", "done", True)
    found = journal.replay(store, one)
    assert found is not None and found.record.lane == "r/good"
    elsewhere = journal.key(msgspec.structs.replace(WHAT, environment="another"))
    assert journal.replay(store, elsewhere) is None  # there the check has to run again
