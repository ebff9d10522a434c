"""The `command` harness: any program that reads a prompt on standard input, edits the tree, and ends with 0."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from typing import Any

from ropewalk.core.errors import HarnessError, InvalidError
from ropewalk.lane.harness.base import LaneEvent


class CommandHarness:
    """Starts a program by its command line; every line it prints is a message."""

    name = "command"

    def __init__(self, command: str, search: str) -> None:
        """Takes the command line, split as a shell would, and the PATH to search; `E_HARNESS` without the program."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise InvalidError(f"the command can't be split into words: {error}", command=command) from None
        if not words:
            raise InvalidError("the command is empty", command=command)
        found = shutil.which(words[0], path=search)
        if found is None:
            raise HarnessError(
                f"the program {words[0]!r} is not installed",
                hint="install it, or name it with its path",
                program=words[0],
            )
        self._argv = [os.path.abspath(found), *words[1:]]
        slug = re.sub(r"[^a-z0-9._-]+", "-", os.path.basename(words[0]).lower()).strip("-.")
        self.family = slug[:64] or "command"

    def argv(self) -> list[str]:
        """Gives the command line."""
        return list(self._argv)

    def env(self) -> dict[str, str]:
        """Gives no variables: the program has those of its lane."""
        return {}

    def prompt(self, text: str, script: Any) -> bytes:
        """Gives the prompt's text."""
        return text.encode("utf-8")

    def event(self, line: bytes) -> LaneEvent | None:
        """Gives a message for each line that is not empty."""
        text = line.decode("utf-8", "replace").rstrip()
        return LaneEvent("message", {"text": text[:2000]}) if text else None
