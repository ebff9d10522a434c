"""Staff: which program of a worker does a task, by what the task names, the worker was told, and the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.gateway.settings import Upstream
from ropewalk.lane import reach, routing
from ropewalk.lane.programs import registry
from ropewalk.run.staff import Staff

TABLE = routing.read()


def staff(*names: str, **more: object) -> Staff:
    return Staff(tuple(registry.get(name) for name in names), TABLE, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("team", "asked", "given"),
    [
        (staff("claude"), {}, ("claude", "", "")),
        (staff("claude"), {"model": "glm"}, ("claude", "glm-4.6", "")),
        (staff("claude"), {"task_class": "judge"}, ("claude", "opus", "high")),
        (staff("claude"), {"task_class": "a word for people"}, ("claude", "", "")),
        (staff("claude"), {"harness": "codex"}, None),
        (staff("claude", model="haiku"), {}, ("claude", "haiku", "")),
        (staff("claude", model="haiku"), {"model": "opus", "effort": "max"}, ("claude", "opus", "max")),
        (staff("command:cat"), {"model": "sonnet", "task_class": "build"}, ("command", "sonnet", "")),
        (staff("codex", "claude"), {}, ("claude", "sonnet", "")),
        (staff("codex", "pi"), {}, ("codex", "", "")),
        (staff("codex", "claude"), {"model": "gpt-5-codex"}, ("codex", "gpt-5-codex", "")),
        (staff("codex", "pi"), {"model": "claude-opus-9"}, None),
        (staff("codex", "pi"), {"harness": "pi", "model": "claude-opus-9"}, ("pi", "claude-opus-9", "")),
        (staff("codex", "pi"), {"task_class": "judge"}, ("codex", "", "high")),
        (staff("codex", "claude", by_route=True), {"task_class": "scout"}, ("claude", "haiku", "low")),
        (staff("codex", by_route=True), {}, None),
        (staff("codex", by_route=True), {"harness": "codex"}, ("codex", "", "")),
    ],
)  # fmt: skip
def test_who_does_a_task(team: Staff, asked: dict[str, str], given: tuple[str, str, str] | None) -> None:
    found = team.pick(**asked)
    assert (None if found is None else (found.adapter.name, found.model, found.effort)) == given


def test_routes_that_lead_to_nothing_are_named(tmp_path: Path) -> None:
    for name in ("claude", "gemini"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    table = tmp_path / "routing.toml"
    table.write_text('[aliases]\nmine = { harness = "gemini", model = "m" }\nother = { harness = "nothing" }\n')
    ups = {"up": Upstream("http://127.0.0.1:1", wires=("anthropic",))}
    found = {one.what: one for one in reach.look(str(table), ups, str(tmp_path))}
    assert "routes to claude" not in found and "routes to scripted" not in found
    assert found["routes to codex"].status == "unavailable" and "gpt-*" in found["routes to codex"].words
    one = found["routes to gemini"]
    assert one.status == "advisory" and "mine" in one.facts["routes"] and "gemini-*" in one.facts["routes"]
    assert "no endpoint speaks" in one.words
    assert "there is no harness 'nothing'" in found["routes to nothing"].words
    assert [one.what for one in reach.look(str(table), ups, str(tmp_path), ["gemini"])] == ["routes to gemini"]
    table.write_text("[aliases")
    assert [(one.what, one.status) for one in reach.look(str(table), ups, str(tmp_path))] == [("routes", "fail")]
