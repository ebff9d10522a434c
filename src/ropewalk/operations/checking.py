"""The cage of checks: whoever wrote a tree, and the command that judges it, is held by it as an agent is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ropewalk.core.errors import InvalidError
from ropewalk.operations.context import Context

if TYPE_CHECKING:
    from ropewalk.lane.cage.checks import CagedChecks
    from ropewalk.lane.cage.room import Level


def caged(ctx: Context, otherwise: Level = "none") -> CagedChecks | None:
    """Gives the cage that the settings name, else one of the level of who wrote what is checked; None for none.

    `E_CAGE_UNAVAILABLE` where it can't be had here, or does not hold: nobody gets less without asking for it.
    """
    from ropewalk.lane.cage import levels, selftest
    from ropewalk.lane.cage import room as rooms

    named, network = (str(ctx.settings[f"check.{name}"].value or "") for name in ("cage", "network"))
    if named and named not in levels.LEVELS:
        raise InvalidError(f"there is no cage {named!r} for checks", hint="full, files or none", cage=named)
    if network not in ("", "none", "open"):
        raise InvalidError(f"checks have no network {network!r}", hint="none or open", network=network)
    level: Level = next((one for one in levels.LEVELS if one == named), otherwise)
    if level == "none":
        return None
    from ropewalk.lane.cage.checks import CagedChecks

    made = CagedChecks(level, "open" if network == "open" else "none")
    selftest.ensure(level, os.path.join(ctx.data_home, "ropewalk", "cage"), rooms.UID if os.geteuid() == 0 else None)
    return made


def of_task(ctx: Context) -> CagedChecks | None:
    """Gives the cage for a task's own check on a tree that was handed in: a full one, where no less is named."""
    from ropewalk.lane.cage import levels

    named = str(ctx.settings["cage"].value or "")
    return caged(ctx, next((one for one in levels.LEVELS if one == named), "full"))


def of_workspace(ctx: Context, path: str) -> CagedChecks | None:
    """Gives the cage for a check of what is in a workspace: that of the lanes that worked in it, none without any."""
    from ropewalk.lane import journal
    from ropewalk.lane.cage import levels

    held = journal.levels_at(ctx.store, path)
    return caged(ctx, next((level for level in levels.LEVELS if level in held), "none"))
