"""History: who made what when. Log, one changeset, the history of a path, and who wrote each line."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from ropewalk.core.errors import BusyError, InternalError, InvalidError, UnsupportedError
from ropewalk.core.ids import EMPTY_TREE, path_bytes, path_text, show_text
from ropewalk.core.process import ChildTimeout, Done
from ropewalk.store import files, revisions, trees
from ropewalk.store.files import Lines
from ropewalk.store.objects import Commit, parse_commit
from ropewalk.store.store import Store

_TIMEOUT = 120.0
_BLAME = re.compile(rb"([0-9a-f]{40}) (\d+) (\d+)(?: \d+)?\Z")
_STATUS = {"A": "added", "D": "deleted", "M": "modified", "T": "type", "R": "renamed", "C": "copied"}


class LogEntry(msgspec.Struct, frozen=True):
    """Is one changeset of a log; `created_at` in seconds since 1970, of the commit that is on the branch."""

    id: str
    parents: list[str]
    author_agent: str
    created_at: int
    title: str


class LogPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of a log, newest first."""

    entries: list[LogEntry]
    truncated: bool
    next: str | None = None


class Who(msgspec.Struct, frozen=True):
    """Is an agent, or the name in an imported commit."""

    agent: str


class ShownChange(msgspec.Struct, frozen=True):
    """Is one path that a changeset changed: added, deleted, modified, mode or type."""

    path: str
    kind: str


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one changeset; `seq` is the operation that recorded it, None for an imported one."""

    id: str
    seq: int | None
    parents: list[str]
    root: str
    author: Who
    created_at: int
    title: str
    message: str
    changes: list[ShownChange]
    truncated: bool
    lander: Who | None = None
    land_key: str | None = None
    source: str | None = None
    next: str | None = None


class PathEntry(msgspec.Struct, frozen=True):
    """Is one changeset that changed a path, with the path's name at that time."""

    id: str
    path: str
    kind: str
    author_agent: str
    created_at: int
    title: str


class PathPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of a path's history, newest first."""

    entries: list[PathEntry]
    truncated: bool
    next: str | None = None


class BlamedLine(msgspec.Struct, frozen=True):
    """Is one line with the changeset that wrote it."""

    line: int
    changeset: str
    agent: str
    created_at: int
    text: str


class Blamed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a page of lines; `next` is the first line of the page after."""

    lines: list[BlamedLine]
    total: int
    truncated: bool
    next: int | None = None


def raw(store: Store, rev: str, path: str) -> Iterator[bytes]:
    """Yields the whole content of a file or symlink; `E_NOT_FOUND` or `E_INVALID` for anything else."""
    return files.blob_at(store, revisions.resolve(store, rev), path_bytes(path).strip(b"/"), rev)[1].parts


def child(store: Store, *args: str | bytes, ok: tuple[int, ...] = (0,), timeout: float = _TIMEOUT) -> Done:
    """Runs a reading git with paths taken as they are; `E_BUSY` when it takes longer than its bound."""
    try:
        return store.git("--literal-pathspecs", *args, ok=ok, timeout=timeout)
    except ChildTimeout as error:
        raise BusyError(
            f"this took longer than {error.seconds:g} s", hint="ask for less: a path, or fewer entries"
        ) from None
    except InternalError as error:
        # a path that is there for us and not for git: the tree came from elsewhere and is not in git's order
        if "no such path" not in error.message:
            raise
        raise UnsupportedError(
            f"git can't read this: {error.message}", hint="`git fsck --strict` says what is wrong with its tree"
        ) from None


def agent_of(store: Store, commit: Commit) -> str:
    """Gives the agent that made a commit's work: of the landed change, of the commit, else the author's name."""
    source = commit.trailer("Ropewalk-Changeset")
    # a landed commit that was not made here is its git author's, not its lander's
    agent = store.agent_of(source or commit.id)
    return agent or text_of(commit.author.name, commit.encoding) or "unknown"


def text_of(data: bytes, encoding: bytes = b"") -> str:
    """Gives a message or name as text, by the encoding that its commit names."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        try:
            return data.decode(encoding.decode("ascii") or "utf-8", "replace")
        except (LookupError, ValueError):
            return show_text(data)


def title_of(commit: Commit) -> str:
    """Gives the first line of a commit's message."""
    return text_of(commit.message.lstrip(b"\n").split(b"\n", 1)[0], commit.encoding)


def _commits(store: Store, ids: list[str]) -> list[Commit]:
    """Gives parsed commits, packed ones read in one go."""
    found = store.objects.read_many(ids)
    return [
        parse_commit(oid, item[1]) if item is not None else store.objects.commit(oid)
        for oid, item in zip(ids, found, strict=True)
    ]


def _page(ids: list[str], before: str | None, limit: int) -> tuple[int, int, bool]:
    """Gives (start, stop, whether more follow) of the page after an id."""
    start = 0
    if before is not None:
        if before not in ids:
            raise InvalidError(f"{before!r} is not in this log", hint="take `next` of the page before", before=before)
        start = ids.index(before) + 1
    return start, min(start + limit, len(ids)), len(ids) > start + limit


def log(store: Store, commit: str, *, path: bytes, before: str | None, limit: int) -> LogPage:
    """Gives a page of what a commit reaches, newest first; with a path only what changed it."""
    args: list[str | bytes] = ["rev-list", commit]
    if before is None:
        args.insert(1, f"--max-count={limit + 1}")
    if path:
        args += [b"--", path]
    ids = child(store, *args).text().split()
    start, stop, more = _page(ids, before, limit)
    entries = [
        LogEntry(c.id, list(c.parents), agent_of(store, c), c.committer.at, title_of(c))
        for c in _commits(store, ids[start:stop])
    ]
    return LogPage(entries, more, entries[-1].id if more else None)


def show(store: Store, oid: str, *, max_changes: int, after: str | None) -> Shown:
    """Gives a changeset and what it changed over its first parent, by path, at most `max_changes` after `after`."""
    commit = store.objects.commit(oid)
    base = store.objects.commit(commit.parents[0]).tree if commit.parents else EMPTY_TREE
    changes = trees.diff(store.objects, base, commit.tree)
    if after is not None:
        behind = path_bytes(after)
        changes = [c for c in changes if c.path > behind]
    more = len(changes) > max_changes
    rows = [ShownChange(path_text(c.path), change_kind(c)) for c in changes[:max_changes]]
    row = store.db.row("SELECT op FROM changesets WHERE id = ?", (oid,))
    source = commit.trailer("Ropewalk-Changeset")
    lander = store.agent_of(oid) if source else None
    return Shown(
        oid,
        int(row[0]) if row else None,
        list(commit.parents),
        commit.tree,
        Who(agent_of(store, commit)),
        commit.committer.at,
        title_of(commit),
        text_of(commit.message, commit.encoding),
        rows,
        more,
        Who(lander) if lander else None,
        commit.trailer("Ropewalk-Land-Key"),
        source,
        rows[-1].path if more and rows else None,
    )


def change_kind(change: trees.Change) -> str:
    """Gives `added`, `deleted`, `modified`, `mode` (the mode alone) or `type` (a file became a link or the like)."""
    old, new = change.old, change.new
    if old is None or new is None:
        return "added" if old is None else "deleted"
    plain = (trees.FILE, trees.EXEC)
    if old[0] != new[0] and not (old[0] in plain and new[0] in plain):
        return "type"
    return "mode" if old[1] == new[1] else "modified"


def path_history(store: Store, commit: str, path: bytes, rev: str, *, before: str | None, limit: int) -> PathPage:
    """Gives a page of the changesets that changed a path, through renames when it is a file."""
    entry = files.find(store, commit, path, rev)
    args: list[str | bytes] = ["-c", "diff.renameLimit=2000", "log", "--no-color", "--no-ext-diff", "--no-textconv",
                               "--no-show-signature", "--format=%x01%H", "-z", "--name-status", "-M"]  # fmt: skip
    if entry[0] != trees.TREE:
        args.append("--follow")
    if before is None:
        args.append(f"--max-count={limit + 1}")
    found = _parse_names(child(store, *args, commit, "--", path).out, path)
    start, stop, more = _page([oid for oid, _, _ in found], before, limit)
    part = found[start:stop]
    entries = [
        PathEntry(oid, path_text(name), kind, agent_of(store, c), c.committer.at, title_of(c))
        for (oid, name, kind), c in zip(part, _commits(store, [oid for oid, _, _ in part]), strict=True)
    ]
    return PathPage(entries, more, entries[-1].id if more else None)


def _parse_names(out: bytes, path: bytes) -> list[tuple[str, bytes, str]]:
    """Gives (commit, path then, kind) of `git log -z --name-status`; several names in a folder stand as the folder."""
    rows: list[tuple[str, bytes, str]] = []
    words = out.split(b"\0")
    name, at = path, 0
    while at < len(words) and words[at].startswith(b"\x01"):
        oid, kind, count = words[at][1:41].decode("ascii"), "modified", 0
        at += 1
        while at < len(words) and words[at] and not words[at].startswith(b"\x01"):
            letter = words[at].lstrip(b"\n")[:1].decode("ascii", "replace")
            at += 3 if letter in "RC" else 2
            count += 1
            if count == 1:
                name, kind = words[at - 1], _STATUS.get(letter, "modified")
        rows.append((oid, name if count < 2 else path, kind if count < 2 else "modified"))
    return rows


def blame(store: Store, commit: str, path: bytes, rev: str, *, lines: Lines | None, limit: int) -> Blamed:
    """Gives a page of lines with the changeset and agent that wrote each."""
    _, found = files.blob_at(store, commit, path, rev)
    total = files.count_lines(found.parts)
    first = lines.first if lines is not None else 1
    last = min(total, lines.last if lines is not None and lines.last is not None else total)
    stop = min(last, first + limit - 1)
    if stop < first:
        return Blamed([], total, False)
    out = child(store, "blame", "--porcelain", "-L", f"{first},{stop}", commit, "--", path).out
    ids: list[str] = []
    texts: list[str] = []
    for line in out.split(b"\n"):
        head = _BLAME.match(line)
        if line.startswith(b"\t"):
            texts.append(show_text(line[1:]))
        elif head is not None:
            ids.append(head[1].decode("ascii"))
    unique = list(dict.fromkeys(ids))
    known = {c.id: (agent_of(store, c), c.committer.at) for c in _commits(store, unique)}
    rows = [
        BlamedLine(number, oid, *known[oid], text)
        for number, (oid, text) in enumerate(zip(ids, texts, strict=False), start=first)
    ]
    return Blamed(rows, total, stop < last, stop + 1 if stop < last else None)
