"""The envelope: one JSON object for each answer, whatever the surface.

```
{"ok": true,  "op": "land", "api": 1, "result": {…}, "warnings": […]?, "meta": {…}}
{"ok": false, "op": "land", "api": 1, "error": {…}, "meta": {…}}
```
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec

from ropewalk.core.errors import InvalidError, RopewalkError, fault, os_error
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Operation

API = 1


class Reply(NamedTuple):
    """Is an answer: the envelope and the exit code that goes with it."""

    envelope: dict[str, Any]
    exit: int


def answer(operation: Operation, context: Context, request: dict[str, Any]) -> Reply:
    """Runs an operation on a request of plain values and gives the envelope; never raises but for an interrupt.

    This is one of the three places that catch everything: a fault of ours becomes `E_INTERNAL`.
    """
    started = time.perf_counter()
    context.resolved, context.warnings, context.exit = {}, [], 0
    try:
        typed = convert(operation, request)
        if operation.identity:
            _ = context.agent
        result = operation.run(context, typed)
        envelope: dict[str, Any] = {
            "ok": True,
            "op": operation.name,
            "api": API,
            "result": msgspec.to_builtins(result),
        }
        code = context.exit
        warnings = context.warnings + _take_warnings(context)
        if warnings:
            envelope["warnings"] = warnings
    except RopewalkError as error:
        envelope, code = failure(operation.name, error), error.exit
    except OSError as error:
        typed_error = os_error(error, operation.name)
        envelope, code = failure(operation.name, typed_error), typed_error.exit
    except Exception as error:
        unforeseen = fault(error, where=_where(error))
        envelope, code = failure(operation.name, unforeseen), unforeseen.exit
    envelope["meta"] = meta(context, started)
    return Reply(envelope, code)


def convert(operation: Operation, request: dict[str, Any]) -> msgspec.Struct:
    """Gives the typed request; `E_INVALID` says which field is wrong."""
    try:
        return msgspec.convert(request, operation.request)
    except msgspec.ValidationError as error:
        raise InvalidError(
            f"the request of {operation.name} is wrong: {error}", hint=f"see `rw schema '{operation.name}'`"
        ) from None
    except (UnicodeError, RecursionError) as error:
        raise InvalidError(f"the request of {operation.name} can't be read: {error}") from None


def failure(name: str, error: RopewalkError) -> dict[str, Any]:
    """Gives the envelope of an error, without `meta`."""
    body: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "retryable": error.retryable,
        "exit": error.exit,
        "details": _plain(error.details),
    }
    if error.hint:
        body["hint"] = error.hint
    return {"ok": False, "op": name, "api": API, "error": body}


def meta(context: Context, started: float) -> dict[str, Any]:
    """Gives what every envelope says of its circumstances."""
    found: dict[str, Any] = {"elapsed_ms": round((time.perf_counter() - started) * 1000, 1), "auth": context.auth}
    store = context.opened
    if store is not None:
        found["repo"] = store.layout.root
        if store.recovered:
            found["recovered"] = dict(store.recovered)
            store.recovered = {}
    if context.resolved:
        found["resolved"] = dict(context.resolved)
    return found


def encode(envelope: dict[str, Any]) -> bytes:
    """Gives an envelope as one line of JSON; text that is no Unicode is replaced rather than refused."""
    try:
        return msgspec.json.encode(envelope)
    except (UnicodeError, ValueError):
        return msgspec.json.encode(_plain(envelope))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _plain(str(value))


def _take_warnings(context: Context) -> list[str]:
    store = context.opened
    if store is None:
        return []
    taken, store.warnings = list(dict.fromkeys(store.warnings)), []
    return taken


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    module = str(trace.tb_frame.f_globals.get("__name__", "?"))
    return f"{module}:{trace.tb_lineno}"
