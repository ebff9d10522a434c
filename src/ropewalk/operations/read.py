"""Reads: revisions, files, folders, history, diffs and searches. None of them writes or takes a lock."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import AmbiguousError, BusyError, InvalidError, NotFoundError
from ropewalk.core.ids import path_bytes
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.store import difftext, files, grep, history, revisions
from ropewalk.store.files import Lines

Rev = Annotated[str, Meta(min_length=1, max_length=4096, description="a ref, an id, or one with ~N or ^")]
Path = Annotated[str, Meta(max_length=8192, description="a path in the tree; `base64:…` when it is not UTF-8")]
Limit = Annotated[int, Meta(ge=1, le=5000, description="how many at most")]
After = Annotated[str, Meta(max_length=12_000, description="`next` of the page before")]
Before = Annotated[str, Meta(max_length=40, description="`next` of the page before: an id")]
LineRange = Annotated[str, Meta(max_length=32, description="lines A-B, counted from 1")] | Lines


def _commit(ctx: Context, rev: str | None) -> str:
    """Gives the commit of a revision, without one of the default branch, and notes it for the answer."""
    oid = revisions.resolve(ctx.store, rev if rev is not None else "HEAD")
    if rev != oid:
        ctx.resolved[rev if rev is not None else "HEAD"] = oid
    return oid


def _path(text: str | None) -> bytes:
    raw = path_bytes(text or "").strip(b"/")
    if b"\0" in raw:
        raise InvalidError("the path holds a NUL byte")
    return raw


class ResolveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a revision."""

    rev: Rev


class Resolved(msgspec.Struct, frozen=True):
    """Is the full id of a changeset."""

    id: str


@operation(
    "resolve",
    request=ResolveRequest,
    response=Resolved,
    summary="Give the id of a revision",
    errors=(NotFoundError, AmbiguousError, InvalidError),
    core=True,
    command=Command(positional=("rev",)),
)
def resolve(ctx: Context, req: ResolveRequest) -> Resolved:
    """Resolves a revision."""
    return Resolved(_commit(ctx, req.rev))


class ReadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a file, and which part of it to give."""

    rev: Rev
    path: Path
    lines: LineRange | None = None
    offset: Annotated[int, Meta(ge=0, le=(1 << 53), description="the byte to start at")] = 0
    max_bytes: Annotated[int, Meta(ge=1, le=files.PAGE_BYTES, description="bytes at most")] = files.PAGE_BYTES


@operation(
    "cat",
    tool="read_file",
    request=ReadRequest,
    response=files.Page,
    summary="Read a file, 64 KiB at a time",
    errors=(NotFoundError, AmbiguousError, InvalidError),
    core=True,
    stream=True,
    command=Command(rev_path=("rev", "path")),
)
def read_file(ctx: Context, req: ReadRequest) -> files.Page:
    """Gives a page of a file."""
    lines = files.parse_lines(req.lines)
    return files.read(ctx.store, _commit(ctx, req.rev), _path(req.path), req.rev, offset=req.offset,
                      max_bytes=req.max_bytes, lines=lines)  # fmt: skip


class ListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a folder, and how deep to look."""

    rev: Rev
    path: Path | None = None
    depth: Annotated[int, Meta(ge=1, le=256, description="levels of folders")] = 1
    limit: Limit = 1000
    after: After | None = None


@operation(
    "ls",
    tool="list_dir",
    request=ListRequest,
    response=files.Listed,
    summary="List a folder",
    errors=(NotFoundError, AmbiguousError, InvalidError),
    core=True,
    command=Command(rev_path=("rev", "path")),
)
def list_dir(ctx: Context, req: ListRequest) -> files.Listed:
    """Gives a page of a folder."""
    return files.listing(ctx.store, _commit(ctx, req.rev), _path(req.path), req.rev, depth=req.depth,
                         limit=req.limit, after=req.after)  # fmt: skip


class LogRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes where to start, and what to look for."""

    rev: Rev | None = None
    path: Path | None = None
    limit: Limit = 50
    before: Before | None = None


@operation(
    "log",
    request=LogRequest,
    response=history.LogPage,
    summary="Show history, newest first",
    errors=(NotFoundError, AmbiguousError, InvalidError, BusyError),
    core=True,
    command=Command(positional=("rev?",), flags={"limit": "-n"}),
)
def log(ctx: Context, req: LogRequest) -> history.LogPage:
    """Gives a page of history."""
    return history.log(ctx.store, _commit(ctx, req.rev), path=_path(req.path), before=req.before, limit=req.limit)


class ShowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a changeset."""

    rev: Rev
    max_changes: Annotated[int, Meta(ge=0, le=5000, description="changed paths at most")] = 200
    after: After | None = None


@operation(
    "show",
    request=ShowRequest,
    response=history.Shown,
    summary="Show one changeset and the paths it changed",
    errors=(NotFoundError, AmbiguousError, InvalidError),
    core=True,
    command=Command(positional=("rev",)),
)
def show(ctx: Context, req: ShowRequest) -> history.Shown:
    """Gives one changeset."""
    return history.show(ctx.store, _commit(ctx, req.rev), max_changes=req.max_changes, after=req.after)


class HistoryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a path."""

    rev: Rev
    path: Path
    limit: Limit = 50
    before: Before | None = None


@operation(
    "history",
    request=HistoryRequest,
    response=history.PathPage,
    summary="Show which changesets changed a path, through renames",
    errors=(NotFoundError, AmbiguousError, InvalidError, BusyError),
    command=Command(rev_path=("rev", "path"), flags={"limit": "-n"}),
)
def path_history(ctx: Context, req: HistoryRequest) -> history.PathPage:
    """Gives a page of a path's history."""
    path = _path(req.path)
    if not path:
        raise InvalidError("no path was given", hint="name it as REV:PATH, or use `rw log`")
    return history.path_history(ctx.store, _commit(ctx, req.rev), path, req.rev, before=req.before, limit=req.limit)


class DiffRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes two revisions, and which path to compare."""

    old: Rev
    new: Rev
    path: Path | None = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="files at most")] = 200
    max_bytes: Annotated[int, Meta(ge=256, le=(1 << 20), description="bytes of text at most")] = files.PAGE_BYTES
    after: After | None = None


@operation(
    "diff",
    request=DiffRequest,
    response=difftext.Diff,
    summary="Show what changed between two revisions",
    errors=(NotFoundError, AmbiguousError, InvalidError, BusyError),
    core=True,
    command=Command(positional=("old", "new")),
)
def diff(ctx: Context, req: DiffRequest) -> difftext.Diff:
    """Gives a page of a diff."""
    return difftext.diff(ctx.store, _commit(ctx, req.old), _commit(ctx, req.new), path=_path(req.path),
                         after=req.after, limit=req.limit, max_bytes=req.max_bytes)  # fmt: skip


class BlameRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a file, and which lines of it."""

    rev: Rev
    path: Path
    lines: LineRange | None = None
    limit: Limit = 1000


@operation(
    "blame",
    request=BlameRequest,
    response=history.Blamed,
    summary="Show which changeset and agent wrote each line",
    errors=(NotFoundError, AmbiguousError, InvalidError, BusyError),
    command=Command(rev_path=("rev", "path")),
)
def blame(ctx: Context, req: BlameRequest) -> history.Blamed:
    """Gives a page of lines and who wrote them."""
    lines = files.parse_lines(req.lines)
    return history.blame(ctx.store, _commit(ctx, req.rev), _path(req.path), req.rev, lines=lines, limit=req.limit)


class GrepRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a pattern, and where to look for it."""

    pattern: Annotated[str, Meta(min_length=1, max_length=4096, description="an extended regular expression")]
    rev: Rev | None = None
    path: Path | None = None
    ignore_case: Annotated[bool, Meta(description="take upper and lower case as equal")] = False
    fixed: Annotated[bool, Meta(description="take the pattern as plain text")] = False
    limit: Limit = 100
    after: After | None = None


@operation(
    "grep",
    request=GrepRequest,
    response=grep.Grepped,
    summary="Search the files of a revision",
    errors=(NotFoundError, AmbiguousError, InvalidError, BusyError),
    core=True,
    command=Command(positional=("pattern", "rev?"), flags={"ignore_case": "-i", "limit": "-n"}),
)
def search(ctx: Context, req: GrepRequest) -> grep.Grepped:
    """Gives a page of matches."""
    return grep.grep(ctx.store, _commit(ctx, req.rev), req.pattern, path=_path(req.path),
                     ignore_case=req.ignore_case, fixed=req.fixed, after=req.after, limit=req.limit)  # fmt: skip
