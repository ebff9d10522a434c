"""Writes the generated pages: reference.md, mcp.md, errors.md and configuration.md; `--check` only compares."""

from __future__ import annotations

import sys
import typing
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.cli.parse import STREAMS, parser
from ropewalk.cli.special import HEADINGS
from ropewalk.core import config
from ropewalk.core.errors import all_errors
from ropewalk.operations import registry
from ropewalk.operations.registry import Operation

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/build.py from the code; edit that instead. -->\n"
OBJECTS = {
    "Change": "[change](commit-and-land.md#the-change-list)",
    "Content": "[content](commit-and-land.md#the-change-list)",
    "Resolution": "[resolution](commit-and-land.md#resolution)",
    "Fence": "`{ref, id}`: a ref that must still be at an id",
    "RefMoveEntry": "`{name, expect, target}`",
}


def reference() -> str:
    """Gives the command reference."""
    lines = ["# Command reference\n", NOTE]
    lines += [
        "Each command prints one JSON envelope on standard output, or text with `--human` (the default on a terminal).",
        "`rw help` lists the commands, `rw COMMAND --help` explains one, `rw schema COMMAND` gives its JSON Schema.",
        "`op log --follow` prints JSON lines, `cat --raw` bytes; `mcp` and `completion` speak protocols of their own.",
        "Every command also takes `--store DIR`, `--as FAMILY/INSTANCE`, `--json` and `--human`.\n",
        "The field is what a tool call or a schema names, the option what a command line takes. What a `FILE` option",
        "names is read as JSON, `-` is standard input. Exit codes and all errors: [errors](errors.md).\n",
    ]
    for family, names in registry.FAMILIES.items():
        links = ", ".join(f"[`{name}`](#rw-{name.replace(' ', '-')})" for name in names)
        lines.append(f"- {HEADINGS[family]}: {links}")
    lines.append("")
    for family, names in registry.FAMILIES.items():
        lines.append(f"## {HEADINGS[family]}\n")
        for name in names:
            lines += command(registry.load(name))
    return "\n".join(lines).rstrip() + "\n"


def command(operation: Operation) -> list[str]:
    """Gives the section of one command."""
    made = parser(operation)
    usage = " ".join(made.format_usage().removeprefix("usage: ").split())
    for word in ("[-h]", "[--store DIR]", "[--as FAMILY/INSTANCE]", "[--json]", "[--human]"):
        usage = usage.replace(f" {word}", "")
    tool = f"Tool: `{operation.tool}`" + (", in the core profile." if operation.core else ".") if operation.tool else ""
    lines = [f"### rw {operation.name}\n", f"{operation.summary}. {tool}".rstrip() + "\n", f"```\n{usage}\n```\n"]
    fields = [row(operation, field, made) for field in msgspec.structs.fields(operation.request)]
    if fields:
        lines += ["| field | option | type | meaning |", "|---|---|---|---|", *fields, ""]
    if operation.stream and operation.name in STREAMS:
        flags, purpose = STREAMS[operation.name]
        lines.append(f"With `{flags[0]}`: {purpose}.\n")
    if answer := ", ".join(f"`{f.encode_name}`" for f in msgspec.structs.fields(operation.response)):
        lines.append(f"Gives {answer}.\n")
    if operation.identity:
        lines.append("Needs an identity.\n")
    if operation.errors:
        lines.append("Errors: " + ", ".join(f"`{e.code}`" for e in operation.errors) + ".\n")
    return lines


def row(operation: Operation, field: Any, made: Any) -> str:
    """Gives the table row of a request's field, with the option that sets it."""
    command = operation.command
    option = next((f"`{a.option_strings[0]}`" for a in made._actions if a.dest == field.name and a.option_strings), "")
    if field.name in (command.rev_path or ()):
        option = "`REV:PATH`"
    elif field.name in (word.rstrip("*?") for word in command.positional):
        option = "by place"
    elif field.name == command.rest:
        option = "after `--`"
    return f"| `{field.encode_name}` | {option} | {kind(field.type)} | {meaning(field.type)}{default(field)} |"


def kind(value: Any) -> str:
    """Gives a type as a reader of the reference knows it."""
    origin = typing.get_origin(value)
    if origin is typing.Annotated:
        return kind(typing.get_args(value)[0])
    args = [a for a in typing.get_args(value) if a is not type(None)]
    if origin is list:
        return f"list of {kind(args[0])}"
    if origin is dict:
        return "object"
    if origin is typing.Literal:
        return " \\| ".join(str(a) for a in args)
    if args:
        return " \\| ".join(dict.fromkeys(kind(a) for a in args))
    if value.__name__ in OBJECTS:
        return OBJECTS[value.__name__]
    name = str(value.__name__)
    return {"str": "text", "int": "number", "float": "number", "bool": "yes/no"}.get(name, name)


def meaning(value: Any) -> str:
    """Gives the description a field carries."""
    if typing.get_origin(value) is typing.Annotated:
        for note in typing.get_args(value)[1:]:
            if isinstance(note, msgspec.Meta) and note.description:
                return note.description.replace("|", "\\|")
    return next((m for a in typing.get_args(value) if typing.get_origin(value) and (m := meaning(a))), "")


def default(field: Any) -> str:
    """Gives a field's default in brackets, or that it must be given."""
    if field.required:
        return " (required)"
    if field.default in (None, False, msgspec.NODEFAULT) or field.default is msgspec.NODEFAULT:
        return ""
    return f" ({field.default:g})" if isinstance(field.default, float) else f" ({field.default})"


def mcp() -> str:
    """Gives the table of MCP tools."""
    lines = ["# MCP tools\n", NOTE]
    lines += [
        "`rw mcp` serves the operations below over stdio ([how to set it up](mcp-setup.md)). Profile `core`, the",
        "default, lists those with a star, `--profile board` those of a [board of tasks](boards.md), `--profile full`",
        "all of them. Each tool takes the fields of its command in the [reference](reference.md) and answers with the",
        "same envelope as `structuredContent`, errors too; those of a board answer as flockwork's do.\n",
    ]
    lines += ["| tool | profile | writes | what it does |", "|---|---|---|---|"]
    listed = [one for one in registry.everything() if one.tool]
    for operation in sorted(listed, key=lambda o: (not o.core, o.board, o.tool)):
        star, writes = "★" if operation.core else "board" if operation.board else "", "yes" if operation.writes else ""
        link = f"reference.md#rw-{operation.name.replace(' ', '-')}"
        lines.append(f"| [`{operation.tool}`]({link}) | {star} | {writes} | {operation.summary} |")
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Gives the table of errors."""
    lines = ["# Errors\n", NOTE]
    lines.append("An error is an envelope with `ok: false`, a code, a message, details, and mostly a hint: the next")
    lines.append("command to run. The process ends with the exit number. A retryable error may go away by itself.\n")
    lines += ["| exit | code | retryable | meaning | hint |", "|---|---|---|---|---|"]
    for error in all_errors():
        text = " ".join((error.__doc__ or "").split())
        retry = "yes" if error.retryable else ""
        hint = error.hint_template.replace("|", "\\|")
        lines.append(f"| {error.exit} | `{error.code}` | {retry} | {text} | {hint} |")
    lines += [
        "\nExit 10 means that the command worked (`ok` is true) and found something: problems in the store, paths in",
        "conflict after `ws rebase`, tasks of a run that did not land. Exit 130: stopped by the user.\n",
        "What to do about a message: [troubleshooting](troubleshooting.md).",
    ]
    return "\n".join(lines) + "\n"


def configuration() -> str:
    """Gives the table of settings."""
    lines = ["# Configuration\n", NOTE]
    lines.append("A setting comes from the command line, else from its variable, else from its default; those of runs")
    lines.append("come before the default from `run.toml` in the store's folder, which [`rw setup`](setup.md) writes.")
    lines.append("`rw config show --origin` prints what is in force and where it comes from.\n")
    lines += ["| setting | variable | default | meaning |", "|---|---|---|---|"]
    for setting in config.SETTINGS:
        shown = "" if setting.default is None else f"`{setting.default}`".replace(".0`", "`")
        variable = f"`{setting.variable}`" + (f", else `{setting.second}`" if setting.second else "")
        lines.append(f"| `{setting.name}` | {variable} | {shown} | {setting.purpose} |")
    handed = ", ".join(f"`{name}` ({purpose})" for name, purpose in config.HANDED_ON.items())
    lines.append(f"\nropewalk's own processes give each other {handed}; nobody sets these by hand.")
    return "\n".join(lines) + "\n"


PAGES = {"reference.md": reference, "mcp.md": mcp, "errors.md": errors, "configuration.md": configuration}


def main() -> int:
    """Writes the pages, or with `--check` says which differ."""
    stale = []
    for name, make in PAGES.items():
        path, text = HERE / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"stale: {', '.join(stale)}; run python docs/build.py")
        return 1
    print(f"written: {', '.join(stale)}" if stale else "all pages are current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
