"""Supervision of a lane: start one agent process, follow what it says, and leave none of its children behind.

The process has a session of its own, an environment from an allow-list, a home of its own, the prompt on
standard input from a file, and its streams in files. A result and an exit are different events: an agent that
reported its result but does not end is given a grace; a grandchild that keeps a pipe open delays nothing.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import IO, NamedTuple

from ropewalk.core import clock
from ropewalk.core.errors import HarnessError, os_error
from ropewalk.lane.harness.base import Harness, LaneEvent

GRACE = 10.0
_ALLOWED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "TMPDIR")
_TICK = 0.2


class Lane(NamedTuple):
    """Is one start of one agent: where it works, where its files go, what it is told, and how long it may take.

    `folder` gets `prompt`, `stdout`, `stderr` and `home/`; `seconds` is the wall-clock bound.
    """

    id: str
    agent: str
    workspace: str
    folder: str
    prompt: bytes
    store: str | None = None
    seconds: float = 3600.0
    extra: Mapping[str, str] = {}


class LaneResult(NamedTuple):
    """Is how a lane ended: `how` is done, died (by a signal), timeout or stopped.

    `code` is the exit code, negative for a signal; `reported` is the agent's own result, `tail` the end of what
    it wrote to standard error.
    """

    how: str
    code: int
    reported: LaneEvent | None
    usage: dict[str, int]
    tools: int
    seconds: float
    tail: str


def environment(lane: Lane, harness: Harness, caller: Mapping[str, str]) -> dict[str, str]:
    """Gives the lane's environment: the allowed part of the caller's, and what names the lane."""
    env = {name: caller[name] for name in _ALLOWED if name in caller}
    env.setdefault("PATH", os.defpath)
    env.setdefault("LANG", "C.UTF-8")
    env.setdefault("TERM", "dumb")
    env.update(
        HOME=os.path.join(lane.folder, "home"),
        ROPEWALK_AGENT=lane.agent,
        ROPEWALK_LANE=lane.id,
        GIT_TERMINAL_PROMPT="0",
        # a workspace whose .git is gone must not lead git into a repository above it (A4)
        GIT_CEILING_DIRECTORIES=os.path.dirname(lane.workspace),
    )
    if lane.store is not None:
        env["ROPEWALK_STORE"] = lane.store
    env.update(harness.env())
    env.update(lane.extra)
    return env


def run_lane(
    lane: Lane,
    harness: Harness,
    caller: Mapping[str, str],
    *,
    stop: threading.Event | None = None,
    tell: Callable[[LaneEvent], None] = lambda event: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> LaneResult:
    """Runs an agent to its end and gives how it ended; none of its processes is left when this returns.

    `meanwhile` is called several times a second while it works. Raises `E_HARNESS` when the program can't be started.
    """
    try:
        os.makedirs(os.path.join(lane.folder, "home"), exist_ok=True)
        with open(os.path.join(lane.folder, "prompt"), "wb") as file:
            file.write(lane.prompt)
        prompt = open(os.path.join(lane.folder, "prompt"), "rb")
        out = open(os.path.join(lane.folder, "stdout"), "wb")
        err = open(os.path.join(lane.folder, "stderr"), "wb")
    except OSError as error:
        raise os_error(error, "making a lane's files") from None
    began = clock.monotonic()
    try:
        child = subprocess.Popen(
            harness.argv(),
            stdin=prompt,
            stdout=subprocess.PIPE,
            stderr=err,
            env=environment(lane, harness, caller),
            cwd=lane.workspace,
            start_new_session=True,
        )
    except OSError as error:
        out.close()
        raise HarnessError(
            f"{harness.argv()[0]!r} can't be started: {error.strerror or error}", program=harness.argv()[0]
        ) from None
    finally:
        prompt.close()
        err.close()
    follow = _Follow(child, harness, out, tell)
    try:
        how = follow.to_the_end(began + lane.seconds, stop, meanwhile)
    finally:
        end_all(child, lane.id)
        follow.rest()
        out.close()
    code = child.returncode
    if how == "reported" and follow.result is not None:
        # it was ended by us, so its own word counts
        how, code = "done", 0 if follow.result.facts.get("ok", True) else 1
    elif how == "done" and code < 0:
        how = "died"
    tail = _tail(os.path.join(lane.folder, "stderr"))
    return LaneResult(how, code, follow.result, follow.usage, follow.tools, round(clock.monotonic() - began, 3), tail)


class _Follow:
    """Reads an agent's stream into its file and into events, until it ends, is stopped, or runs out of time."""

    def __init__(
        self, child: subprocess.Popen[bytes], harness: Harness, out: IO[bytes], tell: Callable[[LaneEvent], None]
    ) -> None:
        self.child, self.harness, self.out, self.tell = child, harness, out, tell
        self.result: LaneEvent | None = None
        self.usage: dict[str, int] = {}
        self.tools = 0
        self._line = bytearray()
        assert child.stdout is not None
        self._pipe = child.stdout
        self._live = True
        os.set_blocking(self._pipe.fileno(), False)

    def to_the_end(self, deadline: float, stop: threading.Event | None, meanwhile: Callable[[], None]) -> str:
        """Follows the agent and gives how it came to an end: done, reported (but hangs), stopped or timeout."""
        grace: float | None = None
        exit_fd = os.pidfd_open(self.child.pid) if hasattr(os, "pidfd_open") else -1
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            if exit_fd >= 0:
                selector.register(exit_fd, selectors.EVENT_READ)
            try:
                while True:
                    ready = {key.fd for key, _ in selector.select(_TICK)}
                    if self._pipe.fileno() in ready and not self._take():
                        selector.unregister(self._pipe)
                    if exit_fd in ready or (exit_fd < 0 and _ended(self.child)):
                        return "done"
                    meanwhile()
                    now = clock.monotonic()
                    if stop is not None and stop.is_set():
                        return "stopped"
                    if self.result is not None:
                        grace = grace or now + GRACE
                        if now > grace:
                            return "reported"
                    if now > deadline:
                        return "timeout"
            finally:
                if exit_fd >= 0:
                    os.close(exit_fd)

    def _take(self) -> bool:
        """Reads what is there; False at the end of the stream."""
        try:
            data = os.read(self._pipe.fileno(), 65_536)
        except BlockingIOError:
            return True
        self.out.write(data)
        self.out.flush()
        self._line += data
        *lines, rest = self._line.split(b"\n")
        self._line = bytearray(rest[-1_000_000:])
        for line in lines:
            self._note(bytes(line))
        self._live = bool(data)
        return self._live

    def _note(self, line: bytes) -> None:
        event = self.harness.event(line)
        if event is None:
            return
        if event.kind == "result":
            self.result = event
        elif event.kind == "tool":
            self.tools += 1
        elif event.kind == "usage":
            for name, count in event.facts.items():
                if isinstance(count, int):
                    self.usage[name] = self.usage.get(name, 0) + count
        self.tell(event)

    def rest(self) -> None:
        """Reads what the ended process left in the pipe, and waits for nobody."""
        while self._live and _readable(self._pipe.fileno()):
            self._take()
        if self._line:
            self._note(bytes(self._line))
            self._line.clear()
        self._pipe.close()


def _readable(fd: int) -> bool:
    import select

    return bool(select.select([fd], [], [], 0)[0])


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Says whether a child ended, and leaves it unreaped, so that its group can't be another's yet."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_all(child: subprocess.Popen[bytes], lane_id: str) -> None:
    """Kills an agent's process group and whatever else carries its lane's id, and reaps the agent."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    child.wait()
    sweep(lane_id)


def sweep(lane_id: str) -> list[int]:
    """Kills every process that carries a lane's id in its environment, those in sessions of their own too.

    Gives their ids. A process that was given another environment is not found; a cage is what holds that one.
    """
    killed: list[int] = []
    mark = b"ROPEWALK_LANE=" + lane_id.encode("utf-8") + b"\0"
    for _ in range(5):
        found = []
        try:
            names = [name for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return killed
        for name in names:
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read() and int(name) != os.getpid():
                        found.append(int(name))
            except OSError:
                continue
        found = [pid for pid in found if pid not in killed]
        if not found:
            break
        _kill_and_wait(found)
        killed += found
    return killed


def _kill_and_wait(pids: list[int], seconds: float = 5.0) -> None:
    """Kills processes and waits until they are gone, or until the bound."""
    import select

    handles: list[int] = []
    for pid in pids:
        try:
            if hasattr(os, "pidfd_open"):
                handles.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    until = clock.monotonic() + seconds
    for handle in handles:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(max(0.0, until - clock.monotonic()) * 1000)
        os.close(handle)


def _tail(path: str, size: int = 2000) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
