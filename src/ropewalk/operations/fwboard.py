"""Tools of a board that flockwork lacks, under names and with answers like those of its own."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ropewalk.board import tasks
from ropewalk.core.errors import CasMismatchError, ClaimedError, ForbiddenError
from ropewalk.operations.context import Context
from ropewalk.operations.flockwork import Text, ToolText, actor_of, harness_of, opened_at, worker_of
from ropewalk.operations.registry import operation
from ropewalk.operations.task import ON_A_BOARD, State, first, listed, need, row

_SHOWN = 200


class FwListRequest(msgspec.Struct, frozen=True):
    """Takes which tasks to list."""

    origin: Text = ""
    state: State | None = None


@operation(
    "fw list",
    request=FwListRequest,
    response=ToolText,
    summary="List tasks",
    errors=ON_A_BOARD,
    tool="fw_list",
    store=False,
    board=True,
    plain=True,
)
def fw_list(ctx: Context, req: FwListRequest) -> ToolText:
    """Lists tasks, at most 200."""
    found = listed(opened_at(ctx, req.origin or None), req.state, "", "", _SHOWN)
    lines = [f"{one.state} {one.id}: {one.title}" + (f" ({one.why})" if one.why else "") for one in found.tasks]
    more = [f"… and more after {found.next}"] if found.next else []
    return ToolText("\n".join([*lines, *more]) or "no tasks", data=msgspec.to_builtins(found))


class FwBoard(msgspec.Struct, frozen=True):
    """Takes a board."""

    origin: Text = ""


@operation(
    "fw next",
    request=FwBoard,
    response=ToolText,
    summary="Name the task to take next",
    errors=ON_A_BOARD,
    tool="fw_next",
    store=False,
    board=True,
    plain=True,
)
def fw_next(ctx: Context, req: FwBoard) -> ToolText:
    """Names the next task."""
    found = first(opened_at(ctx, req.origin or None))
    text = "no task is ready" if found.task is None else f"{found.task.id}: {found.task.title}"
    return ToolText(text, data=msgspec.to_builtins(found))


class FwAddRequest(msgspec.Struct, frozen=True):
    """Takes tasks as the text of a task file."""

    tasks: Annotated[str, Meta(description='[{"id","check","description"}], or Markdown: ## id, verify: …, text')]
    origin: Text = ""


@operation(
    "fw add",
    request=FwAddRequest,
    response=ToolText,
    summary="Add tasks, all or none",
    errors=(*ON_A_BOARD, CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_add",
    store=False,
    board=True,
    plain=True,
)
def fw_add(ctx: Context, req: FwAddRequest) -> ToolText:
    """Adds tasks."""
    from ropewalk.plan import taskfile

    found = taskfile.parse(req.tasks.encode("utf-8", "surrogatepass"), "tasks")
    board = opened_at(ctx, req.origin or None)
    new, changed = tasks.add(board, found, actor_of(ctx, worker_of(ctx, ""), harness_of(ctx, "")))
    return ToolText(f"added {len(new)}: {' '.join(new)[:2000]}".rstrip(": "), data={"added": new, "changed": changed})


class FwStatusRequest(msgspec.Struct, frozen=True):
    """Takes a task, or none for the whole board."""

    task: Text = ""
    origin: Text = ""


@operation(
    "fw status",
    request=FwStatusRequest,
    response=ToolText,
    summary="How a task, or the board, stands",
    errors=ON_A_BOARD,
    tool="fw_status",
    store=False,
    board=True,
    plain=True,
)
def fw_status(ctx: Context, req: FwStatusRequest) -> ToolText:
    """Gives a task's state, or how many tasks are in each."""
    board = opened_at(ctx, req.origin or None)
    if req.task:
        found = row(need(board, req.task))
        return ToolText(f"{found.id} is {found.state} {found.why}".rstrip(), data=msgspec.to_builtins(found))
    counts = listed(board, None, "", "", 1).counts
    text = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return ToolText(text or "no tasks", data={"board": board.name, "counts": counts})


@operation(
    "fw audit",
    request=FwBoard,
    response=ToolText,
    summary="Whether what the board says is true",
    errors=ON_A_BOARD,
    tool="fw_audit",
    store=False,
    board=True,
    plain=True,
)
def fw_audit(ctx: Context, req: FwBoard) -> ToolText:
    """Audits; an unhealthy board is an answer."""
    from ropewalk.board.audit import audit

    found = audit(opened_at(ctx, req.origin or None))
    lines = [f"{one.task}: {one.words}" for one in found.findings if one.fault]
    data = msgspec.to_builtins(found)
    data.pop("tasks")
    return ToolText("\n".join(["healthy" if found.healthy else "unhealthy", *lines[:50]]), data=data)


class FwReviewRequest(msgspec.Struct, frozen=True):
    """Takes a task and what is said of its returned change."""

    task: Text
    outcome: Literal["agree", "veto"]
    evidence: Text = ""
    note: Text = ""
    origin: Text = ""


@operation(
    "fw review",
    request=FwReviewRequest,
    response=ToolText,
    summary="Say agree or veto of a returned change",
    errors=(*ON_A_BOARD, ForbiddenError, ClaimedError, CasMismatchError),
    writes=True,
    tool="fw_review",
    store=False,
    board=True,
    plain=True,
)
def fw_review(ctx: Context, req: FwReviewRequest) -> ToolText:
    """Reviews under the server's own identity, because nobody may choose one."""
    from ropewalk.board import review

    board = opened_at(ctx, req.origin or None)
    reviewer = ctx.agent.replace("/", "-")[:64]
    done = review.review(board, req.task, reviewer, req.outcome, ctx.agent, evidence=req.evidence, note=req.note)
    return ToolText(f"{reviewer}: {req.outcome} of {done.commit}", data={"ref": done.ref, "commit": done.commit})


class FwGateRequest(msgspec.Struct, frozen=True):
    """Takes a task."""

    task: Text
    origin: Text = ""


@operation(
    "fw gate",
    request=FwGateRequest,
    response=ToolText,
    summary="Integrate a task if its reviews suffice",
    errors=(*ON_A_BOARD, CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_gate",
    store=False,
    board=True,
    plain=True,
)
def fw_gate(ctx: Context, req: FwGateRequest) -> ToolText:
    """Counts the reviews; a gate that does not fire yet is an answer."""
    from ropewalk.board import gate
    from ropewalk.operations.reviewing import shown

    board = opened_at(ctx, req.origin or None)
    found = shown(gate.gate(board, req.task, actor_of(ctx, worker_of(ctx, ""), harness_of(ctx, ""))))
    text = "integrated" if found.integrated else f"not yet: {found.why}"
    return ToolText(text, data=msgspec.to_builtins(found))
