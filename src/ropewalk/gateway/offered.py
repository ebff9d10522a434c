"""What tools a request offers to its model: how it is seen that an agent has those that it was to have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ropewalk.gateway.tokens import Wire

_MOST, _LONGEST = 1000, 200


def names(body: dict[str, Any], wire: Wire) -> tuple[str, ...]:
    """Gives the names of the tools that a request offers, with their name space before them.

    None where the model has to call one of them: that is how programs ask for a title or a summary, beside their work.
    """
    if _is_forced(body, wire):
        return ()
    found = (name[:_LONGEST] for tool in _list(body.get("tools")) for name in _of(tool) if name)
    return tuple(dict.fromkeys(found))[:_MOST]


def _of(tool: Any) -> Iterator[str]:
    if not isinstance(tool, dict):
        return
    for key in ("functionDeclarations", "function_declarations"):
        for one in _list(tool.get(key)):
            yield _text(one, "name")
    if tool.get("type") == "namespace":
        for one in _list(tool.get("tools")):
            yield f"{_text(tool, 'name')}__{_text(one, 'name')}"
    elif isinstance(tool.get("function"), dict):
        yield _text(tool["function"], "name")
    else:
        yield _text(tool, "name")


def _is_forced(body: dict[str, Any], wire: Wire) -> bool:
    if wire == "gemini":
        given = body.get("toolConfig") or body.get("tool_config")
        calling = given.get("functionCallingConfig") if isinstance(given, dict) else None
        return isinstance(calling, dict) and calling.get("mode") == "ANY"
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return choice.get("type") in ("tool", "any", "function", "custom")
    return choice == "required"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
