"""The doctor: what of this machine lanes can be had with, harness by harness, cage by cage, offline or with one turn.

Nothing is spent without `live`. What was asked for by name and can't be judged has failed: silence is no health.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ropewalk.core.errors import LoginError, RopewalkError
from ropewalk.core.process import ChildTimeout, run
from ropewalk.gateway import host, logins
from ropewalk.gateway.endpoints import fitting
from ropewalk.gateway.settings import Lane, Login, Upstream
from ropewalk.lane import resources, watchers
from ropewalk.lane.adapter import Adapter
from ropewalk.lane.cage import levels
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import Level, Room
from ropewalk.lane.order import Order
from ropewalk.lane.programs import registry
from ropewalk.lane.supervisor import LaneResult, Supervised
from ropewalk.lane.waits import Limits, Waits

Status = Literal["ok", "advisory", "unavailable", "unreachable", "fail"]
"""Is a verdict: good; good with a warning; not there, and not asked for; a provider that can't be reached; bad."""

_ORDER: tuple[Status, ...] = ("ok", "unavailable", "advisory", "unreachable", "fail")
VERSION_SECONDS = 30.0
TURN = Limits(seconds=180.0, turns=3, requests=8)
_WAITS = Waits(first_byte=60.0, between=30.0, tool=60.0, neither=90.0, grace=5.0)
_PROMPT = "Answer with the single word ready. Use no tool."
_AT_ONCE = 4
_SPARE = 1 << 30
"""Is how much memory is left to the machine, in bytes, when lanes are counted."""

_LEAST_DISK = 2 << 30
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one thing that was looked at: its verdict, in words, with what mends it and its facts."""

    what: str
    status: Status
    words: str
    hint: str = ""
    facts: dict[str, Any] = {}


class Harness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the verdict on one harness; `lanes` is how many of its lanes the free memory bears."""

    name: str
    status: Status
    path: str = ""
    version: str = ""
    lanes: int = 0
    checks: tuple[Check, ...] = ()


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is all that was found; `status` is the worst of what counts, `ok` whether lanes can be started as asked for."""

    status: Status
    ok: bool
    live: bool
    harnesses: tuple[Harness, ...]
    machine: tuple[Check, ...]


class Live(NamedTuple):
    """Is how a real turn is taken: by which endpoints, with which models by harness, at which level of cage.

    `gateway` is a folder for the gateway's own; one is started there where none runs. Without endpoints that a harness
    can use it reaches its provider by itself, which only an open network lets it.
    """

    gateway: str
    upstreams: Mapping[str, Upstream]
    models: Mapping[str, str] = {}
    level: Level = "full"


def examine(
    wanted: Sequence[str], *, search: str, caller: Mapping[str, str], folder: str, level: Level = "full",
    live: Live | None = None, routes: Sequence[Check] = (),
) -> Report:  # fmt: skip
    """Gives how this machine stands for lanes; some programs are looked at at once, since most take a second to start.

    `wanted` are the harnesses asked for by name; without any, all that ropewalk knows are looked at, and one that is
    not installed is no failure. `search` is the PATH of lanes, `folder` where they will be; `routes` is what
    was found of the user's. Raises nothing for what it finds: that is in the report.
    """
    from concurrent.futures import ThreadPoolExecutor

    memory = _memory()
    named = list(dict.fromkeys(wanted)) or list(registry.PROGRAMS)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = tuple(pool.map(lambda name: _harness(name, bool(wanted), search, caller, memory, live), named))
    machine = (*_cages(level), _disk(folder), memory, *_watchers(folder), *_none_there(found, bool(wanted)), *routes)
    statuses = [*(one.status for one in found), *(one.status for one in machine)]
    worst = max(statuses, key=_ORDER.index)
    return Report(worst, worst not in ("fail", "unreachable"), live is not None, found, machine)


# a harness


def _harness(
    name: str, wanted: bool, search: str, caller: Mapping[str, str], memory: Check, live: Live | None
) -> Harness:
    missing: Status = "fail" if wanted else "unavailable"
    try:
        adapter = registry.get(name)
    except RopewalkError as error:
        return Harness(name, "fail", checks=(Check("harness", "fail", error.message, error.hint or ""),))
    path = shutil.which(adapter.program, path=search)
    if path is None:
        words = f"{adapter.program} is not installed"
        return Harness(name, missing, checks=(Check("installed", missing, words, adapter.install),))
    checks = [Check("installed", "ok", path)]
    node = _node(adapter, path, search)
    checks += [node] if node is not None else []
    started, version = _started(adapter, path, search, caller)
    checks.append(started)
    if version:
        checks.append(_tested(adapter, version))
    if live is not None and all(one.status in ("ok", "advisory") for one in checks):
        checks.append(_turn(adapter, search, caller, live))
    elif live is not None:
        checks.append(Check("turn", "fail", "no turn was taken, since it can't be started", adapter.install))
    free = int(memory.facts.get("available", 0)) - _SPARE
    lanes = max(0, free // (max(1, adapter.memory) << 20))
    worst = max((one.status for one in checks), key=_ORDER.index)
    return Harness(name, worst, path, version, lanes, tuple(checks))


def _node(adapter: Adapter, path: str, search: str) -> Check | None:
    """Gives whether there is the node that a program needs; None for one that runs by itself."""
    try:
        with open(path, "rb") as file:
            first = file.readline(200)
    except OSError as error:
        return Check("node", "fail", f"{path} can't be read: {error.strerror}", adapter.install)
    if not first.startswith(b"#!") or b"node" not in first:
        return None
    least = adapter.node or "20"
    there = shutil.which("node", path=search)
    hint = f"npm install -g node@{least.split('.')[0]}, or put its folder first on the PATH"
    if there is None:
        return Check("node", "fail", f"{adapter.program} needs node {least} or newer, and there is none", hint)
    version, why = _printed([there, "--version"], search, {})
    if not version or why:
        return Check("node", "fail", f"node does not start: {why or 'it names no version'}", hint, {"path": there})
    found = version.strip().lstrip("v")
    good = _numbers(found) >= _numbers(least)
    words = f"node {found}" if good else f"{adapter.program} needs node {least} or newer, {found} is there"
    return Check("node", "ok" if good else "fail", words, "" if good else hint, {"path": there, "version": found})


def _started(adapter: Adapter, path: str, search: str, caller: Mapping[str, str]) -> tuple[Check, str]:
    """Gives whether a program starts, and the version it names."""
    printed, why = _printed([path, "--version"], search, caller)
    if why and adapter.tested == ("", ""):
        # any command may be a harness, and need not know the flag
        return Check("starts", "advisory", f"it was not tried: --version gives {why}"), ""
    if why:
        return Check("starts", "fail", f"{adapter.program} --version: {why}", adapter.install), ""
    version = adapter.version(printed)
    if not version and adapter.tested != ("", ""):
        return Check("starts", "fail", f"{adapter.program} --version names no version", adapter.install), ""
    return Check("starts", "ok", f"version {version}" if version else "it starts"), version


def _printed(words: Sequence[str], search: str, caller: Mapping[str, str]) -> tuple[str, str]:
    """Gives what a program printed in a home of its own, and why it failed."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-doctor-", ignore_cleanup_errors=True) as home:
        room = Room(home, "", home, home, "", network="none")
        env = rooms.environment(room, "none", caller, search)
        try:
            done = run(words, env=env, cwd=home, timeout=VERSION_SECONDS)
        except ChildTimeout as error:
            return "", f"it did not end within {error.seconds:g} s"
        except OSError as error:
            return "", error.strerror or str(error)
    said = (done.out + b"\n" + done.err).decode("utf-8", "replace").strip()
    return said, "" if done.code == 0 else f"it ended with {done.code}: {said[-300:]}"


def _tested(adapter: Adapter, version: str) -> Check:
    low, high = adapter.tested
    if not low or _numbers(low) <= _numbers(version) <= _numbers(high):
        return Check("version", "ok", f"{version} was tested" if low else version)
    tested = low if low == high else f"{low} to {high}"
    older = "older" if _numbers(version) < _numbers(low) else "newer"
    return Check("version", "advisory", f"{version} is {older} than what was tested ({tested})", adapter.install)


def _numbers(version: str) -> tuple[int, ...]:
    found = _VERSION.search(version)
    return tuple(int(part or 0) for part in found.groups()) if found else (int(version), 0, 0) if version else ()


# one real turn


def _turn(adapter: Adapter, search: str, caller: Mapping[str, str], live: Live) -> Check:
    """Takes one turn and gives how it went; it costs what a prompt of one line costs."""
    usable = fitting(live.upstreams, adapter.wires, harness=adapter.name)
    if adapter.wires and not usable:
        return Check("turn", "fail", f"no endpoint speaks what {adapter.name} does", "`rw setup` asks for one")
    folder = tempfile.mkdtemp(prefix="ropewalk-doctor-")
    token = ""
    try:
        os.chmod(folder, 0o711)
        port = 0
        name = re.sub(r"[^a-z0-9]+", "-", adapter.name.lower()).strip("-")
        lane = f"doctor/{name}/{os.getpid()}"
        if usable:
            port = host.ensure(live.gateway).port
            volatile = {wire: tuple(paths) for wire, paths in adapter.volatile.items()}
            made = Lane(lane, "doctor", name, adapter.name, tuple(usable), TURN.requests, volatile)
            token = host.admit(live.gateway, made, live.upstreams)
        order = _order(adapter, folder, lane, token, port, search, caller, live)
        order = order._replace(login=bool(usable) and live.upstreams[usable[0]].login is not None)
        supervised = Supervised(order)
        supervised.start()
        return _judged(adapter, supervised.wait())
    except RopewalkError as error:
        return Check("turn", "unreachable" if error.code == "E_PROVIDER" else "fail", error.message, error.hint or "")
    finally:
        if token:
            host.dismiss(live.gateway, token)
        shutil.rmtree(folder, ignore_errors=True)


def _order(
    adapter: Adapter, folder: str, lane: str, token: str, port: int, search: str, caller: Mapping[str, str], live: Live
) -> Order:
    work, objects = os.path.join(folder, "work"), os.path.join(folder, "objects")
    for path in (work, objects):
        os.mkdir(path, mode=0o755)
    uid = rooms.UID if os.geteuid() == 0 and live.level == "full" else None
    if uid is not None:
        os.chown(work, uid, uid)
    base = os.path.join(folder, "lane")
    room = Room(
        work, "doctor", os.path.join(base, "home"), os.path.join(base, "tmp"), objects,
        tools=rooms.tool_folders(adapter.program, search),
        gateway=os.path.join(live.gateway, "door") if token else "", network="gateway" if token else "open", uid=uid,
    )  # fmt: skip
    return Order(
        lane, f"{adapter.family}/doctor", adapter, _PROMPT, work, base, live.level, search, caller, room,
        live.models.get(adapter.name, ""), gateway=live.gateway if token else "", token=token, port=port, limits=TURN,
        waits=_WAITS,
    )  # fmt: skip


def _judged(adapter: Adapter, result: LaneResult) -> Check:
    ending = result.ending
    total = ending.tokens.total if ending.tokens is not None else None
    facts = {"state": result.state, "seconds": round(result.seconds, 1), "tokens": total, "level": result.level}
    if result.state == "done" and ending.text:
        return Check("turn", "ok", f"answered in {result.seconds:.1f} s", facts=facts)
    if result.state == "done":
        return Check("turn", "fail", "it ended well and said nothing", facts=facts)
    words = f"{result.state}: {result.reason}{f' ({ending.error[:300]})' if ending.error else ''}"
    away = ending.reason in ("api_error", "rate_limited") or result.reason.startswith("model:")
    hint = "`rw probe URL` says what is wrong with an endpoint" if away else adapter.install
    if ending.reason == "authentication":
        hint = "the endpoint refuses the key: see endpoints.toml"
    return Check("turn", "unreachable" if away else "fail", words, hint, facts)


# logins


def accounts(known: Mapping[str, Login], upstreams: Mapping[str, Upstream], marks: str) -> list[Check]:
    """Gives how logins stand, by what their files say: which are good is said, none is chosen, and no provider asked.

    One that no endpoint names fails nothing.
    """
    found = []
    for name, login in known.items():
        users = [one for one, up in upstreams.items() if up.login is not None and up.login.file == login.file]
        used = f"used by {', '.join(users)}" if users else "no endpoint names it"
        facts: dict[str, Any] = {"program": login.program, "folder": os.path.dirname(login.file), "endpoints": users}
        try:
            held = logins.read(login)
            logins.check(login, held, marks)
        except LoginError as error:
            is_there = os.path.exists(login.file)
            status: Status = "fail" if users else "advisory" if is_there else "unavailable"
            found.append(Check(f"login {name}", status, f"{error.message}; {used}", error.hint, facts))
            continue
        how = "its token is renewed at its next use" if held.is_over() else "its token is good"
        if stat.S_IMODE(os.stat(login.file).st_mode) & 0o077:
            hint = f"chmod 600 {login.file}"
            found.append(Check(f"login {name}", "advisory", f"others may read {login.file}; {used}", hint, facts))
        else:
            facts["until"] = held.until
            found.append(Check(f"login {name}", "ok", f"logged in, {how}; {used}", facts=facts))
    return found


# the machine


def _cages(level: Level) -> list[Check]:
    """Gives the levels; only the wanted one counts as a failure."""
    found = []
    for one, why in levels.available().items():
        if not why:
            found.append(Check(f"cage {one}", "ok", levels.named(one)))
            continue
        status: Status = "fail" if one == level else "unavailable"
        hint = ""
        try:
            levels.choose(one)
        except RopewalkError as error:
            hint = error.hint or ""
        found.append(Check(f"cage {one}", status, why, hint))
    return found


def _disk(folder: str) -> Check:
    found = resources.free_disk(folder)
    if found is None:
        return Check("disk", "fail", f"{folder} can't be looked at")
    place, free = found
    good = free >= _LEAST_DISK
    return Check("disk", "ok" if good else "advisory", f"{free / (1 << 30):.1f} GB free",
                 "" if good else "a lane's home takes up to 240 MB", {"free": free, "folder": place})  # fmt: skip


def _memory() -> Check:
    """Gives the memory that is to be had."""
    found = resources.memory()
    if found is None:
        return Check("memory", "fail", "what memory there is can't be told")
    good = found.available >= 2 * _SPARE
    return Check("memory", "ok" if good else "advisory", f"{found.available / (1 << 30):.1f} GB available",
                 "" if good else "few lanes fit into it at once", found._asdict())  # fmt: skip


def _watchers(folder: str) -> list[Check]:
    """Gives the programs that lanes would wake by each file they write."""
    try:
        found = watchers.watching([folder])
    except OSError:
        return []
    names = ", ".join(f"{one.name} (process {one.pid})" for one in found)
    hint = "tell it to leave that folder alone, or end it before a run"
    return [Check("watchers", "advisory", f"{names} watches {folder}, where lanes are", hint)] if found else []


def _none_there(found: Sequence[Harness], wanted: bool) -> list[Check]:
    if wanted or any(one.status in ("ok", "advisory") for one in found):
        return []
    return [Check("harnesses", "advisory", "no agent program can be used here", "install one: see the hints above")]
