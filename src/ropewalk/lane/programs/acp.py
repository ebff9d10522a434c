"""Any agent that speaks the Agent Client Protocol, by our client that runs beside it in its lane."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ropewalk.core.errors import InvalidError
from ropewalk.gateway.tokens import Tokens, Wire
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, number, part, said

_CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "acp_client.py")
_MODES = ("bypassPermissions", "yolo", "full-access", "danger-full-access", "allow-all")
"""Are modes in which agents ask nothing; the first that an agent has is set."""

_KNOWN = {
    "claude-agent-acp": "claude", "codex-acp": "codex", "opencode": "opencode", "gemini": "gemini", "qwen": "qwen",
    "grok": "grok", "copilot": "copilot",
}  # fmt: skip
"""Are programs that are set up as those that we know without the protocol."""

_MODEL = {"gemini": "GEMINI_MODEL", "claude": "ANTHROPIC_MODEL"}
_LONELY = ("codex-acp",)
"""Are programs that never answer a word which they were told in mid-run: only the first answer counts."""


_ERROR = re.compile(r"(?:\A|Retrying\.\.\.)\s*Error: (.*)\Z", re.DOTALL)


class Acp(Program):
    """Is an agent behind a command line such as `gemini --acp`; it can be told more, and stopped, in mid-run."""

    wires: tuple[Wire, ...] = ()

    def __init__(self, line: str) -> None:
        """Takes the command line, split as a shell would; `E_INVALID` when it can't be."""
        from ropewalk.lane.programs import registry

        try:
            self.words = shlex.split(line)
        except ValueError as error:
            raise InvalidError(f"the command can't be split into words: {error}", command=line) from None
        if not self.words:
            raise InvalidError("the command is empty", command=line)
        self.program = self.words[0]
        own = os.path.basename(self.program)
        known = _KNOWN.get(own)
        self.base = registry.get(known or f"command:{shlex.quote(self.program)}")
        self.name = f"acp:{line}"
        self.family = self.base.family if known else re.sub(r"[^a-z0-9._-]+", "-", own.lower()).strip("-.") or "acp"
        self.install = self.base.install if known == own else f"npm install -g {own}, or name it with its path"
        self.tested = self.base.tested if known == own else ("", "")
        self.memory, self.node = self.base.memory + 15, self.base.node if known == own else ""
        self.wires = self.base.wires
        self.prompt_max = min(200_000, self.base.prompt_max)
        self.volatile: Mapping[str, Sequence[str]] = self.base.volatile

    def launch(self, start: Start) -> Launch:
        """Gives how our client is started, with the agent's words behind it."""
        base = self.base.launch(start._replace(servers=(), session=None, new_session=""))
        env = dict(base.env)
        if start.model and (name := _MODEL.get(self.base.name)):
            env[name] = start.model
        servers = [
            {"type": "http", "name": one.name, "url": one.url,
             "headers": [{"name": k, "value": v} for k, v in one.headers.items()]}
            for one in start.servers
        ]  # fmt: skip
        order = {
            "prompt": asked(start, self.prompt_max), "cwd": start.workspace, "session": start.session,
            "servers": servers, "modes": _MODES, "lonely": os.path.basename(self.program) in _LONELY,
        }  # fmt: skip
        with open(_CLIENT, "rb") as file:
            files = {**base.files, "acp_client.py": file.read()}
        words = [rooms.python_inside(start.home == rooms.HOME), "-I", "-S", f"{start.home}/acp_client.py", *self.words]
        return Launch(words, env, files, msgspec.json.encode(order) + b"\n", keep_open=True)

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader(errors_as_words=self.base.name == "copilot")

    def explain(self, stderr: str) -> str:
        """Gives what the same program says without the protocol."""
        return self.base.explain(stderr)

    def steer(self, text: str) -> bytes | None:
        """Gives another prompt; most agents hear it with their next request, some when they ended what they do."""
        return msgspec.json.encode({"do": "steer", "text": text}) + b"\n"

    def interrupt(self) -> bytes | None:
        """Gives the word by which the agent's turn is cancelled."""
        return b'{"do":"interrupt"}\n'


class Reader(JsonReader):
    """Reads what our client tells; with `errors_as_words` an error of the model's comes as the agent's last words."""

    def __init__(self, *, errors_as_words: bool = False) -> None:
        super().__init__()
        self._errors_as_words = errors_as_words

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind = found.get("event")
        if kind == "started":
            self.session = str(found.get("session") or "") or None
            return [said("started", session=self.session)]
        if kind == "message":
            return [*self.answers(), said("message", text=str(found.get("text") or "")[:LINE])]
        if kind == "tool":
            return [*self.answers(), said("tool", name=found.get("name"), id=found.get("id"), path=found.get("path"),
                                          command=found.get("command"))]  # fmt: skip
        if kind == "tool_end":
            self.worked()
            return [said("tool_end", id=found.get("id"), ok=bool(found.get("ok")))]
        if kind == "usage":
            tokens = _tokens(found.get("usage"))
            return [self.add(tokens)] if tokens.total else []
        if kind == "denied":
            self.denied += 1
        if kind == "error":
            self.reason = "crashed"
            return [self.fail(str(found.get("text") or ""))]
        return self._result(found) if kind == "result" else []

    def _result(self, found: dict[str, Any]) -> list[Event]:
        self.done, self.failed = True, found.get("ok") is not True
        if self._errors_as_words and (error := _ERROR.search(str(found.get("text") or ""))):
            found = {"text": error[1], "stop": "error"}
            self.failed = True
        begun = self.answers()
        words, stop = str(found.get("text") or ""), str(found.get("stop") or "")
        if not self.failed:
            self.text = words
            return [*begun, said("result", ok=True, text=words[:LINE], turns=self.turns)]
        if stop != "error":
            self.reason = stop if stop in ("max_turns", "interrupted", "context_full") else "no_result"
            words = f"it stopped: {stop}"
        return [*begun, self.fail(words or stop), said("result", ok=False, text=words[:LINE])]


def _tokens(usage: Any) -> Tokens:
    """Gives tokens as the protocol names them, or as the agents that have their own names do."""

    def first(*names: str) -> int:
        return next((number(part(usage, name)) for name in names if part(usage, name) is not None), 0)

    cached = first("cachedReadTokens", "cached_input_tokens", "cached_tokens")
    given, output = first("inputTokens", "input_tokens"), first("outputTokens", "output_tokens")
    if first("totalTokens") == given + output:  # what came from the cache is part of the input for some
        given = max(0, given - cached)
    return Tokens(given, cached, first("cachedWriteTokens"), output,
                  first("thoughtTokens", "reasoningTokens", "reasoning_tokens"))  # fmt: skip


__all__ = ["Acp", "Reader"]
