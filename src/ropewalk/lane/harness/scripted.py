"""The `scripted` harness: our own agent process that follows a script, for the demo and for tests."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.lane.harness.base import LaneEvent

_KINDS = ("started", "message", "tool", "usage", "result", "error")


class ScriptedHarness:
    """Starts `python -m ropewalk.testing.agent`; the script travels in the prompt."""

    name = "scripted"
    family = "scripted"

    def argv(self) -> list[str]:
        """Gives the command line: this very Python."""
        return [sys.executable, "-m", "ropewalk.testing.agent"]

    def env(self) -> dict[str, str]:
        """Gives where the package is, so that the agent finds it from any folder."""
        import ropewalk

        folder = os.path.dirname(os.path.dirname(os.path.abspath(ropewalk.__file__)))
        return {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}

    def prompt(self, text: str, script: Any) -> bytes:
        """Gives the prompt with its script as the last block."""
        if script is None:
            return text.encode("utf-8")
        return f"{text}\n\n```script\n{msgspec.json.encode(script).decode('utf-8')}\n```\n".encode()

    def event(self, line: bytes) -> LaneEvent | None:
        """Gives the event of a JSON line."""
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
        except UNREADABLE:
            return LaneEvent("message", {"text": line.decode("utf-8", "replace").rstrip()[:2000]})
        kind = event.pop("event", "message")
        return LaneEvent(kind if kind in _KINDS else "message", event)
