"""The official SDK's client on our server, over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

pytestmark = pytest.mark.compat


def _server(folder: Path) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "ropewalk.cli.main", "mcp", "--as", "sdk/one", "--profile", "full"],
        env=dict(os.environ),
        cwd=str(folder),
    )


async def _envelope(session: ClientSession, tool: str, **arguments: Any) -> Any:
    result = await session.call_tool(tool, arguments)
    dumped = result.model_dump(by_alias=True)
    assert bool(dumped["isError"]) == (not dumped["structuredContent"]["ok"])
    assert len(dumped["content"]) == 1 and dumped["content"][0]["type"] == "text"
    return dumped["structuredContent"]


def test_the_sdk_lists_commits_lands_reads_and_resolves(folder: Path) -> None:
    async def talk() -> None:
        async with stdio_client(_server(folder)) as (read, write), ClientSession(read, write) as session:
            hello = (await session.initialize()).model_dump(by_alias=True)
            assert hello["serverInfo"]["name"] == "ropewalk"
            await session.send_ping()
            listed = await session.list_tools()
            names = {tool.name for tool in listed.tools}
            assert {"commit", "land", "ref_list", "read_file", "repo_init"} <= names
            sides = []
            for text in ("one\nA\nthree\n", "one\nB\nthree\n"):
                changes = [{"path": "a.txt", "content": {"inline": text}}]
                made = await _envelope(session, "commit", message=text, changes=changes, parent="main")
                sides.append(made["result"]["changeset"])
            first = await _envelope(session, "land", head=sides[0])
            assert first["result"]["status"] == "landed"
            page = await _envelope(session, "read_file", rev="main", path="a.txt")
            assert page["result"]["content"] == "one\nA\nthree\n"
            refused = await _envelope(session, "land", head=sides[1])
            assert refused["error"]["code"] == "E_CONFLICT"
            against = refused["error"]["details"]["report"]["theirs"]
            files = {"a.txt": {"content": {"inline": "one\nAB\nthree\n"}}}
            done = await _envelope(session, "land", head=sides[1], resolutions={"against": against, "files": files})
            assert done["result"]["status"] == "landed"
            page = await _envelope(session, "read_file", rev="main", path="a.txt")
            assert page["result"]["content"] == "one\nAB\nthree\n"

    asyncio.run(talk())


def test_the_sdks_own_client_picks_a_protocol_by_itself(folder: Path) -> None:
    client_class = getattr(sys.modules["mcp"], "Client", None)
    if client_class is None:
        pytest.skip("this SDK has no Client class that probes for the protocol")

    async def talk() -> str:
        async with client_class(stdio_client(_server(folder))) as client:
            result = await client.call_tool("info", {})
            assert result.structured_content["ok"]
            return str(client.protocol_version)

    assert asyncio.run(talk()) == "2026-07-28"
