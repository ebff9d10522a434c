"""Adapters: how programs are started, and what their recorded streams mean.

The recordings in `fixtures/` are of the real programs: `python -m tests.clis.matrix --keep tests/lane/fixtures`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import HarnessError, InvalidError
from ropewalk.gateway import cassette
from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.adapter import Adapter, Ending, Endpoint, Event, McpServer, Start
from ropewalk.lane.programs import common, registry

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(registry.PROGRAMS)
PROTOCOL = ["acp:gemini --acp", "acp:grok agent stdio", "acp:opencode acp", "acp:./my-agent"]


def start(prompt: str = "Do it.", wire: Any = "anthropic", **more: Any) -> Start:
    endpoint = Endpoint("http://127.0.0.1:8099", "rwl_token-of-the-lane", wire)
    return Start(prompt, "/lane/prompt.md", "/work/project", "/lane", endpoint, "some-model", **more)


def launched(adapter: Adapter, prompt: str = "Do it.", **more: Any) -> Any:
    return adapter.launch(start(prompt, adapter.wires[0] if adapter.wires else "anthropic", **more))


def recorded(program: str, what: str) -> tuple[list[Event], Ending]:
    """Gives the events and the ending of a recording."""
    kept = json.loads((FIXTURES / f"{program}-{what}.json").read_text(encoding="utf-8"))
    harness = {"acp-grok": "acp:grok agent stdio", "acp-gemini": "acp:gemini --acp"}.get(program, program)
    reader = registry.get(harness).reader()
    events = []
    for line in kept["lines"]:
        text = line if isinstance(line, str) else json.dumps(line)
        events += reader.line(text.encode())
    return events, reader.ending(kept["code"], kept["stderr"])


def there() -> list[tuple[str, str]]:
    found = [path.stem.rpartition("-") for path in sorted(FIXTURES.glob("*.json"))]
    return [(program, what) for program, _, what in found]


REASON = {
    "e400": {"api_error"}, "e401": {"authentication"}, "e429ra": {"rate_limited"}, "ctx": {"context_full"},
    "e500": {"api_error", "crashed", "no_result"}, "e529": {"rate_limited", "api_error", "crashed"},
    "malformed": {"api_error"}, "empty": {"api_error"}, "trunc": {"api_error"}, "lost": {"session_lost"},
    "turns": {"max_turns", "crashed", "no_result"}, "interrupt": {"interrupted"},
}  # fmt: skip


@pytest.mark.parametrize(("program", "what"), there())
def test_a_recorded_ending_has_its_reason(program: str, what: str) -> None:
    events, ending = recorded(program, what)
    if what == "write":
        assert ending.ok and ending.reason == "" and ending.error == ""
        assert "FINAL-ANSWER" in ending.text
        assert ending.turns == 2
        assert [e.kind for e in events].count("turn") == 2
        tools = [e for e in events if e.kind == "tool"]
        assert len(tools) == 1 and [e.kind for e in events].count("tool_end") == 1
        assert ending.session
        return
    assert not ending.ok
    assert ending.reason in REASON[what], ending
    assert ending.error or what in ("turns", "e500", "e529")


def test_every_program_is_recorded() -> None:
    found = there()
    for name in NAMES:
        if name != "glm":  # it is the same program as claude
            assert (name, "write") in found and (name, "e401") in found, name


@pytest.mark.parametrize("program", [name for name in NAMES if name not in ("glm", "copilot")])
def test_tokens_are_those_the_server_told(program: str) -> None:
    """Two answers of 1,200 read (200 from the cache) and 50 written each."""
    _, ending = recorded(program, "write")
    assert ending.tokens is not None
    assert (ending.tokens.input, ending.tokens.cache_read, ending.tokens.output) == (2000, 400, 100)


def test_L26_lines_of_one_answer_and_of_agents_below_add_nothing_to_the_sum() -> None:
    """An answer comes in a line for each block, with its usage in each; what the result says is the whole of it."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 30, "output_tokens": 5}
    said = [{"type": "assistant", "message": {"id": "m1", "content": [{"type": "text", "text": text}], "usage": usage}}
            for text in ("one", "two")]  # fmt: skip
    below = said[0] | {"parent_tool_use_id": "t1", "message": {"id": "m2", "content": [], "usage": usage}}
    total = {"input_tokens": 20, "cache_read_input_tokens": 14, "cache_creation_input_tokens": 60, "output_tokens": 10}
    end = {"type": "result", "subtype": "success", "is_error": False, "result": "two", "num_turns": 1, "usage": total}
    reader = registry.get("claude").reader()
    for line in (*said, below, end):
        reader.line(msgspec.json.encode(line))
    ending = reader.ending(0, "")
    assert (ending.tokens, ending.turns) == (Tokens(20, 14, 60, 10), 1)


def test_L26_what_a_forked_session_repeats_of_the_one_before_adds_nothing() -> None:
    """A fork prints the answers of the session that it comes from once more, under its own name."""
    usage = {"input_tokens": 100, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 30, "output_tokens": 5}
    own = {"input_tokens": 10, "cache_read_input_tokens": 130, "cache_creation_input_tokens": 3, "output_tokens": 4}
    lines = [
        {"type": "assistant", "session_id": session, "message": {"id": name, "content": [], "usage": used}}
        for session, name, used in (("old", "m1", usage), ("fork", "m1", usage), ("fork", "m2", own))
    ]
    end = {"type": "result", "subtype": "success", "is_error": False, "result": "two", "num_turns": 1, "usage": own,
           "session_id": "fork"}  # fmt: skip
    reader = registry.get("claude").reader()
    for line in (*lines, end):
        reader.line(msgspec.json.encode(line))
    ending = reader.ending(0, "")
    assert (ending.tokens, ending.session) == (Tokens(10, 130, 3, 4), "fork")


def test_a_tool_names_the_file_it_writes() -> None:
    for program in ("claude", "gemini", "qwen", "grok", "pi", "opencode", "copilot"):
        events, _ = recorded(program, "write")
        path = next(e.facts["path"] for e in events if e.kind == "tool")
        assert path == ("hello.txt" if program == "gemini" else "/work/project/hello.txt"), program


@pytest.mark.parametrize("name", NAMES)
def test_devflock_B5_a_stream_cut_anywhere_is_no_success(name: str) -> None:
    """G23: whatever part of a good run was printed, only the whole of it is one."""
    kept = json.loads((FIXTURES / f"{'claude' if name == 'glm' else name}-write.json").read_text(encoding="utf-8"))
    lines = [json.dumps(line).encode() for line in kept["lines"]]
    said = [n for n, line in enumerate(lines) if b"FINAL-ANSWER" in line]
    for count in range(said[0]):
        reader = registry.get(name).reader()
        for line in lines[:count]:
            reader.line(line)
        for code in (-9, 1, 0):
            assert not reader.ending(code, "").ok
    for garbage in (b"", b"\xff\xfe", b"null", b"[1]", b'"x"', b'{"type":7}', b'{"type":"result"}', b"{" * 5000):
        reader = registry.get(name).reader()
        reader.line(garbage)
        assert not reader.ending(1, "").ok


def test_devflock_B5_an_answer_that_is_an_error_is_a_failure_whatever_its_subtype_says() -> None:
    reader = registry.get("claude").reader()
    reader.line(
        b'{"type":"result","subtype":"success","is_error":true,"result":"API Error: 500","api_error_status":500}'
    )
    ending = reader.ending(0, "")
    assert (ending.ok, ending.reason, ending.status) == (False, "api_error", 500)


@pytest.mark.parametrize("name", [one for one in NAMES if one != "glm"])
def test_G23_a_last_turn_without_words_is_told_and_no_failure(name: str) -> None:
    kept = json.loads((FIXTURES / f"{name}-write.json").read_text(encoding="utf-8"))
    reader = registry.get(name).reader()
    for line in kept["lines"]:
        text = json.dumps(line)
        for words in ("FINAL-ANSWER: wrote hello.txt", "FINAL-ANSWER: wrote hell", "o.txt"):
            text = text.replace(f'"{words}"', '""')
        reader.line(text.encode())
    ending = reader.ending(0, "")
    assert (ending.ok, ending.reason, ending.text) == (True, "empty", "")


def test_a_good_end_without_words_is_told() -> None:
    reader = registry.get("claude").reader()
    reader.line(b'{"type":"result","subtype":"success","is_error":false,"result":"","num_turns":1}')
    assert reader.ending(0, "") == Ending(True, "", "empty", turns=1)


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        ("API Error: 401 the key is invalid", None, "authentication"),
        ("503 anthropic is in trouble (overloaded_error)", 503, "api_error"),
        ("Overloaded", 529, "rate_limited"),
        ("429 Too Many Requests", None, "rate_limited"),
        ("prompt is too long: 250000 tokens > 200000 maximum", 400, "context_full"),
        ("Reached maximum number of turns (20)", None, "max_turns"),
        ("No conversation found with session ID: x", None, "session_lost"),
        ("fetch failed", None, "api_error"),
        ("wrote 404 lines to a.py in 500 ms", None, "no_result"),
    ],
)  # fmt: skip
def test_reasons_are_told_apart(words: str, status: int | None, reason: str) -> None:
    named = status if status is not None else common.status_in(words)
    assert common.reason_of(words, named, 1, 1) == reason


def test_a_signal_is_a_crash() -> None:
    assert common.reason_of("", None, -9, 3) == "crashed"
    assert common.reason_of("", None, 1, 0) == "crashed"


# how they are started


@pytest.mark.parametrize("name", [*NAMES, *PROTOCOL, "command:./agent.sh --fast", "scripted"])
def test_G16_a_prompt_is_never_on_the_command_line(name: str) -> None:
    adapter = registry.get(name)
    secret = "a-very-particular-task"
    for prompt in (secret, secret + " x" * 40_000, secret + " x" * 500_000):
        launch = launched(adapter, prompt)
        words = "\0".join([*launch.argv, *launch.env.values()])
        assert secret not in words
        assert secret in launch.stdin.decode() or "/lane/prompt.md" in launch.stdin.decode() + words
        assert len(words) < 20_000


@pytest.mark.parametrize("name", [*NAMES, *PROTOCOL])
def test_G16_a_long_prompt_is_a_file_that_a_short_one_names(name: str) -> None:
    adapter = registry.get(name)
    most = min(adapter.prompt_max, common.BY_FILE)
    whole, named = "é" * (most // 2), "é" * (most // 2) + "abc"
    assert "/lane/prompt.md" not in launched(adapter, whole).stdin.decode()
    launch = launched(adapter, named)
    assert "Your whole task is in the file /lane/prompt.md" in launch.stdin.decode() + " ".join(launch.argv)
    assert len(launch.stdin) < 4000


def test_G16_a_plain_program_gets_all_of_its_prompt() -> None:
    """It has no tool by which it would read a file that a prompt names."""
    for name in ("command:./agent.sh", "scripted"):
        assert launched(registry.get(name), "x" * 9_000_000).stdin.startswith(b"x" * 9_000_000)


@pytest.mark.parametrize("name", [*NAMES, *PROTOCOL])
def test_a_token_is_in_the_environment_or_a_file_of_the_home(name: str) -> None:
    launch = launched(registry.get(name))
    assert "rwl_token-of-the-lane" not in " ".join(launch.argv)
    held = [*launch.env.values(), *(data.decode() for data in launch.files.values())]
    assert any("rwl_token-of-the-lane" in one for one in held)
    assert any("127.0.0.1:8099" in one for one in held)


@pytest.mark.parametrize("name", [one for one in NAMES if one != "pi"])
def test_a_tool_server_goes_where_the_program_finds_it(name: str) -> None:
    server = McpServer("fleet", "http://127.0.0.1:8099/mcp", {"Authorization": "Bearer lane"})
    launch = launched(registry.get(name), servers=(server,))
    told = "\n".join([*launch.argv, *(data.decode() for data in launch.files.values())])
    assert "http://127.0.0.1:8099/mcp" in told and "Bearer lane" in told
    expected = {"claude": "alwaysLoad", "glm": "alwaysLoad", "codex": "required = true"}.get(name, "")
    assert expected in told


@pytest.mark.parametrize("name", NAMES)
def test_L25_a_session_is_resumed_by_its_id(name: str) -> None:
    launch = launched(registry.get(name), session="0198-session")
    assert any("0198-session" in word for word in launch.argv)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("claude", [b"'CLAUDE_CODE_MAX_CONTEXT_TOKENS': '32768'", b"'CLAUDE_CODE_MAX_OUTPUT_TOKENS': '8192'"]),
        ("codex", [b"model_context_window = 32768"]),
        ("opencode", [b'"context": 32768', b'"output": 8192']),
        ("pi", [b'"contextWindow": 32768', b'"maxTokens": 8192']),
        ("grok", [b"context_window = 32768"]),
    ],
)
def test_devflock_B28_a_program_is_told_how_much_its_model_bears(name: str, known: list[bytes]) -> None:
    adapter = registry.get(name)
    endpoint = Endpoint("http://127.0.0.1:8099", "token", adapter.wires[0], window=32_768)
    start = Start("hi", "/lane/prompt.md", "/work/a", "/lane", endpoint, "some-model")
    told = adapter.launch(start)
    said = repr(told.env).encode() + b"".join(told.files.values())
    assert [one for one in known if one not in said] == []
    unknown = adapter.launch(start._replace(endpoint=endpoint._replace(window=0)))
    assert b"32768" not in repr(unknown.env).encode() + b"".join(unknown.files.values())


def test_an_effort_is_passed_where_the_program_has_one() -> None:
    for effort in ("low", "medium", "high", "max"):
        assert launched(registry.get("claude"), effort=effort).env["CLAUDE_CODE_EFFORT_LEVEL"] == effort
        assert (
            "model_reasoning_effort"
            in launched(registry.get("codex"), effort=effort).files["codex/config.toml"].decode()
        )
        assert "--reasoning-effort" in launched(registry.get("grok"), effort=effort).argv
        assert "--reasoning-effort" in launched(registry.get("copilot"), effort=effort).argv
        assert "--thinking" in launched(registry.get("pi"), effort=effort).argv
    assert "CLAUDE_CODE_EFFORT_LEVEL" not in launched(registry.get("claude")).env


def test_toml_of_a_name_with_quotes_is_still_toml() -> None:
    import tomllib

    for name in ("codex", "grok"):
        adapter = registry.get(name)
        given = start(wire=adapter.wires[0])._replace(model='a"b\\c\n[x]')
        for data in adapter.launch(given).files.values():
            tomllib.loads(data.decode())


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("claude", "error: unknown option '--x'", "error: unknown option '--x'"),
        ("codex", "WARNING: it\nerror: unexpected argument '--x' found\n  tip", "error: unexpected argument '--x'"),
        ("opencode", "opencode run [message..]\n\nrun opencode with a message\n\nPositionals:\n  message", "its usage"),
        ("pi", "Error: Unknown option: --x\nWarning: No models", "Error: Unknown option: --x"),
        ("gemini", "Unknown arguments: x, y\nUsage: gemini [options]", "Unknown arguments: x, y"),
        ("qwen", "Unknown arguments: x, y\nUsage: qwen [options]", "Unknown arguments: x, y"),
        ("grok", "error: unexpected argument '--x' found\n\nUsage: grok", "error: unexpected argument '--x' found"),
        ("copilot", "error: unexpected argument '--x' found\n\nUsage:", "error: unexpected argument '--x' found"),
    ],
)  # fmt: skip
def test_L25_a_refused_flag_is_explained_in_the_programs_own_words(name: str, said: str, words: str) -> None:
    assert words in registry.get(name).explain(said)


@pytest.mark.parametrize(("program", "what"), there())
def test_what_else_goes_wrong_is_no_refused_flag(program: str, what: str) -> None:
    kept = json.loads((FIXTURES / f"{program}-{what}.json").read_text(encoding="utf-8"))
    assert registry.get("acp:grok agent stdio" if program == "acp-grok" else program).explain(kept["stderr"]) == ""


@pytest.mark.parametrize(
    ("name", "printed", "version"),
    [
        ("claude", "2.1.332 (Claude Code)\n", "2.1.332"),
        ("codex", "codex-cli 0.171.0\n", "0.171.0"),
        ("grok", "grok 1.0.41 (abc1234)\n", "1.0.41"),
        ("pi", "1.6.0-beta.2\n", "1.6.0-beta.2"),
        ("copilot", "GitHub Copilot CLI 1.0.102.\n", "1.0.102"),
        ("qwen", "nothing of the kind", ""),
    ],
)  # fmt: skip
def test_a_version_is_found_in_what_is_printed(name: str, printed: str, version: str) -> None:
    assert registry.get(name).version(printed) == version


# names


def test_a_name_gives_its_adapter() -> None:
    for name in [*NAMES, "scripted", *PROTOCOL, "command:cat -n"]:
        adapter = registry.get(name)
        assert adapter.family and adapter.program and adapter.install
        assert all(hasattr(adapter, one) for one in registry._NEEDED)
    assert registry.get("glm").name == "glm" and registry.get("glm").program == "claude"
    assert registry.get("acp:gemini --acp").family == "gemini"
    assert registry.get("acp:./my-agent").wires == registry.get("command:x").wires


@pytest.mark.parametrize("name", ["", "cluade", "acp", "acp:", "command: ", "claude:x", "acp:'", "command:'"])
def test_a_name_that_nothing_has_is_refused(name: str) -> None:
    with pytest.raises(InvalidError):
        registry.get(name)


def test_third_parties_add_harnesses_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(
        "from ropewalk.lane.programs.pi import Pi\n"
        "class Mine(Pi):\n    name = 'mine'\nclass Half:\n    name = 'half'\ndef broken(): raise ValueError('no key')\n"
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    lines = "mine = theirs:Mine\nhalf = theirs:Half\nbroken = theirs:broken\ngone = nowhere:X\nclaude = theirs:Mine\n"
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.get("mine").name == "mine"
    assert "mine" in registry.names()
    assert registry.get("claude").name == "claude"
    for name in ("half", "broken", "gone"):
        with pytest.raises(HarnessError):
            registry.get(name)


# what differs between equal requests


def test_G2_what_a_program_draws_anew_is_passed_over() -> None:
    """Two requests of two runs are the same without what each adapter names, and different when the task is."""
    codex = {"model": "m", "client_metadata": {"a": "1"}, "prompt_cache_key": "x",
             "input": [
                 {"type": "message", "id": "msg_1", "content": "go"},
                 {"type": "function_call_output", "output": "Chunk ID: ab12\nWall time: 0.01 seconds\nok"},
             ]}  # fmt: skip
    again: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(codex).replace(b"msg_1", b"msg_2").replace(b"ab12", b"ff99").replace(b"0.01", b"7.5")
    )
    again |= {"client_metadata": {"a": "2"}, "prompt_cache_key": "y"}
    fields = registry.get("codex").volatile["responses"]
    assert cassette.normal(codex, fields) == cassette.normal(again, fields)
    again["input"][0]["content"] = "stop"
    assert cassette.normal(codex, fields) != cassette.normal(again, fields)
    for name in NAMES:
        assert set(registry.get(name).volatile) <= set(registry.get(name).wires)


def test_G14_a_turn_is_an_answer_to_the_agent_itself() -> None:
    """Programs that make requests beside (titles, summaries) count the turns of the agent alone."""
    for program in ("grok", "opencode"):
        events, ending = recorded(program, "write")
        assert (ending.turns, [e.kind for e in events].count("turn")) == (2, 2)


def test_tokens_of_agents_by_protocol_have_many_names() -> None:
    from ropewalk.lane.programs.acp import _tokens

    assert _tokens({"inputTokens": 5, "outputTokens": 2, "cachedReadTokens": 3}) == Tokens(5, 3, 0, 2)
    assert _tokens({"input_tokens": 5, "output_tokens": 2}) == Tokens(5, 0, 0, 2)
    told = {"inputTokens": 2400, "outputTokens": 100, "cachedReadTokens": 400, "totalTokens": 2500}
    assert _tokens(told) == Tokens(2000, 400, 0, 100)
    assert _tokens(None) == Tokens()
