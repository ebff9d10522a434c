"""Reach: which routes of the user's table lead to nothing here, because a program or an endpoint is missing."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping

from ropewalk.core.errors import RopewalkError
from ropewalk.gateway.endpoints import fitting
from ropewalk.gateway.settings import Upstream
from ropewalk.lane import routing
from ropewalk.lane.doctor import Check, Status
from ropewalk.lane.programs import registry


def look(path: str, upstreams: Mapping[str, Upstream], search: str, only: Collection[str] = ()) -> list[Check]:
    """Gives a check for each program that routes lead to in vain, with those routes.

    `path` is the user's table, `only` the programs to look at. What he wrote himself is an advisory; ropewalk's own
    routes need not all be to be had.
    """
    try:
        table = routing.read(path)
    except RopewalkError as error:
        return [Check("routes", "fail", error.message, error.hint or "")]
    ours, found = routing.leading(routing.read()), []
    for harness, routes in routing.leading(table).items():
        if only and harness not in only:
            continue
        why, hint = _missing(harness, upstreams, search)
        if why:
            status: Status = "unavailable" if set(routes) <= set(ours.get(harness, ())) else "advisory"
            found.append(Check(f"routes to {harness}", status, f"{why}: {', '.join(routes)}", hint, {"routes": routes}))
    return found


def _missing(harness: str, upstreams: Mapping[str, Upstream], search: str) -> tuple[str, str]:
    """Gives why lanes of a harness can't be started, and what mends it; empty words when they can."""
    try:
        adapter = registry.get(harness)
    except RopewalkError as error:
        return error.message, error.hint or ""
    if shutil.which(adapter.program, path=search) is None:
        return f"{adapter.program} is not installed", adapter.install
    if adapter.wires and not fitting(upstreams, adapter.wires, harness=adapter.name):
        return f"no endpoint speaks what {harness} does", "`rw setup` asks for one"
    return "", ""
