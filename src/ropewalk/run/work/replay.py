"""Replay: what the journal has of a task that did not change stands for its agent's work."""

from __future__ import annotations

import msgspec

from ropewalk.lane import journal, lanes
from ropewalk.lane.adapter import Adapter
from ropewalk.run import turn as turns
from ropewalk.run.turn import Turn
from ropewalk.run.work.options import Options
from ropewalk.store.store import Store
from ropewalk.workspace import capture, move, state


def bring(store: Store, options: Options, adapter: Adapter, one: Turn, workspace: str) -> tuple[str, str] | None:
    """Puts the result of a turn that was taken before, and whose change passed, into a workspace.

    Gives the lane that this is in the journal, and the one that it is taken from; None where there is no such result.
    """
    hashed, what = lanes.key(turns.wish(store, adapter, options.caller, options.ways, one))
    found = journal.replay(store, hashed)
    if found is None or found.result is None or not found.result.changeset:
        return None
    tree = store.objects.commit(found.result.changeset).tree
    with state.held(store, workspace):
        ws = state.need(store, workspace)
        store.objects.take_new()
        move.bring(store, ws, capture.capture(store, ws), tree, ws.base)
    lane = f"{one.id}-replayed"
    journal.begin(store, journal.cached(lane, hashed, what, found, ws.path, one.run))
    journal.finish(store, lane, msgspec.structs.replace(found.result, cached_from=found.record.lane))
    return lane, found.record.lane
