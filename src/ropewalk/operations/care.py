"""Making a store and looking after it: init, info, whoami, verify, repair, gc, derive, backup, restore."""

from __future__ import annotations

import os
import re
import uuid
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import (
    GitImportDivergedError,
    InvalidError,
    NotFoundError,
    RopewalkError,
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
        os.makedirs(start)
    found = layout.git_common_dir(start)
    root = ctx.named_root or layout.default_root(start)
    if os.path.lexists(root):
        raise InvalidError(f"there is something at {root} already", hint="run `rw info` to see the store", path=root)
    name = req.name or re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(os.path.realpath(start))) or "store"
    branch = short_ref(check_ref(req.branch)) if req.branch else None
    source = importing.current_branch(found[0]) if found and not req.no_import else None
    layout.create(root, str(uuid.uuid4()), name, branch or (source[0] if source else "main"))
    ctx.adopt_root(root)
    if source is not None and found is not None:
        try:
            importing.import_branch(ctx.store, found[0], source[0], into=f"refs/heads/{branch or source[0]}",
                                    actor=ctx.agent_or_none or "git/import")  # fmt: skip
        except RopewalkError:
            import shutil

            # an error changes nothing: the store that was to hold the branch goes again
            ctx.close()
            shutil.rmtree(root, ignore_errors=True)
            raise
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
    """Checks the store and changes nothing."""
    result = verify.verify(ctx.store, deep=req.deep, progress=ctx.progress)
    if result.problems:
        ctx.exit = 10
    return result


class RepairRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes what else to do."""

    unblock: Annotated[bool, Meta(description="continue a stopped process that holds the writer lock")] = False
    kill: Annotated[bool, Meta(description="with --unblock: end that process instead")] = False


@operation(
    "repair",
    request=RepairRequest,
    response=repair.Repaired,
    summary="Put back what can be put back; exit 10 when something is left",
    errors=(NotFoundError, StoreFormatError, StoreCorruptError, StoreIOError),
    writes=True,
    identity=False,
)
def repair_store(ctx: Context, req: RepairRequest) -> repair.Repaired:
    """Repairs the store."""
    if req.kill and not req.unblock:
        raise InvalidError("--kill goes with --unblock")
    if req.unblock:
        repair.unblock(ctx.root, kill=req.kill)
    result = repair.repair(ctx.store, progress=ctx.progress)
    if result.left:
        ctx.exit = 10
    return result


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
