"""Checks in a cage: models write their commands, and these run with no network, no secret, and a tmp of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ropewalk.lane.cage import bubble, give, levels
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import Room

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|APIKEY|API_KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_ROOMS_OWN = ("HOME", "TMPDIR", "PATH", "PWD", "SHELL", "USER", "LOGNAME")


class CagedChecks:
    """Is the full cage around checks of one store.

    `tools` are further folders that they may read, such as the one that a policy's links lead to.
    """

    mark = "cage full, network none"

    def __init__(self, objects: str, tools: Sequence[str] = ()) -> None:
        """Takes the store's folder of objects; `E_CAGE_UNAVAILABLE` where there is no full cage."""
        levels.choose("full")
        self._objects, self._tools = objects, tuple(tools)
        self._uid = rooms.UID if os.geteuid() == 0 else None
        if self._uid is not None:
            give.open_objects(objects)

    def wrap(self, argv: Sequence[str], env: Mapping[str, str], place: str) -> tuple[list[str], dict[str, str]]:
        """Gives the command line that runs a check in the cage; its environment is part of that."""
        home, tmp = os.path.join(place, "home"), os.path.join(place, "tmp")
        for folder in (home, tmp):
            os.mkdir(folder, 0o700)
        search = env.get("PATH", os.defpath)
        tools = [*rooms.tool_folders(argv[0], search), *self._tools]
        room = Room(os.path.join(place, "tree"), "tree", home, tmp, self._objects, tuple(dict.fromkeys(tools)),
                    network="none", uid=self._uid)  # fmt: skip
        given = {
            name: value
            for name, value in env.items()
            if name not in _ROOMS_OWN and not _SECRET.search(name) and not _LOGIN.search(value)
        }
        inside = {**given, **rooms.environment(room, "full", env, search), **rooms.identity("check/ropewalk")}
        began = ["/bin/sh", "-c", ': > "$HOME/.began"; exec "$@"', "sh", *argv]
        line = bubble.argv(room, began, inside)
        if self._uid is not None:
            for folder in (room.workspace, home, tmp):
                give.give(folder, self._uid)
        return line, {}

    def began(self, place: str) -> bool:
        """Says whether the check itself was started."""
        return os.path.lexists(os.path.join(place, "home", ".began"))
