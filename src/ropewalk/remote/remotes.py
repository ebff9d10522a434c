"""Remotes: other repositories by name, the refs that remember what they had, fetch and push.

A remote is any git repository, another store's `repo.git` among them. What it had at the last fetch is kept under
`refs/remotes/NAME/`, moved by operations like every ref.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import msgspec

from ropewalk.core.errors import CasMismatchError, InvalidError, NotFoundError
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.remote import exporting, importing, transport
from ropewalk.store import lineage, refs
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store, need_ref

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class Remote(msgspec.Struct, frozen=True):
    """Is a remote: its name, and the URL or path that git is told."""

    name: str
    url: str

    @property
    def shown(self) -> str:
        """Gives the URL without a password in it."""
        return transport.public(self.url)


class Fetched(msgspec.Struct, frozen=True):
    """Is what a fetch brought: new commits, and the tracking refs that moved, with their old and new ids."""

    remote: str
    url: str
    imported: int
    moved: list[dict[str, str | None]]
    refs: int
    head: str | None


class Pushed(msgspec.Struct, frozen=True):
    """Is the result of a push."""

    remote: str
    branch: str
    status: Literal["created", "fast_forwarded", "up_to_date"]
    old: str | None
    new: str
    exported: int
    objects_written: int
    rewritten: int = 0


def check_name(name: str) -> str:
    """Gives a remote's name back; `E_INVALID` unless it can be a folder of refs."""
    if not _NAME.match(name) or name.endswith((".", ".lock")) or ".." in name:
        raise InvalidError(f"{name!r} is not a remote's name", hint="use letters, digits, '.', '_' and '-'", name=name)
    return name


def add(store: Store, name: str, url: str, actor: str) -> Remote:
    """Notes a remote; `E_INVALID` when the name is used for another URL."""
    transport.place(url, exists=False)
    found = find(store, check_name(name))
    if found is not None and found.url != url:
        raise InvalidError(
            f"there is a remote {name!r} already, at {found.shown}", hint=f"rw remote remove {name}", name=name
        )
    if found is None:
        with store.transaction() as tx:
            tx.record("remote_add", actor, note=name)
            tx.db.run("INSERT INTO remotes VALUES (?, ?)", (name, url))
    return Remote(name, url)


def remove(store: Store, name: str, actor: str) -> Remote:
    """Forgets a remote and its tracking refs; nothing there or on a branch here is touched."""
    remote = need(store, name)
    with store.transaction() as tx:
        moves = [Move(ref, oid, None) for ref, oid in store.refs(_tracking(name, ""))]
        tx.record("remote_remove", actor, moves, note=name)
        tx.db.run("DELETE FROM remotes WHERE name = ?", (name,))
    return remote


def listed(store: Store) -> list[Remote]:
    """Gives all remotes by name."""
    return [Remote(str(row[0]), str(row[1])) for row in store.db.rows("SELECT name, url FROM remotes ORDER BY name")]


def find(store: Store, name: str) -> Remote | None:
    """Gives a remote, or None."""
    row = store.db.row("SELECT name, url FROM remotes WHERE name = ?", (name,))
    return None if row is None else Remote(str(row[0]), str(row[1]))


def need(store: Store, name: str | None) -> Remote:
    """Gives a remote by its name, without one `origin` or the only one; `E_NOT_FOUND` when there is none."""
    if name is not None:
        found = find(store, name)
    else:
        every = listed(store)
        found = next((one for one in every if one.name == "origin"), every[0] if len(every) == 1 else None)
    if found is None:
        raise NotFoundError(
            f"there is no remote {name!r}" if name else "there is no remote",
            hint="add one with `rw remote add NAME URL`; `rw remote list` shows them", remote=name,
        )  # fmt: skip
    return found


def _tracking(name: str, branch: str) -> str:
    return f"refs/remotes/{name}/{branch}"


def tracked(store: Store, remote: Remote, branch: str) -> str | None:
    """Gives where a branch of a remote was at the last fetch or push."""
    return store.ref(_tracking(remote.name, short_ref(check_ref(branch))))


def published(store: Store, remote: Remote, branch: str) -> list[str]:
    """Gives every commit at which a branch of a remote was seen since the remote has its name."""
    return [str(row[0]) for row in store.db.rows(
        "SELECT target FROM ref_values WHERE name = ? AND op > (SELECT COALESCE(MAX(op), 0) FROM ops"
        " WHERE kind = 'remote_add' AND body LIKE ?)",
        (_tracking(remote.name, short_ref(check_ref(branch))), f'%"note":"{remote.name}"%'),
    )]  # fmt: skip


def fetch(
    store: Store, remote: Remote, actor: str, *, progress: Callable[[str], None] | None = None,
    wait: float = transport.WAIT,
) -> Fetched:  # fmt: skip
    """Brings every branch of a remote, and its new tags, as one operation.

    A branch that is gone there is gone from its tracking refs; a tag that is here already is never moved.
    """
    there = transport.place(remote.url)
    found = transport.listing(store.layout.repo, there, wait=wait)
    wanted: dict[str, str] = {}
    for name, oid in found.refs.items():
        if name.startswith("refs/heads/"):
            wanted[_tracking(remote.name, name[11:])] = oid
        elif name.startswith("refs/tags/") and store.ref(name) is None:
            wanted[name] = oid
    gone = [ref for ref, _ in store.refs(_tracking(remote.name, "")) if ref not in wanted]
    imported, moves = importing.bring_refs(
        store, there, wanted, gone, kind="fetch", actor=actor, progress=progress, wait=wait
    )
    return Fetched(
        remote.name, remote.shown, imported,
        [{"ref": short_ref(m.name), "old": m.old, "new": m.new} for m in moves], len(wanted),
        short_ref(found.head) if found.head else None,
    )  # fmt: skip


def push(
    store: Store, remote: Remote, ref: str, branch: str | None, actor: str, *,
    progress: Callable[[str], None] | None = None, wait: float = transport.WAIT,
) -> Pushed:  # fmt: skip
    """Pushes a ref to a branch of a remote by compare-and-swap, never forced, and notes where it is then.

    Raises what an export raises: `E_CAS_MISMATCH` when the branch holds what the ref does not, `E_REMOTE`.
    """
    full, _ = need_ref(store, ref)
    name = check_ref(branch if branch is not None else full)
    before = tracked(store, remote, name) if name.startswith("refs/heads/") else None
    done = exporting.export_branch(store, remote.url, full, name, progress=progress, wait=wait)
    if name.startswith("refs/heads/"):
        _note(store, _tracking(remote.name, short_ref(name)), before, done.head_sha, actor)
    status: Literal["created", "fast_forwarded", "up_to_date"] = (
        "up_to_date" if not done.branch_moved else "created" if done.old_sha is None else "fast_forwarded"
    )
    return Pushed(remote.name, done.branch, status, done.old_sha, done.head_sha, done.exported, done.objects_written)


def _note(store: Store, ref: str, before: str | None, oid: str, actor: str) -> None:
    """Notes where a branch of a remote is after a push, unless somebody has noted a later place meanwhile."""
    while (old := store.ref(ref)) != oid:
        if old is not None and old != before and not lineage.ancestor(store, old, oid):
            return
        with suppress(CasMismatchError):
            refs.move(store, actor, [Move(ref, old, oid)], "fetch")
