"""OpenAI's Codex."""

from __future__ import annotations

import base64
import time
from typing import Any

import msgspec

from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, json_file, number, part, said, toml_text

_NEVER = 4_102_444_800
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
            if start.endpoint.window:
                lines.append(f"model_context_window = {start.endpoint.window}")
            if not start.endpoint.login:
                env["ROPEWALK_LANE_TOKEN"] = start.endpoint.token
        lines += ["[features]", "apps = false"]  # they are asked for at ChatGPT itself
        lines += ["[analytics]", "enabled = false", "[feedback]", "enabled = false", "[otel]", 'exporter = "none"']
        if start.endpoint is not None:
            key = "requires_openai_auth = true" if start.endpoint.login else 'env_key = "ROPEWALK_LANE_TOKEN"'
            lines += [
                "[model_providers.ropewalk]", 'name = "ropewalk"',
                f"base_url = {toml_text(start.endpoint.url + '/v1')}", key, 'wire_api = "responses"',
                "request_max_retries = 1", "stream_max_retries = 2", "stream_idle_timeout_ms = 200000",
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
        files = {"codex/config.toml": ("\n".join(lines) + "\n").encode()}
        if start.endpoint is not None and start.endpoint.login:
            files["codex/auth.json"] = _login(start.endpoint.token)
        return Launch(words, env, files, text)

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader()


def _login(token: str) -> bytes:
    """Gives a login that says of itself what codex looks at, and that nobody but the gateway takes."""
    about = {"chatgpt_plan_type": "pro", "chatgpt_account_id": "lane", "chatgpt_user_id": "lane"}
    claims = {"email": "lane@ropewalk.local", "exp": _NEVER, "https://api.openai.com/auth": about}
    parts = (msgspec.json.encode({"alg": "none", "typ": "JWT"}), msgspec.json.encode(claims), b"none")
    made = ".".join(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts)
    tokens = {"id_token": made, "access_token": token, "refresh_token": "none", "account_id": "lane"}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return json_file({"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": now})


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
