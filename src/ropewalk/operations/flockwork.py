"""Flockwork's tools, under their names, with its arguments and answers.

They are steps of a task like the others; what differs is how they are asked and how they answer. A check that fails is
an answer, not an error of the tool.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.board import claim, state
from ropewalk.board.base import Board
from ropewalk.board.claim import Held
from ropewalk.core.errors import (
    BusyError,
    CasMismatchError,
    CheckFailedError,
    ClaimedError,
    ConflictError,
    EmptyCommitError,
    FencedError,
    InvalidError,
    LandMismatchError,
)
from ropewalk.core.ids import check_agent
from ropewalk.operations import checking
from ropewalk.operations.context import Context
from ropewalk.operations.registry import operation
from ropewalk.operations.steps import WITH_A_TREE, VerdictRequest, hand_back, judged, landing_for, settle
from ropewalk.operations.task import ON_A_BOARD, brief_of, need

Text = Annotated[str, Meta(max_length=4096)]
_HARNESSES = ("opencode", "codex", "claude", "gemini", "aider", "goose", "amp", "pi")
_NOT_LANDED = (CheckFailedError, ConflictError, EmptyCommitError, LandMismatchError, BusyError, FencedError)

PROTOCOL = """\
1. fw_next or fw_list: choose a task. fw_brief: read it.
2. fw_claim: keep the att it gives; every later call names it. Lost the race? Take another.
3. fw_work_started, then edit. When it takes long, fw_renew every few minutes.
4. fw_judge: the task's own check, in a clean checkout of your tree. Go on until its rc is 0.
5. fw_land with the paths you changed: they land, the check passes on what lands, and the verdict is written, in one
   step. If you can't do it: fw_verdict with fixed=false. Steps 4 and 5 in one call: fw_work_external.
"""


class ToolText(msgspec.Struct, frozen=True):
    """Is an answer as flockwork's tools give it: text, whether it is an error, and data where there is some."""

    text: str
    error: bool = False
    data: dict[str, Any] | None = None


class FwNothing(msgspec.Struct, frozen=True):
    """Takes nothing."""


class FwTask(msgspec.Struct, frozen=True):
    """Takes a board and a task."""

    origin: Text
    task: Text


class FwAttempt(msgspec.Struct, frozen=True):
    """Takes a board, a task and the attempt that has it."""

    origin: Text
    task: Text
    att: Text


def opened_at(ctx: Context, origin: str | None) -> Board:
    """Gives a board as it is now."""
    board = ctx.board(origin)
    board.refresh()
    return board


def harness_of(ctx: Context, given: str) -> str:
    """Gives the agent program's name: the given one, else the client's, else `unknown`."""
    name = (given or ctx.client).strip().lower()
    return next((known for known in _HARNESSES if known in name), re.sub(r"[^a-z0-9._-]+", "-", name)[:64] or "unknown")


def actor_of(ctx: Context, worker: str, harness: str) -> str:
    """Gives who acts: the server's own identity, else the agent program and the worker."""
    if (agent := ctx.agent_or_none) is not None:
        return agent
    parts = [re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.") or "mcp" for text in (harness, worker)]
    return check_agent(f"{parts[0][:60]}/{parts[1][:60]}")


def worker_of(ctx: Context, given: str) -> str:
    """Gives a worker's name: the given one, else one made of the server's identity."""
    return given or (ctx.agent_or_none or "mcp").replace("/", "-")[:64]


def _held(ctx: Context, origin: str, task: str, att: str) -> tuple[Board, Held]:
    board = opened_at(ctx, origin)
    actor = actor_of(ctx, worker_of(ctx, ""), harness_of(ctx, ""))
    return board, claim.find(board, need(board, task).id, att, actor)


@operation(
    "fw protocol",
    request=FwNothing,
    response=ToolText,
    summary="How to work on a board",
    tool="fw_protocol",
    store=False,
    board=True,
    plain=True,
)
def fw_protocol(ctx: Context, req: FwNothing) -> ToolText:
    """Gives the order of the steps."""
    return ToolText(PROTOCOL)


@operation(
    "fw brief",
    request=FwTask,
    response=ToolText,
    summary="Read a task's brief",
    errors=ON_A_BOARD,
    tool="fw_brief",
    store=False,
    board=True,
    plain=True,
)
def fw_brief(ctx: Context, req: FwTask) -> ToolText:
    """Gives the brief as it was written."""
    return ToolText(brief_of(opened_at(ctx, req.origin), req.task))


class FwClaimRequest(msgspec.Struct, frozen=True):
    """Takes a board, a task, and who wants it."""

    origin: Text
    task: Text
    worker: Text = ""
    harness: Text = ""


@operation(
    "fw claim",
    request=FwClaimRequest,
    response=ToolText,
    summary="Claim a task; gives the att",
    errors=(*ON_A_BOARD, ClaimedError, CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_claim",
    store=False,
    board=True,
    plain=True,
)
def fw_claim(ctx: Context, req: FwClaimRequest) -> ToolText:
    """Claims."""
    board = opened_at(ctx, req.origin)
    state.law(board)
    status = need(board, req.task)
    if status.state != "ready":
        raise ClaimedError(f"claim failed for {req.task}: it is {status.state} {status.why}".rstrip(), task=req.task)
    harness, worker = harness_of(ctx, req.harness), worker_of(ctx, req.worker)
    held = claim.take(board, status, claim.As(worker, actor_of(ctx, worker, harness), harness))
    return ToolText(f"claimed {req.task}\natt={held.attempt}", data={"att": held.attempt})


class FwJudgeRequest(msgspec.Struct, frozen=True):
    """Takes a task and a tree; `verify` may only repeat what the spec says."""

    task: Text
    tree: Text
    origin: Text = ""
    verify: str = ""


@operation(
    "fw judge",
    request=FwJudgeRequest,
    response=ToolText,
    summary="Run the task's own check in a clean checkout of a tree; its rc is the answer",
    errors=(*ON_A_BOARD, *WITH_A_TREE),
    tool="fw_judge",
    store=False,
    board=True,
    plain=True,
)
def fw_judge(ctx: Context, req: FwJudgeRequest) -> ToolText:
    """Judges by the spec's check alone."""
    board = opened_at(ctx, req.origin or None)
    _check_verify(board, req.task, req.verify)
    found = judged(ctx, board, req.task, req.tree, 600.0)
    text = f"oracle rc={found.rc} timed_out={found.timed_out}\n{found.detail.strip()[-400:]}"
    return ToolText(text, data={"rc": found.rc, "timed_out": found.timed_out})


def _check_verify(board: Board, task: str, verify: str) -> None:
    stated = need(board, task).spec.task.check
    if verify and verify.strip() != stated:
        raise InvalidError(
            f"the check of {task} is the spec's own: {stated[:200]!r}", hint="leave verify out", task=task
        )


class FwLandRequest(msgspec.Struct, frozen=True):
    """Takes an attempt, the tree with its change, and which paths of it are to land."""

    origin: Text
    task: Text
    att: Text
    tree: Text
    paths: list[str] = []


@operation(
    "fw land",
    request=FwLandRequest,
    response=ToolText,
    summary="Land paths of a tree once the check passes, with the verdict",
    errors=(*ON_A_BOARD, *WITH_A_TREE, *(e for e in _NOT_LANDED if e is not BusyError), CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_land",
    store=False,
    board=True,
    plain=True,
)
def fw_land(ctx: Context, req: FwLandRequest) -> ToolText:
    """Lands; return and verdict go with it in one step, so that nothing is left to be written."""
    board, held = _held(ctx, req.origin, req.task, req.att)
    try:
        done = hand_back(ctx, board, held, req.tree, req.paths, 600.0)
    except _NOT_LANDED as error:
        pushed = "main_pushed=False return_pushed=False verdict_pushed=False"
        return ToolText(f"land failed ({pushed}): {error.code} {error.message}", True)
    pushed = f"main_pushed={done.how == 'landed'} return_pushed=True verdict_pushed=True"
    return ToolText(f"land succeeded ({pushed})\ncommit={done.landed}", data={"landed": done.landed})


class FwVerdictRequest(msgspec.Struct, frozen=True):
    """Takes an attempt and how it ended: the exit codes of the agent and of the check."""

    origin: Text
    task: Text
    att: Text
    oc_rc: int
    pytest_rc: int
    fixed: bool = False
    oc_elapsed: float | None = None


@operation(
    "fw verdict",
    request=FwVerdictRequest,
    response=ToolText,
    summary="End an attempt; fixed only if it landed",
    errors=(*ON_A_BOARD, FencedError, CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_verdict",
    store=False,
    board=True,
    plain=True,
)
def fw_verdict(ctx: Context, req: FwVerdictRequest) -> ToolText:
    """Writes a verdict; after `fw_land` it is written already, and the same again is no error."""
    board = opened_at(ctx, req.origin)
    wanted = {"task": req.task, "attempt": req.att, "outcome": "fixed" if req.fixed else "failed",
              "agent_rc": req.oc_rc, "check_rc": req.pytest_rc, "seconds": req.oc_elapsed}  # fmt: skip
    try:
        asked = msgspec.convert(wanted, VerdictRequest)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the verdict is wrong: {error}") from None
    written = settle(board, actor_of(ctx, worker_of(ctx, ""), harness_of(ctx, "")), asked)
    said = "verdict written" if written else "verdict was written"
    return ToolText(f"{said}: {req.task} fixed={req.fixed}", data={"verdict_pushed": True})


def _marked(ctx: Context, req: FwAttempt, name: str) -> ToolText:
    board, held = _held(ctx, req.origin, req.task, req.att)
    if name == "renew":
        claim.beat(board, held)
    else:
        claim.mark(board, held, name)
    return ToolText(f"{name} ok")


@operation(
    "fw renew",
    request=FwAttempt,
    response=ToolText,
    summary="Say that the work goes on",
    errors=(*ON_A_BOARD, FencedError, CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_renew",
    store=False,
    board=True,
    plain=True,
)
def fw_renew(ctx: Context, req: FwAttempt) -> ToolText:
    """Beats."""
    return _marked(ctx, req, "renew")


@operation(
    "fw work-started",
    request=FwAttempt,
    response=ToolText,
    summary="Note that the work began",
    errors=(*ON_A_BOARD, FencedError, CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_work_started",
    store=False,
    board=True,
    plain=True,
)
def fw_work_started(ctx: Context, req: FwAttempt) -> ToolText:
    """Notes the time."""
    return _marked(ctx, req, "work_started")


@operation(
    "fw work-done",
    request=FwAttempt,
    response=ToolText,
    summary="Note that the work is over",
    errors=(*ON_A_BOARD, FencedError, CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_work_done",
    store=False,
    board=True,
    plain=True,
)
def fw_work_done(ctx: Context, req: FwAttempt) -> ToolText:
    """Notes the time."""
    return _marked(ctx, req, "work_done")


class FwExternalRequest(msgspec.Struct, frozen=True):
    """Takes an attempt and the tree with its change; `verify` may only repeat what the spec says."""

    origin: Text
    task: Text
    att: Text
    tree: Text
    paths: list[str] = []
    verify: str = ""


@operation(
    "fw work-external",
    request=FwExternalRequest,
    response=ToolText,
    summary="Judge, land and end an attempt in one call",
    errors=(*ON_A_BOARD, *WITH_A_TREE, FencedError, CasMismatchError),
    writes=True,
    identity=False,
    tool="fw_work_external",
    store=False,
    board=True,
    plain=True,
)
def fw_work_external(ctx: Context, req: FwExternalRequest) -> ToolText:
    """Does all the steps; a check that fails ends the attempt with its verdict, and is no error of the tool."""
    board, held = _held(ctx, req.origin, req.task, req.att)
    _check_verify(board, req.task, req.verify)
    held = claim.mark(board, held, "work_started")
    found = judged(ctx, board, req.task, req.tree, 600.0)
    out: dict[str, Any] = {"fixed": False, "pytest_rc": found.rc, "oc_rc": 0, "main_push": False,
                           "return_pushed": False, "verdict_pushed": False}  # fmt: skip
    if found.timed_out:
        out["oracle_timeout"] = True
    if found.rc:
        asked = VerdictRequest(req.task, req.att, "failed", 0, found.rc)
        out["verdict_pushed"] = settle(board, held.actor, asked)
        return _external({**out, "reason": "merit_failure_no_publish"}, found.detail)
    try:
        done = hand_back(ctx, board, held, req.tree, req.paths, 600.0)
    except EmptyCommitError as error:
        if req.paths:
            return _external({**out, "reason": "nothing_changed"}, error.message, failed=True)
        return _satisfied(ctx, board, held, out)
    except _NOT_LANDED as error:
        return _external({**out, "reason": "main_push_rejected"}, f"{error.code} {error.message}", failed=True)
    out |= {"fixed": done.how == "landed", "main_push": done.how == "landed", "return_pushed": True}
    return _external({**out, "verdict_pushed": True, "already_on_main": False}, f"commit={done.landed}")


def _satisfied(ctx: Context, board: Board, held: Held, out: dict[str, Any]) -> ToolText:
    """Ends an attempt that had nothing to change: the check on the target as it is decides."""
    import os

    from ropewalk.run import steps

    store = ctx.store_for(board)
    checks = os.path.join(ctx.data_home, "ropewalk", store.format.id, "checks")
    done = steps.satisfied(board, store, landing_for(board), held, checks, cage=checking.of_task(ctx))
    if done.how != "landed":
        return _external({**out, "reason": "nothing_changed"}, done.words, failed=True)
    out |= {"fixed": True, "already_on_main": True, "return_pushed": True, "verdict_pushed": True}
    return _external(out, f"the target satisfies it already: {done.commit}")


def _external(out: dict[str, Any], words: str, *, failed: bool = False) -> ToolText:
    shown = msgspec.json.format(msgspec.json.encode(out), indent=1).decode("utf-8")
    return ToolText(f"work_external fixed={out['fixed']}\n{shown}\n{words.strip()[-400:]}", failed, out)
