"""The demo: the whole story on a copy of a repository, or on a sample project."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.errors import InvalidError, NotFoundError, UnsupportedError
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.run import watcher

FOUND = 10


class DemoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what to show it on."""

    repository: Annotated[str, Meta(max_length=4096, description="a git repository; it is only read")] | None = None
    sample: Annotated[bool, Meta(description="use the sample project though this folder is in a repository")] = False
    agents: Annotated[int, Meta(ge=2, le=64, description="how many agents at once")] = 3
    keep: Annotated[bool, Meta(description="keep the folder with the store and the export")] = False


class DemoResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what the demo did and proved; `failed` lists what did not come true."""

    repository: str
    goal: str
    base: str
    head: str
    tasks: int
    agents: int
    regions: list[str]
    crossing: int
    changes: int
    seconds: float
    conflicts: list[dict[str, Any]]
    repaired: list[str]
    killed: list[str]
    exported: str
    fsck: str
    verified: str
    history: str
    failed: list[str]
    run: dict[str, Any]
    folder: str | None = None


@operation(
    "demo",
    request=DemoRequest,
    response=DemoResponse,
    tool="",
    summary="Show it: a plan, agents at once on a copy, a conflict, a check repaired, an agent killed, the proof",
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
    scratch = tempfile.mkdtemp(prefix="ropewalk-demo-")
    try:
        with Interrupts() as interrupts:
            wanted = show.Wanted(repository, scratch, ctx.env, req.agents)
            done = show.demo(wanted, ctx.progress, watcher(ctx), interrupts)
    finally:
        if not req.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    if done.failed:
        ctx.exit = FOUND
    plain = msgspec.to_builtins(done)
    plain.pop("folder", None)
    return DemoResponse(**plain, folder=scratch if req.keep else None)
