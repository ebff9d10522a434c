"""What a store's runs do where their command says nothing: who does the tasks, with which model, how many at once.

It is `run.toml` in the store's folder, which `rw setup` writes and which may be edited; no key is in it.

```toml
[run]
harness = "claude"          # or several with commas between, route, command:PROGRAM WORDS
model = "sonnet"
workers = 3
manager = ["anthropic"]     # endpoints of endpoints.toml, by name: those of who plans; without it all
endpoints = ["local"]       # those of the tasks' agents; without it the manager's
dirty = "ask"               # ask, start or stop, where you have uncommitted work
```
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ropewalk.core import durable
from ropewalk.core.config import MAX_COUNT, Value
from ropewalk.core.errors import InvalidError, os_error

FILE = "run.toml"
Dirty = Literal["ask", "start", "stop"]
_MOST = 1 << 20
_HEAD = "# Written by `rw setup`. A flag or a variable goes before what stands here; see docs/setup.md.\n\n[run]\n"


class Usual(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is the table `[run]`; what is empty is not said."""

    harness: Annotated[str, Meta(max_length=4096)] = ""
    model: Annotated[str, Meta(max_length=200)] = ""
    workers: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    manager: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    endpoints: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    dirty: Dirty = "ask"

    @property
    def names(self) -> tuple[str, ...]:
        """Gives the endpoints of agents that do tasks: their own, else the manager's; none are all there are."""
        return self.endpoints or self.manager


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: Usual = Usual()


def read(root: str) -> Usual:
    """Gives what a store's file says, nothing without one; `E_INVALID` names what is wrong in it."""
    import tomllib

    path = os.path.join(root, FILE)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Usual()
    except OSError as error:
        raise os_error(error, f"read of {FILE}") from None
    try:
        if len(data) > _MOST:
            raise ValueError("it is larger than 1 MiB")
        return msgspec.convert(tomllib.loads(data.decode("utf-8")), _File).run
    except (ValueError, RecursionError) as error:
        hint = "mend or remove it, or run `rw setup` anew once it is gone"
        raise InvalidError(f"{FILE} of the store can't be used: {error}", hint=hint, file=path) from None


def write(root: str, usual: Usual) -> bool:
    """Puts it in place, whole; says whether anything is other than before."""
    if os.path.exists(os.path.join(root, FILE)) and read(root) == usual:
        return False
    lines = [f"{name} = {_toml(value)}\n" for name, value in _said(usual).items()]
    try:
        path = os.path.join(root, FILE)
        durable.replace(path, f"{_HEAD}{''.join(lines)}".encode(), part=f"{path}.{os.getpid()}")
    except OSError as error:
        raise os_error(error, f"write of {FILE}") from None
    return True


def _said(usual: Usual) -> dict[str, str | int | list[str]]:
    found: dict[str, str | int | list[str]] = msgspec.json.decode(msgspec.json.encode(usual))
    return found


def _toml(value: str | int | list[str]) -> str:
    """Gives text, a number or a list of texts in TOML's form, in which those of JSON are."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def settings(usual: Usual) -> dict[str, str | float]:
    """Gives what is said as values of settings, by their names."""
    return {f"run.{name}": ",".join(value) if isinstance(value, list) else value
            for name, value in _said(usual).items()}  # fmt: skip


def of_settings(found: Mapping[str, Value]) -> Usual:
    """Gives what settings say of runs, wherever they come from."""
    given = {name.removeprefix("run."): one.value for name, one in found.items() if name.startswith("run.")}
    lists = {name: [one.strip() for one in str(given.pop(name) or "").split(",") if one.strip()]
             for name in ("manager", "endpoints")}  # fmt: skip
    return msgspec.convert({name: value for name, value in given.items() if value is not None} | lists, Usual)
