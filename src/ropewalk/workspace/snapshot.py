"""Snapshots: what a workspace held at a moment, as changesets under refs that no workspace can reach.

They are taken before anything that could lose work, when an agent ends, and at intervals by whoever watches
over workspaces. Files that look like secrets, and what is ignored, are not in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import (
    BusyError,
    NotFoundError,
    WorkspaceDamagedError,
    WorkspaceGoneError,
    WorkspaceNotMountedError,
)
from ropewalk.store import changes, refs
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store
from ropewalk.workspace import capture, state
from ropewalk.workspace.capture import Captured
from ropewalk.workspace.state import Workspace

SNAPSHOTS, ARCHIVES = "refs/archive/snapshots/", "refs/archive/ws/"
KEPT = 20
"""How many snapshots of a workspace are kept; older ones make room, unless they are of today."""

_DAY = 24 * 3600


class Snapshot(msgspec.Struct, frozen=True):
    """Is one snapshot or archive: its ref, its changeset, the commit it stands on, when and why it was made."""

    workspace: str
    ref: str
    changeset: str
    base: str
    at: int
    why: str


def take(store: Store, ws: Workspace, agent: str, why: str, now: Captured | None = None) -> str | None:
    """Keeps what a workspace holds; gives the snapshot's ref, which may be one that was there, None for nothing.

    `now` is a capture that was made just now. The caller holds the workspace.
    """
    if now is None:
        store.objects.take_new()
        now = capture.capture(store, ws)
    if not now.changes:
        return None
    prefix = f"{SNAPSHOTS}{ws.name}/"
    there = store.refs(prefix)
    newest = max(there, key=lambda ref: _number(ref[0]), default=None)
    if newest is not None:
        last = store.objects.commit(newest[1])
        if (last.tree, last.parents) == (now.tree, (ws.base,)):
            return newest[0]
    aged = sorted(there, key=lambda ref: _number(ref[0]))[: max(0, len(there) + 1 - KEPT)]
    day = clock.now() - _DAY
    old = [Move(ref, oid, None) for ref, oid in aged if store.objects.commit(oid).committer.at < day]
    message = f"Snapshot of the workspace {ws.name} {why}\n"
    return keep(store, ws, agent, now, prefix, message, "ws_snapshot", old)[1]


class Interval:
    """Takes snapshots of a workspace at intervals; whoever watches over it asks again and again."""

    def __init__(self, name: str, agent: str, seconds: float) -> None:
        """Starts the first interval."""
        self._name, self._agent, self._seconds = name, agent, seconds
        self._next = clock.monotonic() + seconds

    def take(self, store: Store) -> str | None:
        """Takes one when the interval is over and nobody works on the workspace; gives its ref."""
        if clock.monotonic() < self._next:
            return None
        self._next = clock.monotonic() + self._seconds
        try:
            return take_held(store, self._name, self._agent, "while its agent works")
        except BusyError:
            return None


def take_held(store: Store, name: str, agent: str, why: str) -> str | None:
    """Takes one of a workspace that the caller does not hold; None also for one that is gone or damaged."""
    with state.held(store, name):
        try:
            return take(store, state.need(store, name), agent, why)
        except (WorkspaceGoneError, WorkspaceDamagedError, WorkspaceNotMountedError, NotFoundError):
            return None


def keep(
    store: Store, ws: Workspace, agent: str, now: Captured, prefix: str, message: str, kind: str,
    old: Sequence[Move] = (),
) -> tuple[str, str]:  # fmt: skip
    """Writes what was captured as a changeset under the next number of a prefix; gives (changeset, ref)."""
    made = changes.write_changeset(
        store, agent=agent, message=message.encode("utf-8"), tree=now.tree, parents=[ws.base], root=now.base_tree,
        advance=None, key=None, request=b"", kind=kind,
    )  # fmt: skip
    ref = f"{prefix}{max((_number(name) for name, _ in store.refs(prefix)), default=0) + 1}"
    refs.move(store, agent, [Move(ref, None, made.changeset), *old], kind)
    return made.changeset, ref


def _number(ref: str) -> int:
    last = ref.rpartition("/")[2]
    return int(last) if last.isdigit() else 0


def listed(store: Store, name: str | None = None) -> list[Snapshot]:
    """Gives snapshots and archives of a workspace, or of all, newest first; the workspace may be gone."""
    found = []
    for prefix in (SNAPSHOTS, ARCHIVES):
        for ref, oid in store.refs(prefix if name is None else f"{prefix}{state.check_name(name)}/"):
            commit = store.objects.commit(oid)
            workspace = ref[len(prefix) :].rpartition("/")[0]
            found.append(Snapshot(workspace, ref, oid, commit.parents[0], commit.committer.at, commit.title))
    return sorted(found, key=lambda one: (-one.at, one.ref))
