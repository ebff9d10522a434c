"""The demo: the whole story on a copy of a repository, or on a sample project."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    CageUnavailableError,
    InvalidError,
    NotFoundError,
    PlanningError,
    RopewalkError,
    UnsupportedError,
)
from ropewalk.operations import crew
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.run.demo.shown import Shown

if TYPE_CHECKING:
    from ropewalk.lane.cage.room import Level
    from ropewalk.run.demo.stage import Stage
    from ropewalk.run.figures import Summary
    from ropewalk.testing.model_server import ModelServer

FOUND, STOPPED = 10, 130
DOLLARS = 2.0
_SECONDS, _REAL_SECONDS = 120.0, 900.0
_KEPT = ("ROPEWALK_CAGE", "ROPEWALK_CHECK_CAGE", "ROPEWALK_CHECK_NETWORK")
_SHARED = "ROPEWALK_DEMO"
_SMALL = " Plan six small tasks at most."


class DemoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what to show it on, and who does the tasks."""

    repository: Annotated[str, Meta(max_length=4096, description="a git repository; it is only read")] | None = None
    sample: Annotated[bool, Meta(description="use the sample project though this folder is in a repository")] = False
    agents: Annotated[int, Meta(ge=2, le=64, description="how many agents at once")] = 3
    harness: (
        Annotated[str, Meta(max_length=4096, description="agent programs with commas between; their model is scripted")]
        | None
    ) = None
    real: Annotated[bool, Meta(description="with your own endpoint as the model, which costs money")] = False
    budget: Annotated[float, Meta(gt=0, le=1e6, description="how many dollars --real may cost")] = DOLLARS
    report: (
        Annotated[str, Meta(min_length=1, max_length=4096, description="a file for the run's report, .html or .md")]
        | None
    ) = None
    keep: Annotated[bool, Meta(description="keep the folder with the store and the export")] = False


class _Cast(NamedTuple):
    """Is who plays: programs (none: the scripted agent), whether their model is the user's, and their cage."""

    programs: tuple[str, ...]
    real: bool
    cage: str | None


@operation(
    "demo",
    request=DemoRequest,
    response=Shown,
    tool="",
    summary="Show it: a goal, a plan, agents at once on a copy, a conflict, a repair, a kill, the report, the proof",
    errors=(InvalidError, UnsupportedError, NotFoundError, PlanningError, *crew.LANES),
    writes=True,
    identity=False,
    store=False,
    command=Command(positional=("repository?",)),
)
def demo(ctx: Context, req: DemoRequest) -> Shown:
    """Runs the demo in a temporary folder; exit code 10 when something of it did not come true.

    It is what `rw run GOAL` does, by the same way. Manager and agents follow scripts, without a network; `harness` has
    real programs do the tasks, whose model follows a script as well. `real` has them ask your own endpoint, and is the
    only thing here that costs money. However the demo ends, nothing of it is left.
    """
    from ropewalk.core import clock
    from ropewalk.run.demo import cleaner, proof, stage
    from ropewalk.run.interrupts import Interrupts
    from ropewalk.testing.model_server import running

    began = clock.monotonic()
    repository = ctx.path(req.repository) if req.repository is not None else None
    if repository is None and not req.sample and stage.usable(ctx.cwd):
        repository = ctx.cwd
    if repository is None and shutil.which("python3", path=_search(ctx)) is None:
        raise UnsupportedError(
            "the sample is in Python, and there is no python3 on the PATH",
            hint="put it there, or name a git repository of yours: it is only read",
        )
    if req.report is not None and not os.access(os.path.dirname(ctx.path(req.report)), os.W_OK):
        raise InvalidError(f"{req.report!r} can't be written", hint="name a file in a folder that is there")
    cast = _cast(ctx, req)
    with ExitStack() as stack:
        folder = stack.enter_context(cleaner.folder(req.keep))
        interrupts = stack.enter_context(Interrupts())
        made = stage.build(folder, repository, ctx.progress)
        interrupts.check()
        server = None
        if not cast.real:
            server = stack.enter_context(running())
            server.add("demo", made.says(cast.programs, killed=False))
            stage.write_endpoint(made, server.url("demo", "demo"))
        inner = _inner(ctx, made, cast, server)
        stack.callback(inner.close)
        done, text, file = _played(ctx, inner, req, made, cast)
        interrupts.check()
        told = proof.Told(
            cast.programs[0] if cast.real else "a scripted model, through the gateway",
            None if server is None else [one.prompt for one in server.entries("demo")],
            ", ".join(cast.programs) or "scripted", cast.cage or "full", req.agents,
            lambda: clock.monotonic() - began, text,
        )  # fmt: skip
        shown = proof.prove(made, done, told, ctx.progress)
        interrupts.check()
    if shown.failed:
        ctx.exit = FOUND
    return msgspec.structs.replace(shown, more=_more(ctx, cast), file=file, folder=folder if req.keep else None)


def _played(ctx: Context, inner: Context, req: DemoRequest, made: Stage, cast: _Cast) -> tuple[Summary, str, str]:
    """Runs the goal, and gives the run with its report, and the file that this was written to."""
    from ropewalk.operations.reporting import RunsReportRequest, runs_report
    from ropewalk.operations.run import RunRequest, run
    from ropewalk.run.demo.script import MODEL

    ctx.progress(f"goal: {made.goal}")
    seconds = _REAL_SECONDS if cast.programs else _SECONDS
    try:
        done = run(inner, RunRequest(
            made.goal + (_SMALL if cast.real else ""), jobs=req.agents, yes=True, direct=not cast.real,
            model="" if cast.real else MODEL, harness=",".join(cast.programs) or "scripted", cage=cast.cage,
            manager=cast.programs[0] if cast.real else None, seconds=seconds, check_seconds=_SECONDS,
            budget=req.budget if cast.real else None, pass_env=[] if cast.programs else [_SHARED],
        ))  # fmt: skip
    except PlanningError as error:
        if error.details.get("stopped"):
            raise KeyboardInterrupt from None
        raise
    if inner.exit == STOPPED:
        raise KeyboardInterrupt
    ctx.warnings += inner.warnings
    text = runs_report(inner, RunsReportRequest(done.id)).text
    if req.report is None:
        return done, text, ""
    return done, text, runs_report(inner, RunsReportRequest(done.id, into=ctx.path(req.report))).file


def _cast(ctx: Context, req: DemoRequest) -> _Cast:
    """Gives who plays; somebody at a terminal who could use a program with an endpoint of his own is asked.

    The user's models are never used without a yes, and never in less than the cage that he named or a full one.
    """
    words = [req.harness or ""] if ":" in (req.harness or "") else (req.harness or "").split(",")
    named = tuple(dict.fromkeys(one.strip() for one in words if one.strip()))
    if "scripted" in named and (req.real or len(named) > 1):
        raise InvalidError("the scripted agent has no model, and plays alone", harness=req.harness)
    named = () if named == ("scripted",) else named
    for one in named:
        crew.adapter(ctx, one, None)
    own = str(ctx.settings["cage"].value or "") or None
    real = req.real
    ready = _ready(ctx, real) if real or not named else ()
    if not named and not real and not req.sample and ready:
        question = f"{ready[0]} and an endpoint of yours are here: shall it do the demo, for ${req.budget:g} at most?"
        real = ctx.ask(f"{question} (else it runs scripted, and costs nothing)") is True
    if real:
        if not (named or ready):
            raise InvalidError(
                "no agent program with an endpoint of yours is here",
                hint="`rw doctor` says what is missing, `rw setup` asks for it; without --real the demo needs neither",
            )
        return _Cast(named or ready[:1], True, own)
    return _Cast(named, False, (own or _best()) if named else "none")


def _ready(ctx: Context, wanted: bool) -> tuple[str, ...]:
    """Gives the programs that are here and that one of the user's endpoints serves; where `wanted` faults count."""
    from ropewalk.gateway import endpoints
    from ropewalk.lane.programs import registry

    try:
        ups = endpoints.read(crew.config_folder(ctx), ctx.env)
    except RopewalkError:
        if wanted:
            raise
        return ()
    return tuple(name for name in _installed(ctx) if endpoints.fitting(ups, registry.get(name).wires))


def _installed(ctx: Context) -> list[str]:
    from ropewalk.lane.programs import registry

    return [name for name in registry.PROGRAMS if shutil.which(registry.get(name).program, path=_search(ctx))]


def _search(ctx: Context) -> str:
    return ctx.env.get("PATH") or os.defpath


def _best() -> Level:
    """Gives the best cage that can be had; what is told to a program by our script needs no better one."""
    from ropewalk.lane.cage import levels

    for level in levels.LEVELS:
        try:
            return levels.choose(level)
        except CageUnavailableError:
            continue
    return "none"


def _inner(ctx: Context, made: Stage, cast: _Cast, server: ModelServer | None) -> Context:
    """Gives the context of the run: its store, data and settings are the demo's own, the display is the caller's."""
    from ropewalk.core import config

    env = {name: value for name, value in ctx.env.items() if not name.startswith(("ROPEWALK_", "SWARM_"))}
    env |= {name: ctx.env[name] for name in _KEPT if name in ctx.env and cast.real}
    env[_SHARED] = made.shared
    endpoints = ctx.config_home if cast.real else made.config
    inner = Context(
        cwd=made.folder, store=made.root, agent="ropewalk/demo", env=env, progress=ctx.progress, data_home=made.data,
        cache_home=made.data, config_home=endpoints, settings=config.resolve({}, env),
    )  # fmt: skip
    if server is None or not cast.programs:
        inner.watch = ctx.watch
        return inner
    from ropewalk.operations.run import watcher

    shown = watcher(ctx)

    def heard(event: dict[str, object]) -> None:
        if event["event"] == "agent_ended" and event.get("how") == "died":
            server.add("demo", made.says(cast.programs, killed=True))  # once is enough, and its heir is let live
        shown(event)

    inner.watch = heard
    return inner


def _more(ctx: Context, cast: _Cast) -> list[str]:
    """Gives what else can be tried here."""
    if cast.programs:
        return []
    here = [name for name in _installed(ctx) if name != "glm"]
    if not here:
        return ["with an agent program: none is installed; `rw doctor` names those that are known"]
    first = ",".join(here[:2])
    return [
        f"with real programs, whose model is scripted and costs nothing: rw demo --harness {first}",
        f"with your own endpoint, which costs money: rw demo --real --harness {here[0]}",
    ]
