"""Settings of a gateway: where traffic goes and with which keys, who may send it, and what may be spent.

They are one file, which only its user may read. Whoever changes it puts a new one in its place; the gateway sees that
with the next request, so that an upstream is swapped and a lane added in mid-run.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ropewalk.core import durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError, RopewalkError, os_error
from ropewalk.gateway.budget import Cap
from ropewalk.gateway.prices import Price
from ropewalk.gateway.tokens import Wire

FILE = "settings.json"
Auth = Literal["x-api-key", "bearer", "x-goog-api-key", "none"]
REQUESTS = 400
"""Is how many requests a lane may make at most, where nothing else is said."""


class Login(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is an agent program's own login: the file that it keeps its tokens in, and where they are renewed."""

    program: str
    file: str
    refresh_url: str = ""


class Upstream(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is where a model is reached.

    `wires` are the formats it speaks (none: all). `account` names whose slots and rate it shares, itself without one.
    `models` has the name that it knows a model by; `rewrites` are changes to requests that a strict server wants.
    With a `login` its key is that login's token of the moment.
    """

    url: str
    key: str = ""
    auth: Auth = "bearer"
    wires: tuple[Wire, ...] = ()
    account: str = ""
    slots: Annotated[int, Meta(ge=1, le=10_000)] = 16
    per_minute: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    models: dict[str, str] = {}
    headers: dict[str, str] = {}
    rewrites: tuple[str, ...] = ()
    price: Price | None = None
    window: int = 0
    login: Login | None = None


class Tape(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is a cassette: whether a lane's traffic is recorded in it, or played from it, and under which name.

    `path` is a folder or a file; `lane` is what the lane is called in it, which is the same in every run. `names` are
    words that each run draws anew, and that requests may hold.
    """

    mode: Literal["record", "replay"]
    path: str
    lane: str = ""
    names: tuple[str, ...] = ()


class Lane(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is who may send: the lane that a token stands for, and the upstreams that are tried for it, in order.

    `caps` are what may be spent under the names of its run, its task and itself.
    """

    lane: str
    run: str = ""
    task: str = ""
    harness: str = ""
    upstreams: tuple[str, ...] = ()
    requests: Annotated[int, Meta(ge=1, le=1_000_000)] = REQUESTS
    volatile: dict[str, tuple[str, ...]] = {}
    tape: Tape | None = None
    caps: dict[str, Cap] = {}

    @property
    def is_played(self) -> bool:
        """Says whether its answers come from a cassette, and from nowhere else."""
        return self.tape is not None and self.tape.mode == "replay"

    @property
    def recorded(self) -> str:
        """Gives the name of the lane in a cassette, which is the same in every run."""
        if self.tape is not None and self.tape.lane:
            return self.tape.lane
        return self.lane.removeprefix(f"{self.run}/") if self.run else self.lane


class Settings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is all of it; `lanes` by token. Waits are in seconds: for a hold, for the first byte, and between bytes.

    `swapped` has what stood in the place of upstreams that were swapped: a lane that comes with the same gets the new
    one, and one that comes with another has the user's own last word.
    """

    upstreams: dict[str, Upstream] = {}
    lanes: dict[str, Lane] = {}
    caps: dict[str, Cap] = {}
    prices: str = ""
    hold: Annotated[float, Meta(ge=0, le=300)] = 30.0
    first_byte: Annotated[float, Meta(gt=0, le=3600)] = 300.0
    between: Annotated[float, Meta(gt=0, le=3600)] = 180.0
    swapped: dict[str, Upstream] = {}

    def bounds(self) -> dict[str, Cap]:
        """Gives all that bounds what is spent: the user's caps, and those that lanes came with."""
        found: dict[str, Cap] = {}
        for lane in self.lanes.values():
            found |= lane.caps
        return {**found, **self.caps}


def read(folder: str) -> Settings:
    """Gives the settings of a gateway's folder; `E_INVALID` when they can't be read."""
    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=Settings)
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise os_error(error, "read of the gateway's settings") from None
    except UNREADABLE as error:
        raise InvalidError(f"the gateway's settings can't be read: {error}", file=FILE) from None


def write(folder: str, settings: Settings) -> None:
    """Puts settings in place, whole; only their user can read them."""
    path = os.path.join(folder, FILE)
    try:
        durable.put(path, msgspec.json.format(msgspec.json.encode(settings)), mode=0o600)
    except OSError as error:
        raise os_error(error, "write of the gateway's settings") from None


class Current:
    """Gives the settings as they are now, read again when their file was put in place anew."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._stamp: tuple[int, int, int] | None = None
        self._settings = Settings()
        self.bounds: dict[str, Cap] = {}

    def __call__(self) -> Settings:
        """Gives them; a file that is gone, or can't be read, leaves those before it."""
        try:
            found = os.stat(os.path.join(self._folder, FILE))
        except OSError:
            return self._settings
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._settings = read(self._folder)
                self.bounds = self._settings.bounds()
            except RopewalkError:
                pass
        return self._settings
