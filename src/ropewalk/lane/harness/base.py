"""What a harness is: how an agent program is started, and what the lines it prints mean."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class LaneEvent(msgspec.Struct, frozen=True):
    """Is one event of an agent: `kind` is started, message, tool, usage, result or error, with its facts."""

    kind: str
    facts: dict[str, Any] = {}


class Harness(Protocol):
    """Is an adapter: data on a program, and how its stream is read. The prompt is never on a command line (G16)."""

    @property
    def name(self) -> str:
        """Gives the harness's name."""
        ...

    @property
    def family(self) -> str:
        """Gives the family of the agents it starts: the part of their name before the slash."""
        ...

    def argv(self) -> list[str]:
        """Gives the command line."""
        ...

    def env(self) -> dict[str, str]:
        """Gives variables that the program needs beside those every lane has."""
        ...

    def prompt(self, text: str, script: Any) -> bytes:
        """Gives what the program reads on standard input."""
        ...

    def event(self, line: bytes) -> LaneEvent | None:
        """Gives what a line of standard output says, or None for nothing."""
        ...
