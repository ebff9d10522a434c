"""The entry point of `ropewalk` and `rw`: find the operation, run it, print one envelope, exit with its code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.core.errors import RopewalkError, UsageError, fault, is_memory

if TYPE_CHECKING:
    from ropewalk.operations.context import Context
    from ropewalk.operations.envelope import Reply

MAX_INPUT = 256 << 20
SPECIAL = ("mcp", "serve", "completion", "version", "help")
HIDDEN = ("receive",)

_NO_MEMORY = (
    b'{"ok":false,"op":"","api":1,"error":{"code":"E_INVALID","message":"the command needs more memory than there is",'
    b'"retryable":false,"exit":2,"details":{},"hint":"give the process more memory"},'
    b'"meta":{"elapsed_ms":0,"auth":"trust"}}\n'
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit code."""
    if argv is None:
        _open_standard_files()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(words)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output is gone; say nothing more
        _drop_output()
        return 0
    except (MemoryError, ImportError, SystemError, OSError) as error:
        if is_memory(error):
            # too little is left even to load what makes an envelope
            os.write(1, _NO_MEMORY)
            return 2
        if not isinstance(error, OSError):
            raise
        # whatever an operation meets is in its envelope; what comes here is the output itself
        _drop_output()
        try:
            told = f"error: E_IO the answer could not be written: {error.strerror or error}"
            print(told, file=sys.stderr, flush=True)
        except OSError:
            # standard error is gone too: the exit code alone is left to tell, and Python would make it another one
            # when it fails to write what it still holds
            if argv is None:
                os._exit(7)
        return 7


def _main(words: list[str]) -> int:
    leading, words = _leading(words)
    name, rest = _command(words)
    output = _wanted_output(leading + words)
    try:
        if name in SPECIAL or name in HIDDEN or not name:
            from ropewalk.cli import special

            return special.run(name or "help", leading + rest)
        from ropewalk.operations import registry

        if registry.family_of(name) is None:
            raise UsageError(f"there is no command {name!r}", hint=_did_you_mean(name))
        operation = registry.load(name)
        if {"-h", "--help"} & set(_before_dashes(rest)):
            from ropewalk.cli.parse import parser

            parser(operation).print_help()
            return 0
        from ropewalk.cli.parse import request

        values, options = request(operation, leading + rest, read_input)
        context = make_context(options.store, options.agent)
        if sys.stdin.isatty() and sys.stderr.isatty():
            context.asks = _asked
            if operation.name == "setup":
                from ropewalk.cli import asking

                context.asks_line = asking.line
        if (
            operation.name in ("run", "runs resume", "watch", "demo")
            and sys.stderr.isatty()
            and os.environ.get("TERM", "dumb") != "dumb"
        ):
            from ropewalk.cli.live import Live

            live = Live(sys.stderr)
            context.show_on(live.say, live.event)
    except RopewalkError as error:
        return _fail(name, error, output)
    except OSError:
        raise
    except Exception as error:
        return _fail(name, fault(error), output)
    try:
        if options.stream or operation.name == "watch":
            from ropewalk.cli import special

            try:
                return special.stream(operation, context, values, options.output or output)
            except RopewalkError as error:
                return _fail(name, error, output)
        from ropewalk.operations import envelope

        return show(envelope.answer(operation, context, values), options.output or output)
    finally:
        context.close()


def _asked(question: str) -> bool:
    """Asks the person at the terminal; what is no yes is a no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _fail(name: str, error: RopewalkError, output: str) -> int:
    from ropewalk.operations import envelope

    body = envelope.failure(name, error)
    body["meta"] = {"elapsed_ms": 0, "auth": "trust"}
    return show(envelope.Reply(body, error.exit), output)


def _did_you_mean(name: str) -> str:
    from difflib import get_close_matches

    from ropewalk.operations import registry

    close = get_close_matches(name, [*registry.names(), *SPECIAL], 1)
    return f"did you mean `rw {close[0]}`? `rw help` lists all" if close else "run `rw help` for the list"


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
    from ropewalk.operations import registry

    return registry.split(words) or ("help", words)


def _before_dashes(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _wanted_output(words: list[str]) -> str:
    plain = _before_dashes(words)
    if "--json" in plain:
        return "json"
    if "--human" in plain:
        return "human"
    return "human" if sys.stdout.isatty() else "json"


def make_context(store: str | None, agent: str | None, *, alone: bool = False) -> Context:
    """Gives the context of this process: settings, working folder, and the person at the terminal.

    With `alone` there is nobody to see progress or to be taken for the caller. Raises `E_INVALID` for a variable
    whose value does not fit.
    """
    from ropewalk.core import config
    from ropewalk.operations.context import Context

    env = os.environ
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = "/"
    home = env.get("HOME") or "/"
    settings = config.resolve({"store": store, "agent": agent}, env)
    named, who = settings["store"].value, settings["agent"].value
    return Context(
        cwd=cwd,
        store=None if named is None else str(named),
        agent=None if who is None else str(who),
        person=_person if not alone and sys.stdin is not None and sys.stdin.isatty() else None,
        env=env,
        progress=None if alone else _progress,
        data_home=config.folder(settings["data_home"], home),
        cache_home=config.folder(settings["cache_home"], home),
        config_home=config.folder(settings["config_home"], home),
        settings=settings,
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
    """Gives the bytes of a file named on the command line, `-` for standard input; pipes are read, too."""
    from ropewalk.core.errors import InvalidError, NotFoundError

    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_INPUT + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_INPUT + 1)
        if len(data) > MAX_INPUT:
            raise InvalidError(f"{path!r} is longer than {MAX_INPUT >> 20} MiB", hint="name large contents as files")
        return data
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no file {path!r}", hint="give a file, or - for standard input", path=path
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidError(f"{path!r} can't be read: {error}", path=path) from None


def show(reply: Reply, output: str | None) -> int:
    """Prints an envelope as JSON or for a person, and gives the exit code."""
    from ropewalk.operations import envelope

    if (output or ("human" if sys.stdout.isatty() else "json")) == "json":
        write(envelope.encode(reply.envelope) + b"\n")
    else:
        from ropewalk.cli.render import aside, render

        text = render(reply.envelope)
        if reply.envelope["ok"]:
            write(text.encode("utf-8", "backslashreplace"))
            print(aside(reply.envelope), end="", file=sys.stderr)
        else:
            print(text, end="", file=sys.stderr)
    return reply.exit


def write(data: bytes) -> None:
    """Writes bytes to standard output, whole and at once."""
    sys.stdout.flush()
    stream: Any = sys.stdout.buffer
    stream.write(data)
    stream.flush()


def _drop_output() -> None:
    """Lets what is still buffered go nowhere, so that the end of the process does not fail once more."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
    except OSError:
        return
    os.dup2(null, 1)
    os.close(null)


def _open_standard_files() -> None:
    """Opens what a caller closed, so that no file of a store ever becomes standard output."""
    if sys.stdin is not None and sys.stdout is not None and sys.stderr is not None:
        return
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)


if __name__ == "__main__":
    sys.exit(main())
