"""A scripted MCP client: runs the tool calls of a script against a server and checks its answers.

```
python -m ropewalk.testing.mcp_client SCRIPT [--set NAME=VALUE]… [--kill-at N] [-- SERVER WORD…]
```
It starts the server (`rw mcp` of this Python without one), speaks plain MCP to it, one line of JSON a message,
and prints the envelope of each answer as a line. A script is JSON, `{"calls": [STEP, …]}`, and a step one of

- `{"tool": NAME, "arguments": {…}, "key": TEXT, "keep": {NAME: PATH}, "expect": {PATH: VALUE}}`: a call. `key` sends
  a UUID made of that text as `idempotency_key`, so that a script that runs again sends the same ones. `keep` keeps
  parts of the envelope by name. `expect` says what parts must be; without it `ok` must be true.
- `{"repeat": COUNT, "calls": [STEP, …]}`: the steps COUNT times, with `n` counting from 1.

`${NAME}` in any text is what was kept or set under that name; a text that is nothing else becomes the value itself.
A PATH goes through the envelope by names and numbers, as in `error.details.report.files.0.path`.

With `--kill-at N` the server is killed with SIGKILL somewhere in the middle of call N, from 1. Ends with 0; 1 when
an answer is not what the script expects, 2 when script or server can't be used, 137 after a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

VERSION = "2025-11-25"
ANSWER_SECONDS = 120.0
KILL_MS = 15.0
KILLED = 137
_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KEYS = uuid.UUID("6f0d3c52-8a0e-4c0f-9d53-6d1f3c1b7a11")


class Unusable(Exception):
    """The script or the server can't be used; carries the sentence that says why."""


class Unexpected(Exception):
    """An answer is not what the script expects; carries the sentence that says how."""


class Server:
    """Is a running MCP server: `request` sends it a message and gives the answer's result."""

    def __init__(self, words: list[str], seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._number = 0
        self._buffer = b""
        try:
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise Unusable(f"{words[0]} can't be started: {error.strerror or error}") from None

    def hello(self) -> None:
        """Makes the handshake."""
        who = {"name": "ropewalk-testing", "version": "1"}
        self.request("initialize", {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": who})
        self.send({"method": "notifications/initialized"})

    def send(self, message: dict[str, Any]) -> None:
        """Writes one message."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode("ascii") + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Unusable("the server ended and reads no more") from None

    def ask(self, method: str, params: dict[str, Any]) -> int:
        """Writes a request and gives its number; the answer is not read."""
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        return self._number

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Writes a request and gives its result; `Unusable` for an error of the protocol."""
        number = self.ask(method, params)
        answer: Any = {"method": ""}
        while isinstance(answer, dict) and "method" in answer and "id" not in answer:  # said unasked
            try:
                answer = json.loads(self._line())
            except ValueError as error:
                raise Unusable(f"the server wrote a line that is not JSON: {error}") from None
        if not isinstance(answer, dict) or answer.get("id") != number:
            raise Unusable(f"the server answered {method} with {answer!r}")
        result = answer.get("result")
        if not isinstance(result, dict):
            raise Unusable(f"{method} failed: {answer.get('error')}")
        return result

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        fd, until = self._process.stdout.fileno(), time.monotonic() + self._seconds
        while b"\n" not in self._buffer:
            if not select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
                raise Unusable(f"the server gave no answer for {self._seconds:g} s")
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                raise Unusable(f"the server ended with {self._process.wait()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def kill(self) -> None:
        """Ends the server with SIGKILL, if it runs, and waits until it is gone."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Closes the server's input and waits for its end; `Unusable` when that is not a good one."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            raise Unusable("the server does not end when its input does") from None
        if code:
            raise Unusable(f"the server ended with {code}")


def filled(value: Any, names: dict[str, Any]) -> Any:
    """Gives a value with every `${NAME}` in it replaced; `Unusable` for a name that nothing was kept under."""
    if isinstance(value, dict):
        return {str(filled(k, names)): filled(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(v, names) for v in value]
    if not isinstance(value, str):
        return value
    for name in _NAME.findall(value):
        if name not in names:
            raise Unusable(f"nothing was set or kept under the name {name!r}")
    whole = _NAME.fullmatch(value)
    return names[whole[1]] if whole else _NAME.sub(lambda found: str(names[found[1]]), value)


def part(envelope: Any, path: str) -> Any:
    """Gives the part of an envelope that a path names; None when there is none."""
    for word in path.split("."):
        if isinstance(envelope, dict):
            envelope = envelope.get(word)
        elif isinstance(envelope, list) and word.isdecimal() and int(word) < len(envelope):
            envelope = envelope[int(word)]
        else:
            return None
    return envelope


def calls(steps: Any, names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Gives the calls of a script one after the other, and counts `n` of each repetition in `names`."""
    if not isinstance(steps, list):
        raise Unusable("`calls` must be a list of steps")
    for step in steps:
        if isinstance(step, dict) and isinstance(step.get("repeat"), int):
            for n in range(1, step["repeat"] + 1):
                names["n"] = n
                yield from calls(step.get("calls"), names)
        elif isinstance(step, dict) and isinstance(step.get("tool"), str):
            yield step
        else:
            raise Unusable(f"a step has `tool`, or `repeat` and `calls`: {step!r}")


def arguments(step: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Gives the arguments of a call as they are sent."""
    made: dict[str, Any] = filled(step.get("arguments", {}), names)
    if "key" in step:
        made["idempotency_key"] = str(uuid.uuid5(_KEYS, str(filled(step["key"], names))))
    return made


def take(step: dict[str, Any], envelope: dict[str, Any], names: dict[str, Any]) -> None:
    """Keeps the parts of an answer that the step names; `Unexpected` unless the answer is what it expects."""
    for path, wanted in step.get("expect", {"ok": True}).items():
        wanted, found = filled(wanted, names), part(envelope, path)
        if found != wanted:
            raise Unexpected(f"{path} is {found!r}, not {wanted!r}: {json.dumps(envelope)[:2000]}")
    for name, path in step.get("keep", {}).items():
        names[name] = part(envelope, path)
        if names[name] is None:
            raise Unexpected(f"there is no {path} to keep: {json.dumps(envelope)[:2000]}")


def run(script: Any, server: Server, names: dict[str, Any], kill_at: int = 0) -> int:
    """Runs a script and gives the exit code; raises `Unexpected` and `Unusable`, with the number of the call."""
    if not isinstance(script, dict):
        raise Unusable("a script is an object with `calls`")
    server.hello()
    number = 0
    for step in calls(script.get("calls"), names):
        number += 1
        try:
            params = {"name": step["tool"], "arguments": arguments(step, names)}
            if number == kill_at:
                server.ask("tools/call", params)
                # the moment is drawn: whatever it hits, the store must hold
                moment = random.uniform(0.0, KILL_MS)
                time.sleep(moment / 1000)
                server.kill()
                _print({"killed": step["tool"], "call": number, "after_ms": round(moment, 2)})
                return KILLED
            envelope = server.request("tools/call", params).get("structuredContent")
            if not isinstance(envelope, dict):
                raise Unusable("the answer has no structuredContent")
            _print(envelope)
            take(step, envelope, names)
        except (Unexpected, Unusable) as error:
            raise type(error)(f"call {number} ({step['tool']}): {error}") from None
    if kill_at > number:
        raise Unusable(f"there is no call {kill_at} to kill the server in: the script has {number}")
    server.end()
    return 0


def _print(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def main(words: list[str]) -> int:
    """Runs a command line and gives its exit code."""
    server_words = [sys.executable, "-m", "ropewalk.cli.main", "mcp"]
    if "--" in words:
        at = words.index("--")
        words, server_words = words[:at], words[at + 1 :] or server_words
    parser = argparse.ArgumentParser(prog="python -m ropewalk.testing.mcp_client", allow_abbrev=False)
    parser.add_argument("script", help="the script's file, - for standard input")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a text that calls can use")
    parser.add_argument("--kill-at", type=int, default=0, metavar="N", help="kill the server in the middle of call N")
    options = parser.parse_args(words)
    names: dict[str, Any] = {}
    for pair in options.set:
        name, equals, value = pair.partition("=")
        if not equals:
            parser.error(f"--set takes NAME=VALUE, not {pair!r}")
        names[name] = value
    server: Server | None = None
    try:
        with sys.stdin if options.script == "-" else open(options.script, encoding="utf-8") as file:
            script = json.load(file)
        server = Server(server_words)
        return run(script, server, names, options.kill_at)
    except Unexpected as error:
        print(f"not as expected: {error}", file=sys.stderr)
        return 1
    except (Unusable, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if server is not None:
            server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
