"""Supervision: starting a lane's shim, following what the agent says, and ending it; or adopting one that runs (G4).

All that is known of a lane is in its folder, written by the shim, so that a supervisor may die at any moment: the next
one finds the shim's lock held and goes on at the offset it had told, or free and takes what `exit.json` says.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import msgspec

from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import AdapterMismatchError, HarnessError, os_error
from ropewalk.core.process import until_one_ended
from ropewalk.gateway.ledger import read_activity
from ropewalk.lane import door, processes, waits
from ropewalk.lane.adapter import Adapter, Ending, Event
from ropewalk.lane.cage import levels
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.order import Order, prepare
from ropewalk.lane.waits import Facts, Judgement, State

KEPT = "kept.json"
"""Is the file in a lane's folder by which another supervisor goes on with it."""

_NO_PROGRAM, _UNSTARTED = 127, " can't be started: "
"""Are how the shim, or what stands around the agent in a cage, say that there is no starting it."""

_SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")
_START_SECONDS = 20.0
_LOOK, _END_SECONDS = 2.0, 8.0
_CHUNK = 1 << 20
_LINE = 16 << 20


class Exit(NamedTuple):
    """Is how the agent's process ended, as its shim wrote it; `code` is negative for a signal."""

    code: int
    seconds: float


class LaneResult(NamedTuple):
    """Is how a lane ended: its state, why, the agent's own account, and how its process ended (None: it vanished)."""

    state: State
    reason: str
    ending: Ending
    exit: Exit | None
    seconds: float
    tools: int
    level: str
    stderr: str


class Supervised:
    """Is a lane that is followed; used by one thread."""

    def __init__(self, order: Order, tell: Callable[[Event], None] = lambda event: None) -> None:
        self.order, self.tell = order, tell
        self.folder = order.folder
        self.reader = order.adapter.reader()
        self.tools = self.turns = self.tokens = 0
        self.stands = Judgement("preparing")
        self._asked_to_end: Judgement | None = None
        self._rest = b""
        self._read = 0
        self._told = _offset(self.folder)
        self._began = clock.monotonic()
        self._output = self._progress = self._result = 0.0
        self._needs_input = False
        self._work = processes.Work(0, 0.0, 0)
        self._looked = self._began
        self._offered: Collection[str] = ()
        self._shim: subprocess.Popen[bytes] | None = None

    # beginning

    def start(self, kept: bytes = b"{}") -> None:
        """Starts the lane; `E_HARNESS`, `E_ADAPTER_MISMATCH` or `E_CAGE_UNAVAILABLE` when it can't be.

        `kept` is put into its folder for whoever adopts it.
        """
        prepare(self.order)
        put_file(self.folder, KEPT, kept)
        _, python = rooms.python()
        try:
            self._shim = subprocess.Popen(
                [python, "-I", "-S", _SHIM, self.folder], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True, cwd="/", env={"PATH": os.defpath},
            )  # fmt: skip
        except OSError as error:
            raise os_error(error, "start of a lane's shim") from None
        assert self._shim.stdout is not None
        with self._shim.stdout as said:
            heard = select.poll()
            heard.register(said, select.POLLIN)
            heard.poll(1000 * _START_SECONDS)  # it closes this once the lane is there for others to see
        if not os.path.exists(os.path.join(self.folder, "proc.json")):
            raise HarnessError("the lane's shim did not start", program=python)

    def leave(self) -> None:
        """Lets go of a lane that this process started, for another to adopt."""
        if self._shim is not None:
            self._shim.returncode = 0  # nobody here waits for it any more
            self._shim = None

    def adopt(self) -> bool:
        """Goes on with a lane that another supervisor started; says whether it still runs."""
        self._began = clock.monotonic() - _age(self.folder)
        return is_alive(self.folder)

    # following

    def step(self) -> LaneResult | None:
        """Takes what the agent said since the last step and judges how it stands; gives the result once it ended."""
        running = is_alive(self.folder)
        self._take()
        if not running:
            self._take()
            return self._ended()
        now = clock.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            self._look(now)
        if self._asked_to_end is None:
            facts = self._facts(now)
            self.stands = self._tools_missing() or waits.judge(facts, self.order.limits, self.order.waits)
            if self.stands.end:
                self.end(self.stands)
        return None

    @property
    def pid(self) -> int:
        """Gives the shim's process id; 0 when it is not known."""
        return int(_read(self.folder, "proc.json").get("pid", 0))

    def wait(
        self,
        stop: Callable[[], bool] = lambda: False,
        pause: float = 0.05,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> LaneResult:
        """Follows the lane to its end, or until it is to be stopped; `meanwhile` is called between steps."""
        while True:
            result = self.step()
            meanwhile()
            if result is not None:
                return result
            if stop() and self._asked_to_end is None:
                self.end(Judgement("cancelled", "it was stopped", end=True))
            pid = self.pid
            if not pid or (until_one_ended([pid], pause) and is_alive(self.folder)):
                time.sleep(pause)  # its shim can't be seen from here, as from another container

    def _take(self) -> None:
        """Reads what is new on standard output."""
        try:
            with open(os.path.join(self.folder, "stdout"), "rb") as file:
                file.seek(self._read)
                while data := file.read(_CHUNK):
                    self._read += len(data)
                    self._output = clock.monotonic()
                    *lines, rest = (self._rest + data).split(b"\n")
                    self._rest = rest[-_LINE:]
                    at = self._read - len(rest) - sum(len(line) + 1 for line in lines)
                    for line in lines:
                        at += len(line) + 1
                        self._line(line, fresh=at > self._told)
        except FileNotFoundError:
            return
        if self._read - len(self._rest) > self._told:
            self._told = self._read - len(self._rest)
            _put_offset(self.folder, self._told)

    def _line(self, line: bytes, *, fresh: bool) -> None:
        for event in self.reader.line(line):
            if event.kind == "started" and not self.order.gateway:
                self._offered = event.facts.get("tools") or ()
            elif event.kind == "tool":
                self.tools += 1
                self._needs_input = False
            elif event.kind == "turn":
                self.turns += 1
            elif event.kind == "usage":
                told = event.facts.get("tokens") or {}
                self.tokens += sum(count for kind, count in told.items() if kind != "reasoning")
            elif event.kind == "needs_input":
                self._needs_input = True
            elif event.kind == "result":
                self._result = clock.monotonic()
                if self.order.adapter.steer("") is not None:
                    self.ask({"do": "close"})  # it waits for more on its input, and there is no more
            if fresh:
                self.tell(event)

    def _look(self, now: float) -> None:
        proc = _read(self.folder, "proc.json")
        work = processes.work(int(proc.get("pid", 0))) if proc.get("pid") else self._work
        if work.cpu > self._work.cpu + 0.05 or work.moved > self._work.moved + 4096:
            self._progress = now
        self._work = work

    def _facts(self, now: float) -> Facts:
        facts = Facts(self._began, now, progress=self._progress, output=self._output, result=self._result,
                      turns=self.turns, tokens=self.tokens, needs_input=self._needs_input)  # fmt: skip
        if not self.order.gateway:
            return facts
        facts = facts._replace(tokens=0, refused=False)
        seen = read_activity(os.path.join(self.order.gateway, "activity"), self.order.id)
        if seen is None:
            return facts
        self._offered = seen.tools
        shift = clock.monotonic() - time.time()  # its times are of another clock

        def at(when: float) -> float:
            return when + shift if when else 0.0

        return facts._replace(open=seen.open, sent=at(seen.sent), byte=at(seen.byte), ended=at(seen.ended),
                              wants_tool=seen.wants_tool, limited=at(seen.limited), until=at(seen.until),
                              tokens=seen.tokens.total, dollars=seen.cost.dollars,
                              refused=seen.error == f"budget: lane:{self.order.id}")  # fmt: skip

    def _tools_missing(self) -> Judgement | None:
        """Gives the end of an agent whose model was offered tools, but not its servers': no fault of its own."""
        if not self._offered or not self.order.adapter.offers_tools:
            return None
        lost = door.missing(self.order.servers, self._offered)
        return Judgement("dead", f"tools_missing: {', '.join(lost)}"[:500], end=True) if lost else None

    # steering and ending

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """Asks the shim for something; an empty answer when it is gone."""
        return ask(self.folder, what)

    def steer(self, text: str) -> bool:
        """Tells the agent something in mid-run; says whether it can hear it."""
        words = self.order.adapter.steer(text)
        return words is not None and bool(self.ask({"do": "input", "data": words.decode("utf-8")}).get("ok"))

    def interrupt(self) -> bool:
        """Stops what the agent does, so that it waits for the next word; says whether it can."""
        words = self.order.adapter.interrupt()
        return words is not None and bool(self.ask({"do": "input", "data": words.decode("utf-8")}).get("ok"))

    def end(self, why: Judgement) -> None:
        """Ends the lane with everything in it."""
        self._asked_to_end = self.stands = why
        end(self.folder)

    def _ended(self) -> LaneResult:
        if self._rest:
            self._line(self._rest, fresh=True)
            self._rest = b""
        if self._shim is not None:
            self._shim.wait(10)
        left = _read(self.folder, "exit.json")
        stderr = tail(os.path.join(self.folder, "stderr"))
        ended = Exit(self._code(int(left["code"])), float(left["seconds"])) if "code" in left else None
        code = ended.code if ended is not None else -signal.SIGKILL
        if self._asked_to_end is not None and self._asked_to_end.state == "done":
            code = 0  # it was ended by us after its result, so its own word counts
        account = self.reader.ending(code, stderr)
        self._facts(clock.monotonic())
        self._asked_to_end = self._asked_to_end or self._tools_missing()
        state, reason = self._state(account, ended, stderr)
        seconds = ended.seconds if ended is not None else clock.monotonic() - self._began
        return LaneResult(state, reason, account, ended, seconds, self.tools, levels.named(self.order.level), stderr)

    def _refused(self, account: Ending) -> tuple[State, str] | None:
        """Gives the end of a lane that the gateway refused: a cassette without an answer (G2), a budget that is spent.

        A miss counts whatever the program made of it, but for one behind all that was recorded.
        """
        if not self.order.gateway:
            return None
        seen = read_activity(os.path.join(self.order.gateway, "activity"), self.order.id)
        if seen is not None and (seen.missed or (not account.ok and seen.error.startswith("cassette_miss"))):
            return "failed", (seen.missed or seen.error)[:500]
        if seen is not None and not account.ok and seen.error.startswith("budget: "):
            return "partial", seen.error[:500]
        return None

    def _code(self, code: int) -> int:
        """Gives the agent's exit code; what stands around it in a full cage tells a signal as 128 and its number."""
        return 128 - code if self.order.level == "full" and 128 < code <= 192 else code

    def _state(self, account: Ending, ended: Exit | None, stderr: str) -> tuple[State, str]:
        asked = self._asked_to_end
        if asked is not None and asked.state != "done":
            return asked.state, asked.reason
        if ended is None:
            return "dead", "its shim died"
        if ended.code == _NO_PROGRAM and not self._read and _UNSTARTED in stderr:
            raise HarnessError(stderr.splitlines()[-1][:500], hint=self.order.adapter.install)
        if told := self._refused(account):
            return told
        if account.ok:
            return "done", account.reason
        if refused := self.order.adapter.explain(stderr):
            raise AdapterMismatchError(f"{self.order.adapter.name} refused its command line: {refused}", words=refused)
        if account.reason == "max_turns":
            return "partial", account.reason
        if account.reason == "tools_missing":
            return "dead", f"tools_missing: {account.error}"[:500]
        if ended.code < 0 and account.reason in ("crashed", "no_result"):
            return "dead", f"signal {-ended.code}"
        return "failed", account.reason or "no_result"


# what is in a lane's folder


def is_alive(folder: str) -> bool:
    """Says whether a lane's shim lives, by its lock; a lane without a folder has none."""
    if not folder:
        return False
    try:
        fd = os.open(os.path.join(folder, "alive"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_unborn(folder: str) -> bool:
    """Says whether nothing of a lane was ever started, and sees to it that nothing will be: its shim may be late."""
    try:
        fd = os.open(os.path.join(folder, "alive"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return not os.path.exists(folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.exists(os.path.join(folder, "proc.json")):
            return False
        os.unlink(os.path.join(folder, "launch.json"))  # what a shim starts from, once it has the lock
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    except OSError as error:
        raise os_error(error, "look at a lane") from None
    finally:
        os.close(fd)
    return True


def ask(folder: str, what: dict[str, Any], seconds: float = 10.0) -> dict[str, Any]:
    """Asks a lane's shim for something and gives its answer; an empty one when it is gone."""
    fd = -1
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
            made.settimeout(seconds)
            made.connect(f"/proc/self/fd/{fd}/control")  # the folder's path may be too long for a socket
            made.sendall(msgspec.json.encode(what) + b"\n")
            said = b""
            while not said.endswith(b"\n") and (part := made.recv(65536)):
                said += part
            found: dict[str, Any] = msgspec.json.decode(said, type=dict)
            return found
    except (OSError, *UNREADABLE):
        return {}
    finally:
        if fd >= 0:
            os.close(fd)


def end(folder: str, grace: float = 2.0) -> None:
    """Ends a lane with everything in it: a word, then a kill; what is caged dies with its cage."""
    if not folder:
        return
    ask(folder, {"do": "signal", "signal": int(signal.SIGTERM)})
    until = clock.monotonic() + grace
    while is_alive(folder) and clock.monotonic() < until:
        time.sleep(0.02)
    proc = _read(folder, "proc.json")
    if is_alive(folder) and proc.get("pid"):
        ask(folder, {"do": "signal", "signal": int(signal.SIGKILL)})
        processes.end_below(int(proc["pid"]))
    until = clock.monotonic() + _END_SECONDS
    while is_alive(folder) and clock.monotonic() < until:
        time.sleep(0.01)  # it writes down how it ended


def tail(path: str, size: int = 8000) -> str:
    """Gives the end of a file as text; empty without it."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def adapter_of(folder: str) -> str:
    """Gives the name of the harness that a lane was started with."""
    return str(_read(folder, "launch.json").get("harness", ""))


def _age(folder: str) -> float:
    at = _read(folder, "proc.json").get("at")
    return max(0.0, time.time() - at) if isinstance(at, float) else 0.0


def _offset(folder: str) -> int:
    return int(_read(folder, "told.json").get("offset", 0))


def _put_offset(folder: str, offset: int) -> None:
    put_file(folder, "told.json", msgspec.json.encode({"offset": offset}))


def put_file(folder: str, name: str, data: bytes) -> None:
    """Puts a file into a lane's folder, whole or not at all."""
    path = os.path.join(folder, name)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(f"{path}.new", "wb") as file:
            file.write(data)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise os_error(error, "write of a lane's files") from None


def _read(folder: str, name: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            found: dict[str, Any] = msgspec.json.decode(file.read(), type=dict)
            return found
    except (OSError, *UNREADABLE):
        return {}


__all__ = ["Adapter", "LaneResult", "Supervised", "adapter_of", "ask", "end", "is_alive", "is_unborn", "tail"]
