"""Pull requests: open one for a ref on the forge of a remote, and see what became of it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    CasMismatchError,
    InvalidError,
    NotFoundError,
    RemoteError,
    ShallowError,
    UnsupportedError,
)
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.remotes import Name
from ropewalk.remote import proposing, remotes
from ropewalk.remote.forge import Kind
from ropewalk.store.revisions import default_branch

Pair = Annotated[
    str, Meta(min_length=1, max_length=2048, description="REF or REF:BRANCH, where the branch has another name there")
]
Base = Annotated[str, Meta(min_length=1, max_length=1024, description="the branch it is for; else the default one")]
Text = Annotated[str, Meta(max_length=60_000, description="its text; without it the titles of the changes")]
Title = Annotated[str, Meta(min_length=1, max_length=500, description="its title; without it the change's")]
Forge = Annotated[Kind, Meta(description="the forge's kind, where its host does not tell")]
Page = Annotated[
    str, Meta(max_length=4096, description="the repository's page at the forge, where the remote's URL does not tell")
]
ViaText = Annotated[proposing.Via, Meta(description="gh: by that program alone; api: without it")]


class PrOpenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a ref, the branch it is for, and what is said of it."""

    ref: Pair
    remote: Name | None = None
    base: Base | None = None
    title: Title | None = None
    body: Text | None = None
    draft: Annotated[bool, Meta(description="not to be merged yet")] = False
    forge: Forge | None = None
    page: Page | None = None
    via: ViaText = "auto"


@operation(
    "pr open",
    request=PrOpenRequest,
    response=proposing.Opened,
    summary="Push a ref and open a pull request for it, or give back the one that is open",
    errors=(RemoteError, NotFoundError, InvalidError, CasMismatchError, UnsupportedError, BusyError),
    writes=True,
    tool="",
    command=Command(positional=("ref", "remote?")),
)
def pr_open(ctx: Context, req: PrOpenRequest) -> proposing.Opened:
    """Opens a pull request."""
    ref, _, branch = req.ref.partition(":")
    return proposing.open_pull(
        ctx.store, remotes.need(ctx.store, req.remote), ref, branch or None, req.base or default_branch(ctx.store),
        ctx.agent, ctx.env, title=req.title, body=req.body, draft=req.draft,
        where=proposing.Where(req.forge, req.page, req.via), progress=ctx.progress, wait=ctx.remote_wait,
    )  # fmt: skip


class PrStatusRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a ref."""

    ref: Pair
    remote: Name | None = None
    base: (
        Annotated[str, Meta(min_length=1, max_length=1024, description="the branch it is for; any without it")] | None
    ) = None
    forge: Forge | None = None
    page: Page | None = None
    via: ViaText = "auto"


@operation(
    "pr status",
    request=PrStatusRequest,
    response=proposing.Found,
    summary="Show a ref's pull request: its checks, whether it can be merged, and how it was",
    errors=(RemoteError, NotFoundError, InvalidError, ShallowError, UnsupportedError, BusyError),
    writes=True,
    tool="",
    command=Command(positional=("ref", "remote?")),
)
def pr_status(ctx: Context, req: PrStatusRequest) -> proposing.Found:
    """Shows a pull request; for one that is not open any more the remote is fetched."""
    ref, _, branch = req.ref.partition(":")
    return proposing.status(
        ctx.store, remotes.need(ctx.store, req.remote), ref, branch or None, req.base, ctx.agent, ctx.env,
        where=proposing.Where(req.forge, req.page, req.via), progress=ctx.progress, wait=ctx.remote_wait,
    )  # fmt: skip
