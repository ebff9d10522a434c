"""Schemas of tools: what a request may hold, in as few tokens as an agent can do with."""

from __future__ import annotations

from typing import Any

import msgspec

# a description that says no more than the name, or a bound that no caller comes near, is not worth its tokens
_DROPPED = ("title", "maxLength", "minLength", "maxItems", "minItems", "pattern")


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
