"""The gateway as a process of its own, so that it can die and start again at the same socket while lanes go on (G5)."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import socket

SOCKET = os.path.join("door", "gateway.sock")
"""Is the socket in a gateway's folder; a cage binds what is around it, because a bound socket dies with its maker."""

ADDRESS = "address.json"
DRAIN_SECONDS = 30.0
"""Is how long a gateway that is told to end lets answers go on; what is longer is cut, and charged as estimated."""

TAKEN = 3
"""Is how one ends where another gateway of its folder runs; a fault of ours has another code."""

_LOCK_SECONDS = 1.0


class Address(msgspec.Struct, frozen=True):
    """Is where a running gateway listens: its process, its socket, and its port on the loopback address."""

    pid: int
    socket: str
    port: int


def is_running(folder: str) -> bool:
    """Says whether a gateway of a folder runs, or is about to listen."""
    try:
        with open(os.path.join(folder, "lock"), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def read_address(folder: str) -> Address | None:
    """Gives where the gateway of a folder listens; None when none runs."""
    return _address(folder) if is_running(folder) else None


def _address(folder: str) -> Address | None:
    try:
        with open(os.path.join(folder, ADDRESS), "rb") as file:
            return msgspec.json.decode(file.read(), type=Address)
    except (OSError, msgspec.DecodeError):
        return None


async def _locked(lock: int) -> bool:
    """Takes the lock that one gateway of a folder holds; who only looks whether it is held has it for a moment."""
    import asyncio

    until = asyncio.get_running_loop().time() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if asyncio.get_running_loop().time() > until:
                return False
        await asyncio.sleep(0.02)


def _bound(path: str) -> socket.socket:
    """Gives a socket at a path, which may be longer than a socket's own address."""
    import socket

    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        return made
    finally:
        os.close(folder)


def _log() -> None:
    """Has what went wrong written in a line: a traceback shows what requests hold."""
    import logging

    class OneLine(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            kind = record.exc_info[0] if record.exc_info else None
            return f"{self.formatTime(record)} {record.getMessage()[:200]}{f': {kind.__name__}' if kind else ''}"

    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    for name in ("aiohttp", "asyncio"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False


async def serve(folder: str, port: int = 0) -> int:
    """Serves until SIGTERM or SIGINT; gives `TAKEN` when another gateway of the folder runs.

    Without a port it takes the one that the gateway before it had, because lanes that no mount holds were told that.
    """
    import asyncio

    from aiohttp import web

    from ropewalk.gateway.proxy import Proxy

    os.makedirs(os.path.join(folder, "door"), mode=0o755, exist_ok=True)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not await _locked(lock):
        os.close(lock)
        return TAKEN
    path = os.path.join(folder, SOCKET)
    former = _address(folder)
    for stale in (path, os.path.join(folder, ADDRESS)):  # the address of one that died must not be taken for ours
        if os.path.exists(stale):
            os.unlink(stale)
    _log()
    runner = web.AppRunner(Proxy(folder).application(), handler_cancellation=True, access_log=None,
                           read_bufsize=1 << 20, shutdown_timeout=DRAIN_SECONDS)  # fmt: skip
    await runner.setup()
    await web.SockSite(runner, _bound(path)).start()
    os.chmod(path, 0o666)  # whoever is let into the folder may speak; a token says who it is
    site = web.TCPSite(runner, "127.0.0.1", port or (former.port if former is not None else 0))
    try:
        await site.start()
    except OSError:
        if port:
            raise
        await site.stop()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
    server = site._server
    bound = server.sockets[0].getsockname()[1] if isinstance(server, asyncio.Server) else port
    made = Address(os.getpid(), path, bound)
    with open(os.path.join(folder, ADDRESS + ".new"), "wb") as file:
        file.write(msgspec.json.encode(made))
    os.replace(os.path.join(folder, ADDRESS + ".new"), os.path.join(folder, ADDRESS))
    sys.stdout.write(msgspec.json.encode(made).decode() + "\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await runner.cleanup()  # takes no more, and waits for what is on its way
    os.close(lock)
    return 0


def main(argv: list[str]) -> int:
    """Runs `python -m ropewalk.gateway.process FOLDER [PORT]`."""
    if not 1 <= len(argv) <= 2 or (len(argv) == 2 and not argv[1].isdigit()):
        sys.stderr.write("usage: python -m ropewalk.gateway.process FOLDER [PORT]\n")
        return 2
    import asyncio

    return asyncio.run(serve(os.path.abspath(argv[0]), int(argv[1]) if len(argv) == 2 else 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
