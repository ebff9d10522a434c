"""Whole runs by the command in which something is killed again and again, and gone on with: all is done, and done once.

Each kill draws its victim among the run's driver, a second worker of its board, its process group, the gateway, a
lane's shim, an agent, who looks on, and all of them at once with another boot of the machine after it; and its moment
among the run's whole life: its beginning, any of its events, and its end.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.run import recount
from tests.run.killkit import TASKS, KilledRun, Moment, files, name_of, processes

from ropewalk.board.takeover import MOST
from ropewalk.gateway import settings
from ropewalk.testing.model_server import running

pytestmark = pytest.mark.crash

FULL = bool(os.environ.get("RWTEST_FULL"))
RUNS = int(os.environ.get("RWTEST_KILLS_RUNS", "40" if FULL else "2"))
KILLS = int(os.environ.get("RWTEST_KILLS", "5" if FULL else "4"))
SEED = int(os.environ.get("RWTEST_SWEEP_SEED", "1"))
EVENTS = 8 * TASKS
"""Is how many events a run has in which nothing is killed, about; a driver that is helped tells of half of them."""


def moments(run: KilledRun) -> Iterator[Moment]:
    """Draws when something is killed: once as the run begins, then at events or right after a start, and at the end."""
    draw, events = run.draw, EVENTS // 2 if run.helped else EVENTS
    for number in range(KILLS - 1):
        if number == 0 and draw.random() < 0.75:
            yield draw.choice((
                Moment("begun", 0, draw.uniform(0, 1.0)), Moment("made", 0, draw.uniform(0, 0.3)),
                Moment("seeded", 0, draw.uniform(0, 0.3)),
            ))  # fmt: skip
        elif number and draw.random() < 0.2:
            yield Moment("begun", 0, draw.uniform(0.2, 2.0))
        else:
            yield Moment("event", run.events() + draw.randint(1, 2 * events // KILLS), draw.uniform(0, 0.1))
    yield Moment("end", 0, draw.uniform(0, 0.5))


@pytest.mark.parametrize("number", range(RUNS))
def test_a_run_that_is_killed_at_any_moment_goes_on_and_does_all_once(
    tmp_path: Path, clean: dict[str, str], number: int
) -> None:
    with running(keep_bodies=True) as server:
        run = KilledRun(tmp_path, clean, server, SEED * 1000 + number)
        try:
            run.go_on()
            for moment in moments(run):
                if not run.wait_for(moment):
                    break
                run.strike(moment.kind)
                run.go_on()
            look_at(run, run.end())
            tell(run, number, "")
        except BaseException as error:
            tell(run, number, f"{type(error).__name__}: {error}"[:2000])
            raise
        finally:
            run.close()


def look_at(run: KilledRun, result: Mapping[str, Any]) -> None:
    """Holds what has to be true of a run that ended, however often it was killed."""
    person, name = run.person, result["id"]
    assert result["state"] == "done" and result["landed"] == TASKS, result
    # the person's repository has one branch more, and nothing else
    refs = person.git("for-each-ref", "--format=%(refname)").split()
    assert refs == ["refs/heads/main", f"refs/heads/ropewalk/{name}"], refs
    assert person.git("status", "--porcelain") == ""
    assert {path: person.git("show", f"ropewalk/{name}:{path}") for path in person.git(
        "ls-tree", "-r", "--name-only", f"ropewalk/{name}").split()} == files()  # fmt: skip
    # each task landed once, on what it needs
    subjects = person.git("log", "--format=%(trailers:key=Task,valueonly)", f"main..ropewalk/{name}").split()
    assert Counter(subjects) == {f"{name}.{name_of(n)}": 1 for n in range(TASKS)}
    repo = run.person.store / "repo.git"
    for number in range(TASKS):
        ref = f"refs/swarm/verdicts/{name}.{name_of(number)}"
        assert "\nfixed: true\n" in person.git("show", "-s", "--format=%B", ref, cwd=repo)
    listed = person.rw("runs", "list")[1]["result"]["runs"]
    assert [one["id"] for one in listed] == [name]
    _once(run)
    _clean(run)
    for words in (("verify", "--deep"), ("board", "audit")):
        code, said = person.rw(*words)
        assert code == 0, said
    counted = recount.count(str(person.store), name)
    shown = person.rw("runs", "show", name)[1]["result"]
    assert (counted["landed"], counted["failed"]) == (TASKS, 0)
    assert len(counted["attempts"]) == sum(one["attempts"] for one in shown["tasks"]), (counted, shown)


def _once(run: KilledRun) -> None:
    """Holds that nothing was asked of the model again but what a kill cut off, and nothing of a task that was done."""
    requests = run.requests()
    assert {(name_of(n), "work", step) for n in range(TASKS) for step in (1, 2)} <= requests.keys()
    again = {key: count - 1 for key, count in requests.items() if count > 1}
    may = Counter(run.may_ask_again)
    may.update(task for task, count in run.taken_over().items() if count >= MOST)  # it is ended, and begun anew
    too_often = {key: count for key, count in again.items() if count > may[key[0]]}
    assert not too_often, (too_often, run.may_ask_again, run.story())
    late = {task: count for task, count in run.asked_when_done.items() if run.asked(task) != count}
    assert not late, (late, run.story())


def _clean(run: KilledRun) -> None:
    """Holds that no process, lock, workspace, folder or token of the run is left; a gateway may stay for the next."""
    person = run.person
    until = time.monotonic() + 30
    while left := [one for one in processes(run.folder) if one.kind != "gateway" and one.pid != run.machine.anchor]:
        assert time.monotonic() < until, (left, run.story())
        time.sleep(0.05)
    data = person.data / "ropewalk"
    folders = [str(path) for part in ("ws", "work", "checks", "sessions", "doors") for path in data.glob(f"*/{part}/*")]
    assert not folders, (folders, run.story())
    assert person.rw("ws", "list")[1]["result"]["workspaces"] == []
    assert settings.read(str(person.gateway)).lanes == {}, run.story()
    lanes = person.rw("lane", "list")[1]["result"]["lanes"]
    assert [one for one in lanes if one["state"] in ("running", "starting", "created")] == [], lanes
    stray = [str(path) for top in (person.repo, person.data, person.temp) for path in top.rglob("*")
             if path.name.endswith((".new", ".lock")) and path.name not in _LOCKS]  # fmt: skip
    assert not stray, (stray, run.story())
    assert list(person.temp.iterdir()) == [], run.story()


_LOCKS = ("writer.lock", "projector.lock", "settings.lock")
"""Are files that the kernel locks, and that stay."""


def tell(run: KilledRun, number: int, error: str) -> None:
    """Adds what was done to a file that RWTEST_KILLS_RESULTS names, for the figures of the documents."""
    path = os.environ.get("RWTEST_KILLS_RESULTS")
    if path is None:
        return
    requests = run.requests()
    line = {
        "seed": SEED * 1000 + number,
        "kills": [[kill.kind, kill.moment, len(kill.done), kill.is_seeded] for kill in run.kills],
        "helped": run.helped, "own_boot": bool(run.machine.anchor), "requests": requests.total(),
        "again": requests.total() - len(requests), "conflicts": sum(key[1] == "conflict" for key in requests),
        "error": error,
    }  # fmt: skip
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
