"""GitHub's Copilot CLI, with a provider of one's own."""

from __future__ import annotations

from typing import Any

from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, json_file, part, said

_SERVERS = "servers.json"
_EFFORT = ("low", "medium", "high", "max")


class Copilot(Program):
    """Is `copilot --output-format json`; it tells of no tokens, so the gateway's count is the only one."""

    name = "copilot"
    family = "copilot"
    program = "copilot"
    install = "npm install -g @github/copilot@1.0.102"
    tested = ("1.0.102", "1.0.102")
    memory = 390
    node = "22"
    wires = ("chat",)
    prompt_max = 100_000
    offers_tools = True

    def launch(self, start: Start) -> Launch:
        """Gives how it is started; without a prompt among its words it reads one from its input."""
        env = {"COPILOT_HOME": f"{start.home}/copilot", "COPILOT_AUTO_UPDATE": "false"}
        if start.endpoint is not None:
            env |= {
                "COPILOT_PROVIDER_BASE_URL": start.endpoint.url + "/v1",
                "COPILOT_PROVIDER_API_KEY": start.endpoint.token, "COPILOT_MODEL": start.model or "default",
                "COPILOT_OFFLINE": "true",
            }  # fmt: skip
        text = asked(start, self.prompt_max).encode("utf-8", "surrogatepass")
        words = [self.program, "--output-format", "json", "--allow-all-tools", "--allow-all-paths"]
        if start.effort in _EFFORT:
            words += ["--reasoning-effort", start.effort]
        if start.session:
            words += [f"--resume={start.session}"]
        files = {}
        if start.servers:
            servers = {
                one.name: {"type": "http", "url": one.url, "headers": dict(one.headers), "tools": ["*"]}
                for one in start.servers
            }
            # in a file: a command line is shown to every process of the host, and there are tokens in it
            words += ["--additional-mcp-config", f"@{start.home}/{_SERVERS}"]
            files[_SERVERS] = json_file({"mcpServers": servers})
        return Launch(words, env, files, text)

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader()


class Reader(JsonReader):
    """Reads its stream; `result.exitCode` decides."""

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind, data = found.get("type"), found.get("data") or {}
        if kind == "session.start":
            self.session = str(part(data, "sessionId") or "") or None
            return [said("started", session=self.session)]
        if kind == "assistant.turn_start":
            return self.turn()
        if kind == "assistant.message":
            text = str(part(data, "content") or "")
            if text:
                self.text = text
                return [said("message", text=text[:LINE])]
        elif kind == "tool.execution_start":
            given = part(data, "arguments") or {}
            return [said("tool", name=part(data, "toolName"), id=part(data, "toolCallId"), path=part(given, "path"),
                         command=part(given, "command"))]  # fmt: skip
        elif kind == "tool.execution_complete":
            return [said("tool_end", id=part(data, "toolCallId"), ok=bool(part(data, "success")))]
        elif kind == "session.error":
            status = part(data, "statusCode")
            return [self.fail(str(part(data, "message") or ""), status if isinstance(status, int) else None)]
        elif kind == "result":
            self.done, self.failed = True, found.get("exitCode") != 0
            self.session = str(found.get("sessionId") or "") or self.session
            return [said("result", ok=not self.failed, text=self.text[:LINE])]
        return []
