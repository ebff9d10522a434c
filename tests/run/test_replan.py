"""Runs that are re-planned: what failed is replaced by what the manager gives, twice at most, once for a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.board import runs as records
from ropewalk.board import state
from ropewalk.board.local import LocalBoard
from ropewalk.store.store import Store
from ropewalk.workspace import state as workspaces

from .conftest import Runs

_AGENT = """#!{python}
import json, os, sys, time
told = sys.stdin.read()
if "# What is asked now" in told:
    number = len(os.listdir({asked!r})) + 1
    open(os.path.join({asked!r}, str(number)), "w").write(told)
    gate = {gate!r}
    while gate and not os.path.exists(gate):
        time.sleep(0.05)
    answers = {answers}
    print("Here it is: " + json.dumps(answers[min(number, len(answers)) - 1]))
else:
    words = told.split()
    if words[:1] == ["write"]:
        open(words[1], "w").write("x\\n")
    else:
        open("left.txt", "a").write("I tried\\n")
"""


def work(name: str, file: str, *needs: str, verb: str = "write", **more: Any) -> dict[str, Any]:
    """Gives a task of a plan: to write a file, by an agent that only knows how where it is told to write."""
    return {"id": name, "module": "docs", "description": f"{verb} {file} and whatever else it takes",
            "check": f"test -s {file} || ! echo 'there is no' {file}", "needs": list(needs), **more}  # fmt: skip


def plan(*tasks: dict[str, Any]) -> dict[str, Any]:
    """Gives a manager's answer."""
    return {"summary": "Another way", "modules": [{"name": "docs", "path": "docs"}], "tasks": list(tasks)}


FIRST = [
    {"id": "base", "prompt": "write base.txt now", "check": "test -s base.txt"},
    {"id": "magic", "prompt": "conjure magic.txt up", "check": "test -s magic.txt || ! echo 'no magic yet'"},
    {"id": "wonder", "prompt": "write wonder.txt then", "check": "test -s wonder.txt", "needs": ["magic"]},
    {"id": "last", "prompt": "write last.txt then", "check": "test -s last.txt", "needs": ["wonder", "base"]},
]
BETTER = plan(
    work("plain", "plain.txt", "base"), work("wonder", "wonder.txt", "plain"), work("last", "last.txt", "wonder")
)


class Replans:
    """Is a run whose agents, and whose manager, are one program with answers that are known before."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.runs, self.agent, self.asked, self.gate = runs, folder / "agent", folder / "asked", folder / "gate"
        self.asked.mkdir()

    def answers(self, *plans: dict[str, Any], waits: bool = False) -> None:
        """Says what the manager answers, one after the other, the last one again and again."""
        gate = str(self.gate) if waits else ""
        self.agent.write_text(
            _AGENT.format(python=sys.executable, asked=str(self.asked), gate=gate, answers=repr(plans))
        )
        self.agent.chmod(0o755)

    def words(self, *more: str) -> list[str]:
        """Gives the words of the command that start such a run."""
        return ["--command", str(self.agent), "--attempts", "1", "--jobs", "2", "--replan", *more]

    def prompts(self) -> list[str]:
        """Gives what the manager was told, in order."""
        return [(self.asked / name).read_text() for name in sorted(os.listdir(self.asked), key=int)]


@pytest.fixture
def replans(runs: Runs, tmp_path: Path) -> Replans:
    """Gives runs that may be re-planned."""
    return Replans(runs, tmp_path)


def states(result: dict[str, Any]) -> dict[str, str]:
    """Gives the states of a run's tasks."""
    return {one["id"]: one["state"] for one in result["tasks"]}


def test_what_failed_and_what_waits_for_it_is_replaced_and_the_run_ends_well(replans: Replans) -> None:
    replans.answers(BETTER)
    code, envelope = replans.runs.run(FIRST, *replans.words())
    result = envelope["result"]
    assert (code, result["state"], result["failed"], result["blocked"]) == (0, "done", 0, 0), envelope
    assert states(result) == {
        "base": "landed", "magic": "replaced", "wonder": "replaced", "last": "replaced", "plain": "landed",
        "wonder-2": "landed", "last-2": "landed",
    }  # fmt: skip
    needs = {one["id"]: one.get("needs", []) for one in result["tasks"]}
    assert needs["wonder-2"] == ["plain"] and needs["plain"] == ["base"] and needs["last-2"] == ["wonder-2"]
    (told,) = replans.prompts()
    assert "no magic yet" in told and "conjure magic.txt up" in told and "- base: write base.txt now" in told
    (done,) = result["replans"]
    assert done["failed"] == ["magic"] and done["replaced"] == ["magic", "wonder", "last"]
    assert done["tasks"] == ["plain", "wonder-2", "last-2"] and done["manager"] == "command"
    magic = next(one for one in result["tasks"] if one["id"] == "magic")
    assert magic["kept"] and magic["reason"] == "replaced by plain, wonder-2, last-2" and magic["attempts"] == 1
    run = result["id"]
    assert replans.runs.rw("runs", "show", run)["result"]["replans"] == result["replans"]
    text = replans.runs.rw("runs", "report", run)["result"]["text"]
    assert "Another way" in text and "plain, wonder-2, last-2" in text
    kinds = [event["event"] for event in replans.runs.events(run)]
    assert kinds.count("replanned") == 1 and kinds.index("replanning") < kinds.index("replanned")
    with Store(replans.runs.root) as store:
        assert not [ws.name for ws in workspaces.listed(store) if ws.name.startswith("replan-")]
    # what is done is not done again, and nobody is asked anew
    assert replans.runs.rw("runs", "resume", run)["result"]["head"] == result["head"] and len(replans.prompts()) == 1


def test_the_answer_is_held_to_what_any_plan_is_held_to(replans: Replans) -> None:
    bad = plan(
        work("plain", "plain.txt", "magic"), work("two", "b.txt", check="true"), work("three", "c.txt", "nobody")
    )
    passing = plan(work("plain", "README.md"))
    replans.answers(bad, passing, BETTER)
    code, envelope = replans.runs.run(FIRST, *replans.words())
    assert code == 0, envelope
    _, second, third = replans.prompts()
    assert "it needs 'magic', which is taken off the plan" in second and "'true' is no check" in second
    assert "it needs 'nobody', which is no task of the plan" in second
    assert "its check passes already" in third
    assert "it needs 'base'" not in second + third


def test_a_run_is_replanned_twice_and_no_more(replans: Replans) -> None:
    replans.answers(*(plan(work("again", "again.txt", verb="conjure")) for _ in range(3)))
    code, envelope = replans.runs.run(FIRST[:2], *replans.words())
    result = envelope["result"]
    assert code == 10 and len(replans.prompts()) == len(result["replans"]) == 2
    assert states(result) == {"base": "landed", "magic": "replaced", "again": "replaced", "again-2": "failed"}
    refused = [event for event in replans.runs.events(result["id"]) if event["event"] == "replan_refused"]
    assert refused[0]["failed"] == ["again-2"] and "2 times already" in refused[0]["reason"]
    again = replans.runs.rw("runs", "resume", result["id"])["result"]
    assert len(replans.prompts()) == 2 and again["replans"] == result["replans"]


def test_a_manager_that_gives_no_plan_is_asked_once_for_a_failure(replans: Replans) -> None:
    replans.answers({"modules": [], "tasks": "none"})
    code, envelope = replans.runs.run(FIRST, *replans.words())
    result = envelope["result"]
    assert code == 10 and states(result)["magic"] == "failed" and states(result)["last"] == "blocked"
    assert len(replans.prompts()) == 3 and "gave no plan in 3 tries" in result["replans"][0]["error"]
    replans.runs.rw("runs", "resume", result["id"])
    assert len(replans.prompts()) == 3  # for the same failure nobody is asked again


def test_without_it_nothing_is_replaced_and_a_scripted_agent_plans_nothing(replans: Replans) -> None:
    replans.answers(BETTER)
    words = [word for word in replans.words() if word != "--replan"]
    code, envelope = replans.runs.run(FIRST, *words)
    assert code == 10 and states(envelope["result"])["wonder"] == "blocked" and not replans.prompts()
    scripted = [{"id": "one", "prompt": "do one", "script": {"steps": []}, "check": "test -e one"}]
    code, envelope = replans.runs.run(scripted, "--replan")
    assert code == 2 and "plans nothing anew" in envelope["error"]["message"]


def test_a_kill_in_the_middle_of_a_replan_leaves_one_replan_in_the_end(replans: Replans) -> None:
    """The manager is at work when the run's process is killed: nothing was done yet, and the next one does it once."""
    replans.answers(BETTER, waits=True)
    child = subprocess.Popen(
        replans.runs.argv(FIRST, *replans.words()), cwd=replans.runs.folder, env=replans.runs.env,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stderr is not None
    said = b""
    while b"re-planning" not in said:
        line = child.stderr.readline()
        assert line, said
        said += line
    while not replans.prompts():
        assert child.poll() is None
    child.kill()
    child.communicate()
    run = said.split(b"run ", 1)[1].split(b":")[0].decode()
    with Store(replans.runs.root) as store:
        board = LocalBoard(store)
        assert records.need(board, run).replans == ()
        assert state.look(board, only=[f"{run}.magic"])[f"{run}.magic"].state == "failed"
    replans.gate.touch()
    result = replans.runs.rw("runs", "resume", run)["result"]
    assert result["state"] == "done" and len(result["replans"]) == 1, result
    assert list(states(result).values()).count("landed") == 4 and states(result)["last-2"] == "landed"
    with Store(replans.runs.root) as store:
        assert not [ws.name for ws in workspaces.listed(store) if ws.name.startswith("replan-")]
        out = store.git("log", "--format=%(trailers:key=Task,valueonly)", f"run/{run}", timeout=60).text().split()
    assert sorted(out) == sorted(f"{run}.{task}" for task in ("base", "plain", "wonder-2", "last-2"))
    again = replans.runs.rw("runs", "resume", run)["result"]
    assert again["head"] == result["head"] and again["replans"] == result["replans"]


def test_two_that_replan_at_once_leave_one_replan(replans: Replans, tmp_path: Path) -> None:
    """The record moves with the tasks, so that whoever comes second changes nothing."""
    from ropewalk.board import replace
    from ropewalk.board.claim import As
    from ropewalk.core.errors import CasMismatchError
    from ropewalk.plan.task import Task
    from ropewalk.run import replanning

    replans.answers(BETTER)
    words = [word for word in replans.words() if word != "--replan"]
    _, envelope = replans.runs.run(FIRST, *words)
    with Store(replans.runs.root) as store:
        board = LocalBoard(store)
        run = records.need(board, envelope["result"]["id"])
        found = replanning.broken(board, run)
        assert found is not None
        old, who = [*found.failed, *found.blocked], As("w", "test/w", "command")

        def new(name: str) -> list[Task]:
            return [Task(f"{run.id}.{name}", "test -e x", target=run.target, description="write x now")]

        def done(name: str) -> records.Replan:
            return records.Replan(found.key, ("magic",), tuple(records.short(run.id, one.id) for one in old), (name,))

        first = replace.replace(board, run, done("one"), old, new("one"), who)
        with pytest.raises(CasMismatchError):
            replace.replace(board, run, done("two"), old, new("two"), who)
        assert records.need(board, run.id) == first and first.tasks[-1] == "one"
        assert state.need(board, f"{run.id}.two") is None
        assert msgspec.json.decode(msgspec.json.encode(first), type=records.Run) == first
