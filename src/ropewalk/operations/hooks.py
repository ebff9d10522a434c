"""Hooks of agent programs that make and remove folders to work in: what to configure, and what they then call."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    CheckFailedError,
    InvalidError,
    NotFoundError,
    UnlandedWorkError,
    WorkspaceDamagedError,
    WorkspaceNotMountedError,
)
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.workspace import WsCreateRequest, WsDeleteRequest, ws_create, ws_delete
from ropewalk.store import layout
from ropewalk.workspace import state

_NAMES = ("name", "worktree_name", "branch_name")
_STARTS = ("source_ref", "base_commit", "base_ref")
_SECONDS = 600


class WsHookRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what to do, and what the agent program wrote to the hook."""

    action: Annotated[
        Literal["config", "create", "remove"],
        Meta(description="config: print settings; else what a hook calls"),
    ]
    input: Annotated[dict[str, Any], Meta(description="what the program gives its hook, as JSON")] | None = None


class WsHooked(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the settings to add, or the folder that was made or removed."""

    settings: dict[str, Any] | None = None
    path: str | None = None
    removed: bool | None = None


@operation(
    "ws hook",
    tool="",
    request=WsHookRequest,
    response=WsHooked,
    summary="Let Claude Code work in workspaces: settings for its worktree hooks, and what these call",
    errors=(InvalidError, NotFoundError, BusyError, CheckFailedError, UnlandedWorkError, WorkspaceDamagedError,
            WorkspaceNotMountedError),
    writes=True,
    identity=False,
    command=Command(positional=("action",), files=("input",)),
)  # fmt: skip
def ws_hook(ctx: Context, req: WsHookRequest) -> WsHooked:
    """Answers a hook; a workspace that holds unlanded work is kept, which is `E_UNLANDED`.

    The program takes any other end for a removal, and tells the agent that its work is gone.
    """
    if req.action == "config":
        return WsHooked(settings=_settings(ctx.root))
    given = req.input
    if given is None:
        raise InvalidError("the hook was given nothing", hint="pass what the program wrote with --input -")
    return _create(ctx, given) if req.action == "create" else _remove(ctx, given)


def _settings(root: str) -> dict[str, Any]:
    from shlex import quote

    def hook(action: str) -> list[dict[str, Any]]:
        line = f"rw --store {quote(root)} ws hook {action} --input - --human"
        return [{"hooks": [{"type": "command", "command": line, "timeout": _SECONDS}]}]

    return {"hooks": {"WorktreeCreate": hook("create"), "WorktreeRemove": hook("remove")}}


def _text(given: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if isinstance(value := given.get(name), str) and value), None)


def _create(ctx: Context, given: dict[str, Any]) -> WsHooked:
    wanted = _text(given, _NAMES)
    if wanted is None:
        raise InvalidError("the hook names no worktree", hint=f"its input should hold {_NAMES[0]!r}")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", wanted).strip("-_")[:80] or "agent"
    ctx.adopt_agent(f"claude/{name.lower()}")
    made = ws_create(ctx, WsCreateRequest(name=name, from_=_text(given, _STARTS)))
    return WsHooked(path=made.path)


def _remove(ctx: Context, given: dict[str, Any]) -> WsHooked:
    path = _text(given, ("worktree_path",))
    if path is None:
        raise InvalidError("the hook names no folder", hint="its input should hold 'worktree_path'")
    real = os.path.realpath(ctx.path(path))
    found = next((ws for ws in state.listed(ctx.store) if os.path.realpath(ws.path) == real), None)
    if found is None:
        mark = layout.workspace_mark(real) if os.path.isdir(real) else None
        raise NotFoundError(
            f"{path} is no workspace of this store", hint="list them with `rw ws list`",
            store=mark.store if mark is not None else None,
        )  # fmt: skip
    ctx.adopt_agent(found.agent)
    ws_delete(ctx, WsDeleteRequest(name=found.name))
    return WsHooked(path=found.path, removed=True)
