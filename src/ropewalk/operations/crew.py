"""Who does the work of a request: the harness it names, the cage its lanes get, and the endpoints they may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from ropewalk.core.errors import HarnessError, InvalidError
from ropewalk.operations.context import Context

if TYPE_CHECKING:
    from ropewalk.lane.adapter import Adapter
    from ropewalk.lane.cage.room import Level
    from ropewalk.run.turn import Ways

Harness = Annotated[str, Meta(max_length=4096, description="claude, codex, command, scripted, …")]
Command = Annotated[
    str, Meta(max_length=100_000, description="the agent program: it reads the prompt on standard input")
]
Cage = Annotated[str, Meta(max_length=20, description="full, files or none")]
PassEnv = Annotated[list[str], Meta(max_length=100, description="a variable that agents get from your environment")]


def adapter(ctx: Context, harness: str | None, command: str | None, otherwise: str = "") -> Adapter:
    """Gives the adapter that a request names; `E_HARNESS` when its program is not installed."""
    from ropewalk.lane.programs import registry

    name = harness or ("command" if command is not None else otherwise)
    if not name:
        raise InvalidError("who does the tasks?", hint="give --command 'PROGRAM ARGS', or --harness NAME")
    if name == "command":
        if command is None:
            raise InvalidError("the command harness needs a command", hint="give --command 'PROGRAM ARGS'")
        name = f"command:{command}"
    elif command is not None:
        raise InvalidError("a command goes with the harness `command` alone")
    found = registry.get(name)
    if shutil.which(found.program, path=_search(ctx)) is None:
        raise HarnessError(f"the program {found.program!r} is not installed", hint=found.install, program=found.program)
    return found


def level(ctx: Context, used: Adapter, asked: str | None) -> Level:
    """Gives the level of a request's lanes; `E_CAGE_UNAVAILABLE` when it can't be had here.

    Nobody gets less than the full cage without asking for it, except the scripted agent: it does what its script says.
    """
    from ropewalk.lane.cage import levels

    named = asked or str(ctx.settings["cage"].value or "")
    found: Level | None = next((one for one in levels.LEVELS if one == named), None)
    if named and found is None:
        raise InvalidError(f"there is no cage {named!r}", hint="full, files or none", cage=named)
    if found is None and used.name == "scripted":
        return "none"
    return levels.choose(found or "full")


def ways(
    ctx: Context, used: Adapter, *, cage: str | None = None, pass_env: Sequence[str] = (), model: str = "",
    effort: str = "",
) -> Ways:  # fmt: skip
    """Gives how a request's lanes are made."""
    from ropewalk.gateway import endpoints
    from ropewalk.run.turn import Ways

    missing = [name for name in pass_env if name not in ctx.env]
    if missing:
        raise InvalidError(f"the environment has no {missing[0]}", variables=missing)
    upstreams = endpoints.read(config_folder(ctx), ctx.env) if used.wires else {}
    return Ways(
        level(ctx, used, cage), gateway=gateway_folder(ctx), upstreams=upstreams,
        extra={name: ctx.env[name] for name in pass_env}, model=model, effort=effort,
    )  # fmt: skip


def config_folder(ctx: Context) -> str:
    """Gives the folder of this user's endpoints and routes."""
    return os.path.join(ctx.config_home, "ropewalk")


def gateway_folder(ctx: Context) -> str:
    """Gives the folder of the gateway that this user's lanes share."""
    return os.path.join(ctx.data_home, "ropewalk", "gateway")


def _search(ctx: Context) -> str:
    return ctx.env.get("PATH") or os.defpath
