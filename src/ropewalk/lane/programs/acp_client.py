"""A client of the Agent Client Protocol, beside the agent in its lane: it asks it for the task and tells what it does.

It runs on a bare Python (`python -I -S acp_client.py PROGRAM [WORDS]`) inside the lane and not in the supervisor, so
that a lane goes on, with its questions for permission answered, while nobody supervises. It speaks JSON, one object a
line: on standard input first the order (prompt, cwd, session, servers, modes, lonely), then `{"do": "steer", "text"}`
and `{"do": "interrupt"}`; the input's end is the end of the talk. On standard output come events, `{"event": KIND, …}`.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from typing import Any

_CLOSE_SECONDS = 2.0
_STOPS = {"max_turn_requests": "max_turns", "cancelled": "interrupted", "max_tokens": "context_full"}


def say(event: str, **facts: Any) -> None:
    """Tells an event, whole."""
    left = json.dumps({"event": event, **facts}).encode() + b"\n"
    while left:
        left = left[os.write(1, left) :]


class Lines:
    """Gives whole lines of a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd, self.rest = fd, b""

    def read(self) -> list[bytes] | None:
        """Gives what is whole by now; None at the end."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            return None
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [line for line in lines if line.strip()]


class Client:
    """Is one talk with one agent."""

    def __init__(self, order: dict[str, Any], words: list[str]) -> None:
        self.order = order
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=order["cwd"])
        assert self.child.stdin is not None and self.child.stdout is not None
        self.input, self.output = self.child.stdin.fileno(), Lines(self.child.stdout.fileno())
        self.asked: dict[int, str] = {}
        self.session = ""
        self.text = ""
        self.loading = self.stopped = self.answered = False
        self.open: list[int] = []
        self.usage: dict[str, Any] | None = None
        self.titles: dict[str, str] = {}
        self.waiting: list[str] = []

    # what is sent

    def send(self, **what: Any) -> None:
        """Sends the agent a message; one that is gone is seen at its output's end."""
        left = json.dumps({"jsonrpc": "2.0", **what}).encode() + b"\n"
        try:
            while left:
                left = left[os.write(self.input, left) :]
        except OSError:
            return

    def ask(self, method: str, params: dict[str, Any]) -> int:
        """Asks the agent for something; its answer is met in `answer`."""
        number = len(self.asked) + 1
        self.asked[number] = method
        self.send(id=number, method=method, params=params)
        return number

    def begin(self) -> None:
        """Asks what the agent can do."""
        can = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        self.ask("initialize", {"protocolVersion": 1, "clientCapabilities": can,
                                "clientInfo": {"name": "ropewalk", "version": "1"}})  # fmt: skip

    def prompt(self, text: str) -> None:
        """Gives the agent a task, or a word while it is at one."""
        given = {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}
        self.open.append(self.ask("session/prompt", given))

    def told(self, what: dict[str, Any]) -> None:
        """Does what the supervisor says."""
        if what.get("do") == "interrupt" and self.session:
            self.stopped = True
            self.send(method="session/cancel", params={"sessionId": self.session})
        elif what.get("do") == "steer" and self.session and self.open:
            self.prompt(str(what.get("text", "")))
        elif what.get("do") == "steer":
            self.waiting.append(str(what.get("text", "")))

    # what is heard

    def heard(self, line: bytes) -> None:
        """Takes a line of the agent."""
        try:
            found = json.loads(line)
        except ValueError:
            say("message", text=line.decode("utf-8", "replace"), aside=True)
            return
        if not isinstance(found, dict):
            return
        if "method" not in found:
            self.answer(found)
        elif "id" in found:
            self.question(found)
        elif found["method"] == "session/update":
            self.update((found.get("params") or {}).get("update") or {})

    def question(self, found: dict[str, Any]) -> None:
        """Answers what the agent asks: it may do all, because its cage holds it."""
        params = found.get("params") or {}
        if found["method"] != "session/request_permission":
            self.send(id=found["id"], error={"code": -32601, "message": f"{found['method']} is not offered"})
            return
        options = {one.get("kind"): one.get("optionId") for one in params.get("options") or []}
        chosen = options.get("allow_always") or options.get("allow_once")
        if self.stopped or chosen is None:
            say("denied")
            self.send(id=found["id"], result={"outcome": {"outcome": "cancelled"}})
        else:
            self.send(id=found["id"], result={"outcome": {"outcome": "selected", "optionId": chosen}})

    def update(self, what: dict[str, Any]) -> None:
        """Tells what the agent does; what a session that is loaded did before is no news."""
        kind = what.get("sessionUpdate")
        if self.loading:
            return
        if kind == "agent_message_chunk":
            self.text += str((what.get("content") or {}).get("text") or "")
        elif kind in ("tool_call", "tool_call_update"):
            self.tool(what)

    def tool(self, what: dict[str, Any]) -> None:
        """Tells of a tool once when it begins and once when it ended."""
        number, given = str(what.get("toolCallId")), what.get("rawInput")
        if number not in self.titles:
            self.speak()
            self.titles[number] = str(what.get("title") or what.get("kind") or "tool")
            places = what.get("locations") or []
            path = places[0].get("path") if places and isinstance(places[0], dict) else None
            command = given.get("command") if isinstance(given, dict) else None
            say("tool", name=self.titles[number], id=number, path=path, command=command)
        if what.get("status") in ("completed", "failed"):
            say("tool_end", id=number, ok=what["status"] == "completed")

    def speak(self) -> None:
        """Tells the words so far; those after the last tool are the final ones."""
        if self.text.strip():
            say("message", text=self.text)
        self.text = ""

    def answer(self, found: dict[str, Any]) -> None:
        """Takes an answer, and goes on with what comes next."""
        number = found.get("id")
        method = self.asked.get(number, "") if isinstance(number, int) else ""
        result, error = found.get("result") or {}, found.get("error")
        if error and method != "session/set_mode":
            self.fail(method, error)
        elif method == "initialize":
            self.initialized(result)
        elif method in ("session/new", "session/load"):
            self.ready(result)
        elif method == "session/prompt" and number in self.open:
            self.open.remove(number)
            self.count(result)
            if not self.open or self.order.get("lonely"):
                self.ended(str(result.get("stopReason") or "end_turn"))

    def fail(self, method: str, error: dict[str, Any]) -> None:
        """Tells an error; the talk is over with it."""
        data = error.get("data")
        more = data if isinstance(data, str) else json.dumps(data) if data else ""
        words = f"{error.get('message', '')} {more}".strip()
        self.speak()
        self.answered = True
        say("result", ok=False, text=f"{method}: {words}", stop="interrupted" if self.stopped else "error")

    def initialized(self, result: dict[str, Any]) -> None:
        """Opens a session, or an earlier one."""
        can = result.get("agentCapabilities") or {}
        given = {"cwd": self.order["cwd"], "mcpServers": self.order.get("servers") or []}
        if given["mcpServers"] and not (can.get("mcpCapabilities") or {}).get("http"):
            self.fail("session/new", {"message": "the agent takes no tool servers over HTTP"})
        elif not self.order.get("session"):
            self.ask("session/new", given)
        elif can.get("loadSession"):
            self.loading = True
            self.ask("session/load", {**given, "sessionId": self.order["session"]})
        else:
            self.fail("session/load", {"message": "session not found: the agent keeps none"})

    def ready(self, result: dict[str, Any]) -> None:
        """Lets the agent do all that it wants, and gives it the task."""
        self.loading = False
        self.session = str(result.get("sessionId") or self.order.get("session") or "")
        say("started", session=self.session)
        modes = result.get("modes") or {}
        there = [one.get("id") for one in modes.get("availableModes") or []]
        for mode in self.order.get("modes") or []:
            if mode in there and mode != modes.get("currentModeId"):
                self.ask("session/set_mode", {"sessionId": self.session, "modeId": mode})
                break
        self.prompt(self.order["prompt"])
        for text in self.waiting:
            self.prompt(text)

    def count(self, result: dict[str, Any]) -> None:
        """Tells the tokens of a prompt, where the agent does."""
        meta = result.get("_meta") or {}
        usage = result.get("usage") or meta.get("usage") or (meta.get("quota") or {}).get("token_count")
        if isinstance(usage, dict):
            say("usage", usage=usage)

    def ended(self, stop: str) -> None:
        """Tells the result."""
        self.answered = True
        say("result", ok=stop == "end_turn", text=self.text, stop=_STOPS.get(stop, stop))

    # the loop

    def run(self) -> int:
        """Goes on until the agent or the talk ends; gives the exit code."""
        self.begin()
        told = Lines(0)
        told.rest = self.order["rest"]
        selector = selectors.DefaultSelector()
        selector.register(self.output.fd, selectors.EVENT_READ, self.output)
        selector.register(0, selectors.EVENT_READ, told)
        while True:
            for key, _ in selector.select():
                lines = key.data.read()
                if lines is None and key.data is told:
                    return self.close()
                if lines is None:
                    return self.gone()
                for line in lines:
                    if key.data is told:
                        self.told(json.loads(line))
                    else:
                        self.heard(line)

    def close(self) -> int:
        """Ends the agent after the talk."""
        os.close(self.input)
        try:
            self.child.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()  # some outlive the end of their input
            self.child.wait()
        return 0 if self.answered else 1

    def gone(self) -> int:
        """Tells that the agent ended by itself."""
        code = self.child.wait()
        if not self.answered:
            say("error", text=f"the agent ended with {code} in the middle of the talk")
        return 0 if self.answered else code if code > 0 else 1


def main(words: list[str]) -> int:
    """Runs `acp_client.py PROGRAM [WORDS]`."""
    first = b""
    while b"\n" not in first:
        data = os.read(0, 1 << 16)
        if not data:
            return 2
        first += data
    line, rest = first.split(b"\n", 1)
    order: dict[str, Any] = json.loads(line)
    order["rest"] = rest
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        client = Client(order, words)
    except OSError as error:
        os.write(2, f"{words[0]} can't be started: {error.strerror}\n".encode())
        return 127

    def end(number: int, frame: object) -> None:
        client.child.terminate()
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    return client.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
