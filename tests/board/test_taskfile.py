"""Task files: every form gives the same tasks, and whatever is wrong is named by its place."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.board import wire
from ropewalk.core.errors import InvalidError
from ropewalk.plan import taskfile
from ropewalk.plan.task import Gate, Limits, Task

WANTED = [
    Task(
        "a", "make test", "Do it.\n\nWell.", title="First", needs=(), priority=5, limits=Limits(seconds=30.0, heirs=2)
    ),
    Task("r1.b", "true", "Then this.", needs=("a",), owns=("src/*.py",), region="core", gate=Gate(2, 3), guard=True),
]
PLAIN: list[dict[str, Any]] = [
    {"id": "a", "check": "make test", "description": "Do it.\n\nWell.", "title": "First", "priority": 5,
     "limits": {"seconds": 30, "heirs": 2}},
    {"id": "r1.b", "check": "true", "description": "Then this.", "needs": ["a"], "owns": ["src/*.py"],
     "region": "core", "gate": {"n": 2, "m": 3}, "guard": True},
]  # fmt: skip
MARKDOWN = """# A plan

Words before the first task are for people.

## a: First
verify: make test
priority: 5
limit_seconds: 30
limit_heirs: 2

Do it.

Well.

## `r1.b`

check: true
needs: a
owns: ["src/*.py"]
region: core
n: 2
m: 3
guard: yes

Then this.
"""
TOML = """
[[tasks]]
id = "a"
check = "make test"
title = "First"
description = "Do it.\\n\\nWell."
priority = 5
limits = { seconds = 30, heirs = 2 }
[[tasks]]
id = "r1.b"
check = "true"
description = "Then this."
needs = ["a"]
owns = ["src/*.py"]
region = "core"
gate = { n = 2, m = 3 }
guard = true
"""
FORMS = {
    "tasks.json": json.dumps({"tasks": PLAIN}),
    "list.json": json.dumps(PLAIN),
    "map.json": json.dumps({one["id"]: {k: v for k, v in one.items() if k != "id"} for one in PLAIN}),
    "tasks.jsonl": "\n".join(map(json.dumps, PLAIN)) + "\n",
    "tasks.toml": TOML,
    "tasks.md": MARKDOWN,
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("named", [True, False], ids=["by name", "by content"])
def test_every_form_gives_the_same_tasks(name: str, named: bool) -> None:
    text = FORMS[name]
    for data in (text.encode(), b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()):
        assert taskfile.parse(data, name if named else "-") == WANTED


def test_flockworks_map_of_briefs_is_read_as_its_workers_read_it() -> None:
    brief = "Fix the parser.\nfile: a.py\nverify: pytest -q\nn: 2\nm: 3"
    (task,) = taskfile.parse(json.dumps({"t1": brief}).encode(), "seed.json")
    assert (task.id, task.check, task.description, task.gate) == ("t1", "pytest -q", brief, Gate(2, 3))
    assert wire.read_spec("t1", wire.spec_words(task)).task.check == "pytest -q"


def test_front_matter_holds_one_task() -> None:
    (task,) = taskfile.parse(b"---\nid: one\ncheck: true\nneeds: a, b\n---\n\n# Title\n\ntext\n", "one.md")
    assert (task.id, task.needs, task.description) == ("one", ("a", "b"), "# Title\n\ntext")


def test_F23_a_task_of_a_run_is_named_with_it_and_a_slash_is_refused() -> None:
    assert taskfile.parse(b'[{"id": "run1.t1", "check": "true"}]', "-")[0].id == "run1.t1"
    for name in ("a/b", "a b", "A", "a..b", "a.lock", "-a", "a" * 101, "a@b", "\u00e9"):
        with pytest.raises(InvalidError, match="is not a task's id"):
            taskfile.parse(json.dumps([{"id": name, "check": "true"}]).encode(), "-")


def test_a_heading_in_a_block_of_code_is_no_task() -> None:
    text = "## a\ncheck: true\n\n```sh\n## no task\n```\n\n## b\ncheck: true\n"
    assert [task.id for task in taskfile.parse(text.encode(), "-")] == ["a", "b"]


BAD: dict[str, tuple[str | bytes, str]] = {
    "no check": ('[{"id": "a"}]', "tasks[0] (a): it has no check"),
    "a check that is blank": ('[{"id": "a", "check": " "}]', "tasks[0] (a): it has no check"),
    "no id": ('[{"check": "true"}]', "tasks[0]: it has no id"),
    "a key twice": ('[{"id": "a", "check": "true", "check": "false"}]', "the key 'check' stands twice"),
    "a task twice": ('[{"id":"a","check":"x"},{"id":"a","check":"x"}]', "tasks[1] (a): 'a' is a task already"),
    "an unknown field": ('[{"id": "a", "check": "true", "chek": 1}]', "unknown field `chek`"),
    "a field of another type": ('[{"id": "a", "check": "true", "priority": "x"}]', "Expected `int`"),
    "both names of a field": ('[{"id": "a", "check": "true", "verify": "true"}]', "another name of 'check'"),
    "no number": ('[{"id": "a", "check": "true", "priority": NaN}]', "NaN is no number"),
    "a number without end": ('[{"id": "a", "check": "x", "priority": ' + "1" * 5000 + "}]", "digits"),
    "no end": ('[{"id": "a"', "Expecting"),
    "depth": ("[" * 100_000, "ecursion"),
    "no tasks": ("[]", "there is no task in it"),
    "words": ("just words", "neither JSON, TOML nor Markdown"),
    "nothing": ("", "neither JSON, TOML nor Markdown"),
    "no UTF-8": (b'[{"id":\n"\xff"}]', "not UTF-8 in line 2"),
    "a NUL": (b'[{"id": "a",\n"check": "tr\0ue"}]', "NUL byte in line 2"),
    "an escaped NUL": ('[{"id": "a", "check": "tr\\u0000ue"}]', "is not one line"),
    "half a pair": ('[{"id": "a", "check": "true", "title": "\\ud800"}]', "tasks[0] (a)"),
    "a line that is none": ('{"id": "a", "check": "true"}\n{"id": ', "line 2"),
    "a list in lines": ('{"id": "a", "check": "true"}\n{"id": "b", "check": "x"}\n[]\n', "line 3: a task is an object"),
    "a key mistyped": ("## a\ncheck: true\npriorty: 3\n", "line 3: there is no key 'priorty'; is it 'priority'?"),
    "a key twice in text": ("## a\ncheck: true\ncheck: false\n", "line 3: the key 'check' stands twice"),
    "a number that is a word": ("## a\ncheck: true\npriority: high\n", "line 1 (a): Expected `int`"),
    "a heading without an id": ("## \ncheck: true\n", "line 1: the heading has no id"),
    "a field before a heading": ("check: true\n## a\ncheck: true\n", "neither JSON"),
    "a block without end": ("## a\ncheck: true\n\n```\n", "has no end"),
    "front matter without end": ("---\nid: a\n", "the front matter has no end"),
    "an unknown key in front": ("---\nid: a\ncheck: true\ncolour: red\n---\n", "line 4: 'colour: red' is no field"),
    "toml that is none": ("[[tasks]\nid = 1", "line 1"),
    "a toml key twice": ('[[tasks]]\nid = "a"\nid = "b"\n', "line 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told_with_its_place(case: str) -> None:
    data, words = BAD[case]
    with pytest.raises(InvalidError) as error:
        taskfile.parse(data if isinstance(data, bytes) else data.encode(), "-")
    told = [error.value.message, *error.value.details.get("problems", [])]
    assert any(words in one for one in told), told
    assert all("\n" not in one for one in told) and error.value.hint


def test_every_problem_of_a_file_is_told_at_once() -> None:
    text = json.dumps([{"id": "a"}, {"id": "B", "check": "true"}, 3, {"id": "c", "check": "true", "needs": ["c", "c"]}])
    with pytest.raises(InvalidError) as error:
        taskfile.parse(text.encode(), "-")
    assert [one.split(":")[0] for one in error.value.details["problems"]] == [
        "tasks[2]", "tasks[0] (a)", "tasks[1] (B)", "tasks[3] (c)", "tasks[3] (c)",
    ]  # fmt: skip


def test_a_huge_file_and_too_many_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskfile, "MAX_FILE", 100)
    with pytest.raises(InvalidError, match="is longer than"):
        taskfile.parse(b"x" * 101, "-")
    monkeypatch.undo()
    monkeypatch.setattr(taskfile, "MAX_TASKS", 10)
    with pytest.raises(InvalidError, match="has 11 tasks, more than 10"):
        taskfile.parse(b'{"id": "a", "check": "true"}\n' * 11, "t.jsonl")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(sorted(FORMS)))
def test_spoiled_bytes_give_tasks_or_one_typed_error(seed: int, name: str) -> None:
    draw = random.Random(seed)
    data = bytearray(FORMS[name].encode())
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(data))
        how = draw.randrange(3)
        if how == 0:
            data[at] = draw.randrange(256)
        elif how == 1:
            del data[at : at + draw.randint(1, 30)]
        else:
            data[at:at] = draw.choice(
                [b"{", b"[", b'"', b"\\", b"\n## ", b"verify:", b"\xff", b"\0", b"1e999", b"---\n"]
            )
    try:
        found = taskfile.parse(bytes(data), draw.choice([name, "-"]))
    except InvalidError as error:
        assert "\n" not in error.message
    else:
        assert found and all(task.check.strip() for task in found)
