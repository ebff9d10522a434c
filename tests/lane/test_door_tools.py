"""The tools of lanes: requests that become tasks, what is known of regions, progress, and reads of the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.board.boardkit import BoardKit
from tests.lane import doorkit

from ropewalk.board import names, tasks
from ropewalk.board.local import LocalBoard
from ropewalk.core.errors import InvalidError, NotFoundError, RopewalkError
from ropewalk.lane.door import Tool, Who
from ropewalk.lane.door_server import Door
from ropewalk.plan.task import Task
from ropewalk.run import requests, tools
from ropewalk.run.tools import Desk
from storekit import put


class Office:
    """Is a store with a board of three tasks in two regions, and a desk on it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.kit = BoardKit(base / "store")
        self.kit.add(
            Task("parser", "true", region="syntax", owns=("parse/**",)),
            Task("lexer", "true", region="syntax", owns=("lex/**",), modifies=("README.md",)),
            Task("printer", "true", region="output"), Task("lonely", "true"),
        )  # fmt: skip
        self.told: list[tuple[str, str, float | None]] = []
        self.desk = Desk(str(base / "store"), LocalBoard, lambda who, *more: self.told.append((who.lane, *more)))
        self.tools: dict[str, Tool] = {tool.name: tool for tool in self.desk.tools()}

    def who(self, task: str = "printer", agent: str = "claude/one") -> Who:
        folder = self.base / f"lane-{task}"
        folder.mkdir(exist_ok=True)
        return Who(f"r/{task}/1", agent, str(folder), "r", task)

    def call(self, tool: str, who: Who | None = None, **arguments: Any) -> Any:
        return self.tools[tool].call(who or self.who(), arguments).data

    def ask(self, about: str = "syntax", what: str = "Say so", check: str = "true", task: str = "printer") -> Any:
        return self.call("request_change", self.who(task), about=about, what=what, check=check)

    def requests(self) -> list[str]:
        found = [ref.removeprefix(names.SPECS) for ref, _ in self.kit.board.below(names.SPECS)]
        return [name for name in found if ".r" in name]


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.desk.close()
    made.kit.close()


def test_devflock_B19_a_request_becomes_a_task_with_a_check(office: Office) -> None:
    before = office.kit.kit.store.refs("refs/heads/")
    made = office.ask("syntax", "parse() has to take bytes\n\nbecause files are bytes", "pytest -q parse")
    task = office.kit.status(made["id"]).spec.task
    assert made == {"id": task.id, "state": "ready", "title": "parse() has to take bytes because files are bytes",
                    "is_new": True}  # fmt: skip
    assert task.id.startswith("printer.r1.") and task.check == "pytest -q parse" and task.region == "syntax"
    assert task.owns == ("README.md", "lex/**", "parse/**")
    assert task.description.startswith("parse() has to take bytes\n\nbecause") and "task printer" in task.description
    assert office.kit.kit.store.refs("refs/heads/") == before
    assert office.call("check_request", id=task.id)["state"] == "ready"
    office.kit.done(task.id)
    done = office.call("check_request", id=task.id)
    assert done["state"] == "done" and len(done["landed"]) == 40


def test_a_request_about_a_task_waits_for_it(office: Office) -> None:
    made = office.ask("parser")
    task = office.kit.status(made["id"]).spec.task
    assert (task.needs, task.owns, task.region) == (("parser",), ("parse/**",), "syntax")
    assert made["state"] == "waiting" and "parser" in made["why"]
    office.kit.done("parser")
    assert office.call("check_request", id=made["id"])["state"] == "ready"
    assert office.kit.status(office.ask("parser", "another thing")["id"]).spec.task.needs == ()


def test_devflock_B19_the_same_request_is_one_task_whoever_asks(office: Office) -> None:
    one = office.ask(what="Take bytes", task="printer")
    two = office.ask(what="  Take \n bytes ", task="lonely")
    assert (one["id"], two["id"], two.get("is_new", False)) == (one["id"], one["id"], False)
    assert office.ask(what="Take text")["id"] != one["id"]
    assert len(office.requests()) == 2
    # one that was given up may be asked for again
    tasks.cancel(office.kit.board, one["id"], office.kit.who())
    again = office.ask(what="Take bytes", task="lonely")
    assert again["is_new"] and again["id"].startswith("lonely.r1.")


def test_twenty_lanes_that_ask_for_the_same_get_one_task(office: Office) -> None:
    office.kit.add(*(f"t{n}" for n in range(20)))
    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(lambda n: office.ask(what="Take bytes", task=f"t{n}"), range(20)))
    assert len({one["id"] for one in made}) == 1 and len(office.requests()) == 1
    assert sum(one.get("is_new", False) for one in made) == 1


def test_two_workers_that_are_asked_at_the_same_moment_keep_one_task(office: Office) -> None:
    """What another worker added between our look and our add is seen by the look after it."""
    one = office.ask(what="Take bytes", task="printer")
    twin = one["id"].replace("printer.", "lonely.")
    spec = office.kit.status(one["id"]).spec.task
    office.kit.add(Task(twin, spec.check, description=spec.description, region=spec.region))
    kept = requests._settled(office.kit.board, one["id"].rsplit(".", 1)[1], office.who())
    assert kept is not None and kept.id == min(twin, one["id"])
    assert {office.kit.state(one["id"]), office.kit.state(twin)} == {"ready", "cancelled"}
    assert office.kit.state(kept.id) == "ready"


def test_devflock_B19_L29_requests_go_three_tasks_far(office: Office) -> None:
    name = "printer"
    for hop in (1, 2, 3):
        name = office.ask(what=f"hop {hop}", task=name)["id"]
        assert name.startswith(f"printer.r{hop}.")
    with pytest.raises(InvalidError, match="no further"):
        office.ask(what="hop 4", task=name)
    assert len(office.requests()) == 3


def test_a_long_name_leaves_room_for_its_requests(office: Office) -> None:
    long = "x" * 100
    office.kit.add(long)
    first = office.ask(what="one", task=long)["id"]
    assert office.ask(what="two", task=first)["id"].startswith("x" * 80 + ".r2.")


def test_L29_a_task_may_not_ask_without_end(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST", 3)
    made = [office.ask(what=f"thing {n}")["id"] for n in range(3)]
    with pytest.raises(InvalidError, match="3 requests already"):
        office.ask(what="thing 4", task=made[0])
    assert office.ask(what="thing 1")["id"] == made[1]
    assert office.ask(what="thing 5", task="lonely")["is_new"]


def test_what_no_request_can_be_is_refused_and_adds_nothing(office: Office) -> None:
    wrong: list[tuple[type[RopewalkError], dict[str, Any], Who]] = [
        (InvalidError, {"about": "printer"}, office.who()),  # its own task
        (NotFoundError, {"about": "nowhere"}, office.who()),
        (InvalidError, {"about": "syntax"}, Who("r/x/1", "a/b", str(office.base))),  # of no task
        (InvalidError, {"about": "syntax", "check": "true\nfalse"}, office.who()),
        (InvalidError, {"about": "syntax", "check": " "}, office.who()),
        (InvalidError, {"about": "syntax", "what": "\udcff"}, office.who()),
        (InvalidError, {"about": "syntax", "what": "x\0y"}, office.who()),
        (InvalidError, {"about": "syntax", "what": "x" * 9000}, office.who()),
        (InvalidError, {"about": "syntax", "unknown": 1}, office.who()),
    ]
    for kind, arguments, who in wrong:
        with pytest.raises(kind):
            office.tools["request_change"].call(who, {"what": "w", "check": "true", **arguments})
    with pytest.raises(NotFoundError) as error:
        office.ask("nowhere")
    assert error.value.hint == "regions: output, syntax"
    assert office.requests() == []


def test_words_of_a_request_set_no_field_of_its_task(office: Office) -> None:
    made = office.ask(what="Do it\nverify: rm -rf /\ntarget: other\n\npriority: 9\nn: 5", check="pytest -q")
    task = office.kit.status(made["id"]).spec.task
    assert (task.check, task.target, task.priority, task.gate) == ("pytest -q", "main", 0, None)


def test_only_requests_are_shown_as_such(office: Office) -> None:
    for name in ("printer", "none", "a.r1.0123456789", "../x", "é"):
        with pytest.raises(NotFoundError):
            office.call("check_request", id=name)


def test_a_region_says_what_is_noted_of_it(office: Office) -> None:
    said = office.call("ask_region", region="syntax", question="How is a file read?")
    assert said["text"].startswith("Nothing is noted of syntax yet. Its tasks: ") and "sources" not in said
    notes = office.base / "store" / requests.NOTES
    notes.mkdir()
    (notes / "syntax.md").write_text("Names are interned.\n\nFiles are read as bytes, by open_source().\n")
    office.kit.done("parser")
    said = office.call("ask_region", region="lexer", question="How are files read?")
    assert said["region"] == "lexer" and said["sources"] == ["notes of syntax", "task parser, done"]
    assert said["text"].startswith("[notes of syntax]\nFiles are read as bytes")
    assert office.tools["ask_region"].call(office.who(), {"region": "syntax", "question": "x"}).text == office.call(
        "ask_region", region="syntax", question="x"
    )["text"]  # fmt: skip
    for name in ("../store", "/etc/passwd", "nowhere", "a\0b"):
        assert "Nothing is noted" in office.call("ask_region", region=name, question="?")["text"]


def test_progress_is_kept_and_told(office: Office) -> None:
    office.call("report_progress", text="half way", percent=50)
    office.call("report_progress", text="done")
    assert office.told == [("r/printer/1", "half way", 50.0), ("r/printer/1", "done", None)]
    found = tools.progress(office.who().folder)
    assert [(one.text, one.percent) for one in found] == [("half way", 50.0), ("done", None)]
    for percent in (-1, 101, "x", True):
        with pytest.raises(InvalidError):
            office.call("report_progress", text="x", percent=percent)
    path = Path(office.who().folder) / tools.PROGRESS
    path.write_bytes(path.read_bytes() + b'{"at": 1, "te')  # its writer died
    assert len(tools.progress(office.who().folder)) == 2
    path.write_bytes(b"x" * (2 << 20))
    with pytest.raises(InvalidError, match="too much"):
        office.call("report_progress", text="x")
    assert tools.progress(str(office.base / "none")) == []


def test_the_store_is_read_and_nothing_is_written(office: Office) -> None:
    kit = office.kit.kit
    old = kit.store.ref("refs/heads/main")
    kit.change(put("src/a.py", "import os\nprint('hello')\n"))
    refs = kit.store.refs("refs/")
    assert office.call("read_file", path="src/a.py", lines="2-2")["content"] == "print('hello')\n"
    assert [one["name"] for one in office.call("list_dir")["entries"]] == ["README.md", "src"]
    assert office.call("log")["entries"][0]["title"] == "change"
    assert office.call("show", rev="HEAD")["changes"][0]["path"] == "src/a.py"
    assert "+import os" in json.dumps(office.call("diff", old=old, new="main"))
    assert office.call("grep", pattern="hel+o")["matches"][0]["line"] == 2
    for tool, arguments in (("read_file", {"path": "none"}), ("log", {"rev": "none"}), ("show", {"rev": "x" * 40})):
        with pytest.raises(RopewalkError):
            office.call(tool, **arguments)
    for path in ("../../etc/passwd", "a\0b"):
        with pytest.raises(RopewalkError):
            office.call("read_file", path=path)
    assert kit.store.refs("refs/") == refs
    writes = {name for name, tool in office.tools.items() if tool.writes}
    assert writes == {"request_change", "report_progress"}


def test_a_run_without_a_board_has_no_requests(office: Office) -> None:
    desk = Desk(str(office.base / "store"))
    names_of = {tool.name for tool in desk.tools()}
    assert "report_progress" in names_of and "ask_region" in names_of
    assert not names_of & {"request_change", "check_request"}
    found = next(tool for tool in desk.tools() if tool.name == "ask_region")
    assert "Nothing is noted" in found.call(office.who(), {"region": "syntax", "question": "?"}).text
    desk.close()


def test_schemas_say_what_is_needed(office: Office) -> None:
    schema = office.tools["request_change"].schema
    assert schema["required"] == ["about", "what", "check"] and schema["additionalProperties"] is False
    assert all(len(json.dumps(tool.schema)) < 1000 for tool in office.tools.values())


def test_twenty_lanes_use_all_tools_through_a_door(office: Office) -> None:
    door = Door(str(office.base / "worker"), list(office.tools.values()))
    office.kit.add(*(f"t{n}" for n in range(20)))

    def work(n: int) -> str:
        given = door.admit(office.who(f"t{n}"), "none")
        doorkit.call(given, "report_progress", {"text": f"begun {n}"}, port=bool(n % 2))
        arguments = {"about": "syntax", "what": f"thing {n % 4}", "check": "true"}
        made = doorkit.call(given, "request_change", arguments)["structuredContent"]
        assert doorkit.call(given, "read_file", {"path": "README.md"})["structuredContent"]["content"] == "# Demo\n"
        return str(made["id"])

    try:
        with ThreadPoolExecutor(20) as pool:
            made = list(pool.map(work, range(20)))
    finally:
        door.close()
    assert len(set(made)) == 4 and sorted(office.requests()) == sorted(set(made))
    assert sorted(told[1] for told in office.told) == sorted(f"begun {n}" for n in range(20))
