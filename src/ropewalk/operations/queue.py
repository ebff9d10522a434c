"""The landing queue: what waits to be landed with a check, one entry closely, and taking one out."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import BusyError, InvalidError, NotFoundError
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.store.store import Store
from ropewalk.workspace import queue
from ropewalk.workspace.queue import Entry
from ropewalk.workspace.verdict import Checked

Number = Annotated[int, Meta(ge=1, le=(1 << 53), description="the entry's number, as `rw queue list` shows it")]


class QueueListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a ref, or nothing for all."""

    onto: Annotated[str, Meta(max_length=1024, description="only what waits to land on this ref")] | None = None


class QueueRow(msgspec.Struct, frozen=True):
    """Is one waiting change; `runs` counts the checks made for it so far."""

    entry: int
    onto: str
    agent: str
    changeset: str
    title: str
    since: int
    runs: int


class QueueListResponse(msgspec.Struct, frozen=True):
    """Is what waits, in the order in which it will land."""

    entries: list[QueueRow]


@operation(
    "queue list",
    request=QueueListRequest,
    response=QueueListResponse,
    summary="List the changes that wait to be landed with a check",
    errors=(InvalidError,),
)
def queue_list(ctx: Context, req: QueueListRequest) -> QueueListResponse:
    """Lists the entries whose owners live."""
    ref = check_ref(req.onto) if req.onto is not None else None
    return QueueListResponse([_row(ctx.store, e) for e in queue.entries(ctx.store, ref) if _waits(e)])


def _waits(entry: Entry) -> bool:
    return entry.state in ("waiting", "look")


def _row(store: Store, entry: Entry) -> QueueRow:
    change = entry.wanted.request.change
    return QueueRow(
        entry.id, short_ref(entry.ref), entry.wanted.request.agent, change, store.objects.commit(change).title,
        entry.at, len(queue.records_of(store, entry.id)),
    )  # fmt: skip


class QueueEntryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes an entry's number."""

    entry: Number


class QueueShowResponse(msgspec.Struct, frozen=True):
    """Is one entry: its change, its check, what runs found, and the entries before it."""

    entry: QueueRow
    command: list[str]
    seconds: float
    checks: list[Checked]
    before: list[int]


@operation(
    "queue show",
    request=QueueEntryRequest,
    response=QueueShowResponse,
    summary="Show one waiting change, its check, and what stands before it",
    errors=(NotFoundError, InvalidError),
    command=Command(positional=("entry",)),
)
def queue_show(ctx: Context, req: QueueEntryRequest) -> QueueShowResponse:
    """Shows an entry."""
    waiting = [entry for entry in queue.entries(ctx.store) if _waits(entry)]
    entry = next((e for e in waiting if e.id == req.entry), None)
    if entry is None:
        raise NotFoundError(
            f"nothing waits in the queue as {req.entry}", hint="list what waits with `rw queue list`", entry=req.entry
        )
    command = entry.wanted.command
    checks = [
        Checked(record.tree, record.verdict.rc, record.verdict.seconds, flaky=record.flaky)
        for record in queue.records_of(ctx.store, entry.id)
    ]
    before = [e.id for e in waiting if e.ref == entry.ref and e.id < entry.id]
    return QueueShowResponse(_row(ctx.store, entry), list(command.argv), command.seconds, checks, before)


class QueueCancelResponse(msgspec.Struct, frozen=True):
    """Is the entry that was taken out."""

    cancelled: int
    changeset: str


@operation(
    "queue cancel",
    request=QueueEntryRequest,
    response=QueueCancelResponse,
    summary="Take a waiting change out of the queue; whoever waits for it is told",
    errors=(NotFoundError, InvalidError, BusyError),
    writes=True,
    command=Command(positional=("entry",)),
)
def queue_cancel(ctx: Context, req: QueueEntryRequest) -> QueueCancelResponse:
    """Cancels an entry; nothing that landed is touched."""
    entry = queue.cancel(ctx.store, req.entry, ctx.agent)
    return QueueCancelResponse(entry.id, entry.wanted.request.change)
