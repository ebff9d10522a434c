"""Nothing an agent left is lost: snapshots of workspaces, and the trash of deleted ones."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    InvalidError,
    NotFoundError,
    WorkspaceDamagedError,
    WorkspaceGoneError,
    WorkspaceNotMountedError,
)
from ropewalk.core.ids import check_ref
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.store import revisions
from ropewalk.store.store import need_ref
from ropewalk.workspace import checkout, setup, shared, snapshot, state, trash
from ropewalk.workspace.snapshot import Snapshot

Name = Annotated[str, Meta(min_length=1, max_length=100, description="the workspace")]


class WsSnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace; without one all that nobody works on are kept."""

    name: Name | None = None
    why: Annotated[str, Meta(max_length=200, description="why it is taken")] = "on request"


class WsSnapshots(msgspec.Struct, frozen=True):
    """Is what was kept: workspace to ref; one with nothing new is not in it, a busy one is in `skipped`."""

    taken: dict[str, str]
    skipped: list[str]


@operation(
    "ws snapshot",
    request=WsSnapshotRequest,
    response=WsSnapshots,
    summary="Keep what workspaces hold now, where no workspace can reach it",
    errors=(
        NotFoundError,
        InvalidError,
        WorkspaceGoneError,
        WorkspaceDamagedError,
        WorkspaceNotMountedError,
        BusyError,
    ),
    writes=True,
    command=Command(positional=("name?",)),
)
def ws_snapshot(ctx: Context, req: WsSnapshotRequest) -> WsSnapshots:
    """Takes snapshots."""
    store = ctx.store
    taken: dict[str, str] = {}
    skipped: list[str] = []
    names = [req.name] if req.name is not None else [ws.name for ws in state.listed(store) if ws.state == "ready"]
    for name in names:
        state.need(store, name)
        try:
            with state.held(store, name):
                ref = snapshot.take(store, state.need(store, name), ctx.agent, req.why)
        except (BusyError, NotFoundError, WorkspaceGoneError, WorkspaceDamagedError, WorkspaceNotMountedError):
            if req.name is not None:
                raise
            skipped.append(name)
            continue
        if ref is not None:
            taken[name] = ref
    return WsSnapshots(taken, skipped)


class RecoverRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace to look at (it may be gone), or a snapshot to make a workspace of."""

    workspace: Name | None = None
    restore: Annotated[str, Meta(max_length=1024, description="the ref of a snapshot or archive")] | None = None
    name: Annotated[str, Meta(max_length=100, description="the name of the new workspace")] | None = None
    onto: Annotated[str, Meta(max_length=1024, description="the ref that the new workspace lands on")] | None = None
    dir: Annotated[str, Meta(max_length=4096, description="the folder of the new workspace")] | None = None


class Restored(msgspec.Struct, frozen=True):
    """Is the workspace that a snapshot became."""

    name: str
    path: str
    base: str


class RecoverResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what can be brought back, newest first, or what was."""

    snapshots: list[Snapshot] = []
    trash: list[str] = []
    restored: Restored | None = None


@operation(
    "recover",
    request=RecoverRequest,
    response=RecoverResponse,
    summary="List what can be brought back of workspaces, or make a workspace of a snapshot",
    errors=(NotFoundError, InvalidError, BusyError),
    writes=True,
    command=Command(positional=("workspace?",)),
)
def recover(ctx: Context, req: RecoverRequest) -> RecoverResponse:
    """Lists snapshots, archives and the trash; with `restore` makes a new workspace that stands on a snapshot."""
    store = ctx.store
    if req.restore is None:
        found = trash.listed(ctx.trash)
        return RecoverResponse(
            snapshot.listed(store, req.workspace),
            [one.id for one in found if req.workspace in (None, one.workspace.name)],
        )
    ref, target = need_ref(store, req.restore)
    one = next((s for s in snapshot.listed(store) if s.ref == ref), None)
    if one is None:
        raise InvalidError(f"{req.restore} is not a snapshot", hint="list them with `rw recover`", ref=req.restore)
    name = state.check_name(req.name or f"{one.workspace}-{one.changeset[:8]}")
    there = state.find(store, one.workspace)
    onto = check_ref(req.onto) if req.onto else there.target if there else revisions.default_branch(store)
    path = ctx.path(req.dir) if req.dir is not None else checkout.default_path(store, ctx.data_home, name)
    asked = checkout.Asked(name, ctx.agent, target, onto, path, ref, setup.policy_of(store), shared=ctx.shared)
    ws, _ = checkout.create(store, asked)
    return RecoverResponse(restored=Restored(ws.name, ws.path, ws.base))


class TrashListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes nothing."""


class TrashRow(msgspec.Struct, frozen=True):
    """Is one deleted workspace: where it was, who had it, when it was deleted."""

    id: str
    workspace: str
    agent: str
    path: str
    at: int


class TrashResponse(msgspec.Struct, frozen=True):
    """Is what is in the trash, newest first, or what was removed from it."""

    entries: list[TrashRow] = []
    removed: list[str] = []


@operation("trash list", request=TrashListRequest, response=TrashResponse, summary="List deleted workspaces")
def trash_list(ctx: Context, req: TrashListRequest) -> TrashResponse:
    """Lists the trash of this store."""
    return TrashResponse(
        [
            TrashRow(one.id, one.workspace.name, one.workspace.agent, one.workspace.path, one.at)
            for one in trash.listed(ctx.trash)
        ]
    )


class TrashRestoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes the name of an entry, or of the workspace that it was."""

    id: Annotated[str, Meta(min_length=1, max_length=200, description="the entry, or the workspace it was")]


@operation(
    "trash restore",
    request=TrashRestoreRequest,
    response=Restored,
    summary="Bring a deleted workspace back to where it was, as it was",
    errors=(NotFoundError, InvalidError, BusyError),
    writes=True,
    command=Command(positional=("id",)),
)
def trash_restore(ctx: Context, req: TrashRestoreRequest) -> Restored:
    """Restores a workspace."""
    ws = trash.restore(ctx.store, ctx.trash, trash.find(ctx.trash, req.id), ctx.agent)
    return Restored(ws.name, ws.path, ws.base)


class TrashEmptyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes how old what is removed must be."""

    days: Annotated[float, Meta(ge=0, le=3650, description="only what was deleted so long ago")] = 0.0


@operation(
    "trash empty",
    request=TrashEmptyRequest,
    response=TrashResponse,
    summary="Remove deleted workspaces for good",
    errors=(InvalidError,),
    writes=True,
)
def trash_empty(ctx: Context, req: TrashEmptyRequest) -> TrashResponse:
    """Empties the trash."""
    removed = trash.empty(ctx.trash, int(req.days * 86_400))
    shared.sweep(ctx.store, ctx.shared, trash.shared_trees(ctx.trash))
    return TrashResponse(removed=removed)
