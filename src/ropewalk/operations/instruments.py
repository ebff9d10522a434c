"""Instruments of a board: audit, who did what, what was corrected, how long it took, one task's story, and numbers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ropewalk.board import attribution as attributions
from ropewalk.board import debug as debugging
from ropewalk.board import durations as lengths
from ropewalk.board import graph as graphs
from ropewalk.board import metrics as measured
from ropewalk.board.attribution import Attribution
from ropewalk.board.audit import Audit, audit
from ropewalk.board.debug import Story
from ropewalk.board.durations import Durations, Line
from ropewalk.board.graph import CorrectionGraph, DependencyGraph
from ropewalk.board.metrics import Metrics
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, BoardName, BoardRequest, TaskName, TaskRequest

Seconds = Annotated[float, Meta(gt=0, le=1e9)]


class BoardAuditRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes tasks to look at; without any all of them."""

    tasks: Annotated[list[TaskName], Meta(max_length=100_000, description="only these tasks")] = []
    board: BoardName | None = None


@operation(
    "board audit",
    request=BoardAuditRequest,
    response=Audit,
    summary="Say whether what a board says is true; exit 10 when something is wrong",
    errors=ON_A_BOARD,
    tool="",
    store=False,
    command=Command(positional=("tasks*",)),
)
def board_audit(ctx: Context, req: BoardAuditRequest) -> Audit:
    """Audits; what is in flight and what honestly failed is healthy."""
    board = ctx.board(req.board)
    board.refresh()
    found = audit(board, req.tasks)
    if not found.healthy:
        ctx.exit = 10
    return found


class BoundRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a bound in seconds."""

    bound: Annotated[float, Meta(gt=0, le=1e9, description="a claim older than this is taken for interrupted")] = 1800.0
    board: BoardName | None = None


@operation(
    "board attribution",
    request=BoundRequest,
    response=Attribution,
    summary="Show who made which attempt, with which model and agent program, and how it ended",
    errors=ON_A_BOARD,
    tool="",
    store=False,
)
def board_attribution(ctx: Context, req: BoundRequest) -> Attribution:
    """Attributes attempts, archived ones too."""
    board = ctx.board(req.board)
    board.refresh()
    return attributions.attribution(board, bound=req.bound)


class BoardGraphRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes which graph, and in which form."""

    kind: Annotated[Literal["needs", "corrections"], Meta(description="what needs what, or who corrected whom")] = (
        "needs"
    )
    form: Annotated[Literal["dot", "mermaid"], Meta(description="also as text for Graphviz or Mermaid")] | None = None
    board: BoardName | None = None


class BoardGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the graph that was asked for; `drawn` is it as text for another program."""

    needs: DependencyGraph | None = None
    corrections: CorrectionGraph | None = None
    drawn: str = ""


@operation(
    "board graph",
    request=BoardGraphRequest,
    response=BoardGraph,
    summary="Show what needs what, or which attempts corrected which",
    errors=ON_A_BOARD,
    tool="",
    store=False,
)
def board_graph(ctx: Context, req: BoardGraphRequest) -> BoardGraph:
    """Gives a graph."""
    board = ctx.board(req.board)
    board.refresh()
    if req.kind == "corrections":
        return BoardGraph(corrections=graphs.correction_graph(board))
    found = graphs.dependency_graph(board)
    return BoardGraph(needs=found, drawn=graphs.drawn(found, req.form) if req.form is not None else "")


class DurationsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a bound in seconds."""

    bound: Annotated[float, Meta(gt=0, le=1e9, description="how long an agent may take")] = 600.0
    board: BoardName | None = None


@operation(
    "board durations",
    request=DurationsRequest,
    response=Durations,
    summary="Show how long agents took, by model",
    errors=ON_A_BOARD,
    tool="",
    store=False,
)
def board_durations(ctx: Context, req: DurationsRequest) -> Durations:
    """Gives durations of all attempts that had a verdict."""
    board = ctx.board(req.board)
    board.refresh()
    return lengths.durations(board, bound=req.bound)


class Timeline(msgspec.Struct, frozen=True):
    """Is when each attempt's task was added, began and ended, in seconds since 1970."""

    board: str
    attempts: list[Line]


@operation(
    "board timeline",
    request=BoardRequest,
    response=Timeline,
    summary="Show when each attempt began and ended",
    errors=ON_A_BOARD,
    tool="",
    store=False,
)
def board_timeline(ctx: Context, req: BoardRequest) -> Timeline:
    """Gives the attempts in the order in which they began."""
    board = ctx.board(req.board)
    board.refresh()
    return Timeline(board.name, lengths.durations(board).timeline)


@operation(
    "board debug",
    request=TaskRequest,
    response=Story,
    summary="Tell a task's whole story: spec, claims, checkpoints, returns, verdicts, the archive",
    errors=ON_A_BOARD,
    tool="",
    store=False,
    command=Command(positional=("task",)),
)
def board_debug(ctx: Context, req: TaskRequest) -> Story:
    """Tells a story."""
    board = ctx.board(req.board)
    board.refresh()
    return debugging.debug(board, req.task)


class MetricsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes files of events, as `rw work --events` and flockwork's workers write them."""

    files: Annotated[list[str], Meta(max_length=1000, description="files of events, one JSON object a line")] = []
    dora: Annotated[bool, Meta(description="also the five numbers of DORA")] = False
    board: BoardName | None = None


@operation(
    "metrics",
    request=MetricsRequest,
    response=Metrics,
    summary="Count claims, races, verdicts and heirs, from files of events or from a board itself",
    errors=ON_A_BOARD,
    tool="",
    store=False,
    command=Command(positional=("files*",)),
)
def metrics(ctx: Context, req: MetricsRequest) -> Metrics:
    """Counts what files tell of, and what a board tells of where one is named or no file is."""
    found = measured.read([ctx.path(name) for name in req.files]) if req.files else None
    if found is None or req.board is not None:
        board = ctx.board(req.board)
        board.refresh()
        there = measured.of_board(board)
        found = there if found is None else measured.merge(found, there)
    return measured.summary(found, with_dora=req.dora)
