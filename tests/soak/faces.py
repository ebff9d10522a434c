"""The three ways to ask a store for an operation, all with requests and envelopes of plain values."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import Any

import msgspec

Request = dict[str, Any]
Envelope = dict[str, Any]
LATEST_KILL = 0.25
"""A process that is to be killed gets the signal at a moment drawn from so many seconds after the request."""


class Killed(Exception):
    """The process that was asked was killed before it answered."""


class Face:
    """Is one way to ask; `ask` gives the envelope, or raises `Killed` when the asked process is to be killed."""

    def ask(self, operation: str, request: Request, *, kill: bool = False) -> Envelope:
        """Gives the envelope of an operation's answer."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of what the face holds."""


class Library(Face):
    """Asks within this process; `fresh` opens the store anew for each question."""

    def __init__(self, store: str, agent: str, *, fresh: bool = False) -> None:
        from ropewalk.operations.context import Context

        self._fresh = fresh
        self._context = Context(cwd=os.getcwd(), store=store, agent=agent)

    def ask(self, operation: str, request: Request, *, kill: bool = False) -> Envelope:
        """Gives the envelope; this process is killed from outside, so `kill` does nothing here."""
        from ropewalk.operations import envelope, registry

        try:
            # the reply goes through its bytes, as it would on its way to a client
            reply = envelope.answer(registry.load(operation), self._context, request).envelope
            return msgspec.json.decode(envelope.encode(reply), type=Envelope)
        finally:
            if self._fresh:
                self._context.close()

    def close(self) -> None:
        """Closes the store."""
        self._context.close()


class Mcp(Face):
    """Asks a server of its own (`rw mcp`) over standard input and output."""

    def __init__(self, store: str, agent: str, r: random.Random) -> None:
        self._words = [sys.executable, "-m", "ropewalk.cli.main", "mcp", "--store", store, "--as", agent]
        self._random = r
        self._start()

    def _start(self) -> None:
        from ropewalk.testing.mcp_client import Server

        self._server = Server(self._words)
        self._server.hello()

    @property
    def pid(self) -> int:
        """Gives the server's process."""
        return self._server._process.pid

    def ask(self, operation: str, request: Request, *, kill: bool = False) -> Envelope:
        """Gives the envelope, or kills the server while it is at the request and starts another."""
        from ropewalk.operations import registry

        params = {"name": registry.load(operation).tool, "arguments": request}
        if kill:
            self._server.ask("tools/call", params)
            time.sleep(self._random.uniform(0, LATEST_KILL))
            self._server.kill()
            self._start()
            raise Killed
        found: Envelope = self._server.request("tools/call", params)["structuredContent"]
        return found

    def close(self) -> None:
        """Ends the server, which must end well."""
        self._server.end()


class Cli(Face):
    """Starts a command for each question."""

    def __init__(self, store: str, agent: str, r: random.Random) -> None:
        self._ends = ["--store", store, "--as", agent]
        self._random = r

    def ask(self, operation: str, request: Request, *, kill: bool = False) -> Envelope:
        """Gives the envelope that the command printed, or kills the command while it runs."""
        words, data = _words(operation, dict(request))
        child = subprocess.Popen(
            [sys.executable, "-m", "ropewalk.cli.main", *operation.split(), *words, *self._ends, "--json"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if kill:
            try:
                child.communicate(data, timeout=self._random.uniform(0, 2 * LATEST_KILL))
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
            raise Killed
        out, err = child.communicate(data, timeout=300)
        if err:
            raise AssertionError(f"{operation} {words} said {err.decode()!r}")
        envelope: Envelope = msgspec.json.decode(out)
        wanted = 0 if envelope["ok"] else envelope["error"]["exit"]
        assert child.returncode == wanted, (operation, words, child.returncode, envelope)
        return envelope


_POSITIONAL: dict[str, tuple[str, ...]] = {
    "resolve": ("rev",),
    "log": ("rev",),
    "show": ("rev",),
    "land": ("head",),
    "op undo": ("op",),
    "ref set": ("name", "target"),
    "ref delete": ("name",),
    "diff": ("old", "new"),
    "grep": ("pattern", "rev"),
}
_FLAGS = {"idempotency_key": "--key", "resolutions": "--resolve", "limit": "-n"}


def _words(operation: str, request: Request) -> tuple[list[str], bytes]:
    """Gives a request as words of a command line, and what comes on its standard input."""
    words: list[str] = []
    data = b""
    if operation in ("cat", "ls"):
        words.append(f"{request.pop('rev')}:{request.pop('path')}")
    words += [str(request.pop(name)) for name in _POSITIONAL.get(operation, ())]
    for name, value in request.items():
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        if name in ("changes", "resolutions"):
            words += [flag, "-"]
            data = msgspec.json.encode(value)
        elif value is True:
            words.append(flag)
        elif value is not None:
            words += [flag if flag != "-n" or operation in ("op log", "log") else "--limit", str(value)]
    return words, data


def make(kind: str, store: str, agent: str, r: random.Random) -> Face:
    """Gives a face of a kind: `library`, `fresh`, `mcp` or `cli`."""
    if kind == "mcp":
        return Mcp(store, agent, r)
    if kind == "cli":
        return Cli(store, agent, r)
    return Library(store, agent, fresh=kind == "fresh")


def health(pids: list[int]) -> list[dict[str, int]]:
    """Gives open descriptors and resident KiB of processes."""
    rows = []
    for pid in pids:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            rss = next((int(line.split()[1]) for line in file if line.startswith("VmRSS:")), 0)
        rows.append({"pid": pid, "fd": len(os.listdir(f"/proc/{pid}/fd")), "rss": rss})
    return rows
