"""Noting endpoints: puts some into the user's file of endpoints, and leaves all else in it as he wrote it.

The text is edited, since a file that is written anew would lose its comments; what came of it is read back, and
nothing is written where it says anything other than what was to be said.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import Any

import msgspec

from ropewalk.core import durable
from ropewalk.core.errors import InvalidError, os_error
from ropewalk.gateway.endpoints import FILE, Endpoint

_HEAD = "# Endpoints and their keys; only you may read this file. See docs/gateway.md.\n"
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_TABLE = re.compile(r"\s*\[")
_HEADER = re.compile(r"""\s*\[\s*endpoints\s*\.\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+)\s*[.\]]""")


def raw(folder: str) -> dict[str, Endpoint]:
    """Gives the endpoints of a configuration folder as they stand in its file, keys in variables not looked up."""
    return {name: msgspec.convert(one, Endpoint) for name, one in _parsed(_text(folder)).get("endpoints", {}).items()}


def note(folder: str, new: Mapping[str, Endpoint]) -> bool:
    """Puts endpoints into the file, over those of the same names; says whether anything is other than before.

    The file, and a folder that is made for it, are their user's alone from their first moment. `E_INVALID` for a file
    that is none, that others may read, or whose form is not seen through; it is as it was then.
    """
    text = _text(folder)
    before = _parsed(text)
    there = before.get("endpoints", {})
    wanted: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(new))
    other = {name: one for name, one in wanted.items() if there.get(name) != one}
    if not other:
        return False
    made = text or _HEAD
    for name, values in other.items():
        made = _put(made, name, values)
    if _parsed(made, checked=False) != {**before, "endpoints": {**there, **other}}:
        raise InvalidError(
            f"{FILE} has a form that can't be added to", file=os.path.join(folder, FILE),
            hint=f"give {', '.join(other)} tables of their own, as in [endpoints.NAME], or take them out",
        )  # fmt: skip
    try:
        durable.make_folders(folder, 0o700)
        # a link, as people have who keep such files elsewhere, stays one
        place = os.path.realpath(os.path.join(folder, FILE))
        durable.replace(place, made.encode(), part=f"{place}.{os.getpid()}", mode=0o600)
    except OSError as error:
        raise os_error(error, f"write of {FILE}") from None
    return True


def _text(folder: str) -> str:
    path = os.path.join(folder, FILE)
    try:
        with open(path, "rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise os_error(error, f"read of {FILE}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidError(f"{FILE} holds keys, and others may read it", hint=f"chmod 600 {path}", file=path)
    try:
        return data.decode("utf-8")
    except UnicodeError as error:
        raise InvalidError(f"{FILE} can't be used: {error}", hint="see docs/gateway.md", file=path) from None


def _parsed(text: str, *, checked: bool = True) -> dict[str, Any]:
    import tomllib

    try:
        found = tomllib.loads(text)
        if checked:
            msgspec.convert(found.get("endpoints", {}), dict[str, Endpoint])
    except (ValueError, RecursionError) as error:
        if not checked:
            return {}
        raise InvalidError(f"{FILE} can't be used: {error}", hint="see docs/gateway.md") from None
    return found


def _put(text: str, name: str, values: Mapping[str, Any]) -> str:
    """Gives a text with the table of an endpoint in the place of the one that it has, else at its end."""
    lines = text.splitlines(keepends=True)
    rest: list[str] = []
    at: int | None = None
    inside = False
    for line in lines:
        if _TABLE.match(line):
            found = _HEADER.match(line)
            inside = found is not None and found[1].strip("\"'") == name
            if inside and at is None:
                at = len(rest)
        # comments and empty lines belong to what comes after them
        if not inside or not line.strip() or line.lstrip().startswith("#"):
            rest.append(line)
    made = [f"[endpoints.{_key(name)}]\n", *(f"{key} = {_value(value)}\n" for key, value in values.items())]
    if at is None:
        if rest and not rest[-1].endswith("\n"):
            rest[-1] += "\n"
        return "".join([*rest, "\n", *made])
    return "".join([*rest[:at], *made, *rest[at:]])


def _key(name: str) -> str:
    return name if _BARE.match(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_value(one)}' for key, one in value.items())} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    # text, numbers and truth have one form in TOML and JSON, but for the one sign that JSON leaves as it is
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
