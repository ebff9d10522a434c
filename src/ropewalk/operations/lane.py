"""Lanes one by one: start an agent in a workspace, look at it, tell it something, stop it, and judge what it left."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core import clock
from ropewalk.core.errors import (
    BusyError,
    CageUnavailableError,
    CheckFailedError,
    InvalidError,
    NotFoundError,
    StalledError,
    UnsupportedError,
)
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.operations import checking, crew
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.workspace import AT_WORK

RUN = "lane"
LaneName = Annotated[str, Meta(min_length=1, max_length=300, description="the lane, or the name it was started with")]
FOUND, ESCAPED, PROVIDER, STALLED, STOPPED = 10, 12, 13, 14, 130
_LINES = 200


class LaneRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one lane: how it stands and why, and what it used so far; `passed` is the collect gate's word."""

    lane: str
    state: str
    harness: str
    agent: str
    task: str
    cage: str
    began: int
    seconds: float | None
    run: str = ""
    model: str = ""
    reason: str = ""
    turns: int = 0
    tokens: int | None = None
    dollars: float | None = None
    mark: str = ""
    passed: bool | None = None
    landed: str = ""
    imported: str = ""


class LaneView(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is all that is known of a lane; `text` is its last message, `gate` why the collect gate refused it."""

    lane: LaneRow
    workspace: str
    folder: str
    key: str
    text: str = ""
    code: int | None = None
    session: str | None = None
    gate: str = ""
    tree: str = ""
    version: str = ""
    attended: bool = False


class LaneStartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what to do, who does it, where it lands, and what it may use."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="names the lane and its workspace")]
    prompt: Annotated[str, Meta(max_length=100_000, description="what it is told")] = ""
    file: Annotated[str, Meta(max_length=4096, description="a file with what it is told")] | None = None
    harness: crew.Harness | None = None
    command: crew.Command | None = None
    cage: crew.Cage | None = None
    model: Annotated[str, Meta(max_length=200, description="the model, or an alias of your routes")] = ""
    class_: Annotated[str, Meta(max_length=200, description="the class of task, by which your routes choose")] = (
        msgspec.field(default="", name="class")
    )
    effort: Annotated[str, Meta(max_length=20, description="how hard it thinks: low, medium, high or max")] = ""
    onto: Annotated[str, Meta(max_length=1024, description="the ref it lands on; without it the default branch")] | (
        None
    ) = None
    seconds: Annotated[float, Meta(gt=0, le=604_800, description="its wall clock")] = 3600.0
    turns: Annotated[int, Meta(ge=1, le=100_000, description="its turns")] = 100
    tokens: Annotated[int, Meta(ge=1, description="its tokens")] | None = None
    dollars: Annotated[float, Meta(ge=0, description="its cost")] | None = None
    pass_env: crew.PassEnv = []
    record: crew.Record | None = None
    replay: crew.Replay | None = None
    budget: crew.Budget | None = None
    max_tokens: crew.MaxTokens | None = None
    wait: Annotated[bool, Meta(description="wait for its end")] = False


@operation(
    "lane start",
    request=LaneStartRequest,
    response=LaneView,
    summary="Start an agent in a workspace of its own; it goes on in the background",
    errors=(*AT_WORK, *crew.LANES),
    writes=True,
    tool="",
    command=Command(positional=("name", "prompt?"), flags={"class_": "--class"}),
)
def lane_start(ctx: Context, req: LaneStartRequest) -> LaneView:
    """Starts a lane in the workspace of its name, which is made where there is none; with --wait its exit code."""
    from ropewalk.lane import attend, journal, lanes
    from ropewalk.lane.waits import Limits
    from ropewalk.run import turn as turns
    from ropewalk.store import revisions
    from ropewalk.workspace import checkout, setup, state

    if bool(req.prompt) == (req.file is not None):
        raise InvalidError("what is it told?", hint="give the prompt, or --file FILE")
    prompt = req.prompt
    if req.file is not None:
        with ctx.read_file(req.file) as file:
            prompt = file.read().decode("utf-8", "replace")
    store = ctx.store
    staff = crew.staff(ctx, req.harness, req.command, model=req.model, effort=req.effort, task_class=req.class_)
    pick = staff.pick()
    assert pick is not None  # what names no task is anybody's
    adapter = pick.adapter
    ways = crew.ways(
        ctx, staff, cage=req.cage, pass_env=req.pass_env, tape=crew.tape(ctx, req.record, req.replay),
        budget=req.budget, max_tokens=req.max_tokens,
    )  # fmt: skip
    limits = Limits(req.seconds, req.turns, req.tokens, req.dollars)
    ways = ways._replace(model=pick.model, effort=pick.effort, limits=limits)
    target = check_ref(req.onto) if req.onto else revisions.default_branch(store)
    before = [one for one in journal.lanes(store, RUN) if one.record.task == req.name]
    if before and attend.renew(store, before[0]).result is None:
        raise BusyError(f"the lane {before[0].record.lane} still runs", hint="`rw lane stop` ends it")
    ws = state.find(store, state.check_name(req.name))
    agent = f"{adapter.family}/{req.name.lower()}"[:100]
    if ws is None:
        head = store.ref(target)
        if head is None:
            raise NotFoundError(f"there is no ref {short_ref(target)!r} to land on", ref=target)
        path = checkout.default_path(store, ctx.data_home, req.name)
        asked = checkout.Asked(
            req.name, agent, head, target, path, policy=setup.policy_of(store), shared=ctx.shared
        )  # fmt: skip
        ws, _ = checkout.create(store, asked)
    number = len(before) + 1
    lane = f"{RUN}/{req.name}/{number}"
    session = before[0].result.session if before and before[0].result is not None and ways.tape is None else None
    # a lane by itself is a run of its own, in whichever store
    ways = ways._replace(account=f"{store.format.id[:8]}/{req.name}/{number}")
    one = turns.Turn(
        lane, agent, os.path.join(ctx.shared, "lanes", req.name, str(number)), ws.path,
        store.objects.commit(ws.base).tree, prompt, RUN, req.name, number, req.seconds,
        before=turns.Before(before[0].record.folder, session) if session else None,
    )  # fmt: skip
    turns.hand_on(one)
    running = lanes.start(store, turns.wish(store, adapter, ctx.env, ways, one))
    running.supervised.leave()
    attend.spawn(store, lane)
    if req.wait:
        _wait(ctx, lane)
    return _view(ctx, lane)


class LaneListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes which lanes."""

    run: Annotated[str, Meta(max_length=100, description="those of this run, or worker")] | None = None
    open: Annotated[bool, Meta(description="those that have not ended")] = False
    limit: Annotated[int, Meta(ge=1, le=100_000, description="how many at most, newest first")] = 100


class LaneListResponse(msgspec.Struct, frozen=True):
    """Is lanes, newest first, and how many there are in each state."""

    lanes: list[LaneRow]
    totals: dict[str, int]
    truncated: bool


@operation(
    "lane list",
    request=LaneListRequest,
    response=LaneListResponse,
    summary="List lanes, newest first, and how each stands",
    tool="",
)
def lane_list(ctx: Context, req: LaneListRequest) -> LaneListResponse:
    """Lists lanes; one that ended while nobody looked has its result written now."""
    from ropewalk.lane import attend, journal

    found = journal.lanes(ctx.store, req.run, only_open=req.open, limit=req.limit + 1)
    lanes = [attend.renew(ctx.store, one) for one in found[: req.limit]]
    if req.open:
        lanes = [one for one in lanes if one.result is None]
    return LaneListResponse([_row(one) for one in lanes], dict(journal.totals(lanes)), len(found) > req.limit)


class LaneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a lane."""

    lane: LaneName


@operation(
    "lane show",
    request=LaneRequest,
    response=LaneView,
    summary="Show a lane: how it stands, what it used, and its last message",
    errors=(NotFoundError,),
    tool="",
    command=Command(positional=("lane",)),
)
def lane_show(ctx: Context, req: LaneRequest) -> LaneView:
    """Shows a lane; one that runs and that nobody attends to is attended to from now on."""
    from ropewalk.lane import attend, supervisor

    found = need(ctx, req.lane)
    folder = found.record.folder
    if found.result is None and supervisor.is_alive(folder) and not attend.is_attended(folder) and _is_ours(found):
        attend.spawn(ctx.store, found.record.lane)
    return _view(ctx, found.record.lane)


class LaneLogsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a lane, and how much of its stream."""

    lane: LaneName
    lines: Annotated[int, Meta(ge=1, le=100_000, description="how many lines at most, the last ones")] = _LINES
    errors: Annotated[bool, Meta(description="what it wrote to standard error")] = False
    follow: Annotated[bool, Meta(description="go on until it ends")] = False


class LaneLogsResponse(msgspec.Struct, frozen=True):
    """Is what a lane printed, line by line."""

    lane: str
    state: str
    lines: list[str]


@operation(
    "lane logs",
    request=LaneLogsRequest,
    response=LaneLogsResponse,
    summary="Show what a lane printed; with --follow as it comes",
    errors=(NotFoundError,),
    tool="",
    command=Command(positional=("lane",), flags={"follow": "-f"}),
)
def lane_logs(ctx: Context, req: LaneLogsRequest) -> LaneLogsResponse:
    """Gives the last lines of a lane's stream; with `follow` each further line is shown as progress until its end."""
    import time

    from ropewalk.lane import journal, supervisor

    found = need(ctx, req.lane)
    if not found.record.folder:
        where = f"runs/{found.record.run}/source in the store" if found.record.imported else "its program has them"
        raise NotFoundError(f"there are no streams of {found.record.lane}", hint=where, lane=found.record.lane)
    path = os.path.join(found.record.folder, "stderr" if req.errors else "stdout")
    lines, at = _last_lines(path, req.lines)
    if req.follow:
        for line in lines:
            ctx.progress(line)
        rest = b""
        while True:
            is_over = not supervisor.is_alive(found.record.folder)
            data, at = _more(path, at)
            *whole, rest = (rest + data).split(b"\n")
            for line in (one.decode("utf-8", "replace") for one in whole):
                ctx.progress(line)
                lines.append(line)
            if is_over and not data:
                break
            time.sleep(0.1)
        lines = lines[-req.lines :]
    return LaneLogsResponse(found.record.lane, journal.need(ctx.store, found.record.lane).state, lines)


class LaneSteerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a lane and what to tell it."""

    lane: LaneName
    text: Annotated[str, Meta(min_length=1, max_length=1_000_000, description="what it is told in mid-run")]


class LaneTold(msgspec.Struct, frozen=True):
    """Is a lane, and whether it was told."""

    lane: str
    told: bool


@operation(
    "lane steer",
    request=LaneSteerRequest,
    response=LaneTold,
    summary="Tell an agent something while it works",
    errors=(NotFoundError, InvalidError, UnsupportedError),
    writes=True,
    tool="",
    command=Command(positional=("lane", "text")),
)
def lane_steer(ctx: Context, req: LaneSteerRequest) -> LaneTold:
    """Tells it; `E_UNSUPPORTED` for a program that hears nothing before its end."""
    from ropewalk.lane import supervisor
    from ropewalk.lane.programs import registry

    found = _running(ctx, req.lane)
    name = supervisor.adapter_of(found.record.folder)
    words = registry.reading(name).steer(req.text)
    if words is None:
        raise UnsupportedError(f"{name} hears nothing before its end", hint="`rw lane stop`, and start it again")
    said = supervisor.ask(found.record.folder, {"do": "input", "data": words.decode("utf-8")})
    return LaneTold(found.record.lane, bool(said.get("ok")))


@operation(
    "lane stop",
    request=LaneRequest,
    response=LaneView,
    summary="Stop a lane with all its processes; what it did stays in its workspace",
    errors=(NotFoundError, InvalidError),
    writes=True,
    tool="",
    command=Command(positional=("lane",)),
)
def lane_stop(ctx: Context, req: LaneRequest) -> LaneView:
    """Stops a lane; none of its processes is left when this returns."""
    from ropewalk.lane import lanes

    found = _running(ctx, req.lane)
    lanes.stop(ctx.store, found.record.lane)
    return _view(ctx, found.record.lane)


class LaneCollectRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a lane, and what its work is held against."""

    lane: LaneName
    check: Annotated[str, Meta(max_length=100_000, description="a line for the shell that has to pass")] = "true"
    owns: Annotated[list[str], Meta(max_length=1000, description="it may change these paths alone")] = []
    reply: Annotated[str, Meta(max_length=4096, description="a file: the JSON Schema of its last message")] | None = (
        None
    )
    check_seconds: Annotated[float, Meta(gt=0, le=86_400, description="how long the check may take")] = 1800.0
    wait: Annotated[float, Meta(ge=0, le=604_800, description="how long its end is waited for")] = 604_800.0


class LaneCollected(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the collect gate's verdict on a lane's tree, with every reason against it; `notes` decide nothing."""

    lane: LaneRow
    passed: bool
    reasons: list[str]
    notes: list[str]
    changed: list[str]
    tree: str
    changeset: str | None = None
    reply: Any = None
    text: str = ""


@operation(
    "lane collect",
    request=LaneCollectRequest,
    response=LaneCollected,
    summary="Wait for a lane's end and hold what it left against its check, its paths and its reply",
    errors=(*AT_WORK, CheckFailedError, StalledError, CageUnavailableError),
    writes=True,
    tool="",
    command=Command(positional=("lane",)),
)
def lane_collect(ctx: Context, req: LaneCollectRequest) -> LaneCollected:
    """Collects a lane; exit code 10 when the gate refuses it, 12 to 14 for how the lane itself ended.

    The verdict is of the tree that it names. `rw ws land` lands the workspace.
    """
    from ropewalk.lane import attend, collect, journal
    from ropewalk.lane.adapter import Ending
    from ropewalk.plan.task import Task
    from ropewalk.run import gate as gates
    from ropewalk.run.work import evidence
    from ropewalk.workspace import landing, state

    store = ctx.store
    found = need(ctx, req.lane)
    lane = found.record.lane
    if _is_ours(found):
        _wait(ctx, lane, req.wait)
    found = journal.need(store, lane)
    result = found.result
    if result is None:
        raise StalledError(f"the lane {lane} still runs", hint="`rw lane stop` ends it", lane=lane)
    ws = attend.workspace_of(store, found)
    if ws is None:
        raise NotFoundError(f"the workspace of {lane} is gone", hint="`rw recover` lists what was kept", lane=lane)
    shape = None
    if req.reply is not None:
        with ctx.read_file(req.reply) as file:
            shape = _json(file.read(), req.reply)
    task = Task(found.record.task, req.check, owns=tuple(req.owns), reply=shape)
    with state.held(store, ws.name):
        ws = state.need(store, ws.name)
        wish = landing.Wish(found.record.agent, f"{found.record.task}\n")
        changeset, warnings = landing.commit_workspace(store, ws, wish)
    ctx.warnings += warnings
    tree = store.objects.commit(changeset or ws.base).tree
    cage = checking.caged(ctx, found.record.ingredients.cage)
    orders = evidence.orders(store, req.check, req.check_seconds, ctx.checks, cage=cage)
    verdict = evidence.look_at(store, tree, orders)
    assert verdict is not None  # nothing stops it
    ending = Ending(
        result.state == "done", result.text, result.reason, session=result.session, turns=result.turns,
        denied=result.denied,
    )  # fmt: skip
    base = store.objects.commit(ws.base).tree
    checked = collect.Checked(tree, verdict.rc, verdict.output)
    gate = gates.judge(store, task, ending, base, tree, checked, result.tools)
    reply = collect.check_reply(result.text, shape)[0] if shape is not None else collect.fields_of(result.text)
    gates.note(store, lane, gate, changeset=changeset or "", reply=reply)
    ctx.exit = exit_of(result.state, result.reason) or (0 if gate.passed else FOUND)
    changed = [one.path for one in gates.changed(store, base, tree)]
    return LaneCollected(
        _row(journal.need(store, lane)), gate.passed, list(gate.reasons), list(gate.notes), changed, tree, changeset,
        reply or None, result.text,
    )  # fmt: skip


class LaneArchived(msgspec.Struct, frozen=True):
    """Is where a lane's streams and records were packed; None where nothing is left of them."""

    lane: str
    archive: str | None


@operation(
    "lane archive",
    request=LaneRequest,
    response=LaneArchived,
    summary="Pack a lane's streams and records into one file",
    errors=(NotFoundError, InvalidError),
    writes=True,
    tool="",
    command=Command(positional=("lane",)),
)
def lane_archive(ctx: Context, req: LaneRequest) -> LaneArchived:
    """Packs an ended lane; nothing is removed, `rw sweep --reclaim` does that."""
    from ropewalk.lane import sweep

    found = need(ctx, req.lane)
    if found.result is None:
        raise InvalidError(f"the lane {found.record.lane} still runs", hint="`rw lane stop` ends it")
    return LaneArchived(found.record.lane, sweep.archive(found, archives(ctx)))


def archives(ctx: Context) -> str:
    """Gives the folder of what was packed."""
    return os.path.join(ctx.shared, "archive")


def exit_of(state: str, reason: str) -> int:
    """Gives the exit code for how a lane ended; 0 for a good end, and for one that says nothing of the machine."""
    if reason in ("rate_limited", "api_error", "authentication") or reason.startswith(("cassette_miss", "budget")):
        return PROVIDER
    return {"escaped": ESCAPED, "stalled": STALLED, "dead": STALLED, "cancelled": STOPPED}.get(state, 0)


def _wait(ctx: Context, lane: str, seconds: float | None = None) -> None:
    """Waits for a lane's end, or until that long, or until a person stops it; the lane goes on then."""
    from ropewalk.lane import attend
    from ropewalk.run.interrupts import Interrupts

    until = None if seconds is None else clock.monotonic() + seconds
    with Interrupts() as interrupts:
        ended = attend.until_ended(
            ctx.store, lane,
            stop=lambda: interrupts.stopped.is_set() or (until is not None and clock.monotonic() > until),
        )  # fmt: skip
        interrupts.check()
    if ended is not None:
        ctx.exit = exit_of(ended.state, ended.reason) or (FOUND if ended.state != "done" else 0)


def need(ctx: Context, name: str) -> Any:
    """Gives a lane by its id, or the newest of a name."""
    from ropewalk.lane import attend, journal

    found = journal.find(ctx.store, name)
    if found is None:
        found = next((one for one in journal.lanes(ctx.store, limit=100_000) if one.record.task == name), None)
    if found is None:
        raise NotFoundError(f"there is no lane {name!r}", hint="`rw lane list` shows them", lane=name)
    return attend.renew(ctx.store, found)


def _running(ctx: Context, name: str) -> Any:
    found = need(ctx, name)
    if found.result is not None:
        raise InvalidError(f"the lane {found.record.lane} has ended: {found.state}", lane=found.record.lane)
    if not found.record.folder:
        raise InvalidError(f"{found.record.lane} is a session that a person drives", hint="`rw chip close` ends it")
    return found


def _is_ours(lane: Any) -> bool:
    """Says whether no run and no worker looks after a lane."""
    return bool(lane.record.run == RUN)


def _row(lane: Any) -> LaneRow:
    record, result, what = lane.record, lane.result, lane.record.ingredients
    seconds = result.seconds if result is not None else float(max(0, clock.now() - lane.began))
    return LaneRow(
        record.lane, lane.state, what.harness, record.agent, record.task, what.cage, lane.began,
        None if record.imported and not seconds else seconds,
        "" if record.run == RUN else record.run, what.model, *((
            result.reason, result.turns, result.tokens.total if result.tokens is not None else None, result.dollars,
            result.mark, result.passed, result.landed, record.imported,
        ) if result is not None else ()),
    )  # fmt: skip


def _view(ctx: Context, lane: str) -> LaneView:
    from ropewalk.lane import attend, journal

    found = journal.need(ctx.store, lane)
    record, result = found.record, found.result
    ws = attend.workspace_of(ctx.store, found)
    more: dict[str, Any] = {}
    if result is not None:
        more = {
            "text": result.text, "code": result.code, "session": result.session, "gate": result.gate,
            "tree": result.tree,
        }  # fmt: skip
    return LaneView(
        _row(found), ws.name if ws is not None else "", record.folder, record.key, version=record.ingredients.version,
        attended=result is None and attend.is_attended(record.folder), **more,
    )  # fmt: skip


def _last_lines(path: str, count: int) -> tuple[list[str], int]:
    """Gives the last whole lines of a file, and where what follows them begins."""
    data, _ = _more(path, 0)
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode("utf-8", "replace").splitlines()[-count:], len(whole)


def _more(path: str, at: int) -> tuple[bytes, int]:
    try:
        with open(path, "rb") as file:
            file.seek(at)
            data = file.read()
    except OSError:
        return b"", at
    return data, at + len(data)


def _json(data: bytes, name: str) -> dict[str, Any]:
    from ropewalk.core.decoding import UNREADABLE

    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE as error:
        raise InvalidError(f"{name} is no JSON Schema: {error}", file=name) from None
