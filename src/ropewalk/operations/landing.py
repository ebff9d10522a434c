"""Landing from a workspace: keep, land, bring up to date, throw away."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    BusyError,
    CageUnavailableError,
    CasMismatchError,
    CasRetryExhaustedError,
    CheckFailedError,
    ConflictError,
    InvalidError,
    KeyReusedError,
    LandMismatchError,
    NotFoundError,
    ShallowError,
    WorkspaceDamagedError,
    WorkspaceGoneError,
    WorkspaceNotMountedError,
)
from ropewalk.core.ids import check_key, check_path, check_ref, path_bytes, path_text, short_ref
from ropewalk.operations import checking
from ropewalk.operations.context import Context
from ropewalk.operations.publish import Key
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.workspace import AT_WORK, Name, Onto, held, prefixes
from ropewalk.store import report
from ropewalk.store.land import Answering
from ropewalk.workspace import landing, move, sparse, state
from ropewalk.workspace.verdict import Checked


class WsCommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace and a message."""

    name: Name | None = None
    message: (
        Annotated[str, Meta(description="what the change does; without it the agent's last commit says")] | None
    ) = None
    allow_secret: Annotated[
        list[str], Meta(max_length=1000, description="a new file that only looks like a secret")
    ] = []


class WsCommitted(msgspec.Struct, frozen=True):
    """Is the changeset of what a workspace holds; None when it holds nothing over its base."""

    name: str
    changeset: str | None
    base: str


@operation(
    "ws commit",
    request=WsCommitRequest,
    response=WsCommitted,
    summary="Make a changeset of what a workspace holds, without landing it",
    errors=(
        *AT_WORK,
        ConflictError,
        CheckFailedError,
        LandMismatchError,
        KeyReusedError,
        ShallowError,
        CasMismatchError,
        CasRetryExhaustedError,
    ),
    writes=True,
    command=Command(positional=("name?",), flags={"message": "-m"}),
)
def ws_commit(ctx: Context, req: WsCommitRequest) -> WsCommitted:
    """Captures; the workspace stays as it is, and a land of the same content lands this changeset."""
    with held(ctx, req.name) as ws:
        wish = landing.Wish(agent=ctx.agent, message=req.message, allow={path_bytes(p) for p in req.allow_secret})
        made, warnings = landing.commit_workspace(ctx.store, ws, wish)
        ctx.warnings += warnings
        return WsCommitted(ws.name, made, ws.base)


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
    allow_mass_delete: Annotated[
        bool, Meta(description="remove on purpose more than half of the files, or what a crash may have taken")
    ] = False
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
        WorkspaceNotMountedError,
        CageUnavailableError,
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
    with held(ctx, req.name) as ws:
        if req.onto is not None and (target := check_ref(req.onto)) != ws.target:
            ws = state.save(ctx.store, msgspec.structs.replace(ws, target=target))
        wish = landing.Wish(
            agent=ctx.agent,
            message=req.message,
            key=check_key(req.idempotency_key),
            check=req.check,
            checks=ctx.checks,
            check_seconds=req.check_seconds,
            cage=checking.of_workspace(ctx, ws.path) if req.check else None,
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
    errors=(
        ConflictError,
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
def ws_rebase(ctx: Context, req: WsRebaseRequest) -> WsRebased:
    """Rebases; where both sides changed the same lines the files show both, and exit code 10 says so."""
    with held(ctx, req.name) as ws:
        target = check_ref(req.onto) if req.onto is not None else ws.target
        if target != ws.target:
            ws = state.save(ctx.store, msgspec.structs.replace(ws, target=target))
        done = move.rebase(ctx.store, move.settle(ctx.store, ws), target, ctx.agent)
        if done.report is not None:
            ctx.exit = 10
        after = done.workspace
        built = msgspec.to_builtins(done.report) if done.report is not None else None
        return WsRebased(after.name, after.base, short_ref(target), after.note.conflicts, built)


class WsResolveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes the answer to the report of a rebase in conflict."""

    resolutions: report.Resolution
    name: Name | None = None


class WsResolved(msgspec.Struct, frozen=True):
    """Is which paths were written, and which are still in conflict."""

    name: str
    resolved: list[str]
    conflicts: list[str]


@operation(
    "ws resolve",
    request=WsResolveRequest,
    response=WsResolved,
    summary="Answer the conflicts that a rebase left in a workspace's files",
    errors=(
        InvalidError,
        NotFoundError,
        ConflictError,
        WorkspaceGoneError,
        WorkspaceDamagedError,
        WorkspaceNotMountedError,
        BusyError,
    ),
    writes=True,
    command=Command(positional=("resolutions",), files=("resolutions",), flags={"name": "--workspace"}),
)
def ws_resolve(ctx: Context, req: WsResolveRequest) -> WsResolved:
    """Writes the answers into the files; exit code 10 says that conflicts are left."""
    with held(ctx, req.name) as ws:
        ws, done = move.resolve(ctx.store, ws, Answering(req.resolutions, ctx.read_file), ctx.agent)
        left = move.marked(ws)
        if left:
            ctx.exit = 10
        return WsResolved(ws.name, [path_text(path) for path in done], left)


class WsMaterializeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a sparse workspace and paths to put on disk too."""

    prefixes: Annotated[list[str], Meta(max_length=1000, description="files and folders to put on disk")] = []
    name: Name | None = None
    all: Annotated[bool, Meta(description="all files")] = False


class WsMaterialized(msgspec.Struct, frozen=True):
    """Is how many files were written, and below which paths files are on disk now; `all`: everywhere."""

    name: str
    written: int
    prefixes: list[str]
    all: bool


@operation(
    "ws materialize",
    request=WsMaterializeRequest,
    response=WsMaterialized,
    summary="Put more files of a sparse workspace on disk",
    errors=(
        InvalidError,
        NotFoundError,
        WorkspaceGoneError,
        WorkspaceDamagedError,
        WorkspaceNotMountedError,
        BusyError,
    ),
    writes=True,
    command=Command(positional=("prefixes*",), flags={"name": "--workspace"}),
)
def ws_materialize(ctx: Context, req: WsMaterializeRequest) -> WsMaterialized:
    """Widens a sparse workspace; in one with all its files nothing is to be done."""
    if not req.prefixes and not req.all:
        raise InvalidError("what should be on disk?", hint="name files and folders, or say --all")
    with held(ctx, req.name) as ws:
        whole = req.all or not ws.note.sparse
        wanted = () if whole else prefixes([*ws.note.sparse, *req.prefixes])
        ws, written = sparse.materialize(ctx.store, ws, wanted)
        return WsMaterialized(ws.name, len(written), ws.note.sparse, not ws.note.sparse)


class WsDiscardRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a workspace and paths; without paths all that it changed."""

    name: Name | None = None
    paths: Annotated[list[str], Meta(max_length=10_000, description="files and folders to bring back")] = []


class WsDiscarded(msgspec.Struct, frozen=True):
    """Is which paths are as in the base again, and the snapshot that still has them."""

    name: str
    discarded: list[str]
    snapshot: str | None


@operation(
    "ws discard",
    request=WsDiscardRequest,
    response=WsDiscarded,
    summary="Bring files of a workspace back to the commit it stands on, after a snapshot",
    errors=(
        InvalidError,
        NotFoundError,
        ConflictError,
        WorkspaceGoneError,
        WorkspaceDamagedError,
        WorkspaceNotMountedError,
        BusyError,
    ),
    writes=True,
    command=Command(positional=("paths*",), flags={"name": "--workspace"}),
)
def ws_discard(ctx: Context, req: WsDiscardRequest) -> WsDiscarded:
    """Discards edits."""
    with held(ctx, req.name) as ws:
        wanted = [check_path(path_bytes(path)) for path in req.paths]
        done, kept = move.discard(ctx.store, ws, ctx.agent, wanted)
        return WsDiscarded(ws.name, [path_text(path) for path in done], kept)
