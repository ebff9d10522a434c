"""The MCP server as a process: the protocol's corners, tools, their size, and what happens when the client goes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ropewalk.mcp import tools
from ropewalk.mcp.lines import TooLong, read_lines

CORE = {
    *("ref_list", "read_file", "list_dir", "grep", "log", "show", "diff", "resolve"),
    *("commit", "land", "ws_create", "ws_land"),
}
INIT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
def test_a_known_version_is_answered_with_itself(start: Any, version: str) -> None:
    result = start().request("initialize", {**INIT, "protocolVersion": version})["result"]
    assert result["protocolVersion"] == version
    assert result["capabilities"] == {"tools": {}}
    assert result["serverInfo"]["name"] == "ropewalk"


def test_an_unknown_version_is_answered_with_the_newest_that_has_a_handshake(start: Any) -> None:
    result = start().request("initialize", {**INIT, "protocolVersion": "2099-01-01"})["result"]
    assert result["protocolVersion"] == "2025-11-25"


def test_requests_that_carry_their_version_need_no_handshake(start: Any) -> None:
    client = start()
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
    found = client.request("server/discover", meta)["result"]
    assert "2026-07-28" in found["supportedVersions"] and found["resultType"] == "complete" and found["cacheScope"]
    listed = client.request("tools/list", meta)["result"]
    assert listed["resultType"] == "complete" and listed["ttlMs"] > 0
    assert client.request("tools/call", {**meta, "name": "info"})["result"]["resultType"] == "complete"
    old = {"_meta": {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}}
    assert client.request("tools/list", old)["error"]["code"] == -32022


ODD = [
    (b"{", -32700, None),
    (b"\xff\xfe", -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}", -32700, None),
    (b"1", -32600, None),
    (b'"text"', -32600, None),
    (b"null", -32600, None),
    (b"[]", -32600, None),
    (b"{}", -32600, None),
    (b'{"jsonrpc":"1.0","id":7,"method":"ping"}', -32600, 7),
    (b'{"id":7,"method":"ping"}', -32600, 7),
    (b'{"jsonrpc":"2.0","id":7,"method":5}', -32600, 7),
    (b'{"jsonrpc":"2.0","id":7,"method":null}', -32600, 7),
    (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":"x","method":"nope"}', -32601, "x"),
    (b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}', -32601, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"prompts/list"}', -32601, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"initialize"}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":3}}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x"}}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nope"}}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"info","arguments":[1]}}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"op_show","arguments":{"op":1e999}}}', -32602, 1),
]


def test_whatever_is_wrong_has_its_json_rpc_error_and_the_stream_goes_on(start: Any) -> None:
    client = start()
    for line, code, reply_to in ODD:
        reply = client.ask(line)
        assert (reply["jsonrpc"], reply["error"]["code"], reply["id"]) == ("2.0", code, reply_to), line[:80]
        assert reply["error"]["message"]
    assert client.request("ping")["result"] == {}


@pytest.mark.parametrize("text", ["1", "-5", "0", "1.5", "1e3", '"a"', '""', '"\\u00e9\\n"', "null", str(10**30)])
def test_an_id_comes_back_as_it_was(start: Any, text: str) -> None:
    client = start()
    client.send(b'{"jsonrpc":"2.0","id":' + text.encode() + b',"method":"ping"}')
    assert client.process.stdout.readline() == b'{"jsonrpc":"2.0","id":' + text.encode() + b',"result":{}}\n'


def test_notifications_answers_and_empty_lines_are_not_answered(start: Any) -> None:
    client = start()
    for line in (
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        b'{"jsonrpc":"2.0","method":"notifications/unknown","params":7}',
        b'{"jsonrpc":"2.0","method":"tools/call","params":{}}',
        b'{"jsonrpc":"2.0","id":9,"result":{}}',
        b'{"jsonrpc":"2.0","id":9,"error":{"code":1,"message":"x"}}',
        b'[{"jsonrpc":"2.0","method":"notifications/initialized"}]',
        b"",
        b"  \r",
    ):
        client.send(line)
    client.request("ping")
    assert client.end() == (0, b"", b"")


def test_a_batch_is_answered_by_a_batch(start: Any) -> None:
    client = start()
    reply = client.ask(
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"},3,{"jsonrpc":"2.0","id":2,"method":"y"}]'
    )
    assert [(r["id"], r.get("error", {}).get("code")) for r in reply] == [(1, None), (None, -32600), (2, -32601)]
    assert client.ask(b"[" + b",".join([b"1"] * 5000) + b"]")["error"]["code"] == -32600


def test_a_line_over_the_bound_is_answered_and_dropped(start: Any) -> None:
    client = start()
    for _ in range(65):
        client.process.stdin.write(b"x" * (1 << 20))
    client.send(b"")
    assert client.receive()["error"]["code"] == -32600
    with open(f"/proc/{client.process.pid}/status", encoding="ascii") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak < 300_000, "a dropped line is not kept"
    assert client.request("ping")["result"] == {}


def test_lines_are_cut_whatever_the_pieces() -> None:
    inside, outside = os.pipe()
    os.write(outside, b"a\nbb\n\n" + b"c" * 11 + b"\nd\n" + b"e" * 10 + b"\nlast")
    os.close(outside)
    found = [line if isinstance(line, bytes) else TooLong for line in read_lines(inside, lambda: None, 10)]
    os.close(inside)
    assert found == [b"a", b"bb", b"", TooLong, b"d", b"e" * 10, b"last"]


def test_the_list_is_short_and_every_schema_is_one(start: Any) -> None:
    sizes = {}
    for profile in ("core", "board", "full"):
        client = start("--profile", profile)
        client.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
        line = client.process.stdout.readline()
        sizes[profile] = len(line)
        found = json.loads(line)["result"]
        assert "nextCursor" not in found
        for tool in found["tools"]:
            assert tool["inputSchema"]["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
            assert "$ref" not in json.dumps(tool) and tool["description"]
        names = [tool["name"] for tool in found["tools"]]
        assert len(names) == len(set(names))
        if profile == "core":
            assert set(names) == CORE
        elif profile == "full":
            assert set(names) == set(tools.by_name())
    assert sizes["core"] <= 12_000 and sizes["full"] <= 36_000, sizes


def test_read_only_tools_say_so() -> None:
    for tool in tools.listed("full"):
        operation = tools.by_name()[tool["name"]]
        assert tool.get("annotations", {}).get("readOnlyHint", False) == (not operation.writes)


def test_a_conflict_and_its_resolution(start: Any, folder: Path) -> None:
    client = start("--as", "test/two")
    client.request("initialize", INIT)

    def change(text: str) -> str:
        changes = [{"path": "a.txt", "content": {"inline": text}}]
        return str(
            client.call("commit", message=f"to {text!r}", changes=changes, parent="main~0")["result"]["changeset"]
        )

    ours, theirs = change("one\nOURS\nthree\n"), change("one\nTHEIRS\nthree\n")
    assert client.call("land", head=theirs)["result"]["status"] == "landed"
    failed = client.call("land", head=ours)
    assert failed["error"]["code"] == "E_CONFLICT"
    report = failed["error"]["details"]["report"]
    resolution = {"against": report["theirs"], "files": {"a.txt": {"content": {"inline": "one\nBOTH\nthree\n"}}}}
    landed = client.call("land", head=ours, resolutions=resolution)["result"]["landed"]
    assert client.call("ref_list")["result"]["refs"] == [{"name": "main", "target": landed}]


def test_a_tool_that_is_not_listed_can_be_called(start: Any) -> None:
    assert start("--profile", "core").call("op_log")["result"]["ops"]


def test_writes_need_an_identity_which_is_the_servers(start: Any) -> None:
    changes = [{"path": "b", "content": {"inline": "b"}}]
    assert start().call("commit", message="m", changes=changes)["error"]["code"] == "E_IDENTITY_REQUIRED"
    client = start("--as", "test/three")
    assert client.call("commit", message="m", changes=changes, agent="x/y")["error"]["code"] == "E_INVALID"
    assert client.call("commit", message="m", changes=changes)["ok"]
    assert client.call("op_log", limit=1)["result"]["ops"][0]["actor"] == "test/three"


def test_files_of_a_request_are_found_from_the_servers_folder(start: Any, folder: Path) -> None:
    (folder / "data.bin").write_bytes(b"\0\xff")
    client = start("--as", "test/one")
    made = client.call("commit", message="m", changes=[{"path": "d", "content": {"file": "data.bin"}}], advance="main")
    assert made["result"]["blobs_written"] == 1


def test_the_server_sees_a_store_made_later_and_one_put_in_its_place(start: Any, folder: Path) -> None:
    store = folder / ".ropewalk"
    away = folder / "away"
    store.rename(away)
    client = start()
    assert client.call("info")["error"]["code"] == "E_NOT_FOUND"
    away.rename(store)
    first = client.call("info")["result"]["repo_id"]
    shutil.rmtree(store)
    assert client.call("repo_init", branch="main")["ok"]
    second = client.call("info")["result"]["repo_id"]
    assert first != second


def test_making_another_store_does_not_move_the_server(start: Any, folder: Path) -> None:
    client = start()
    before = client.call("info")["result"]["repo_id"]
    assert client.call("repo_init", dir="other")["ok"]
    assert client.call("info")["result"]["repo_id"] == before


def test_the_end_of_the_input_is_the_end(start: Any) -> None:
    client = start()
    client.call("info")
    began = time.monotonic()
    assert client.end() == (0, b"", b"")
    assert time.monotonic() - began < 5


def test_a_last_line_without_its_end_is_answered(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.main", "mcp"],
        input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
        capture_output=True,
        cwd=folder,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b'{"jsonrpc":"2.0","id":1,"result":{}}\n', b"")


def test_a_reader_that_went_away_is_no_fault(start: Any) -> None:
    client = start()
    client.request("ping")
    client.process.stdout.close()
    client.process.stdout = None
    client.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert client.process.wait(timeout=30) == 0
    assert client.process.stderr.read() == b""


def test_a_stopped_server_leaves_the_store_usable(start: Any, folder: Path) -> None:
    client = start("--as", "test/one")
    client.call("info")
    client.process.send_signal(signal.SIGKILL)
    client.process.wait(timeout=30)
    assert start("--as", "test/one").call("verify")["result"]["problems"] == []


@pytest.mark.parametrize("words", [["--profile", "huge"], ["--profile"], ["--as"], ["--as", "Not An Agent"], ["extra"]])
def test_wrong_words_are_one_usage_error(folder: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.main", "mcp", *words], capture_output=True, cwd=folder, check=False
    )
    reply = json.loads(done.stdout)
    assert done.returncode == 2 and reply["error"]["code"] in ("E_USAGE", "E_INVALID") and done.stderr == b""
