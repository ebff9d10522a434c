"""Attending to a lane that nobody waits for: a process of its own that follows it to its end, and can be replaced.

`python -m ropewalk.lane.attend STORE LANE` is started beside a lane that goes on in the background. It keeps the lane's
limits and takes snapshots of its workspace. Only one attends at a time, by a lock in the lane's folder; when it is
killed the lane goes on, and whoever looks at the lane next takes its place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from ropewalk.core.errors import RopewalkError, os_error
from ropewalk.lane import journal, lanes, supervisor
from ropewalk.lane.adapter import Event
from ropewalk.lane.journal import Lane, Result
from ropewalk.store.store import Store
from ropewalk.workspace import snapshot, state
from ropewalk.workspace.state import Workspace

SNAPSHOT_SECONDS = 60.0
_PAUSE = 0.1


def spawn(store: Store, lane: str) -> int:
    """Starts a process that attends to a lane, and gives its id; it outlives its starter."""
    import ropewalk
    from ropewalk.core.process import clean_env

    folder = journal.need(store, lane).record.folder
    env = clean_env({"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(ropewalk.__file__)))})
    try:
        with open(os.path.join(folder, "attend.log"), "ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "ropewalk.lane.attend", store.layout.root, lane], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, env=env, cwd="/",
            )  # fmt: skip
    except OSError as error:
        raise os_error(error, "start of what attends to a lane") from None
    pid, child.returncode = child.pid, 0  # nobody here waits for it
    return pid


def is_attended(folder: str) -> bool:
    """Says whether somebody attends to the lane of a folder."""
    with lanes.alone(folder) as mine:
        return not mine


def attend(
    store: Store,
    lane: str,
    *,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[Event], None] = lambda event: None,
) -> Result | None:
    """Follows a lane to its end and gives its result; None when another attends to it."""
    found = journal.need(store, lane)
    if found.result is not None:
        return found.result
    with lanes.alone(found.record.folder) as mine:
        if not mine:
            return None
        now = journal.need(store, lane)
        if now.result is not None:
            return now.result
        ws = workspace_of(store, found)
        keeping = snapshot.Interval(ws.name, found.record.agent, SNAPSHOT_SECONDS) if ws is not None else None

        def keep() -> None:
            try:
                if keeping is not None:
                    keeping.take(store)
            except RopewalkError:
                store.warnings.clear()  # the next one may go well; the lane goes on

        return lanes.follow(store, lanes.adopt(store, lane, tell), stop=stop, meanwhile=keep).result


def until_ended(store: Store, lane: str, *, stop: Callable[[], bool] = lambda: False) -> Result | None:
    """Waits for a lane's end, whoever attends to it, and gives its result; None when it was to be stopped before.

    The lane goes on then.
    """
    import time

    while not stop():
        found = journal.need(store, lane)
        if found.result is not None:
            return found.result
        if not is_attended(found.record.folder):
            spawn(store, lane)
        time.sleep(_PAUSE)
    return None


def renew(store: Store, found: Lane) -> Lane:
    """Gives a lane as it is now; one that ended unseen has its result written first."""
    if found.result is not None or not found.record.folder or supervisor.is_alive(found.record.folder):
        return found
    try:
        attend(store, found.record.lane)
    except RopewalkError:
        pass  # that it can't be read is its result
    return journal.need(store, found.record.lane)


def workspace_of(store: Store, lane: Lane) -> Workspace | None:
    """Gives the workspace of a lane, if it is still there."""
    return next((ws for ws in state.listed(store) if ws.path == lane.record.workspace), None)


def main(argv: list[str]) -> int:
    """Runs `python -m ropewalk.lane.attend STORE LANE`; gives 3 when another attends to the lane."""
    with Store(argv[0], lock_wait=60.0) as store:
        return 0 if attend(store, argv[1]) is not None else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
