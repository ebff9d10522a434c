"""The real agent programs call the tools of their lane's door on their first turn, in the full cage.

They are those that `python tests/clis/install.py` installs; what is not there is skipped, but with CI=true and
RWTEST_CLIS=1 it is a failure.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.board.boardkit import BoardKit
from tests.clis import install
from tests.clis.matrix import Gateway

from ropewalk.board.local import LocalBoard
from ropewalk.gateway.settings import Settings, Upstream
from ropewalk.lane import lanes
from ropewalk.lane.adapter import Event, McpServer
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.door_server import Door
from ropewalk.lane.lanes import Outcome, Wish
from ropewalk.lane.programs import registry
from ropewalk.lane.waits import Limits, Waits
from ropewalk.run import tools
from ropewalk.run.tools import Desk
from ropewalk.store.store import Store
from ropewalk.testing.model_server import ModelServer, running

pytestmark = [pytest.mark.clis, pytest.mark.slow, pytest.mark.compat]

OFFER = ("claude", "codex", "opencode", "gemini", "copilot")
MODELS = {"claude": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash"}
WAIT = "i=0; while [ ! -e go ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"


class Field:
    """Is a store with a board, a model server, a door, and lanes in full cages."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.folder, self.server = folder, server
        self.kit = BoardKit(folder / "store")
        self.store = self.kit.kit.store
        self.kit.add("one", "two")
        self.desk = Desk(str(folder / "store"), LocalBoard)
        self.door = Door(str(folder / "worker"), self.desk.tools())
        self.gateway = Gateway(folder / "gateway", Settings())
        begin = {"tool": ".*report_progress", "args": {"text": "begun"}}
        end = {"tool": ".*report_progress", "args": {"text": "ended", "percent": 100}}
        ask = {"tool": ".*request_change", "args": {"about": "two", "what": "It has to say {{lane}}", "check": "true"}}
        server.add("tools", [begin, ask, {"text": "FINAL-ANSWER: done"}])
        server.add("anew", [begin, {"tool": "shell", "cmd": WAIT}, end, {"text": "FINAL-ANSWER: done"}])
        server.add("lost", [{"tool": "shell", "cmd": WAIT}, {"text": "FINAL-ANSWER: done"}])
        server.add("shell-rw", [{"tool": "shell", "cmd": "rw progress begun && rw cat README.md > seen.txt"},
                                {"text": "FINAL-ANSWER: done"}])  # fmt: skip
        self.events: list[Event] = []

    def wish(self, program: str, script: str, servers: tuple[McpServer, ...] = ()) -> Wish:
        held = install.default_folder()
        binary, node = install.binary(held, program), install.binary(held, "node")
        assert binary is not None and node is not None
        base = self.folder / f"{program}-{script}"
        (base / "work").mkdir(parents=True)
        base.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(base / "work", rooms.UID, rooms.UID)
        harness = registry.get(program)
        return Wish(
            f"r/{base.name}/1", f"{harness.family}/one", harness, "Please do it.", str(base / "work"), "project",
            str(base / "lane"), str(self.folder / "gateway"),
            f"{binary.parent}:{node.parent}:/usr/local/bin:/usr/bin:/bin", os.environ, "r", "one",
            model=MODELS.get(program, "scripted-model"), servers=servers,
            upstreams={base.name: Upstream(self.server.url(base.name, script), "real-key")}, named=(base.name,),
            limits=Limits(seconds=120, requests=60), waits=Waits(60, 30, 60, 60, 4), door=self.door,
        )  # fmt: skip

    def run(self, wish: Wish, meanwhile: Callable[[], None] = lambda: None) -> Outcome:
        return lanes.run(self.store, wish, tell=self.events.append, meanwhile=meanwhile)

    def apart(self, wish: Wish) -> Outcome:
        """Runs a lane in a thread of its own."""
        with Store(self.store.layout.root) as store:
            return lanes.run(store, wish)

    def close(self) -> None:
        self.door.close()
        self.desk.close()
        self.kit.close()
        self.gateway.end()


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ropewalk-tools-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        made = Field(folder, stack.enter_context(running()))
        stack.callback(made.close)
        yield made


def needed(*programs: str) -> None:
    """Skips where a program is not installed; with CI=true and RWTEST_CLIS=1 that is a failure."""
    held = install.default_folder()
    missing = [name for name in ("node", *programs) if install.binary(held, name) is None]
    missing += [] if shutil.which("bwrap") else ["bubblewrap"]
    if missing and os.environ.get("CI") == "true" and os.environ.get("RWTEST_CLIS") == "1":
        pytest.fail(f"{', '.join(missing)} is not there")
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed (python tests/clis/install.py)")


@pytest.mark.parametrize("program", OFFER)
def test_the_tools_are_offered_and_called_on_the_first_turn(field: Field, program: str) -> None:
    needed(program)
    wish = field.wish(program, "tools")
    outcome = field.run(wish)
    assert outcome.result.state == "done", outcome
    first = next(e for e in field.server.entries(f"{program}-tools") if e.message_id and not e.side)
    for name in field.door.names:
        assert any(tool.endswith(name) for tool in first.tools), (name, first.tools)
    assert first.called and first.called[0].endswith("report_progress")
    assert [one.text for one in tools.progress(wish.folder)] == ["begun"]
    digest = [s for s in field.kit.board.below("refs/swarm/specs/one.r1.")]
    words = [field.kit.status(ref.removeprefix("refs/swarm/specs/")).spec.task for ref, _ in digest]
    assert f"It has to say {program}-tools" in [task.name for task in words]


SIX = 6


def test_devflock_A1_tools_are_offered_on_the_first_request_of_six_sessions_at_once_fresh_and_resumed(
    field: Field,
) -> None:
    needed("claude")
    names = [f"six{n}" for n in range(SIX)]
    for name in names:
        field.server.add(name, [{"text": "FINAL-ANSWER: done"}])
    wishes = [field.wish("claude", name) for name in names]
    sessions: list[str] = []
    for session in range(2):
        with ThreadPoolExecutor(SIX) as pool:
            ended = list(pool.map(field.apart, wishes))
        for wish, outcome in zip(wishes, ended, strict=True):
            assert outcome.result.state == "done", outcome
            asked = [e for e in field.server.entries(wish.named[0]) if e.message_id and not e.side]
            offered = asked[session].tools
            for name in field.door.names:
                assert any(tool.endswith(name) for tool in offered), (wish.id, session, offered)
            assert len(asked) == session + 1
        sessions += [str(outcome.lane.ending.session) for outcome in ended]
        again = []
        for wish, outcome in zip(wishes, ended, strict=True):
            folder = f"{wish.folder}-again"
            os.mkdir(folder, 0o700)
            os.rename(f"{wish.folder}/home", f"{folder}/home")
            again.append(wish._replace(id=f"{wish.id}2", folder=folder, session=outcome.lane.ending.session))
        wishes = again
    assert sessions[:SIX] == sessions[SIX:] and len(set(sessions)) == SIX


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_a_door_that_starts_anew_is_found_again(field: Field, program: str) -> None:
    """The worker dies while a tool of the agent's own runs, and another takes the lane over: the agent sees nothing."""
    needed(program)
    wish = field.wish(program, "anew")
    anew = False

    def meanwhile() -> None:
        nonlocal anew
        if not anew and [e for e in field.server.entries(f"{program}-anew") if e.called == ("shell",) or e.step == 1]:
            anew = True
            field.door.close()
            field.door = Door(str(field.folder / "worker"), field.desk.tools())
            field.door.resume(wish.folder)
            (Path(wish.workspace) / "go").touch()

    outcome = field.run(wish, meanwhile)
    assert anew and outcome.result.state == "done", outcome
    assert [one.text for one in tools.progress(wish.folder)] == ["begun", "ended"]


@pytest.mark.parametrize("program", ["pi", "grok"])
def test_an_agent_that_is_offered_none_has_them_in_its_shell(field: Field, program: str) -> None:
    needed(program)
    assert not registry.get(program).offers_tools
    wish = field.wish(program, "shell-rw")
    outcome = field.run(wish)
    assert outcome.result.state == "done", outcome
    assert [one.text for one in tools.progress(wish.folder)] == ["begun"]
    assert (Path(wish.workspace) / "seen.txt").read_text(encoding="utf-8") == "# Demo\n"


@pytest.mark.parametrize("program", ["claude", "gemini", "opencode"])
def test_an_agent_without_its_tools_is_no_failure_of_its_own(field: Field, program: str) -> None:
    """A server that is not there, whatever the reason: the lane ends before its model has done anything."""
    needed(program)
    lost = McpServer("lost", "http://127.0.0.1:9/mcp", {}, ("never_there",))
    wish = field.wish(program, "lost", (lost,))
    outcome = field.run(wish)
    assert (outcome.result.state, outcome.result.reason) == ("dead", "tools_missing: never_there"), outcome


def test_a_program_that_wants_its_server_says_so_itself(field: Field) -> None:
    """Codex is told that the server is required, and ends without a request to its model."""
    needed("codex")
    lost = McpServer("lost", "http://127.0.0.1:9/mcp", {}, ("never_there",))
    wish = field.wish("codex", "lost", (lost,))
    outcome = field.run(wish)
    assert (outcome.result.state, outcome.result.requests) == ("dead", 0), outcome
    assert outcome.result.reason.startswith("tools_missing: "), outcome
