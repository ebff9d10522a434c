"""Doors: how agents inside lanes get at tools, and who they are there.

A door is a folder of the lane's with a socket in it, which a cage binds, and a port on the loopback address for lanes
that no mount holds. It knows the lane by where it comes in and by its token together, so that what is asked through it
is asked by that lane and no other. What the tools do is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import RopewalkError, os_error
from ropewalk.lane.adapter import McpServer
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import Level
from ropewalk.lane.order import Order

SERVER = "ropewalk"
"""Is the name of the server that agents see."""

FOLDER, SOCKET, PROGRAMS = "door", "door.sock", "bin"
ADDRESS, TOKEN = "ROPEWALK_DOOR", "ROPEWALK_DOOR_TOKEN"
"""Are the variables by which the program `rw` inside a lane finds its door."""

_PASS = "door.json"


class Who(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is who asks: a lane, its agent, what it works on, and the lane's folder on the host."""

    lane: str
    agent: str
    folder: str
    run: str = ""
    task: str = ""
    region: str = ""
    target: str = "main"


class Answer(NamedTuple):
    """Is what a tool says: words for the agent, the same as data, and whether it is an error."""

    text: str
    data: Mapping[str, Any] | None = None
    is_error: bool = False


class Tool(Protocol):
    """Is one tool."""

    @property
    def name(self) -> str:
        """Gives its name."""
        ...

    @property
    def description(self) -> str:
        """Gives what it does, in a sentence or two."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """Gives the JSON Schema of what it takes."""
        ...

    @property
    def writes(self) -> bool:
        """Says whether a call changes anything."""
        ...

    def call(self, who: Who, arguments: Mapping[str, Any]) -> Answer:
        """Does it; called by several threads at once. A typed error is the answer where it is raised."""
        ...


class Given(NamedTuple):
    """Is what a lane gets of a door: its token, the folder that a cage binds, the port on the host, and tools' names.

    `folder` has the socket in it, and below `bin` the program `rw`.
    """

    token: str
    folder: str
    port: int
    tools: tuple[str, ...]

    def server(self, port: int) -> McpServer:
        """Gives the server that the agent's program is told of, at the port that the lane has for it."""
        return McpServer(SERVER, f"http://127.0.0.1:{port}/mcp", {"Authorization": f"Bearer {self.token}"}, self.tools)

    def environment(self, port: int) -> dict[str, str]:
        """Gives the variables by which `rw` finds the door."""
        return {ADDRESS: f"http://127.0.0.1:{port}/mcp", TOKEN: self.token}


class Pass(msgspec.Struct, frozen=True):
    """Is what is kept of a lane that was let in, so that a door that starts anew knows it again."""

    token: str
    who: Who


def kept(folder: str) -> Pass | None:
    """Gives the pass that is kept in a lane's folder, None without one."""
    try:
        with open(os.path.join(folder, _PASS), "rb") as file:
            return msgspec.json.decode(file.read(), type=Pass)
    except (OSError, *UNREADABLE):
        return None


def keep(who: Who, token: str) -> Pass:
    """Gives the pass of a lane: the one that is kept in its folder, else a new one with the token, which is kept."""
    path = os.path.join(who.folder, _PASS)
    found = kept(who.folder)
    made = Pass(found.token if found is not None and found.who.lane == who.lane else token, who)
    try:
        os.makedirs(who.folder, mode=0o700, exist_ok=True)
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(msgspec.json.encode(made))
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise os_error(error, "making a lane's door") from None
    return made


def furnish(folder: str, level: Level) -> str:
    """Makes the folder of a lane's door, with the program `rw` for its level, and gives its path."""
    made = os.path.join(folder, FOLDER)
    programs = os.path.join(made, PROGRAMS)
    try:
        for path in (made, programs):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o755)  # the lane's user gets to it, whatever our umask
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "door_client.py")
        with open(source, "rb") as file:
            text = b"#!%s -IS\n" % os.fsencode(_python(level)) + file.read()
        path = os.path.join(programs, "rw")
        with open(f"{path}.new", "wb") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o755)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise os_error(error, "making a lane's door") from None
    return made


def _python(level: Level) -> str:
    """Gives a Python that a lane gets to."""
    own = rooms.python_inside(level == "full")
    if level != "files" or own.startswith("/usr"):
        return own
    # of the host's own paths this level leaves the system's
    return next((path for path in ("/usr/local/bin/python3", "/usr/bin/python3") if os.path.exists(path)), own)


def arranged(order: Order, given: Given) -> Order:
    """Gives an order with a lane's door: a server for its program, and `rw` on its PATH."""
    full = order.level == "full"
    bridged = full and order.room is not None and order.room.network != "open"
    port = rooms.DOOR_PORT if bridged else given.port
    programs = f"{rooms.OURS}/{PROGRAMS}" if full else os.path.join(given.folder, PROGRAMS)
    room = order.room._replace(door=given.folder, door_port=given.port) if order.room is not None else None
    # where the user's own `rw` is in reach, it knows more than this one
    search = [order.search, programs] if order.level == "none" else [programs, order.search]
    extra = {**given.environment(port), "PATH": os.pathsep.join(search), **order.extra}
    return order._replace(room=room, servers=(*order.servers, given.server(port)), extra=extra)


def is_reachable(order: Order) -> bool:
    """Says whether a lane gets to a door at all: where no network is left, level `files` leaves no socket either."""
    return order.level != "files" or order.room is None or order.room.network != "none"


def missing(servers: Iterable[McpServer], offered: Collection[str]) -> list[str]:
    """Gives the tools that an agent was to be offered and was not; programs put the server's name before a tool's."""
    return [
        tool
        for server in servers
        for tool in server.tools
        if not any(name.endswith(tool) and server.name in name for name in offered)
    ]


def failure(error: RopewalkError) -> Answer:
    """Gives the answer that an error is."""
    data: dict[str, Any] = {"code": error.code, "message": error.message, "retryable": error.retryable}
    if error.hint:
        data["hint"] = error.hint
    return Answer(f"{error.code}: {error.message}" + (f" ({error.hint})" if error.hint else ""), data, True)


def listed(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Gives tools as `tools/list` shows them."""
    found = []
    for tool in tools:
        one: dict[str, Any] = {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
        if not tool.writes:
            one["annotations"] = {"readOnlyHint": True}
        found.append(one)
    return found
