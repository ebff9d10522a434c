"""Tasks of a board: add them from a file, list them, show one, and take them back or open them anew."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ropewalk.board import names, state, tasks, wire
from ropewalk.board.base import Board
from ropewalk.board.claim import As
from ropewalk.board.state import Status
from ropewalk.core.errors import (
    BusyError,
    CasMismatchError,
    ClaimedError,
    InvalidError,
    NoBoardError,
    NotFoundError,
    RemoteError,
    StoreCorruptError,
    StoreFormatError,
    UnsupportedError,
)
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation

BoardName = Annotated[
    str,
    Meta(min_length=1, max_length=4096, description="the board: a store's folder or a repository's URL"),
]
TaskName = Annotated[str, Meta(min_length=1, max_length=240, description="the task's id")]
ON_A_BOARD = (
    NoBoardError, NotFoundError, InvalidError, UnsupportedError, RemoteError, BusyError, StoreFormatError,
    StoreCorruptError,
)  # fmt: skip
"""Is what every operation on a board may answer."""
State = Literal[
    "open", "closed", "ready", "waiting", "claimed", "pending", "done", "failed", "infrastructure", "cancelled", "half",
    "invalid",
]  # fmt: skip


class TaskAddRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task file."""

    file: Annotated[str, Meta(min_length=1, description="JSON, JSON lines, TOML or Markdown; - for standard input")]
    update: Annotated[bool, Meta(description="give tasks that nobody has claimed their new spec")] = False
    board: BoardName | None = None
    text: Annotated[str, Meta(description="what the file holds, where it is not on disk")] | None = None


class TasksAdded(msgspec.Struct, frozen=True):
    """Is what was added: new tasks, those with a new spec, and those that were there as they are."""

    board: str
    added: list[str]
    changed: list[str]
    unchanged: list[str]


@operation(
    "task add",
    request=TaskAddRequest,
    response=TasksAdded,
    summary="Put the tasks of a file on a board, all or none",
    errors=(*ON_A_BOARD, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("file",), hidden=("text",), input=("file", "text")),
)
def task_add(ctx: Context, req: TaskAddRequest) -> TasksAdded:
    """Adds tasks; a file with anything wrong in it adds none and says all of it."""
    from ropewalk.plan import taskfile

    found = taskfile.parse(_content(ctx, req), req.file)
    board = ctx.board(req.board)
    board.refresh()
    new, changed = tasks.add(board, found, ctx.agent, update=req.update, tell=ctx.progress)
    told = {*new, *changed}
    for target in sorted({task.target for task in found if board.ref(names.branch(task.target)) is None}):
        ctx.warnings.append(f"there is no branch {target} yet; a task names another as `target: BRANCH`")
    return TasksAdded(board.name, new, changed, [task.id for task in found if task.id not in told])


def _content(ctx: Context, req: TaskAddRequest) -> bytes:
    from ropewalk.plan.taskfile import MAX_FILE

    if req.text is not None:
        return req.text.encode("utf-8", "surrogateescape")
    with ctx.read_file(req.file) as file:
        return file.read(MAX_FILE + 1)


class TaskRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one task in a list; `why` says what it waits for, who has it, or how it ended."""

    id: str
    state: str
    title: str
    why: str = ""
    priority: int = 0
    needs: list[str] = []
    attempt: str | None = None
    landed: str | None = None


class TaskListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes which tasks to list."""

    state: Annotated[State, Meta(description="only these; closed: done, failed, infrastructure, cancelled")] | None = (
        None
    )
    prefix: Annotated[str, Meta(max_length=240, description="only ids that begin with it")] = ""
    after: Annotated[str, Meta(max_length=240, description="`next` of the page before")] = ""
    limit: Annotated[int, Meta(ge=1, le=100_000, description="tasks at most")] = 1000
    board: BoardName | None = None


class TaskList(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of tasks by name, with how many there are in each state."""

    board: str
    counts: dict[str, int]
    tasks: list[TaskRow]
    next: str | None = None


@operation(
    "task list",
    request=TaskListRequest,
    response=TaskList,
    summary="List the tasks of a board and how they stand",
    errors=ON_A_BOARD,
    tool="",
    store=False,
)
def task_list(ctx: Context, req: TaskListRequest) -> TaskList:
    """Lists tasks from the board's refs alone."""
    board = ctx.board(req.board)
    board.refresh()
    return listed(board, req.state, req.prefix, req.after, req.limit)


def listed(board: Board, wanted: str | None, prefix: str, after: str, limit: int) -> TaskList:
    """Gives a page of the tasks of a board."""
    state.law(board)
    found = state.look(board, everything=True)
    counts: dict[str, int] = {}
    rows: list[TaskRow] = []
    more = None
    for status in sorted(found.values(), key=lambda s: s.id):
        counts[status.state] = counts.get(status.state, 0) + 1
        if not status.id.startswith(prefix) or status.id <= after or not _is_wanted(status, wanted):
            continue
        if len(rows) < limit:
            rows.append(row(status))
        elif more is None:
            more = rows[-1].id
    return TaskList(board.name, counts, rows, more)


def _is_wanted(status: Status, wanted: str | None) -> bool:
    if wanted in ("open", "closed"):
        return (status.state in state.CLOSED) == (wanted == "closed")
    return wanted is None or status.state == wanted


def row(status: Status) -> TaskRow:
    """Gives a task's line of a list."""
    task = status.spec.task
    attempt = status.claim.attempt if status.claim is not None else None
    landed = status.returned if status.state == "done" else None
    return TaskRow(status.id, status.state, task.name, status.why, task.priority, list(task.needs), attempt, landed)


class TaskRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task."""

    task: TaskName
    board: BoardName | None = None


class TaskShown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one task: how it stands, its spec, its claim and its verdict as fields, and what went before."""

    id: str
    state: str
    why: str
    spec: dict[str, Any]
    problems: list[str] = []
    held_back: bool = False
    attempt: str | None = None
    claim: dict[str, str] = {}
    landed: str | None = None
    verdict: dict[str, str] = {}
    earlier: list[str] = []


@operation(
    "task show",
    request=TaskRequest,
    response=TaskShown,
    summary="Show one task: its spec, who has it, how it ended, and what went before",
    errors=ON_A_BOARD,
    tool="",
    store=False,
    command=Command(positional=("task",)),
)
def task_show(ctx: Context, req: TaskRequest) -> TaskShown:
    """Shows a task."""
    board = ctx.board(req.board)
    board.refresh()
    status = need(board, req.task)
    claim, verdict = status.claim, status.verdict
    spec = msgspec.to_builtins(status.spec.task)
    earlier = [name.rsplit("@", 1)[1] for name, _ in board.below(names.archive_of("claims", req.task))]
    return TaskShown(
        status.id, status.state, status.why, spec, list(status.spec.problems), status.is_held,
        claim.attempt if claim is not None else None,
        wire.fields("\n".join(claim.lines)).values if claim is not None else {},
        status.returned, verdict.values if verdict is not None else {}, earlier,
    )  # fmt: skip


def need(board: Board, task: str) -> Status:
    """Gives the status of a task; `E_NOT_FOUND` when there is none, or its name can't be one."""
    found = state.need(board, task) if names.is_readable(task) else None
    if found is None:
        raise NotFoundError(
            f"there is no task {task[:200]!r} on the board", hint="`rw task list` shows them", task=task
        )
    return found


class BoardRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a board."""

    board: BoardName | None = None


class TaskNext(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the task to take next, None when none is ready; `ready` counts those, `waiting` says why others wait."""

    task: TaskRow | None
    ready: int
    waiting: dict[str, str] = {}


@operation(
    "task next",
    request=BoardRequest,
    response=TaskNext,
    summary="Name the task to take next",
    errors=ON_A_BOARD,
    tool="",
    store=False,
)
def task_next(ctx: Context, req: BoardRequest) -> TaskNext:
    """Gives the first ready task by priority, what hangs on it, and age; nothing is claimed."""
    board = ctx.board(req.board)
    board.refresh()
    return first(board)


def first(board: Board) -> TaskNext:
    """Gives the task to take next on a board."""
    state.law(board)
    found = state.look(board, everything=True)
    ready = [s for s in state.order(found.values()) if s.state == "ready"]
    waiting = {s.id: s.why for s in list(found.values()) if s.state in ("waiting", "invalid")}
    return TaskNext(row(ready[0]) if ready else None, len(ready), dict(list(waiting.items())[:20]))


class TaskCancelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a task and why it is not to be done."""

    task: TaskName
    note: Annotated[str, Meta(max_length=2000, description="why")] = ""
    board: BoardName | None = None


class TaskState(msgspec.Struct, frozen=True):
    """Is how a task stands now."""

    task: str
    state: str


@operation(
    "task cancel",
    request=TaskCancelRequest,
    response=TaskState,
    summary="Close a task that nobody has, without doing it",
    errors=(*ON_A_BOARD, ClaimedError, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("task",), flags={"note": "-m"}),
)
def task_cancel(ctx: Context, req: TaskCancelRequest) -> TaskState:
    """Cancels; a cancelled task stays closed until it is reopened."""
    board = ctx.board(req.board)
    board.refresh()
    need(board, req.task)
    status = tasks.cancel(board, req.task, who(ctx), req.note)
    return TaskState(status.id, status.state)


def who(ctx: Context, worker: str | None = None, harness: str | None = None, model: str = "") -> As:
    """Gives who claims: the caller, with a worker's name made of the agent's where none is given.

    The claim names no process, because this one ends with the command: only time tells whether its holder lives.
    """
    agent = ctx.agent
    return As(names.check_person(worker or agent.replace("/", "-")[:64]), agent, harness or agent.split("/")[0], model)


class TaskReopenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes tasks that are closed."""

    tasks: Annotated[list[TaskName], Meta(min_length=1, max_length=10_000, description="tasks to open again")]
    done: Annotated[bool, Meta(description="those that are done, too")] = False
    board: BoardName | None = None


class TasksOpened(msgspec.Struct, frozen=True):
    """Is which tasks were closed and are open now."""

    opened: list[str]


@operation(
    "task reopen",
    request=TaskReopenRequest,
    response=TasksOpened,
    summary="Open closed tasks again; what was said of them goes into the archive",
    errors=(*ON_A_BOARD, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("tasks*",)),
)
def task_reopen(ctx: Context, req: TaskReopenRequest) -> TasksOpened:
    """Reopens all or none; one that is open already is left as it is."""
    board = ctx.board(req.board)
    board.refresh()
    for task in req.tasks:
        need(board, task)
    return TasksOpened(tasks.reopen(board, req.tasks, ctx.agent, done=req.done))


class TaskRetryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes which of the tasks that failed to open; without any all of them."""

    tasks: Annotated[list[TaskName], Meta(max_length=10_000, description="tasks; without any all that failed")] = []
    board: BoardName | None = None


@operation(
    "task retry",
    request=TaskRetryRequest,
    response=TasksOpened,
    summary="Open the tasks that failed again, by merit or by infrastructure",
    errors=(*ON_A_BOARD, CasMismatchError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("tasks*",)),
)
def task_retry(ctx: Context, req: TaskRetryRequest) -> TasksOpened:
    """Reopens what failed; `E_INVALID` for a named task that did not."""
    board = ctx.board(req.board)
    board.refresh()
    failed = ("failed", "infrastructure", "half")
    if req.tasks:
        statuses = [need(board, task) for task in dict.fromkeys(req.tasks)]
        for status in statuses:
            if status.state not in failed:
                raise InvalidError(
                    f"{status.id} is {status.state}, so there is nothing to retry", task=status.id, state=status.state
                )
    else:
        statuses = [s for s in state.look(board, everything=True).values() if s.state in failed]
    opened = [status.id for status in statuses]
    return TasksOpened(tasks.reopen(board, opened, ctx.agent) if opened else [])


def brief_of(board: Board, task: str) -> str:
    """Gives a task's brief as it was written; `E_NOT_FOUND` when there is none."""
    return need(board, task).spec.brief.rstrip("\n") + "\n"
