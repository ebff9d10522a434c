"""pi."""

from __future__ import annotations

from typing import Any

from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, json_file, number, part, said, sizes

_EFFORT = ("low", "medium", "high", "max")


class Pi(Program):
    """Is `pi -p --mode json`; it takes no tool servers, and its exit code is 0 whatever happens."""

    name = "pi"
    family = "pi"
    program = "pi"
    install = "npm install -g @earendil-works/pi-coding-agent@1.6.0"
    tested = ("0.73.1", "1.6.0")
    memory = 170
    node = "22.19"
    wires = ("chat", "anthropic")
    prompt_max = 100_000

    def launch(self, start: Start) -> Launch:
        """Gives how it is started."""
        model = start.model or "default"
        files: dict[str, bytes] = {}
        env = {
            "PI_CODING_AGENT_DIR": f"{start.home}/pi",
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_SKIP_VERSION_CHECK": "1",
        }
        words = [self.program, "-p", "--mode", "json"]
        if start.endpoint is not None:
            env["ROPEWALK_LANE_TOKEN"] = start.endpoint.token
            chat = start.endpoint.wire != "anthropic"
            window, output = sizes(start)
            nothing = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)
            known = {"id": model, "name": model, "reasoning": start.effort in _EFFORT, "input": ["text"],
                     "contextWindow": window, "maxTokens": output, "cost": nothing}  # fmt: skip
            provider = {"baseUrl": start.endpoint.url + ("/v1" if chat else ""), "models": [known],
                        "api": "openai-completions" if chat else "anthropic-messages",
                        "apiKey": "$ROPEWALK_LANE_TOKEN"}  # fmt: skip
            files["pi/models.json"] = json_file({"providers": {"ropewalk": provider}})
            words += ["--provider", "ropewalk", "--model", model]
        elif start.model:
            words += ["--model", start.model]
        if start.effort in _EFFORT:
            words += ["--thinking", start.effort]
        if start.session:
            words += ["--session", start.session]
        text = asked(start, self.prompt_max).encode("utf-8", "surrogatepass")
        return Launch(words, env, files, text)

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader()


class Reader(JsonReader):
    """Reads its stream; the last answer of the model decides, and `agent_end` is not the end."""

    def __init__(self) -> None:
        super().__init__()
        self._stop = ""

    def line(self, line: bytes) -> list[Event]:
        """Gives what a line says; those that repeat a message at each of its parts are passed over."""
        return [] if b'"type":"message_update"' in line[:200].replace(b" ", b"") else super().line(line)

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind = found.get("type")
        if kind == "session":
            self.session = str(found.get("id") or "") or None
            return [said("started", session=self.session)]
        if kind == "message_end" and part(found, "message", "role") == "assistant":
            return self._message(found["message"])
        if kind == "tool_execution_start":
            given = found.get("args") or {}
            return [said("tool", name=found.get("toolName"), path=part(given, "path"), command=part(given, "command"))]
        if kind == "tool_execution_end":
            return [said("tool_end", name=found.get("toolName"), ok=not found.get("isError"))]
        if kind == "auto_retry_start":
            return [said("retry", attempt=found.get("attempt"), text=str(found.get("errorMessage") or "")[:LINE])]
        if kind == "auto_retry_end" and found.get("success") is False:
            return [self.fail(str(found.get("finalError") or ""))]
        return []

    def _message(self, message: dict[str, Any]) -> list[Event]:
        begun = self.turn()
        self._stop = str(message.get("stopReason") or "")
        usage = message.get("usage") or {}
        tokens = Tokens(number(part(usage, "input")), number(part(usage, "cacheRead")),
                        number(part(usage, "cacheWrite")), number(part(usage, "output")))  # fmt: skip
        events = [*begun, self.add(tokens)]
        content = message.get("content")
        texts = [str(one.get("text") or "") for one in (content if isinstance(content, list) else [])
                 if isinstance(one, dict) and one.get("type") == "text"]  # fmt: skip
        if self._stop == "error":
            events.append(self.fail(str(message.get("errorMessage") or "")))
        if texts:
            self.text = "\n".join(texts)
            events.append(said("message", text=self.text[:LINE]))
        return events

    def is_good(self, code: int) -> bool:
        """Says whether the last answer was a whole one; that it had no text is told beside it (G23)."""
        return code == 0 and self._stop == "stop"
