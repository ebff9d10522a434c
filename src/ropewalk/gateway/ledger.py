"""The ledger: one line of JSON for each request, when it is sent and when it is settled, and what each lane does now.

It is what budgets are told from when a gateway starts again: a request that was open when it died is charged as
estimated (G25).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Literal
from zlib import crc32

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.gateway import budget
from ropewalk.gateway.budget import Budget, Spent, Total
from ropewalk.gateway.prices import NOTHING, Cost, Mark
from ropewalk.gateway.tokens import Tokens

FILE, BEFORE = "ledger.jsonl", "ledger.1.jsonl"
"""Are the file of the last requests, and that of those before them; what is older is in sums alone."""

LARGEST = 16 << 20
"""Is how large each of them gets, in bytes."""

_KIND, _KEPT_SECONDS = ".activity", 7 * 86_400.0
_CARRIED = b'{"totals":'
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


class Carried(msgspec.Struct, frozen=True):
    """Is the first line of a file that goes on from another: the sums of all before it, by name."""

    totals: dict[str, Total]


class Ledger:
    """Appends to a gateway's ledger, and begins a new file where one is full."""

    def __init__(self, folder: str, largest: int = LARGEST) -> None:
        self.path, self._before = os.path.join(folder, FILE), os.path.join(folder, BEFORE)
        self._largest = largest
        self._open = {one.id: one for one in unsettled(folder)}
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            self._write(b"\n")  # a line that was torn must not spoil the next

    def note(self, one: Entry | Open) -> None:
        """Writes a line, whole."""
        if isinstance(one, Open):
            self._open[one.id] = one
        else:
            self._open.pop(one.id, None)
        self._write(msgspec.json.encode(one) + b"\n")

    @property
    def is_full(self) -> bool:
        """Says whether it is time for a new file."""
        return self._size >= self._largest

    def turn(self, totals: Mapping[str, Total]) -> None:
        """Begins a new file, with the sums so far and what is open; what is full takes the older one's place."""
        lines = [msgspec.json.encode(one) for one in (Carried(dict(totals)), *self._open.values())]
        part = f"{self.path}.new"
        made = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(made, b"\n".join(lines) + b"\n")
        try:
            os.unlink(f"{self._before}.new")
        except FileNotFoundError:
            pass
        os.link(self.path, f"{self._before}.new")
        os.replace(f"{self._before}.new", self._before)
        os.replace(part, self.path)  # whenever it is killed, all that counts is in the file of this name
        os.close(self._fd)
        self._fd, self._size = made, os.fstat(made).st_size

    def _write(self, data: bytes) -> None:
        self._size += os.write(self._fd, data)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


def entries(folder: str, *, older: bool = True) -> Iterator[Entry]:
    """Yields the settled requests in order; one that was open when its gateway died is there as `lost`, estimated.

    Without `older` those alone that no carried sum holds.
    """
    waiting: dict[str, Open] = {}
    for name in (BEFORE, FILE) if older else (FILE,):
        for found in _lines(os.path.join(folder, name)):
            if isinstance(found, Open):
                waiting[found.id] = found
            elif isinstance(found, Entry):
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
        elif isinstance(found, Entry):
            waiting.pop(found.id, None)
    return list(waiting.values())


def carried(folder: str) -> dict[str, Total]:
    """Gives the sums of what is in no line any more."""
    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            first = file.readline()
        return msgspec.json.decode(first, type=Carried).totals if first.startswith(_CARRIED) else {}
    except (FileNotFoundError, *UNREADABLE):
        return {}


def spent(folder: str) -> Budget:
    """Gives the account of a gateway as its ledger tells it: what was used, and what is reserved while one runs."""
    found = Budget()
    found.carry(carried(folder))
    waiting = {one.id: one for one in unsettled(folder)}
    for entry in entries(folder, older=False):
        if entry.tokens is not None and entry.id not in waiting:
            found.charge(budget.names(entry.run, entry.task, entry.upstream, entry.at, entry.lane), entry.cost,
                         entry.tokens, entry.at)  # fmt: skip
    for one in waiting.values():
        for name in budget.names(one.run, one.task, one.upstream, one.open, one.lane):
            account = found.spent.setdefault(name, Spent())
            account.reserved_requests += 1
            account.reserved_tokens += one.expected.total
            account.reserved_dollars += one.dollars or 0.0
    return found


def lost(one: Open) -> Entry:
    """Gives the entry of a request whose gateway died."""
    return Entry(
        one.id, one.open, one.lane, one.run, one.task, one.harness, one.upstream, one.model, one.wire, 0, "lost",
        one.expected, estimated=True, dollars=one.dollars, mark="*" if one.dollars is None else "≈",
    )  # fmt: skip


def _lines(path: str) -> Iterator[Entry | Open | Carried]:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(_CARRIED):
                    continue
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
    `limited` is when it was last asked to wait, `until` until when it was told to. `missed` is the first request that a
    cassette had no answer to. `mark` tells lanes of one name apart. `context` is how many tokens the last answered
    request and its answer were: what the lane's next request will hold at least.
    """

    open: int = 0
    requests: int = 0
    sent: float = 0.0
    byte: float = 0.0
    ended: float = 0.0
    wants_tool: bool = False
    status: int = 0
    limited: float = 0.0
    until: float = 0.0
    missed: str = ""
    mark: int = 0
    context: int = 0
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

    def of(self, lane: str, token: str = "") -> Activity:
        """Gives the record of a lane, to be changed and shown; with another token it is another lane of that name."""
        if lane not in self.lanes:
            self.lanes[lane] = read_activity(self._folder, lane) or Activity()
        mark = crc32(token.encode()) if token else self.lanes[lane].mark
        if mark != self.lanes[lane].mark:
            self.lanes[lane] = Activity(mark=mark)
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

    def clear(self, here: Collection[str]) -> None:
        """Removes what was shown of lanes that are not here any more, and did nothing for a week."""
        for name in os.listdir(self._folder):
            path, lane = os.path.join(self._folder, name), name.removesuffix(_KIND).replace("+", "/")
            try:
                if lane not in here and time.time() - os.stat(path).st_mtime > _KEPT_SECONDS:
                    os.unlink(path)
                    self.lanes.pop(lane, None)
                    self._written.pop(lane, None)
            except FileNotFoundError:
                continue

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
