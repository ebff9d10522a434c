"""Cassettes of the real programs: a run is recorded, and played back in another place with no server there (G1, G2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clis import install
from tests.clis.matrix import Field, Gateway, Lane, field, installed

from ropewalk.gateway import ledger, settings
from ropewalk.lane.supervisor import LaneResult

pytestmark = [pytest.mark.clis, pytest.mark.compat]
PROGRAMS = ("claude", "codex", "grok", "pi", "gemini")
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def shared() -> Iterator[Field]:
    with field() as made:
        made.server.add("two", [
            {"tool": "write", "path": "one.txt", "content": "one\n"},
            {"tool": "shell", "cmd": "cat one.txt > two.txt; pwd >> two.txt"},
            {"text": "FINAL-ANSWER: wrote both"},
        ])  # fmt: skip
        yield made


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    held = install.default_folder()
    if install.binary(held, installed(name)) is None or install.binary(held, "node") is None:
        pytest.skip(f"{name} is not installed (python tests/clis/install.py)")
    return name


class Taped:
    """Is a program's lane with a cassette: recorded and played in workspaces of their own."""

    def __init__(self, shared: Field, program: str, what: str, scenario: str = "two") -> None:
        self.shared, self.program, self.what, self.scenario = shared, program, what, scenario
        self.tape = shared.folder / f"tape-{program}-{what}"

    def run(self, mode: str, prompt: str = "", place: str = "") -> tuple[LaneResult, Lane]:
        """Gives how the lane ended."""
        name = f"{self.program}-{self.what}"
        server = self.shared.server.url(name, self.scenario) if mode == "record" else NOWHERE
        tape = settings.Tape("record" if mode == "record" else "replay", str(self.tape))
        base = Field.settings(lambda *_: server, tape)
        # any lane of the matrix has what the program's adapter says is volatile
        pattern = base.lanes[f"token-{self.program}-write"]
        up = settings.Upstream(server, "sk-real-key-of-the-endpoint-0001")
        held = settings.Lane(f"r/{name}/1", upstreams=("up",), requests=60, volatile=pattern.volatile, tape=tape)
        how = settings.Settings({"up": up}, {f"token-{name}": held}, hold=1.0)
        gateway = Gateway(self.shared.folder / f"{name}-{place or mode}-gateway", how)
        try:
            lane = Lane(self.shared, self.program, self.what, gateway=gateway)
            lane.base = self.shared.folder / f"{name}-{place or mode}"
            lane.lane = lane.base / "lane"
            lane.work = lane.base / "work"
            if prompt:
                lane.prompt = prompt
            return lane.run(), lane
        finally:
            gateway.end()

    def activity(self, lane: Lane) -> ledger.Activity:
        """Gives what the gateway saw of the lane."""
        found = ledger.read_activity(str(lane.gateway.folder / "activity"), f"r/{self.program}-{self.what}/1")
        assert found is not None
        return found


def tree(folder: Path) -> dict[str, bytes]:
    """Gives the files of a workspace, without what a program keeps there for itself."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


def test_G1_G2_a_run_is_played_back_without_its_server(shared: Field, program: str) -> None:
    taped = Taped(shared, program, "cassette")
    first, recorded = taped.run("record")
    assert first.state == "done", (first, recorded.events[-3:])
    asked = len(shared.server.entries(f"{program}-cassette"))
    held = b"".join(p.read_bytes() for p in taped.tape.rglob("*.json"))
    assert held and b"sk-real-key" not in held and f"token-{program}".encode() not in held
    assert not [p for p in taped.tape.rglob("*.json") if os.stat(p).st_mode & 0o077]
    second, played = taped.run("replay")
    assert second.state == "done", (second, taped.activity(played).error)
    assert tree(played.work) == tree(recorded.work)
    assert tree(played.work) == {"one.txt": b"one\n", "two.txt": b"one\n/work/project\n"}
    assert played.base != recorded.base and not (recorded.work / "three.txt").exists()
    assert len(shared.server.entries(f"{program}-cassette")) == asked  # nobody was asked
    assert second.ending.text == first.ending.text and second.tools == first.tools
    assert taped.activity(played).requests == taped.activity(recorded).requests
    assert taped.activity(played).tokens.total == 0  # nothing was spent


def test_G2_another_prompt_is_a_miss_that_says_where_it_differs(shared: Field, program: str) -> None:
    taped = Taped(shared, program, "miss", "text")
    first, _ = taped.run("record")
    assert first.state == "done", first
    second, lane = taped.run("replay", "Please write something else altogether.", "other")
    assert second.state == "failed" and second.reason.startswith("cassette_miss: "), second
    seen = taped.activity(lane)
    assert seen.status == 400 and seen.error.startswith("cassette_miss: ") and "recorded is" in seen.error
    assert seen.requests <= 8  # it is not tried again and again
