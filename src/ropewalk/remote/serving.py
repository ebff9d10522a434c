"""A store over HTTP: git's smart protocol through `git http-backend`, with tokens for those who may write.

Reading needs no token unless the server is private, or was asked under a name that is not this host's own: a page of
another site may have its name lead here (DNS rebinding), and so may a proxy for the world. A push needs a token with
the right to it, and a server that takes pushes; its hooks are told who the token's holder is and hold the push against
the token's rights. Nothing of a request reaches git but its kind, two checked headers, and its body.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ropewalk import __version__
from ropewalk.core.errors import RopewalkError
from ropewalk.core.process import clean_env, git_program
from ropewalk.remote import tokens
from ropewalk.remote.tokens import Token
from ropewalk.remote.transport import with_config
from ropewalk.store.store import Store

_PIECE = 1 << 16
_SECONDS = 3600.0
_SILENT = 120.0
"""Is how long a client may send nothing of what it began, or take nothing of what it asked for, in seconds."""
_AT_ONCE = 32
"""Is how many requests git works on at once; more wait."""
_CHECKS_AT_ONCE = 4
_LARGEST = 1 << 20
_PASSED = {
    "git-protocol": ("GIT_PROTOCOL", re.compile(r"version=[0-9](:[a-z0-9=.-]+){0,8}\Z")),
    "content-encoding": ("HTTP_CONTENT_ENCODING", re.compile(r"(x-)?gzip\Z")),
}
_SELF = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?\Z", re.IGNORECASE)
_SERVICES = ("git-upload-pack", "git-receive-pack")
_CONFIG = {
    "safe.directory": "*",
    "safe.bareRepository": "all",
    "http.getanyfile": "false",
    "http.uploadpack": "true",
    "http.receivepack": "true",
    "gc.auto": "0",
    "maintenance.auto": "false",
}


class Service(NamedTuple):
    """Is how a store is served: whether pushes are taken, and whether reading needs a token."""

    root: str
    writable: bool = False
    private: bool = False


Host = Callable[[bytes], tuple[int, bytes]]
"""Answers a request to land something with (HTTP status, JSON)."""


def application(service: Service, host: tuple[str, Host] | None = None) -> Starlette:
    """Gives the ASGI application; `/`, `/repo.git` and any other single name before the service are the store.

    `host` is a path with what answers requests to land there.
    """

    free = asyncio.Semaphore(_AT_ONCE)

    async def answer(request: Request) -> Response:
        return await _answer(service, request, free)

    routes = [Route("/healthz", _health)]
    if host is not None:
        routes.append(Route(host[0], _landing(host[1]), methods=["POST"]))
    return Starlette(routes=[*routes, Route("/{path:path}", answer, methods=["GET", "POST"])])


def _landing(host: Host) -> Callable[[Request], Awaitable[Response]]:
    """Gives what answers requests to land, a few at once: each runs a check."""
    free = asyncio.Semaphore(_CHECKS_AT_ONCE)

    async def answer(request: Request) -> Response:
        body = b""
        try:
            async with asyncio.timeout(_SILENT):
                async for part in request.stream():
                    body += part
                    if len(body) > _LARGEST:
                        return PlainTextResponse("The request is too large.\n", status_code=413)
        except (ClientDisconnect, TimeoutError):
            return PlainTextResponse("The request did not come whole.\n", status_code=408)
        async with free:
            status, said = await asyncio.to_thread(host, body)
        return Response(said, status, media_type="application/json")

    return answer


async def _health(request: Request) -> Response:
    return JSONResponse({"ok": True, "version": __version__})


async def _answer(service: Service, request: Request, free: asyncio.Semaphore) -> Response:
    path = request.path_params["path"].strip("/")
    tail = path.rsplit("/", 1)[-1]
    if path.endswith("info/refs"):
        wanted, tail = request.query_params.get("service", ""), "info/refs"
    else:
        wanted = tail
    method = "GET" if tail == "info/refs" else "POST"
    if wanted not in _SERVICES or request.method != method:
        words = "This is a ropewalk store: git clone it, or ask for /healthz.\n"
        return PlainTextResponse(words, status_code=404)
    writes = wanted == "git-receive-pack"
    secret = _secret(request.headers.get("authorization", ""))
    try:
        token = await asyncio.to_thread(_prepare, service.root, secret)
    except RopewalkError as error:
        return PlainTextResponse(f"{error.code} {error.message}\nhint: {error.hint}\n", status_code=503)
    private = service.private or not _SELF.match(request.headers.get("host", ""))
    if writes and not service.writable:
        return PlainTextResponse("This server takes no pushes (rw serve --read-write).\n", status_code=403)
    if token is None and (writes or private or secret):
        return PlainTextResponse("A token is needed (rw token create).\n", status_code=401,
                                 headers={"WWW-Authenticate": 'Basic realm="ropewalk"'})  # fmt: skip
    if token is not None and not writes and "read" not in token.rights.can:
        return PlainTextResponse("The token's holder may not read.\n", status_code=403)
    return await _backend(_environment(service, request, wanted, tail, token), request, free)


def _secret(header: str) -> str:
    """Gives the token of an Authorization header: a bearer's, or the password of a basic one."""
    kind, _, value = header.partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
        except (binascii.Error, ValueError):
            return "?"
    return ""


def _prepare(root: str, secret: str) -> Token | None:
    """Makes all that the store holds visible to git, which makes it durable before, and looks a token up."""
    with Store(root) as store:
        store.show()
        store.expose()
        return tokens.known(store, secret) if secret else None


def _environment(service: Service, request: Request, wanted: str, tail: str, token: Token | None) -> dict[str, str]:
    env = clean_env()
    for name in [name for name in env if name.startswith("ROPEWALK_")]:
        del env[name]
    env |= {
        "GIT_PROJECT_ROOT": service.root,
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "PATH_INFO": f"/repo.git/{tail}",
        "REQUEST_METHOD": request.method,
        "QUERY_STRING": f"service={wanted}" if request.method == "GET" else "",
        "CONTENT_TYPE": request.headers.get("content-type", ""),
        "REMOTE_ADDR": request.client.host if request.client else "",
        "REMOTE_USER": token.name if token is not None else "",
        "ROPEWALK_PYTHON": sys.executable,
        "LC_ALL": "C.UTF-8",
    }
    for header, (name, form) in _PASSED.items():
        if form.match(value := request.headers.get(header, "")):
            env[name] = value
    if token is not None:
        env["ROPEWALK_PUSHER"] = token.agent
        env["ROPEWALK_RIGHTS"] = msgspec.json.encode(token.rights).decode("ascii")
    return with_config(env, _CONFIG)


async def _backend(env: Mapping[str, str], request: Request, free: asyncio.Semaphore) -> Response:
    """Runs `git http-backend` on a request and streams what it answers."""
    await free.acquire()
    try:
        child = await asyncio.create_subprocess_exec(
            git_program(), "http-backend", env=dict(env), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except (OSError, RopewalkError) as error:
        free.release()
        return PlainTextResponse(f"git can't be started: {error}\n", status_code=503)
    assert child.stdin is not None and child.stdout is not None
    feeding = asyncio.create_task(_feed(request, child.stdin))
    try:
        head = await asyncio.wait_for(_head(child.stdout), _SECONDS)
    except (TimeoutError, asyncio.IncompleteReadError, ValueError):
        head = {}
    if not head:
        await _end(child, feeding, free)
        return PlainTextResponse("git did not answer.\n", status_code=502)
    return _Streamed(child, feeding, free, int(head.pop("status", "200").split(" ", 1)[0]), head)


class _Streamed(Response):
    """Is the rest of what git answers, sent while the request may still be coming in.

    Starlette's own streaming response reads from the request to notice a client that leaves, and so would take
    parts of a push.
    """

    def __init__(
        self, child: asyncio.subprocess.Process, feeding: asyncio.Task[None], free: asyncio.Semaphore, status: int,
        head: dict[str, str],
    ) -> None:  # fmt: skip
        self._child, self._feeding, self._free = child, feeding, free
        self.status_code = status
        self.background = None
        self.init_headers(head)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stdout = self._child.stdout
        assert stdout is not None
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while part := await asyncio.wait_for(stdout.read(_PIECE), _SECONDS):
                sending = send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.wait_for(sending, _SILENT)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass  # an answer without its end is one that the client does not take for whole
        finally:
            await _end(self._child, self._feeding, self._free)


async def _feed(request: Request, stdin: asyncio.StreamWriter) -> None:
    parts = request.stream()
    try:
        while part := await asyncio.wait_for(anext(parts), _SILENT):
            stdin.write(part)
            await stdin.drain()
    except (ConnectionError, ClientDisconnect, StopAsyncIteration, TimeoutError, asyncio.CancelledError):
        pass
    finally:
        stdin.close()


async def _head(stdout: asyncio.StreamReader) -> dict[str, str]:
    found: dict[str, str] = {}
    while True:
        line = (await stdout.readuntil(b"\n")).rstrip(b"\r\n")
        if not line:
            return found
        name, _, value = line.decode("latin-1").partition(":")
        found[name.strip().lower()] = value.strip()


async def _end(child: asyncio.subprocess.Process, feeding: asyncio.Task[None], free: asyncio.Semaphore) -> None:
    feeding.cancel()
    try:
        if child.returncode is None:
            # what is left of a request that ended has nobody to answer
            await asyncio.wait_for(child.wait(), 5.0)
    except TimeoutError:
        os.killpg(child.pid, 9)
        await child.wait()
    finally:
        free.release()
