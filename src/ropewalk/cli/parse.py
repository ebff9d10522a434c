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

from ropewalk.core.errors import InvalidError, UsageError
from ropewalk.operations.registry import Operation
from ropewalk.store.revisions import split

GLOBALS = ("--store", "--repo", "--as")


class Globals(NamedTuple):
    """Is what may stand on any command line: the store, who asks, and how to print."""

    store: str | None
    agent: str | None
    output: str | None


class Parser(argparse.ArgumentParser):
    """Is argparse with typed errors in the place of exits."""

    def error(self, message: str) -> NoReturn:
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
        if word.endswith("*"):
            made.add_argument(name, nargs="*", metavar=name.rstrip("s").upper(), help=_help(fields[name].type))
        elif word.endswith("?"):
            made.add_argument(name, nargs="?", metavar=name.upper(), help=_help(fields[name].type))
        else:
            made.add_argument(name, metavar="FILE" if name in command.files else name.upper(), help=_help(fields[name].type))
    for name, field in fields.items():
        if name in taken or name in command.hidden or name == command.rest:
            continue
        flag = command.flags.get(name, "--" + name.rstrip("_").replace("_", "-"))
        flags = [flag] if flag.startswith("--") else [flag, "--" + name.rstrip("_").replace("_", "-")]
        inner = plain_type(field.type)
        options: dict[str, Any] = {"dest": name, "help": _help(field.type), "default": None}
        if name in command.files:
            made.add_argument(*flags, metavar="FILE", **options)
        elif inner is bool:
            made.add_argument(*flags, action="store_true", **options)
        elif inner is int:
            made.add_argument(*flags, type=int, metavar="N", **options)
        elif inner is float:
            made.add_argument(*flags, type=float, metavar="N", **options)
        elif typing.get_origin(inner) is list:
            made.add_argument(*flags, action="append", metavar=name.rstrip("s").upper(), **options)
        else:
            made.add_argument(*flags, metavar=name.rstrip("_").upper(), **options)
    if command.rest:
        made.add_argument(command.rest, nargs=argparse.REMAINDER, metavar="-- COMMAND", help=_help(fields[command.rest].type))
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
    found = vars(parser(operation).parse_args(words))
    output = Globals(found.pop("g_store"), found.pop("g_agent"), found.pop("g_output"))
    values: dict[str, Any] = {}
    if command.rev_path:
        rev, path = split_text(found.pop("rev_path"))
        values[command.rev_path[0]] = rev
        if path:
            values[command.rev_path[1]] = path
    if command.rest:
        tail = found.pop(command.rest, None) or []
        if rest is None and tail:
            raise UsageError(f"what is {tail[0]!r}?", hint="put a command behind --")
        if rest:
            values[command.rest] = rest
    for name, value in found.items():
        if value is None or value == []:
            continue
        values[name] = load_json(value, read) if name in command.files else value
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"{path} is not JSON: {error}", path=path) from None
