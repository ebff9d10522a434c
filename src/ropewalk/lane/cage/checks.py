"""Checks in a cage: models write their commands, and the trees that they run in, so that they are held as lanes are.

A check gets its tree, a home and a tmp of its own, the system's and the PATH's programs, and what a policy's links lead
to; no secret, nothing else of the user's, and no network unless it is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ropewalk.core.errors import CageUnavailableError, os_error
from ropewalk.lane.cage import bubble, give, landlock, levels
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import Level, Room

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|APIKEY|API_KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_ROOMS_OWN = ("HOME", "TMPDIR", "PATH", "PWD", "SHELL", "USER", "LOGNAME")
_BEGAN = ".began"

CheckNetwork = Literal["none", "open"]


class CagedChecks:
    """Is the cage around checks; one object serves all checks of a process, of whichever store."""

    def __init__(self, level: Level = "full", network: CheckNetwork = "none") -> None:
        """Takes a level and what of the network is inside; `E_CAGE_UNAVAILABLE` where the level is not to be had."""
        levels.choose(level)
        self.level, self.network = level, network
        self._uid = rooms.UID if os.geteuid() == 0 else None
        self._opened: set[str] = set()

    @property
    def mark(self) -> str:
        """Gives what tells a result from inside it from one without."""
        return f"cage {levels.named(self.level)}, network {self.network}"

    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], place: str, tools: Sequence[str] = ()
    ) -> tuple[list[str], dict[str, str]]:
        """Gives command line and environment that run a check inside; in a full cage the line has the environment."""
        try:
            return self._wrap(argv, env, place, tools)
        except OSError as error:
            raise os_error(error, "making a check's cage") from None

    def _wrap(
        self, argv: Sequence[str], env: Mapping[str, str], place: str, tools: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        tree, home, tmp = (os.path.join(place, name) for name in ("tree", "home", "tmp"))
        for folder in (home, tmp):
            os.mkdir(folder, 0o700)
        if self._uid is not None:
            os.chmod(place, 0o711)  # what is below it is the check's user's
        search = env.get("PATH", os.defpath)
        room = Room(tree, "tree", home, tmp, self._objects(tree), self._tools(argv[0], search, tools),
                    network=self.network, uid=self._uid)  # fmt: skip
        given = {
            name: value
            for name, value in env.items()
            if name not in _ROOMS_OWN and not _SECRET.search(name) and not _LOGIN.search(value)
        }
        inside = {**given, **rooms.environment(room, self.level, env, search), **rooms.identity("check/ropewalk")}
        began = ["/bin/sh", "-c", f': > "$HOME/{_BEGAN}"; exec "$@"', "sh", *argv]
        if self.level == "full":
            line, seen = bubble.argv(room, began, inside), {}
        else:
            self._check_reachable(tree)
            line, seen = landlock.argv(room, began), inside
        if self._uid is not None:
            for folder in (tree, home, tmp):
                give.give(folder, self._uid)
        return line, seen

    def began(self, place: str) -> bool:
        """Says whether the check itself was started."""
        return os.path.lexists(os.path.join(place, "home", _BEGAN))

    def _objects(self, tree: str) -> str:
        """Gives the store's folder of objects, which the tree's own repository borrows from."""
        with open(os.path.join(tree, ".git", "objects", "info", "alternates"), encoding="utf-8") as file:
            found = file.readline().rstrip("\n")
        if self._uid is not None and found not in self._opened:
            give.open_objects(found)
            self._opened.add(found)
        return found

    def _tools(self, program: str, search: str, more: Sequence[str]) -> tuple[str, ...]:
        """Gives the folders of programs; one that is closed to the check's user would hide what is open below it."""
        found = rooms.tool_folders(program, search)
        if self._uid is not None:
            found = [path for path in found if os.path.exists(path) and os.stat(path).st_mode & 0o005 == 0o005]
        return tuple(dict.fromkeys([*found, *(one for one in more if os.path.exists(one))]))

    def _check_reachable(self, tree: str) -> None:
        if self._uid is not None and not rooms.is_reachable(tree, self._uid):
            raise CageUnavailableError(
                f"at level files the check's user does not get to {tree}",
                hint="let all enter the folders above it (chmod o+x), or use the full cage, which mounts it",
                level="files", path=tree,
            )  # fmt: skip
