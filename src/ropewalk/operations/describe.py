"""What ropewalk says of itself: the operations with their schemas and errors, and the settings."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core import config, errors
from ropewalk.core.errors import InvalidError, NotFoundError, RopewalkError
from ropewalk.operations import crew, registry
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, Operation, operation


class OperationRow(msgspec.Struct, frozen=True):
    """Is one operation in the list: its command, its tool (empty: none), whether it is in the small tool profile, and
    whether it writes."""

    name: str
    tool: str
    summary: str
    core: bool
    writes: bool


class ErrorRow(msgspec.Struct, frozen=True):
    """Is one error that an operation can answer with."""

    code: str
    exit: int
    retryable: bool
    meaning: str


class SchemaRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes an operation's name, or nothing for the list."""

    op: Annotated[str, Meta(max_length=100, description="an operation or tool; without it all are listed")] | None = (
        None
    )


class SchemaResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the list of operations; or one operation with the JSON Schema of its request and result, and its errors."""

    operations: list[OperationRow] | None = None
    name: str | None = None
    tool: str | None = None
    summary: str | None = None
    core: bool | None = None
    writes: bool | None = None
    identity: bool | None = None
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    errors: list[ErrorRow] | None = None


@operation(
    "schema",
    request=SchemaRequest,
    response=SchemaResponse,
    summary="List the operations, or show one's request, result and errors",
    errors=(NotFoundError,),
    store=False,
    command=Command(positional=("op?",)),
)
def schema(ctx: Context, req: SchemaRequest) -> SchemaResponse:
    """Gives the list of operations, or the schema of one."""
    if req.op is None:
        return SchemaResponse(
            operations=[OperationRow(o.name, o.tool, o.summary, o.core, o.writes) for o in registry.everything()]
        )
    found = find(req.op)
    return SchemaResponse(
        name=found.name,
        tool=found.tool,
        summary=found.summary,
        core=found.core,
        writes=found.writes,
        identity=found.identity,
        request=msgspec.json.schema(found.request),
        response=msgspec.json.schema(found.response),
        errors=[ErrorRow(e.code, e.exit, e.retryable, meaning(e)) for e in error_classes(found)],
    )


def find(name: str) -> Operation:
    """Gives an operation by its command or its tool's name; `E_NOT_FOUND` when there is none."""
    if registry.family_of(name) is None:
        for one in registry.everything():
            if one.tool and one.tool == name:
                return one
    return registry.load(name)


def error_classes(found: Operation) -> list[type[RopewalkError]]:
    """Gives every error an operation can answer with: its own, and those of opening a store or reading a request."""
    classes = {*found.errors, errors.InternalError, errors.UsageError, InvalidError, errors.UnsupportedError}
    classes |= {errors.StoreIOError, errors.NoSpaceError}
    if found.store:
        classes |= {NotFoundError, errors.StoreFormatError, errors.StoreCorruptError, errors.BusyError}
    if found.identity:
        classes.add(errors.IdentityRequiredError)
    return sorted(classes, key=lambda c: (c.exit, c.code))


def meaning(error: type[RopewalkError]) -> str:
    """Gives the sentence that describes an error class."""
    return " ".join((error.__doc__ or "").split("\n\n")[0].split())


class ConfigRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes whether to say where values come from."""

    origin: Annotated[bool, Meta(description="say where each value comes from")] = False


class SettingRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one setting with its present value; `origin` is flag, environment, file or default."""

    name: str
    type: str
    value: str | float | bool | None
    variable: str
    purpose: str
    flag: str | None = None
    origin: str | None = None


class ConfigResponse(msgspec.Struct, frozen=True):
    """Is the settings."""

    settings: list[SettingRow]


@operation(
    "config show",
    request=ConfigRequest,
    response=ConfigResponse,
    summary="Show the settings and their values",
    store=False,
)
def config_show(ctx: Context, req: ConfigRequest) -> ConfigResponse:
    """Gives the settings as they hold for this call, those of the store's `run.toml` among them."""
    rows, values = [], crew.settings(ctx)
    for setting in config.SETTINGS:
        found = values[setting.name]
        rows.append(
            SettingRow(
                setting.name,
                setting.type,
                found.value,
                setting.variable,
                setting.purpose,
                setting.flag,
                found.origin if req.origin else None,
            )
        )
    return ConfigResponse(rows)
