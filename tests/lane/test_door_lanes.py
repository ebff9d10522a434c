"""Doors of real lanes, at each level: what is inside, whom it answers, and what becomes of a lane without its tools."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.board.boardkit import BoardKit
from tests.lane import cagekit

from ropewalk.board.local import LocalBoard
from ropewalk.core.errors import HarnessError
from ropewalk.gateway.process import read_address
from ropewalk.gateway.settings import Upstream
from ropewalk.gateway.tokens import Wire
from ropewalk.lane import door, journal, lanes, supervisor
from ropewalk.lane.cage.room import Level
from ropewalk.lane.door import Who
from ropewalk.lane.door_server import Door
from ropewalk.lane.lanes import Outcome, Wish
from ropewalk.lane.programs.plain import Command
from ropewalk.lane.waits import Limits, Waits
from ropewalk.plan.task import Task
from ropewalk.run import tools
from ropewalk.run.tools import Desk
from ropewalk.run.turn import Ways
from ropewalk.run.work import loop
from ropewalk.run.work.options import Options
from ropewalk.testing.model_server import running

LEVELS: tuple[Level, ...] = ("full", "files", "none")


class Field:
    """Is a store with a board, a door, and lanes that run shell scripts."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.kit = BoardKit(base / "store")
        self.kit.add("one", "two")
        self.desk = Desk(str(base / "store"), LocalBoard)
        self.door = Door(str(base / "worker"), self.desk.tools())
        self.count = 0

    def wish(self, script: str, level: Level, **words: Any) -> Wish:
        """Gives the lane that runs a script."""
        self.count += 1
        place = self.base / f"lanes{self.count}"
        work = place / "work"
        work.mkdir(parents=True)
        place.chmod(0o755)
        (work / "script.sh").write_text(script)
        given: dict[str, Any] = {"adapter": Command("/bin/sh script.sh"), "door": self.door, **words}
        return Wish(
            f"r/t{self.count}/1", "a/b", prompt="", workspace=str(work), repo="repo", folder=str(place / "lane"),
            gateway=str(self.base / "gateway"), search="/usr/local/bin:/usr/bin:/bin", caller=os.environ, run="r",
            task="one", level=level, limits=Limits(seconds=60), waits=Waits(grace=2), **given,
        )  # fmt: skip

    def run(self, wish: Wish, meanwhile: Callable[[], None] = lambda: None) -> Outcome:
        return lanes.run(self.kit.kit.store, wish, meanwhile=meanwhile)

    def close(self) -> None:
        self.door.close()
        self.desk.close()
        self.kit.close()


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    for folder in cagekit.open_folder():
        made = Field(folder)
        yield made
        made.close()


@pytest.mark.parametrize("level", LEVELS)
def test_an_agent_has_the_tools_in_its_shell(field: Field, level: Level) -> None:
    cagekit.needed(level)
    wish = field.wish(
        'rw progress begun --percent 5 && rw cat README.md && rw request two "Say it" --check true && rw ls'
        " && ! rw cat none && echo all-done",
        level,
    )
    done = field.run(wish)
    stderr = (Path(wish.folder) / "stderr").read_text()
    assert (done.result.state, done.result.text) == ("done", "all-done"), (done, stderr)
    assert "E_NOT_FOUND" in stderr
    assert [(one.text, one.percent) for one in tools.progress(wish.folder)] == [("begun", 5.0)]
    assert [ref for ref, _ in field.kit.board.below("refs/swarm/held/one.r1.")] or [
        ref for ref, _ in field.kit.board.below("refs/swarm/specs/one.r1.")
    ]
    assert not (Path(wish.folder) / "door" / door.SOCKET).exists()  # it was let out


@pytest.mark.parametrize("level", ["full", "files"])
def test_a_lane_gets_to_no_door_but_its_own(field: Field, level: Level) -> None:
    """Neither with another's token, nor at another's socket, nor at the pass that is kept of it or of itself."""
    cagekit.needed(level)
    other = field.wish("true", "none")
    given = field.door.admit(Who(other.id, "a/c", other.folder))
    wish = field.wish(
        f"ROPEWALK_DOOR_TOKEN={given.token} rw tools; echo first $?; cat {other.folder}/door.json;"
        f" cat {given.folder}/bin/rw;"
        " cat ${HOME%/home}/door.json; echo x > /door/lane/x; echo x > /ropewalk/bin/rw; rw progress own",
        level,
    )
    done = field.run(wish)
    said = (Path(wish.folder) / "stdout").read_text() + (Path(wish.folder) / "stderr").read_text()
    assert done.result.state == "done", said
    assert "rwd_" not in said
    if level == "full":
        assert "first 3" in said and "403" in said
    assert [one.text for one in tools.progress(wish.folder)] == ["own"]
    assert tools.progress(other.folder) == []
    assert sorted(os.listdir(Path(wish.folder) / "door")) == ["bin"]
    field.door.dismiss(other.id)


def test_a_lane_goes_on_with_the_door_of_who_adopts_it(field: Field) -> None:
    """Its worker dies; while nobody serves it waits, and the next one knows it by its pass."""
    cagekit.needed("full")
    wish = field.wish("rw progress one; while [ ! -e go ]; do sleep 0.05; done; rw progress two", "full")
    store = field.kit.kit.store
    running_lane = lanes.start(store, wish)
    while not tools.progress(wish.folder):
        assert running_lane.supervised.step() is None
    field.door.close()
    (Path(wish.workspace) / "go").touch()
    field.door = Door(str(field.base / "worker"), field.desk.tools())
    done = lanes.follow(store, lanes.adopt(store, wish.id, entrance=field.door))
    assert done.result.state == "done", done
    assert [one.text for one in tools.progress(wish.folder)] == ["one", "two"]
    assert running_lane.supervised._shim is not None
    running_lane.supervised._shim.wait(10)


def test_a_lane_does_not_start_before_its_tools_are_served(field: Field) -> None:
    class Lost(Door):
        def check(self, given: door.Given) -> None:
            self.dismiss("r/lost/1")
            super().check(given)

    made = Lost(str(field.base / "lost"), field.desk.tools())
    try:
        wish = field.wish("touch started", "none", door=made)._replace(id="r/lost/1")
        with pytest.raises(HarnessError, match="tools_missing"):
            field.run(wish)
        found = journal.need(field.kit.kit.store, wish.id)
        assert found.result is not None and "tools_missing" in found.result.reason
        assert not (Path(wish.workspace) / "started").exists() and not supervisor.is_alive(wish.folder)
    finally:
        made.close()


def test_the_tools_are_part_of_what_a_result_depends_on(field: Field) -> None:
    wish = field.wish("true", "none")
    one = lanes.key(wish)
    assert "report_progress" in one[1].tools
    assert lanes.key(wish._replace(door=None))[0] != one[0]


ASK = """
import json, os, sys, time, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "tools": [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in sys.argv[2:]]}
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
ask = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), head)
print(urllib.request.urlopen(ask, timeout=30).status)
if sys.argv[1] == "stay":
    time.sleep(50)
"""


class Asking(Command):
    """Is an agent that offers its model the tools that it is told to, and says that it offers those of servers."""

    name = "asking"
    wires: tuple[Wire, ...] = ("chat",)
    offers_tools = True


@pytest.mark.parametrize(("how", "has"), [("end", True), ("end", False), ("stay", False)])
def test_an_agent_whose_model_is_not_offered_the_tools_ends(field: Field, how: str, has: bool) -> None:
    """Whether it goes on, and is ended for it, or has ended with a good word before anybody looked."""
    script = field.base / f"ask-{how}-{has}.py"
    script.write_text(ASK)
    names = [f"mcp__ropewalk__{name}" for name in field.door.names] if has else ["shell", "mcp__ropewalk__log"]
    with running() as server:
        ups: Mapping[str, Upstream] = {f"up-{how}-{has}": Upstream(server.url(f"{how}-{has}", "text"), "key")}
        words = " ".join([sys.executable, str(script), how, *names])
        wish = field.wish("", "none", adapter=Asking(words), upstreams=ups, named=tuple(ups))
        try:
            done = field.run(wish)
        finally:
            address = read_address(wish.gateway)
            assert address is not None
            os.kill(address.pid, 15)
            while read_address(wish.gateway) is not None:
                os.sched_yield()
            shutil.rmtree(wish.gateway)
    if has:
        assert (done.result.state, done.result.text) == ("done", "200"), done
    else:
        assert done.result.state == "dead", done
        assert done.result.reason.startswith("tools_missing: ask_region, "), done
        assert "log" not in done.result.reason.split(", ")
        assert done.result.seconds < 30


def test_a_worker_gives_its_caged_lanes_a_door(field: Field) -> None:
    """From a task of the board to its landing, with a report of progress among the worker's events."""
    cagekit.needed("full")
    field.kit.add(Task("job", "test -f new.txt", description="Make new.txt", region="here"))
    agent = field.base / "agent.sh"
    agent.write_text("rw progress begun --percent 1 && rw request two 'Say it all' --check true && echo x > new.txt\n")
    agent.chmod(0o755)
    events: list[tuple[str, dict[str, Any]]] = []
    options = Options(
        "w9", Command(f"/bin/sh {agent}"), {"PATH": "/usr/local/bin:/usr/bin:/bin"}, str(field.base / "data"),
        threading.Event(), lambda kind, **facts: events.append((kind, facts)), only=("job",), once=True,
        ways=Ways(level="full", gateway=str(field.base / "gateway")),
    )  # fmt: skip
    report = loop.work(field.kit.board, field.kit.kit.store, options)
    assert [(one.task, one.how) for one in report.tasks] == [("job", "landed")], (report, events)
    told = [facts for kind, facts in events if kind == "progress"]
    assert [(one["task"], one["text"], one["percent"]) for one in told] == [("job", "begun", 1.0)]
    assert any(".job.r1." in f".{ref.rsplit('/', 1)[1]}" for ref, _ in field.kit.board.below("refs/swarm/"))
