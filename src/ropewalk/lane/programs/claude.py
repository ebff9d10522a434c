"""Claude Code; and, with another endpoint, every model that speaks Anthropic's Messages."""

from __future__ import annotations

from typing import Any

import msgspec

from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, json_file, number, part, said, sizes

_SERVERS, _LOGIN = "servers.json", "claude/.credentials.json"
_NEVER = 4_102_444_800_000
"""Is when a made-up login ends, in milliseconds: what it stands for is renewed by the gateway."""

_EFFORT = {"low": "4000", "medium": "10000", "high": "24000", "max": "32000"}


class Claude(Program):
    """Is `claude -p` with streams of JSON both ways; its input stays open, so that it can be told more meanwhile."""

    name = "claude"
    family = "claude"
    program = "claude"
    install = "npm install -g @anthropic-ai/claude-code@2.1.332"
    tested = ("2.1.197", "2.1.332")
    memory = 190
    node = "22"
    wires = ("anthropic",)
    prompt_max = 9_000_000
    offers_tools = True
    volatile = {"anthropic": ("metadata", "system", "messages.*.content.*.cache_control")}

    def launch(self, start: Start) -> Launch:
        """Gives how it is started."""
        home = f"{start.home}/claude"
        env = {
            "CLAUDE_CONFIG_DIR": home,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": "2",
            "API_TIMEOUT_MS": "600000",
            "MCP_CONNECTION_NONBLOCKING": "0",
        }
        if start.is_root:
            env["IS_SANDBOX"] = "1"
        if start.endpoint is not None:
            env["ANTHROPIC_BASE_URL"] = start.endpoint.url
            if start.endpoint.window:  # it takes a model that it does not know for one of a million tokens
                window, output = sizes(start)
                env |= {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window), "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(output)}
            if not start.endpoint.login:
                env["ANTHROPIC_API_KEY"] = start.endpoint.token
        if start.effort in _EFFORT:
            # newer models take the one, older ones the other
            env |= {"CLAUDE_CODE_EFFORT_LEVEL": start.effort, "MAX_THINKING_TOKENS": _EFFORT[start.effort]}
        words = [
            self.program, "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
            "--replay-user-messages", "--permission-mode", "bypassPermissions", "--setting-sources", "user",
        ]  # fmt: skip
        if start.model:
            words += ["--model", start.model]
        if start.max_turns is not None:
            words += ["--max-turns", str(start.max_turns)]
        if start.session:
            words += ["--resume", start.session]
        elif start.new_session:
            words += ["--session-id", start.new_session]
        servers = {
            one.name: {"type": "http", "url": one.url, "headers": dict(one.headers), "alwaysLoad": True}
            for one in start.servers
        }
        # in a file: a command line is shown to every process of the host, and there are tokens in it
        words += ["--mcp-config", f"{start.home}/{_SERVERS}", "--strict-mcp-config"]
        files = {_SERVERS: json_file({"mcpServers": servers})}
        if start.endpoint is not None and start.endpoint.login:
            files[_LOGIN] = json_file({"claudeAiOauth": {
                "accessToken": start.endpoint.token, "refreshToken": "none", "expiresAt": _NEVER,
                "scopes": ["user:inference"], "subscriptionType": "max",
            }})  # fmt: skip
        return Launch(words, env, files, _message(asked(start, self.prompt_max)), keep_open=True)

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader()

    def steer(self, text: str) -> bytes | None:
        """Gives a message that it hears with its next request."""
        return _message(text)

    def interrupt(self) -> bytes | None:
        """Gives the request to stop what it does; it waits for the next message then."""
        asked = {"type": "control_request", "request_id": "stop", "request": {"subtype": "interrupt"}}
        return msgspec.json.encode(asked) + b"\n"


class Glm(Claude):
    """Is the same program with a GLM model behind an endpoint that speaks Anthropic's Messages."""

    name = "glm"
    family = "glm"


def _message(text: str) -> bytes:
    content = [{"type": "text", "text": text}]
    return msgspec.json.encode({"type": "user", "message": {"role": "user", "content": content}}) + b"\n"


class Reader(JsonReader):
    """Reads its stream; the last line is the result, whose `is_error` counts and not its subtype."""

    def __init__(self) -> None:
        super().__init__()
        self._answer = ""

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind, subtype = found.get("type"), found.get("subtype")
        if isinstance(found.get("session_id"), str):
            self.session = found["session_id"]
        if kind == "system" and subtype == "init":
            servers = {s.get("name"): s.get("status") for s in found.get("mcp_servers") or [] if isinstance(s, dict)}
            return [said("started", session=self.session, model=found.get("model"), tools=found.get("tools") or [],
                         servers=servers)]  # fmt: skip
        if kind == "system" and subtype == "api_retry":
            self.status = found.get("error_status") if isinstance(found.get("error_status"), int) else self.status
            return [said("retry", attempt=found.get("attempt"), status=self.status)]
        if kind == "assistant":
            return self._assistant(part(found, "message") or {})
        if kind == "user":
            content = part(found, "message", "content")
            return [
                said("tool_end", id=one.get("tool_use_id"), ok=not one.get("is_error"))
                for one in (content if isinstance(content, list) else [])
                if isinstance(one, dict) and one.get("type") == "tool_result"
            ]
        if kind == "result":
            return self._result(found)
        return []

    def _assistant(self, message: dict[str, Any]) -> list[Event]:
        events = []
        if message.get("id") != self._answer:  # an answer comes in a line for each of its blocks
            self._answer = str(message.get("id"))
            events += self.turn()
        content = message.get("content")
        for one in content if isinstance(content, list) else []:
            if not isinstance(one, dict):
                continue
            if one.get("type") == "text":
                self.text = str(one.get("text") or "")
                events.append(said("message", text=self.text[:LINE]))
            elif one.get("type") == "tool_use":
                given = part(one, "input")
                events.append(said("tool", name=one.get("name"), id=one.get("id"), path=part(given, "file_path"),
                                   command=part(given, "command")))  # fmt: skip
        return events

    def _result(self, found: dict[str, Any]) -> list[Event]:
        self.done = True
        self.failed = found.get("is_error") is not False or found.get("subtype") != "success"
        self.turns = number(found.get("num_turns")) or self.turns
        self.denied = len(found.get("permission_denials") or [])
        usage = found.get("usage")
        if isinstance(usage, dict):
            self.tokens = Tokens(
                number(usage.get("input_tokens")), number(usage.get("cache_read_input_tokens")),
                number(usage.get("cache_creation_input_tokens")), number(usage.get("output_tokens")),
            )  # fmt: skip
        words = str(found.get("result") or "; ".join(map(str, found.get("errors") or [])))
        if found.get("subtype") == "error_max_turns":
            self.reason = "max_turns"
        elif str(found.get("terminal_reason") or "").startswith("aborted"):
            self.reason = "interrupted"
        if self.failed:
            status = found.get("api_error_status")
            return [
                self.fail(words, status if isinstance(status, int) else None),
                said("result", ok=False, text=words[:LINE]),
            ]
        self.text = words or self.text
        return [said("result", ok=True, text=self.text[:LINE], turns=self.turns)]
