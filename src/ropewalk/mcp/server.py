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
from ropewalk.mcp.lines import MAX_LINE, TooLong, read_lines, write_line

if TYPE_CHECKING:
    from ropewalk.operations.context import Context
    from ropewalk.operations.registry import Operation

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSION = "2026-07-28"
VERSIONS = (*HANDSHAKE_VERSIONS, STATELESS_VERSION)
PROFILES = ("core", "board", "full")
MAX_BATCH = 1000
PARSE, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL, VERSION = -32700, -32600, -32601, -32602, -32603, -32022
INSTRUCTIONS = (
    "A version store that many agents write at once. `commit` makes a changeset from a change list, `land` merges it"
    " onto a ref. After E_CONFLICT send `land` again with `resolutions` for the files of details.report."
)
_META_VERSION = "io.modelcontextprotocol/protocolVersion"
_META_SERVER = "io.modelcontextprotocol/serverInfo"
_INFO = {"name": "ropewalk", "version": __version__}
_NULL = Raw(b"null")
# after these the connection may be stale, so the next call opens the store anew
_REOPEN = ("E_INTERNAL", "E_IO", "E_NO_SPACE", "E_NOT_FOUND", "E_STORE_CORRUPT", "E_STORE_FORMAT")


class RpcError(Exception):
    """Is an error of the protocol, not of an operation: JSON-RPC's code, a sentence, and data."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


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
            return _error(_NULL, RpcError(INVALID_REQUEST, f"the message is longer than {MAX_LINE >> 20} MiB"))
        line = line.strip()
        if not line:
            return None
        if not line.startswith(b"["):
            return self._one(line)
        try:
            items = msgspec.json.decode(line, type=list[Raw])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return _error(_NULL, RpcError(PARSE, f"the message is not JSON: {error}"))
        if not items or len(items) > MAX_BATCH:
            return _error(_NULL, RpcError(INVALID_REQUEST, f"a batch has from 1 to {MAX_BATCH} messages"))
        replies = [reply for item in items if (reply := self._one(bytes(item))) is not None]
        return b"[" + b",".join(replies) + b"]" if replies else None

    def _one(self, text: bytes) -> bytes | None:
        try:
            message = msgspec.json.decode(text, type=dict[str, Raw])
        except msgspec.ValidationError:
            return _error(_NULL, RpcError(INVALID_REQUEST, "a message is an object"))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return _error(_NULL, RpcError(PARSE, f"the message is not JSON: {error}"))
        reply_to = _NULL
        try:
            reply_to = _id(message)
            method = _value(message, "method", None)
            if method is None and ("result" in message or "error" in message):
                return None  # an answer to a request; this server makes none
            if _value(message, "jsonrpc", None) != "2.0" or not isinstance(method, str):
                raise RpcError(INVALID_REQUEST, "a request has jsonrpc 2.0 and a method")
            if "id" not in message:
                return None  # notifications need no action: calls run to their end, one after the other
            found = self._methods.get(method)
            if found is None:
                raise RpcError(NO_METHOD, f"there is no method {method[:100]!r}")
            params = _value(message, "params", {})
            if not isinstance(params, dict):
                raise RpcError(INVALID_PARAMS, "params must be an object")
            stateless = _stateless(params)
            result = found(params)
            if stateless:
                result = {**result, "resultType": "complete", "_meta": {_META_SERVER: _INFO}}
                if method in ("tools/list", "server/discover"):
                    result.update(ttlMs=3_600_000, cacheScope="private")
            return msgspec.json.encode({"jsonrpc": "2.0", "id": reply_to, "result": result})
        except RpcError as error:
            return _error(reply_to, error)
        except Exception as error:
            self.close()
            return _error(reply_to, RpcError(INTERNAL, f"{type(error).__name__}: {error}"))

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise RpcError(INVALID_PARAMS, "protocolVersion must be a string", {"supported": VERSIONS})
        client = params.get("clientInfo")
        name = client.get("name") if isinstance(client, dict) else None
        self._client = name[:200] if isinstance(name, str) else ""
        return {
            "protocolVersion": wanted if wanted in VERSIONS else HANDSHAKE_VERSIONS[-1],
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
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "name must be a string")
        if not isinstance(arguments, dict | None):
            raise RpcError(INVALID_PARAMS, "arguments must be an object")
        self.load()
        operation = self._tools.get(name)
        if operation is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool: {name[:100]!r}")
        from ropewalk.operations import envelope

        if operation.store:
            reply = envelope.answer(operation, self._kept(), arguments or {})
            self._note()
        else:
            # what makes or needs no store gets a context of its own, so that this server's store stays what it is
            context = self._make()
            context.client = self._client
            try:
                reply = envelope.answer(operation, context, arguments or {})
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


def _id(message: dict[str, Raw]) -> Raw:
    """Gives a message's id as it was written, so that it comes back the same; `RpcError` when it can't be one."""
    raw = message.get("id", _NULL)
    text = bytes(raw)
    if text[:1] in b"{[tf":
        raise RpcError(INVALID_REQUEST, "an id is a string, a number or null")
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        raise RpcError(INVALID_REQUEST, "the id can't be read") from None
    return raw


def _value(message: dict[str, Raw], key: str, default: Any) -> Any:
    if key not in message:
        return default
    try:
        return msgspec.json.decode(message[key])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        code = INVALID_PARAMS if key == "params" else INVALID_REQUEST
        raise RpcError(code, f"{key} can't be read: {error}") from None


def _stateless(params: dict[str, Any]) -> bool:
    """Says whether a request carries its protocol version itself, as clients of 2026-07-28 send it."""
    notes = params.get("_meta")
    if not isinstance(notes, dict) or _META_VERSION not in notes:
        return False
    wanted = notes[_META_VERSION]
    if not isinstance(wanted, str):
        raise RpcError(INVALID_PARAMS, f"{_META_VERSION} must be a string")
    if wanted not in VERSIONS:
        raise RpcError(VERSION, "unsupported protocol version", {"supported": VERSIONS, "requested": wanted})
    return wanted == STATELESS_VERSION


def _error(reply_to: Raw, error: RpcError) -> bytes:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return msgspec.json.encode({"jsonrpc": "2.0", "id": reply_to, "error": body})
