"""What lanes stand on: the doctor, endpoints and the gateway, sessions that a person drives, and sweeping up."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.errors import BusyError, HarnessError, InvalidError, NotFoundError
from ropewalk.operations import crew
from ropewalk.operations.context import Context
from ropewalk.operations.lane import archives
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.workspace import AT_WORK

WARNED, UNHEALTHY, UNREACHABLE = 10, 11, 13
CHIP = "chip"


class DoctorRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes which harnesses, and whether a real turn may be spent."""

    for_: Annotated[list[str], Meta(max_length=100, description="this harness; without it all that are known")] = (
        msgspec.field(default_factory=list, name="for")
    )
    live: Annotated[bool, Meta(description="take one turn with each; it costs what a prompt of one line does")] = False
    offline: Annotated[bool, Meta(description="reach no provider, which is how it is without --live")] = False
    cage: crew.Cage | None = None


class DoctorCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one thing that was looked at: ok, advisory, unavailable, unreachable or fail, with what mends it."""

    what: str
    status: str
    words: str
    hint: str = ""
    facts: dict[str, Any] = {}


class DoctorHarness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the verdict on one harness; `lanes` is how many of its lanes the free memory bears."""

    name: str
    status: str
    path: str = ""
    version: str = ""
    lanes: int = 0
    checks: list[DoctorCheck] = []


class DoctorResponse(msgspec.Struct, frozen=True):
    """Is what was found: the worst of what counts, and whether lanes can be started as asked for."""

    status: str
    ok: bool
    live: bool
    harnesses: list[DoctorHarness]
    machine: list[DoctorCheck]
    endpoints: list[str]
    logins: list[DoctorCheck] = []


@operation(
    "doctor",
    request=DoctorRequest,
    response=DoctorResponse,
    summary="Say what of this machine agents can be run with: programs, cages, memory, endpoints, logins",
    errors=(InvalidError,),
    tool="",
    store=False,
    command=Command(flags={"for_": "--for"}),
)
def doctor(ctx: Context, req: DoctorRequest) -> DoctorResponse:
    """Looks; nothing is spent without --live. Exit code 11 when what was asked for is not there, 13 for a provider."""
    from ropewalk.gateway import endpoints, logins
    from ropewalk.lane import doctor as lanes
    from ropewalk.lane import reach, routing
    from ropewalk.lane.cage import levels

    if req.live and req.offline:
        raise InvalidError("--live or --offline, not both")
    named = req.cage or str(ctx.settings["cage"].value or "full")
    level = next((one for one in levels.LEVELS if one == named), None)
    if level is None:
        raise InvalidError(f"there is no cage {named!r}", hint="full, files or none", cage=named)
    upstreams = endpoints.read(crew.config_folder(ctx), ctx.env)
    known = endpoints.profiles(crew.config_folder(ctx), ctx.env)
    live = lanes.Live(crew.gateway_folder(ctx), upstreams, level=level) if req.live else None
    folder = os.path.join(ctx.data_home, "ropewalk")
    search = ctx.env.get("PATH") or os.defpath
    found = lanes.examine(
        req.for_, search=search, caller=ctx.env, folder=folder, level=level, live=live,
        routes=reach.look(os.path.join(crew.config_folder(ctx), routing.FILE), upstreams, search, req.for_),
    )  # fmt: skip
    if not found.ok:
        ctx.exit = UNREACHABLE if found.status == "unreachable" else UNHEALTHY
    plain = msgspec.to_builtins(found)
    accounts = lanes.accounts(known, upstreams, logins.marks(crew.gateway_folder(ctx)))
    if any(one.status == "fail" for one in accounts):
        ctx.exit = ctx.exit or UNHEALTHY
        plain |= {"ok": False, "status": "fail"}
    more = {"endpoints": list(upstreams), "logins": msgspec.to_builtins(accounts)}
    return msgspec.convert({**plain, **more}, DoctorResponse)


class ProbeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes an endpoint, and how much of it is tried."""

    url: Annotated[str, Meta(min_length=1, max_length=4096, description="its base URL")]
    key_env: Annotated[str, Meta(max_length=200, description="the variable that holds its key")] = ""
    model: Annotated[str, Meta(max_length=200, description="the model; without it one that it names")] = ""
    big: Annotated[bool, Meta(description="prompts of 48k and 100k tokens, too")] = False
    long: Annotated[bool, Meta(description="a long answer, too")] = False


class ProbeCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one thing that was tried: pass, warn or fail, what was found, and its figures."""

    name: str
    grade: str
    found: str
    figures: dict[str, float] = {}


class ProbeResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what an endpoint can do: usable, warnings or not."""

    url: str
    verdict: str
    checks: list[ProbeCheck]
    model: str = ""
    wire: str | None = None
    auth: str | None = None
    window: int | None = None
    slots: int | None = None
    wires: list[str] = []


@operation(
    "probe",
    request=ProbeRequest,
    response=ProbeResponse,
    summary="Try an endpoint: formats, streams, tool calls, speed",
    errors=(InvalidError,),
    tool="",
    store=False,
    command=Command(positional=("url",)),
)
def probe(ctx: Context, req: ProbeRequest) -> ProbeResponse:
    """Tries it, by up to 22 requests; exit code 0 for usable, 10 with warnings, 13 for one that is not."""
    from ropewalk.gateway import probe as gateway

    if not req.url.startswith(("http://", "https://")):
        raise InvalidError(f"{req.url!r} is no URL", hint="it begins with http:// or https://")
    if req.key_env and req.key_env not in ctx.env:
        raise InvalidError(f"the environment has no {req.key_env}")
    # a key on a command line is shown to everybody on the machine, so that it comes by a variable alone
    found = gateway.probe(
        req.url, ctx.env.get(req.key_env, "") if req.key_env else "", model=req.model, big=req.big, long=req.long
    )
    ctx.exit = {"usable": 0, "warnings": WARNED}.get(found.verdict, UNREACHABLE)
    return msgspec.convert(msgspec.to_builtins(found), ProbeResponse)


class GatewayStatusRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes nothing."""


class UpstreamRow(msgspec.Struct, frozen=True):
    """Is one upstream, without its key."""

    name: str
    url: str
    wires: list[str]
    slots: int


class AdmittedRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one lane that may send, where to, and what it has used; a lane's token is not shown."""

    lane: str
    harness: str
    upstreams: list[str]
    requests: int = 0
    open: int = 0
    tokens: int = 0
    dollars: float | None = 0.0
    mark: str = ""


class BudgetRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one cap: under which name, what it is, and what is used of it and reserved for requests on their way.

    `holds` says what of it holds where a part of the cost is unknown.
    """

    name: str
    cap: dict[str, float]
    dollars: float | None
    mark: str = ""
    tokens: int = 0
    requests: int = 0
    reserved_dollars: float = 0.0
    reserved_tokens: int = 0
    holds: str = ""


class GatewayStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the gateway: whether it runs and where, its upstreams, the lanes it serves, and the budgets it keeps."""

    running: bool
    folder: str
    upstreams: list[UpstreamRow]
    lanes: list[AdmittedRow]
    budgets: list[BudgetRow]
    pid: int | None = None
    port: int | None = None


@operation(
    "gateway status",
    request=GatewayStatusRequest,
    response=GatewayStatus,
    summary="Show the gateway: where it listens, its upstreams, and the lanes it serves",
    errors=(InvalidError,),
    tool="",
    store=False,
)
def gateway_status(ctx: Context, req: GatewayStatusRequest) -> GatewayStatus:
    """Shows it; nothing is started. No key and no token is shown."""
    from ropewalk.gateway import ledger, process, settings

    folder = crew.gateway_folder(ctx)
    address, now = process.read_address(folder), settings.read(folder)
    rows = []
    for lane in now.lanes.values():
        seen = ledger.read_activity(os.path.join(folder, "activity"), lane.lane)
        row = AdmittedRow(lane.lane, lane.harness, list(lane.upstreams))
        if seen is not None:
            row = AdmittedRow(lane.lane, lane.harness, list(lane.upstreams), seen.requests, seen.open,
                              seen.tokens.total, seen.cost.dollars, seen.cost.mark)  # fmt: skip
        rows.append(row)
    ups = [UpstreamRow(name, one.url, list(one.wires), one.slots) for name, one in now.upstreams.items()]
    budgets = _budgets(folder, now, running=address is not None)
    if address is None:
        return GatewayStatus(False, folder, ups, rows, budgets)
    return GatewayStatus(True, folder, ups, rows, budgets, address.pid, address.port)


def _budgets(folder: str, now: Any, *, running: bool) -> list[BudgetRow]:
    """Gives the caps in force, and what is used of them."""
    import time

    from ropewalk.gateway import budget, ledger

    caps = now.bounds()
    if not caps:
        return []
    account, rows = ledger.spent(folder), []
    for name, cap in sorted(caps.items()):
        one = account.spent.get(budget.day(time.time()) if name == budget.DAY else name, budget.Spent())
        rows.append(BudgetRow(
            name, {k: v for k, v in msgspec.to_builtins(cap).items() if v is not None}, one.cost.dollars, one.cost.mark,
            one.tokens.total, one.requests, one.reserved_dollars if running else 0.0,
            one.reserved_tokens if running else 0, budget.holds(cap, one),
        ))  # fmt: skip
    return rows


class GatewaySwapRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes an upstream's name, and the endpoint that takes its place."""

    name: Annotated[str, Meta(min_length=1, max_length=200, description="the upstream that lanes use")]
    by: Annotated[str, Meta(min_length=1, max_length=200, description="an endpoint of endpoints.toml")]


class GatewaySwapped(msgspec.Struct, frozen=True):
    """Is an upstream's name and where it leads now."""

    name: str
    url: str


@operation(
    "gateway swap",
    request=GatewaySwapRequest,
    response=GatewaySwapped,
    summary="Put another endpoint in an upstream's place, for the next request of every lane",
    errors=(InvalidError, NotFoundError),
    tool="",
    store=False,
    command=Command(positional=("name", "by")),
)
def gateway_swap(ctx: Context, req: GatewaySwapRequest) -> GatewaySwapped:
    """Swaps it while lanes run; requests on their way end where they began."""
    from ropewalk.gateway import endpoints, host, settings

    folder, known = crew.gateway_folder(ctx), endpoints.read(crew.config_folder(ctx), ctx.env)
    if req.by not in known:
        raise NotFoundError(f"endpoints.toml has no {req.by!r}", hint=", ".join(known) or "it has none at all")
    if req.name not in settings.read(folder).upstreams:
        raise NotFoundError(f"no lane used an upstream {req.name!r}", hint="`rw gateway status` shows them")
    host.swap(folder, req.name, known[req.by])
    return GatewaySwapped(req.name, known[req.by].url)


class SweepRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes whether to give back what nobody would miss."""

    reclaim: Annotated[bool, Meta(description="archive and remove what is reclaimable")] = False
    dry_run: Annotated[bool, Meta(description="with --reclaim: say what would go")] = False
    older_than: Annotated[float, Meta(ge=0, le=36_500, description="of lanes that began so many days ago")] = 0.0


class SweepRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what a lane left: active, holds-work, landed-untracked or reclaimable, and why."""

    lane: str
    verdict: str
    why: str
    bytes: int
    age: int
    workspace: str | None = None
    archive: str | None = None
    removed: bool = False


class SweepResponse(msgspec.Struct, frozen=True):
    """Is what lanes left, how many of each verdict, and how many bytes were given back, or would be."""

    lanes: list[SweepRow]
    totals: dict[str, int]
    bytes: int


@operation(
    "sweep",
    request=SweepRequest,
    response=SweepResponse,
    summary="Say what ended lanes still take up, and give back what holds no work",
    errors=AT_WORK,
    writes=True,
    tool="",
)
def sweep(ctx: Context, req: SweepRequest) -> SweepResponse:
    """Looks at every lane as it is now; what goes is archived first, and nothing goes when it can't be."""
    from ropewalk.lane import sweep as lanes

    rows, given = [], 0
    for lane, found in list(lanes.look(ctx.store, req.older_than * 86_400)):
        one = found
        if req.reclaim and not req.dry_run:
            one = lanes.reclaim(ctx.store, lane, found, ctx.agent, lanes.Places(archives(ctx), ctx.trash))
        if one.removed or (req.dry_run and one.verdict == "reclaimable"):
            given += one.bytes
        rows.append(one)
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.verdict] = totals.get(row.verdict, 0) + 1
    return SweepResponse(msgspec.convert(msgspec.to_builtins(rows), list[SweepRow]), totals, given)


class ChipOpenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a name, what is to be done, and where it lands."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="names the session and its workspace")]
    text: Annotated[str, Meta(max_length=100_000, description="what is to be done")] = ""
    onto: Annotated[str, Meta(max_length=1024, description="the ref it lands on; without it the default branch")] | (
        None
    ) = None


class Chip(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a session that a person drives: its lane, its workspace's folder, and how it stands."""

    lane: str
    workspace: str
    path: str
    state: str
    task: str = ""
    began: int = 0


@operation(
    "chip open",
    request=ChipOpenRequest,
    response=Chip,
    summary="Note a session that you drive yourself as a lane, with a workspace of its own",
    errors=(*AT_WORK, HarnessError),
    writes=True,
    tool="",
    command=Command(positional=("name", "text?")),
)
def chip_open(ctx: Context, req: ChipOpenRequest) -> Chip:
    """Makes the workspace and the lane; the agent program is yours to start in it. `rw chip close` collects it."""
    from ropewalk.lane import journal
    from ropewalk.operations.workspace import WsCreateRequest, ws_create

    store = ctx.store
    if any(one.record.task == req.name and one.result is None for one in _chips(ctx)):
        raise BusyError(f"the session {req.name!r} is open", hint="`rw chip close` ends it; `rw chip list` shows it")
    made = ws_create(ctx, WsCreateRequest(req.name, onto=req.onto))
    number = sum(one.record.task == req.name for one in journal.lanes(store, CHIP, limit=100_000)) + 1
    lane = f"{CHIP}/{req.name}/{number}"
    record = journal.opened(lane, CHIP, req.name, ctx.agent, req.text, made.path, store.objects.commit(made.base).tree)
    journal.begin(store, record)
    journal.set_state(store, lane, "running")
    return Chip(lane, made.name, made.path, "running", req.text, record.began)


class ChipCloseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a session's name, and what is to be said of it."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="the session")]
    text: Annotated[str, Meta(max_length=100_000, description="what was done")] = ""


@operation(
    "chip close",
    request=ChipCloseRequest,
    response=Chip,
    summary="End a session that you drove; its workspace is there to be landed",
    errors=(NotFoundError,),
    writes=True,
    tool="",
    command=Command(positional=("name", "text?")),
)
def chip_close(ctx: Context, req: ChipCloseRequest) -> Chip:
    """Writes the session's result; `rw ws land` lands what is in its workspace."""
    from ropewalk.core import clock
    from ropewalk.lane import journal

    store = ctx.store
    found = next((one for one in _chips(ctx) if one.record.task == req.name and one.result is None), None)
    if found is None:
        raise NotFoundError(f"there is no open session {req.name!r}", hint="`rw chip list` shows them")
    seconds = float(max(0, clock.now() - found.began))
    journal.finish(
        store, found.record.lane, journal.Result("done", "", req.text, seconds, None, None, "*", 0, 0, "none")
    )
    return _chip(journal.need(store, found.record.lane))


class ChipListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes nothing."""


class ChipListResponse(msgspec.Struct, frozen=True):
    """Is the sessions that people drive, newest first."""

    chips: list[Chip]


@operation(
    "chip list",
    request=ChipListRequest,
    response=ChipListResponse,
    summary="List the sessions that people drive",
    tool="",
)
def chip_list(ctx: Context, req: ChipListRequest) -> ChipListResponse:
    """Lists them, ended ones too."""
    return ChipListResponse([_chip(one) for one in _chips(ctx)])


def _chips(ctx: Context) -> list[Any]:
    from ropewalk.lane import journal

    return journal.lanes(ctx.store, CHIP, limit=100_000)


def _chip(lane: Any) -> Chip:
    record = lane.record
    return Chip(
        record.lane, os.path.basename(record.workspace), record.workspace, lane.state, record.ingredients.prompt,
        lane.began,
    )  # fmt: skip
