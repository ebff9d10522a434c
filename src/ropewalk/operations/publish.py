"""Commit, land, rebase and blobs: what puts work into the store."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
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
    EmptyCommitError,
    FencedError,
    ForbiddenError,
    InvalidError,
    KeyReusedError,
    LandMismatchError,
    NotFoundError,
    RopewalkError,
    ShallowError,
)
from ropewalk.core.ids import HEX40, check_key, check_ref, short_ref
from ropewalk.operations import checking
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.store import changes, companions, land, report, revisions
from ropewalk.store.changes import Change, Committed, Content
from ropewalk.workspace.verdict import Checked

Rev = Annotated[str, Meta(min_length=1, max_length=4096, description="a ref, an id, or one with ~N or ^")]
Key = Annotated[str, Meta(max_length=64, description="a UUID; the same request under it is answered once")]


class CommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a message and a change list, and what they stand on."""

    message: Annotated[str, Meta(description="what the change does and why")]
    changes: Annotated[list[Change], Meta(max_length=100_000, description="the change list")]
    parent: Rev | None = None
    advance: Annotated[str, Meta(description="a ref to move from the parent to the new changeset")] | None = None
    idempotency_key: Key | None = None


@operation(
    "commit",
    request=CommitRequest,
    response=Committed,
    summary="Make a changeset from a list of changes",
    errors=(InvalidError, EmptyCommitError, NotFoundError, CasMismatchError, KeyReusedError, BusyError),
    writes=True,
    core=True,
    command=Command(files=("changes",), flags={"message": "-m", "idempotency_key": "--key"}),
)
def commit(ctx: Context, req: CommitRequest) -> Committed:
    """Makes a changeset and answers once it is on disk."""
    return changes.commit(
        ctx.store,
        agent=ctx.agent,
        message=req.message,
        changes=req.changes,
        parent=req.parent,
        advance=req.advance,
        key=check_key(req.idempotency_key),
        read_file=ctx.read_file,
    )


class Fence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a ref that must still be at an id when the land is published."""

    ref: str
    id: str


class LandOneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes one or several changesets and the ref they land on."""

    head: Rev | None = None
    heads: Annotated[list[Rev], Meta(max_length=10_000, description="changesets to land in order")] = []
    onto: Annotated[str, Meta(description="the ref to land on; without it the default branch")] | None = None
    idempotency_key: Key | None = None
    resolutions: report.Resolution | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000, description="merges before E_CAS_RETRY_EXHAUSTED")] = 8
    expect_target: Annotated[str, Meta(description="refuse unless the target's head is this")] | None = None
    allow_revert: Annotated[bool, Meta(description="take back on purpose what others landed")] = False
    allow_reland: Annotated[bool, Meta(description="land again what was undone")] = False
    allow_mass_delete: Annotated[bool, Meta(description="remove more than half of the files on purpose")] = False
    fence: Fence | None = None
    gate: Annotated[str, Meta(max_length=240, description="a task whose gate must have let the change through")] = ""
    check: Annotated[list[str], Meta(max_length=1000, description="a command that must pass on the merged tree")] = []
    check_seconds: Annotated[float, Meta(gt=0, le=86_400, description="how long the check may take")] = 1800.0
    jobs: Annotated[int, Meta(ge=0, le=256, description="checks at once; 0: as many as processors")] = 0


class LandItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one changeset's outcome when several were landed."""

    head: str
    landed: str | None = None
    status: str = "failed"
    error: str | None = None
    message: str | None = None
    checks: list[Checked] = []


class LandResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a land's result; with several changesets `results` has one entry for each, in order."""

    landed: str
    status: str
    onto: str
    attempts: int
    merged_onto: str
    changed_paths: list[str]
    more_paths: int = 0
    merged_by: str | dict[str, str] = "trees"
    results: list[LandItem] = []
    checks: list[Checked] = []


@operation(
    "land",
    request=LandOneRequest,
    response=LandResponse,
    summary="Land changesets on a ref by three-way merge",
    errors=(
        ConflictError,
        CheckFailedError,
        LandMismatchError,
        CasMismatchError,
        KeyReusedError,
        FencedError,
        ForbiddenError,
        NotFoundError,
        ShallowError,
        InvalidError,
        CageUnavailableError,
        BusyError,
        CasRetryExhaustedError,
    ),
    writes=True,
    core=True,
    command=Command(
        positional=("heads*",),
        files=("resolutions",),
        rest="check",
        flags={"idempotency_key": "--key", "resolutions": "--resolve"},
        hidden=("head", "fence"),
    ),
)
def land_changesets(ctx: Context, req: LandOneRequest) -> LandResponse:
    """Lands one or several changesets, each as an operation of its own."""
    heads = [*([req.head] if req.head else []), *req.heads]
    if not heads:
        raise InvalidError("no changeset was named", hint="name one or several: `rw land ID --onto main`")
    ref = check_ref(req.onto) if req.onto else revisions.default_branch(ctx.store)
    key = check_key(req.idempotency_key)
    if len(heads) > 1 and (key or req.resolutions or req.expect_target or req.gate):
        raise InvalidError("a key, a resolution, an expected target or a gate goes with one changeset alone")
    if req.gate:
        check_ref(companions.GATES + req.gate)
    if req.expect_target is not None and not HEX40.match(req.expect_target):
        raise InvalidError("expect_target must be a full id", expect_target=req.expect_target)
    fence = (check_ref(req.fence.ref), req.fence.id) if req.fence else None
    if ctx.store.ref(ref) is None:
        raise NotFoundError(f"there is no ref {short_ref(ref)!r} to land on", hint="list refs with `rw ref list`")
    requests = []
    for head in heads:
        change = revisions.resolve(ctx.store, head)
        if head != change:
            ctx.resolved[head] = change
        requests.append(
            land.request(
                agent=ctx.agent,
                change=change,
                ref=ref,
                key=key,
                expect_target=req.expect_target,
                allow_revert=req.allow_revert,
                allow_reland=req.allow_reland,
                allow_mass_delete=req.allow_mass_delete,
                fence=fence,
                gate=req.gate,
            )
        )
    answering = land.Answering(req.resolutions, ctx.read_file) if req.resolutions else None
    if req.check:
        from ropewalk.workspace import drive, setup

        policy = setup.policy_of(ctx.store)
        how = drive.orders(
            req.check, req.check_seconds, ctx.checks, jobs=req.jobs, policy=policy, cage=checking.caged(ctx)
        )  # fmt: skip
        checked = drive.land_checked(ctx.store, ref, requests, how, answering=answering, tell=ctx.progress)
        if len(heads) > 1:
            return _several(heads, [o.result for o in checked], [o.checks for o in checked])
        if isinstance(checked[0].result, RopewalkError):
            raise checked[0].result
        return LandResponse(**msgspec.structs.asdict(checked[0].result), checks=checked[0].checks)
    if len(requests) > 1:
        outcomes = land.land_many(ctx.store, requests)
        return _several(heads, outcomes, [[] for _ in outcomes])
    one = land.land(ctx.store, requests[0], answering=answering, max_attempts=req.max_attempts)
    return LandResponse(**msgspec.structs.asdict(one))


def _several(
    heads: list[str], outcomes: Sequence[land.Landed | RopewalkError], checks: Sequence[list[Checked]]
) -> LandResponse:
    items: list[LandItem] = []
    first: RopewalkError | None = None
    last: land.Landed | None = None
    for head, outcome, runs in zip(heads, outcomes, checks, strict=True):
        if isinstance(outcome, RopewalkError):
            first = first or outcome
            items.append(LandItem(head, None, "failed", outcome.code, outcome.message, runs))
        else:
            last = outcome
            items.append(LandItem(head, outcome.landed, outcome.status, checks=runs))
    if first is not None:
        failed = sum(item.landed is None for item in items)
        details = {**first.details, "results": msgspec.to_builtins(items)}
        raise type(first)(f"{failed} of {len(items)} changesets did not land; the first: {first.message}",
                          hint=first.hint, **details)  # fmt: skip
    assert last is not None
    return LandResponse(**{**msgspec.structs.asdict(last), "results": items})


class RebaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a changeset and the revision to make it anew on."""

    changeset: Rev
    onto: Rev


class RebaseResponse(msgspec.Struct, frozen=True):
    """Is the new changeset and the base its work was taken from."""

    changeset: str
    base: str
    changed_paths: list[str]


@operation(
    "rebase",
    request=RebaseRequest,
    response=RebaseResponse,
    summary="Make a changeset's work anew on another revision",
    errors=(ConflictError, LandMismatchError, NotFoundError, InvalidError, BusyError),
    writes=True,
    command=Command(positional=("changeset",)),
)
def rebase(ctx: Context, req: RebaseRequest) -> RebaseResponse:
    """Rebases without landing."""
    change, onto = revisions.resolve(ctx.store, req.changeset), revisions.resolve(ctx.store, req.onto)
    return RebaseResponse(*land.rebase(ctx.store, agent=ctx.agent, change=change, onto=onto))


class BlobPutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes contents to keep."""

    contents: Annotated[list[Content], Meta(min_length=1, max_length=10_000)]


class BlobPutResponse(msgspec.Struct, frozen=True):
    """Is the ids of the blobs, in order."""

    blobs: list[str]


@operation(
    "blob put",
    request=BlobPutRequest,
    response=BlobPutResponse,
    summary="Keep contents as blobs that change lists can name",
    errors=(InvalidError, NotFoundError, BusyError),
    writes=True,
    command=Command(files=("contents",)),
)
def blob_put(ctx: Context, req: BlobPutRequest) -> BlobPutResponse:
    """Writes blobs durably."""
    data = [changes.content_bytes(c, f"content {n}", ctx.read_file) for n, c in enumerate(req.contents)]
    return BlobPutResponse(changes.put_blobs(ctx.store, ctx.agent, data))


BlobId = Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]


class BlobsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes blob ids."""

    blobs: Annotated[list[BlobId], Meta(min_length=1, max_length=10_000)]


class BlobHasResponse(msgspec.Struct, frozen=True):
    """Is which of the blobs are here and which are not."""

    present: list[str]
    missing: list[str]


@operation(
    "blob has",
    request=BlobsRequest,
    response=BlobHasResponse,
    summary="Say which blobs the store has",
    errors=(InvalidError,),
    command=Command(positional=("blobs*",)),
)
def blob_has(ctx: Context, req: BlobsRequest) -> BlobHasResponse:
    """Looks blobs up."""
    have = {oid: ctx.store.objects.kind(oid) == "blob" for oid in req.blobs}
    return BlobHasResponse([b for b in req.blobs if have[b]], [b for b in req.blobs if not have[b]])


class BlobGetResponse(msgspec.Struct, frozen=True):
    """Is the blobs' contents: `{blob, size, encoding, content}`."""

    blobs: list[dict[str, Any]]


@operation(
    "blob get",
    request=BlobsRequest,
    response=BlobGetResponse,
    summary="Read blobs by id",
    errors=(InvalidError, NotFoundError),
    command=Command(positional=("blobs*",)),
)
def blob_get(ctx: Context, req: BlobsRequest) -> BlobGetResponse:
    """Reads whole blobs, 16 MiB in all at most."""
    rows: list[dict[str, Any]] = []
    total = 0
    for oid in req.blobs:
        stated = ctx.store.objects.header(oid)
        total += stated[1] if stated is not None else 0
        if total > 16 << 20:
            raise InvalidError("the blobs are larger than 16 MiB together", hint="read them with `rw cat` in pages")
        data = ctx.store.objects.read(oid, "blob")
        try:
            rows.append({"blob": oid, "size": len(data), "encoding": "utf8", "content": data.decode("utf-8")})
        except UnicodeDecodeError:
            rows.append({"blob": oid, "size": len(data), "encoding": "base64", "content": b64encode(data).decode()})
    return BlobGetResponse(rows)
