"""Reports of runs as pages, and following a run while another process drives it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.run import line_of, watcher
from ropewalk.operations.runs import RunName
from ropewalk.operations.task import ON_A_BOARD, BoardName
from ropewalk.run.figures import Summary

if TYPE_CHECKING:
    from ropewalk.board.base import Board
    from ropewalk.run.account import Account

PATIENCE = 30.0

Format = Literal["md", "html"]


class RunsReportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a run's id, and how and where its report is wanted."""

    id: RunName
    format: (
        Annotated[Format, Meta(description="Markdown, or one HTML file; without it by the name of --into")] | None
    ) = None
    into: Annotated[str, Meta(min_length=1, max_length=4096, description="the file to write, or to replace")] | None = (
        None
    )
    board: BoardName | None = None


class RunsReportResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a report: its text, or the file that it was written to."""

    id: str
    format: Format
    bytes: int
    text: str = ""
    file: str = ""


@operation(
    "runs report",
    request=RunsReportRequest,
    response=RunsReportResponse,
    summary="Report a run: what landed by whom, what failed and why, its graph, time and costs; Markdown or HTML",
    errors=(*ON_A_BOARD, NotFoundError, InvalidError),
    tool="",
    store=False,
    command=Command(positional=("id",)),
)
def runs_report(ctx: Context, req: RunsReportRequest) -> RunsReportResponse:
    """Reports a run as its board and the operation log have it now, a running one too; nothing of it is written down.

    The HTML file holds its style and drawings, and loads nothing. Costs are those that this host's journal has.
    """
    from ropewalk.core import durable
    from ropewalk.run.pages import html, markdown

    named = (req.into or "").lower()
    form: Format = req.format or ("html" if named.endswith((".html", ".htm")) else "md")
    account = _account(ctx, req.id, req.board)
    text = (html if form == "html" else markdown).page(account)
    data = text.encode("utf-8")
    if req.into is None:
        return RunsReportResponse(req.id, form, len(data), text)
    path = ctx.path(req.into)
    part = f"{path}.{os.getpid()}.part"  # beside it, and no file that somebody has
    try:
        durable.replace(path, data, part=part)
    except OSError as error:
        if os.path.lexists(part):
            os.unlink(part)
        words = f"{req.into!r} can't be written: {error.strerror}"
        raise InvalidError(words, hint="name a file in a folder that is there", path=req.into) from None
    return RunsReportResponse(req.id, form, len(data), file=path)


def _account(ctx: Context, name: str, named: str | None) -> Account:
    from ropewalk.board import runs
    from ropewalk.core import clock
    from ropewalk.run import account, drive, report

    board = ctx.board(named)
    board.refresh()
    store = ctx.store_for(board)
    found = runs.read(board, name)
    if found is None:
        return account.of_imported(store, report.load(store.layout, name), clock.now())
    there = report.shown(store.layout, found.id)
    branch = there.branch if there is not None else None
    return account.of_run(board, store, found, living=drive.living(store, found.id), branch=branch, now=clock.now())


class WatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes which run to follow; without one all tasks of the board."""

    run: (
        Annotated[str, Meta(min_length=1, max_length=100, description="the run; without it the whole board")] | None
    ) = None
    patience: Annotated[
        float, Meta(ge=0, le=86_400, description="how many seconds to wait for a run that nobody works on")
    ] = PATIENCE
    board: BoardName | None = None


class WatchResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is how the run stood when it ended; nothing where a whole board was followed."""

    run: Summary | None = None


@operation(
    "watch",
    request=WatchRequest,
    response=WatchResponse,
    summary="Follow a run that another process drives, or all tasks of a board, until it ends",
    errors=(*ON_A_BOARD, NotFoundError),
    tool="",
    store=False,
    command=Command(positional=("run?",)),
)
def watch(ctx: Context, req: WatchRequest, gone: Callable[[], bool] = lambda: False) -> WatchResponse:
    """Follows; exit codes are those of the run.

    It prints JSON lines, of which the last is the envelope, or lines for a person, drawn in place on a terminal. A run
    that a process of this host drives is followed by its events, any other by the board. A board is followed until
    none of its tasks is open or worked on.
    """
    from ropewalk.board import runs
    from ropewalk.run import drive, figures, following

    board: Board = ctx.board(req.board)
    board.refresh()
    show = watcher(ctx)
    if req.run is None:
        tell = ctx.watch if ctx.watch is not None else lines_to(ctx.progress)
        for event in following.everything(board, gone):
            tell(event)
        return WatchResponse()
    store = ctx.store_for(board)
    found = runs.need(board, req.run)
    for event in following.follow(board, store, found, req.patience, gone):
        show(event)
    if gone():
        return WatchResponse()  # whoever looked on went away, which is no end of the run
    ended = drive.shown(board, store, runs.need(board, req.run))
    ctx.exit = figures.exit_code(ended)
    return WatchResponse(ended)


def lines_to(say: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    """Gives what says each event that is worth a line."""

    def show(event: dict[str, Any]) -> None:
        line = told(event)
        if line is not None:
            say(line)

    return show


def told(event: dict[str, Any]) -> str | None:
    """Gives an event of a run or of a board as a line, None for one that is not worth a line."""
    if event["event"] != "task":
        return line_of(event)
    who = f" by {event['worker']}" if event["worker"] else ""
    what = f" {event['landed'][:12]}" if event["landed"] else f": {event['why']}" if event["why"] else ""
    return f"{event['task']}: {event['state']}{who}{what}"
