"""A run on three hosts, between which there is only an sshd: the one that began it is destroyed, the others end it.

Their clocks are ten minutes apart each. One is cut off for a while. What is asked of the run afterwards is asked on a
host that did not begin it, and each figure of its report is counted again with git and the database.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.board import invariants
from tests.hosts.hostkit import ROOT, Child, Host, Server, end, network, until, words_of
from tests.run.test_report import cost, read, tokens

from ropewalk.plan import document
from ropewalk.plan.plan import Plan
from ropewalk.plan.task import Limits, Task
from ropewalk.run.pages import words
from storekit import stock

pytestmark = pytest.mark.compat

PARTS = ("m1", "m2", "m3", "m4")
WORK = ("work", "--harness", "scripted", "--cage", "none", "--until-empty", "--events", "/mnt/events")


def part(name: str) -> Task:
    """Gives a task that adds a line where all add one; a host's agents do it when the host may."""
    steps = [
        {"run": f"cd / && until test -e mnt/free-{name}; do sleep 0.1; done"},
        {"append": "list.txt", "text": f"{name}\n"},
        {"put": f"parts/{name}.txt", "text": f"{name}\n"},
    ]
    check = f"grep -qx {name} list.txt && test -s parts/{name}.txt"
    return Task(name, check, f"# Do {name}\n\n{words_of(steps, on_conflict='both')}", needs=("base",))


def task(
    name: str, *steps: dict[str, Any], check: str, needs: tuple[str, ...] = (), tries: int = 3, **more: Any
) -> Task:
    """Gives a task that no host has to be let do."""
    return Task(name, check, f"# Do {name}\n\n{words_of(steps, **more)}", needs=needs, limits=Limits(attempts=tries))


def plan() -> dict[str, str]:
    """Gives the files of the plan: what follows the parts reads in its workspace what they made."""
    tasks = (
        task("base", {"put": "list.txt", "text": "begin\n"}, check="test -s list.txt"),
        *map(part, PARTS),
        task("late", {"run": "cat parts/m1.txt parts/m2.txt parts/m3.txt > late.txt"}, check="test -s late.txt",
             needs=("m1", "m2", "m3")),
        task("mend", {"put": "mend.txt", "text": "bad\n"}, check="grep -q good mend.txt", needs=("m4", "late"),
             on_failure=[{"put": "mend.txt", "text": "good\n"}]),
        task("wrong", {"put": "wrong.txt", "text": "bad\n"}, check="grep -q good wrong.txt", needs=("m4",), tries=1),
        task("never", {"put": "never.txt", "text": "n\n"}, check="test -s never.txt", needs=("wrong",)),
    )  # fmt: skip
    return document.write(document.of_plan(Plan("Parts of a list.", (), tasks), document.Document(goal="Make parts")))


class Story:
    """Is the run as git shows it on the server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.run = ""

    def claims(self) -> dict[str, str]:
        """Gives which attempt holds each task of the run."""
        board = invariants.Board(self.server.repository)
        found = {name: board.message(oid).rstrip().rsplit("\n", 1)[-1] for name, oid in board.below("claims").items()}
        return {name.partition(".")[2]: attempt for name, attempt in found.items() if name.startswith(self.run)}

    def done(self, *tasks: str) -> bool:
        """Says whether tasks have verdicts."""
        closed = invariants.Board(self.server.repository).below("verdicts")
        return all(f"{self.run}.{name}" in closed for name in tasks)

    def parts(self, before: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
        """Gives the parts that are worked on and were not before."""
        return {name for name in self.claims() if name in PARTS} - before


def begin(server: Server, one: Host) -> tuple[Story, Child]:
    """Makes the project and the board from a host, starts the run there, and waits until it holds two parts."""
    one.call("git", "init", "-q", "-b", "main", ".")
    (one.folder / "shop/README.md").write_text("A shop.\n")
    one.call("git", "add", ".")
    one.call("git", "commit", "-q", "-m", "Begin")
    one.call("git", "push", "-q", server.url, "main")
    one.ask("board", "init")
    for path, text in plan().items():
        file = one.folder / "plan" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    running = one.rw("run", "--plan", "/mnt/plan", "--yes", "--harness", "scripted", "--jobs", "2", "--cage", "none")
    story = Story(server)

    until(lambda: running.process.poll() is not None or len(story.parts()) == 2)
    assert running.process.poll() is None, end(running, ok=False)
    story.run = next(iter(invariants.Board(server.repository).below("runs")))
    return story, running


def test_hosts_have_nothing_in_common_but_the_server(tmp_path: Path) -> None:
    with network(tmp_path) as server:
        one, two = (Host(server, tmp_path / name, name, off=off) for name, off in (("one", 600), ("two", -600)))
        ahead, behind = (int(host.call(sys.executable, "-c", "import time; print(int(time.time()))"))
                         for host in (one, two))  # fmt: skip
        assert 600 < ahead - behind <= 1200  # asked one after the other
        for host, other in ((one, two), (two, one)):
            assert host.call("hostname").strip() == host.name
            assert end(host.start("ls", str(other.folder)), ok=False)[0] and not host.call("ls", "/mnt/tmp")
            assert end(host.start("ls", str(server.repository)), ok=False)[0]
        assert "tree" not in one.call("git", "ls-remote", server.url)
        one.cut()
        assert end(one.start("git", "ls-remote", server.url), ok=False)[0] != 0
        one.cut(back=True)
        one.call("git", "ls-remote", server.url)
        sleeping = one.start("sleep", "1000")
        one.destroy()
        assert sleeping.process.poll() is not None and not one.folder.exists()
        two.call("git", "ls-remote", server.url)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["evicted", "lease"])
def test_the_host_that_began_a_run_is_destroyed_and_the_others_end_it(tmp_path: Path, way: str) -> None:
    with network(tmp_path) as server:
        one, two, three = (Host(server, tmp_path / name, name, off=off)
                           for name, off in (("one", 600), ("two", 0), ("three", -600)))  # fmt: skip
        story, _ = begin(server, one)
        held = story.parts()

        third = three.rw(*WORK, "--worker", "w3")
        until(lambda: len(story.parts(held)) == 1)
        cut = story.parts(held)
        until(lambda: "dispatch_started" in (three.folder / "events").read_text())
        three.cut()  # while its agent works, which then ends, and what it did has to wait
        three.free(*PARTS)
        until(lambda: '"origin_unreachable"' in (three.folder / "events").read_text())

        # another run in the same repository and on the same board, by a host that works on both
        todo = [{"id": name, "prompt": f"do {name}", "check": f"test -s other-{name}",
                 "script": {"steps": [{"put": f"other-{name}", "text": "x\n"}]}} for name in ("x", "y")]  # fmt: skip
        (two.folder / "tasks.json").write_bytes(msgspec.json.encode({"tasks": todo}))
        two.free(*PARTS)
        other = two.rw("run", "--tasks", "/mnt/tasks.json", "--jobs", "1", "--cage", "none")
        second = two.rw(*WORK, "--worker", "w2", "--jobs", "2")
        (rest,) = set(PARTS) - held - cut
        until(lambda: story.done(rest))
        one.destroy()
        three.cut(back=True)
        until(lambda: story.done(*cut))
        if way == "evicted":  # who knows that a host is gone need not wait for its leases
            for name in sorted(held):
                two.ask("board", "evict", f"{story.run}.{name}")
        patience = 900.0 if way == "evicted" else 3600.0
        beside = msgspec.json.decode(end(other)[1])["result"]
        end(second, seconds=patience)
        end(third, seconds=patience)

        found = three.ask("runs", "show", story.run)
        report = three.ask("runs", "report", story.run)["text"]
        store = next((three.folder / "home").glob("**/store.db")).parent
        recount = [sys.executable, str(ROOT / "tests/run/recount.py"), str(store), story.run, str(server.repository)]
        again = msgspec.json.decode(subprocess.run(recount, capture_output=True, check=True).stdout)
        see(server, story, found, again, cut=cut, held=held)
        compare(report, again)
        assert server.url in report and report.count(f"--board {server.url}") >= 2
        assert {one["id"]: one["state"] for one in beside["tasks"]} == {"x": "landed", "y": "landed"}
        listed = stock("--git-dir", str(server.repository), "ls-tree", "-r", "--name-only", f"run/{beside['id']}")
        assert sorted(listed.decode().split()) == ["README.md", "other-x", "other-y"]
        assert {row["id"] for row in two.ask("runs", "list")["runs"]} == {story.run, beside["id"]}


def see(
    server: Server, story: Story, found: dict[str, Any], again: dict[str, Any], *, cut: set[str], held: set[str]
) -> None:
    """Judges the run by what git says of it."""
    repository, branch = str(server.repository), f"run/{story.run}"
    landed = {"base", *PARTS, "late", "mend"}
    assert found["state"] == "done" and found["clocks_apart"] >= 600
    states = {one["id"]: one["state"] for one in found["tasks"]}
    assert states == dict.fromkeys(landed, "landed") | {"wrong": "failed", "never": "blocked"}
    assert invariants.broken(server.repository) == []

    # each landed once, and nothing else did
    subjects = stock("--git-dir", repository, "log", "--format=%s", f"{found['base']}..{branch}").decode().split("\n")
    assert Counter(filter(None, subjects)) == Counter({f"Do {name}": 1 for name in landed})
    lines = stock("--git-dir", repository, "show", f"{branch}:list.txt").decode().split()
    assert lines[0] == "begin" and sorted(lines[1:]) == sorted(PARTS)
    files = stock("--git-dir", repository, "ls-tree", "-r", "--name-only", branch).decode().split()
    assert sorted(files) == sorted(
        ["README.md", "list.txt", "late.txt", "mend.txt", *(f"parts/{m}.txt" for m in PARTS)]
    )

    # what a task needs is in what its agent began with
    board = invariants.Board(server.repository)
    for name, one in again["listed"].items():
        if name in landed:
            text = board.message(board.refs[f"refs/swarm/claims/{story.run}.{name}"])
            base = next(line.split()[1] for line in text.split("\n") if line.startswith("base:"))
            for need in one["needs"]:
                commit = again["lands"][need]["commit"]
                stock("--git-dir", repository, "merge-base", "--is-ancestor", commit, base)

    # the first host's parts went to others, and the one that was cut off kept its own
    made = {name: [one for one in again["attempts"] if one["task"] == name] for name in PARTS}
    for name in held:
        assert Counter(one["how"] for one in made[name]) == {"died": 1, "landed": 1}
    for name in cut:
        (only,) = made[name]
        assert only["attempt"].startswith("att-w3-")
    workers = {one["attempt"].rsplit("-", 1)[0] for one in again["attempts"] if one["how"] == "landed"}
    assert len(workers) == 3


def compare(report: str, again: dict[str, Any]) -> None:
    """Compares every figure of a report with what was counted."""
    tables, facts = read(report)
    made, record = again["attempts"], again["record"]
    how = Counter(one["how"] for one in made)
    known = [one["seconds"] for one in made if one["seconds"] is not None]
    ran = f"{'' if len(known) == len(made) else '*'}{words.span(round(sum(known), 1))}"

    def kinds(of: list[dict[str, Any]]) -> str:
        total: Counter[str] = Counter()
        for one in of:
            total.update(one["by_kind"])
        names = (("input_tokens", "input"), ("output_tokens", "output"))
        return ", ".join(f"{word} {total[key]:,}" for key, word in names if total[key])

    assert facts == {
        "made from": "a plan", "asked by": record["by"], "begun": words.moment(record["at"]), "from": record["base"],
        "lands on": record["target"], "its head": again["head"], "agents": "scripted, 2 at once", "state": "done",
        "tasks": str(again["tasks"]), "landed": str(again["landed"]), "failed": str(again["failed"]),
        "blocked": str(again["blocked"]), "stopped": "0", "attempts": str(len(made)), "deaths": str(how["died"]),
        "given back": str(how["released"]), "conflicts": str(sum(one["conflicts"] for one in made)),
        "turns of agents": str(sum(one["turns"] for one in made)), "time": "unknown", "agents ran for": ran,
        "tokens": tokens(made), "of these": kinds(made), "cost": cost(made),
    }  # fmt: skip
    assert "clocks of this run's hosts differ" in report

    listed = {name: [name, one["title"], one["state"], ", ".join(one["needs"]), one["region"]]
              for name, one in again["listed"].items()}  # fmt: skip
    assert {row[0]: row for row in tables["Tasks"][1:]} == listed
    landed = []
    for name in again["order"]:
        one = again["lands"][name]
        who = next(line["agent"] for line in made if line["task"] == name and line["how"] == "landed")
        op = "unknown" if one["op"] is None else str(one["op"])
        landed.append([name, one["commit"], who, "scripted", one["check"], "passed", op, words.moment(one["at"])])
    assert tables["What landed, in order"][1:] == landed
    broken = {row[0]: row for row in tables["What did not land"][1:]}
    (last,) = [one for one in made if one["task"] == "wrong"]
    assert broken["wrong"] == ["wrong", "failed", last["why"], "never", f"rw recover {last['attempt']}"]
    assert broken["never"] == ["never", "blocked", "it needs what did not land: wrong failed", "", ""]

    expected = {}
    for one in made:
        program = " ".join(dict.fromkeys(w for w in (one["harness"], one["model"]) if w and w != "unknown"))
        expected[one["attempt"]] = [
            one["task"], one["attempt"], program, one["how"], words.moment(one["began"]), words.moment(one["ended"]),
            words.span(one["seconds"]), str(one["turns"]), str(one["conflicts"]), tokens([one]), cost([one]),
            words.one_line(one["why"]),
        ]  # fmt: skip
    assert {row[1]: row for row in tables["Attempts"][1:]} == expected

    def share(name: str, of: list[dict[str, Any]]) -> list[str]:
        timed = [one["seconds"] for one in of if one["seconds"] is not None]
        mark = "" if len(timed) == len(of) else "*"
        whole = f"{mark}{words.span(round(sum(timed), 1))}" if timed else "unknown"
        return [name, str(len(of)), whole, tokens(of), kinds(of) or "unknown", cost(of)]

    tried = dict.fromkeys(one["task"] for one in made)
    assert {row[0]: row for row in tables["By task"][1:]} == {
        name: share(name, [one for one in made if one["task"] == name]) for name in tried
    }
    assert tables["By model"][1:] == [share("scripted", made), share("all", made)]
    turned = {row[0]: row[1:6] for row in tables["Tasks that took more than one turn"][1:]}
    for name, row in turned.items():
        mine = [one for one in made if one["task"] == name]
        died = sum(one["how"] == "died" for one in mine)
        numbers = [len(mine), sum(one["turns"] for one in mine), sum(one["conflicts"] for one in mine), died]
        assert row == [*map(str, numbers), again["listed"][name]["state"]]
    assert {one["task"] for one in made if one["turns"] > 1 or one["how"] == "died"} == set(turned)
