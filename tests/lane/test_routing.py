"""Routing: names and classes of tasks to harness and model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import InvalidError
from ropewalk.lane import routing
from ropewalk.lane.programs import registry
from ropewalk.lane.routing import Route, route

OWN = routing.read()


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, Route("claude", "sonnet")),
        ({"model": "haiku"}, Route("claude", "haiku")),
        ({"model": "glm"}, Route("glm", "glm-4.6")),
        ({"task_class": "scout"}, Route("claude", "haiku", "low")),
        ({"task_class": "build", "effort": "max"}, Route("claude", "sonnet", "max")),
        ({"task_class": "build", "model": "gpt-5-codex"}, Route("codex", "gpt-5-codex", "medium")),
        ({"model": "vendor/Claude-Opus-9"}, Route("claude", "vendor/Claude-Opus-9")),
        ({"model": "nobody-knows-it"}, Route("claude", "nobody-knows-it")),
        ({"harness": "codex"}, Route("codex")),
        ({"harness": "claude"}, Route("claude", "sonnet")),
        ({"harness": "codex", "task_class": "judge"}, Route("codex", "", "high")),
        ({"harness": "acp:claude-agent-acp", "model": "opus"}, Route("acp:claude-agent-acp", "opus")),
        ({"harness": "pi", "model": "claude-opus-9"}, Route("pi", "claude-opus-9")),
    ],
)  # fmt: skip
def test_what_a_task_names_gives_its_route(asked: dict[str, str], given: Route) -> None:
    assert route(OWN, **asked) == given


def test_every_class_and_alias_of_ours_is_a_harness_that_there_is() -> None:
    assert {"build", "mechanical", "scout", "verify", "judge", "generator"} == set(OWN.classes)
    assert {"sonnet", "haiku", "opus", "fable", "glm"} <= set(OWN.aliases)
    for name in OWN.aliases:
        registry.get(route(OWN, model=name).harness)
    for name in OWN.classes:
        registry.get(route(OWN, task_class=name).harness)
    for harness in OWN.models.values():
        registry.get(harness)


def test_a_file_of_the_user_stands_over_ours(tmp_path: Path) -> None:
    path = tmp_path / "routing.toml"
    assert routing.read(str(path)) == OWN
    path.write_text(
        '[default]\nuse = "cheap"\n[aliases]\ncheap = { use = "glm", effort = "low" }\n'
        'sonnet = { harness = "pi", model = "local" }\n[classes]\nbuild = { use = "cheap" }\n'
        '[models]\n"claude-*" = "pi"\n'
    )
    table = routing.read(str(path))
    assert route(table) == Route("glm", "glm-4.6", "low")
    assert route(table, model="sonnet") == Route("pi", "local")
    assert route(table, task_class="build", effort="high") == Route("glm", "glm-4.6", "high")
    assert route(table, task_class="verify") == Route("pi", "local", "high")
    assert route(table, model="claude-x") == Route("pi", "claude-x")


@pytest.mark.parametrize(
    "text",
    [
        "[aliases", "[aliases]\nx = 3\n", '[aliases]\nx = { use = "x" }\n', '[aliases]\nx = { use = "y" }\n',
        '[aliases]\na = { use = "b" }\nb = { use = "a" }\n', '[classes]\nbuild = { use = "nothing" }\n',
        '[aliases]\nx = { model = "m" }\n', '[colours]\nx = 1\n', '[classes]\nbuild = { effort = "huge" }\n',
        "\xff\x00", '[default]\nuse = "gone"\n',
    ],
)  # fmt: skip
def test_a_table_that_says_nothing_sensible_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "routing.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidError):
        routing.read(str(path))


def test_a_class_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidError, match="biuld"):
        route(OWN, task_class="biuld")


def test_a_table_without_a_default_refuses_to_guess() -> None:
    with pytest.raises(InvalidError):
        route(routing.Table())
