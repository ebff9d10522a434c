"""Operations as tools: names, short descriptions, and input schemas that cost an agent few tokens."""

from __future__ import annotations

from typing import Any

from ropewalk.core.toolschema import input_schema
from ropewalk.operations import registry
from ropewalk.operations.registry import Operation


def by_name() -> dict[str, Operation]:
    """Gives every operation that is a tool, by the tool's name."""
    return {one.tool: one for one in registry.everything() if one.tool}


def listed(profile: str) -> list[dict[str, Any]]:
    """Gives the tools of a profile as `tools/list` shows them.

    `core` is the small set, `board` what works on a board of tasks, `full` all of them.
    """
    return [tool(one) for one in by_name().values() if _is_listed(one, profile)]


def _is_listed(operation: Operation, profile: str) -> bool:
    return profile == "full" or (operation.board if profile == "board" else operation.core)


def tool(operation: Operation) -> dict[str, Any]:
    """Gives one tool."""
    found: dict[str, Any] = {
        "name": operation.tool,
        "description": operation.summary,
        "inputSchema": input_schema(operation.request),
    }
    if not operation.writes:
        found["annotations"] = {"readOnlyHint": True}
    return found
