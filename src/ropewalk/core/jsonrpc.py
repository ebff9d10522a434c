"""JSON-RPC 2.0 as the Model Context Protocol has it: messages read, answers written, and the protocol's versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSION = "2026-07-28"
VERSIONS = (*HANDSHAKE_VERSIONS, STATELESS_VERSION)
MAX_BATCH = 1000
PARSE, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL, VERSION = -32700, -32600, -32601, -32602, -32603, -32022
NULL = Raw(b"null")
_META_VERSION = "io.modelcontextprotocol/protocolVersion"
_META_SERVER = "io.modelcontextprotocol/serverInfo"


class RpcError(Exception):
    """Is an error of the protocol, not of what was asked for: JSON-RPC's code, a sentence, and data.

    `reply_to` is the id of the message that is wrong, null where it could not be read.
    """

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data
        self.reply_to = NULL


class Call(NamedTuple):
    """Is a request; `id` is as it was written, so that it comes back the same."""

    id: Raw
    method: str
    params: dict[str, Any]
    stateless: bool


def messages(text: bytes) -> list[bytes] | None:
    """Gives the messages of a batch, None where the text is none; `RpcError` for one that can't be taken."""
    if not text.startswith(b"["):
        return None
    try:
        items = msgspec.json.decode(text, type=list[Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RpcError(PARSE, f"the message is not JSON: {error}") from None
    if not items or len(items) > MAX_BATCH:
        raise RpcError(INVALID_REQUEST, f"a batch has from 1 to {MAX_BATCH} messages")
    return [bytes(item) for item in items]


def read(text: bytes) -> Call | None:
    """Gives the request of one message, None for what wants no answer; `RpcError` for what can't be taken."""
    try:
        message = msgspec.json.decode(text, type=dict[str, Raw])
    except msgspec.ValidationError:
        raise RpcError(INVALID_REQUEST, "a message is an object") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RpcError(PARSE, f"the message is not JSON: {error}") from None
    reply_to = NULL
    try:
        reply_to = _id(message)
        method = _value(message, "method", None)
        if method is None and ("result" in message or "error" in message):
            return None  # an answer to a request; no server of ours makes one
        if _value(message, "jsonrpc", None) != "2.0" or not isinstance(method, str):
            raise RpcError(INVALID_REQUEST, "a request has jsonrpc 2.0 and a method")
        if "id" not in message:
            return None  # notifications need no action: calls run to their end
        params = _value(message, "params", {})
        if not isinstance(params, dict):
            raise RpcError(INVALID_PARAMS, "params must be an object")
        return Call(reply_to, method, params, _stateless(params))
    except RpcError as error:
        error.reply_to = reply_to
        raise


def no_method(method: str) -> RpcError:
    """Gives the error for a method that there is not."""
    return RpcError(NO_METHOD, f"there is no method {method[:100]!r}")


def answered(call: Call, result: Mapping[str, Any], server: Mapping[str, str]) -> bytes:
    """Gives the answer to a request; `server` is the server's name and version."""
    if call.stateless:
        result = {**result, "resultType": "complete", "_meta": {_META_SERVER: server}}
        if call.method in ("tools/list", "server/discover"):
            result.update(ttlMs=3_600_000, cacheScope="private")
    return msgspec.json.encode({"jsonrpc": "2.0", "id": call.id, "result": result})


def failed(error: RpcError, reply_to: Raw | None = None) -> bytes:
    """Gives the answer that an error is, to the message that it names or to another."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    answers = error.reply_to if reply_to is None else reply_to
    return msgspec.json.encode({"jsonrpc": "2.0", "id": answers, "error": body})


def agreed(params: Mapping[str, Any]) -> str:
    """Gives the version that an `initialize` is answered with: the wanted one, else the newest with a handshake."""
    wanted = params.get("protocolVersion")
    if not isinstance(wanted, str):
        raise RpcError(INVALID_PARAMS, "protocolVersion must be a string", {"supported": VERSIONS})
    return wanted if wanted in VERSIONS else HANDSHAKE_VERSIONS[-1]


def called(params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Gives the tool that a `tools/call` names and its arguments."""
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str):
        raise RpcError(INVALID_PARAMS, "name must be a string")
    if not isinstance(arguments, dict | None):
        raise RpcError(INVALID_PARAMS, "arguments must be an object")
    return name, arguments or {}


def _id(message: dict[str, Raw]) -> Raw:
    raw = message.get("id", NULL)
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
