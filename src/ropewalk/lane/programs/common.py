"""What adapters have in common: the defaults of a program, and a reader of JSON lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.gateway.tokens import Tokens, Wire
from ropewalk.lane.adapter import Ending, Event, Kind, Launch, Reader, Start

_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?(?:[-+.][0-9A-Za-z.]+)?")
_STATUS = re.compile(
    r"(?:^|status:?|error:?|https?:?|code:?|[(\[{:\"])\s*\(?([45]\d\d)\b(?!\s?(?:ms|s|tokens|bytes|seconds)\b)",
    re.IGNORECASE,
)
LINE = 4000
"""Is how much of a text an event keeps, in characters."""

_BY_STATUS = {401: "authentication", 403: "authentication", 429: "rate_limited", 529: "rate_limited"}
_REASONS = (
    ("tools_missing", r"required mcp servers? failed|mcp servers?.{0,60}failed to (initialize|start|connect)"),
    ("session_lost", r"no (previous |saved |matching )?(conversation|session|rollout)s?\b.{0,30}(found|matched)"
                     r"|(session|thread)\b.{0,60}not found|(invalid|unknown) session"),
    ("context_full", r"context.{0,20}(length|window|limit|exceed)|prompt is too long|maximum context|too many tokens"),
    ("max_turns", r"max(imum)?.{0,12}(turns|number of turns|tool.?rounds|session turns)"),
    ("rate_limited", r"rate.?limit|too many requests|overloaded|quota"),
    ("authentication", r"unauthori[sz]ed|authenticat|invalid.{0,12}(api.)?key|key is invalid|not logged in|log ?in\b"),
)  # fmt: skip
_API = (
    r"_error\b|api.?error|connection|stream|fetch failed|network|econn|socket|response from model|serialization"
    r"|in trouble|high demand"
)


class Program:
    """Is an agent program with the defaults of most; a subclass says what is its own."""

    name = ""
    family = ""
    program = ""
    install = ""
    tested: tuple[str, str] = ("", "")
    memory = 300
    node = ""
    wires: tuple[Wire, ...] = ()
    prompt_max = 200_000
    offers_tools = False
    volatile: Mapping[str, Sequence[str]] = {}
    rejects = r"unknown (option|argument|flag)|unexpected argument|unrecogni[sz]ed|invalid (option|value)|error: option"

    def version(self, printed: str) -> str:
        """Gives the first thing that looks like a version."""
        found = _VERSION.search(printed)
        return found[0] if found else ""

    def launch(self, start: Start) -> Launch:
        """Gives how it is started."""
        raise NotImplementedError

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        raise NotImplementedError

    def steer(self, text: str) -> bytes | None:
        """Gives nothing: it can't be told anything while it runs."""
        return None

    def interrupt(self) -> bytes | None:
        """Gives nothing: only a signal stops it."""
        return None

    def explain(self, stderr: str) -> str:
        """Gives the line by which it refuses what we gave it."""
        for line in stderr.splitlines():
            if re.search(self.rejects, line, re.IGNORECASE):
                return line.strip()[:500]
        return ""


BY_FILE = 200_000
"""Above how many bytes a prompt is a file for every agent, whatever it would take itself."""


def asked(start: Start, most: int) -> str:
    """Gives the prompt as the program gets it: its text, or a short one that names the file it is in (G16)."""
    if len(start.prompt.encode("utf-8", "surrogatepass")) <= min(most, BY_FILE):
        return start.prompt
    return (
        f"Your whole task is in the file {start.prompt_file}. Read all of it first, in parts if need be, and then"
        " do what it says."
    )


def sizes(start: Start) -> tuple[int, int]:
    """Gives how many tokens the context of the program's model has, and how many of them its answers may have."""
    window = start.endpoint.window if start.endpoint is not None else 0
    return (window, min(16_000, window // 4)) if window else (200_000, 16_000)


def json_file(value: Any) -> bytes:
    """Gives a JSON file's content."""
    return msgspec.json.format(msgspec.json.encode(value))


def toml_text(value: str) -> str:
    """Gives a text as TOML has it."""
    return msgspec.json.encode(value).decode("utf-8")


class JsonReader:
    """Reads one JSON object a line; a subclass says what each means, and keeps what the ending needs."""

    def __init__(self) -> None:
        self.text = ""
        self.error = ""
        self.session: str | None = None
        self.turns = 0
        self.tokens: Tokens | None = None
        self.done = False
        self.failed = False
        self.reason = ""
        self.status: int | None = None
        self.denied = 0
        self.lines = 0
        self._answering = False

    def line(self, line: bytes) -> list[Event]:
        """Gives what a line says."""
        stripped = line.strip()
        if not stripped:
            return []
        try:
            found = msgspec.json.decode(stripped)
        except UNREADABLE:
            return [said("message", text=stripped.decode("utf-8", "replace")[:LINE])]
        if not isinstance(found, dict):
            return [said("message", text=str(found)[:LINE])]
        self.lines += 1
        return self.event(found)

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        raise NotImplementedError

    def turn(self) -> list[Event]:
        """Counts a turn, and gives the event of it."""
        self.turns += 1
        return [said("turn", number=self.turns)]

    def answers(self) -> list[Event]:
        """Counts a turn where a program does not say when one begins: at the first of what an answer holds."""
        if self._answering:
            return []
        self._answering = True
        return self.turn()

    def worked(self) -> None:
        """Notes that a tool ended: what comes next is of another answer."""
        self._answering = False

    def add(self, tokens: Tokens) -> Event:
        """Counts tokens and gives the event that tells of them."""
        self.tokens = tokens if self.tokens is None else self.tokens + tokens
        return said("usage", tokens=msgspec.to_builtins(tokens))

    def fail(self, words: str, status: int | None = None) -> Event:
        """Notes an error and gives the event that tells of it."""
        self.error = words[:LINE] or "an error without words"
        self.status = status if status is not None else status_in(words)
        return said("error", text=self.error, status=self.status)

    def is_good(self, code: int) -> bool:
        """Says whether the program's own words are those of a good end."""
        return self.done and not self.failed

    def ending(self, code: int, stderr: str) -> Ending:
        """Gives how the run ended."""
        good = self.is_good(code)
        words = self.error or ("" if good else _last(stderr))
        told = words if self.lines else f"{words}\n{stderr}"
        reason = "" if good else self.reason or reason_of(told, self.status, code, self.lines)
        if reason == "no_result" and self.error and not self.reason:
            reason = "api_error"  # what a program tells of as its own error is its model's nearly always
        if good and not self.text.strip():
            reason = "empty"
        return Ending(good, self.text.strip(), reason, "" if good else words, self.status, self.session, self.turns,
                      self.tokens, self.denied)  # fmt: skip


def said(kind: Kind, **facts: Any) -> Event:
    """Gives an event."""
    return Event(kind, facts)


def reason_of(words: str, status: int | None, code: int, lines: int) -> str:
    """Gives why a run failed: by the status that was named, where it says enough, and by the words else."""
    text = words.lower()
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None and status >= 500:
        return "api_error"
    for reason, pattern in _REASONS:
        if re.search(pattern, text):
            return reason
    if status is not None or re.search(_API, text):
        return "api_error"
    if code < 0:
        return "crashed"
    return "no_result" if lines else "crashed"


def status_in(words: str) -> int | None:
    """Gives an HTTP status that is named in words."""
    found = _STATUS.search(words)
    return int(found[1]) if found else None


def number(value: Any) -> int:
    """Gives a count, 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def part(value: Any, *names: str) -> Any:
    """Gives what lies at a path of keys in an object, None where it is not."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _last(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][:LINE] if lines else ""
