"""OpenAI's Codex."""

from __future__ import annotations

from typing import Any

from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, number, part, said, toml_text

_EFFORT = {"low": "low", "medium": "medium", "high": "high", "max": "xhigh"}


class Codex(Program):
    """Is `codex exec --json`; the prompt comes on standard input. It has no bound on turns: the gateway's holds."""

    name = "codex"
    family = "codex"
    program = "codex"
    install = "npm install -g @openai/codex@0.171.0"
    tested = ("0.171.0", "0.171.0")
    memory = 190
    node = "20"
    wires = ("responses",)
    prompt_max = 900_000
    offers_tools = True
    volatile = {"responses": ("client_metadata", "prompt_cache_key", "input.*.id", "include", "reasoning.summary")}

    def launch(self, start: Start) -> Launch:
        """Gives how it is started."""
        home = f"{start.home}/codex"
        model = start.model or "gpt-5-codex"
        lines = [
            f"model = {toml_text(model)}", 'approval_policy = "never"', 'sandbox_mode = "danger-full-access"',
            "check_for_update_on_startup = false", "project_doc_max_bytes = 0",
        ]  # fmt: skip
        if start.effort in _EFFORT:
            lines.append(f'model_reasoning_effort = "{_EFFORT[start.effort]}"')
        env = {"CODEX_HOME": home}
        if start.endpoint is not None:
            lines += ['model_provider = "ropewalk"']
            env["ROPEWALK_LANE_TOKEN"] = start.endpoint.token
        lines += ["[analytics]", "enabled = false", "[feedback]", "enabled = false", "[otel]", 'exporter = "none"']
        if start.endpoint is not None:
            lines += [
                "[model_providers.ropewalk]", 'name = "ropewalk"',
                f"base_url = {toml_text(start.endpoint.url + '/v1')}",
                'env_key = "ROPEWALK_LANE_TOKEN"', 'wire_api = "responses"', "request_max_retries = 1",
                "stream_max_retries = 2", "stream_idle_timeout_ms = 200000",
            ]  # fmt: skip
        for one in start.servers:
            lines += [f"[mcp_servers.{one.name}]", f"url = {toml_text(one.url)}", "required = true",
                      "startup_timeout_sec = 30"]  # fmt: skip
            if one.headers:
                pairs = ", ".join(f"{toml_text(k)} = {toml_text(v)}" for k, v in one.headers.items())
                lines.append(f"http_headers = {{ {pairs} }}")
        words = [self.program, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
                 "-C", start.workspace]  # fmt: skip
        words += ["resume", start.session, "-"] if start.session else ["-"]
        text = asked(start, self.prompt_max).encode("utf-8", "surrogatepass")
        return Launch(words, env, {"codex/config.toml": ("\n".join(lines) + "\n").encode()}, text)

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader()


class Reader(JsonReader):
    """Reads its stream; an `item` of the type error is no failure, a turn that did not complete is one."""

    def __init__(self) -> None:
        super().__init__()
        self._open: set[str] = set()

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind = found.get("type")
        if kind == "thread.started":
            self.session = str(found.get("thread_id") or "") or None
            return [said("started", session=self.session)]
        if kind == "turn.started":
            self.done = False
            return []
        if kind == "turn.completed":
            self.done = True
            usage = found.get("usage") or {}
            cached = number(usage.get("cached_input_tokens"))
            given = max(0, number(usage.get("input_tokens")) - cached)
            thought = number(usage.get("reasoning_output_tokens"))
            tokens = Tokens(given, cached, 0, number(usage.get("output_tokens")), thought)
            return [self.add(tokens), said("result", ok=True, text=self.text[:LINE])]
        if kind == "turn.failed":
            self.failed = True
            words = str(part(found, "error", "message") or "")
            return [self.fail(words), said("result", ok=False, text=words[:LINE])]
        if kind == "error":
            words = str(found.get("message") or "")
            return [self.fail(words)] if not words.startswith("Reconnecting") else [said("retry", text=words[:LINE])]
        if kind in ("item.started", "item.completed"):
            return self._item(kind, found.get("item") or {})
        return []

    def _item(self, kind: str, item: dict[str, Any]) -> list[Event]:
        what = item.get("type")
        if what == "agent_message" and kind == "item.completed":
            self.text = str(item.get("text") or "")
            return [*self.answers(), said("message", text=self.text[:LINE])]
        if what not in ("command_execution", "file_change", "mcp_tool_call", "web_search"):
            return []
        shell, events = what == "command_execution", []
        name = "shell" if shell else str(item.get("tool") or what)
        if item.get("id") not in self._open:
            # some items are told of only when they are complete
            self._open.add(str(item.get("id")))
            changes = item.get("changes")
            path = part(changes[0], "path") if isinstance(changes, list) and changes else None
            events = [*self.answers(), said("tool", name=name, id=item.get("id"), command=item.get("command"),
                                            path=path)]  # fmt: skip
        if kind == "item.completed":
            self.worked()
            good = item.get("exit_code") == 0 if shell else item.get("status") != "failed"
            events.append(said("tool_end", id=item.get("id"), ok=good))
        return events
