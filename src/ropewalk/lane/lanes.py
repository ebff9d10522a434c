"""A lane from its wish to its result: cage, gateway, journal and supervision put together."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import LoginUncagedError
from ropewalk.gateway import endpoints, host, ledger
from ropewalk.gateway.prices import NOTHING
from ropewalk.gateway.settings import Lane as Admitted
from ropewalk.gateway.settings import Upstream
from ropewalk.lane import journal, supervisor
from ropewalk.lane.adapter import Adapter, Event, McpServer
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import Level, Network, Room
from ropewalk.lane.journal import Ingredients, Record, Result
from ropewalk.lane.order import Order
from ropewalk.lane.processes import started
from ropewalk.lane.supervisor import LaneResult, Supervised
from ropewalk.lane.waits import Limits, State, Waits
from ropewalk.store.store import Store

_VERSION_SECONDS = 30.0


class Wish(NamedTuple):
    """Is what is wanted of a lane.

    `folder` gets its files, `workspace` is its tree and `repo` the name that the tree has inside the cage. `upstreams`
    are the user's endpoints, of which `named` are the ones to use (none: all that fit). `base` is the tree it starts
    from, `gateway` the gateway's folder.
    """

    id: str
    agent: str
    adapter: Adapter
    prompt: str
    workspace: str
    repo: str
    folder: str
    gateway: str
    search: str
    caller: Mapping[str, str]
    run: str = ""
    task: str = ""
    attempt: int = 1
    level: Level = "full"
    network: Network = "gateway"
    model: str = ""
    effort: str = ""
    upstreams: Mapping[str, Upstream] = {}
    named: Sequence[str] = ()
    session: str | None = None
    servers: Sequence[McpServer] = ()
    extra: Mapping[str, str] = {}
    limits: Limits = Limits()
    waits: Waits = Waits()
    script: Any = None
    base: str = ""
    schema: str = ""
    check: str = ""
    environment: str = ""
    sample: int = 0


class Outcome(NamedTuple):
    """Is what became of a lane: the supervisor's account and the journal's result."""

    lane: LaneResult
    result: Result


@lru_cache(maxsize=64)
def _version_of(path: str, stamp: tuple[int, int]) -> str:
    env = {"PATH": f"{os.path.dirname(path)}:{os.defpath}", "HOME": "/nonexistent"}
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_SECONDS, env=env
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")[:2000]


def version(adapter: Adapter, search: str) -> str:
    """Gives the version of an installed program; empty when it can't be told."""
    import shutil

    path = shutil.which(adapter.program, path=search) if adapter.program else None
    if path is None or adapter.program == sys.executable:
        return ""
    found = os.stat(os.path.realpath(path))
    return adapter.version(_version_of(os.path.realpath(path), (found.st_size, found.st_mtime_ns)))


def key(wish: Wish) -> tuple[str, Ingredients]:
    """Gives the key of a wish's result and what went into it."""
    fit = endpoints.fitting(wish.upstreams, wish.adapter.wires, wish.named)
    adapter = wish.adapter
    what = Ingredients(
        adapter.name, "/".join(adapter.tested), "" if adapter.name == "command" else version(adapter, wish.search),
        wish.model, wish.upstreams[fit[0]].url if fit else "", wish.effort, wish.prompt, wish.base, wish.level,
        wish.network, schema=wish.schema, check=wish.check, environment=wish.environment,
        tools=tuple(one.name for one in wish.servers), sample=wish.sample,
        options=(repr(wish.limits.turns), msgspec.json.encode(wish.script).decode() if wish.script is not None else ""),
    )  # fmt: skip
    return journal.key(what), what


def run(
    store: Store,
    wish: Wish,
    *,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[Event], None] = lambda event: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Outcome:
    """Runs a lane to its end and gives what became of it; none of its processes is left when this returns.

    Raises `E_HARNESS`, `E_CAGE_UNAVAILABLE`, `E_LOGIN_UNCAGED` and `E_PROVIDER` before anything is started, and
    `E_ADAPTER_MISMATCH` when the program refuses how it is started.
    """
    hashed, what = key(wish)
    fit = endpoints.fitting(wish.upstreams, wish.adapter.wires, wish.named)
    if not fit and wish.adapter.wires and wish.level != "none" and wish.adapter.name != "command":
        raise LoginUncagedError(
            f"no endpoint for {wish.adapter.name} is known, and its own login does not go into a cage",
            harness=wish.adapter.name, wires=list(wish.adapter.wires),
        )  # fmt: skip
    token, port = "", 0
    if fit:
        port = host.ensure(wish.gateway).port
        admitted = Admitted(wish.id, wish.run, wish.task, wish.adapter.name, tuple(fit), wish.limits.requests,
                            {name: tuple(paths) for name, paths in wish.adapter.volatile.items()})  # fmt: skip
        token = host.admit(wish.gateway, admitted, {name: wish.upstreams[name] for name in fit})
    session = wish.session
    new_session = "" if session else str(uuid.uuid4())
    record = Record(
        wish.id, hashed, wish.run, wish.task, wish.attempt, wish.agent, what, wish.folder, wish.workspace, clock.now(),
        round(clock.monotonic(), 3), clock.boot_id(), session=session,
    )  # fmt: skip
    journal.begin(store, record)
    order = Order(
        wish.id, wish.agent, wish.adapter, wish.prompt, wish.workspace, wish.folder, wish.level, wish.search,
        wish.caller, _room(store, wish, bool(token)) if wish.level != "none" else None, wish.model, wish.effort,
        session, new_session, wish.servers, wish.gateway if token else "", token, port, wish.extra, wish.limits,
        wish.waits, wish.script,
    )  # fmt: skip
    lane: LaneResult | None = None
    try:
        supervised = Supervised(order, tell)
        supervised.start()
        pid = supervised.pid
        journal.set_process(store, wish.id, pid, started(pid), clock.boot_id())
        lane = supervised.wait(stop, meanwhile=meanwhile)
    finally:
        if lane is None:
            supervisor.end(wish.folder)
            journal.finish(store, wish.id, _result(wish, "failed", "it could not be started or followed", token))
        if token:
            host.dismiss(wish.gateway, token)
    return Outcome(lane, journal.finish(store, wish.id, _result(wish, lane.state, lane.reason, token, lane)))


def _room(store: Store, wish: Wish, bridged: bool) -> Room:
    """Gives the room of a caged lane."""
    tools = rooms.tool_folders(wish.adapter.program, wish.search)
    if wish.adapter.program == sys.executable:
        import ropewalk

        tools += [os.path.realpath(sys.prefix), os.path.dirname(os.path.dirname(os.path.abspath(ropewalk.__file__)))]
    uid = rooms.UID if os.geteuid() == 0 else None
    return Room(
        wish.workspace, wish.repo, os.path.join(wish.folder, "home"), os.path.join(wish.folder, "tmp"),
        os.path.join(store.layout.repo, "objects"), tuple(dict.fromkeys(tools)),
        os.path.join(wish.gateway, "door") if bridged else "", "", wish.network, uid,
    )  # fmt: skip


def _result(wish: Wish, state: State, reason: str, token: str, lane: LaneResult | None = None) -> Result:
    """Gives the journal's result: what the gateway counted goes before what the program says of itself."""
    seen = ledger.read_activity(os.path.join(wish.gateway, "activity"), wish.id) if token else None
    account = lane.ending if lane is not None else None
    tokens = seen.tokens if seen is not None and seen.requests else account.tokens if account is not None else None
    cost = seen.cost if seen is not None else NOTHING
    costs_nothing = not wish.adapter.wires
    return Result(
        state, reason, account.text if account else "", round(lane.seconds, 3) if lane else 0.0, tokens,
        cost.dollars if token else 0.0 if costs_nothing else None, cost.mark if token else "" if costs_nothing else "*",
        account.turns if account else 0, lane.tools if lane else 0, wish.level,
        lane.exit.code if lane is not None and lane.exit is not None else None, account.session if account else None,
        account.denied if account else 0, requests=seen.requests if seen is not None else 0,
    )  # fmt: skip
