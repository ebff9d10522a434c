"""The registry: what an operation is, and how to find one by its command or its tool name.

A family is a module of this package whose functions carry `@operation`. `FAMILIES` names the commands of each,
so that a command line imports one family alone; a test holds the table against the modules.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import msgspec

from ropewalk.core.errors import NotFoundError, RopewalkError

FAMILIES: dict[str, tuple[str, ...]] = {
    "care": ("init", "info", "whoami", "verify", "repair", "gc", "derive status", "derive run", "backup", "restore"),
    "publish": ("commit", "land", "rebase", "blob put", "blob has", "blob get"),
    "read": ("resolve", "cat", "ls", "log", "show", "history", "diff", "blame", "grep"),
    "refs": ("ref list", "ref set", "ref delete", "ref move"),
    "undo": ("op log", "op show", "op undo"),
    "remote": ("git import", "git export"),
    "remotes": ("clone", "remote add", "remote remove", "remote list", "fetch", "push", "sync", "sync status"),
    "pulls": ("pr open", "pr status"),
    "tokens": ("token create", "token list", "token revoke"),
    "workspace": ("ws create", "ws list", "ws info", "ws status", "ws diff", "ws radar", "ws delete"),
    "hooks": ("ws hook",),
    "landing": ("ws commit", "ws land", "ws rebase", "ws resolve", "ws materialize", "ws discard"),
    "recover": ("ws snapshot", "recover", "trash list", "trash restore", "trash empty"),
    "queue": ("queue list", "queue show", "queue cancel"),
    "board": ("board init", "board scratch", "board drop"),
    "upkeep": (
        "board probe",
        "board compact",
        "board restore",
        "board evict",
        "board sweep",
        "board reconcile",
        "board relabel",
        "board divergence",
    ),
    "reviewing": ("board review", "board gate"),
    "host": ("board grant", "board hand-in"),
    "instruments": (
        "board audit",
        "board attribution",
        "board graph",
        "board durations",
        "board timeline",
        "board debug",
        "metrics",
    ),
    "task": ("task add", "task list", "task show", "task next", "task cancel", "task reopen", "task retry"),
    "steps": ("brief", "claim", "heartbeat", "work-started", "judge", "return", "verdict", "work-done"),
    "work": ("work",),
    "flockwork": (
        "fw protocol",
        "fw brief",
        "fw claim",
        "fw judge",
        "fw land",
        "fw verdict",
        "fw renew",
        "fw work-started",
        "fw work-done",
        "fw work-external",
    ),
    "fwboard": ("fw list", "fw next", "fw add", "fw status", "fw audit", "fw review", "fw gate"),
    "lane": (
        "lane start",
        "lane list",
        "lane show",
        "lane logs",
        "lane steer",
        "lane stop",
        "lane collect",
        "lane archive",
    ),
    "tripwire": ("lane restore",),
    "lanecare": (
        "doctor",
        "probe",
        "gateway status",
        "gateway swap",
        "chip open",
        "chip close",
        "chip list",
        "sweep",
    ),
    "setup": ("setup",),
    "run": ("run", "runs resume"),
    "runs": ("runs list", "runs show", "runs pause", "runs stop", "runs undo", "import-run"),
    "reporting": ("runs report", "watch"),
    "demo": ("demo",),
    "plan": ("plan draft", "plan lint", "plan refute", "plan estimate", "plan expand", "plan show"),
    "adr": ("adr new", "adr touching", "adr lint"),
    "describe": ("schema", "config show"),
}

GROUPS = frozenset(name.split(" ")[0] for names in FAMILIES.values() for name in names if " " in name)
"""The first words of commands of two words."""


class Command(NamedTuple):
    """Is how an operation looks on the command line; what is not said comes from the request's fields.

    `positional` are field names in order (`heads*`: all that follow, `path?`: may be left out), `rev_path` a
    pair of fields filled from one `REV:PATH`, `files` fields read as JSON from a file or `-`, `rest` a field
    that takes all words after `--`, `flags` other option names of fields. `input` is a pair of fields: where the first
    is `-`, the second gets what comes on standard input, as text in which bytes that are no UTF-8 are escaped.
    """

    positional: tuple[str, ...] = ()
    rev_path: tuple[str, str] | None = None
    files: tuple[str, ...] = ()
    rest: str | None = None
    flags: dict[str, str] = {}
    hidden: tuple[str, ...] = ()
    input: tuple[str, str] | None = None


class Operation(NamedTuple):
    """Is one declared operation; `tool` is empty where it is none."""

    name: str
    tool: str
    summary: str
    request: type[msgspec.Struct]
    response: type[msgspec.Struct]
    run: Callable[[Any, Any], Any]
    errors: tuple[type[RopewalkError], ...]
    writes: bool
    identity: bool
    core: bool
    store: bool
    command: Command
    stream: bool
    family: str
    board: bool = False
    plain: bool = False


_LOADED: dict[str, Operation] = {}
F = TypeVar("F", bound=Callable[..., Any])


def operation(
    name: str,
    *,
    request: type[msgspec.Struct],
    response: type[msgspec.Struct],
    summary: str,
    tool: str | None = None,
    errors: tuple[type[RopewalkError], ...] = (),
    writes: bool = False,
    identity: bool | None = None,
    core: bool = False,
    store: bool = True,
    command: Command | None = None,
    stream: bool = False,
    board: bool = False,
    plain: bool = False,
) -> Callable[[F], F]:
    """Declares the decorated function as an operation.

    `writes` operations need an identity unless `identity=False`; `core` ones are in the small MCP profile;
    `store=False` ones work without a store; `stream` ones may print lines of their own. An empty `tool` says that an
    operation is no MCP tool, `board` that it is in the profile for boards, `plain` that its result is a `ToolText`,
    which a tool call answers with as it is, without the envelope.
    """

    def note(function: F) -> F:
        _LOADED[name] = Operation(
            name,
            name.replace(" ", "_") if tool is None else tool,
            summary,
            request,
            response,
            function,
            errors,
            writes,
            writes if identity is None else identity,
            core,
            store,
            command or Command(),
            stream,
            function.__module__.rsplit(".", 1)[-1],
            board,
            plain,
        )
        return function

    return note


def split(words: list[str]) -> tuple[str, list[str]] | None:
    """Gives the command that words begin with, of one word or of two, and the rest; None for half a command.

    The command need not exist.
    """
    if words[0] not in GROUPS:
        return words[0], words[1:]
    two = " ".join(words[:2])
    if family_of(two) is None and family_of(words[0]) is not None:
        return words[0], words[1:]
    return (two, words[2:]) if len(words) > 1 and not words[1].startswith("-") else None


def family_of(name: str) -> str | None:
    """Gives the family of a command, or None."""
    return next((family for family, names in FAMILIES.items() if name in names), None)


def load(name: str) -> Operation:
    """Gives the operation of a command name; `E_NOT_FOUND` when there is none."""
    family = family_of(name)
    if family is None:
        raise NotFoundError(f"there is no operation {name!r}", hint="list them with `rw schema`", operation=name)
    import_module(f"ropewalk.operations.{family}")
    return _LOADED[name]


def names() -> list[str]:
    """Gives every command name."""
    return [name for group in FAMILIES.values() for name in group]


def everything() -> list[Operation]:
    """Loads and gives every operation."""
    return [load(name) for name in names()]
