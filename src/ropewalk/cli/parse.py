"""Command lines, made from the registry: each request field is an option, unless its command says otherwise.

argparse does the parsing: click costs 28 ms of every start where argparse costs 8 (docs/decisions/002).
"""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError, UsageError
from ropewalk.operations.registry import Operation
from ropewalk.store.revisions import split

GLOBALS = ("--store", "--repo", "--as")
STREAMS: dict[str, tuple[tuple[str, ...], str]] = {
    "op log": (("--follow",), "print operations as JSON lines as they happen, until stopped"),
    "cat": (("--raw",), "print the file's bytes and nothing else"),
}


class Globals(NamedTuple):
    """Is what may stand on any command line: the store, who asks, how to print, and whether to stream."""

    store: str | None
    agent: str | None
    output: str | None
    stream: bool = False


class Parser(argparse.ArgumentParser):
    """Is argparse with typed errors in the place of exits."""

    def error(self, message: str) -> NoReturn:
        """Raises `E_USAGE` where argparse would print and exit."""
        raise UsageError(message[:1].lower() + message[1:], hint=f"run `{self.prog} --help`")


def parser(operation: Operation) -> Parser:
    """Gives the parser of one operation."""
    made = Parser(prog=f"rw {operation.name}", description=f"{operation.summary}.", allow_abbrev=False)
    add_globals(made)
    command = operation.command
    taken = {field for field in command.rev_path or ()}
    if command.rev_path:
        made.add_argument("rev_path", metavar="REV:PATH", help="a revision, and a path in it")
    fields = {f.name: f for f in msgspec.structs.fields(operation.request)}
    for word in command.positional:
        name = word.rstrip("*?")
        taken.add(name)
        kind = fields[name].type
        shape: dict[str, Any] = {"metavar": name.rstrip("_").upper(), "help": _help(kind)}
        if word.endswith("*"):
            shape |= {"nargs": "*", "metavar": name.rstrip("s_").upper()}
        elif word.endswith("?"):
            shape["nargs"] = "?"
        if name in command.files:
            shape["metavar"] = "FILE"
        elif number_type(kind):
            shape["type"] = number_type(kind)
        made.add_argument(name, **shape)
    for name, field in fields.items():
        if name in taken or name in command.hidden or name == command.rest:
            continue
        flag = command.flags.get(name, "--" + name.rstrip("_").replace("_", "-"))
        flags = [flag] if flag.startswith("--") else [flag, "--" + name.rstrip("_").replace("_", "-")]
        inner = plain_type(field.type)
        options: dict[str, Any] = {"dest": name, "help": _help(field.type), "default": None}
        if field.required:
            options["required"] = True
        if name in command.files:
            made.add_argument(*flags, metavar="FILE", **options)
        elif inner is bool:
            made.add_argument(*flags, action="store_true", **options)
        elif typing.get_origin(inner) is list:
            made.add_argument(
                *flags, action="append", type=number_type(inner) or str, metavar=name.rstrip("s_").upper(), **options
            )
        elif number_type(inner):
            made.add_argument(*flags, type=number_type(inner) or str, metavar="N", **options)
        else:
            made.add_argument(*flags, metavar=_choices(inner) or name.rstrip("_").upper(), **options)
    if operation.stream and operation.name in STREAMS:
        names, purpose = STREAMS[operation.name]
        made.add_argument(*names, dest="g_stream", action="store_true", help=purpose)
    if command.rest:
        # argparse's REMAINDER would swallow options, so the words behind -- are taken off before it parses
        made.add_argument_group("-- COMMAND…", _help(fields[command.rest].type) or "a command and its words")
        made.usage = f"{made.format_usage().removeprefix('usage: ').rstrip()} [-- COMMAND…]".replace("%", "%%")
    return made


def add_globals(made: argparse.ArgumentParser) -> None:
    """Adds the options that every command takes."""
    group = made.add_argument_group("any command")
    group.add_argument("--store", "--repo", dest="g_store", metavar="DIR", help="the store's folder")
    group.add_argument("--as", dest="g_agent", metavar="FAMILY/INSTANCE", help="who makes this write")
    group.add_argument("--json", dest="g_output", action="store_const", const="json", help="print the envelope as JSON")
    group.add_argument("--human", dest="g_output", action="store_const", const="human", help="print for a person")


def plain_type(kind: Any) -> Any:
    """Gives a field's type without `Annotated` and `| None`."""
    if typing.get_origin(kind) is typing.Annotated:
        return plain_type(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(kind) if a is not type(None)]
        return plain_type(inner[0])
    return kind


def number_type(kind: Any) -> type[int] | type[float] | None:
    """Gives int or float when a field, or the items of a list field, are numbers; else None."""
    inner = plain_type(kind)
    if typing.get_origin(inner) is list:
        inner = plain_type(typing.get_args(inner)[0])
    return inner if inner in (int, float) else None


def _choices(inner: Any) -> str | None:
    """Gives the values of a Literal as `{a,b}`."""
    if typing.get_origin(inner) is typing.Literal:
        return "{" + ",".join(str(a) for a in typing.get_args(inner)) + "}"
    return None


def _help(kind: Any) -> str | None:
    if typing.get_origin(kind) is typing.Annotated:
        for note in typing.get_args(kind)[1:]:
            if isinstance(note, msgspec.Meta) and note.description:
                return note.description.replace("%", "%%")
        return _help(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next((h for a in typing.get_args(kind) if (h := _help(a))), None)
    return None


def request(operation: Operation, words: list[str], read: Callable[[str], bytes]) -> tuple[dict[str, Any], Globals]:
    """Gives the request of a command line as plain values, and its global options.

    `read` gives the bytes of a file, or of standard input for `-`. Raises `E_USAGE` or `E_INVALID`.
    """
    command = operation.command
    rest: list[str] | None = None
    if command.rest and "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
        if words[-1:] == [f"--{command.rest}"]:
            words = words[:-1]
    made = parser(operation)
    found = vars(made.parse_args(words) if "--" in words else made.parse_intermixed_args(words))
    output = Globals(found.pop("g_store"), found.pop("g_agent"), found.pop("g_output"), found.pop("g_stream", False))
    values: dict[str, Any] = {}
    if command.rev_path:
        rev, path = split_text(found.pop("rev_path"))
        values[command.rev_path[0]] = rev
        if path:
            values[command.rev_path[1]] = path
        elif next(f for f in msgspec.structs.fields(operation.request) if f.name == command.rev_path[1]).required:
            raise UsageError("a path is missing", hint=f"write `rw {operation.name} {rev}:PATH`")
    if command.rest and rest:
        values[command.rest] = rest
    for name, value in found.items():
        if value is None or value == []:
            continue
        values[name] = load_json(value, read) if name in command.files else value
    if command.input is not None and values.get(command.input[0]) == "-":
        values[command.input[1]] = read("-").decode("utf-8", "surrogateescape")
    renamed = {f.name: f.encode_name for f in msgspec.structs.fields(operation.request)}
    return {renamed.get(k, k): v for k, v in values.items()}, output


def split_text(rev_path: str) -> tuple[str, str]:
    """Gives (revision, path) of `REV:PATH` as text, after the store's own rule has accepted it."""
    split(rev_path)
    rev, _, path = rev_path.partition(":")
    return rev, path.strip("/")


def load_json(path: str, read: Callable[[str], bytes]) -> Any:
    """Gives the value of a JSON file; `E_INVALID` when it is none."""
    try:
        return msgspec.json.decode(read(path))
    except UNREADABLE as error:
        raise InvalidError(f"{path} is not JSON: {error}", path=path) from None
