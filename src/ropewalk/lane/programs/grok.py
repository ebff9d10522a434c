"""xAI's own Grok CLI."""

from __future__ import annotations

from typing import Any

from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, number, part, said, sizes, toml_text

_EFFORT = {"low": "low", "medium": "medium", "high": "high", "max": "xhigh"}
_BACKENDS = {"chat": "chat_completions", "responses": "responses", "anthropic": "messages"}


class Grok(Program):
    """Is `grok -p --output-format streaming-json`; it makes two requests beside its turns."""

    name = "grok"
    family = "grok"
    program = "grok"
    install = "npm install -g @xai-official/grok@1.0.41"
    tested = ("1.0.41", "1.0.41")
    memory = 110
    node = "20"
    wires = ("chat", "responses", "anthropic")
    prompt_max = 90_000

    def launch(self, start: Start) -> Launch:
        """Gives how it is started; it does not read its input, but a file."""
        model = start.model or "grok-code-fast-1"
        lines: list[str] = ["[models]", f"default = {toml_text(model)}"]
        env = {
            "GROK_HOME": f"{start.home}/grok", "GROK_DISABLE_AUTOUPDATER": "1", "GROK_TELEMETRY_ENABLED": "false",
            "GROK_TELEMETRY_TRACE_UPLOAD": "false", "GROK_FEEDBACK_ENABLED": "false",
            "GROK_TELEMETRY_MIXPANEL_ENABLED": "false",
        }  # fmt: skip
        if start.endpoint is not None:
            env["ROPEWALK_LANE_TOKEN"] = start.endpoint.token
            base = start.endpoint.url + ("" if start.endpoint.wire == "anthropic" else "/v1")
            lines += [f"[model.{toml_text(model)}]", f"model = {toml_text(model)}", f"base_url = {toml_text(base)}",
                      'env_key = "ROPEWALK_LANE_TOKEN"', f'api_backend = "{_BACKENDS[start.endpoint.wire]}"',
                      f"context_window = {sizes(start)[0]}", "max_retries = 1"]  # fmt: skip
        for one in start.servers:
            lines += [f"[mcp_servers.{one.name}]", f"url = {toml_text(one.url)}"]
            if one.headers:
                pairs = ", ".join(f"{toml_text(k)} = {toml_text(v)}" for k, v in one.headers.items())
                lines.append(f"headers = {{ {pairs} }}")
        text = asked(start, self.prompt_max)
        task = ["--prompt-file", start.prompt_file] if text == start.prompt else ["-p", text]
        words = [self.program, *task, "--output-format", "streaming-json", "--always-approve", "--cwd",
                 start.workspace, "-m", model]  # fmt: skip
        if start.effort in _EFFORT:
            words += ["--reasoning-effort", _EFFORT[start.effort]]
        if start.max_turns is not None:
            words += ["--max-turns", str(start.max_turns)]
        if start.session:
            words += ["-r", start.session]
        elif start.new_session:
            words += ["-s", start.new_session]
        return Launch(words, env, {"grok/config.toml": ("\n".join(lines) + "\n").encode()})

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader()


class Reader(JsonReader):
    """Reads its stream, which ends with `end`."""

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind = found.get("type")
        if kind == "available_commands":
            return [said("started", session=None)]
        if kind == "usage":
            return self.turn()
        if kind == "tool_call":
            self.text = ""
            given = found.get("rawInput") or {}
            return [said("tool", name=found.get("toolName"), id=found.get("toolCallId"), path=part(given, "file_path"),
                         command=part(given, "command"))]  # fmt: skip
        if kind == "tool_call_update" and found.get("status") in ("completed", "failed"):
            return [said("tool_end", id=found.get("toolCallId"), ok=found.get("status") == "completed")]
        if kind == "text":
            self.text += str(found.get("data") or "")
            return []
        if kind == "error":
            self.failed = True
            return [self.fail(str(found.get("message") or ""))]
        if kind == "end":
            return self._end(found)
        return []

    def _end(self, found: dict[str, Any]) -> list[Event]:
        stop = str(found.get("stopReason") or "")
        self.done, self.failed = True, self.failed or stop != "end_turn"
        self.session = str(found.get("sessionId") or "") or None
        self.turns = number(found.get("num_turns")) or self.turns
        if stop == "max_turns":
            self.reason = "max_turns"
        usage = found.get("usage") or {}
        cached = number(part(usage, "cached_input_tokens") or part(usage, "cache_read_input_tokens"))
        self.tokens = Tokens(number(part(usage, "input_tokens")), cached, 0,
                             number(part(usage, "output_tokens")), number(part(usage, "reasoning_tokens")))  # fmt: skip
        return [said("message", text=self.text[:LINE]), said("result", ok=not self.failed, text=self.text[:LINE])]
