"""Workspaces: make one, see what is in it, land it, bring it up to date, delete it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    CasMismatchError,
    CasRetryExhaustedError,
    CheckFailedError,
    ConflictError,
    InvalidError,
    KeyReusedError,
    LandMismatchError,
    NotFoundError,
    ShallowError,
    UnlandedWorkError,
    WorkspaceDamagedError,
    WorkspaceGoneError,
)
from ropewalk.core.ids import check_key, check_ref, path_bytes, path_text, short_ref
from ropewalk.operations.context import Context
from ropewalk.operations.publish import Key
from ropewalk.operations.registry import Command, operation
from ropewalk.store import layout, lineage, report, revisions, trees
from ropewalk.store.land import Answering
from ropewalk.workspace import capture, checkout, landing, move, removal, setup, state
from ropewalk.workspace.state import Workspace
from ropewalk.workspace.verdict import Checked

Name = Annotated[str, Meta(min_length=1, max_length=100, description="the workspace; inside of one it may be left out")]
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


class WsCreated(msgspec.Struct, frozen=True):
    """Is a workspace: its folder, the commit it stands on, the head of the ref it lands on."""

    name: str
    path: str
    base: str
    head: str
    onto: str
    created: bool


@operation(
    "ws create",
    request=WsCreateRequest,
    response=WsCreated,
    summary="Make a workspace: a git repository of an agent's own, checked out",
    errors=(InvalidError, NotFoundError, BusyError),
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
    asked = checkout.Asked(req.name, ctx.agent, base, target, path, req.from_, setup.policy_of(store))
    ws, created = checkout.create(store, asked)
    return WsCreated(ws.name, ws.path, ws.base, head, short_ref(ws.target), created)


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
    if ws.state == "ready" and not os.path.isdir(ws.path):
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
def _held(ctx: Context, name: str | None) -> Iterator[Workspace]:
    """Holds a workspace; gives its row as it is under the hold."""
    ws = _named(ctx, name)
    with state.held(ctx.store, ws.name):
        ws = state.need(ctx.store, ws.name)
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
    errors=(NotFoundError, InvalidError, WorkspaceGoneError, WorkspaceDamagedError, BusyError),
    command=Command(positional=("name?",)),
)
def ws_status(ctx: Context, req: WsStatusRequest) -> WsStatus:
    """Looks at a workspace and writes nothing."""
    with _held(ctx, req.name) as ws:
        now = capture.capture(ctx.store, ws, write=False)
        ctx.warnings += now.warnings
        rows = [WsChange(path_text(c.path), _kind(c), now.sizes.get(c.path)) for c in now.changes]
        return WsStatus(
            ws.name, ws.path, ws.agent, ws.base, ctx.store.ref(ws.target), short_ref(ws.target), _behind(ctx, [ws])[ws.name],
            rows[: req.limit], max(0, len(rows) - req.limit), move.marked(ws), [path_text(p) for p in now.held_back],
        )  # fmt: skip


def _kind(change: trees.Change) -> str:
    if change.old is None or change.new is None:
        return "added" if change.old is None else "deleted"
    if change.old[1] == change.new[1]:
        return "mode"
    plain = (trees.FILE, trees.EXEC)
    return "modified" if change.old[0] == change.new[0] or {change.old[0], change.new[0]} <= set(plain) else "type"


class WsLandRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace and how to land it."""

    name: Name | None = None
    message: (
        Annotated[str, Meta(description="what the change does; without it the agent's last commit says")] | None
    ) = None
    onto: Onto | None = None
    check: Annotated[list[str], Meta(max_length=1000, description="a command that must pass on the merged tree")] = []
    check_seconds: Annotated[float, Meta(gt=0, le=86_400, description="how long the check may take")] = 1800.0
    jobs: Annotated[int, Meta(ge=0, le=256, description="checks at once; 0: as many as processors")] = 0
    idempotency_key: Key | None = None
    resolutions: report.Resolution | None = None
    allow_revert: Annotated[bool, Meta(description="take back on purpose what others landed")] = False
    allow_reland: Annotated[bool, Meta(description="land again what was undone")] = False
    allow_mass_delete: Annotated[bool, Meta(description="remove more than half of the files on purpose")] = False
    allow_secret: Annotated[
        list[str], Meta(max_length=1000, description="a new file that only looks like a secret")
    ] = []


class WsLand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the land: `landed` on the head `rebased_onto`; `status` is landed, replayed or up_to_date."""

    status: str
    landed: str
    rebased_onto: str
    onto: str
    merged_by: str | dict[str, str] = "trees"


class WsLanded(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the result of landing a workspace, which now stands on what was landed."""

    land: WsLand
    changeset: str | None
    attempts: int
    changed_paths: list[str]
    more_paths: int = 0
    checks: list[Checked] = []


@operation(
    "ws land",
    request=WsLandRequest,
    response=WsLanded,
    summary="Land what a workspace holds, checked on the merged tree",
    errors=(
        ConflictError,
        CheckFailedError,
        LandMismatchError,
        KeyReusedError,
        InvalidError,
        NotFoundError,
        ShallowError,
        WorkspaceGoneError,
        WorkspaceDamagedError,
        CasMismatchError,
        BusyError,
        CasRetryExhaustedError,
    ),
    writes=True,
    core=True,
    command=Command(
        positional=("name?",),
        files=("resolutions",),
        rest="check",
        flags={"message": "-m", "idempotency_key": "--key", "resolutions": "--resolve"},
    ),
)
def ws_land(ctx: Context, req: WsLandRequest) -> WsLanded:
    """Captures, lands, and brings the workspace to what was landed."""
    with _held(ctx, req.name) as ws:
        if req.onto is not None and (target := check_ref(req.onto)) != ws.target:
            ws = state.save(ctx.store, msgspec.structs.replace(ws, target=target))
        wish = landing.Wish(
            agent=ctx.agent,
            message=req.message,
            key=check_key(req.idempotency_key),
            check=req.check,
            checks=ctx.checks,
            check_seconds=req.check_seconds,
            jobs=req.jobs,
            answering=Answering(req.resolutions, ctx.read_file) if req.resolutions else None,
            allow={path_bytes(path) for path in req.allow_secret},
            allow_revert=req.allow_revert,
            allow_reland=req.allow_reland,
            allow_mass_delete=req.allow_mass_delete,
        )
        done = landing.land_workspace(ctx.store, ws, wish, ctx.progress)
        ctx.warnings += done.warnings
        one = done.landed
        return WsLanded(
            WsLand(one.status, one.landed, one.merged_onto, one.onto, one.merged_by),
            done.changeset, one.attempts, one.changed_paths, one.more_paths, done.checks,
        )  # fmt: skip


class WsRebaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace and the ref whose head it is to stand on."""

    name: Name | None = None
    onto: Onto | None = None


class WsRebased(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is where the workspace stands now, and what is in conflict in its files."""

    name: str
    base: str
    onto: str
    conflicts: list[str] = []
    report: dict[str, Any] | None = None


@operation(
    "ws rebase",
    request=WsRebaseRequest,
    response=WsRebased,
    summary="Bring what others landed into a workspace, under its edits",
    errors=(ConflictError, NotFoundError, InvalidError, WorkspaceGoneError, WorkspaceDamagedError, BusyError),
    writes=True,
    command=Command(positional=("name?",)),
)
def ws_rebase(ctx: Context, req: WsRebaseRequest) -> WsRebased:
    """Rebases; where both sides changed the same lines the files show both, and exit code 10 says so."""
    with _held(ctx, req.name) as ws:
        target = check_ref(req.onto) if req.onto is not None else ws.target
        if target != ws.target:
            ws = state.save(ctx.store, msgspec.structs.replace(ws, target=target))
        done = move.rebase(ctx.store, move.settle(ctx.store, ws), target, ctx.agent)
        if done.report is not None:
            ctx.exit = 10
        after = done.workspace
        built = msgspec.to_builtins(done.report) if done.report is not None else None
        return WsRebased(after.name, after.base, short_ref(target), after.note.conflicts, built)


class WsDeleteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace to delete."""

    name: Name
    force: Annotated[bool, Meta(description="delete it with unlanded work, which is archived first")] = False


@operation(
    "ws delete",
    request=WsDeleteRequest,
    response=removal.Deleted,
    summary="Delete a workspace that holds no unlanded work",
    errors=(UnlandedWorkError, NotFoundError, InvalidError, BusyError),
    writes=True,
    command=Command(positional=("name",)),
)
def ws_delete(ctx: Context, req: WsDeleteRequest) -> removal.Deleted:
    """Deletes a workspace and its folder."""
    ws = state.need(ctx.store, req.name)
    with state.held(ctx.store, ws.name):
        done = removal.delete(ctx.store, state.need(ctx.store, ws.name), ctx.agent, force=req.force)
    ctx.warnings += [f"gone with it: {what}" for what in done.lost]
    return done
