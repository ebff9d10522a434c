"""Git in and out: import a branch of another repository, export a ref to one."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    CasMismatchError,
    GitImportDivergedError,
    InvalidError,
    NotFoundError,
    RemoteError,
    ShallowError,
    UnsupportedError,
)
from ropewalk.core.ids import check_ref
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.remote import exporting, importing, transport


class ImportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a repository, one of its branches, and the ref it comes into."""

    source: Annotated[str, Meta(min_length=1, max_length=4096, description="a repository's path or URL, or a bundle")]
    ref: Annotated[str, Meta(description="the branch there; without it the one it is on")] | None = None
    into: Annotated[str, Meta(description="the ref of the store; without it the same name")] | None = None


@operation(
    "git import",
    request=ImportRequest,
    response=importing.Imported,
    summary="Bring a branch of a git repository in, with the same ids",
    errors=(
        GitImportDivergedError,
        ShallowError,
        NotFoundError,
        InvalidError,
        UnsupportedError,
        RemoteError,
        BusyError,
    ),
    writes=True,
    command=Command(positional=("source",)),
)
def git_import(ctx: Context, req: ImportRequest) -> importing.Imported:
    """Imports a branch as one operation."""
    into = check_ref(req.into) if req.into is not None else None
    return importing.import_branch(
        ctx.store, place(ctx, req.source), req.ref, into=into, actor=ctx.agent, progress=ctx.progress,
        wait=ctx.remote_wait,
    )  # fmt: skip


class ExportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a repository, a ref of the store, and the branch it becomes there."""

    destination: Annotated[
        str, Meta(min_length=1, max_length=4096, description="a repository's path or URL, or a path to make one at")
    ]
    ref: Annotated[str, Meta(description="the ref of the store; without it the default branch")] | None = None
    branch: Annotated[str, Meta(description="the branch there; without it the ref's name")] | None = None


@operation(
    "git export",
    request=ExportRequest,
    response=exporting.Exported,
    summary="Push a ref to a branch of a git repository, never forced",
    errors=(CasMismatchError, NotFoundError, InvalidError, UnsupportedError, RemoteError),
    writes=True,
    identity=False,
    command=Command(positional=("destination",)),
)
def git_export(ctx: Context, req: ExportRequest) -> exporting.Exported:
    """Exports a ref."""
    from ropewalk.store.revisions import default_branch

    ref = req.ref if req.ref is not None else default_branch(ctx.store)
    return exporting.export_branch(ctx.store, place(ctx, req.destination), ref, req.branch, progress=ctx.progress,
                                   wait=ctx.remote_wait)  # fmt: skip


def place(ctx: Context, text: str) -> str:
    """Gives a URL as it is, and a path below the caller's working folder."""
    return text if transport.is_url(text) or text.startswith("-") else ctx.path(text)
