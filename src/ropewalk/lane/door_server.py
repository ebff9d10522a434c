"""The server behind doors: the Model Context Protocol over HTTP, answers as JSON, one thread for all lanes of a worker.

It holds no state of a client, so that one that starts anew at the same places goes on where the one before it was.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from ropewalk import __version__
from ropewalk.core import jsonrpc
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import HarnessError, RopewalkError, fault, os_error
from ropewalk.core.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, VERSION, Call, RpcError
from ropewalk.lane import door
from ropewalk.lane.cage.room import Level
from ropewalk.lane.door import Answer, Given, Tool, Who

MOST = 1 << 20
"""Is how long a request may be, in bytes."""

AT_ONCE, WAITING = 2, 32
"""Are how many requests of one lane are worked on at once, and how many may wait behind them."""

CONNECTIONS = 64
"""Is how many connections one lane may have; each takes a descriptor of the worker's, which all lanes need."""

_READ_SECONDS, _START_SECONDS = 30.0, 20.0
_THREADS = 4
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")
_INFO = {"name": door.SERVER, "version": __version__}
_INSTRUCTIONS = (
    "Tools of the run that you are part of. `report_progress` tells people how far you are; `ask_region` and"
    " `request_change` reach those who work on other parts; the others read the store and change nothing."
)
T = TypeVar("T")


class _Lane:
    """Is a lane that was let in: who it is, its token, its own entrance, and what it has on its way."""

    def __init__(self, who: Who, token: str, folder: str) -> None:
        self.who, self.token, self.folder = who, token, folder
        self.turns = asyncio.Semaphore(AT_ONCE)
        self.here = 0
        self.runner: web.ServerRunner | None = None
        self.inode = 0


class _Bounded(web.Server):
    """Is a server that closes connections above a number as they come."""

    def __init__(self, answer: Callable[[BaseRequest], Awaitable[web.StreamResponse]], most: int) -> None:
        super().__init__(answer, access_log=None)
        self._most = most
        self._here = 0  # its own list is of those whose first turn has come; many are made before that

    def __call__(self) -> web.RequestHandler:
        if self._here >= self._most:
            return _Refused()  # type: ignore[return-value]
        self._here += 1
        return super().__call__()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Notes that a connection is gone."""
        self._here -= 1
        super().connection_lost(handler, exc)


class _Refused(asyncio.Protocol):
    """Is a connection that is closed as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes it."""
        transport.close()


class Door:
    """Is the door of one worker, for all its lanes; `folder` is the worker's own, where it notes its port.

    All methods are for threads other than the door's own, any of them.
    """

    def __init__(self, folder: str, tools: Sequence[Tool]) -> None:
        self.folder = folder
        self._tools = {tool.name: tool for tool in tools}
        self._listed = msgspec.Raw(msgspec.json.encode(door.listed(tools)))
        self._lanes: dict[str, _Lane] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="door")
        self._loop = asyncio.new_event_loop()
        self._open: web.ServerRunner | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._serve, name="door", daemon=True)
        self._thread.start()
        try:
            self.port = self._do(self._begin())
        except RopewalkError:
            self._stop()
            raise

    # for the worker

    @property
    def names(self) -> tuple[str, ...]:
        """Gives the names of the tools."""
        return tuple(self._tools)

    def admit(self, who: Who, level: Level = "full") -> Given:
        """Lets a lane in, before it is started or when it is adopted; a lane that was in keeps its token."""
        kept = door.keep(who, "rwd_" + secrets.token_urlsafe(24))
        folder = door.furnish(who.folder, level)
        self._do(self._admit(_Lane(who, kept.token, folder)))
        return Given(kept.token, folder, self.port, self.names)

    def resume(self, folder: str, level: Level = "full") -> None:
        """Lets a lane in again that another door let in, by the pass in its folder; one without a pass stays out."""
        kept = door.kept(folder)
        if kept is not None:
            self.admit(msgspec.structs.replace(kept.who, folder=folder), level)

    def dismiss(self, lane: str) -> None:
        """Lets a lane out: its token is no one's from now on. A door that is closed has let all out."""
        if not self._loop.is_closed():
            self._do(self._dismiss(lane))

    def check(self, given: Given) -> None:
        """Asks for the tools as a lane would, at both entrances; `E_HARNESS` where one does not answer with all."""
        for there in (os.path.join(given.folder, door.SOCKET), given.port):
            try:
                names = _offered(there, given.token)
            except (OSError, ValueError, *UNREADABLE) as error:
                names, why = set(), f"{type(error).__name__}: {error}"
            else:
                why = "some are not listed"
            if lost := [name for name in given.tools if name not in names]:
                raise HarnessError(f"tools_missing: the lane's tools are not served: {why}", hint="", tools=lost)

    def close(self) -> None:
        """Stops; calls that run come to their ends first. Once is enough."""
        if not self._loop.is_closed():
            self._do(self._end())
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)
        self._pool.shutdown(wait=True)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_SECONDS)
        except OSError as error:
            raise os_error(error, "the door of lanes") from None

    # its thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _begin(self) -> int:
        """Opens the port for lanes that no mount holds: the one that the folder names, where it is free."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        noted = os.path.join(self.folder, "door.port")
        try:
            with open(noted, encoding="ascii") as file:
                wanted = int(file.read(16))
        except (OSError, ValueError):
            wanted = 0
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(("127.0.0.1", wanted))
        except OSError:
            made.bind(("127.0.0.1", 0))
        self._open = await self._listen(made, None)
        port: int = made.getsockname()[1]
        with open(f"{noted}.new", "w", encoding="ascii") as file:
            file.write(str(port))
        os.replace(f"{noted}.new", noted)
        return port

    async def _listen(self, made: socket.socket, lane: _Lane | None) -> web.ServerRunner:
        async def answer(request: BaseRequest) -> web.StreamResponse:
            return await self._answer(request, lane)

        server = _Bounded(answer, CONNECTIONS if lane is not None else CONNECTIONS * 8)
        runner = web.ServerRunner(server, shutdown_timeout=2)
        await runner.setup()
        await web.SockSite(runner, made, backlog=128).start()
        return runner

    async def _admit(self, lane: _Lane) -> None:
        await self._dismiss(lane.who.lane)
        folder = os.open(lane.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        new = f"{door.SOCKET}.{os.getpid()}"
        try:
            try:
                os.unlink(new, dir_fd=folder)
            except FileNotFoundError:
                pass
            made.bind(f"/proc/self/fd/{folder}/{new}")  # the folder's path may be too long for a socket
            os.chmod(new, 0o666, dir_fd=folder)  # whoever is let into the folder may speak
            made.listen(128)
            lane.inode = os.stat(new, dir_fd=folder).st_ino
            lane.runner = await self._listen(made, lane)
            # there is a socket at its place at every moment, this one or the one before
            os.rename(new, door.SOCKET, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            made.close()
            raise
        finally:
            os.close(folder)
        self._lanes[lane.who.lane] = lane

    async def _dismiss(self, name: str, *, gone: bool = True) -> None:
        lane = self._lanes.pop(name, None)
        if lane is None:
            return
        path = os.path.join(lane.folder, door.SOCKET)
        try:
            if gone and os.stat(path).st_ino == lane.inode:
                os.unlink(path)  # else another door has its own there
        except OSError:
            pass  # the lane's folder is gone
        if lane.runner is not None:
            await lane.runner.cleanup()

    async def _end(self) -> None:
        for name in list(self._lanes):
            await self._dismiss(name, gone=False)
        if self._open is not None:
            await self._open.cleanup()

    # one request

    async def _answer(self, request: BaseRequest, entrance: _Lane | None) -> web.Response:
        if request.path != "/mcp":
            return web.Response(status=404)
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST"})
        origin = request.headers.get("origin", "")
        if origin and not any(origin == one or origin.startswith(f"{one}:") for one in _LOOPBACK):
            return web.Response(status=403, text="a page of the web may not ask here")
        lane, status = self._known(request.headers.get("authorization", ""), entrance)
        if lane is None:
            return web.Response(status=status, text="the token is not this lane's")
        version = request.headers.get("mcp-protocol-version", "")
        if version and version not in jsonrpc.VERSIONS:
            words = RpcError(VERSION, "unsupported protocol version", {"supported": jsonrpc.VERSIONS})
            return _json(jsonrpc.failed(words), 400)
        if lane.here >= AT_ONCE + WAITING:
            return web.Response(status=429, headers={"Retry-After": "1"}, text="too many requests at once")
        lane.here += 1
        try:
            try:
                data = await asyncio.wait_for(request.read(), _READ_SECONDS)
            except web.HTTPRequestEntityTooLarge:
                words = RpcError(INVALID_REQUEST, f"the message is longer than {MOST >> 20} MiB")
                return _json(jsonrpc.failed(words), 413)
            except TimeoutError:
                return web.Response(status=408)
            except web.RequestPayloadError:
                return web.Response(status=400, text="the body can't be read")
            async with lane.turns:
                return await self._spoken(lane.who, data.strip())
        finally:
            lane.here -= 1

    def _known(self, header: str, entrance: _Lane | None) -> tuple[_Lane | None, int]:
        """Gives the lane that a token is of, else the status: 403 for another lane's than the entrance's."""
        token = header[7:].strip() if header[:7].lower() == "bearer " else ""
        held = token.encode("utf-8", "replace")
        found = next((one for one in self._lanes.values() if hmac.compare_digest(one.token.encode(), held)), None)
        if found is None:
            return None, 401
        return (found, 200) if entrance is None or found is entrance else (None, 403)

    async def _spoken(self, who: Who, text: bytes) -> web.Response:
        try:
            items = jsonrpc.messages(text)
        except RpcError as error:
            return _json(jsonrpc.failed(error), 400)
        if items is None:
            reply, wrong = await self._one(who, text)
            return web.Response(status=202) if reply is None else _json(reply, 400 if wrong else 200)
        replies = [reply for item in items if (reply := (await self._one(who, item))[0]) is not None]
        return _json(b"[" + b",".join(replies) + b"]") if replies else web.Response(status=202)

    async def _one(self, who: Who, text: bytes) -> tuple[bytes | None, bool]:
        """Gives the answer to one message, and whether the message is none."""
        try:
            call = jsonrpc.read(text)
        except RpcError as error:
            return jsonrpc.failed(error), True
        if call is None:
            return None, False
        try:
            return jsonrpc.answered(call, await self._result(who, call), _INFO), False
        except RpcError as error:
            return jsonrpc.failed(error, call.id), False

    async def _result(self, who: Who, call: Call) -> dict[str, Any]:
        if call.method == "initialize":
            return {"protocolVersion": jsonrpc.agreed(call.params), "capabilities": {"tools": {}},
                    "serverInfo": _INFO, "instructions": _INSTRUCTIONS}  # fmt: skip
        if call.method == "server/discover":
            return {"supportedVersions": jsonrpc.VERSIONS, "capabilities": {"tools": {}},
                    "instructions": _INSTRUCTIONS}  # fmt: skip
        if call.method == "ping":
            return {}
        if call.method == "tools/list":
            return {"tools": self._listed}
        if call.method != "tools/call":
            raise jsonrpc.no_method(call.method)
        name, arguments = jsonrpc.called(call.params)
        tool = self._tools.get(name)
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool: {name[:100]!r}")
        answer = await self._loop.run_in_executor(self._pool, _called, tool, who, arguments)
        found: dict[str, Any] = {"content": [{"type": "text", "text": answer.text}]}
        if answer.data is not None:
            found["structuredContent"] = answer.data
        if answer.is_error:
            found["isError"] = True
        return found


def _called(tool: Tool, who: Who, arguments: dict[str, Any]) -> Answer:
    """Calls a tool; whatever happens, the agent hears it, and the other lanes go on."""
    try:
        return tool.call(who, arguments)
    except RopewalkError as error:
        return door.failure(error)
    except OSError as error:
        return door.failure(os_error(error, tool.name))
    except Exception as error:
        return door.failure(fault(error))


def _json(data: bytes, status: int = 200) -> web.Response:
    return web.Response(status=status, body=data, content_type="application/json")


def _offered(there: str | int, token: str) -> set[str]:
    """Gives the names of the tools that an entrance lists: a socket's path, or a port."""
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", there if isinstance(there, int) else None, timeout=10)
    if isinstance(there, str):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.settimeout(10)
        folder = os.open(os.path.dirname(there), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made.connect(f"/proc/self/fd/{folder}/{os.path.basename(there)}")
        except OSError:
            made.close()
            raise
        finally:
            os.close(folder)
        connection.sock = made
    try:
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        connection.request("POST", "/mcp", body, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        data = answer.read(8 * MOST)
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return {tool["name"] for tool in msgspec.json.decode(data)["result"]["tools"]}
    finally:
        connection.close()
