"""Doors: the protocol over HTTP, who is let in, what is refused, and doors that start anew."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.lane import doorkit
from tests.lane.doorkit import Echo, ask, call, send

from ropewalk.core import jsonrpc
from ropewalk.core.errors import HarnessError
from ropewalk.gateway import offered
from ropewalk.lane import door
from ropewalk.lane.adapter import Endpoint, McpServer, Start
from ropewalk.lane.door import Given, Who
from ropewalk.lane.door_server import AT_ONCE, CONNECTIONS, MOST, WAITING, Door
from ropewalk.lane.programs import registry


class Field:
    """Is a door with lanes."""

    def __init__(self, base: Path) -> None:
        self.base, self.tool = base, Echo()
        self.door = Door(str(base / "worker"), [self.tool])

    def who(self, lane: str) -> Who:
        return Who(lane, "claude/one", str(self.base / lane.replace("/", "-")), task=lane)

    def admit(self, lane: str = "r/a/1") -> Given:
        return self.door.admit(self.who(lane), "none")

    def anew(self) -> None:
        """Ends the door and opens it again, as a worker does that died."""
        self.door.close()
        self.door = Door(str(self.base / "worker"), [self.tool])


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    made = Field(tmp_path)
    yield made
    made.tool.go.set()
    made.door.close()


@pytest.mark.parametrize("port", [False, True], ids=["socket", "port"])
@pytest.mark.parametrize("version", jsonrpc.HANDSHAKE_VERSIONS)
def test_a_client_of_any_version_is_served(field: Field, version: str, port: bool) -> None:
    given = field.admit()
    said = ask(given, "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x"}},
               port=port)  # fmt: skip
    assert said["protocolVersion"] == version and said["serverInfo"]["name"] == door.SERVER
    told = {"MCP-Protocol-Version": version}
    noted = send(given, '{"jsonrpc":"2.0","method":"notifications/initialized"}', port=port, headers=told)
    assert (noted.status, noted.body) == (202, "")
    listed = ask(given, "tools/list", port=port, headers=told)["tools"]
    assert [(one["name"], one["annotations"]) for one in listed] == [("echo", {"readOnlyHint": True})]
    assert call(given, "echo", {"text": "hello"}, port=port, headers=told) == {
        "content": [{"type": "text", "text": "r/a/1: hello"}], "structuredContent": {"lane": "r/a/1"}
    }  # fmt: skip
    assert ask(given, "ping", port=port) == {}


def test_a_client_without_a_handshake_is_served(field: Field) -> None:
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": jsonrpc.STATELESS_VERSION}}
    said = ask(field.admit(), "tools/list", meta, headers={"MCP-Protocol-Version": jsonrpc.STATELESS_VERSION})
    assert said["resultType"] == "complete" and said["ttlMs"] > 0


def test_a_newer_version_is_answered_with_the_newest_known(field: Field) -> None:
    given = field.admit()
    assert ask(given, "initialize", {"protocolVersion": "2099-01-01"})["protocolVersion"] == "2025-11-25"
    assert send(given, "{}", headers={"MCP-Protocol-Version": "2099-01-01"}).status == 400


def test_a_token_opens_its_own_lanes_entrance_alone(field: Field) -> None:
    one, two = field.admit("r/a/1"), field.admit("r/b/1")
    line = '{"jsonrpc":"2.0","id":1,"method":"ping"}'
    assert one.token != two.token
    assert send(one, line).status == 200
    assert send(one, line, token=two.token).status == 403
    assert send(two, line, token=one.token).status == 403
    for token in ("", "wrong", one.token[:-1], one.token + "x", "ü"):
        for port in (False, True):
            assert send(one, line, token=token.encode().decode("latin-1"), port=port).status == 401, token
    # the port tells lanes from each other by their tokens
    assert call(one, "echo", port=True)["structuredContent"] == {"lane": "r/a/1"}
    assert call(one, "echo", port=True, token=two.token)["structuredContent"] == {"lane": "r/b/1"}


def test_a_lane_that_was_let_out_is_no_ones(field: Field) -> None:
    one, two = field.admit("r/a/1"), field.admit("r/b/1")
    field.door.dismiss("r/a/1")
    assert not (Path(one.folder) / door.SOCKET).exists()
    assert send(one, "{}", port=True).status == 401
    assert call(two, "echo")["structuredContent"] == {"lane": "r/b/1"}
    field.door.dismiss("r/a/1")


def test_devflock_C3_what_is_no_request_is_refused(field: Field) -> None:
    given = field.admit()
    wrong = {
        "": jsonrpc.PARSE, "{": jsonrpc.PARSE, "[": jsonrpc.PARSE, "nul": jsonrpc.PARSE, "[]": jsonrpc.INVALID_REQUEST,
        "3": jsonrpc.INVALID_REQUEST, '{"id":1}': jsonrpc.INVALID_REQUEST, "[" * 100_000: jsonrpc.PARSE,
        '{"jsonrpc":"2.0","id":{},"method":"ping"}': jsonrpc.INVALID_REQUEST,
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}': jsonrpc.INVALID_PARAMS,
    }  # fmt: skip
    for text, code in wrong.items():
        heard = send(given, text)
        assert (heard.status, heard.body["error"]["code"]) == (400, code), text[:80]
    assert send(given, b'\xff{"jsonrpc"').status == 400
    unknown = send(given, '{"jsonrpc":"2.0","id":1,"method":"resources/list"}')
    assert (unknown.status, unknown.body["error"]["code"]) == (200, jsonrpc.NO_METHOD)
    for params in ({}, {"name": "none"}, {"name": "echo", "arguments": []}, {"name": 3}):
        heard = send(given, json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))
        assert heard.body["error"]["code"] == jsonrpc.INVALID_PARAMS
    assert call(given, "echo")["structuredContent"] == {"lane": "r/a/1"}


def test_a_batch_is_answered_as_one(field: Field) -> None:
    line = '[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":2}]'
    heard = send(field.admit(), line)
    assert [one.get("error", {}).get("code") for one in heard.body] == [None, jsonrpc.INVALID_REQUEST]


def test_other_methods_places_and_origins_are_refused(field: Field) -> None:
    given = field.admit()
    for method in ("GET", "DELETE", "PUT"):
        heard = send(given, "", method=method)
        assert (heard.status, heard.headers["Allow"]) == (405, "POST")
    for path in ("/", "/sse", "/mcp/x", "/.well-known/oauth-protected-resource"):
        assert send(given, "{}", path=path).status == 404
    line = '{"jsonrpc":"2.0","id":1,"method":"ping"}'
    assert send(given, line, port=True, headers={"Origin": "https://evil.example"}).status == 403
    assert send(given, line, port=True, headers={"Origin": "http://127.0.0.1.evil.example"}).status == 403
    assert send(given, line, port=True, headers={"Origin": "http://localhost:3000"}).status == 200


def test_a_request_that_is_too_long_is_refused(field: Field) -> None:
    given = field.admit()
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x" * MOST}})
    assert send(given, line).status == 413
    packed = __import__("gzip").compress(b" " * (5 * MOST))
    assert send(given, packed, headers={"Content-Encoding": "gzip"}).status in (400, 413)
    assert call(given, "echo")["structuredContent"] == {"lane": "r/a/1"}


def test_a_client_that_stops_in_mid_request_holds_nobody_up(field: Field) -> None:
    given = field.admit()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(str(Path(given.folder) / door.SOCKET))
    head = f"POST /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {given.token}\r\nContent-Length: 100\r\n\r\n"
    made.sendall(head.encode() + b"{")
    assert call(given, "echo")["structuredContent"] == {"lane": "r/a/1"}
    made.close()
    assert call(given, "echo")["structuredContent"] == {"lane": "r/a/1"}


def test_a_lane_that_opens_connections_without_end_takes_nothing_from_others(field: Field) -> None:
    one, two = field.admit("r/a/1"), field.admit("r/b/1")
    before = len(os.listdir("/proc/self/fd"))
    made = []
    for _ in range(CONNECTIONS * 3):
        made.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        made[-1].connect(str(Path(one.folder) / door.SOCKET))
    assert call(two, "echo")["structuredContent"] == {"lane": "r/b/1"}
    # those above the number are closed, in whatever order they were taken
    closed = 0
    ready = select.poll()
    for each in made:
        ready.register(each, select.POLLIN | select.POLLHUP)
    until = time.monotonic() + 20
    while closed < CONNECTIONS * 2 and time.monotonic() < until:
        closed = len(ready.poll(100))
    assert closed == CONNECTIONS * 2
    assert len(os.listdir("/proc/self/fd")) <= before + len(made) + CONNECTIONS + 4
    for each in made:
        each.close()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            assert call(one, "echo")["structuredContent"] == {"lane": "r/a/1"}
            break
        except (OSError, HTTPException):
            continue  # not all have been seen to be closed
    else:
        pytest.fail("the lane is not served any more")


def test_an_error_of_a_tool_is_its_answer(field: Field) -> None:
    given = field.admit()
    typed = call(given, "echo", {"text": "typed"})
    assert typed["isError"] and typed["structuredContent"]["code"] == "E_NOT_FOUND"
    assert "look elsewhere" in typed["content"][0]["text"]
    fault = call(given, "echo", {"text": "fault"})
    assert fault["isError"] and fault["structuredContent"]["code"] == "E_INTERNAL"
    assert not call(given, "echo").get("isError")


def test_a_lane_that_asks_too_much_waits_and_the_others_go_on(field: Field) -> None:
    busy, other = field.admit("r/a/1"), field.admit("r/b/1")
    field.tool.go.clear()
    with ThreadPoolExecutor(AT_ONCE + WAITING + 8) as pool:
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo"}})
        sent = [pool.submit(send, busy, line) for _ in range(AT_ONCE + WAITING + 8)]
        refused = [one.result(30) for one in _first(sent, 8)]
        assert [(one.status, one.headers["Retry-After"]) for one in refused] == [(429, "1")] * 8
        assert field.tool.most <= AT_ONCE
        assert ask(other, "ping") == {}
        field.tool.go.set()
        assert sorted(one.result(30).status for one in sent) == [200] * (AT_ONCE + WAITING) + [429] * 8


def _first(futures: list, count: int) -> list:  # type: ignore[type-arg]
    """Gives the first of some futures that are done."""
    from concurrent.futures import as_completed

    done = as_completed(futures, timeout=30)
    return [next(done) for _ in range(count)]


def test_a_door_that_starts_anew_knows_its_lanes(field: Field) -> None:
    given = field.admit()
    inode = os.stat(Path(given.folder)).st_ino
    field.anew()
    field.door.resume(str(field.base / "r-a-1"), "none")
    field.door.resume(str(field.base), "none")  # a lane without a pass stays out
    # the same token, the same port, and the same folder, which is what a cage has bound
    assert os.stat(given.folder).st_ino == inode
    for port in (False, True):
        assert call(given, "echo", port=port)["structuredContent"] == {"lane": "r/a/1"}
    assert field.admit() == given


def test_a_door_beside_a_living_one_takes_its_lanes_over(field: Field) -> None:
    given = field.admit()
    other = Door(str(field.base / "other"), [field.tool])
    try:
        taken = other.admit(field.who("r/a/1"), "none")
        assert taken.token == given.token and taken.port != given.port
        field.door.dismiss("r/a/1")  # it must not take away the socket of the other
        assert call(given, "echo")["structuredContent"] == {"lane": "r/a/1"}
    finally:
        other.close()


def test_a_client_keeps_its_connection_through_answers(field: Field) -> None:
    given = field.admit()
    made = doorkit.connection(given)
    for _ in range(3):
        made.request("POST", "/mcp", '{"jsonrpc":"2.0","id":1,"method":"ping"}',
                     {"Authorization": f"Bearer {given.token}"})  # fmt: skip
        assert json.loads(made.getresponse().read())["result"] == {}
    made.close()


def test_twenty_lanes_at_once_are_told_apart(field: Field) -> None:
    given = {f"r/t{n}/1": field.admit(f"r/t{n}/1") for n in range(20)}
    found: list[tuple[str, str]] = []
    guard = threading.Lock()

    def work(lane: str) -> None:
        for n in range(10):
            said = call(given[lane], "echo", {"text": str(n)}, port=bool(n % 2))
            with guard:
                found.append((lane, said["content"][0]["text"]))

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work, given))
    assert sorted(found) == sorted((lane, f"{lane}: {n}") for lane in given for n in range(10))


def test_the_tools_are_looked_for_before_a_lane_starts(field: Field) -> None:
    given = field.admit()
    field.door.check(given)
    with pytest.raises(HarnessError, match="tools_missing"):
        field.door.check(given._replace(tools=("echo", "another")))
    field.door.dismiss("r/a/1")
    with pytest.raises(HarnessError) as error:
        field.door.check(given)
    assert error.value.details["tools"] == ["echo"]


def test_what_a_lane_may_not_read_is_closed(field: Field) -> None:
    given = field.admit()
    folder = Path(given.folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / door.SOCKET).stat().st_mode) == 0o666
    assert stat.S_IMODE((folder.parent / "door.json").stat().st_mode) == 0o600
    assert sorted(p.name for p in folder.iterdir()) == ["bin", "door.sock"]


def test_a_folder_of_a_lane_may_have_a_long_path(tmp_path: Path) -> None:
    made = Field(tmp_path / ("x" * 100))
    try:
        given = made.admit()
        made.door.check(given)
    finally:
        made.door.close()


# the program inside


@pytest.fixture
def rw(field: Field) -> Callable[..., subprocess.CompletedProcess[str]]:
    given = field.admit()

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([f"{given.folder}/bin/rw", *words], env=given.environment(given.port) | env,
                              capture_output=True, text=True, timeout=60, check=False)  # fmt: skip

    return run


def test_the_program_inside_calls_the_door(rw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert rw("tools").stdout == "echo: Says who called it\n"
    done = rw("call", "echo", '{"text": "hi"}')
    assert (done.returncode, done.stdout, done.stderr) == (0, "r/a/1: hi\n", "")
    done = rw("call", "echo", '{"text": "typed"}')
    assert (done.returncode, done.stdout) == (1, "") and "E_NOT_FOUND" in done.stderr
    done = rw("progress", "half", "--percent", "50")
    assert done.returncode == 3 and "unknown tool" in done.stderr
    for words in ((), ("progress",), ("request", "a", "b"), ("nonsense",), ("call", "echo", "{"), ("cat",)):
        done = rw(*words)
        assert done.returncode == 2 and "usage" in done.stdout + done.stderr, words
    assert rw("tools", ROPEWALK_DOOR_TOKEN="wrong").returncode == 3


def test_the_program_inside_waits_for_a_door_that_starts_anew(
    field: Field, rw: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    field.door.close()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(rw, "call", "echo", "{}")
        field.door = Door(str(field.base / "worker"), [field.tool])
        field.admit()
        assert done.result(60).stdout == "r/a/1: \n"


# what a model is offered


@pytest.mark.parametrize(
    ("wire", "body", "names"),
    [
        ("anthropic", {"tools": [{"name": "mcp__ropewalk__echo"}, {"name": "Bash"}]}, ("mcp__ropewalk__echo", "Bash")),
        ("anthropic", {"tools": [{"name": "x"}], "tool_choice": {"type": "tool", "name": "x"}}, ()),
        ("chat", {"tools": [{"type": "function", "function": {"name": "ropewalk_echo"}}]}, ("ropewalk_echo",)),
        ("chat", {"tools": [{"type": "function", "function": {"name": "x"}}], "tool_choice": "required"}, ()),
        ("responses", {"tools": [{"type": "namespace", "name": "mcp__ropewalk", "tools": [{"name": "echo"}]},
                                 {"type": "function", "name": "shell"}, {"type": "web_search"}]},
         ("mcp__ropewalk__echo", "shell")),
        ("gemini", {"tools": [{"functionDeclarations": [{"name": "mcp_ropewalk_echo"}]}]}, ("mcp_ropewalk_echo",)),
        ("gemini", {"tools": [{"functionDeclarations": [{"name": "x"}]}],
                    "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, ()),
        ("chat", {"tools": [None, 3, {"function": None}, {"name": 4}]}, ()),
        ("chat", {"tools": {"a": 1}}, ()),
        ("chat", {}, ()),
    ],
)  # fmt: skip
def test_the_gateway_tells_what_a_model_is_offered(wire: str, body: dict[str, object], names: tuple[str, ...]) -> None:
    assert offered.names(body, wire) == names  # type: ignore[arg-type]


def test_a_tool_that_is_not_offered_is_named() -> None:
    servers = [McpServer("ropewalk", "", {}, ("echo", "log")), McpServer("other", "", {})]
    assert door.missing(servers, ["mcp__ropewalk__echo", "ropewalk-log"]) == []
    assert door.missing(servers, ["mcp__other__echo", "log", "ropewalk_log"]) == ["echo"]
    assert door.missing(servers, ["Bash"]) == ["echo", "log"]


@pytest.mark.parametrize("name", registry.PROGRAMS)
def test_no_token_is_in_a_command_line(name: str) -> None:
    """Every process of the host sees it, those of other lanes among them."""
    server = McpServer("ropewalk", "http://127.0.0.1:1/mcp", {"Authorization": "Bearer secret-door"})
    endpoint = Endpoint("http://127.0.0.1:2", "secret-gateway", "anthropic")
    adapter = registry.get(name)
    start = Start("p", "/lane/prompt.md", "/work/x", "/lane", endpoint, "m", servers=(server,), script=[])
    given = adapter.launch(start)
    assert not [word for word in given.argv if "secret" in word]
    if adapter.offers_tools:
        held = [*given.files.values(), *(value.encode() for value in given.env.values())]
        assert any(b"secret-door" in one for one in held)
