"""Which offered tool a script's step means, and the arguments that tool's schema asks for.

A step says what is to happen (`write` a file, `shell` a command, `read`, `edit`, or a tool by a pattern of its name);
the agent program says by its tools how. So one script drives every program.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from ropewalk.testing.models.conversation import Asked, Json, Offered
from ropewalk.testing.models.script import Step

_PATHS = ("file_path", "filePath", "path", "absolute_path", "filename", "target_file")
_FIELDS = {
    "content": ("content", "file_text", "contents", "text"),
    "cmd": ("command", "cmd", "commands", "script"),
    "old": ("old_string", "oldString", "old_str", "oldText"),
    "new": ("new_string", "newString", "new_str", "newText"),
}
_NAMES = {
    "write": ("write", "write_file", "create", "create_file"),
    "shell": ("bash", "shell", "run_shell_command", "exec_command", "run_terminal_command", "run_terminal_cmd",
              "local_shell", "shell_command", "execute_command"),
    "read": ("read", "read_file", "view", "view_file"),
    "edit": ("edit", "replace", "search_replace", "str_replace_editor", "str_replace"),
}  # fmt: skip
_DEPTH = 6


def choose(step: Step, asked: Asked) -> tuple[Offered, Json | str] | None:
    """Gives the tool of a step and its arguments; nothing when the request offers none that fits."""
    tools = [] if asked.silent_tools else [t for t in asked.tools if t.kind != "server"]
    verb = step.tool or ""
    if verb not in _NAMES:
        found = next((t for t in tools if matches(verb, t)), None)
        return None if found is None else (found, _arguments(found, step, {}, asked))
    if (tool := _named(verb, tools)) is not None:
        return tool, _arguments(tool, step, _given(verb, step), asked)
    patch = next((t for t in tools if t.name == "apply_patch" and t.kind == "custom"), None)
    if verb == "write" and patch is not None:
        lines = "".join(f"+{line}\n" for line in (step.content or "").splitlines())
        return patch, f"*** Begin Patch\n*** Add File: {step.path}\n{lines}*** End Patch\n"
    shell = _named("shell", tools)
    if shell is None or verb == "shell":
        return None
    return shell, _arguments(shell, step, {"cmd": _as_command(verb, step)}, asked)


def is_main(asked: Asked, verbs: Iterable[str]) -> bool:
    """Says whether a request offers what works on files: it is the agent's own, and no title or suggestion."""
    if asked.silent_tools or asked.forced:
        return False
    if _named("shell", asked.tools) or _named("write", asked.tools):
        return True
    return any(matches(verb, tool) for verb in verbs if verb not in _NAMES for tool in asked.tools)


def matches(pattern: str, tool: Offered) -> bool:
    """Says whether a pattern is a tool's whole name, with or without its namespace."""
    names = (tool.name, f"{tool.namespace}__{tool.name}")
    return any(re.fullmatch(pattern, name) for name in names)


def _named(verb: str, tools: Iterable[Offered]) -> Offered | None:
    by_name = {t.name.lower(): t for t in reversed(list(tools)) if t.kind != "server" and not t.namespace}
    return next((by_name[name] for name in _NAMES[verb] if name in by_name), None)


def _given(verb: str, step: Step) -> Json:
    wanted = {"write": ("path", "content"), "shell": ("cmd",), "read": ("path",), "edit": ("path", "old", "new")}
    return {name: getattr(step, name) or "" for name in wanted[verb]}


def _as_command(verb: str, step: Step) -> str:
    path = shlex.quote(step.path or "")
    if verb == "read":
        return f"cat {path}"
    if verb == "write":
        folder = f"mkdir -p $(dirname {path}) && " if "/" in (step.path or "") else ""
        return f"{folder}printf '%s' {shlex.quote(step.content or '')} > {path}"
    code = "import sys;p,o,n=sys.argv[1:];t=open(p).read();assert o in t;open(p,'w').write(t.replace(o,n,1))"
    words = " ".join(shlex.quote(word) for word in (step.old or "", step.new or ""))
    return f"python3 -c {shlex.quote(code)} {path} {words}"


def _arguments(tool: Offered, step: Step, given: Json, asked: Asked) -> Json | str:
    extra = step.args or {}
    if tool.kind == "custom":
        return str(extra.get("input", given.get("cmd", "")))
    if tool.kind == "local_shell":
        return {"command": ["bash", "-lc", given.get("cmd", "")], **extra}
    properties: Json = tool.schema.get("properties") or {}
    made: Json = {}
    if given and "edits" in properties:  # a list of replacements in one file
        inner = ((properties["edits"].get("items") or {}).get("properties")) or {}
        edit = {_field(name, inner): given.pop(name) for name in ("old", "new") if name in given}
        made["edits"] = [edit]
    for name, value in given.items():
        field = _field(name, properties)
        shape = properties.get(field) or {}
        if name == "path" and not value.startswith("/") and "absolute" in str(shape.get("description", "")).lower():
            folder = asked.folder()
            value = f"{folder}/{value}" if folder else value
        made[field] = ["bash", "-lc", value] if shape.get("type") == "array" else value
    made |= extra
    for name in tool.schema.get("required") or []:
        if name not in made:
            made[name] = value_of(properties.get(name) or {}, name, tool.schema)
    return made


def _field(name: str, properties: Json) -> str:
    known = _PATHS if name == "path" else _FIELDS[name]
    return next((one for one in known if one in properties), known[0])


def value_of(shape: Json, name: str = "", root: Json | None = None, depth: int = 0) -> Any:
    """Gives a value a JSON schema takes: its constant, default or first choice, else the least of its type."""
    root = shape if root is None else root
    if isinstance(ref := shape.get("$ref"), str):
        shape = _referred(ref, root)
    for key in ("const", "default"):
        if key in shape:
            return shape[key]
    if shape.get("enum"):
        return shape["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        choices = [one for one in shape.get(key) or [] if one.get("type") != "null"]
        if choices and depth < _DEPTH:
            return value_of(choices[0], name, root, depth + 1)
    kind = shape.get("type", "object" if "properties" in shape else "string")
    kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
    kind = str(kind).lower()
    if kind == "object":
        inner = shape.get("properties") or {}
        needed = [one for one in shape.get("required") or [] if depth < _DEPTH]
        return {one: value_of(inner.get(one) or {}, one, root, depth + 1) for one in needed}
    if kind == "array":
        count = int(shape.get("minItems", 0)) if depth < _DEPTH else 0
        return [value_of(shape.get("items") or {}, name, root, depth + 1) for _ in range(count)]
    if kind in ("integer", "number"):
        return shape.get("minimum", 1)
    if kind == "boolean":
        return False
    if kind == "null":
        return None
    return ("scripted " + name.replace("_", " ")).strip().ljust(int(shape.get("minLength", 0)), ".")


def _referred(ref: str, root: Json) -> Json:
    found: Any = root
    for part in ref.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
