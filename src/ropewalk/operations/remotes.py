"""Remotes: clone, name other repositories, fetch and push, and keep a branch here and there one line."""

from __future__ import annotations

import os
import re
import uuid
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    CasMismatchError,
    CasRetryExhaustedError,
    ConflictError,
    InvalidError,
    LandMismatchError,
    NotFoundError,
    RemoteError,
    ShallowError,
    StoreIOError,
    UnsupportedError,
    UnsupportedFilesystemError,
)
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.remote import place
from ropewalk.remote import remotes, sync, transport
from ropewalk.store import layout, refs
from ropewalk.store.oplog import Move
from ropewalk.store.revisions import default_branch
from ropewalk.store.store import Store

Url = Annotated[str, Meta(min_length=1, max_length=4096, description="a repository's URL or path")]
Name = Annotated[str, Meta(min_length=1, max_length=100, description="the remote; without it origin, or the only one")]
Ref = Annotated[str, Meta(min_length=1, max_length=1024, description="the branch; without it the default one")]

Into = Annotated[str, Meta(max_length=4096, description="the store's folder; without it one named after the URL")]
Pair = Annotated[str, Meta(max_length=2048, description="REF or REF:BRANCH; without it the default branch")]


class CloneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a repository and where the store is to be."""

    url: Url
    into: (
        Annotated[str, Meta(max_length=4096, description="the store's folder; without it one named after it")] | None
    ) = None


class Cloned(msgspec.Struct, frozen=True):
    """Is a new store: its folder, its default branch, where that is, and how many commits came."""

    store: str
    branch: str
    head: str
    refs: int
    imported: int


@operation(
    "clone",
    request=CloneRequest,
    response=Cloned,
    summary="Make a store of a repository, with it as the remote origin",
    errors=(InvalidError, NotFoundError, RemoteError, ShallowError, UnsupportedError, UnsupportedFilesystemError,
            StoreIOError),
    writes=True,
    identity=False,
    store=False,
    command=Command(positional=("url", "into?")),
)  # fmt: skip
def clone(ctx: Context, req: CloneRequest) -> Cloned:
    """Clones; a clone that fails leaves no store."""
    url = place(ctx, req.url)
    last = re.sub(r"(\.git)?/*$", "", req.url).rsplit("/", 1)[-1].rsplit(":", 1)[-1]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last) or "store"
    root = ctx.path(req.into) if req.into is not None else ctx.named_root or ctx.path(f"{name}.ropewalk")
    if os.path.lexists(root):
        raise InvalidError(f"there is something at {root} already", hint="name another folder", path=root)
    actor = ctx.agent_or_none or "git/import"
    listing = transport.listing(None, transport.place(url), wait=ctx.remote_wait)
    branches = sorted(ref for ref in listing.refs if ref.startswith("refs/heads/"))
    if not branches:
        raise NotFoundError(f"{req.url} has no commit yet", hint="push something to it first", repository=req.url)
    branch = listing.head if listing.head in branches else branches[0]
    made: list[remotes.Fetched] = []

    def fill(part: str) -> None:
        with Store(part) as store:
            origin = remotes.add(store, "origin", url, actor)
            made.append(remotes.fetch(store, origin, actor, progress=ctx.progress, wait=ctx.remote_wait))
            refs.move(store, actor, [Move(branch, None, remotes.tracked(store, origin, branch))], "clone")

    layout.create(root, str(uuid.uuid4()), name, short_ref(branch), fill)
    ctx.adopt_root(root)
    head = ctx.store.ref(branch)
    assert head is not None
    return Cloned(root, short_ref(branch), head, made[0].refs, made[0].imported)


class RemoteAddRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a name and a repository."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="letters, digits, '.', '_' and '-'")]
    url: Url


class RemoteRow(msgspec.Struct, frozen=True):
    """Is a remote; a password in its URL is not shown."""

    name: str
    url: str


@operation(
    "remote add",
    request=RemoteAddRequest,
    response=RemoteRow,
    summary="Give another repository a name",
    errors=(InvalidError, NotFoundError, BusyError),
    writes=True,
    command=Command(positional=("name", "url")),
)
def remote_add(ctx: Context, req: RemoteAddRequest) -> RemoteRow:
    """Notes a remote; the same again is no error."""
    made = remotes.add(ctx.store, req.name, place(ctx, req.url), ctx.agent)
    return RemoteRow(made.name, made.shown)


class RemoteNameRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a remote."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="the remote")]


@operation(
    "remote remove",
    request=RemoteNameRequest,
    response=RemoteRow,
    summary="Forget a remote and what it had",
    errors=(NotFoundError, InvalidError, BusyError),
    writes=True,
    command=Command(positional=("name",)),
)
def remote_remove(ctx: Context, req: RemoteNameRequest) -> RemoteRow:
    """Forgets a remote."""
    gone = remotes.remove(ctx.store, req.name, ctx.agent)
    return RemoteRow(gone.name, gone.shown)


class RemoteListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes nothing."""


class RemoteListResponse(msgspec.Struct, frozen=True):
    """Is every remote by name."""

    remotes: list[RemoteRow]


@operation("remote list", request=RemoteListRequest, response=RemoteListResponse, summary="List remotes")
def remote_list(ctx: Context, req: RemoteListRequest) -> RemoteListResponse:
    """Lists remotes."""
    return RemoteListResponse([RemoteRow(one.name, one.shown) for one in remotes.listed(ctx.store)])


class FetchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a remote."""

    remote: Name | None = None


@operation(
    "fetch",
    request=FetchRequest,
    response=remotes.Fetched,
    summary="Bring what a remote has, without touching a branch",
    errors=(NotFoundError, InvalidError, RemoteError, ShallowError, UnsupportedError, BusyError),
    writes=True,
    command=Command(positional=("remote?",)),
)
def fetch(ctx: Context, req: FetchRequest) -> remotes.Fetched:
    """Fetches."""
    return remotes.fetch(
        ctx.store, remotes.need(ctx.store, req.remote), ctx.agent, progress=ctx.progress, wait=ctx.remote_wait
    )


class PushRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a remote, a ref, and the branch it becomes there."""

    remote: Name | None = None
    ref: (
        Annotated[str, Meta(max_length=2048, description="REF or REF:BRANCH; without it the default branch")] | None
    ) = None


@operation(
    "push",
    request=PushRequest,
    response=remotes.Pushed,
    summary="Push a ref to a branch of a remote, never forced",
    errors=(CasMismatchError, NotFoundError, InvalidError, RemoteError, UnsupportedError, BusyError),
    writes=True,
    command=Command(positional=("remote?", "ref?")),
)
def push(ctx: Context, req: PushRequest) -> remotes.Pushed:
    """Pushes."""
    ref, _, branch = (req.ref or "").partition(":")
    return remotes.push(
        ctx.store, remotes.need(ctx.store, req.remote), ref or default_branch(ctx.store), branch or None, ctx.agent,
        progress=ctx.progress, wait=ctx.remote_wait,
    )  # fmt: skip


class SyncRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a remote and a branch."""

    remote: Name | None = None
    ref: Ref | None = None
    no_push: Annotated[bool, Meta(description="take over what the remote has, and publish nothing")] = False
    dropped: Annotated[
        sync.Dropped, Meta(description="what becomes of changes that the remote had and somebody took back there")
    ] = "refuse"


@operation(
    "sync",
    request=SyncRequest,
    response=sync.Synced,
    summary="Make a branch here and at a remote one line: take over, land anew, push",
    errors=(ConflictError, LandMismatchError, CasMismatchError, CasRetryExhaustedError, NotFoundError, InvalidError,
            RemoteError, ShallowError, UnsupportedError, BusyError),
    writes=True,
    command=Command(positional=("remote?",)),
)  # fmt: skip
def sync_branch(ctx: Context, req: SyncRequest) -> sync.Synced:
    """Syncs."""
    ref = check_ref(req.ref) if req.ref is not None else default_branch(ctx.store)
    return sync.sync(
        ctx.store, remotes.need(ctx.store, req.remote), ref, ctx.agent, push=not req.no_push, dropped=req.dropped,
        progress=ctx.progress, wait=ctx.remote_wait,
    )  # fmt: skip


class SyncStatusRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a remote and a branch."""

    remote: Name | None = None
    ref: Ref | None = None


@operation(
    "sync status",
    request=SyncStatusRequest,
    response=sync.Status,
    summary="Show how a branch stands to what the remote had at the last fetch",
    errors=(NotFoundError, InvalidError),
    command=Command(positional=("remote?",)),
)
def sync_status(ctx: Context, req: SyncStatusRequest) -> sync.Status:
    """Compares a branch here and there."""
    ref = check_ref(req.ref) if req.ref is not None else default_branch(ctx.store)
    return sync.status(ctx.store, remotes.need(ctx.store, req.remote), ref)
