"""What attempts leave on a host when their worker is killed: agents, workspaces, folders.

An attempt that still holds its claim is taken over; what is left of the others is ended by any worker.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from urllib.parse import quote, unquote

from ropewalk.board import holder
from ropewalk.core import clock
from ropewalk.core.errors import RopewalkError, os_error
from ropewalk.lane import lanes
from ropewalk.lane.processes import sweep
from ropewalk.store.store import Store
from ropewalk.workspace import removal, state
from ropewalk.workspace.check import end_inside, remove_place
from ropewalk.workspace.drive import sweep_jobs
from ropewalk.workspace.files import remove_tree

_HOLDER, _BY = "holder", ".by-"
_UNNAMED_SECONDS = 3600.0


class Places:
    """Is where the attempts on a store keep their files: one folder each, which names the process that has it."""

    def __init__(self, store: Store, data_home: str) -> None:
        self.home = os.path.join(data_home, "ropewalk", store.format.id)
        self.folder = os.path.join(self.home, "work")
        self.checks = os.path.join(self.home, "checks")
        self.sessions = os.path.join(self.home, "sessions")

    def of(self, attempt: str) -> str:
        """Gives the folder of an attempt."""
        return os.path.join(self.folder, quote(attempt, safe=""))

    def workspace(self, attempt: str) -> str:
        """Gives where the workspace of an attempt goes."""
        return os.path.join(self.home, "ws", attempt)

    def make(self, attempt: str) -> str:
        """Makes the folder of an attempt of this process."""
        folder = self.of(attempt)
        made = folder if os.path.isdir(folder) else _passing(folder)
        try:
            os.makedirs(made, exist_ok=True)
            path = os.path.join(made, _HOLDER)
            with open(f"{path}.new", "w", encoding="ascii") as file:
                file.write(f"{holder.mine()}\n{attempt}")
            os.replace(f"{path}.new", path)  # whoever looks finds the one before, or this one
            if made != folder:
                os.rename(made, folder)
        except OSError as error:
            raise os_error(error, "making the folder of an attempt") from None
        return folder

    @contextmanager
    def alone(self, attempt: str) -> Iterator[bool]:
        """Says whether nobody else takes over or ends what a dead process left of an attempt; nobody will meanwhile."""
        try:
            # the folder itself is what is locked: a file in it would be in the way of who removes the folder
            fd = os.open(self.of(attempt), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield False  # it is gone
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(fd)

    def is_left(self, attempt: str) -> bool:
        """Says whether the process that has an attempt's folder is dead."""
        return bool(holder.is_dead(_holder(self.of(attempt))[0]))

    def end_checks(self, attempt: str) -> None:
        """Ends the checks that a dead process ran in an attempt's folder."""
        folder = self.of(attempt)
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name.startswith("check-"):
                end_inside(os.path.join(folder, name))
                remove_place(os.path.join(folder, name))

    def remove(self, attempt: str) -> None:
        """Removes the folder of an attempt."""
        folder = self.of(attempt)
        try:
            os.rename(folder, _passing(folder))
        except FileNotFoundError:
            return
        except OSError as error:
            raise os_error(error, "removal of the folder of an attempt") from None
        try:
            remove_tree(_passing(folder))
        except OSError as error:
            raise os_error(error, "removal of the folder of an attempt") from None

    def dead(self) -> list[str]:
        """Gives the attempts whose process is dead."""
        found = []
        try:
            listed = os.listdir(self.folder)
        except OSError:
            return []
        for name in listed:
            path = os.path.join(self.folder, name)
            _, passing, by = name.rpartition(_BY)
            if passing:
                if holder.is_dead(unquote(by)):
                    _drop(path)
                continue
            who, attempt = _holder(path)
            if not attempt:
                # killed right after the folder was made, or about to write its name
                if _age(path) > _UNNAMED_SECONDS:
                    _drop(path)
            elif holder.is_dead(who):
                found.append(attempt)
        return found


def clear(store: Store, places: Places, actor: str, held: Collection[str] = ()) -> list[str]:
    """Ends what dead workers left: processes of agents and checks, workspaces and folders; gives the attempts.

    What a workspace held is archived first. Attempts that are `held` still have their claims, and are left to whoever
    takes them over.
    """
    done = []
    sweep_jobs(store)
    for attempt in places.dead():
        if attempt in held:
            continue
        with places.alone(attempt) as mine:
            if mine and places.is_left(attempt) and _clear(store, places, attempt, actor):
                done.append(attempt)
    return done


def _clear(store: Store, places: Places, attempt: str, actor: str) -> bool:
    lanes.abandon(store, attempt)
    sweep(attempt)
    end_inside(places.of(attempt))
    try:
        drop(store, attempt, actor, keep=True)
        places.remove(attempt)
    except RopewalkError:
        return False  # another worker is at it
    return True


def _passing(folder: str) -> str:
    """Gives the name of a folder while this process makes or removes it; if it dies then, any other removes it."""
    return f"{folder}{_BY}{quote(holder.mine(), safe='')}"


def _holder(folder: str) -> tuple[str, str]:
    """Gives (process, attempt) that a folder says it belongs to; empty where it does not."""
    try:
        with open(os.path.join(folder, _HOLDER), encoding="ascii", errors="replace") as file:
            who, _, attempt = file.read().partition("\n")
    except OSError:
        return "", ""
    return who, attempt


def drop(store: Store, attempt: str, actor: str, *, keep: bool) -> None:
    """Deletes the workspace of an attempt, if it is there; with `keep` what it holds is archived."""
    ws = state.find(store, attempt)
    if ws is None:
        return
    with state.held(store, attempt):
        removal.delete(store, state.need(store, attempt), actor, force=True, spent=not keep)


def _age(path: str) -> float:
    try:
        return clock.now() - os.stat(path).st_mtime
    except OSError:
        return 0.0


def _drop(path: str) -> None:
    try:
        remove_tree(path)
    except OSError:
        pass
