"""A model server that follows scripts, so that agent programs run without a model, a key or a network.

It speaks Anthropic Messages, OpenAI Chat Completions, OpenAI Responses and Gemini generateContent, whole and streamed.
Point an agent program's base URL at `http://127.0.0.1:PORT/<lane>/<scenario>` (with `/v1` behind it where the program
expects that of a base URL). One server serves any number of lanes and scenarios at once; the lane is any name that
tells the requests of one agent from another's, the scenario says what the model does and how it fails.

```
python -m ropewalk.testing.model_server [--host ADDRESS] [--port N] [--scripts DIR] [--key KEY]... \\
    [--canary NAME=SECRET]... [--keep-bodies]
```
prints `{"url": "http://127.0.0.1:PORT"}` once it listens, and serves until it is told to end. From Python:

```
with running(canaries={"token": secret}) as server:
    server.add("two", [{"tool": "write", "path": "a", "content": "1"}, {"text": "done"}])
    start_agent(base_url=server.url("lane1", "two"))
    assert server.counts()["lane1"].answers == 2
```

Scripts and scenarios: `ropewalk.testing.models.script`; faults: `…models.faults`. A script `DIR/NAME.json` is read anew
for every request. What was asked and answered: `/_ledger`, `/_ledger/lane/<lane>`, `/_ledger/counts`, and with kept
bodies `/_ledger/<number>/body`. The server holds no conversation: a place in a script is read from the request's
history, so agents may retry, resume and be steered. Only faults counted by tries (`flakyN`, `e503x2`) are remembered.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ropewalk.testing.models import script
from ropewalk.testing.models.answering import Application
from ropewalk.testing.models.ledger import Counts, Entry, Ledger
from ropewalk.testing.models.oauth import Logins

_START_SECONDS = 30.0


class ModelServer:
    """Is a server that runs in this process."""

    def __init__(self, base: str, application: Application) -> None:
        self.base = base
        self._application = application

    def url(self, lane: str, scenario: str = "write") -> str:
        """Gives the base URL of a lane and a scenario."""
        return f"{self.base}/{lane}/{scenario}"

    def add(self, name: str, steps: Any) -> None:
        """Adds a script: a list of steps, or an object; `ScriptError` when it is none."""
        self._application.added[name] = script.decode(msgspec.json.encode(steps))

    @property
    def logins(self) -> Logins:
        """Gives the server's side of logins; once one was granted, requests need a key or the token of one."""
        return self._application.logins

    @property
    def refresh_url(self) -> str:
        """Gives the address at which logins are renewed."""
        return f"{self.base}/_oauth/token"

    def entries(self, lane: str | None = None) -> list[Entry]:
        """Gives the requests so far, of all lanes or of one."""
        return self._application.ledger.entries(lane)

    def counts(self) -> dict[str, Counts]:
        """Gives each lane in numbers."""
        return self._application.ledger.counts()

    def body(self, number: int) -> bytes | None:
        """Gives a request's body, where bodies are kept."""
        return self._application.ledger.body(number)


class _Server(uvicorn.Server):
    def __init__(self, application: Application) -> None:
        transports = application.transports

        class Protocol(H11Protocol):
            """Lets the application get at the connection of a request, to cut it."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                if self.client is not None:
                    transports[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                if self.client is not None:
                    transports.pop(self.client, None)

        config = uvicorn.Config(
            application, http=Protocol, ws="none", lifespan="off", log_level="critical", access_log=False,
            timeout_graceful_shutdown=5, timeout_keep_alive=60,
        )  # fmt: skip
        super().__init__(config)
        self._application = application

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.stop()
        await super().shutdown(sockets)


@contextmanager
def running(
    *, scripts: str | None = None, keys: Iterable[str] = (), canaries: Mapping[str, str] | None = None,
    host: str = "127.0.0.1", port: int = 0, keep_bodies: bool = False,
) -> Iterator[ModelServer]:  # fmt: skip
    """Gives a server in a thread of this process, until the block ends; what hangs is let go then."""
    application = Application(Ledger(keep_bodies=keep_bodies), scripts=scripts, keys=keys, canaries=canaries)
    server, listening = _Server(application), _listen(host, port)
    thread = threading.Thread(target=server.run, args=([listening],), name="model-server", daemon=True)
    thread.start()
    try:
        yield ModelServer(_base(listening), application)
    finally:
        server.should_exit = True
        thread.join(_START_SECONDS)
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    # named as TCP, since asyncio sends small parts at once (TCP_NODELAY) only for a socket that says so
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    made.listen(1024)
    made.setblocking(False)
    return made


def _base(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def main(argv: list[str] | None = None) -> int:
    """Serves until a signal ends it, and gives the exit code."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m ropewalk.testing.model_server", description="A model server that follows scripts."
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="the port (default: any free one)")
    parser.add_argument("--scripts", metavar="DIR", help="a folder of NAME.json, each a scenario NAME")
    parser.add_argument("--key", action="append", default=[], help="a key that is accepted (default: any, or none)")
    parser.add_argument("--canary", action="append", default=[], metavar="NAME=SECRET", help="a secret to look for")
    parser.add_argument("--keep-bodies", action="store_true", help="keep the bodies of requests, 64 MB at most")
    given = parser.parse_args(argv)
    planted = dict(one.partition("=")[::2] for one in given.canary)
    ledger = Ledger(keep_bodies=given.keep_bodies)
    application = Application(ledger, scripts=given.scripts, keys=given.key, canaries=planted)
    try:
        listening = _listen(given.host, given.port)
    except OSError as error:
        print(f"listening on {given.host}:{given.port}: {error.strerror}", file=sys.stderr)
        return 1
    print(msgspec.json.encode({"url": _base(listening)}).decode(), flush=True)
    _Server(application).run(sockets=[listening])
    return 0


if __name__ == "__main__":
    sys.exit(main())
