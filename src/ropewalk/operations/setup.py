"""Setting up: what `rw run` needs to know is asked at a terminal, or read from a file, tried, and kept."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from ropewalk.core.errors import HarnessError, InvalidError, NotFoundError, ProviderError, RopewalkError, StalledError
from ropewalk.operations import crew
from ropewalk.operations.context import Context
from ropewalk.operations.registry import operation

if TYPE_CHECKING:
    from ropewalk.gateway.endpoints import Endpoint
    from ropewalk.gateway.probe import Report
    from ropewalk.gateway.settings import Upstream
    from ropewalk.run.setup import Size
    from ropewalk.run.usual import Usual


class SetupRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a file with the answers, and a plan to count agents by."""

    config: Annotated[str, Meta(min_length=1, max_length=4096, description="read this TOML file, and ask nothing")] | (
        None
    ) = None
    plan: (
        Annotated[
            str,
            Meta(min_length=1, max_length=4096, description="count agents by this plan; without it by `plan`, if any"),
        ]
        | None
    ) = None


class SetupEndpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one endpoint: its name and address, whether it has a key, and what probing it gave."""

    name: str
    url: str
    has_key: bool
    verdict: str = ""
    found: list[str] = []


class SetupResponse(msgspec.Struct, frozen=True):
    """Is what runs do from now on.

    `most_at_once` is how many agents the project bears, `recommended` how many are worth having (`low` to `high`);
    `counted` says of what that was told. `written` are the files that are other than before.
    """

    harness: str
    model: str
    workers: int
    modules: int
    most_at_once: int
    recommended: int
    low: int
    high: int
    counted: str
    dirty: str
    manager: list[str]
    endpoints: list[str]
    probed: list[SetupEndpoint]
    written: list[str]


class Here(NamedTuple):
    """Is what is there before anything is asked: the user's endpoints, what runs do now, the project's size."""

    folder: str
    known: dict[str, Endpoint]
    usual: Usual
    size: Size
    uncommitted: tuple[str, ...]


class Answers(NamedTuple):
    """Is what is to be kept; nothing is written before all of it is known."""

    run: Usual
    endpoints: dict[str, Endpoint]
    probed: list[SetupEndpoint]


@operation(
    "setup",
    request=SetupRequest,
    response=SetupResponse,
    summary="Set up who does the work of runs here: programs, endpoints, how many at once; asked, or from a file",
    errors=(InvalidError, NotFoundError, StalledError, ProviderError, HarnessError),
    writes=True,
    identity=False,
    tool="",
    store=False,
)
def setup(ctx: Context, req: SetupRequest) -> SetupResponse:
    """Keeps what it was told, all of it or nothing; `rw run` needs no further flags then. No key is shown or logged."""
    from ropewalk.operations import setupask

    here = look(ctx, req)
    if req.config is not None:
        answers = _of_file(ctx, here, req.config)
    elif ctx.asks_line is not None:
        answers = setupask.asked(ctx, here)
    else:
        raise InvalidError(
            "nobody is there to be asked", hint="`rw setup --config FILE` reads the answers: see docs/setup.md"
        )
    written = _keep(ctx, here, answers)
    run, size = answers.run, here.size
    return SetupResponse(
        run.harness, run.model, run.workers or size.workers, size.modules, size.most, size.workers, size.low, size.high,
        size.counted, run.dirty, list(run.manager), list(run.names), answers.probed, written,
    )  # fmt: skip


def look(ctx: Context, req: SetupRequest) -> Here:
    """Gives what is there; nothing is made. `E_NOT_FOUND` where neither a store nor a repository is."""
    from ropewalk.gateway import noting
    from ropewalk.run import start, usual
    from ropewalk.store import layout

    now = usual.Usual()
    try:
        now = usual.read(ctx.root)
    except NotFoundError:
        if ctx.named_root is not None or layout.git_common_dir(ctx.cwd) is None:
            raise
    folder = crew.config_folder(ctx)
    return Here(folder, noting.raw(folder), now, _size(ctx, req.plan), start.uncommitted(ctx.cwd))


def _size(ctx: Context, plan: str | None) -> Size:
    """Gives the size of the project, by a plan where there is one, else by the map of its files."""
    from ropewalk.operations import managing
    from ropewalk.plan import document
    from ropewalk.run import setup as asked
    from ropewalk.run.planner import folders

    path = ctx.path(plan or "plan")
    if plan is not None or os.path.isfile(os.path.join(path, document.FILE)):
        shown = plan or "plan"
        return asked.of_plan(managing.valid(folders.load(path).plan, shown), f"the plan in {shown}")
    root = folders.root(ctx.cwd)
    return asked.of_files(folders.files(root), lambda name: folders.text(os.path.join(root, name)), "the folders here")


# what is asked and what a file says is held against the same things


def harness_fault(ctx: Context, name: str) -> str:
    """Gives what is wrong with a harness for runs here, empty where nothing is."""
    try:
        if name == crew.ROUTE:
            crew.staff(ctx, name, None)
        else:
            for one in [name] if ":" in name else name.split(","):
                crew.adapter(ctx, one.strip(), None)
    except RopewalkError as error:
        return f"{error.message}{f' ({error.hint})' if error.hint else ''}"
    return ""


def installed(ctx: Context) -> tuple[list[str], list[str]]:
    """Gives the agent programs that are installed, and those that were looked for in vain."""
    from ropewalk.lane.programs import registry

    search = ctx.env.get("PATH") or os.defpath
    here = [name for name in registry.PROGRAMS if shutil.which(registry.get(name).program, path=search) is not None]
    return here, [name for name in registry.PROGRAMS if name not in here]


def unheard(ctx: Context, harness: str, upstreams: dict[str, Upstream]) -> str:
    """Gives what to say of a harness whose programs can't use any of the endpoints, empty where they can."""
    from ropewalk.gateway.endpoints import fitting
    from ropewalk.lane import routing
    from ropewalk.lane.programs import registry

    named = routing.route(crew.routes(ctx)).harness if harness == crew.ROUTE else harness
    used = [registry.get(name.strip()) for name in ([named] if ":" in named else named.split(","))]
    deaf = [one.name for one in used if one.wires and one.name != "command"
            and not fitting(upstreams, one.wires, harness=one.name)]  # fmt: skip
    return f"no endpoint speaks what {', '.join(deaf)} does, which reaches no model from a cage then" if deaf else ""


def tried(ctx: Context, name: str, up: Upstream, model: str = "") -> tuple[SetupEndpoint, Report | None]:
    """Gives how an endpoint does; a login is its program's, and is not tried."""
    from ropewalk.gateway.probe import probe

    if up.login is not None:
        return SetupEndpoint(name, up.url, False, "login"), None
    ctx.progress(f"probing {up.url}: up to 22 short requests")
    found = probe(up.url, up.key, model=model)
    words = [f"{one.name}: {one.found}" for one in found.checks if one.grade != "pass"]
    return SetupEndpoint(name, up.url, bool(up.key), found.verdict, words), found


def completed(one: Endpoint, found: Report | None) -> Endpoint:
    """Gives an endpoint with what probing it told; what is said of it already stays."""
    if found is None or found.auth is None:
        return one
    return msgspec.structs.replace(
        one, auth=found.auth, wires=one.wires or found.wires, window=one.window or found.window or 0,
        slots=found.slots if found.slots and one.slots == 16 else one.slots,
    )  # fmt: skip


def _of_file(ctx: Context, here: Here, path: str) -> Answers:
    from ropewalk.gateway import endpoints
    from ropewalk.run import setup as asked

    around = asked.Around(
        list(here.known), here.size.modules, lambda name: harness_fault(ctx, name),
        lambda name, one: endpoints.resolved(here.folder, ctx.env, name, one),
    )  # fmt: skip
    with ctx.read_file(path) as file:
        wanted = asked.read(file, path, around)
    probed, made, bad = [], {}, []
    for name, one in wanted.endpoints.items():
        row, found = tried(ctx, name, wanted.upstreams[name])
        probed.append(row)
        made[name] = completed(one, found)
        if row.verdict == "not":
            bad.append(f"{name}: {'; '.join(row.found)}")
    if bad and wanted.probe.on_failure == "stop":
        raise ProviderError(
            f"agents can't work with {bad[0]}", problems=bad,
            hint='nothing was changed; [probe] on_failure = "use" takes an endpoint all the same',
        )  # fmt: skip
    run = wanted.run
    if run.workers is None:
        run = msgspec.structs.replace(run, workers=here.size.workers)
    if not run.harness:
        run = msgspec.structs.replace(run, harness=default_harness(ctx, here))
    return Answers(run, made, probed)


def default_harness(ctx: Context, here: Here) -> str:
    """Gives who does tasks where nobody said: as before, by the user's routes, else the first that is installed.

    `E_HARNESS` where no agent program is.
    """
    from ropewalk.lane import routing

    if here.usual.harness and not harness_fault(ctx, here.usual.harness):
        return here.usual.harness
    there, missing = installed(ctx)
    if not there:
        raise HarnessError(
            f"no agent program is installed; looked for {', '.join(missing)}",
            hint="`rw doctor` says how to get one; or name your own: harness = \"command:PROGRAM WORDS\"",
        )  # fmt: skip
    return crew.ROUTE if routing.route(crew.routes(ctx)).harness in there else there[0]


def _keep(ctx: Context, here: Here, answers: Answers) -> list[str]:
    """Writes what is other than before, and gives the files; a signal waits until both are whole."""
    from ropewalk.gateway import endpoints, noting
    from ropewalk.operations.run import make_store
    from ropewalk.run import usual
    from ropewalk.run.interrupts import Interrupts

    make_store(ctx, None)
    if warning := unheard(ctx, answers.run.harness, _upstreams(ctx, here, answers)):
        ctx.warnings.append(warning)
    written = []
    with Interrupts():
        if answers.endpoints and noting.note(here.folder, answers.endpoints):
            written.append(os.path.join(here.folder, endpoints.FILE))
        if usual.write(ctx.root, answers.run):
            written.append(os.path.join(ctx.root, usual.FILE))
    return written


def _upstreams(ctx: Context, here: Here, answers: Answers) -> dict[str, Upstream]:
    from ropewalk.gateway import endpoints

    found = endpoints.read(here.folder, ctx.env)
    found |= {name: endpoints.resolved(here.folder, ctx.env, name, one) for name, one in answers.endpoints.items()}
    return {name: found[name] for name in answers.run.names if name in found} or found
