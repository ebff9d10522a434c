"""The MCP server over standard input and output: one JSON-RPC message a line in, one line out, nothing unasked.

It is a plain loop without the SDK and without asyncio: each agent has a server process of its own, and the
SDK's import alone would cost it 75 bare Python starts and 65 MB. Calls run one after the other, as the store's
connection asks for; operations are loaded while the client is idle, so that the first answer comes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from ropewalk import __version__
from ropewalk.core import jsonrpc
from ropewalk.core.jsonrpc import INTERNAL, INVALID_PARAMS, INVALID_REQUEST, VERSIONS, RpcError
from ropewalk.mcp.lines import MAX_LINE, TooLong, read_lines, write_line

if TYPE_CHECKING:
    from ropewalk.operations.context import Context
    from ropewalk.operations.registry import Operation

PROFILES = ("core", "board", "full")
INSTRUCTIONS = (
    "A version store that many agents write at once. `commit` makes a changeset from a change list, `land` merges it"
    " onto a ref. After E_CONFLICT send `land` again with `resolutions` for the files of details.report."
)
_INFO = {"name": "ropewalk", "version": __version__}
# after these the connection may be stale, so the next call opens the store anew
_REOPEN = ("E_INTERNAL", "E_IO", "E_NO_SPACE", "E_NOT_FOUND", "E_STORE_CORRUPT", "E_STORE_FORMAT")


class Server:
    """Answers JSON-RPC messages; `make` gives the context of a call, whose caller is fixed from the start."""

    def __init__(self, make: Callable[[], Context], profile: str) -> None:
        self._make = make
        self._profile = profile
        self._context: Context | None = None
        self._client = ""
        self._opened: tuple[int, int] | None = None
        self._tools: dict[str, Operation] = {}
        self._list: Raw | None = None
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "initialize": self._initialize,
            "server/discover": self._discover,
            "ping": lambda params: {},
            "tools/list": self._tools_list,
            "tools/call": self._tools_call,
        }

    def load(self) -> None:
        """Loads the operations; done while the client is idle, or at the first need."""
        if not self._tools:
            from ropewalk.mcp import tools
            from ropewalk.operations import envelope

            self._tools = tools.by_name()
            self._list = Raw(msgspec.json.encode(tools.listed(self._profile)))
            _ = envelope.API

    def idle(self) -> None:
        """Uses the client's pause to load; a fault shows at the call that needs what is missing."""
        try:
            self.load()
        except Exception:
            self._tools = {}

    def close(self) -> None:
        """Closes the store."""
        context, self._context, self._opened = self._context, None, None
        if context is not None:
            try:
                context.close()
            except OSError:
                pass  # its git child is gone already

    def answer(self, line: bytes | TooLong) -> bytes | None:
        """Gives the answer to a line, or None where none is due; never raises but for an interrupt."""
        if isinstance(line, TooLong):
            return jsonrpc.failed(RpcError(INVALID_REQUEST, f"the message is longer than {MAX_LINE >> 20} MiB"))
        line = line.strip()
        if not line:
            return None
        try:
            items = jsonrpc.messages(line)
        except RpcError as error:
            return jsonrpc.failed(error)
        if items is None:
            return self._one(line)
        replies = [reply for item in items if (reply := self._one(item)) is not None]
        return b"[" + b",".join(replies) + b"]" if replies else None

    def _one(self, text: bytes) -> bytes | None:
        reply_to: Raw | None = None
        try:
            call = jsonrpc.read(text)
            if call is None:
                return None
            reply_to = call.id
            found = self._methods.get(call.method)
            if found is None:
                raise jsonrpc.no_method(call.method)
            return jsonrpc.answered(call, found(call.params), _INFO)
        except RpcError as error:
            return jsonrpc.failed(error, reply_to)
        except Exception as error:
            self.close()
            return jsonrpc.failed(RpcError(INTERNAL, f"{type(error).__name__}: {error}"), reply_to)

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        version = jsonrpc.agreed(params)
        client = params.get("clientInfo")
        name = client.get("name") if isinstance(client, dict) else None
        self._client = name[:200] if isinstance(name, str) else ""
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": _INFO,
            "instructions": INSTRUCTIONS,
        }

    def _discover(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"supportedVersions": VERSIONS, "capabilities": {"tools": {}}, "instructions": INSTRUCTIONS}

    def _tools_list(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("cursor") is not None:
            raise RpcError(INVALID_PARAMS, "the list has one page, so there is no cursor")
        self.load()
        return {"tools": self._list}

    def _tools_call(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = jsonrpc.called(params)
        self.load()
        operation = self._tools.get(name)
        if operation is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool: {name[:100]!r}")
        from ropewalk.operations import envelope

        if operation.store:
            reply = envelope.answer(operation, self._kept(), arguments)
            self._note()
        else:
            # what makes or needs no store gets a context of its own, so that this server's store stays what it is
            context = self._make()
            context.client = self._client
            try:
                reply = envelope.answer(operation, context, arguments)
            finally:
                context.close()
        body = reply.envelope
        if not body["ok"] and body["error"]["code"] in _REOPEN:
            self.close()
        if operation.plain and body["ok"]:
            return _plain(body["result"])
        text = envelope.encode(body["result"] if body["ok"] else body["error"]).decode("utf-8")
        content = [{"type": "text", "text": text}]
        content += [{"type": "text", "text": f"warning: {w}"} for w in body.get("warnings", [])]
        result: dict[str, Any] = {"content": content, "structuredContent": Raw(envelope.encode(body))}
        if not body["ok"]:
            result["isError"] = True
        return result

    def _kept(self) -> Context:
        """Gives the context that is kept between calls, anew when its store was replaced on disk meanwhile."""
        if self._opened is not None and self._opened != self._stamp():
            self.close()
        if self._context is None:
            self._context = self._make()
        return self._context

    def _note(self) -> None:
        if self._opened is None:
            self._opened = self._stamp()

    def _stamp(self) -> tuple[int, int] | None:
        import os

        store = self._context.opened if self._context is not None else None
        if store is None:
            return None
        try:
            found = os.stat(store.layout.database)
        except OSError:
            return (0, 0)
        return found.st_dev, found.st_ino


def serve(server: Server, stdin: int, stdout: int) -> None:
    """Answers line by line until the input ends or nobody reads the output any more."""
    try:
        for line in read_lines(stdin, server.idle):
            reply = server.answer(line)
            if reply is not None:
                write_line(stdout, reply)
    except BrokenPipeError:
        pass
    finally:
        server.close()


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    """Gives the answer of an operation that has its own form of it: text, and data where there is some."""
    found: dict[str, Any] = {"content": [{"type": "text", "text": result["text"]}], "isError": result["error"]}
    if result["data"] is not None:
        found["structuredContent"] = result["data"]
    return found
