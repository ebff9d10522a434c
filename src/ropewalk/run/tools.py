"""Tools for agents inside lanes: what they may ask of other parts of a run, and what they may read of the store.

Who asks is known from the door that the call came through. None of these moves a branch: a lane's work lands through
its worker, and a request for a change becomes a task that has a check like any other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from ropewalk.board.base import Board
from ropewalk.core import clock
from ropewalk.core.errors import InvalidError, RopewalkError
from ropewalk.core.ids import path_bytes
from ropewalk.core.toolschema import input_schema
from ropewalk.lane.adapter import Adapter
from ropewalk.lane.door import Answer, Tool, Who
from ropewalk.run import requests
from ropewalk.run.turn import Ways
from ropewalk.store import difftext, files, grep, history, revisions
from ropewalk.store.store import Store

PROGRESS = "progress.jsonl"
"""Is the file of a lane's folder that says how far its agent says it is."""

_MOST_PROGRESS = 1 << 20
# after these a connection may be stale, so that the next call opens the store anew
_STALE = ("E_INTERNAL", "E_IO", "E_NO_SPACE", "E_REMOTE", "E_STORE_CORRUPT", "E_STORE_FORMAT")


class Place(NamedTuple):
    """Is what one call works with."""

    store: Store
    board: Board | None


class Desk:
    """Keeps the stores that calls work with, one for each that runs at a time.

    `board` opens the run's board in a store; a run without one has no tools that need it. `tell` hears what agents
    report: who, the words, and how many percent are done.
    """

    def __init__(
        self,
        root: str,
        board: Callable[[Store], Board] | None = None,
        tell: Callable[[Who, str, float | None], object] = lambda who, text, percent: None,
    ) -> None:
        self._root, self._board, self.tell = root, board, tell
        self._free: list[Place] = []
        self._guard = threading.Lock()
        self.asking = threading.Lock()

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Gives a store, and the board, for one call."""
        with self._guard:
            found = self._free.pop() if self._free else None
        if found is None:
            store = Store(self._root)
            try:
                found = Place(store, self._board(store) if self._board is not None else None)
            except BaseException:
                store.close()
                raise
        try:
            yield found
        except RopewalkError as error:
            if error.code in _STALE:
                _close(found)
            else:
                self._give_back(found)
            raise
        except BaseException:
            _close(found)
            raise
        self._give_back(found)

    def _give_back(self, place: Place) -> None:
        with self._guard:
            self._free.append(place)

    def close(self) -> None:
        """Closes the stores; no call may run."""
        with self._guard:
            while self._free:
                _close(self._free.pop())

    def tools(self) -> list[Tool]:
        """Gives the tools."""
        found = [one for one in _TOOLS if self._board is not None or not one[4]]
        return [_Tool(self, name, description, request, function, writes)
                for name, description, request, function, _, writes in found]  # fmt: skip


@contextmanager
def equipped(
    ways: Ways,
    adapter: Adapter,
    root: str,
    folder: str,
    board: Callable[[Store], Board] | None = None,
    tell: Callable[[Who, str, float | None], object] = lambda who, text, percent: None,
) -> Iterator[Ways]:
    """Gives a worker's ways with a door that is served until the block ends; `folder` is its own, `root` the store's.

    Lanes that nothing holds, of a program that offers no tools of servers, have the user's `rw` and get no door.
    """
    if ways.level == "none" and not adapter.offers_tools:
        yield ways
        return
    from ropewalk.lane.door_server import Door

    desk = Desk(root, board, tell)
    try:
        made = Door(folder, desk.tools())
        try:
            yield ways._replace(door=made)
        finally:
            made.close()
    finally:
        desk.close()


def _close(place: Place) -> None:
    if place.board is not None:
        place.board.close()
    place.store.close()


class _Tool:
    """Is one tool of a desk."""

    def __init__(
        self, desk: Desk, name: str, description: str, request: type[msgspec.Struct],
        function: Callable[[Desk, Who, Any], msgspec.Struct], writes: bool,
    ) -> None:  # fmt: skip
        self.name, self.description, self.writes = name, description, writes
        self.schema: Mapping[str, Any] = input_schema(request)
        self._desk, self._request, self._function = desk, request, function

    def call(self, who: Who, arguments: Mapping[str, Any]) -> Answer:
        """Does it."""
        try:
            typed = msgspec.convert(arguments, self._request)
            msgspec.json.encode(typed)  # half a character is no text
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise InvalidError(f"the arguments of {self.name} are wrong: {error}", hint="see its schema") from None
        made = self._function(self._desk, who, typed)
        data = msgspec.to_builtins(made)
        text = made.text if isinstance(made, (Said, Region)) else msgspec.json.encode(data).decode("utf-8")
        return Answer(text, data)


# what agents of one run ask of each other


class Said(msgspec.Struct, frozen=True):
    """Is a plain word."""

    text: str


class Region(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what is known of a region: words, and where they come from."""

    region: str
    text: str
    sources: list[str] = []


class AskRegion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a region and a question."""

    region: Annotated[str, Meta(min_length=1, max_length=100, description="a region, or a task that works in it")]
    question: Annotated[str, Meta(min_length=1, max_length=4000)]


def _ask_region(desk: Desk, who: Who, req: AskRegion) -> Region:
    with desk.place() as place:
        text, sources = requests.known(place.store, place.board, req.region, req.question, who)
    return Region(req.region, text, sources)


class RequestChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what is to be changed by others, and how they know that it is done."""

    about: Annotated[str, Meta(min_length=1, max_length=100, description="the task or region whose part it is")]
    what: Annotated[str, Meta(min_length=1, max_length=8000, description="what is to be true afterwards, and why")]
    check: Annotated[str, Meta(min_length=1, max_length=2000, description="a shell line that passes once it is done")]


def _request_change(desk: Desk, who: Who, req: RequestChange) -> requests.Request:
    # one at a time, so that two lanes that ask for the same get one task
    with desk.asking, desk.place() as place:
        assert place.board is not None
        return requests.ask(place.board, who, req.about, req.what, req.check)


class CheckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a request."""

    id: Annotated[str, Meta(min_length=1, max_length=240, description="the id that request_change gave")]


def _check_request(desk: Desk, who: Who, req: CheckRequest) -> requests.Request:
    with desk.place() as place:
        assert place.board is not None
        return requests.stands(place.board, req.id)


class ReportProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes how far the work is."""

    text: Annotated[str, Meta(min_length=1, max_length=2000, description="one sentence for people")]
    percent: Annotated[float, Meta(ge=0, le=100, description="how much of the task is done")] | None = None


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what an agent said of its progress; `at` in milliseconds since 1970."""

    at: int
    text: str
    percent: float | None = None


def _report_progress(desk: Desk, who: Who, req: ReportProgress) -> Said:
    line = msgspec.json.encode(Progress(clock.now(), req.text, req.percent)) + b"\n"
    fd = os.open(os.path.join(who.folder, PROGRESS), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size > _MOST_PROGRESS:
            raise InvalidError("this lane has reported too much", hint="go on without reports")
        os.write(fd, line)
    finally:
        os.close(fd)
    desk.tell(who, req.text, req.percent)
    return Said("noted")


def progress(folder: str) -> list[Progress]:
    """Gives what the agent of a lane's folder has reported, in its order."""
    try:
        with open(os.path.join(folder, PROGRESS), "rb") as file:
            return [msgspec.json.decode(line, type=Progress) for line in file if line.endswith(b"\n")]
    except FileNotFoundError:
        return []


# what the store holds

Rev = Annotated[str, Meta(min_length=1, max_length=4096, description="a ref, an id, or one with ~N or ^")]
Path = Annotated[str, Meta(max_length=8192)]
After = Annotated[str, Meta(max_length=12_000, description="`next` of the page before")]


class ReadFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a file."""

    path: Path
    rev: Rev = "HEAD"
    lines: Annotated[str, Meta(max_length=32, description="lines A-B, counted from 1")] | None = None
    offset: Annotated[int, Meta(ge=0, le=(1 << 53), description="the byte to start at")] = 0


class ListDir(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a folder."""

    path: Path = ""
    rev: Rev = "HEAD"
    depth: Annotated[int, Meta(ge=1, le=256)] = 1
    after: After | None = None


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes where to start."""

    rev: Rev = "HEAD"
    path: Path = ""
    before: Annotated[str, Meta(max_length=40, description="`next` of the page before")] | None = None


class Show(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a changeset."""

    rev: Rev
    after: After | None = None


class Diff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes two revisions."""

    old: Rev
    new: Rev
    path: Path = ""
    after: After | None = None


class Grep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a pattern."""

    pattern: Annotated[str, Meta(min_length=1, max_length=4096, description="an extended regular expression")]
    rev: Rev = "HEAD"
    path: Path = ""
    ignore_case: bool = False
    after: After | None = None


def _read_file(desk: Desk, who: Who, req: ReadFile) -> files.Page:
    with desk.place() as place:
        commit = revisions.resolve(place.store, req.rev)
        return files.read(place.store, commit, _path(req.path), req.rev, offset=req.offset,
                          max_bytes=files.PAGE_BYTES, lines=files.parse_lines(req.lines))  # fmt: skip


def _list_dir(desk: Desk, who: Who, req: ListDir) -> files.Listed:
    with desk.place() as place:
        commit = revisions.resolve(place.store, req.rev)
        return files.listing(place.store, commit, _path(req.path), req.rev, depth=req.depth, limit=500,
                             after=req.after)  # fmt: skip


def _log(desk: Desk, who: Who, req: Log) -> history.LogPage:
    with desk.place() as place:
        commit = revisions.resolve(place.store, req.rev)
        return history.log(place.store, commit, path=_path(req.path), before=req.before, limit=50)


def _show(desk: Desk, who: Who, req: Show) -> history.Shown:
    with desk.place() as place:
        return history.show(place.store, revisions.resolve(place.store, req.rev), max_changes=200, after=req.after)


def _diff(desk: Desk, who: Who, req: Diff) -> difftext.Diff:
    with desk.place() as place:
        old, new = revisions.resolve(place.store, req.old), revisions.resolve(place.store, req.new)
        return difftext.diff(place.store, old, new, path=_path(req.path), after=req.after, limit=200,
                             max_bytes=files.PAGE_BYTES)  # fmt: skip


def _grep(desk: Desk, who: Who, req: Grep) -> grep.Grepped:
    with desk.place() as place:
        commit = revisions.resolve(place.store, req.rev)
        return grep.grep(place.store, commit, req.pattern, path=_path(req.path), ignore_case=req.ignore_case,
                         fixed=False, after=req.after, limit=100)  # fmt: skip


def _path(text: str) -> bytes:
    raw = path_bytes(text).strip(b"/")
    if b"\0" in raw:
        raise InvalidError("the path holds a NUL byte")
    return raw


# name, description, request, function, whether it needs a board, whether it writes
_TOOLS: tuple[tuple[str, str, type[msgspec.Struct], Callable[[Desk, Who, Any], msgspec.Struct], bool, bool], ...] = (
    ("ask_region", "Ask what is known of a part of the code that others work on", AskRegion, _ask_region, False, False),
    ("request_change", "Ask those who work on another part for a change; it becomes a task of its own", RequestChange,
     _request_change, True, True),
    ("check_request", "See what became of a requested change", CheckRequest, _check_request, True, False),
    ("report_progress", "Tell people how far your task is", ReportProgress, _report_progress, False, True),
    ("read_file", "Read a file of any revision, 64 KiB at a time", ReadFile, _read_file, False, False),
    ("list_dir", "List a folder of any revision", ListDir, _list_dir, False, False),
    ("log", "Show history, newest first", Log, _log, False, False),
    ("show", "Show one changeset and the paths it changed", Show, _show, False, False),
    ("diff", "Show what changed between two revisions", Diff, _diff, False, False),
    ("grep", "Search the files of a revision", Grep, _grep, False, False),
)  # fmt: skip
