"""Managers: a model that answers prompts, driven by an agent program in a lane, or asked straight through the gateway.

An agent program works in a workspace of its own, which is thrown away with all that was written to it. Its session goes
on from one prompt to the next as long as it ends well; each prompt holds all that is needed, so that one that is lost
loses nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from ropewalk.core.errors import RopewalkError
from ropewalk.gateway import endpoints, host, ledger
from ropewalk.gateway.prices import NOTHING, Cost
from ropewalk.gateway.settings import Lane, Upstream
from ropewalk.gateway.tokens import Tokens, Wire
from ropewalk.lane.adapter import Adapter, Event
from ropewalk.lane.programs.plain import Command
from ropewalk.plan import providers
from ropewalk.run import turn as turns
from ropewalk.run.planner import client
from ropewalk.run.turn import Before, Turn, Ways
from ropewalk.store.store import Store
from ropewalk.workspace import checkout, removal, setup, state
from ropewalk.workspace.files import remove_tree

SECONDS = 900.0
"""Is how long one answer may take, where nothing else is said."""

_MOST = 32 << 20


class Answer(NamedTuple):
    """Is what a manager answered; `error` says why nothing that counts came, `stopped` that somebody ended it."""

    text: str
    error: str = ""
    stopped: bool = False


class Spent(NamedTuple):
    """Is what a manager used: prompts, tokens by the gateway's count, and their cost; None where nobody counted."""

    asks: int = 0
    tokens: Tokens | None = None
    cost: Cost = NOTHING


class Manager(Protocol):
    """Is a model that answers one prompt after the other; `name` says which, `provider` whose it is, if known."""

    name: str
    provider: str

    def ask(self, prompt: str, stop: Callable[[], bool] = lambda: False) -> Answer:
        """Gives the answer to a prompt; raises what keeps any from being asked."""
        ...

    def spent(self) -> Spent:
        """Gives what was used so far."""
        ...


class Lanes(NamedTuple):
    """Is how a manager's lanes are made: who, whose environment, in what cage, and where the files go.

    `folder` is the manager's own, `data_home` where workspaces are. `scripts` are for the scripted agent, one for each
    prompt.
    """

    adapter: Adapter
    caller: Mapping[str, str]
    ways: Ways
    folder: str
    data_home: str
    run: str = "plan"
    agent: str = ""
    seconds: float = SECONDS
    scripts: Sequence[Any] = ()


class LaneManager:
    """Is a manager that an agent program drives, in lanes of one workspace."""

    def __init__(self, store: Store, base: str, lanes: Lanes, name: str, tell: Callable[[Event], None]) -> None:
        self._store, self._lanes, self._tell = store, lanes, tell
        self._workspace = name
        self._tree = store.objects.commit(base).tree
        self._before: Before | None = None
        self._spent = Spent()
        self._failed = ""
        model = lanes.ways.model
        self.name = f"{lanes.adapter.name}{f'/{model}' if model else ''}"
        self.provider = providers.of(lanes.adapter.name, model)

    def ask(self, prompt: str, stop: Callable[[], bool] = lambda: False) -> Answer:
        """Gives the agent's last message; a lane that did not end well is an error, and ends the session."""
        lanes, number = self._lanes, self._spent.asks + 1
        script = lanes.scripts[min(number, len(lanes.scripts)) - 1] if lanes.scripts else None
        ws = state.need(self._store, self._workspace)
        turn = Turn(
            f"{lanes.run}/{self._workspace}/{number}", ws.agent, os.path.join(lanes.folder, str(number)), ws.path,
            self._tree, prompt, lanes.run, self._workspace, number, lanes.seconds, script, before=self._before,
        )  # fmt: skip
        done = turns.take(self._store, lanes.adapter, lanes.caller, lanes.ways, turn, stop=stop, tell=self._tell)
        result = done.result
        tokens = result.tokens if self._spent.tokens is None else self._spent.tokens + (result.tokens or Tokens())
        self._spent = Spent(number, tokens, self._spent.cost + Cost(result.dollars, result.mark))
        session = result.session
        how = turns.how(done)
        self._before = None
        if how == "stopped" or stop():
            return Answer("", "it was stopped", True)
        text = done.lane.ending.text
        if isinstance(lanes.adapter, Command):
            text = _printed(os.path.join(turn.folder, "stdout"))
        if how != "done" or not done.lane.ending.ok:
            words = done.lane.reason if how != "done" else turns.words(done)
            return Answer(text, f"its session {how}: {' '.join(words.split())[:300]}" if how != "done" else
                          " ".join(words.split())[:300] or "it failed")  # fmt: skip
        if session:
            self._before = Before(turn.folder, session)
        return Answer(text)

    def spent(self) -> Spent:
        """Gives what its lanes used, as the journal has it."""
        return self._spent


def _printed(path: str) -> str:
    """Gives all that a program printed that has no other way to say something."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""


@contextmanager
def in_lanes(store: Store, base: str, lanes: Lanes, tell: Callable[[Event], None] = lambda event: None,
             name: str = "") -> Iterator[LaneManager]:  # fmt: skip
    """Gives a manager in a workspace at a commit, which is removed with what was written to it when the block ends."""
    name = name or f"plan-{os.urandom(4).hex()}"
    shared = os.path.join(lanes.data_home, "ropewalk", store.format.id)
    agent = lanes.agent or f"{lanes.adapter.family}/manager"
    path = checkout.default_path(store, lanes.data_home, name)
    policy = setup.policy_of(store)
    asked = checkout.Asked(name, agent, base, "refs/heads/plan", path, policy=policy, shared=shared)
    checkout.create(store, asked)
    try:
        yield LaneManager(store, base, lanes, name, tell)
    finally:
        with state.held(store, name):
            removal.delete(store, state.need(store, name), agent, force=True, spent=True)
        _remove_homes(lanes.folder)


def clear(store: Store, prefix: str, agent: str) -> list[str]:
    """Removes what managers left that were killed: workspaces whose names begin so, and what still runs in them."""
    from ropewalk.lane.processes import sweep

    gone = []
    for ws in state.listed(store):
        if not ws.name.startswith(prefix):
            continue
        sweep(f"plan/{ws.name}")
        with state.held(store, ws.name):
            removal.delete(store, ws, agent, force=True, spent=True)
        gone.append(ws.name)
    return gone


def _remove_homes(folder: str) -> None:
    """Removes what the agents kept for themselves; what they printed stays for whoever looks."""
    if not os.path.isdir(folder):
        return
    for one in os.listdir(folder):
        for inner in ("home", "tmp"):
            try:
                remove_tree(os.path.join(folder, one, inner))
            except OSError:
                continue


class GatewayManager:
    """Is a manager without a program: its prompts go to a model through the gateway, one request each."""

    def __init__(self, gateway: str, port: int, token: str, lane: str, wire: Wire, model: str, seconds: float) -> None:
        self._gateway, self._port, self._token, self._lane = gateway, port, token, lane
        self._wire, self._model, self._seconds = wire, model, seconds
        self._asks = 0
        self.name = f"gateway/{model}"
        self.provider = providers.of_model(model)

    def ask(self, prompt: str, stop: Callable[[], bool] = lambda: False) -> Answer:
        """Gives the model's text; an answer that says it failed is an error."""
        if stop():
            return Answer("", "it was stopped", True)
        self._asks += 1
        try:
            got = client.ask(self._port, self._token, self._wire, self._model, prompt, seconds=self._seconds)
        except RopewalkError as error:
            return Answer("", f"{error.code} {error.message}")
        return Answer(got)

    def spent(self) -> Spent:
        """Gives what the gateway counted."""
        seen = ledger.read_activity(os.path.join(self._gateway, "activity"), self._lane)
        if seen is None:
            return Spent(self._asks)
        return Spent(self._asks, seen.tokens, seen.cost)


@contextmanager
def through_gateway(gateway: str, upstreams: Mapping[str, Upstream], model: str, *, named: Sequence[str] = (),
                    run: str = "plan", seconds: float = SECONDS) -> Iterator[GatewayManager]:  # fmt: skip
    """Gives a manager that asks a model through the gateway; it is let out when the block ends.

    Raises `E_PROVIDER` when no endpoint is known.
    """
    from ropewalk.core.errors import ProviderError

    wires: tuple[Wire, ...] = ("anthropic", "chat", "responses", "gemini")
    fit = endpoints.fitting(upstreams, wires, named)
    if not fit:
        raise ProviderError("no endpoint is known", hint="`rw setup` asks for one; or name an agent program: --harness")
    first = upstreams[fit[0]].wires
    wire: Wire = first[0] if first else "anthropic" if providers.of_model(model) == "anthropic" else "chat"
    lane = f"{run}/manager-{os.urandom(4).hex()}"
    token = host.admit(gateway, Lane(lane, run, "plan", "manager", tuple(fit)), {n: upstreams[n] for n in fit})
    try:
        yield GatewayManager(gateway, host.ensure(gateway).port, token, lane, wire, model, seconds)
    finally:
        host.dismiss(gateway, token)
