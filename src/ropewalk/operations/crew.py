"""Who does the work of a request: the harness it names, the cage its lanes get, and the endpoints they may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from ropewalk.core.errors import (
    AdapterMismatchError,
    CageUnavailableError,
    HarnessError,
    InvalidError,
    LoginError,
    LoginUncagedError,
    NotFoundError,
    ProviderError,
    RopewalkError,
)
from ropewalk.operations import checking
from ropewalk.operations.context import Context
from ropewalk.store.layout import workspace_mark

if TYPE_CHECKING:
    from ropewalk.core.config import Value
    from ropewalk.gateway.settings import Tape, Upstream
    from ropewalk.lane.adapter import Adapter
    from ropewalk.lane.cage.room import Level
    from ropewalk.lane.cage.watch import Watch
    from ropewalk.lane.routing import Table
    from ropewalk.plan.task import Task
    from ropewalk.run.staff import Staff
    from ropewalk.run.turn import Ways
    from ropewalk.run.usual import Usual

LANES = (HarnessError, AdapterMismatchError, CageUnavailableError, LoginUncagedError, LoginError, ProviderError)
"""Are the errors of whatever starts lanes."""

ROUTE = "route"
"""Is the name of a harness that stands for those of the user's routes."""

Harness = Annotated[str, Meta(max_length=4096, description="claude, codex, …, several with commas between, or `route`")]
Command = Annotated[
    str, Meta(max_length=100_000, description="the agent program: it reads the prompt on standard input")
]
Cage = Annotated[str, Meta(max_length=20, description="full, files or none")]
Record = Annotated[
    str, Meta(min_length=1, max_length=4096, description="a new folder, or file.jsonl, for its model traffic")
]
Replay = Annotated[str, Meta(min_length=1, max_length=4096, description="play a cassette, and reach no model")]
Budget = Annotated[float, Meta(ge=0, le=1e6, description="how many dollars all of it may cost")]
MaxTokens = Annotated[int, Meta(ge=1, le=10**12, description="how many tokens all of it may use")]
PassEnv = Annotated[list[str], Meta(max_length=100, description="a variable that agents get from your environment")]


def staff(
    ctx: Context, harness: str | None, command: str | None, otherwise: str = "", *, model: str = "", effort: str = "",
    task_class: str = "",
) -> Staff:  # fmt: skip
    """Gives the agent programs that a request names: one, several with commas between, or those of the user's routes.

    A model or a class without a program has its route's. `E_HARNESS` when a program is not installed, `E_INVALID` when
    nothing says who does the tasks.
    """
    from ropewalk.run.staff import Staff

    table = routes(ctx)
    if task_class and task_class not in table.classes:
        raise InvalidError(f"there is no class of tasks {task_class!r}", hint=", ".join(sorted(table.classes)))
    by_route = harness == ROUTE or (not harness and command is None and bool(model or task_class))
    if not by_route:
        name = harness or ("command" if command is not None else otherwise)
        named = [name] if ":" in name else [one.strip() for one in name.split(",")]
        found = tuple(adapter(ctx, one, command) for one in dict.fromkeys(named))
        return Staff(found, table, model, effort, task_class)
    if command is not None:
        raise InvalidError("a command goes with the harness `command` alone")
    first = [adapter(ctx, _routed(table, model, task_class), None)] if model or task_class else []
    here = {one.name: one for one in (*first, *_installed(ctx, table))}
    return Staff(tuple(here.values()), table, model, effort, task_class, by_route=True)


def _routed(table: Table, model: str, task_class: str) -> str:
    from ropewalk.lane.routing import route

    return route(table, model=model, task_class=task_class).harness


def _installed(ctx: Context, table: Table) -> list[Adapter]:
    """Gives the programs that are installed, those that the user's routes lead to first; `E_HARNESS` when none is."""
    from ropewalk.lane import routing
    from ropewalk.lane.programs import registry

    named, found = list(dict.fromkeys([*routing.harnesses(table), *registry.PROGRAMS])), []
    for name in named:
        try:
            one = registry.get(name)
        except RopewalkError:
            continue  # `rw doctor` names it, and so does a task that is meant for it
        if shutil.which(one.program, path=_search(ctx)) is not None:
            found.append(one)
    if not found or (found[0].name == "scripted" != named[0] and len(found) == 1):
        hint = "`rw doctor` says more; `rw setup` asks who is to do it"
        raise HarnessError(f"none of {', '.join(named)} is installed", hint=hint)
    return found


def is_routed(task: Task) -> bool:
    """Says whether a task names by what its program is to be chosen."""
    return bool(task.harness or task.model or task.class_)


def check(ctx: Context, used: Staff, tasks: Sequence[Task]) -> None:
    """Raises for a task that none of the programs does: `E_HARNESS` where its route's is not installed."""
    for task in tasks:
        if used.pick(harness=task.harness, model=task.model, task_class=task.class_, effort=task.effort) is not None:
            continue
        wanted = task.harness or _routed(used.table, task.model or used.model, task.class_ or used.task_class)
        if used.by_route:
            adapter(ctx, wanted, None)
        raise InvalidError(f"{task.id} is for {wanted}, and these do the tasks: {used.names}", task=task.id)


def routes(ctx: Context) -> Table:
    """Gives the user's routes over ropewalk's own."""
    from ropewalk.lane import routing

    return routing.read(os.path.join(config_folder(ctx), routing.FILE))


def adapter(ctx: Context, harness: str | None, command: str | None, otherwise: str = "") -> Adapter:
    """Gives the adapter that a request names; `E_HARNESS` when its program is not installed."""
    from ropewalk.lane.programs import registry

    name = harness or ("command" if command is not None else otherwise)
    if not name:
        raise InvalidError("who does the tasks?", hint="give --command 'PROGRAM ARGS', --harness NAME, or --model NAME")
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


def level(ctx: Context, used: Sequence[Adapter], asked: str | None) -> Level:
    """Gives the level of a request's lanes; `E_CAGE_UNAVAILABLE` when it can't be had here.

    Nobody gets less than the full cage without asking for it, except the scripted agent: it does what its script says.
    """
    from ropewalk.lane.cage import levels

    named = asked or str(ctx.settings["cage"].value or "")
    found: Level | None = next((one for one in levels.LEVELS if one == named), None)
    if named and found is None:
        raise InvalidError(f"there is no cage {named!r}", hint="full, files or none", cage=named)
    if found is None and all(one.name == "scripted" for one in used):
        return "none"
    return levels.choose(found or "full")


def ways(
    ctx: Context, used: Staff, *, cage: str | None = None, pass_env: Sequence[str] = (),
    tape: Mapping[str, str] | None = None, budget: float | None = None, max_tokens: int | None = None,
    only: Sequence[str] = (),
) -> Ways:  # fmt: skip
    """Gives how a request's lanes are made; `E_CAGE_UNAVAILABLE` where a cassette is to be played in less than all.

    `only` are the endpoints that they use, in their order; without any, all that there are.
    """
    from ropewalk.gateway import endpoints
    from ropewalk.gateway.spending import Bounds
    from ropewalk.run.turn import Ways

    missing = [name for name in pass_env if name not in ctx.env]
    if missing:
        raise InvalidError(f"the environment has no {missing[0]}", variables=missing)
    proxied = any(one.wires for one in used.adapters)
    held = level(ctx, used.adapters, cage)
    upstreams = reached(ctx, only) if proxied and (tape or {}).get("mode") != "replay" else {}
    bounds = endpoints.bounds(config_folder(ctx)) if proxied else Bounds()
    used_tape, dates = _dated(tape, held if proxied else "full")
    is_asked = any(one.name != "scripted" for one in used.adapters) or cage or ctx.settings["cage"].value
    return Ways(
        held, gateway=gateway_folder(ctx), upstreams=upstreams,
        extra={name: ctx.env[name] for name in pass_env} | dates,
        watch=_watch(ctx) if held != "full" and is_asked else None, checks=checking.caged(ctx, held), tape=used_tape,
        budget=bounds.of_run(budget, max_tokens), caps=bounds.caps(),
    )  # fmt: skip


def tape(ctx: Context, record: str | None, replay: str | None) -> dict[str, str] | None:
    """Gives the cassette that a request names, None without one; one to record in is there from now on.

    `E_INVALID` for one to record in that holds recordings already, `E_NOT_FOUND` for one to play that is none.
    """
    from ropewalk.gateway import cassette

    if record is not None and replay is not None:
        raise InvalidError("--record or --replay, not both")
    if record is None and replay is None:
        return None
    path = ctx.path(record or replay or "")
    if record is not None:
        cassette.begin(path)
    else:
        cassette.opened(path)
    return {"mode": "replay" if record is None else "record", "path": path}


def _dated(asked: Mapping[str, str] | None, held: Level) -> tuple[Tape | None, dict[str, str]]:
    """Gives a cassette, and the variables by which commits of its lanes are the same in every run."""
    from ropewalk.gateway import cassette
    from ropewalk.gateway.settings import Tape

    if asked is None:
        return None, {}
    if asked["mode"] == "replay" and held != "full":
        raise CageUnavailableError(
            f"a cassette is played in a full cage alone, and this one is {held!r}",
            hint="ask for the level full, or play no cassette", level=held,
        )  # fmt: skip
    date = f"{cassette.opened(asked['path']).at} +0000"
    found = Tape("replay" if asked["mode"] == "replay" else "record", asked["path"])
    return found, {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}


def _watch(ctx: Context) -> Watch | None:
    """Gives the tripwire around the user's checkout: that of the store, else the one the caller stands in."""
    if not ctx.settings["tripwire"].value:
        return None
    from ropewalk.lane.cage import watch
    from ropewalk.workspace import setup

    ours = [os.path.join(ctx.data_home, "ropewalk")]
    folders = [] if workspace_mark(ctx.cwd) is not None else [ctx.cwd]
    try:
        ours.append(ctx.root)
        folders.insert(0, setup.operator_folder(ctx.root))
    except NotFoundError:
        pass  # the store of a board elsewhere is made later
    checkout = watch.checkout_of([one for one in folders if one not in ours])
    return None if checkout is None else watch.Watch(checkout, watch.home(ours[0], checkout), ours)


def usual(ctx: Context) -> Usual:
    """Gives what runs do where their command says nothing: by variables, else by `run.toml` of the store."""
    from ropewalk.run import usual as of_store

    return of_store.of_settings(settings(ctx))


def settings(ctx: Context) -> dict[str, Value]:
    """Gives the settings that are in force, those of the store's own file among them where there is a store."""
    from ropewalk.core import config
    from ropewalk.run import usual as of_store

    try:
        said = of_store.settings(of_store.read(ctx.root))
    except NotFoundError:
        said = {}
    return config.over_file(ctx.settings, said)


def reached(ctx: Context, only: Sequence[str] = ()) -> dict[str, Upstream]:
    """Gives the user's endpoints: those that are named, in that order, else all; `E_NOT_FOUND` for one that is none."""
    from ropewalk.gateway import endpoints

    known = endpoints.read(config_folder(ctx), ctx.env)
    missing = [name for name in only if name not in known]
    if missing:
        raise NotFoundError(
            f"there is no endpoint {missing[0]!r} any more" if known else f"there is no endpoint {missing[0]!r}",
            hint=f"`rw setup` asks for endpoints anew; endpoints.toml has {', '.join(known) or 'none'}",
        )  # fmt: skip
    return {name: known[name] for name in only} or known


def config_folder(ctx: Context) -> str:
    """Gives the folder of this user's endpoints and routes."""
    return os.path.join(ctx.config_home, "ropewalk")


def gateway_folder(ctx: Context) -> str:
    """Gives the folder of the gateway that this user's lanes share."""
    return os.path.join(ctx.data_home, "ropewalk", "gateway")


def _search(ctx: Context) -> str:
    return ctx.env.get("PATH") or os.defpath
