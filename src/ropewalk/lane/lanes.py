"""A lane from its wish to its result: cage, gateway, journal and supervision put together."""

from __future__ import annotations

import fcntl
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import (
    BusyError,
    InvalidError,
    LoginError,
    LoginUncagedError,
    ProviderError,
    RopewalkError,
    os_error,
)
from ropewalk.gateway import endpoints, host, ledger, logins, renewal
from ropewalk.gateway.budget import Cap
from ropewalk.gateway.prices import NOTHING
from ropewalk.gateway.settings import Lane as Admitted
from ropewalk.gateway.settings import Tape, Upstream
from ropewalk.lane import door, journal, supervisor, versions
from ropewalk.lane.adapter import Adapter, Event, McpServer
from ropewalk.lane.cage import give, levels, selftest, watch
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import Level, Network, Room
from ropewalk.lane.cage.watch import Watch
from ropewalk.lane.door import Who
from ropewalk.lane.journal import Ingredients, Lane, Record, Result
from ropewalk.lane.order import Order
from ropewalk.lane.processes import started, sweep
from ropewalk.lane.programs import registry
from ropewalk.lane.programs.plain import Command
from ropewalk.lane.supervisor import KEPT, LaneResult, Supervised
from ropewalk.lane.waits import FINAL, Limits, State, Waits
from ropewalk.store import identity
from ropewalk.store.store import Store

if TYPE_CHECKING:
    from ropewalk.lane.door_server import Door

_FINISH_TRIES = 5
_STOP, _STOP_SECONDS = "stop", 20.0
_REVIVE_SECONDS = 1.0


class Wish(NamedTuple):
    """Is what is wanted of a lane.

    `folder` gets its files, `workspace` is its tree and `repo` the name that the tree has inside the cage. `upstreams`
    are the user's endpoints, of which `named` are the ones to use (none: all that fit). `base` is the tree it starts
    from, `gateway` the gateway's folder. `files` are put into its home; `home_of` says what they are called inside.
    `door` has the tools for lanes; `region` and `target` are its task's. `tape` is the cassette that its traffic is
    recorded in, or played from. `account` is the run that the gateway counts it under (without one its own), `budget`
    what that run may spend, `caps` what the user lets days and providers cost. `watch` is the user's checkout.
    `aside` is what it is told behind its prompt, and what its result does not count as made from.
    """

    id: str
    agent: str
    adapter: Adapter
    prompt: str
    workspace: str
    repo: str
    folder: str
    gateway: str
    search: str
    caller: Mapping[str, str]
    run: str = ""
    task: str = ""
    attempt: int = 1
    level: Level = "full"
    network: Network = "gateway"
    model: str = ""
    effort: str = ""
    upstreams: Mapping[str, Upstream] = {}
    named: Sequence[str] = ()
    session: str | None = None
    servers: Sequence[McpServer] = ()
    extra: Mapping[str, str] = {}
    limits: Limits = Limits()
    waits: Waits = Waits()
    script: Any = None
    files: Mapping[str, bytes] = {}
    base: str = ""
    schema: str = ""
    check: str = ""
    environment: str = ""
    sample: int = 0
    door: Door | None = None
    region: str = ""
    target: str = "main"
    tape: Tape | None = None
    account: str = ""
    budget: Cap | None = None
    caps: Mapping[str, Cap] | None = None
    watch: Watch | None = None
    aside: str = ""

    @property
    def is_played(self) -> bool:
        """Says whether its answers come from a cassette, and from nowhere else."""
        return self.tape is not None and self.tape.mode == "replay"

    def endpoints(self) -> list[str]:
        """Gives the endpoints that it may use, in order; none for one that a cassette answers."""
        return (
            []
            if self.is_played
            else endpoints.fitting(self.upstreams, self.adapter.wires, self.named, self.adapter.name)
        )


def _told(wish: Wish) -> str:
    return f"{wish.prompt.rstrip()}\n\n{wish.aside.rstrip()}\n" if wish.aside.strip() else wish.prompt


def home_of(level: Level, folder: str) -> str:
    """Gives the path of a lane's home as the lane sees it."""
    return rooms.HOME if level == "full" else os.path.join(folder, "home")


class Outcome(NamedTuple):
    """Is what became of a lane: its id, the supervisor's account and the journal's result."""

    id: str
    lane: LaneResult
    result: Result


def key(wish: Wish) -> tuple[str, Ingredients]:
    """Gives the key of a wish's result and what went into it."""
    fit, adapter = wish.endpoints(), wish.adapter
    own = "" if adapter.name == "command" else versions.installed(adapter, wish.search)
    what = Ingredients(
        adapter.name, "/".join(adapter.tested), own, wish.model, wish.upstreams[fit[0]].url if fit else "",
        wish.effort, wish.prompt, wish.base, wish.level, wish.network, schema=wish.schema, check=wish.check,
        environment=wish.environment,
        tools=(*(one.name for one in wish.servers), *(wish.door.names if wish.door else ())), sample=wish.sample,
        options=(repr(wish.limits.turns), msgspec.json.encode(wish.script).decode() if wish.script is not None else ""),
        cassette=f"{wish.tape.mode} {wish.tape.path}" if wish.tape is not None else "",
    )  # fmt: skip
    return journal.key(what), what


Busy = Callable[[BusyError], bool]
_T = TypeVar("_T")


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what whoever adopts a lane has to know of it; it is in the lane's folder.

    `uid` is who the lane runs as where that is another, `is_free` says that it reaches no model. `window` is where the
    user's checkout was recorded, for a lane that could write there.
    """

    harness: str
    limits: Limits
    waits: Waits
    level: Level
    gateway: str = ""
    uid: int | None = None
    is_free: bool = False
    window: str = ""


class Running(NamedTuple):
    """Is a lane that was started, or adopted: what follows it, and what has to be known at its end."""

    lane: str
    workspace: str
    kept: Kept
    supervised: Supervised
    door: Door | None = None


def run(
    store: Store,
    wish: Wish,
    *,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[Event], None] = lambda event: None,
    meanwhile: Callable[[], None] = lambda: None,
    busy: Busy = lambda error: False,
) -> Outcome:
    """Runs a lane to its end and gives what became of it; none of its processes is left when this returns.

    `busy` hears that another process holds a lock which the journal needs, waits, and says whether to try again.

    Raises `E_HARNESS`, `E_CAGE_UNAVAILABLE`, `E_LOGIN_UNCAGED`, `E_LOGIN` and `E_PROVIDER` before anything is started,
    and `E_ADAPTER_MISMATCH` when the program refuses how it is started.
    """
    running = start(store, wish, tell, busy)
    with alone(wish.folder):
        return follow(store, running, stop=stop, meanwhile=meanwhile, busy=busy)


def start(
    store: Store, wish: Wish, tell: Callable[[Event], None] = lambda event: None, busy: Busy = lambda error: False
) -> Running:
    """Starts a lane and gives it; whoever does not follow it to its end leaves it to be adopted."""
    levels.choose(wish.level)
    uid = rooms.UID if wish.level != "none" and os.geteuid() == 0 else None
    if wish.level != "none":
        selftest.ensure(wish.level, os.path.join(os.path.dirname(wish.gateway), "cage"), uid)
    hashed, what = key(wish)
    fit = _usable(wish)
    proxied = bool(fit or (wish.is_played and wish.adapter.wires))
    if not proxied and wish.adapter.wires and wish.level != "none" and wish.adapter.name != "command":
        raise LoginUncagedError(
            f"no endpoint for {wish.adapter.name} is known, and its own login does not go into a cage",
            hint=_way_in(wish.adapter.name), harness=wish.adapter.name, wires=list(wish.adapter.wires),
        )  # fmt: skip
    session = wish.session
    record = Record(
        wish.id, hashed, wish.run, wish.task, wish.attempt, wish.agent, what, wish.folder, wish.workspace, clock.now(),
        round(clock.monotonic(), 3), clock.boot_id(), session=session,
    )  # fmt: skip
    _patiently(busy, lambda: journal.begin(store, record))
    token, port = "", 0
    kept = Kept(wish.adapter.name, wish.limits, wish.waits, wish.level, wish.gateway if proxied else "", uid,
                not wish.adapter.wires)  # fmt: skip
    try:
        if wish.watch is not None and wish.level != "full" and uid is None:
            kept = msgspec.structs.replace(kept, window=wish.watch.enter(wish.id, wish.level))
        if proxied:
            supervisor.put_file(wish.folder, KEPT, msgspec.json.encode(kept))  # before the gateway knows of it
            port = host.ensure(wish.gateway).port
            admitted = Admitted(wish.id, wish.account or wish.run, wish.task, wish.adapter.name, tuple(fit),
                                wish.limits.requests,
                                {name: tuple(paths) for name, paths in wish.adapter.volatile.items()}, wish.tape,
                                _caps(wish))  # fmt: skip
            ups = {name: wish.upstreams[name] for name in fit}
            token = host.admit(wish.gateway, admitted, ups, level=wish.level, caps=wish.caps)
        order = Order(
            wish.id, wish.agent, wish.adapter, _told(wish), wish.workspace, wish.folder, wish.level, wish.search,
            wish.caller, _room(store, wish, bool(token), uid) if wish.level != "none" else None, wish.model,
            wish.effort, session, "" if session else str(uuid.uuid4()), wish.servers, kept.gateway, token, port,
            wish.extra, wish.limits, wish.waits, wish.script, wish.files, identity.names(store.layout, wish.agent),
            bool(fit) and wish.upstreams[fit[0]].login is not None, endpoints.window(wish.upstreams, fit),
        )  # fmt: skip
        if wish.door is not None and door.is_reachable(order):
            who = Who(wish.id, wish.agent, wish.folder, wish.run, wish.task, wish.region, wish.target)
            given = wish.door.admit(who, wish.level)
            wish.door.check(given)
            order = door.arranged(order, given)
        supervised = Supervised(order, tell)
        supervised.start(msgspec.json.encode(kept))
        pid = supervised.pid
        _patiently(busy, lambda: journal.set_process(store, wish.id, pid, started(pid), clock.boot_id()))
    except RopewalkError as error:
        supervisor.end(wish.folder)
        _finish(store, wish.id, wish.workspace, kept, _Told("failed", f"{error.code} {error.message}"))
        if wish.door is not None:
            wish.door.dismiss(wish.id)
        raise
    return Running(wish.id, wish.workspace, kept, supervised, wish.door)


def adopt(
    store: Store, lane: str, tell: Callable[[Event], None] = lambda event: None, entrance: Door | None = None
) -> Running:
    """Goes on with a lane whose supervisor is gone: no line that it printed is lost, none is told twice (G4).

    A lane that had a door gets this one. Raises `E_INVALID` for one that ended, and for one whose folder is gone, which
    is noted as `dead`.
    """
    found = journal.need(store, lane)
    if found.result is not None:
        raise InvalidError(f"the lane {lane!r} has ended: {found.result.state}", lane=lane)
    return _again(store, found, tell, entrance)


def _again(store: Store, found: Lane, tell: Callable[[Event], None], entrance: Door | None) -> Running:
    lane, folder = found.record.lane, found.record.folder
    kept = kept_of(folder)
    if kept is None:
        kept = Kept(found.record.ingredients.harness, Limits(), Waits(), found.record.ingredients.cage)
        if not supervisor.is_alive(folder):
            _finish(store, lane, found.record.workspace, kept, _Told("dead", "nothing of it is there"))
            raise InvalidError(f"the lane {lane!r} was never started, or its files are gone", lane=lane)
    order = Order(
        lane, found.record.agent, registry.reading(kept.harness), "", found.record.workspace, folder, kept.level, "",
        {}, gateway=kept.gateway, limits=kept.limits, waits=kept.waits,
    )  # fmt: skip
    supervised = Supervised(order, tell)
    supervised.adopt()
    if entrance is not None:
        entrance.resume(folder, kept.level)
    return Running(lane, found.record.workspace, kept, supervised, entrance)


def go_on(
    store: Store,
    lane: str,
    *,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[Event], None] = lambda event: None,
    meanwhile: Callable[[], None] = lambda: None,
    busy: Busy = lambda error: False,
    entrance: Door | None = None,
) -> Outcome | None:
    """Follows a lane of a dead supervisor to its end, or reads how it ended; None when nothing of it was started.

    Lines that were told are not told again. Whoever attends to it meanwhile is waited for.
    """
    folder = journal.need(store, lane).record.folder
    while True:
        with alone(folder) as mine:
            if mine:
                return _go_on(store, lane, stop, tell, meanwhile, busy, entrance)
        if stop():
            _ask_to_stop(folder)
        time.sleep(0.05)


def _go_on(
    store: Store, lane: str, stop: Callable[[], bool], tell: Callable[[Event], None], meanwhile: Callable[[], None],
    busy: Busy, entrance: Door | None,
) -> Outcome | None:  # fmt: skip
    found = journal.need(store, lane)
    record = found.record
    if supervisor.is_unborn(record.folder):
        kept = kept_of(record.folder) or Kept(record.ingredients.harness, Limits(), Waits(), record.ingredients.cage)
        _finish(store, lane, record.workspace, kept, _Told("dead", "it was never started"), busy)
        return None
    running = _again(store, found, tell, entrance)
    pid = running.supervised.pid
    if found.result is None and not record.pid and pid:
        _patiently(busy, lambda: journal.set_process(store, lane, pid, started(pid), clock.boot_id()))
    done = follow(store, running, stop=stop, meanwhile=meanwhile, busy=busy)
    if found.result is None:
        return done
    # how it ended was written before, when it was also known who ended it
    return done._replace(lane=done.lane._replace(state=found.result.state, reason=found.result.reason))


def follow(
    store: Store,
    running: Running,
    *,
    stop: Callable[[], bool] = lambda: False,
    meanwhile: Callable[[], None] = lambda: None,
    busy: Busy = lambda error: False,
) -> Outcome:
    """Follows a lane to its end and writes its result; none of its processes is left when this returns."""
    supervised = running.supervised
    told: State = "running"

    revived = clock.monotonic()

    def between() -> None:
        nonlocal told, revived
        if running.kept.gateway and clock.monotonic() - revived > _REVIVE_SECONDS:
            revived = clock.monotonic()
            host.revive(running.kept.gateway)
        now = supervised.stands.state
        if now != told and now not in FINAL and now != "preparing":
            told = now
            try:
                journal.set_state(store, running.lane, now)
            except BusyError:
                pass  # the next change of its state is told
        meanwhile()

    def is_to_stop() -> bool:
        return stop() or os.path.exists(asked)

    asked = os.path.join(supervised.folder, _STOP)
    lane: LaneResult | None = None
    why = _Told("failed", "it could not be followed")
    try:
        lane = supervised.wait(is_to_stop, meanwhile=between)
    except RopewalkError as error:
        why = _Told("failed", f"{error.code} {error.message}")
        raise
    finally:
        if running.door is not None:
            running.door.dismiss(running.lane)
        if lane is None:
            supervisor.end(supervised.folder)
            _finish(store, running.lane, running.workspace, running.kept, why)
    ended = _Told(lane.state, lane.reason, lane)
    result = _finish(store, running.lane, running.workspace, running.kept, ended, busy)
    if result.state == "escaped":
        lane = lane._replace(state=result.state, reason=result.reason)
    return Outcome(running.lane, lane, result)


def stop(store: Store, lane: str) -> Result:
    """Ends a lane, whoever follows it, and gives its result; none of its processes is left when this returns."""
    folder = journal.need(store, lane).record.folder
    _ask_to_stop(folder)
    until = clock.monotonic() + _STOP_SECONDS
    while clock.monotonic() < until:
        found = journal.need(store, lane)
        if found.result is not None:
            return found.result
        with alone(folder) as mine:
            if mine:
                return follow(store, adopt(store, lane)).result
        time.sleep(0.05)
    supervisor.end(folder)  # whoever follows it does not answer
    kept = kept_of(folder) or Kept(found.record.ingredients.harness, Limits(), Waits(), "none")
    return _finish(store, lane, found.record.workspace, kept, _Told("cancelled", "it was stopped"))


def _ask_to_stop(folder: str) -> None:
    if not folder:
        return
    try:
        with open(os.path.join(folder, _STOP), "wb"):
            pass
    except OSError:
        pass  # its files are gone, so that nothing of it is followed


@contextmanager
def alone(folder: str) -> Iterator[bool]:
    """Says whether nobody else attends to a lane; nobody else will while this lasts."""
    if not folder:
        yield True  # no process of ours does it: a person, or another program
        return
    try:
        fd = os.open(os.path.join(folder, "attended"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        yield True  # its files are gone, and nothing is left to attend to
        return
    except OSError as error:
        raise os_error(error, "look at a lane") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def abandon(store: Store, above: str, why: str = "its supervisor died") -> list[str]:
    """Ends the lanes whose ids lie below one and that nobody follows, with all in them; gives those that had no end."""
    found = [one for one in journal.lanes(store, only_open=True) if one.record.lane.startswith(f"{above}/")]
    for one in found:
        folder = one.record.folder
        supervisor.end(folder)
        kept = kept_of(folder) or Kept(one.record.ingredients.harness, Limits(), Waits(), "none")
        _finish(store, one.record.lane, one.record.workspace, kept, _Told("dead", why))
    return [one.record.lane for one in found]


def kept_of(folder: str) -> Kept | None:
    """Gives what a lane's folder says for whoever adopts it, None for nothing."""
    try:
        with open(os.path.join(folder, KEPT), "rb") as file:
            return msgspec.json.decode(file.read(), type=Kept)
    except (OSError, *UNREADABLE):
        return None


class _Told(NamedTuple):
    state: State
    reason: str
    lane: LaneResult | None = None


def _patiently(busy: Busy, step: Callable[[], _T]) -> _T:
    """Does a step of the journal, again as long as whoever waits says so while another process holds its lock."""
    while True:
        try:
            return step()
        except BusyError as error:
            if not busy(error):
                raise


def _finish(
    store: Store, lane: str, workspace: str, kept: Kept, told: _Told, busy: Busy = lambda error: False
) -> Result:
    """Ends what may be left of a lane, takes its workspace back, lets it out of the gateway, and writes its result."""
    if told.lane is None or told.lane.exit is None:
        sweep(lane)  # its shim is gone, so that nobody else would
    if kept.uid is not None and os.path.isdir(workspace):
        give.take_back(workspace, kept.uid)
    result = _result(lane, kept, _looked(lane, kept, told))
    if kept.gateway:
        host.dismiss(kept.gateway, lane=lane)
    for _ in range(_FINISH_TRIES):
        try:
            return journal.finish(store, lane, result)
        except BusyError:
            continue  # a result that is not written is a lane that is lost
    return _patiently(busy, lambda: journal.finish(store, lane, result))


def _usable(wish: Wish) -> list[str]:
    """Gives the endpoints of a wish that can be used now; where none is left because of logins, what is with the first.

    A login whose token is over is renewed here, so that one that can't be is told before anything is started (G11).
    """
    found, wrong = [], None
    for name in wish.endpoints():
        login = wish.upstreams[name].login
        try:
            if login is not None:
                renewal.ensure(login, logins.marks(wish.gateway))
            found.append(name)
        except (LoginError, ProviderError) as error:
            wrong = wrong or error
    if wrong is not None and not found:
        raise wrong
    return found


def _way_in(harness: str) -> str:
    own = f', or auth = "login" with program = "{harness}"' if harness in logins.PROGRAMS else ""
    return f"`rw setup` asks for one; or name it in endpoints.toml, with a key{own}: see docs/gateway.md"


def _caps(wish: Wish) -> dict[str, Cap]:
    """Gives what the gateway holds a lane to beside its number of requests: its limits, and what its run may spend."""
    dollars, tokens = wish.limits.dollars, wish.limits.tokens
    own = {} if dollars is None and tokens is None else {f"lane:{wish.id}": Cap(dollars, tokens)}
    return own if wish.budget is None else {**own, f"run:{wish.account or wish.run}": wish.budget}


def _looked(lane: str, kept: Kept, told: _Told) -> _Told:
    """Gives how a lane ended, which is `escaped` where the user's checkout is not as it was before."""
    why = watch.why(kept.window, lane) if kept.window else ""
    return told._replace(state="escaped", reason=f"{why} (the lane was {told.state})") if why else told


def _room(store: Store, wish: Wish, bridged: bool, uid: int | None) -> Room:
    """Gives the room of a caged lane."""
    # of a command of the user's own only the files that it names are shown, not what is around them
    own = isinstance(wish.adapter, Command)
    tools = rooms.tool_folders("" if own else wish.adapter.program, wish.search)
    if uid is not None:
        # a folder that is closed to the lane's user is of no use to it, and would hide what is open below it
        tools = [path for path in tools if os.stat(path).st_mode & 0o005 == 0o005]
    if isinstance(wish.adapter, Command):
        tools += _open_files(wish.adapter.files(wish.search), uid)
    if wish.adapter.program == sys.executable:
        import ropewalk

        tools += [os.path.realpath(sys.prefix), os.path.dirname(os.path.dirname(os.path.abspath(ropewalk.__file__)))]
    return Room(
        wish.workspace, wish.repo, os.path.join(wish.folder, "home"), os.path.join(wish.folder, "tmp"),
        os.path.join(store.layout.repo, "objects"), tuple(dict.fromkeys(tools)),
        os.path.join(wish.gateway, "door") if bridged else "", network=wish.network, uid=uid,
    )  # fmt: skip


def _open_files(paths: Sequence[str], uid: int | None) -> list[str]:
    """Gives files that a command names; `E_INVALID` for one that the lane's user may not read."""
    for path in paths:
        if uid is not None and not os.stat(path).st_mode & 0o004:
            raise InvalidError(
                f"agents run as another user here, who may not read {path}", hint=f"chmod o+r {path}", path=path
            )
    return list(paths)


def _result(lane: str, kept: Kept, told: _Told) -> Result:
    """Gives the journal's result: what the gateway counted goes before what the program says of itself."""
    followed = told.lane
    seen = ledger.read_activity(os.path.join(kept.gateway, "activity"), lane) if kept.gateway else None
    account = followed.ending if followed is not None else None
    tokens = seen.tokens if seen is not None and seen.requests else account.tokens if account is not None else None
    cost = seen.cost if seen is not None else NOTHING
    dollars = cost.dollars if kept.gateway else 0.0 if kept.is_free else None
    return Result(
        told.state, told.reason, account.text if account else "", round(followed.seconds, 3) if followed else 0.0,
        tokens, dollars, cost.mark if kept.gateway else "" if kept.is_free else "*",
        account.turns if account else 0, followed.tools if followed else 0, kept.level,
        followed.exit.code if followed is not None and followed.exit is not None else None,
        account.session if account else None, account.denied if account else 0,
        requests=seen.requests if seen is not None else 0,
        context=seen.context if seen is not None else 0,
    )  # fmt: skip
