"""`rw serve`: a store over HTTP, until it is told to end."""

from __future__ import annotations

import socket
import sys
from typing import Any

import msgspec

from ropewalk.core.errors import InvalidError, UsageError, os_error

USAGE = """\
usage: rw serve [--host ADDRESS] [--port N] [--cert FILE [--key FILE]] [--read-write] [--private] [--store DIR]
                [--board ORIGIN]...

Serve the store to git over HTTP. One line of JSON says where, once it is ready.

  --host ADDRESS   the address to listen on (default 127.0.0.1)
  --port N         the port (default 8417; 0: any free one)
  --cert FILE      the server's certificate in PEM, with those above it: serve over HTTPS
  --key FILE       its key, where it is not in the same file
  --read-write     take pushes of those whose token has the right to it
  --board ORIGIN   land on this board what holders of a grant hand in, after its check passed here; `.` is the
                   store's own, and it may be given several times (rw board grant)
  --private        reading needs a token, too (always so on an address others can reach)
  --store DIR      the store's folder
"""


def run(words: list[str]) -> int:
    """Serves, and gives the exit code; `E_USAGE` for words that do not fit."""
    from ropewalk.cli.main import make_context
    from ropewalk.cli.special import split_globals

    root, agent, rest = split_globals(words)
    given = {"--host": "127.0.0.1", "--port": "8417", "--cert": "", "--key": ""}
    switches = {"--read-write": False, "--private": False}
    boards: list[str] = []
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag in ("-h", "--help"):
            sys.stdout.write(USAGE)
            return 0
        if flag in switches and not equals:
            switches[flag] = True
        elif flag == "--board" and (equals or rest):
            named = value if equals else rest.pop(0)
            boards.append("" if named == "." else named)
        elif flag in given and (equals or rest):
            given[flag] = value if equals else rest.pop(0)
        else:
            raise UsageError(f"unrecognized argument: {flag}", hint="run `rw serve --help`")
    if not given["--port"].isdigit() or int(given["--port"]) > 65535:
        raise InvalidError(f"--port is {given['--port']!r}, not a port", hint="use a number up to 65535")
    tls = _tls(given["--cert"], given["--key"])
    context = make_context(root, agent, alone=True)
    try:
        folder = context.store.layout.root
    finally:
        context.close()
    listening = _listen(given["--host"], int(given["--port"]))
    host, port = listening.getsockname()[:2]
    import ipaddress

    import uvicorn

    from ropewalk.remote.serving import Service, application

    private = switches["--private"] or not ipaddress.ip_address(host.split("%")[0]).is_loopback
    hosted = None
    if boards:
        from ropewalk.operations import host as gate_host

        # a host works for the store that it serves, whatever the working folder
        hosted = (gate_host.PATH, lambda body: gate_host.answer(lambda: make_context(folder, agent, alone=True), boards,
                                                                body))  # fmt: skip
    app = application(Service(folder, switches["--read-write"], private), hosted)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=10, **tls)
    )  # fmt: skip
    shown = f"[{host}]" if ":" in host else host
    url = f"{'https' if tls else 'http'}://{shown}:{port}/repo.git"
    line = {"serving": url, "read_write": switches["--read-write"], "private": private}
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
    server.run(sockets=[listening])
    return 0


def _tls(cert: str, key: str) -> dict[str, Any]:
    """Gives the server's settings for HTTPS, none without a certificate; `E_INVALID` for files that do not fit."""
    if not cert:
        if key:
            raise UsageError("--key goes with --cert", hint="run `rw serve --help`")
        return {}
    import ssl

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key or None, password="")
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        words = f"the certificate or its key can't be used: {getattr(error, 'strerror', None) or error}"
        raise InvalidError(words, hint="give PEM files without a password", cert=cert, key=key) from None
    return {"ssl_certfile": cert, "ssl_keyfile": key or None}


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # named as TCP, since asyncio sends small parts at once (TCP_NODELAY) only for a socket that says so
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
        return made
    except socket.gaierror as error:
        raise InvalidError(f"{host!r} is no address: {error.strerror}", hint="use 127.0.0.1", host=host) from None
    except OSError as error:
        raise os_error(error, f"listening on {host}:{port}") from None
