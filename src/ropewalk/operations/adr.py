"""Standing decisions: made, looked up by the paths that they govern, and linted."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import InvalidError, os_error
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation

FOUND = 10
Paths = Annotated[list[str], Meta(min_length=1, max_length=10_000, description="a path or a glob")]


class AdrNewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a decision's title, and what it governs."""

    title: Annotated[str, Meta(min_length=1, max_length=200, description="what was decided")]
    governs: Annotated[list[str], Meta(max_length=1000, description="a glob of paths that it governs")] = []


class AdrNewResponse(msgspec.Struct, frozen=True):
    """Is the new decision's file."""

    id: str
    path: str


@operation(
    "adr new",
    request=AdrNewRequest,
    response=AdrNewResponse,
    summary="Begin a standing decision, with a number of its own",
    errors=(InvalidError,),
    writes=True,
    identity=False,
    store=False,
    tool="",
    command=Command(positional=("title",)),
)
def adr_new(ctx: Context, req: AdrNewRequest) -> AdrNewResponse:
    """Writes the file of a decision into the project's folder of them; whoever makes it says why."""
    from ropewalk.core import durable
    from ropewalk.plan import decisions
    from ropewalk.run.planner import folders

    if not req.title.isprintable():
        raise InvalidError("a title is one line", title=req.title[:200])
    root, inside = _place(ctx)
    for glob in req.governs:
        if not glob or glob.startswith(("/", "~")) or ".." in glob.split("/") or not glob.isprintable():
            raise InvalidError(f"{glob[:80]!r} is not a path inside the tree", path=glob[:200])
    folder = os.path.join(root, inside)
    try:
        durable.make_folders(folder)
        number = decisions.next_number(os.listdir(folder))
        name, text = decisions.new(number, req.title, req.governs)
        folders.put(os.path.join(folder, name), text.encode("utf-8", "replace"))
    except OSError as error:
        raise os_error(error, "write of a decision") from None
    return AdrNewResponse(name.removesuffix(".md"), f"{inside}/{name}")


class AdrTouchingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes paths."""

    paths: Paths


class AdrRow(msgspec.Struct, frozen=True):
    """Is one decision."""

    id: str
    title: str
    status: str
    governs: list[str]
    path: str


class AdrTouchingResponse(msgspec.Struct, frozen=True):
    """Is the standing decisions that govern any of the paths."""

    decisions: list[AdrRow]


@operation(
    "adr touching",
    request=AdrTouchingRequest,
    response=AdrTouchingResponse,
    summary="List the standing decisions that govern paths",
    errors=(InvalidError,),
    store=False,
    tool="",
    command=Command(positional=("paths*",)),
)
def adr_touching(ctx: Context, req: AdrTouchingRequest) -> AdrTouchingResponse:
    """Gives what whoever changes these paths has to keep to."""
    from ropewalk.plan import decisions
    from ropewalk.run.planner import folders

    root, inside = _place(ctx)
    found = decisions.touching(decisions.read(folders.decisions(root, inside) or {}), req.paths)
    return AdrTouchingResponse(
        [AdrRow(one.id, one.title, one.status or "accepted", list(one.governs), one.path) for one in found]
    )


class AdrLintRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes nothing."""


class AdrFinding(msgspec.Struct, frozen=True):
    """Is one thing that is wrong with a decision."""

    path: str
    severity: str
    text: str


class AdrLintResponse(msgspec.Struct, frozen=True):
    """Is what is wrong with the project's decisions."""

    decisions: int
    findings: list[AdrFinding]


@operation(
    "adr lint",
    request=AdrLintRequest,
    response=AdrLintResponse,
    summary="Say what is wrong with the standing decisions: ids, statuses, paths that are gone",
    errors=(InvalidError,),
    store=False,
    tool="",
)
def adr_lint(ctx: Context, req: AdrLintRequest) -> AdrLintResponse:
    """Lints the decisions; exit code 10 when one is wrong and not only of no use."""
    from ropewalk.plan import decisions
    from ropewalk.run.planner import folders

    root, inside = _place(ctx)
    files = folders.decisions(root, inside) or {}
    found = decisions.lint(files, [path for path, _ in folders.files(root)])
    if any(one.severity == "hard" for one in found):
        ctx.exit = FOUND
    return AdrLintResponse(len(files), [AdrFinding(one.path, one.severity, one.text) for one in found])


def _place(ctx: Context) -> tuple[str, str]:
    """Gives the project's folder, and the folder of decisions in it."""
    from ropewalk.core import policy
    from ropewalk.run.planner import folders

    root = folders.root(ctx.cwd)
    return root, policy.read(root).rules.decisions
