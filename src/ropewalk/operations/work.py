"""The worker of a board: it takes tasks, has agents do them, and lands what passes its check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.board.base import Board
from ropewalk.core.errors import InvalidError
from ropewalk.operations import crew
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, BoardName, TaskName
from ropewalk.run.work.options import CHECK_SECONDS, SECONDS, Options, Report
from ropewalk.store.store import Store

STOPPED = 130


class WorkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes which tasks to do, who does them, and when to end."""

    tasks: Annotated[list[TaskName], Meta(max_length=100_000, description="only these tasks")] = []
    command: crew.Command | None = None
    harness: crew.Harness | None = None
    cage: crew.Cage | None = None
    model: Annotated[str, Meta(max_length=200, description="the model, as claims and verdicts name it")] = ""
    worker: Annotated[str, Meta(max_length=64, description="the worker's name; without it made of --as")] | None = None
    once: Annotated[bool, Meta(description="do one task, then end")] = False
    until_empty: Annotated[bool, Meta(description="end when no task is left to do")] = False
    jobs: Annotated[int, Meta(ge=1, le=256, description="how many tasks at once")] = 1
    seconds: Annotated[float, Meta(gt=0, le=604_800, description="how long an agent's turn may take")] = SECONDS
    check_seconds: Annotated[float, Meta(gt=0, le=604_800, description="how long a check may take")] = CHECK_SECONDS
    attempts: Annotated[int, Meta(ge=1, le=100, description="turns of an agent at one task")] = 3
    heirs: Annotated[int, Meta(ge=0, le=100, description="tries anew after a death that was no fault of the work")] = 1
    patience: (
        Annotated[float, Meta(ge=0, le=1e9, description="with --until-empty: how long claims of others are waited for")]
        | None
    ) = None
    events: (
        Annotated[str, Meta(max_length=4096, description="a file that gets each event as a line of JSON")] | None
    ) = None
    pass_env: crew.PassEnv = []
    record: crew.Record | None = None
    replay: crew.Replay | None = None
    budget: crew.Budget | None = None
    max_tokens: crew.MaxTokens | None = None
    board: BoardName | None = None


@operation(
    "work",
    request=WorkRequest,
    response=Report,
    summary="Work on a board: take tasks, have agents do them, land what passes; watches until stopped",
    errors=(*ON_A_BOARD, *crew.LANES),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("tasks*",)),
)
def work(ctx: Context, req: WorkRequest) -> Report:
    """Works; exit code 10 when claims of others were left, 1 when it gave up, 130 when it was stopped."""
    from ropewalk.board.local import LocalBoard
    from ropewalk.operations.steps import landing_for
    from ropewalk.run.interrupts import Interrupts
    from ropewalk.run.work.loop import work as run

    if req.once and req.until_empty:
        raise InvalidError("--once or --until-empty, not both")
    staff = crew.staff(ctx, req.harness, req.command, model=req.model)
    ways = crew.ways(
        ctx, staff, cage=req.cage, pass_env=req.pass_env, tape=crew.tape(ctx, req.record, req.replay),
        budget=req.budget, max_tokens=req.max_tokens,
    )  # fmt: skip
    worker = req.worker or ctx.agent.replace("/", "-")[:64]
    board = ctx.board(req.board)
    board.refresh()
    store = ctx.store_for(board)
    sink = _Events(ctx.path(req.events) if req.events is not None else None, _shown(ctx))
    try:
        with Interrupts() as interrupts:
            options = Options(
                worker=worker, harness=staff.adapters[0], caller=ctx.env, data_home=ctx.data_home,
                stop=interrupts.stopped, emit=sink, model=req.model, only=tuple(req.tasks), once=req.once,
                until_empty=req.until_empty,
                jobs=req.jobs, seconds=req.seconds, check_seconds=req.check_seconds, attempts=req.attempts,
                heirs=req.heirs, patience=req.patience,
                another=None if isinstance(board, LocalBoard) else another(ctx, req.board),
                landing=landing_for(board), ways=ways, staff=staff,
            )  # fmt: skip
            done = run(board, store, options)
    finally:
        sink.close()
    ctx.exit = STOPPED if done.ended == "stopped" else done.exit
    return done


def another(ctx: Context, named: str | None = None) -> Callable[[Store], Board]:
    """Gives what opens the named board for another thread's store."""
    from ropewalk.board import opening

    meant = opening.find(named, ctx.env, ctx.cwd, ctx.named_root)
    return lambda store: opening.open_board(meant, ctx.cache_home, wait=ctx.remote_wait)


class _Events:
    """Gets a worker's events: a line of JSON for each in a file, and those that a person wants to see."""

    def __init__(self, path: str | None, show: Callable[[dict[str, Any]], None]) -> None:
        import threading

        self._show = show
        self._guard = threading.Lock()
        self._file = None
        if path is not None:
            try:
                self._file = open(path, "ab")
            except OSError as error:
                raise InvalidError(f"{path!r} can't be written: {error.strerror}", path=path) from None

    def __call__(self, kind: str, **facts: object) -> None:
        from ropewalk.core import clock

        event = {"event": kind, "ts": clock.now(), **facts}
        with self._guard:
            if self._file is not None:
                self._file.write(msgspec.json.encode(event, enc_hook=str) + b"\n")
                self._file.flush()
            self._show(event)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


def _shown(ctx: Context) -> Callable[[dict[str, Any]], None]:
    def show(event: dict[str, Any]) -> None:
        line = line_of(event)
        if line is not None:
            ctx.progress(line)

    return show


def line_of(event: dict[str, Any]) -> str | None:
    """Gives a worker's event as a line for a person, None for one that is not worth a line."""
    kind, task = event["event"], event.get("task", "")
    if kind == "claim" and event.get("outcome") == "won":
        return f"{task}: claimed ({event['att']})"
    if kind == "claim" and event.get("outcome") == "structural":
        return f"{task}: the claim was refused: {event.get('reason', '')}"
    if kind == "agent_ended" and event.get("how") != "done":
        return f"{task}: the agent {event['how']} ({event['code']})"
    if kind == "attempt_failed":
        return f"{task}: the check ended with {event['rc']}; back to its agent"
    if kind == "conflict":
        return f"{task}: conflict in {', '.join(event['paths'])}; back to its agent"
    if kind == "attempted":
        reason = f": {event['reason']}" if event.get("reason") else ""
        landed = f" {event['landed'][:12]}" if event.get("landed") else ""
        return f"{task}: {event['how']}{landed}{reason}"
    if kind == "takeover":
        return f"{task}: goes on where a dead worker left it ({event['att']})"
    if kind == "eviction":
        return f"{task}: taken from {event['att']}: {event['reason']}"
    if kind == "origin_unreachable":
        return f"the board is out of reach: {event.get('reason', '')}"
    if kind == "refused":
        return f"the board refused: {event.get('reason', '')}"
    if kind == "waiting":
        return f"waiting: {event['reason']}"
    if kind == "limit_reached":
        return f"{task}: its limit of {event['limit']} is used up"
    if kind == "limit_uncounted":
        return f"{task}: its limit of {event['limit']} can't be held: nobody counts that"
    if kind == "store_busy":
        return f"waiting: {event.get('reason', '')}"
    return None
