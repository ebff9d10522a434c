"""One turn of an agent: a lane in a workspace that is there already, told a prompt, and after it perhaps another.

A further turn goes on with the session of the one before, where the agent's program keeps one: it gets the home that
the turn before had. When the session is not to be found it starts anew, and the prompt says all of it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ropewalk.core.errors import BudgetError, CassetteMissError, RopewalkError, os_error
from ropewalk.gateway import endpoints
from ropewalk.gateway.budget import Cap
from ropewalk.gateway.settings import Tape, Upstream
from ropewalk.gateway.tokens import Tokens
from ropewalk.lane import journal, lanes
from ropewalk.lane.adapter import Adapter, Event
from ropewalk.lane.cage.room import Level, Network
from ropewalk.lane.cage.watch import Watch
from ropewalk.lane.lanes import Busy, Outcome, Wish
from ropewalk.lane.waits import Limits, Waits
from ropewalk.store.store import Store
from ropewalk.workspace.check import Cage

if TYPE_CHECKING:
    from ropewalk.lane.door_server import Door

REPORT = "conflict.json"
_LEAST_NAME = 6


class Ways(NamedTuple):
    """Is how all lanes of a run are made: cage, endpoints, gateway, what they are told besides, and their tools.

    `tape` is the cassette that the run's traffic is recorded in, or played from. `budget` is what the run may spend,
    counted under the name `account` (without one the run's own); `caps` are the user's, of days and of providers.
    `watch` is the user's checkout, for lanes that could write there, `checks` the cage of checks.
    """

    level: Level = "none"
    network: Network = "gateway"
    gateway: str = ""
    upstreams: Mapping[str, Upstream] = {}
    named: Sequence[str] = ()
    extra: Mapping[str, str] = {}
    model: str = ""
    effort: str = ""
    limits: Limits = Limits()
    waits: Waits = Waits()
    door: Door | None = None
    tape: Tape | None = None
    account: str = ""
    budget: Cap | None = None
    caps: Mapping[str, Cap] | None = None
    watch: Watch | None = None
    checks: Cage | None = None

    @property
    def window(self) -> int:
        """Gives how many tokens of context all of its endpoints bear, 0 where that is not known."""
        return endpoints.window(self.upstreams, self.named or tuple(self.upstreams))


class Turn(NamedTuple):
    """Is one turn: the lane's id, its agent, its folder, the workspace and its tree, and what it is told.

    `report` is a conflict that it has to settle, `before` the turn that it goes on from. `limits` are its own, those of
    all lanes where there are none; its seconds stand by themselves. `aside` is told behind the prompt.
    """

    id: str
    agent: str
    folder: str
    workspace: str
    base: str
    prompt: str
    run: str
    task: str
    number: int = 1
    seconds: float = 3600.0
    script: Any = None
    report: dict[str, Any] | None = None
    extra: Mapping[str, str] = {}
    before: Before | None = None
    model: str = ""
    effort: str = ""
    schema: str = ""
    check: str = ""
    environment: str = ""
    sample: int = 0
    region: str = ""
    target: str = "main"
    limits: Limits | None = None
    aside: str = ""


class Before(NamedTuple):
    """Is the turn before: its folder, and the session that its program named."""

    folder: str
    session: str


def wish(store: Store, adapter: Adapter, caller: Mapping[str, str], ways: Ways, turn: Turn) -> Wish:
    """Gives the lane that a turn is."""
    extra = {**ways.extra, **turn.extra}
    files: dict[str, bytes] = {}
    if turn.report is not None:
        files[REPORT] = msgspec.json.encode(turn.report)
        extra["ROPEWALK_CONFLICT"] = f"{lanes.home_of(ways.level, turn.folder)}/{REPORT}"
    if ways.level == "full":
        extra.pop("ROPEWALK_STORE", None)  # the store is not in the cage
    return Wish(
        turn.id, turn.agent, adapter, turn.prompt, turn.workspace, repository(store), turn.folder, ways.gateway,
        caller.get("PATH") or os.defpath, caller, turn.run, turn.task, turn.number, ways.level, ways.network,
        turn.model or ways.model, turn.effort or ways.effort, ways.upstreams, ways.named,
        turn.before.session if turn.before is not None else None, (), extra,
        (turn.limits or ways.limits)._replace(seconds=turn.seconds), ways.waits, turn.script, files, turn.base,
        turn.schema, turn.check, turn.environment, turn.sample, ways.door, turn.region, turn.target,
        _taped(ways, turn),
        ways.account, ways.budget, ways.caps, ways.watch,
        turn.aside,
    )  # fmt: skip


def _taped(ways: Ways, turn: Turn) -> Tape | None:
    """Gives the cassette of a turn, in which it has a name that is the same in every run."""
    if ways.tape is None:
        return None
    task = turn.task.removeprefix(f"{ways.account}.") if ways.account else turn.task
    attempt, agent = turn.id.rpartition("/")[0], turn.agent
    own = {attempt, ways.account, agent, agent.partition("/")[2], *((turn.task,) if task != turn.task else ())}
    names = tuple(sorted(name for name in own if len(name) >= _LEAST_NAME and name != task))
    return msgspec.structs.replace(ways.tape, lane=f"{task}/{turn.number}", names=names)


def take(
    store: Store,
    adapter: Adapter,
    caller: Mapping[str, str],
    ways: Ways,
    turn: Turn,
    *,
    stop: Callable[[], bool],
    tell: Callable[[Event], None] = lambda event: None,
    meanwhile: Callable[[], None] = lambda: None,
    busy: Busy = lambda error: False,
) -> Outcome:
    """Takes a turn to its end and gives what became of its lane; it raises what starting a lane does."""
    hand_on(turn)
    wanted = wish(store, adapter, caller, ways, turn)
    done = lanes.run(store, wanted, stop=stop, tell=tell, meanwhile=meanwhile, busy=busy)
    if wanted.session is None or done.lane.ending.reason != "session_lost":
        return done
    again = wish(store, adapter, caller, ways, _anew(turn))
    return lanes.run(store, again, stop=stop, tell=tell, meanwhile=meanwhile, busy=busy)


def _anew(turn: Turn) -> Turn:
    """Gives a turn whose session was lost as one that begins a new one."""
    return turn._replace(id=f"{turn.id}-anew", folder=f"{turn.folder}-anew", before=None)


def go_on(
    store: Store,
    adapter: Adapter,
    caller: Mapping[str, str],
    ways: Ways,
    turn: Turn,
    *,
    stop: Callable[[], bool],
    tell: Callable[[Event], None] = lambda event: None,
    meanwhile: Callable[[], None] = lambda: None,
    busy: Busy = lambda error: False,
) -> Outcome | None:
    """Takes a turn that a dead process began to its end; None where nothing of it was started."""
    fresh = _anew(turn)
    there = next((one for one in (fresh, turn) if journal.find(store, one.id) is not None), None)
    if there is None:
        return None
    done = lanes.go_on(store, there.id, stop=stop, tell=tell, meanwhile=meanwhile, busy=busy, entrance=ways.door)
    lost = done is not None and done.lane.ending.reason == "session_lost"
    if there is fresh or turn.before is None or not lost:
        return done
    again = wish(store, adapter, caller, ways, fresh)
    return lanes.run(store, again, stop=stop, tell=tell, meanwhile=meanwhile, busy=busy)


def hand_on(turn: Turn) -> None:
    """Moves the home of the turn before to the next one, with the program's sessions in it."""
    if turn.before is None:
        return
    try:
        os.makedirs(turn.folder, mode=0o700, exist_ok=True)
        os.rename(os.path.join(turn.before.folder, "home"), os.path.join(turn.folder, "home"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise os_error(error, "handing a session on") from None


def refusal(done: Outcome) -> RopewalkError | None:
    """Gives the error of a turn that the gateway refused, whatever its program made of it."""
    reason = done.lane.reason
    if reason.startswith("cassette_miss"):
        return CassetteMissError(reason.removeprefix("cassette_miss: "), lane=done.id)
    if reason.startswith("budget: "):
        return BudgetError(f"the budget of {reason.removeprefix('budget: ')} is spent", lane=done.id)
    return None


def how(done: Outcome) -> str:
    """Gives how a turn's lane ended, in one word: done, died, timeout, stopped, or its state."""
    state, reason = done.lane.state, done.lane.reason
    if state == "failed" and reason.startswith("timeout"):
        return "timeout"
    return {"cancelled": "stopped", "dead": "died", "failed": "done"}.get(state, state)


def is_full(done: Outcome) -> bool:
    """Says whether a turn ended because its session holds more than its model bears."""
    return not done.lane.ending.ok and done.lane.ending.reason == "context_full"


def code(done: Outcome) -> int:
    """Gives a turn's exit code; one that says itself that it failed has none of 0."""
    said = done.lane.exit.code if done.lane.exit is not None else -9
    return said if done.lane.ending.ok or said else 1


def words(done: Outcome) -> str:
    """Gives what a turn that failed says of it."""
    ending, told = done.lane.ending, done.lane.stderr.splitlines()
    return ending.error or ending.text or (told[-1] if told else "no word on standard error")


def counted(tokens: Tokens | None) -> dict[str, int]:
    """Gives tokens by kind, those that are not 0."""
    return {} if tokens is None else {f"{k}_tokens": n for k, n in msgspec.to_builtins(tokens).items() if n}


def repository(store: Store) -> str:
    """Gives the name of the store's repository as a folder may have it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", store.format.name).strip("-.")[:64] or "repository"
