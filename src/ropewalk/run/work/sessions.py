"""Sessions of regions: the next task of a region goes on in the session of the one before, which knows its way there.

A session is the home of an agent's program, with what the program keeps in it. Only what landed is gone on with, and
only as long as the context that the gateway measured is not too large; else the next task starts anew.
"""

from __future__ import annotations

import os
from hashlib import sha256

import msgspec

from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.run.turn import Before
from ropewalk.workspace.files import remove_tree

CONTEXT = 60_000
"""Is how many tokens a session's last request may have held for it to be gone on with."""

_DAYS = 7
_FILE, _HOME = "session.json", "home"


class _Kept(msgspec.Struct, frozen=True):
    session: str
    region: str
    program: str
    context: int


class Sessions:
    """Keeps sessions in a folder of this host; several workers use it at once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def take(self, region: str, program: str, into: str) -> Before | None:
        """Moves a region's session into a new folder and gives it; None where there is none. No two take the same."""
        place = self._place(region, program)
        if not region or not os.path.isdir(place):
            return None
        try:
            os.rename(place, into)
            with open(os.path.join(into, _FILE), "rb") as file:
                found = msgspec.json.decode(file.read(), type=_Kept)
        except (OSError, *UNREADABLE):
            return None
        return Before(into, found.session)

    def keep(self, region: str, program: str, before: Before, context: int, window: int = 0) -> bool:
        """Keeps a session for the next task of its region; says whether it did.

        One whose context is not known, or too large, or more than half of what its model bears (0: not known), is not.
        """
        most = min(CONTEXT, window // 2) if window else CONTEXT
        home = os.path.join(before.folder, _HOME)
        if not region or not 0 < context <= most or not os.path.isdir(home):
            return False
        place = self._place(region, program)
        part = f"{place}.{os.urandom(4).hex()}"
        try:
            os.makedirs(part, mode=0o700)
            with open(os.path.join(part, _FILE), "wb") as file:
                file.write(msgspec.json.encode(_Kept(before.session, region, program, context)))
            os.rename(home, os.path.join(part, _HOME))
            os.rename(part, place)
        except OSError:
            remove_tree(part)
            return False  # another's is there already, or the disk is full: the next task starts anew
        return True

    def drop(self, above: str) -> int:
        """Removes the sessions of the regions whose names begin so, and those of long ago; gives how many."""
        done = 0
        long_ago = clock.now() - _DAYS * 86_400
        try:
            listed = os.listdir(self.folder)
        except OSError:
            return 0
        for name in listed:
            place = os.path.join(self.folder, name)
            try:
                with open(os.path.join(place, _FILE), "rb") as file:
                    found = msgspec.json.decode(file.read(), type=_Kept)
                is_old = os.stat(place).st_mtime < long_ago
            except (OSError, *UNREADABLE):
                continue  # it is being made, or taken
            if is_old or found.region.startswith(above):
                remove_tree(place)
                done += 1
        return done

    def _place(self, region: str, program: str) -> str:
        return os.path.join(self.folder, sha256(f"{region}\0{program}".encode()).hexdigest()[:24])
