"""Progress: how far an attempt has come, in its folder, so that another process goes on with it where this one died."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import os_error
from ropewalk.run.limits import Spent
from ropewalk.run.turn import Before

_FILE = "progress.json"


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what has to be known of an attempt besides its claim, its workspace and its lanes; written before each lane.

    `key` is that of its land. `turn` is the number of the turn whose lane is started, `cut` how often that turn was
    begun anew, `text` and `report` are what its agent is told, `before` is what it goes on from, and `tree` what was in
    the workspace then. `merits`, `conflicts` and `replies` count what turns were spent on; `seconds`, `usage`
    and `spent` are sums of the turns before.
    """

    attempt: str
    harness: str
    key: str
    turn: int
    text: str
    tree: str
    cut: int = 0
    report: dict[str, Any] | None = None
    before: Before | None = None
    merits: int = 1
    conflicts: int = 0
    replies: int = 0
    seconds: float = 0.0
    usage: dict[str, int] = {}
    spent: Spent = Spent()


def write(folder: str, progress: Progress) -> None:
    """Puts an attempt's progress into its folder, whole or not at all."""
    path = os.path.join(folder, _FILE)
    try:
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.encode(progress))
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise os_error(error, "noting how far an attempt is") from None


def read(folder: str) -> Progress | None:
    """Gives the progress of the attempt whose folder it is; None for one that had started no agent."""
    try:
        with open(os.path.join(folder, _FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=Progress)
    except (OSError, *UNREADABLE):
        return None
