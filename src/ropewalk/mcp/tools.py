"""Operations as tools: names, short descriptions, and input schemas that cost an agent few tokens."""

from __future__ import annotations

from typing import Any

import msgspec

from ropewalk.operations import registry
from ropewalk.operations.registry import Operation

# a description that says no more than the name, or a bound that no caller comes near, is not worth its tokens
_DROPPED = ("title", "maxLength", "minLength", "maxItems", "minItems", "pattern")


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


def input_schema(request: type[msgspec.Struct]) -> dict[str, Any]:
    """Gives the JSON Schema of a request with everything inline and nothing that a caller can do without.

    What it accepts the operation accepts; the operation also takes null for what may be left out.
    """
    whole = msgspec.json.schema(request)
    definitions: dict[str, Any] = whole.get("$defs", {})
    made = _compact(whole, definitions, ())
    made.setdefault("type", "object")
    made.setdefault("properties", {})
    return made


def _compact(schema: dict[str, Any], definitions: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        if name in above:
            return {"type": "object"}
        made = _compact(definitions[name], definitions, (*above, name))
        if "description" in schema:
            made = {**made, "description": schema["description"]}
        return made
    made = {}
    for key, value in schema.items():
        if key in _DROPPED or key == "$defs" or (key == "default" and value in (None, False, [], "")):
            continue
        if key == "description" and ("properties" in schema or "enum" in schema):
            continue
        if key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") and (value in (0, 1) or value >= 1e6):
            continue
        if key == "additionalProperties" and value is False and above[1:]:
            continue
        if key == "properties":
            made[key] = {k: _compact(v, definitions, above) for k, v in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            made[key] = _compact(value, definitions, above)
        elif key == "anyOf":
            made.update(_any_of([v for v in value if v != {"type": "null"}], definitions, above))
        elif key == "required" and not value:
            continue
        else:
            made[key] = value
    if "enum" in made:
        made.pop("type", None)
    return made


def _any_of(options: list[dict[str, Any]], definitions: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
    if len(options) == 1:
        return _compact(options[0], definitions, above)
    return {"anyOf": [_compact(option, definitions, above) for option in options]}
