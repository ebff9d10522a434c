"""Commands that are no operations (mcp, completion, version, help), and operations that stream."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ropewalk import __version__
from ropewalk.core.errors import InvalidError, NotFoundError, RopewalkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropewalk.operations.context import Context
    from ropewalk.operations.registry import Operation

SUMMARIES = {
    "mcp": "Serve the operations as MCP tools over standard input and output",
    "serve": "Serve the store to git over HTTP",
    "completion": "Print the completion script of a shell: bash, zsh or fish",
    "version": "Print ropewalk's version",
    "help": "List the commands, or show one's help",
}
HEADINGS = {
    "care": "Make a store and look after it",
    "publish": "Commit and land",
    "read": "Read",
    "refs": "Refs",
    "undo": "Look back and take back",
    "remote": "Git in and out",
    "remotes": "Remotes",
    "pulls": "Pull requests",
    "tokens": "Tokens",
    "workspace": "Workspaces",
    "hooks": "Hooks of agent programs",
    "landing": "Landing from a workspace",
    "recover": "Bring back",
    "queue": "The landing queue",
    "board": "A board of tasks",
    "upkeep": "Upkeep of a board",
    "reviewing": "Reviews and gates",
    "host": "A gate host",
    "instruments": "Instruments of a board",
    "task": "Tasks of a board",
    "steps": "One step of a task",
    "work": "Workers of a board",
    "flockwork": "Flockwork's tools, under their names and with their answers",
    "fwboard": "More tools of the same kind",
    "lane": "Lanes: single agents, in the background",
    "tripwire": "What agents without a cage changed",
    "lanecare": "What lanes stand on",
    "setup": "Setting up",
    "run": "Runs",
    "runs": "What became of runs",
    "reporting": "Reports of runs, and following them",
    "demo": "The demonstration",
    "plan": "Plans",
    "adr": "Standing decisions",
    "describe": "About ropewalk",
}
POLL_MS = 100


def run(name: str, words: list[str]) -> int:
    """Runs one of the special commands and gives its exit code; `E_USAGE` when its words do not fit."""
    if name == "mcp":
        return _mcp(words)
    if name == "serve":
        from ropewalk.cli import serve

        return serve.run(words)
    if name == "receive":
        from ropewalk.cli import receive

        return receive.run(words[0] if words else "")
    if name == "completion":
        from ropewalk.cli import completion

        return completion.run(words)
    if name == "version":
        return _version(words)
    return _help(words)


def _mcp(words: list[str]) -> int:
    from ropewalk.cli.main import make_context
    from ropewalk.mcp.server import PROFILES, Server, serve

    store, agent, rest = split_globals(words)
    profile = "core"
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help"):
            _print(
                f"usage: rw mcp [--profile {'|'.join(PROFILES)}] [--store DIR] [--as FAMILY/INSTANCE]\n\n"
                f"{SUMMARIES['mcp']}.\n\n"
                "  --profile PROFILE     list the small set of tools (core, default), those of a board\n"
                "                        (board), or all (full); any can be called\n"
                "  --store DIR           the store's folder\n"
                "  --as FAMILY/INSTANCE  who makes the writes of this server\n"
            )
            return 0
        flag, _, value = word.partition("=")
        if flag != "--profile":
            raise UsageError(f"unrecognized argument: {word}", hint="run `rw mcp --help`")
        profile = value or (rest.pop(0) if rest else "")
        if profile not in PROFILES:
            raise UsageError(f"there is no profile {profile!r}", hint=f"use {' or '.join(PROFILES)}")
    if agent is not None:
        from ropewalk.core.ids import check_agent

        check_agent(agent)
    server = Server(lambda: make_context(store, agent, alone=True), profile)
    # whatever else would print to standard output goes to standard error, so that the stream stays whole
    out = os.dup(1)
    os.dup2(2, 1)
    serve(server, 0, out)
    return 0


def split_globals(words: list[str]) -> tuple[str | None, str | None, list[str]]:
    """Gives (store, agent, other words) of a special command's words."""
    found: dict[str, str] = {}
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        flag, equals, value = word.partition("=")
        if flag in ("--store", "--repo", "--as"):
            if not equals and not queue:
                raise UsageError(f"argument {flag}: expected one argument")
            found["agent" if flag == "--as" else "store"] = value if equals else queue.pop(0)
        elif word not in ("--json", "--human"):
            rest.append(word)
    return found.get("store"), found.get("agent"), rest


def _version(words: list[str]) -> int:
    _, _, rest = split_globals(words)
    if rest and rest not in (["--help"], ["-h"]):
        raise UsageError(f"unrecognized arguments: {' '.join(rest)}", hint="run `rw version`")
    if rest:
        _print(f"usage: rw version\n\n{SUMMARIES['version']}.\n")
    elif _human(words):
        _print(f"ropewalk {__version__}\n")
    else:
        _envelope("version", {"version": __version__, "python": ".".join(map(str, sys.version_info[:3]))})
    return 0


def _human(words: list[str]) -> bool:
    return "--json" not in words and ("--human" in words or sys.stdout.isatty())


def _envelope(op: str, result: dict[str, Any]) -> None:
    from ropewalk.cli.main import write
    from ropewalk.operations import envelope

    body = {"ok": True, "op": op, "api": envelope.API, "result": result, "meta": {"elapsed_ms": 0, "auth": "trust"}}
    write(envelope.encode(body) + b"\n")


def _help(words: list[str]) -> int:
    from ropewalk.operations import registry

    _, _, rest = split_globals(words)
    rest = [word for word in rest if word not in ("-h", "--help")]
    name = " ".join(rest)
    if not name:
        _print(overview())
    elif registry.family_of(name):
        from ropewalk.cli.parse import parser

        parser(registry.load(name)).print_help()
    elif name in SUMMARIES and name != "help":
        return run(name, ["--help"])
    elif name == "help":
        _print(f"usage: rw help [COMMAND]\n\n{SUMMARIES['help']}.\n")
    elif name in registry.GROUPS:
        inside = [one for one in registry.names() if one.split(" ")[0] == name]
        lines = [f"  {one:<16} {registry.load(one).summary}\n" for one in inside]
        _print(f"usage: rw {name} COMMAND …\n\n{''.join(lines)}\nrw help {name} COMMAND shows one's options\n")
    else:
        raise UsageError(f"there is no command {name!r}", hint="run `rw help` for the list")
    return 0


def overview() -> str:
    """Gives the list of commands by family, each with its line."""
    from ropewalk.operations import registry

    lines = [
        "usage: rw COMMAND …\n",
        "\nropewalk runs many coding agents on one code base and lands their work as one line of history.\n",
    ]
    for family, names in registry.FAMILIES.items():
        lines.append(f"\n{HEADINGS.get(family, family)}:\n")
        lines += [f"  {name:<16} {registry.load(name).summary}\n" for name in names]
        if family == "describe":
            lines += [f"  {name:<16} {summary}\n" for name, summary in SUMMARIES.items()]
    lines.append("\nAny command takes --store DIR, --as FAMILY/INSTANCE, --json and --human.\n")
    lines.append("`rw help COMMAND` or `rw COMMAND --help` shows one's options.\n")
    return "".join(lines)


def _print(text: str) -> None:
    from ropewalk.cli.main import write

    write(text.encode("utf-8", "backslashreplace"))


def stream(operation: Operation, context: Context, values: dict[str, Any], output: str = "json") -> int:
    """Runs an operation in its streaming form: JSON lines, lines or bytes in the place of an envelope."""
    from ropewalk.operations import envelope

    if operation.name == "watch":
        return _watch(operation, context, values, output)
    typed: Any = envelope.convert(operation, values)
    if operation.name == "op log":
        return _follow(context, typed.before, typed.limit if "limit" in values else 0)
    if operation.name == "cat":
        return _raw(context, typed.rev, typed.path)
    raise InvalidError(f"{operation.name} has no streaming form")


def _watch(operation: Operation, context: Context, values: dict[str, Any], output: str) -> int:
    """Prints what happens until it ends or nobody reads: JSON lines, or lines or a drawing for a person; then the end.

    The last line of JSON is the envelope.
    """
    from functools import partial

    import msgspec

    from ropewalk.cli.main import show, write
    from ropewalk.operations import envelope, reporting

    if output == "json":
        context.show_on(lambda line: None, lambda event: write(msgspec.json.encode(event) + b"\n"))
    elif context.watch is None or "run" not in values:
        context.show_on(lambda line: _print(f"{line}\n"), reporting.lines_to(lambda line: _print(f"{line}\n")))
    followed = operation._replace(run=partial(reporting.watch, gone=_reader_gone()))
    return show(envelope.answer(followed, context, values), output)


def _reader_gone() -> Callable[[], bool]:
    """Gives what says whether nobody reads standard output any more."""
    import select

    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):
        return lambda: False  # it is no file, so that whoever reads it is this process
    # a pipe whose reader is gone reports an error even when no event is asked for
    gone = select.poll()
    gone.register(out, 0)
    return lambda: any(event & (select.POLLERR | select.POLLNVAL) for _, event in gone.poll(0))


def _follow(context: Context, before: int | None, earlier: int) -> int:
    """Prints operations as JSON lines as they are recorded, after the last `earlier` ones, until nobody reads."""
    import select

    import msgspec

    from ropewalk.cli.main import write
    from ropewalk.operations import undo
    from ropewalk.store import oplog

    if before is not None:
        raise UsageError("--before does not go with --follow")
    store = context.store
    last = max(0, store.last_op() - earlier)
    # a pipe whose reader is gone reports an error even when no event is asked for
    gone = select.poll()
    gone.register(sys.stdout.fileno(), 0)
    while True:
        found = oplog.after(store.db, last, 200)
        if found:
            write(b"".join(msgspec.json.encode(one) + b"\n" for one in undo.shown(context, found)))
            last = found[-1].op
        elif any(event & (select.POLLERR | select.POLLNVAL) for _, event in gone.poll(POLL_MS)):
            return 0
        elif not os.path.exists(store.layout.format):
            raise NotFoundError("the store is gone", path=store.layout.root)


def _raw(context: Context, rev: str, path: str) -> int:
    """Prints a file's bytes and nothing else."""
    from ropewalk.cli.main import write
    from ropewalk.core.errors import os_error
    from ropewalk.store import history

    try:
        parts = history.raw(context.store, rev, path)
    except RopewalkError:
        raise
    except OSError as error:
        raise os_error(error, "cat") from None
    for part in parts:
        write(part)
    return 0
