"""The ledger: one line of JSON for each request, when it is sent and when it is settled, and what each lane does now.

It is what budgets are told from when a gateway starts again: a request that was open when it died is charged as
estimated (G25).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Literal
from zlib import crc32

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.gateway.prices import NOTHING, Cost, Mark
from ropewalk.gateway.tokens import Tokens

FILE = "ledger.jsonl"
_KIND = ".activity"
_LOOKS = 20
Outcome = Literal["answered", "failed", "cut", "cancelled", "refused", "lost"]
"""Is how a request ended: `cut` in the middle of an answer, `cancelled` by the program, `lost` with the gateway."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one request, settled; `at` is when it came, in seconds since 1970, times are in milliseconds.

    `tokens` is None where nothing was used.
    """

    id: str
    at: float
    lane: str
    run: str
    task: str
    harness: str
    upstream: str
    model: str
    wire: str
    status: int
    outcome: Outcome
    tokens: Tokens | None = None
    estimated: bool = False
    dollars: float | None = None
    mark: Mark = ""
    first_ms: float | None = None
    total_ms: float = 0.0
    answer: str = ""
    stop: str = ""
    wants_tool: bool = False
    tries: int = 1
    error: str = ""

    @property
    def cost(self) -> Cost:
        """Gives the cost."""
        return Cost(self.dollars, self.mark)


class Open(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a request that was sent and is not settled: what it is expected to use and to cost, and who sent it."""

    id: str
    open: float
    lane: str
    run: str
    task: str
    harness: str
    upstream: str
    model: str
    wire: str
    expected: Tokens
    dollars: float | None = None


class Ledger:
    """Appends to a gateway's ledger."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, FILE)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # a line that was torn must not spoil the next

    def note(self, one: Entry | Open) -> None:
        """Writes a line, whole."""
        os.write(self._fd, msgspec.json.encode(one) + b"\n")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


def entries(folder: str) -> Iterator[Entry]:
    """Yields the settled requests in order; one that was open when its gateway died is there as `lost`, estimated."""
    waiting: dict[str, Open] = {}
    for found in _lines(os.path.join(folder, FILE)):
        if isinstance(found, Open):
            waiting[found.id] = found
        else:
            waiting.pop(found.id, None)
            yield found
    for one in waiting.values():
        yield lost(one)


def unsettled(folder: str) -> list[Open]:
    """Gives the requests that were sent and never settled."""
    waiting: dict[str, Open] = {}
    for found in _lines(os.path.join(folder, FILE)):
        if isinstance(found, Open):
            waiting[found.id] = found
        else:
            waiting.pop(found.id, None)
    return list(waiting.values())


def lost(one: Open) -> Entry:
    """Gives the entry of a request whose gateway died."""
    return Entry(
        one.id, one.open, one.lane, one.run, one.task, one.harness, one.upstream, one.model, one.wire, 0, "lost",
        one.expected, estimated=True, dollars=one.dollars, mark="*" if one.dollars is None else "≈",
    )  # fmt: skip


def _lines(path: str) -> Iterator[Entry | Open]:
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    yield msgspec.json.decode(line, type=Open if b'"open":' in line[:80] else Entry)
                except UNREADABLE:
                    continue  # a line torn by a power loss
    except FileNotFoundError:
        return


class Activity(msgspec.Struct, omit_defaults=True):
    """Is what a lane's traffic does now, as the supervisor of the lane reads it (G10); times in seconds since 1970.

    `open` counts requests on their way. `wants_tool` says that the last answer asked for a tool. `tokens` and `cost`
    are the sums of what was settled. `tools` are those that the first request that offers any offers its model.
    """

    open: int = 0
    requests: int = 0
    sent: float = 0.0
    byte: float = 0.0
    ended: float = 0.0
    wants_tool: bool = False
    status: int = 0
    limited: float = 0.0
    error: str = ""
    tokens: Tokens = Tokens()
    cost: Cost = NOTHING
    tools: tuple[str, ...] = ()


class Activities:
    """Keeps a file for each lane that says what its traffic does."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "activity")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self.lanes: dict[str, Activity] = {}
        self._written: dict[str, float] = {}

    def of(self, lane: str) -> Activity:
        """Gives the record of a lane, to be changed and shown."""
        if lane not in self.lanes:
            self.lanes[lane] = read_activity(self._folder, lane) or Activity()
        return self.lanes[lane]

    def begin(self) -> list[str]:
        """Says of every lane that nothing is open, and gives those that had something open when a gateway died."""
        found = []
        for name in os.listdir(self._folder):
            lane = name.removesuffix(_KIND).replace("+", "/")
            if name.endswith(_KIND) and self.of(lane).open:
                self.of(lane).open = 0
                self.show(lane)
                found.append(lane)
        return found

    def show(self, lane: str, *, now: bool = True) -> None:
        """Writes a lane's file; without `now` at most once a second."""
        at = time.monotonic()
        if not now and at - self._written.get(lane, -1.0) < 1.0:
            return
        self._written[lane] = at
        text = msgspec.json.encode(self.of(lane))
        # in place, in one write: a rename over a file makes ext4 write it out, which takes a busy disk 15 ms
        fd = os.open(os.path.join(self._folder, file_name(lane)), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, b"%08x %s\n" % (crc32(text), text), 0)
        finally:
            os.close(fd)


def file_name(lane: str) -> str:
    """Gives the name of a lane's file."""
    return lane.replace("/", "+") + _KIND


def read_activity(folder: str, lane: str) -> Activity | None:
    """Gives what a lane's traffic does, from the gateway's folder `activity`; None when it sent nothing yet."""
    path = os.path.join(folder, file_name(lane))
    for _ in range(_LOOKS):
        try:
            with open(path, "rb") as file:
                sum_, _, text = file.read().partition(b"\n")[0].partition(b" ")
            if int(sum_, 16) == crc32(text):
                return msgspec.json.decode(text, type=Activity)
        except OSError:
            return None
        except (ValueError, *UNREADABLE):
            pass
        time.sleep(0.001)  # it was read while it was written
    return None
