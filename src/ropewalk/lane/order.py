"""Orders: what a lane is to do and with what, and the files that its shim starts from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ropewalk.core.errors import CageUnavailableError, HarnessError, InvalidError, os_error
from ropewalk.lane.adapter import Adapter, Endpoint, Launch, McpServer, Start
from ropewalk.lane.cage import give, levels
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import HOME, Level, Room
from ropewalk.lane.waits import Limits, Waits
from ropewalk.workspace.files import Files

PROMPT = "prompt.md"
MOST = 10_000_000
"""Is how long a prompt may be, in bytes."""


class Order(NamedTuple):
    """Is one lane: its id (`run/task/attempt`), its agent, and everything it is started with.

    `folder` is the lane's own on the host: streams, records and `home` are in it. `search` is the PATH it gets, and
    `extra` further variables; `caller` is the environment of whoever asks, of which an allow-list goes on. `files` are
    put into its home. `gateway` is the gateway's folder, with `token` for this lane; without one the program reaches
    its provider by itself. `named` are the name and the address of its commits, the agent's own without them.
    `login` says that the gateway sends by the program's own login, `window` how many tokens its endpoints bear.
    """

    id: str
    agent: str
    adapter: Adapter
    prompt: str
    workspace: str
    folder: str
    level: Level
    search: str
    caller: Mapping[str, str]
    room: Room | None = None
    model: str = ""
    effort: str = ""
    session: str | None = None
    new_session: str = ""
    servers: Sequence[McpServer] = ()
    gateway: str = ""
    token: str = ""
    port: int = 0
    extra: Mapping[str, str] = {}
    limits: Limits = Limits()
    waits: Waits = Waits()
    script: Any = None
    files: Mapping[str, bytes] = {}
    named: tuple[str, str] = ("", "")
    login: bool = False
    window: int = 0


class Prepared(NamedTuple):
    """Is an order as it was written into the lane's folder."""

    argv: list[str]
    env: dict[str, str]
    launch: Launch


def prepare(order: Order) -> Prepared:
    """Writes what a lane's shim starts from; nothing is started.

    Raises `E_HARNESS` when the program is missing, `E_CAGE_UNAVAILABLE`, and `E_INVALID` for a prompt that is too long.
    """
    text = order.prompt.encode("utf-8", "surrogatepass")
    if len(text) > MOST:
        raise InvalidError(f"the prompt is longer than {MOST // 1_000_000} MB", size=len(text))
    adapter = order.adapter
    full = order.level == "full"
    caged = order.level != "none"
    if caged and order.room is None:
        raise InvalidError("a cage needs a room")
    home = os.path.join(order.folder, "home")
    inside = HOME if full else home
    program = shutil.which(adapter.program, path=order.search) if adapter.program else None
    if adapter.program and program is None:
        raise HarnessError(f"{adapter.program!r} is not installed", hint=adapter.install, program=adapter.program)
    program = os.path.abspath(program) if program else None
    if order.level == "files" and order.room is not None:
        _check_reachable(order.room, program or "")
    workspace = order.room.inside if full and order.room else order.workspace
    is_root = os.geteuid() == 0 and not (caged and order.room is not None and order.room.uid is not None)
    start = Start(
        order.prompt, f"{inside}/{PROMPT}", workspace, inside, _endpoint(order), order.model, order.effort,
        order.limits.turns, order.session, order.new_session, order.servers, is_root, order.script,
    )  # fmt: skip
    launch = adapter.launch(start)
    room = order.room or Room(order.workspace, "", home, os.path.join(order.folder, "tmp"), "", network="open")
    search = order.search
    env = rooms.environment(room, order.level, order.caller, search) | {
        "ROPEWALK_AGENT": order.agent, "ROPEWALK_LANE": order.id, **rooms.identity(order.agent, *order.named),
    }  # fmt: skip
    env |= {**launch.env, **order.extra}
    words = [program if program and launch.argv[0] == adapter.program else launch.argv[0], *launch.argv[1:]]
    try:
        for path in (order.folder, home, room.tmp):
            os.makedirs(path, mode=0o700, exist_ok=True)
        with Files(home) as files:
            # a home that was used before is the agent's, links in it among what it left
            for name, data in {**launch.files, **order.files, PROMPT: text}.items():
                files.put(os.fsencode(name), data, mode=0o600)
        _put(os.path.join(order.folder, "stdin"), launch.stdin)
        if caged and room.uid is not None:
            give.open_objects(room.objects)
            for path in (room.workspace, home, room.tmp):
                give.give(path, room.uid)
            if not full:
                os.chmod(order.folder, 0o711)  # its home is reached through it; its files are closed to all
        argv = levels.argv(order.level, room, words, None, order.port if order.token else 0)
        record = {
            "argv": argv, "env": env, "cwd": "/" if full else order.workspace,
            "stdin": os.path.join(order.folder, "stdin"), "keep_open": launch.keep_open, "subreaper": not full,
            "lane": order.id, "agent": order.agent, "harness": adapter.name, "level": order.level,
            "landlock": levels.landlock_abi() if order.level == "files" else 0,
        }  # fmt: skip
        _put(os.path.join(order.folder, "launch.json"), msgspec.json.encode(record))
    except OSError as error:
        raise os_error(error, "making a lane's files") from None
    return Prepared(argv, env, launch)


def _check_reachable(room: Room, program: str) -> None:
    """Raises where the lane's user does not get to what it needs: this level has the host's own paths (G7)."""
    for path in (program, room.workspace):
        if path and room.uid is not None and not rooms.is_reachable(path, room.uid):
            raise CageUnavailableError(
                f"at level files the lane's user does not get to {path}",
                hint="let all enter the folders above it (chmod o+x), or use the full cage, which mounts it",
                level="files", path=path,
            )  # fmt: skip


def _endpoint(order: Order) -> Endpoint | None:
    if not order.token or not order.adapter.wires:
        return None
    bridged = order.level == "full" and order.room is not None and order.room.network == "gateway"
    port = rooms.BRIDGE_PORT if bridged else order.port
    return Endpoint(f"http://127.0.0.1:{port}", order.token, order.adapter.wires[0], order.login, order.window)


def _put(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
