"""The task file is checked strictly, and every problem is named, before anything starts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import InvalidError
from ropewalk.run import tasks


def parse(*found: dict[str, Any]) -> list[tasks.Task]:
    return tasks.parse(msgspec.json.encode({"tasks": list(found)}), "t.json")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "t.json"),
        (b"[]", "object"),
        (b'{"tasks": []}', "no task"),
        (b'{"tasks": [{"id": "a"}]}', "prompt"),
        (b'{"tasks": [{"id": "a", "prompt": "p", "neds": []}]}', "neds"),
        (b'{"tasks": [{"id": "a", "prompt": 1}]}', "str"),
        (b'{"tasks": [{"id": "a", "prompt": " \\n"}]}', "blank"),
        (b'{"tasks": [{"id": "../a", "prompt": "p"}]}', "not an id"),
        (b'{"tasks": [{"id": "a", "prompt": "p"}, {"id": "A", "prompt": "p"}]}', "two tasks"),
        (b'{"tasks": [{"id": "a", "prompt": "p", "needs": ["b"]}]}', "no task"),
        (b'{"tasks": [{"id": "a", "prompt": "p", "needs": ["a"]}]}', "circle"),
        (b'{"tasks": [{"id": "a", "prompt": "\xff"}]}', "t.json"),
        (b"[" * 100_000, "t.json"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        tasks.parse(data, "t.json")
    assert words in str(caught.value)


def test_every_problem_is_listed() -> None:
    with pytest.raises(InvalidError) as caught:
        parse({"id": "a", "prompt": "p", "needs": ["x"]}, {"id": "-", "prompt": "p"})
    assert len(caught.value.details["problems"]) == 2


def test_a_circle_is_shown() -> None:
    with pytest.raises(InvalidError, match=r"[abc] → [abc] → [abc] → [abc]"):
        parse(
            {"id": "free", "prompt": "p"},
            {"id": "a", "prompt": "p", "needs": ["b", "free"]},
            {"id": "b", "prompt": "p", "needs": ["c"]},
            {"id": "c", "prompt": "p", "needs": ["a"]},
            {"id": "late", "prompt": "p", "needs": ["a"]},
        )


def test_toml_is_read_too() -> None:
    found = tasks.parse(b'[[tasks]]\nid = "a"\nprompt = "p"\nneeds = []\n', "t.toml")
    assert [t.id for t in found] == ["a"]
