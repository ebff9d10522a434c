"""The entry point of `ropewalk` and `rw`: find the operation, run it, print one envelope, exit with its code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from ropewalk.core.errors import RopewalkError, UsageError
from ropewalk.operations import envelope, registry
from ropewalk.operations.context import Context

GROUPS = ("ref", "op", "git", "ws", "blob", "derive", "runs", "config")
SPECIAL = ("mcp", "completion", "version", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(words)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output is gone; say nothing more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _main(words: list[str]) -> int:
    leading, words = _leading(words)
    name, rest = _command(words)
    output = _wanted_output(leading + words)
    try:
        if name in SPECIAL or not name:
            from ropewalk.cli import special

            return special.run(name or "help", leading + rest)
        operation = registry.load(name) if registry.family_of(name) else None
        if operation is None:
            raise UsageError(f"there is no command {name!r}", hint="run `rw help` for the list")
        if "-h" in _before_dashes(rest) or "--help" in _before_dashes(rest):
            from ropewalk.cli.parse import parser

            parser(operation).print_help()
            return 0
        if operation.stream and _streams(name, rest):
            from ropewalk.cli import special

            return special.stream(operation, leading + rest)
        from ropewalk.cli.parse import request

        values, options = request(operation, leading + rest, read_input)
    except RopewalkError as error:
        body = envelope.failure(name, error)
        body["meta"] = {"elapsed_ms": 0, "auth": "trust"}
        return show(envelope.Reply(body, error.exit), output)
    context = make_context(options.store, options.agent)
    try:
        return show(envelope.answer(operation, context, values), options.output or output)
    finally:
        context.close()


def _leading(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits off the global options that stand before the command."""
    taken: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("--"):
        if words[at] in ("--store", "--repo", "--as"):
            taken += words[at : at + 2]
            at += 2
        elif words[at] in ("--json", "--human") or words[at].split("=")[0] in ("--store", "--repo", "--as"):
            taken.append(words[at])
            at += 1
        else:
            break
    return taken, words[at:]


def _command(words: list[str]) -> tuple[str, list[str]]:
    if not words:
        return "", []
    if words[0] in ("--version", "-V"):
        return "version", words[1:]
    if words[0] in ("--help", "-h"):
        return "help", words[1:]
    if words[0] in GROUPS:
        if len(words) > 1 and not words[1].startswith("-"):
            return f"{words[0]} {words[1]}", words[2:]
        return "help", words
    return words[0], words[1:]


def _before_dashes(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _streams(name: str, words: list[str]) -> bool:
    return bool({"--follow", "--raw", "-f"} & set(_before_dashes(words)))


def _wanted_output(words: list[str]) -> str:
    plain = _before_dashes(words)
    if "--json" in plain:
        return "json"
    if "--human" in plain:
        return "human"
    return "human" if sys.stdout.isatty() else "json"


def make_context(store: str | None, agent: str | None) -> Context:
    """Gives the context of this process: environment, working folder, and the person at the terminal."""
    env = os.environ
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = "/"
    home = env.get("HOME") or "/"
    return Context(
        cwd=cwd,
        store=store or env.get("ROPEWALK_STORE") or None,
        agent=agent or env.get("ROPEWALK_AGENT") or None,
        person=_person if sys.stdin is not None and sys.stdin.isatty() else None,
        env=env,
        progress=_progress,
        data_home=env.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"),
        state_home=env.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state"),
    )


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _person() -> str | None:
    """Gives `person/<git user>` for somebody at a terminal who gave no name."""
    import re

    from ropewalk.core.process import clean_env, git_program, run

    name = run([git_program(), "config", "user.name"], env=clean_env(), timeout=10).text()
    slug = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")[:64]
    return f"person/{slug}" if slug else None


def read_input(path: str) -> bytes:
    """Gives the bytes of a file named on the command line, `-` for standard input."""
    if path == "-":
        return sys.stdin.buffer.read()
    from ropewalk.store.changes import read_disk_file

    return read_disk_file(path)


def show(reply: envelope.Reply, output: str | None) -> int:
    """Prints an envelope as JSON or for a person, and gives the exit code."""
    if (output or ("human" if sys.stdout.isatty() else "json")) == "json":
        write(envelope.encode(reply.envelope) + b"\n")
    else:
        from ropewalk.cli.render import render

        text = render(reply.envelope)
        if reply.envelope["ok"]:
            write(text.encode("utf-8", "backslashreplace"))
        else:
            print(text, end="", file=sys.stderr)
    return reply.exit


def write(data: bytes) -> None:
    """Writes bytes to standard output, whole and at once."""
    sys.stdout.flush()
    stream: Any = sys.stdout.buffer
    stream.write(data)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
