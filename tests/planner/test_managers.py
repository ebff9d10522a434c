"""Managers that are asked straight through the gateway, in each format of model traffic, by a scripted model server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.plannerkit import GOOD, MAP, planned, reply, task
from ropewalk.core.errors import PlanningError, ProviderError
from ropewalk.gateway import process, settings
from ropewalk.gateway.settings import Upstream
from ropewalk.gateway.tokens import Wire
from ropewalk.plan.asking import Goal
from ropewalk.plan.plan import Caps
from ropewalk.run.planner import manager
from ropewalk.testing.model_server import ModelServer, running
from storekit import Kit

MODELS: dict[Wire, str] = {"anthropic": "claude-sonnet-4-5", "chat": "gpt-5", "responses": "gpt-5",
                           "gemini": "gemini-2.5-flash"}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with running(keep_bodies=True) as made:
        yield made


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    folder = str(tmp_path / "gateway")
    yield folder
    found = process.read_address(folder)
    if found is not None:
        os.kill(found.pid, signal.SIGTERM)


def upstream(server: ModelServer, lane: str, *texts: str, wire: Wire = "anthropic", fault: str = "") -> Upstream:
    """Gives an endpoint whose model answers with one text after the other: each prompt is a talk of its own."""
    for n, text in enumerate(texts):
        server.add(f"{lane}-{n}", {"steps": [{"text": text}], "side": text})
    return Upstream(server.url(lane, f"{lane}-0{fault}"), wires=(wire,))


class Turns:
    """Is a manager that is sent on to the next script of the server with each prompt."""

    def __init__(self, inner: manager.GatewayManager, folder: str, server: ModelServer, lane: str) -> None:
        self.inner, self.folder, self.server, self.lane, self.count = inner, folder, server, lane, 0
        self.name, self.provider, self.spent = inner.name, inner.provider, inner.spent

    def ask(self, prompt: str, stop: object = None) -> manager.Answer:
        """Asks the script of this prompt."""
        from ropewalk.gateway import host

        now = settings.read(self.folder).upstreams["one"]
        script = f"{self.lane}-{self.count}"
        host.swap(self.folder, "one", Upstream(self.server.url(self.lane, script), wires=now.wires))
        self.count += 1
        return self.inner.ask(prompt)


@pytest.mark.parametrize("wire", ["anthropic", *(pytest.param(w, marks=pytest.mark.slow) for w in list(MODELS)[1:])])
def test_a_broken_plan_and_a_mended_one_in_each_format(
    kit: Kit, tmp_path: Path, server: ModelServer, gateway: str, wire: Wire
) -> None:
    ups = {"one": upstream(server, f"mended-{wire}", MAP, reply(task("one", check="true")), GOOD, wire=wire)}
    with manager.through_gateway(gateway, ups, MODELS[wire]) as made:
        done = planned(kit, tmp_path, Turns(made, gateway, server, f"mended-{wire}"))
        assert done.tries == 2 and done.asks == 3 and done.manager == f"gateway/{MODELS[wire]}"
        assert done.provider == {"anthropic": "anthropic", "gemini": "google"}.get(wire, "openai")
        assert done.tokens is not None and done.tokens.total > 0
        assert done.cost.dollars is not None and done.cost.dollars > 0
    assert not settings.read(gateway).lanes
    bodies = [server.body(e.number) or b"" for e in server.entries(f"mended-{wire}")]
    assert len(bodies) == 3 and b"is no check" in bodies[2]


def test_P4_too_many_tasks_and_a_cut_reply_through_the_gateway(
    kit: Kit, tmp_path: Path, server: ModelServer, gateway: str
) -> None:
    many, few = reply(*(task(f"t{n}") for n in range(4))), reply(task("one"))
    ups = {"one": upstream(server, "many", MAP, many, many[:200], few, '{"tasks": []}')}
    with manager.through_gateway(gateway, ups, "claude-sonnet-4-5") as made:
        done = planned(kit, tmp_path, Turns(made, gateway, server, "many"), Goal("x", "auto", caps=Caps(tasks=2)))
    assert len(done.plan.tasks) == 1 and done.tries == 3
    assert any("at most 2" in words for words in done.problems) and any("broke off" in w for w in done.problems)


def test_a_provider_that_fails_is_an_error_of_the_try_and_says_so(
    kit: Kit, tmp_path: Path, server: ModelServer, gateway: str
) -> None:
    ups = {"one": upstream(server, "failing", MAP, fault="+e401")}
    with manager.through_gateway(gateway, ups, "claude-sonnet-4-5") as made, pytest.raises(PlanningError, match="401"):
        planned(kit, tmp_path, made, Goal("x", "idea"))
    with pytest.raises(ProviderError), manager.through_gateway(gateway, {}, "gpt-5"):
        pass
