"""opencode."""

from __future__ import annotations

from typing import Any

from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.adapter import Event, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, asked, json_file, number, part, said, sizes


class Opencode(Program):
    """Is `opencode run --format json`; it makes one request beside its turns, for the session's title."""

    name = "opencode"
    family = "opencode"
    program = "opencode"
    install = "npm install -g opencode-ai@1.18.33"
    tested = ("1.18.33", "1.18.33")
    memory = 530
    wires = ("chat", "anthropic")
    prompt_max = 100_000
    offers_tools = True
    volatile = {"chat": ("user",)}

    def launch(self, start: Start) -> Launch:
        """Gives how it is started."""
        model = start.model or "default"
        settings: dict[str, Any] = {
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "allow"},
            "lsp": False,
        }
        if start.endpoint is not None:
            package = "@ai-sdk/anthropic" if start.endpoint.wire == "anthropic" else "@ai-sdk/openai-compatible"
            limit = dict(zip(("context", "output"), sizes(start), strict=True))
            settings |= {
                "model": f"ropewalk/{model}", "small_model": f"ropewalk/{model}", "enabled_providers": ["ropewalk"],
                "provider": {"ropewalk": {
                    "npm": package, "name": "ropewalk",
                    "options": {"baseURL": start.endpoint.url + "/v1", "apiKey": start.endpoint.token},
                    "models": {model: {"name": model, "tool_call": True, "limit": limit}},
                }},
            }  # fmt: skip
        if start.servers:
            settings["mcp"] = {
                one.name: {"type": "remote", "url": one.url, "enabled": True, "headers": dict(one.headers)}
                for one in start.servers
            }
        env = {
            "OPENCODE_CONFIG": f"{start.home}/opencode.json", "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "OPENCODE_DISABLE_SHARE": "1",
        }  # fmt: skip
        words = [self.program, "run", "--format", "json", "--auto", "--dir", start.workspace]
        if start.endpoint is not None or start.model:
            words += ["-m", f"ropewalk/{model}" if start.endpoint is not None else start.model]
        if start.session:
            words += ["-s", start.session]
        text = asked(start, self.prompt_max).encode("utf-8", "surrogatepass")
        return Launch(words, env, {"opencode.json": json_file(settings)}, text)

    def explain(self, stderr: str) -> str:
        """Gives that it printed its usage: it says no more of a flag that it does not know."""
        return "it printed its usage, as for a flag that it does not know" if "\nPositionals:" in stderr else ""

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return Reader()


class Reader(JsonReader):
    """Reads its stream; there is no last record: it is good when its last step was to stop, without an error."""

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind, what = found.get("type"), found.get("part") or {}
        events: list[Event] = []
        if isinstance(found.get("sessionID"), str) and self.session is None:
            self.session = found["sessionID"]
            events.append(said("started", session=self.session))
        if kind == "text":
            self.text = str(part(what, "text") or "")
            events.append(said("message", text=self.text[:LINE]))
        elif kind == "tool_use":
            given = part(what, "state", "input") or {}
            events.append(
                said("tool", name=part(what, "tool"), path=part(given, "filePath"), command=part(given, "command"))
            )
            events.append(said("tool_end", name=part(what, "tool"), ok=part(what, "state", "status") == "completed"))
        elif kind == "step_finish":
            events += self.turn()
            self.done = part(what, "reason") == "stop"
            count = part(what, "tokens") or {}
            reasoning = number(part(count, "reasoning"))
            tokens = Tokens(number(part(count, "input")), number(part(count, "cache", "read")),
                            number(part(count, "cache", "write")), number(part(count, "output")) + reasoning,
                            reasoning)  # fmt: skip
            events.append(self.add(tokens))
        elif kind == "error":
            self.failed = True
            status = part(found, "error", "data", "statusCode")
            words = str(part(found, "error", "data", "message") or part(found, "error", "name") or "")
            events.append(self.fail(words, status if isinstance(status, int) else None))
        return events

    def is_good(self, code: int) -> bool:
        """Says whether it ended well: with exit code 0, a last step, and no error."""
        return code == 0 and self.done and not self.failed
