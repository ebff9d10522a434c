"""Sweeping: what ended lanes still take up, what of it holds work, and giving the rest back.

The verdicts are made from what is there at that moment. What goes is archived first, and nothing goes when it can't be.
"""

from __future__ import annotations

import os
import tarfile
import threading
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from ropewalk.core import clock, durable
from ropewalk.core.errors import RopewalkError, UnlandedWorkError, os_error
from ropewalk.lane import attend, journal, supervisor
from ropewalk.lane.journal import Lane
from ropewalk.store.store import Store
from ropewalk.workspace import capture, removal, state
from ropewalk.workspace.files import remove_tree
from ropewalk.workspace.state import Workspace

Verdict = Literal["active", "holds-work", "landed-untracked", "reclaimable"]
"""Is what a lane's leftovers are: in use; work that is nowhere else; only what git passes over beside what landed; or
nothing that anybody would miss."""


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what an ended or running lane takes up: bytes on disk, and why it has its verdict; `archive` is where it went.

    `removed` says that it is gone by now.
    """

    lane: str
    verdict: Verdict
    why: str
    bytes: int
    age: int
    workspace: str | None = None
    archive: str | None = None
    removed: bool = False


class Places(NamedTuple):
    """Is where archives go, and the trash for workspaces."""

    archives: str
    trash: str


def look(store: Store, older_than: float = 0.0) -> Iterator[tuple[Lane, Found]]:
    """Gives what lanes have left, for those that began that many seconds ago or more."""
    now = clock.now()
    of_path = {ws.path: ws for ws in state.listed(store)}
    newest: set[str] = set()
    for lane in journal.lanes(store, limit=100_000):
        record = lane.record
        ws = of_path.get(record.workspace)
        is_newest = record.workspace not in newest
        newest.add(record.workspace)
        if now - lane.began < older_than or (not os.path.isdir(record.folder) and ws is None):
            continue
        verdict, why = judge(store, lane, ws if is_newest else None)
        size = _size(record.folder) + (_size(ws.path) if ws is not None and is_newest else 0)
        yield lane, Found(record.lane, verdict, why, size, now - lane.began, ws.name if ws and is_newest else None)


def judge(store: Store, lane: Lane, ws: Workspace | None) -> tuple[Verdict, str]:
    """Gives the verdict on what a lane left, and why."""
    if lane.result is None and not lane.record.folder:
        return "active", "a person drives it"
    if supervisor.is_alive(lane.record.folder):
        return "active", "it runs"
    if lane.result is None and attend.is_attended(lane.record.folder):
        return "active", "it is attended to"
    if ws is None:
        return "reclaimable", "it has no workspace"
    if ws.state != "ready":
        return "holds-work", f"its workspace is {ws.state}"
    try:
        store.objects.take_new()
        now = capture.capture(store, ws)
        lost = removal.elsewhere(store, ws, now)
    except RopewalkError as error:
        return "holds-work", f"its workspace can't be read: {error.code}"
    if now.changes or lost:
        words = [f"{len(now.changes)} changed paths"] if now.changes else []
        return "holds-work", ", ".join([*words, *lost])
    if strays := _untracked(store, ws):
        return "landed-untracked", f"{strays} ignored files"
    return "reclaimable", "all of it has landed, or nothing was changed"


def reclaim(store: Store, lane: Lane, found: Found, actor: str, places: Places) -> Found:
    """Archives and removes what a reclaimable lane left; it stays as it is when it can't be archived."""
    if found.verdict != "reclaimable":
        return found
    path = archive(lane, places.archives)
    if found.workspace is not None:
        try:
            with state.held(store, found.workspace):
                removal.delete(store, state.need(store, found.workspace), actor, force=False, bin=places.trash)
        except UnlandedWorkError as error:
            return msgspec.structs.replace(found, verdict="holds-work", why=error.message, archive=path)
    try:
        remove_tree(lane.record.folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise os_error(error, "removal of a lane's files") from None
    return msgspec.structs.replace(found, archive=path, removed=True)


def archive(lane: Lane, folder: str) -> str | None:
    """Packs a lane's streams and records, without its home, and gives the file; None where there is nothing of it.

    One whose files are gone was packed before that.
    """
    record = lane.record
    path = os.path.join(folder, record.lane.replace("/", "--") + ".tar.gz")
    if not os.path.isdir(record.folder):
        return path if os.path.isfile(path) else None
    part = f"{path}.{os.getpid()}-{threading.get_ident()}"
    try:
        durable.make_folders(folder, mode=0o700)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as packed:
            for name in sorted(os.listdir(record.folder)):
                place = os.path.join(record.folder, name)
                if os.path.isfile(place) and not os.path.islink(place):
                    packed.add(place, arcname=name, recursive=False)
        durable.sync(part)
        os.replace(part, path)
        durable.sync(folder)
    except (OSError, tarfile.TarError) as error:
        if os.path.exists(part):
            os.unlink(part)
        raise os_error(error if isinstance(error, OSError) else OSError(str(error)), "archive of a lane") from None
    return path


def _untracked(store: Store, ws: Workspace) -> int:
    """Gives how many files of a workspace its git passes over."""
    done = state.private_git(store, ws, "ls-files", "--others", "--ignored", "--exclude-standard", "-z")
    return done.out.count(b"\0") if done.code == 0 else 0


def _size(folder: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue
    return total
