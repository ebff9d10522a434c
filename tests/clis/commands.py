"""How each agent program is started headless against the scripted model server: arguments, environment, settings.

Every start has a home of its own, nothing inherited, no updates and no reports home, and few retries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MODEL = "scripted-model"
_KEY = "sk-dummy"


class Start(NamedTuple):
    """Is how a program is started: words behind its name, variables, and files of its home."""

    words: list[str]
    env: dict[str, str]
    files: dict[str, str]


def claude(url: str, home: Path, work: Path, prompt: str) -> Start:
    words = ["-p", prompt, "--output-format", "stream-json", "--verbose", "--permission-mode", "bypassPermissions"]
    words += ["--model", "claude-sonnet-4-5", "--max-turns", "20"]
    env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": _KEY, "CLAUDE_CONFIG_DIR": f"{home}/claude"}
    env |= {"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    env |= {"CLAUDE_CODE_MAX_RETRIES": "1", "API_TIMEOUT_MS": "30000"}
    return Start(words, env, {})


def codex(url: str, home: Path, work: Path, prompt: str) -> Start:
    config = f"""model = "{MODEL}"
model_provider = "loop"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.loop]
name = "loop"
base_url = "{url}/v1"
env_key = "LOOP_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
stream_idle_timeout_ms = 15000
[analytics]
enabled = false
[feedback]
enabled = false
[otel]
exporter = "none"
"""
    words = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    words += ["-C", str(work), prompt]
    return Start(words, {"CODEX_HOME": f"{home}/codex", "LOOP_KEY": _KEY}, {"codex/config.toml": config})


def copilot(url: str, home: Path, work: Path, prompt: str) -> Start:
    words = ["-p", prompt, "--output-format", "json", "--allow-all-tools", "--allow-all-paths"]
    env = {"COPILOT_PROVIDER_BASE_URL": f"{url}/v1", "COPILOT_PROVIDER_API_KEY": _KEY, "COPILOT_MODEL": MODEL}
    env |= {"COPILOT_HOME": f"{home}/copilot", "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false"}
    return Start(words, env, {})


def gemini(url: str, home: Path, work: Path, prompt: str) -> Start:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "maxAttempts": 2},
        "model": {"maxSessionTurns": 20},
    }
    words = ["-p", prompt, "-o", "stream-json", "--approval-mode", "yolo", "--skip-trust", "-m", "gemini-2.5-flash"]
    env = {"GEMINI_CLI_HOME": str(home), "GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": url}
    env["GEMINI_CLI_NO_RELAUNCH"] = "true"
    return Start(words, env, {".gemini/settings.json": json.dumps(settings)})


def grok(url: str, home: Path, work: Path, prompt: str) -> Start:
    config = f"""[models]
default = "{MODEL}"
[model.{MODEL}]
model = "{MODEL}"
base_url = "{url}/v1"
env_key = "LOOP_KEY"
api_backend = "chat_completions"
context_window = 200000
max_retries = 1
"""
    words = ["-p", prompt, "--output-format", "streaming-json", "--always-approve", "--max-turns", "20"]
    words += ["--cwd", str(work), "-m", MODEL]
    quiet = ("TELEMETRY_ENABLED", "TELEMETRY_TRACE_UPLOAD", "FEEDBACK_ENABLED", "TELEMETRY_MIXPANEL_ENABLED")
    env = {"GROK_HOME": f"{home}/grok", "LOOP_KEY": _KEY, "GROK_DISABLE_AUTOUPDATER": "1"}
    return Start(words, env | {f"GROK_{name}": "false" for name in quiet}, {"grok/config.toml": config})


def opencode(url: str, home: Path, work: Path, prompt: str) -> Start:
    model = {"name": "scripted", "tool_call": True, "limit": {"context": 200000, "output": 8000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "loop",
        "options": {"baseURL": f"{url}/v1", "apiKey": _KEY},
        "models": {MODEL: model},
    }
    config: dict[str, Any] = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"loop/{MODEL}",
        "small_model": f"loop/{MODEL}",
        "permission": {"*": "allow"},
        "enabled_providers": ["loop"],
        "provider": {"loop": provider},
    }
    words = ["run", "--format", "json", "--auto", "-m", f"loop/{MODEL}", "--dir", str(work), prompt]
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
    env = {"OPENCODE_CONFIG": f"{home}/opencode.json", **{f"OPENCODE_DISABLE_{name}": "1" for name in off}}
    return Start(words, env, {"opencode.json": json.dumps(config)})


def pi(url: str, home: Path, work: Path, prompt: str) -> Start:
    model = {
        "id": MODEL,
        "name": "scripted",
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": 200000,
        "maxTokens": 8000,
    }
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "$LOOP_KEY", "models": [model]}
    words = ["-p", "--mode", "json", "--provider", "loop", "--model", MODEL, prompt]
    env = {"PI_CODING_AGENT_DIR": f"{home}/pi", "LOOP_KEY": _KEY, "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
    return Start(words, env, {"pi/models.json": json.dumps({"providers": {"loop": provider}})})


def qwen(url: str, home: Path, work: Path, prompt: str) -> Start:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
    }
    words = [prompt, "-o", "stream-json", "--approval-mode", "yolo", "--auth-type", "openai", "-m", MODEL]
    words += ["--max-session-turns", "20", "--max-wall-time", "2m"]
    env = {"OPENAI_API_KEY": _KEY, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": MODEL}
    return Start(words, env | {"QWEN_CODE_NO_RELAUNCH": "true"}, {".qwen/settings.json": json.dumps(settings)})


STARTS: dict[str, Callable[[str, Path, Path, str], Start]] = {
    one.__name__: one for one in (claude, codex, copilot, gemini, grok, opencode, pi, qwen)
}
