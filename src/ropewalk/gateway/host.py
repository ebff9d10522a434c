"""Hosting a gateway: starting it where none runs, and letting lanes in and out of its settings."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import CageUnavailableError, ProviderError, os_error
from ropewalk.gateway import process, settings
from ropewalk.gateway.budget import DAY, Cap
from ropewalk.gateway.ledger import file_name
from ropewalk.gateway.process import Address
from ropewalk.gateway.settings import Lane, Settings, Upstream

_START_SECONDS = 30.0
_STARTED: list[tuple[str, subprocess.Popen[bytes]]] = []
"""Are the gateways that this process started, by folder; those that ended are taken leave of at the next start."""

_guard = threading.Lock()


def ensure(folder: str) -> Address:
    """Gives where the gateway of a folder listens, and starts one if none does; it outlives its starter."""
    found = process.read_address(folder)
    if found is not None:
        return found
    child = _spawn(folder)
    until = clock.monotonic() + _START_SECONDS
    while clock.monotonic() < until:
        found = process.read_address(folder)
        if found is not None:
            return found
        if child.poll() not in (None, process.TAKEN):
            break
        time.sleep(0.02)
    raise ProviderError("the gateway did not start", hint=f"see {folder}/gateway.log", folder=folder)


def revive(folder: str) -> bool:
    """Starts the gateway of a folder anew where it died, and waits for nothing; says whether it did (G5)."""
    if process.is_running(folder):
        return False
    with _guard:
        if any(of == folder and one.poll() is None for of, one in _STARTED):
            return False  # it is about to listen
        _spawn(folder)
    return True


def _spawn(folder: str) -> subprocess.Popen[bytes]:
    _STARTED[:] = [one for one in _STARTED if one[1].poll() is None]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, "gateway.log"), "ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "ropewalk.gateway.process", folder], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, env=_env(), cwd="/",
            )  # fmt: skip
    except OSError as error:
        raise os_error(error, "start of the gateway") from None
    _STARTED.append((folder, child))
    return child


def _env() -> dict[str, str]:
    import ropewalk
    from ropewalk.core.process import clean_env

    return clean_env({"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(ropewalk.__file__)))})


@contextmanager
def changing(folder: str) -> Iterator[Callable[[Settings], None]]:
    """Gives a way to put settings in place, while nobody else changes them."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd = os.open(os.path.join(folder, "settings.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise os_error(error, "change of the gateway's settings") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield lambda made: settings.write(folder, made)
    finally:
        os.close(fd)


def admit(
    folder: str, lane: Lane, upstreams: Mapping[str, Upstream] | None = None, *, level: str = "full",
    caps: Mapping[str, Cap] | None = None,
) -> str:  # fmt: skip
    """Lets a lane in and gives its token; what upstreams it needs are put beside those that are there.

    `caps` are the user's own, of days and of providers, which hold for all lanes from now on; None leaves those before.

    Raises `E_CAGE_UNAVAILABLE` where a cassette is played and the lane's cage is below `full`: recorded answers name
    the paths of a full cage, and elsewhere a lane would write into another's tree (G1).
    """
    token = "rwl_" + secrets.token_urlsafe(24)
    with suppress(OSError):  # what one of that name did before, in another store, is not its own
        os.unlink(os.path.join(folder, "activity", file_name(lane.lane)))
    with changing(folder) as put:
        now = settings.read(folder)
        if lane.is_played and level != "full":
            raise CageUnavailableError(
                f"a cassette is played in a full cage alone, and this one is {level!r}",
                hint="ask for the level full, or play no cassette", level=level,
            )  # fmt: skip
        mine = {name: one for name, one in (upstreams or {}).items() if now.swapped.get(name) != one}
        put(
            msgspec.structs.replace(
                now, upstreams={**now.upstreams, **mine}, lanes={**now.lanes, token: lane},
                swapped={name: one for name, one in now.swapped.items() if name not in mine},
                caps=now.caps if caps is None else {k: v for k, v in now.caps.items() if not _is_users(k)} | dict(caps),
            )
        )  # fmt: skip
    return token


def _is_users(name: str) -> bool:
    return name == DAY or name.startswith("provider:")


def dismiss(folder: str, token: str = "", *, lane: str = "") -> None:
    """Lets a lane out, by its token or its id: the token is no one's from now on."""
    with changing(folder) as put:
        now = settings.read(folder)
        left = {t: one for t, one in now.lanes.items() if t != token and (not lane or one.lane != lane)}
        if len(left) < len(now.lanes):
            put(msgspec.structs.replace(now, lanes=left))


def swap(folder: str, name: str, upstream: Upstream) -> None:
    """Puts another upstream in the place of a name, for the next request of every lane, those to come among them."""
    with changing(folder) as put:
        now = settings.read(folder)
        first = now.swapped.get(name, now.upstreams.get(name))
        swapped = {n: one for n, one in now.swapped.items() if n != name}
        if first is not None and first != upstream:
            swapped[name] = first
        put(msgspec.structs.replace(now, upstreams={**now.upstreams, name: upstream}, swapped=swapped))


def cap(folder: str, caps: Mapping[str, Cap]) -> None:
    """Sets what may be spent under names: `run:ID`, `task:RUN/ID`, `provider:NAME`, `lane:ID`, `day`."""
    with changing(folder) as put:
        now = settings.read(folder)
        put(msgspec.structs.replace(now, caps={**now.caps, **caps}))
