"""Adapters: what there is to know of one agent program, as data and one small class.

An adapter says how the program is started for a task, what the lines it prints mean, and how it is told something
while it runs. It starts nothing, reads no environment and knows no cage: paths are those that the program will see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from ropewalk.gateway.tokens import Tokens, Wire

Kind = Literal["started", "turn", "message", "tool", "tool_end", "usage", "needs_input", "retry", "result", "error"]
"""Is what an event says: `turn` is an answer of the model to the agent itself (G14), `tool` and `tool_end` enclose a
tool's run, `result` is the program's own last word."""


class Endpoint(NamedTuple):
    """Is where a program's model traffic goes: base URL without a path of the format's, a token, and the format.

    With `login` the provider knows the program by its own login, which the gateway has: the program gets one that is
    made up, with the token in the place of the real ones (G11). `window` is how many tokens its models bear, as the
    provider was found to say; 0 where that is not known.
    """

    url: str
    token: str
    wire: Wire
    login: bool = False
    window: int = 0


class McpServer(NamedTuple):
    """Is a tool server over HTTP that the program is to offer on its first turn, with headers it sends.

    `tools` are those that the model has to see then; without them nothing is looked for.
    """

    name: str
    url: str
    headers: Mapping[str, str]
    tools: tuple[str, ...] = ()


class Start(NamedTuple):
    """Is what a program is started for.

    `prompt` is the whole text; `prompt_file` is the path of a file with it, as the program will see it. `home` is the
    lane's own home, `workspace` its tree. `session` continues an earlier one; `new_session` is a UUID for a new one,
    which a program takes where it can.
    """

    prompt: str
    prompt_file: str
    workspace: str
    home: str
    endpoint: Endpoint | None
    model: str
    effort: str = ""
    max_turns: int | None = None
    session: str | None = None
    new_session: str = ""
    servers: Sequence[McpServer] = ()
    is_root: bool = False
    script: Any = None


class Launch(NamedTuple):
    """Is how a program is started: words, variables beside those of every lane, and files of its home by path in it.

    `stdin` is what it reads first; with `keep_open` the input stays open for what it is told later.
    """

    argv: list[str]
    env: dict[str, str]
    files: dict[str, bytes] = {}
    stdin: bytes = b""
    keep_open: bool = False


class Event(msgspec.Struct, frozen=True):
    """Is one thing that a program said, with its facts."""

    kind: Kind
    facts: dict[str, Any] = {}


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is how a program's own account ended: `ok` by its words, never by its exit code alone.

    `reason` is empty, or one of: api_error, rate_limited, authentication, context_full, max_turns, interrupted,
    session_lost, no_result, empty, crashed, tools_missing. `status` is the HTTP status that it named; `tokens` is what
    it counted itself, None where it does not say.
    """

    ok: bool
    text: str = ""
    reason: str = ""
    error: str = ""
    status: int | None = None
    session: str | None = None
    turns: int = 0
    tokens: Tokens | None = None
    denied: int = 0


class Reader(Protocol):
    """Reads what one run of a program prints."""

    def line(self, line: bytes) -> list[Event]:
        """Gives what a line of standard output says; what can't be read is a message."""
        ...

    def ending(self, code: int, stderr: str) -> Ending:
        """Gives how the run ended, once the program has; `code` is negative for a signal."""
        ...


class Adapter(Protocol):
    """Is one agent program."""

    @property
    def name(self) -> str:
        """Gives the harness's name, as people write it."""
        ...

    @property
    def family(self) -> str:
        """Gives the family of its agents: the part of their name before the slash."""
        ...

    @property
    def program(self) -> str:
        """Gives the program's name on the PATH."""
        ...

    @property
    def install(self) -> str:
        """Gives the line that installs it."""
        ...

    @property
    def tested(self) -> tuple[str, str]:
        """Gives the lowest and the highest version it was tested with."""
        ...

    @property
    def memory(self) -> int:
        """Gives how many megabytes one lane of it needs."""
        ...

    @property
    def node(self) -> str:
        """Gives the lowest version of node for one that is run by it; empty for others."""
        ...

    @property
    def wires(self) -> tuple[Wire, ...]:
        """Gives the formats of model traffic that it speaks, the best one first; none for one without a model."""
        ...

    @property
    def prompt_max(self) -> int:
        """Gives how many bytes of prompt it takes; longer ones are a file that a short prompt names (G16)."""
        ...

    @property
    def offers_tools(self) -> bool:
        """Says whether its model sees the tools of servers on the first turn; others hide them, or take none."""
        ...

    @property
    def volatile(self) -> Mapping[str, Sequence[str]]:
        """Gives what differs between equal requests, by format: paths of fields that a cassette passes over (G2)."""
        ...

    def version(self, printed: str) -> str:
        """Gives the version that `--version` printed; empty when there is none in it."""
        ...

    def launch(self, start: Start) -> Launch:
        """Gives how it is started."""
        ...

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        ...

    def steer(self, text: str) -> bytes | None:
        """Gives what its input gets so that it hears something in mid-run; None where it can't."""
        ...

    def interrupt(self) -> bytes | None:
        """Gives what its input gets so that it stops what it does and stays; None where only a signal does."""
        ...

    def explain(self, stderr: str) -> str:
        """Gives the words by which it refuses a flag or a setting of ours, empty when it did not (adapter_mismatch)."""
        ...
