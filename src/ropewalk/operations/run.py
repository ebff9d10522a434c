"""Runs: start one, list them, show one; and the demo."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    AdapterMismatchError,
    BusyError,
    CageUnavailableError,
    HarnessError,
    InvalidError,
    LoginUncagedError,
    NotFoundError,
    ProviderError,
    UnsupportedError,
)
from ropewalk.core.ids import check_ref
from ropewalk.operations import crew
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.run import report
from ropewalk.run.report import Summary

FOUND, STOPPED = 10, 130
LANES = (HarnessError, AdapterMismatchError, CageUnavailableError, LoginUncagedError, ProviderError)
"""Are the errors of whatever starts lanes."""


class RunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes the tasks, who does them, and where they land."""

    tasks: Annotated[str, Meta(min_length=1, description="the task file: JSON, or TOML by its name")]
    jobs: Annotated[int, Meta(ge=1, le=256, description="how many agents at once")] = 4
    harness: crew.Harness | None = None
    command: crew.Command | None = None
    cage: crew.Cage | None = None
    model: Annotated[str, Meta(max_length=200, description="the model")] = ""
    effort: Annotated[str, Meta(max_length=20, description="low, medium, high or max")] = ""
    check: (
        Annotated[str, Meta(max_length=100_000, description="a shell command that must pass on each merged tree")]
        | None
    ) = None
    onto: (
        Annotated[str, Meta(max_length=1024, description="the ref to land on; without it a new one, run/ID")] | None
    ) = None
    seconds: Annotated[float, Meta(gt=0, le=604_800, description="how long an agent's turn may take")] = 3600.0
    check_seconds: Annotated[float, Meta(gt=0, le=86_400, description="how long a check may take")] = 1800.0
    pass_env: crew.PassEnv = []
    keep: Annotated[bool, Meta(description="keep the workspaces of landed tasks too")] = False
    replay_results: Annotated[bool, Meta(description="take unchanged tasks from the journal")] = False
    sample: Annotated[int, Meta(ge=0, le=10_000, description="of independent attempts")] = 0


@operation(
    "run",
    request=RunRequest,
    response=Summary,
    summary="Run tasks by agents at once, each in its own workspace, and land what passes",
    errors=(InvalidError, NotFoundError, *LANES, BusyError),
    writes=True,
    command=Command(),
)
def run(ctx: Context, req: RunRequest) -> Summary:
    """Runs a task file; exit code 10 when a task did not land, 130 when the run was stopped."""
    from ropewalk.run import runner, tasks
    from ropewalk.run.interrupts import Interrupts

    with ctx.read_file(req.tasks) as file:
        todo = tasks.parse(file.read(), req.tasks)
    harness = crew.adapter(ctx, req.harness, req.command, "scripted")
    _check_scripts(harness.name, todo)
    options = runner.Options(
        harness=harness,
        caller=ctx.env,
        data_home=ctx.data_home,
        onto=check_ref(req.onto) if req.onto is not None else None,
        jobs=req.jobs,
        check=req.check,
        seconds=req.seconds,
        check_seconds=req.check_seconds,
        keep=req.keep,
        replay=req.replay_results,
        sample=req.sample,
        ways=crew.ways(ctx, harness, cage=req.cage, pass_env=req.pass_env, model=req.model, effort=req.effort),
    )
    with Interrupts() as interrupts:
        done = runner.run(ctx.store, ctx.agent, todo, options, interrupts, watcher(ctx))
    if done.state == "stopped":
        ctx.exit = STOPPED
    elif done.landed < len(done.tasks):
        ctx.exit = FOUND
    return done


def _check_scripts(harness: str, todo: list[Any]) -> None:
    """Raises for a task whose script nobody would follow, and for one that the scripted agent could not do."""
    if harness == "scripted":
        without = [task.id for task in todo if task.script is None and "```script" not in task.prompt]
        if without:
            raise InvalidError(
                f"{without[0]} has no script for the scripted agent",
                hint="name an agent program with --command, or give each task a script",
                tasks=without[:100],
            )
        return
    scripted = [task.id for task in todo if task.script is not None]
    if scripted:
        raise InvalidError(f"{scripted[0]} has a script, which only the scripted agent follows", tasks=scripted[:100])


def watcher(ctx: Context) -> Callable[[dict[str, Any]], None]:
    """Gives what shows a run's events: the face's own display, else a line for each that matters."""
    if ctx.watch is not None:
        return ctx.watch

    def show(event: dict[str, Any]) -> None:
        line = line_of(event)
        if line is not None:
            ctx.progress(line)

    return show


def line_of(event: dict[str, Any]) -> str | None:
    """Gives an event as a line for a person, None for one that is not worth a line."""
    kind, task = event["event"], event.get("task", "")
    if kind == "run_started":
        return f"run {event['run']}: {len(event['tasks'])} tasks onto {event['ref']}"
    if kind == "task_started":
        return f"{task}: started ({event['agent']})"
    if kind == "agent_ended" and event["how"] != "done":
        return f"{task}: the agent {event['how']} ({event['code']})"
    if kind == "conflict":
        return f"{task}: conflict in {', '.join(event['paths'])}; back to its agent"
    if kind == "landed":
        return f"{task}: {event['status']} {event['id'][:12]} in {event['seconds'] * 1000:.0f} ms"
    if kind == "task_ended" and event["report"].state != "landed":
        return f"{task}: {event['report'].state}: {event['report'].reason}"
    if kind == "stopping":
        return "stopping: agents are ended, their work is kept"
    return None


class RunsListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes how many runs to list."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="how many at most, newest first")] = 50


class RunRow(msgspec.Struct, frozen=True):
    """Is one run in a list."""

    id: str
    state: str
    ref: str
    landed: int
    failed: int
    tasks: int
    seconds: float
    started_at: int


class RunsListResponse(msgspec.Struct, frozen=True):
    """Is the runs, newest first."""

    runs: list[RunRow]
    truncated: bool


@operation(
    "runs list",
    request=RunsListRequest,
    response=RunsListResponse,
    summary="List runs, newest first",
)
def runs_list(ctx: Context, req: RunsListRequest) -> RunsListResponse:
    """Lists the store's runs."""
    found = report.listed(ctx.store.layout)
    rows = [
        RunRow(r.id, r.state, r.ref, r.landed, r.failed + r.blocked, len(r.tasks), r.seconds, r.started_at)
        for r in found[: req.limit]
    ]
    return RunsListResponse(rows, len(found) > req.limit)


class RunsShowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a run's id."""

    id: Annotated[str, Meta(min_length=1, max_length=100, description="the run")]


@operation(
    "runs show",
    request=RunsShowRequest,
    response=Summary,
    summary="Show a run: its tasks, and what became of each",
    errors=(NotFoundError,),
    command=Command(positional=("id",)),
)
def runs_show(ctx: Context, req: RunsShowRequest) -> Summary:
    """Shows a run, a running one too."""
    return report.load(ctx.store.layout, req.id)


class DemoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what to show it on, and the seed of what is random."""

    repository: Annotated[str, Meta(max_length=4096, description="a git repository; it is only read")] | None = None
    sample: Annotated[bool, Meta(description="use the sample project though this folder is in a repository")] = False
    seed: Annotated[int, Meta(ge=0, description="for the moment of the kill; without it a random one")] | None = None
    agents: Annotated[int, Meta(ge=2, le=64, description="how many agents at once")] = 8
    keep: Annotated[bool, Meta(description="keep the folder with the store and the export")] = False


class DemoResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what the demo did and proved; `failed` lists what did not come true."""

    repository: str
    base: str
    head: str
    agents: int
    changes: int
    seconds: float
    lands_per_second: float
    conflicts: list[dict[str, Any]]
    kill: dict[str, Any] | None
    exported: str
    fsck: str
    verified: str
    history: str
    failed: list[str]
    seed: int
    folder: str | None = None


@operation(
    "demo",
    request=DemoRequest,
    response=DemoResponse,
    tool="",
    summary="Show it: agents at once on a clone, a conflict resolved, a killed land recovered",
    errors=(InvalidError, UnsupportedError, NotFoundError),
    writes=True,
    identity=False,
    store=False,
    command=Command(positional=("repository?",)),
)
def demo(ctx: Context, req: DemoRequest) -> DemoResponse:
    """Runs the demo in a temporary folder; exit code 10 when something of it did not come true."""
    import tempfile

    from ropewalk.run import demo as show
    from ropewalk.run.interrupts import Interrupts

    repository = ctx.path(req.repository) if req.repository is not None else None
    if repository is None and not req.sample and show.usable(ctx.cwd):
        repository = ctx.cwd
    seed = req.seed if req.seed is not None else int.from_bytes(os.urandom(4), "big")
    scratch = tempfile.mkdtemp(prefix="ropewalk-demo-")
    try:
        with Interrupts() as interrupts:
            wanted = show.Wanted(repository, scratch, seed, ctx.env, req.agents)
            done = show.demo(wanted, ctx.progress, watcher(ctx), interrupts)
    finally:
        if not req.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    if done.failed:
        ctx.exit = FOUND
    plain = msgspec.to_builtins(done)
    plain.pop("folder", None)
    return DemoResponse(**{"kill": None, **plain}, seed=seed, folder=scratch if req.keep else None)
