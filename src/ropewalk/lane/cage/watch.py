"""Watching a user's checkout while lanes run that could write there: one record for all that run at once.

A window is a folder with the record that was made before the first of its lanes, and with what was found since. Lanes
that start while others of the same process run share their window; it ends with the last of them. Each lane's end is a
comparison, and lanes that end together share one. Nobody can see which process changed a file, so a change counts
against every lane that ran when it was found and had begun before: all of them are named with it.

A lane is let out by whoever sees its end, which may be another process than let it in.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from ropewalk.core import clock, durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import NotFoundError, RopewalkError, os_error
from ropewalk.lane.cage import tripwire
from ropewalk.lane.cage.room import Level
from ropewalk.lane.cage.tripwire import Difference, Restored, Snapshot
from ropewalk.workspace.files import remove_tree
from ropewalk.workspace.trash import TERM

_COPIES, _LAST, _RECORD, _STATE, _LOCK, _ASIDE = "copies", "last", "record", "state.json", "lock", "aside"
_SHOWN = 10


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one lane of a window: the number of comparisons when it began, and of the one at its end (None: it runs)."""

    level: Level
    began: int
    ended: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """Is a difference, and the numbers of the comparisons that found it: the first, and the last in a row."""

    what: Difference
    round: int
    last: int


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what is known of a window: its lanes, and all that was found since its record, changed back or not.

    `at` is when the last comparison began, by the monotonic clock of the boot `boot`.
    """

    lanes: dict[str, Member] = {}
    seen: list[Seen] = []
    round: int = 0
    at: float = 0.0
    boot: str = ""


class Escape(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what changed in a checkout while a lane ran; `lanes` are all that may have done it, this one among them."""

    checkout: str
    window: str
    differences: list[Difference]
    lanes: list[str]

    def words(self) -> str:
        """Gives it as a sentence, with what runs as a program by itself first."""
        named = sorted(self.differences, key=lambda one: (not _is_armed(one), one.area, one.path))
        shown = ", ".join(f"{label(one)} ({one.how})" for one in named[:_SHOWN])
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        who = f"; {len(self.lanes) - 1} other lanes ran too" if len(self.lanes) > 1 else ""
        return f"while it ran {self.checkout} changed, by it or by you: {shown}{more}{who}"


class Watch:
    """Is a checkout that is watched for the lanes of this process; used by many threads.

    `home` is a folder of ours for records and copies; what lies below a path of `without` is not looked at.
    """

    def __init__(self, checkout: str, home: str, without: Sequence[str] = ()) -> None:
        self.checkout, self.home = checkout, home
        self._without = tuple(without)
        self._guard = threading.Lock()
        self._window = ""

    def enter(self, lane: str, level: Level) -> str:
        """Notes that a lane is about to start, and gives its window."""
        with self._guard:
            if not self._join(lane, level):
                self._window = self._open()
                self._join(lane, level)
            return self._window

    def _join(self, lane: str, level: Level) -> bool:
        """Lets a lane into the window that is open; says whether there is one in which another runs, or a new one."""
        if not self._window:
            return False
        try:
            with _held(self._window):
                state = _state(self._window)
                if state.lanes and all(one.ended is not None for one in state.lanes.values()):
                    return False
                lanes = {**state.lanes, lane: Member(level, state.round)}
                _put(self._window, _STATE, msgspec.json.encode(msgspec.structs.replace(state, lanes=lanes)))
                return True
        except FileNotFoundError:
            return False  # its last lane took it away
        except OSError as error:
            raise os_error(error, "watching a checkout") from None

    def _open(self) -> str:
        """Makes a record and gives its window; what is older than the trash's term goes."""
        try:
            os.makedirs(self.home, mode=0o700, exist_ok=True)
            last = _record(os.path.join(self.home, _LAST))
            made = tripwire.record(
                self.checkout, os.path.join(self.home, _COPIES), last=last, without=self._without
            )  # fmt: skip
            data = msgspec.msgpack.encode(made)
            window = os.path.join(self.home, f"window-{os.urandom(8).hex()}")
            os.mkdir(window, 0o700)
            _put(window, _RECORD, data)
            _put(window, _STATE, msgspec.json.encode(State()))
            _put(self.home, _LAST, data)
            self._tidy(made)
        except OSError as error:
            raise os_error(error, "watching a checkout") from None
        return window

    def _tidy(self, made: Snapshot) -> None:
        old = clock.now() - TERM
        for name in os.listdir(self.home):
            path = os.path.join(self.home, name)
            if name.startswith(("window-", _ASIDE)) and os.stat(path).st_mtime < old:
                remove_tree(path)
        used = {entry.id for place in made.places for entry in place.entries.values() if entry.kept == "copy"}
        for name in os.listdir(made.copies):
            path = os.path.join(made.copies, name)
            if name in used:
                os.utime(path)
            elif os.stat(path).st_mtime < old:
                os.unlink(path)


def leave(window: str, lane: str) -> Escape | None:
    """Lets a lane out once none of its processes is left, and gives what changed meanwhile; None for nothing.

    Asked again for the same lane it gives the same.
    """
    ended = clock.monotonic()
    try:
        with _held(window):
            state = _state(window)
            member = state.lanes.get(lane)
            was = _record(os.path.join(window, _RECORD))
            if member is None or was is None:
                return None
            if member.ended is None:
                if state.at < ended or state.boot != clock.boot_id():
                    state = _compared(state, was)
                member = msgspec.structs.replace(member, ended=state.round)
                state = msgspec.structs.replace(state, lanes={**state.lanes, lane: member})
                _put(window, _STATE, msgspec.json.encode(state))
            found = [one for one in state.seen if _may_be(member, one)]
            if not found:
                if not state.seen and all(one.ended is not None for one in state.lanes.values()):
                    remove_tree(window)
                return None
            others = [name for name, one in state.lanes.items() if any(_may_be(one, seen) for seen in found)]
            return Escape(was.folder, window, [one.what for one in found], sorted(others))
    except FileNotFoundError:
        return None  # the window is gone, and nothing was found in it
    except OSError as error:
        raise os_error(error, "comparing a checkout") from None


def why(window: str, lane: str) -> str:
    """Lets a lane out and gives why it is escaped, with the command that puts back what changed; empty if it is not."""
    try:
        found = leave(window, lane)
    except RopewalkError as error:
        return f"your checkout could not be compared: {error.message}"
    return "" if found is None else f"{found.words()}; `rw lane restore {lane}` puts it back"


def restore(escape: Escape, wanted: Sequence[str] = ()) -> Restored:
    """Puts back what changed while a lane ran, or only the named parts of it, as far as it is still changed.

    What stands there now is set aside first, in a folder that the answer names. `E_NOT_FOUND` when the record is gone.
    """
    was = _record(os.path.join(escape.window, _RECORD))
    if was is None:
        raise NotFoundError("the record of the checkout is gone", hint="records are kept for 14 days")
    told = {(one.area, one.root, one.path) for one in escape.differences}
    now = [one for one in tripwire.compare(was) if (one.area, one.root, one.path) in told]
    chosen = [one for one in now if not wanted or label(one) in wanted]
    if missing := sorted(set(wanted) - {label(one) for one in escape.differences}):
        raise NotFoundError(f"{missing[0]} did not change while that lane ran", paths=missing)
    aside = os.path.join(os.path.dirname(escape.window), f"{_ASIDE}-{os.urandom(8).hex()}")
    return tripwire.restore(was, chosen, aside)


def label(one: Difference) -> str:
    """Gives how a difference is called: a path of the checkout, `.git/…`, or a ref."""
    return f".git/{one.path}" if one.area == "git" else one.path


def _is_armed(one: Difference) -> bool:
    """Says whether a difference may make git run a program the next time that the user calls it."""
    return one.area == "git" and (one.path.startswith("hooks/") or one.path.startswith("config"))


def _may_be(lane: Member, seen: Seen) -> bool:
    """Says whether a lane may have made a difference: it ran then, and nothing that holds it makes that impossible."""
    ran = lane.began < seen.round and (lane.ended is None or seen.round <= lane.ended)
    return ran and (lane.level == "none" or seen.what.how == "mode")


def _compared(state: State, was: Snapshot) -> State:
    """Gives the state after a comparison; a file that was changed once more is a further difference."""
    at, number = clock.monotonic(), state.round + 1
    now = set(tripwire.compare(was))
    still = {one.what for one in state.seen if one.last == state.round and one.what in now}
    seen = [
        msgspec.structs.replace(one, last=number) if one.last == state.round and one.what in still else one
        for one in state.seen
    ]
    new = [Seen(one, number, number) for one in sorted(now - still, key=lambda one: (one.area, one.root, one.path))]
    return State(state.lanes, [*seen, *new], number, at, clock.boot_id())


@contextmanager
def _held(window: str) -> Iterator[None]:
    """Holds a window against all who look at it; FileNotFoundError when it is gone."""
    fd = os.open(window, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(window, _STATE)):
            raise FileNotFoundError(2, "the window is gone", window)
        yield
    finally:
        os.close(fd)


def _state(window: str) -> State:
    with open(os.path.join(window, _STATE), "rb") as file:
        return msgspec.json.decode(file.read(), type=State)


def _record(path: str) -> Snapshot | None:
    try:
        with open(path, "rb") as file:
            return msgspec.msgpack.decode(file.read(), type=Snapshot)
    except (OSError, *UNREADABLE):
        return None


def _put(folder: str, name: str, data: bytes) -> None:
    durable.put(os.path.join(folder, name), data)


def checkout_of(folders: Sequence[str]) -> str | None:
    """Gives the first of some folders that is in the work tree of a git repository: the top of that tree."""
    from ropewalk.core.process import ChildTimeout, git_env, git_program, run

    for folder in folders:
        try:
            done = run([git_program(), "rev-parse", "--show-toplevel"], env=git_env(), cwd=folder, timeout=60)
        except (ChildTimeout, RopewalkError, OSError):
            continue
        if done.code == 0 and done.text():
            return done.text()
    return None


def window_of(folder: str, lane: str) -> str:
    """Gives the window that a lane was let into, whose records are below a folder of ours; empty when it is gone."""
    base = os.path.join(folder, "tripwire")
    for above in _names(base):
        for name in _names(os.path.join(base, above)):
            window = os.path.join(base, above, name)
            try:
                if name.startswith("window-") and lane in _state(window).lanes:
                    return window
            except (OSError, *UNREADABLE):
                continue
    return ""


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def home(folder: str, checkout: str) -> str:
    """Gives where records of a checkout are, below a folder of ours."""
    from hashlib import sha256

    return os.path.join(folder, "tripwire", sha256(os.fsencode(checkout)).hexdigest()[:16])
