"""Google's Gemini CLI, and Qwen Code, which was made from it."""

from __future__ import annotations

from typing import Any

from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, json_file, number, part, said


def _servers(start: Start) -> dict[str, Any]:
    return {one.name: {"httpUrl": one.url, "headers": dict(one.headers), "trust": True} for one in start.servers}


class Gemini(Program):
    """Is `gemini -o stream-json`."""

    name = "gemini"
    family = "gemini"
    program = "gemini"
    install = "npm install -g @google/gemini-cli@0.61.0"
    tested = ("0.61.0", "0.61.0")
    memory = 250
    node = "20"
    wires = ("gemini",)
    prompt_max = 100_000
    offers_tools = True

    def launch(self, start: Start) -> Launch:
        """Gives how it is started."""
        settings: dict[str, Any] = {
            "security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False}, "general": {"enableAutoUpdate": False, "maxAttempts": 3},
        }  # fmt: skip
        if start.max_turns is not None:
            settings["model"] = {"maxSessionTurns": start.max_turns}
        if start.servers:
            settings["mcpServers"] = _servers(start)
        env = {"GEMINI_CLI_HOME": start.home, "GEMINI_CLI_NO_RELAUNCH": "true"}
        if start.endpoint is not None:
            env |= {"GEMINI_API_KEY": start.endpoint.token, "GOOGLE_GEMINI_BASE_URL": start.endpoint.url}
        words = [self.program, "-o", "stream-json", "--approval-mode", "yolo", "--skip-trust"]
        if start.model:
            words += ["-m", start.model]
        if start.session:
            words += ["--resume", start.session]
        text = asked(start, self.prompt_max).encode("utf-8", "surrogatepass")
        return Launch(words, env, {".gemini/settings.json": json_file(settings)}, text)

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader()


class Reader(JsonReader):
    """Reads Gemini's stream; `result.status` decides, because the exit code is 0 for some errors."""

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind = found.get("type")
        if kind == "init":
            self.session = str(found.get("session_id") or "") or None
            return [said("started", session=self.session, model=found.get("model"))]
        if kind == "message" and found.get("role") == "assistant":
            piece = str(found.get("content") or "")
            self.text = self.text + piece if found.get("delta") else piece
            return [*self.answers(), said("message", text=piece[:LINE])]
        if kind == "tool_use":
            given = found.get("parameters") or {}
            return [*self.answers(), said("tool", name=found.get("tool_name"), id=found.get("tool_id"),
                                          path=part(given, "file_path"), command=part(given, "command"))]  # fmt: skip
        if kind == "tool_result":
            self.text = ""
            self.worked()
            return [said("tool_end", id=found.get("tool_id"), ok=found.get("status") == "success")]
        if kind == "error":
            return [self.fail(str(found.get("message") or ""))]
        if kind == "result":
            return self._result(found)
        return []

    def _result(self, found: dict[str, Any]) -> list[Event]:
        self.done, self.failed = True, found.get("status") != "success"
        stats = found.get("stats")
        if isinstance(stats, dict):
            cached = number(stats.get("cached"))
            self.tokens = Tokens(max(0, number(stats.get("input_tokens")) - cached), cached, 0,
                                 number(stats.get("output_tokens")))  # fmt: skip
        if self.failed:
            words = str(part(found, "error", "message") or self.error or "")
            return [self.fail(words), said("result", ok=False, text=words[:LINE])]
        return [said("result", ok=True, text=self.text[:LINE])]


class Qwen(Program):
    """Is `qwen -o stream-json`; it bounds its own wall clock."""

    name = "qwen"
    family = "qwen"
    program = "qwen"
    install = "npm install -g @qwen-code/qwen-code@0.24.4"
    tested = ("0.15.10", "0.24.4")
    memory = 300
    node = "22"
    wires = ("chat",)
    prompt_max = 100_000

    def launch(self, start: Start) -> Launch:
        """Gives how it is started."""
        settings: dict[str, Any] = {
            "security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False}, "general": {"enableAutoUpdate": False},
        }  # fmt: skip
        if start.servers:
            settings["mcpServers"] = _servers(start)
        env = {"QWEN_CODE_NO_RELAUNCH": "true"}
        words = [self.program, "-o", "stream-json", "--approval-mode", "yolo", "--auth-type", "openai"]
        if start.endpoint is not None:
            env |= {"OPENAI_API_KEY": start.endpoint.token, "OPENAI_BASE_URL": start.endpoint.url + "/v1",
                    "OPENAI_MODEL": start.model or "default"}  # fmt: skip
        if start.model:
            words += ["-m", start.model]
        if start.max_turns is not None:
            words += ["--max-session-turns", str(start.max_turns)]
        if start.session:
            words += ["--resume", start.session]
        text = asked(start, self.prompt_max).encode("utf-8", "surrogatepass")
        return Launch(words, env, {".qwen/settings.json": json_file(settings)}, text)

    def reader(self) -> QwenReader:
        """Gives a reader for one run."""
        return QwenReader()


class QwenReader(JsonReader):
    """Reads Qwen's stream, which is like Claude's."""

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind, subtype = found.get("type"), found.get("subtype")
        if isinstance(found.get("session_id"), str):
            self.session = found["session_id"]
        if kind == "system" and subtype == "init":
            return [said("started", session=self.session, model=found.get("model"), tools=found.get("tools") or [])]
        if kind == "system" and subtype == "retry":
            return [said("retry", attempt=found.get("attempt"))]
        if kind == "assistant":
            events = self.answers()
            content = part(found, "message", "content")
            for one in content if isinstance(content, list) else []:
                if part(one, "type") == "text":
                    self.text = str(one.get("text") or "")
                    events.append(said("message", text=self.text[:LINE]))
                elif part(one, "type") == "tool_use":
                    events.append(said("tool", name=one.get("name"), id=one.get("id"),
                                       path=part(one, "input", "file_path"),
                                       command=part(one, "input", "command")))  # fmt: skip
            return events
        if kind == "user":
            self.worked()
            content = part(found, "message", "content")
            return [said("tool_end", id=part(one, "tool_use_id"), ok=not part(one, "is_error"))
                    for one in (content if isinstance(content, list) else [])
                    if part(one, "type") == "tool_result"]  # fmt: skip
        if kind == "result":
            return self._result(found)
        return []

    def _result(self, found: dict[str, Any]) -> list[Event]:
        self.done, self.failed = True, found.get("is_error") is not False
        self.turns = number(found.get("num_turns")) or self.turns
        usage = found.get("usage") or {}
        cached = number(part(usage, "cache_read_input_tokens"))
        self.tokens = Tokens(max(0, number(part(usage, "input_tokens")) - cached), cached, 0,
                             number(part(usage, "output_tokens")))  # fmt: skip
        if self.failed:
            words = str(part(found, "error", "message") or found.get("result") or "")
            return [self.fail(words), said("result", ok=False, text=words[:LINE])]
        self.text = str(found.get("result") or self.text)
        return [said("result", ok=True, text=self.text[:LINE], turns=self.turns)]
