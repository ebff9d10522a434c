"""Workspaces: make one, see what is in it, compare it with others, delete it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    CheckFailedError,
    InvalidError,
    NotFoundError,
    UnlandedWorkError,
    UnsupportedError,
    WorkspaceDamagedError,
    WorkspaceGoneError,
    WorkspaceNotMountedError,
)
from ropewalk.core.ids import check_path, check_ref, path_bytes, path_text, short_ref
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.store import difftext, identity, layout, lineage, revisions, trees
from ropewalk.store.files import PAGE_BYTES
from ropewalk.workspace import capture, checkout, move, overlay, radar, removal, setup, snapshot, state, trash
from ropewalk.workspace.state import Workspace

Name = Annotated[str, Meta(min_length=1, max_length=100, description="the workspace; inside of one it may be left out")]
AT_WORK = (
    NotFoundError, InvalidError, WorkspaceGoneError, WorkspaceDamagedError, WorkspaceNotMountedError, BusyError,
)  # fmt: skip
"""Is what every operation on the files of a workspace may answer."""
Onto = Annotated[str, Meta(min_length=1, max_length=1024, description="the ref it lands on")]


class WsCreateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a name, and where to start, to land, and to be."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="letters, digits, '.', '_' and '-'")]
    from_: (
        Annotated[str, Meta(max_length=4096, description="the revision to start at; without it the head of --onto")]
        | None
    ) = msgspec.field(default=None, name="from")
    onto: Annotated[str, Meta(description="the ref it lands on; without it the default branch")] | None = None
    dir: (
        Annotated[str, Meta(max_length=4096, description="the folder to make; without it one in the data folder")]
        | None
    ) = None
    prefix: Annotated[
        list[str], Meta(max_length=1000, description="only this file or folder on disk; without it all are")
    ] = []
    all: Annotated[bool, Meta(description="all files on disk, which is how it is without --prefix")] = False
    overlay: Annotated[
        Literal["auto", "always", "never"],
        Meta(description="mount it over a tree that others share; auto: a large tree, where the kernel lets us"),
    ] = "auto"
    submodules: Annotated[bool, Meta(description="fill submodules from the operator's checkout")] = False


class WsCreated(msgspec.Struct, frozen=True):
    """Is a workspace: its folder, the commit it stands on, the head of the ref it lands on.

    `all` says that all its files are on disk, `how` that it is an `overlay` or `files` of its own.
    """

    name: str
    path: str
    base: str
    head: str
    onto: str
    all: bool
    how: str
    created: bool


@operation(
    "ws create",
    request=WsCreateRequest,
    response=WsCreated,
    summary="Make a workspace: a git repository of an agent's own, checked out",
    errors=(InvalidError, NotFoundError, BusyError, CheckFailedError, UnsupportedError, WorkspaceNotMountedError),
    writes=True,
    core=True,
    command=Command(positional=("name",)),
)
def ws_create(ctx: Context, req: WsCreateRequest) -> WsCreated:
    """Makes a workspace; the same request again answers `created: false`."""
    store = ctx.store
    target = check_ref(req.onto) if req.onto else revisions.default_branch(store)
    head = store.ref(target)
    if head is None:
        raise NotFoundError(
            f"there is no ref {short_ref(target)!r} to land on", hint="import or commit something first", ref=target
        )
    base = revisions.resolve(store, req.from_) if req.from_ is not None else head
    found = state.find(store, state.check_name(req.name))
    if req.dir is not None:
        path = os.path.realpath(ctx.path(req.dir))
    elif found is not None:
        path = found.path
    else:
        path = checkout.default_path(store, ctx.data_home, req.name)
    if req.prefix and req.all:
        raise InvalidError("--prefix or --all, not both", hint="--all is how it is without --prefix")
    asked = checkout.Asked(
        req.name, ctx.agent, base, target, path, req.from_, setup.policy_of(store), prefixes(req.prefix), ctx.shared,
        req.overlay, req.submodules,
    )  # fmt: skip
    ws, created = checkout.create(store, asked)
    how = "overlay" if ws.note.overlay is not None else "files"
    return WsCreated(ws.name, ws.path, ws.base, head, short_ref(ws.target), not ws.note.sparse, how, created)


def prefixes(given: Sequence[str]) -> tuple[str, ...]:
    """Gives paths as a sparse workspace keeps them: checked, sorted, each once, and none below another."""
    found: list[bytes] = []
    for path in sorted({check_path(path_bytes(text.rstrip("/") or text)) for text in given}):
        if not any(path.startswith(above + b"/") for above in found):
            found.append(path)
    return tuple(path_text(path) for path in found)


class WsListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes nothing."""


class WsRow(msgspec.Struct, frozen=True):
    """Is one workspace; `state` is ready, conflict, gone, making or removing."""

    name: str
    agent: str
    path: str
    base: str
    onto: str
    behind: int
    state: str


class WsListResponse(msgspec.Struct, frozen=True):
    """Is every workspace by name."""

    workspaces: list[WsRow]


@operation(
    "ws list",
    request=WsListRequest,
    response=WsListResponse,
    summary="List workspaces",
)
def ws_list(ctx: Context, req: WsListRequest) -> WsListResponse:
    """Lists workspaces from the store's own table and a look at their folders."""
    found = state.listed(ctx.store)
    behind = _behind(ctx, found)
    return WsListResponse(
        [WsRow(ws.name, ws.agent, ws.path, ws.base, short_ref(ws.target), behind[ws.name], _state(ws)) for ws in found]
    )


def _state(ws: Workspace) -> str:
    if ws.state == "ready" and ws.note.overlay is None and not os.path.isdir(ws.path):
        return "gone"
    return "conflict" if ws.state == "ready" and ws.note.conflicts else ws.state


def _behind(ctx: Context, found: Sequence[Workspace]) -> dict[str, int]:
    """Gives by name how many commits of its target each workspace lacks."""
    counts = {}
    for target in {ws.target for ws in found}:
        head = ctx.store.ref(target)
        if head is not None:
            bases = {ws.base for ws in found if ws.target == target}
            counts.update({(target, base): count for base, count in lineage.behind(ctx.store, head, bases).items()})
    return {ws.name: counts.get((ws.target, ws.base), 0) for ws in found}


def _named(ctx: Context, name: str | None) -> Workspace:
    """Gives the workspace of a name, or the one the caller is in."""
    if name is not None:
        return state.need(ctx.store, name)
    mark = layout.workspace_mark(ctx.cwd) if os.path.isdir(ctx.cwd) else None
    if mark is None or os.path.realpath(mark.store) != os.path.realpath(ctx.store.layout.root):
        raise InvalidError("which workspace?", hint="name one, or go into its folder; `rw ws list` lists them")
    return state.need(ctx.store, mark.workspace)


@contextmanager
def held(ctx: Context, name: str | None) -> Iterator[Workspace]:
    """Holds a workspace; gives its row as it is under the hold."""
    ws = _named(ctx, name)
    with state.held(ctx.store, ws.name):
        ws = state.need(ctx.store, ws.name)
        if ws.state == "ready":
            overlay.ensure(ws)
        if ws.state == "ready" and not os.path.isdir(ws.path):
            raise WorkspaceGoneError(f"the folder of the workspace {ws.name} is gone", workspace=ws.name, path=ws.path)
        yield ws


class WsStatusRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace, and how many changes to list."""

    name: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=100_000, description="how many changes at most")] = 1000


class WsChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one changed path: `kind` is added, modified, deleted, mode or type."""

    path: str
    kind: str
    size: int | None = None


class WsStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what a workspace holds over its base, and how far its target has gone on."""

    name: str
    path: str
    agent: str
    base: str
    head: str | None
    onto: str
    behind: int
    changes: list[WsChange]
    more: int = 0
    conflicts: list[str] = []
    held_back: list[str] = []


@operation(
    "ws status",
    request=WsStatusRequest,
    response=WsStatus,
    summary="Show what a workspace holds and how far behind it is",
    errors=(
        NotFoundError,
        InvalidError,
        WorkspaceGoneError,
        WorkspaceDamagedError,
        WorkspaceNotMountedError,
        BusyError,
    ),
    command=Command(positional=("name?",)),
)
def ws_status(ctx: Context, req: WsStatusRequest) -> WsStatus:
    """Looks at a workspace and writes nothing."""
    with held(ctx, req.name) as ws:
        now = capture.capture(ctx.store, ws, write=False)
        ctx.warnings += now.warnings
        rows = [WsChange(path_text(c.path), _kind(c), now.sizes.get(c.path)) for c in now.changes]
        behind = _behind(ctx, [ws])[ws.name]
        return WsStatus(
            ws.name, ws.path, ws.agent, ws.base, ctx.store.ref(ws.target), short_ref(ws.target), behind,
            rows[: req.limit], max(0, len(rows) - req.limit), move.marked(ws), [path_text(p) for p in now.held_back],
        )  # fmt: skip


def _kind(change: trees.Change) -> str:
    if change.old is None or change.new is None:
        return "added" if change.old is None else "deleted"
    if change.old[1] == change.new[1]:
        return "mode"
    plain = (trees.FILE, trees.EXEC)
    return "modified" if change.old[0] == change.new[0] or {change.old[0], change.new[0]} <= set(plain) else "type"


class WsInfoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace."""

    name: Name | None = None


class WsInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what the store knows of a workspace; `env` is what a process in it should have."""

    name: str
    path: str
    agent: str
    state: str
    base: str
    created_base: str
    head: str | None
    onto: str
    created_at: int
    env: dict[str, str]
    how: str = "files"
    sparse: list[str] = []
    beside: list[str] = []
    lfs: list[str] = []
    submodules: list[str] = []
    snapshots: int = 0


@operation(
    "ws info",
    request=WsInfoRequest,
    response=WsInfo,
    summary="Show what the store knows of a workspace, and the variables that belong to it",
    errors=(NotFoundError, InvalidError),
    command=Command(positional=("name?",)),
)
def ws_info(ctx: Context, req: WsInfoRequest) -> WsInfo:
    """Describes a workspace without looking at its files."""
    store, ws = ctx.store, _named(ctx, req.name)
    return WsInfo(
        ws.name, ws.path, ws.agent, _state(ws), ws.base, ws.created_base, store.ref(ws.target), short_ref(ws.target),
        ws.created_at, setup.variables(store, ws, setup.policy_of(store).workspace),
        "overlay" if ws.note.overlay is not None else "files", ws.note.sparse, ws.note.beside, ws.note.lfs,
        ws.note.submodules, len(snapshot.listed(store, ws.name)),
    )  # fmt: skip


class WsDiffRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace and which path to compare."""

    name: Name | None = None
    path: Annotated[str, Meta(max_length=8192, description="only this file or folder")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="files at most")] = 200
    max_bytes: Annotated[int, Meta(ge=256, le=(1 << 20), description="bytes of text at most")] = PAGE_BYTES
    after: Annotated[str, Meta(max_length=8192, description="`next` of the page before")] | None = None


@operation(
    "ws diff",
    request=WsDiffRequest,
    response=difftext.Diff,
    summary="Show what a workspace changed against the commit it stands on",
    errors=(
        NotFoundError,
        InvalidError,
        WorkspaceGoneError,
        WorkspaceDamagedError,
        WorkspaceNotMountedError,
        BusyError,
    ),
    command=Command(positional=("name?",)),
)
def ws_diff(ctx: Context, req: WsDiffRequest) -> difftext.Diff:
    """Gives a page of a workspace's diff."""
    with held(ctx, req.name) as ws:
        store = ctx.store
        store.objects.take_new()
        now = capture.capture(store, ws)
        ctx.warnings += now.warnings
        who = identity.person(store.layout, ws.agent, ws.created_at)
        shown = store.objects.write_commit(now.tree, [ws.base], who, who, b"What the workspace holds\n")
        path = path_bytes(req.path) if req.path is not None else b""
        try:
            return difftext.diff(store, ws.base, shown, path=path, after=req.after, limit=req.limit,
                                 max_bytes=req.max_bytes)  # fmt: skip
        finally:
            store.objects.take_new()


class WsRadarRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace; without one all pairs are looked at."""

    name: Name | None = None


class WsRadar(msgspec.Struct, frozen=True):
    """Is what open workspaces edit in common; `skipped` could not be looked at."""

    echoes: list[radar.Echo]
    skipped: list[str]


@operation(
    "ws radar",
    request=WsRadarRequest,
    response=WsRadar,
    summary="Show which open workspaces edit the same places",
    errors=(NotFoundError, InvalidError, BusyError),
    command=Command(positional=("name?",)),
)
def ws_radar(ctx: Context, req: WsRadarRequest) -> WsRadar:
    """Scans open workspaces; exit code 10 says that two of them are in conflict."""
    if req.name is not None:
        state.need(ctx.store, req.name)
    echoes, skipped = radar.scan(ctx.store, req.name)
    if any(echo.how == "conflict" for echo in echoes):
        ctx.exit = 10
    return WsRadar(echoes, skipped)


class WsDeleteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace to delete."""

    name: Name
    force: Annotated[bool, Meta(description="delete it with unlanded work, which is archived first")] = False


@operation(
    "ws delete",
    request=WsDeleteRequest,
    response=removal.Deleted,
    summary="Delete a workspace that holds no unlanded work",
    errors=(UnlandedWorkError, NotFoundError, InvalidError, WorkspaceNotMountedError, BusyError),
    writes=True,
    command=Command(positional=("name",)),
)
def ws_delete(ctx: Context, req: WsDeleteRequest) -> removal.Deleted:
    """Deletes a workspace and its folder."""
    ws = state.need(ctx.store, req.name)
    with state.held(ctx.store, ws.name):
        ws = state.need(ctx.store, ws.name)
        done = removal.delete(ctx.store, ws, ctx.agent, force=req.force, bin=ctx.trash)
    trash.empty(ctx.trash, trash.TERM)
    if done.trash is None:
        ctx.warnings += [f"gone with it: {what}" for what in done.lost]
    return done
