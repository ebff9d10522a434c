"""Making a store and looking after it: init, info, whoami, verify, repair, gc, derive, backup, restore."""

from __future__ import annotations

import os
import re
import uuid
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from ropewalk.core import durable
from ropewalk.core.errors import (
    BusyError,
    GitImportDivergedError,
    InvalidError,
    NotFoundError,
    RemoteError,
    StoreCorruptError,
    StoreFormatError,
    StoreIOError,
    UnsupportedError,
    UnsupportedFilesystemError,
)
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.store import layout, maintain, repair, verify
from ropewalk.store.revisions import default_branch
from ropewalk.store.store import Store

if TYPE_CHECKING:
    from contextlib import ExitStack

    from ropewalk.store.sources import Source


class InitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes where and under what name to make a store."""

    dir: Annotated[str, Meta(description="the folder to work in; without it the present one")] | None = None
    name: Annotated[str, Meta(max_length=100, description="the store's name")] | None = None
    branch: Annotated[str, Meta(description="the default branch; without it the repository's, else main")] | None = None
    no_import: Annotated[bool, Meta(description="do not import the repository's current branch")] = False


class StoreInfo(msgspec.Struct, frozen=True):
    """Is what a store says of itself."""

    repo_id: str
    name: str
    store_version: int
    default_branch: str
    head: str | None
    changesets: int
    refs: int
    operations: int
    journal_objects: int
    packs: int
    bytes_on_disk: int


@operation(
    "init",
    request=InitRequest,
    response=StoreInfo,
    summary="Make a store, beside a repository or alone",
    tool="repo_init",
    errors=(InvalidError, UnsupportedError, UnsupportedFilesystemError, GitImportDivergedError, StoreIOError),
    writes=True,
    identity=False,
    store=False,
    command=Command(positional=("dir?",)),
)
def init(ctx: Context, req: InitRequest) -> StoreInfo:
    """Makes a store; inside a repository its current branch is imported, with the same ids."""
    from ropewalk.remote import importing

    start = ctx.path(req.dir) if req.dir else ctx.cwd
    if not os.path.isdir(start):
        if os.path.lexists(start):
            raise InvalidError(f"{start} is not a folder", path=start)
        durable.make_folders(start)
    found = layout.git_common_dir(start)
    root = ctx.named_root or layout.default_root(start)
    if os.path.lexists(root):
        raise InvalidError(f"there is something at {root} already", hint="run `rw info` to see the store", path=root)
    name = req.name or re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(os.path.realpath(start))) or "store"
    branch = short_ref(check_ref(req.branch)) if req.branch else None
    source = importing.current_branch(found[0]) if found and not req.no_import else None

    def fill(part: str) -> None:
        if source is not None and found is not None:
            with Store(part) as store:
                importing.import_branch(store, found[0], source[0], into=f"refs/heads/{branch or source[0]}",
                                        actor=ctx.agent_or_none or "git/import")  # fmt: skip

    layout.create(root, str(uuid.uuid4()), name, branch or (source[0] if source else "main"), fill)
    ctx.adopt_root(root)
    return describe(ctx.store)


def describe(store: Store) -> StoreInfo:
    """Gives what a store says of itself."""
    branch = default_branch(store)
    count = store.db.row("SELECT (SELECT count(*) FROM changesets), (SELECT count(*) FROM object_journal)") or (0, 0)
    return StoreInfo(
        store.format.id,
        store.format.name,
        store.format.format,
        short_ref(branch),
        store.ref(branch),
        int(count[0]),
        len(store.refs()),
        store.last_op(),
        int(count[1]),
        len(maintain.packs(store)),
        maintain.disk_bytes(store.layout.root),
    )


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes nothing."""


@operation(
    "info",
    request=Nothing,
    response=StoreInfo,
    summary="Describe the store",
    errors=(NotFoundError, StoreFormatError, StoreCorruptError),
)
def info(ctx: Context, req: Nothing) -> StoreInfo:
    """Gives what the store says of itself."""
    return describe(ctx.store)


class WhoAmI(msgspec.Struct, frozen=True):
    """Is who the caller is, how that is known, and the name and address its commits carry."""

    agent: str | None
    auth: str
    name: str | None
    email: str | None


@operation("whoami", request=Nothing, response=WhoAmI, summary="Say who you are to this store", errors=(InvalidError,))
def whoami(ctx: Context, req: Nothing) -> WhoAmI:
    """Gives the caller's identity."""
    from ropewalk.store.identity import person

    agent = ctx.agent_or_none
    if agent is None:
        return WhoAmI(None, ctx.auth, None, None)
    who = person(ctx.store.layout, agent, 0)
    return WhoAmI(agent, ctx.auth, who.name.decode("utf-8"), who.mail.decode("utf-8"))


class VerifyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes how deep to look."""

    deep: Annotated[bool, Meta(description="read and hash every object, too")] = False


@operation(
    "verify",
    request=VerifyRequest,
    response=verify.Verified,
    summary="Check the store; exit 10 when something was found",
    errors=(NotFoundError, StoreFormatError, StoreCorruptError),
)
def verify_store(ctx: Context, req: VerifyRequest) -> verify.Verified:
    """Checks the store and changes nothing; one that can't be opened because it is damaged is a finding too."""
    try:
        store = ctx.store
    except (StoreCorruptError, StoreFormatError) as error:
        if "found" in error.details:  # not damaged, but a newer ropewalk's
            raise
        result = verify.closed(error)
    else:
        from ropewalk.workspace import care as workspace_care

        result = verify.verify(store, deep=req.deep, progress=ctx.progress)
        more = workspace_care.findings(store)
        if more:
            result = msgspec.structs.replace(
                result,
                findings=result.findings + more,
                problems=result.problems + [f"{f.object} of the store's own is damaged" for f in more],
            )
    if result.problems:
        ctx.exit = 10
    return result


class RepairRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what else to do, and where else to look for what the store lacks."""

    from_: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=4096)]],
        Meta(max_length=100, description="a backup, another store, a repository, a bundle or a URL that may have it"),
    ] = msgspec.field(name="from", default_factory=list)
    rebuild: Annotated[bool, Meta(description="make a new database of what is left; the old one is kept")] = False
    unblock: Annotated[bool, Meta(description="continue a stopped process that holds the writer lock")] = False
    kill: Annotated[bool, Meta(description="with --unblock: end that process instead")] = False


@operation(
    "repair",
    request=RepairRequest,
    response=repair.Repaired,
    summary="Put back what can be put back; exit 10 when something is left",
    errors=(NotFoundError, StoreFormatError, StoreCorruptError, StoreIOError, BusyError, RemoteError),
    writes=True,
    identity=False,
)
def repair_store(ctx: Context, req: RepairRequest) -> repair.Repaired:
    """Repairs the store: from its own copies first, then from the places named, then from its workspaces."""
    from contextlib import ExitStack

    from ropewalk.store import rebuild
    from ropewalk.workspace import care as workspace_care

    if req.kill and not req.unblock:
        raise InvalidError("--kill goes with --unblock")
    if req.unblock:
        repair.unblock(ctx.root, kill=req.kill)
    done = repair.mend_format(ctx.root)
    if req.rebuild:
        wait = float(ctx.settings["lock_wait"].value or 0)
        done += rebuild.rebuild(ctx.root, lock_wait=wait, progress=ctx.progress)
    with ExitStack() as stack:
        store = ctx.store
        places = [_place(ctx, text, stack) for text in req.from_] + workspace_care.places(store)
        for place in places:
            stack.callback(place.close)
        result = repair.repair(store, progress=ctx.progress, places=places, rebuilt=req.rebuild)
        done += result.done + workspace_care.mend(store)
    left = [f for f in result.left if f.kind != "workspace"] + workspace_care.findings(store)
    if left:
        ctx.exit = 10
    return repair.Repaired(done, left)


def _place(ctx: Context, text: str, stack: ExitStack) -> Source:
    """Gives the place that a text names; a URL or a bundle is fetched first."""
    from ropewalk.remote import lending, transport
    from ropewalk.store import sources

    repo = ctx.store.layout.repo
    if not transport.is_url(text) and os.path.isdir(ctx.path(text)):
        return sources.of_folder(repo, ctx.path(text))
    ctx.progress(f"repair: fetching {text}")
    where = text if transport.is_url(text) else ctx.path(text)
    objects = stack.enter_context(lending.lent(ctx.store.layout.root, where, ctx.remote_wait))
    return sources.Source(text, repo, objects)


@operation(
    "gc",
    request=Nothing,
    response=maintain.Collected,
    summary="Pack the journal and put all packs into one",
    errors=(StoreIOError,),
    writes=True,
    identity=False,
)
def gc(ctx: Context, req: Nothing) -> maintain.Collected:
    """Consolidates the store; readers and writers go on."""
    return maintain.collect(ctx.store)


class Derived(msgspec.Struct, frozen=True):
    """Is the state of derived data, which is rebuilt when damaged and never trusted over the objects."""

    commit_graph: bool


@operation("derive status", request=Nothing, response=Derived, summary="Say which derived data there is")
def derive_status(ctx: Context, req: Nothing) -> Derived:
    """Gives the state of derived data."""
    return Derived(os.path.exists(os.path.join(ctx.store.layout.repo, "objects", "info", "commit-graph")))


@operation(
    "derive run", request=Nothing, response=Derived, summary="Build derived data anew", writes=True, identity=False
)
def derive_run(ctx: Context, req: Nothing) -> Derived:
    """Builds derived data anew."""
    with maintain.maintenance(ctx.store, wait=True):
        return Derived(maintain.derive(ctx.store))


class FolderRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a folder."""

    dir: Annotated[str, Meta(min_length=1, max_length=4096, description="a folder")]


class BackedUp(msgspec.Struct, frozen=True):
    """Is a backup: its folder, and the last operation in it."""

    dir: str
    op: int


@operation(
    "backup",
    request=FolderRequest,
    response=BackedUp,
    summary="Copy the store, consistent, while writers write",
    errors=(InvalidError, StoreIOError),
    writes=True,
    identity=False,
    command=Command(positional=("dir",)),
)
def backup(ctx: Context, req: FolderRequest) -> BackedUp:
    """Makes a backup in a folder that does not exist yet."""
    return BackedUp(req.dir, maintain.backup(ctx.store, ctx.path(req.dir)))


@operation(
    "restore",
    request=FolderRequest,
    response=StoreInfo,
    summary="Make a store from a backup, where --store says",
    errors=(InvalidError, NotFoundError, StoreFormatError, StoreIOError),
    writes=True,
    identity=False,
    store=False,
    command=Command(positional=("dir",)),
)
def restore(ctx: Context, req: FolderRequest) -> StoreInfo:
    """Restores a backup to a path that does not exist yet."""
    root = ctx.named_root or layout.default_root(ctx.cwd)
    maintain.restore(ctx.path(req.dir), root)
    ctx.adopt_root(root)
    return describe(ctx.store)
