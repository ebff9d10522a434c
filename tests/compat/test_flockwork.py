"""flockwork 0.4.0's workers and ours on one board: each alone on a board of the other, and both at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.board import flockwork, invariants
from tests.board.boardkit import ACTOR, BoardKit, bare
from tests.board.flockwork import Flockwork
from tests.board.test_instruments_peer import agree

from ropewalk.board import state, tasks
from ropewalk.board.base import Board
from ropewalk.plan.task import Task
from storekit import SRC, stock

pytestmark = pytest.mark.compat

FULL = bool(os.environ.get("RWTEST_FULL"))
EACH, TASKS = (4, 64) if FULL else (2, 4)
SCRIPT = "for name in $(printf '%s' \"$brief\" | grep -o 'done-[a-z0-9]*[.]txt' | sort -u); do echo x > $name; done"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gives the folder of flockwork's package."""
    base = tmp_path_factory.getbasetemp()
    return flockwork.fetch(base.parent if base.name.startswith("popen-") else base)


def task(name: str, **more: Any) -> Task:
    """Gives a task whose agent has to make a file."""
    return Task(name, f"test -f done-{name}.txt", description=f"Make the file done-{name}.txt", **more)


def brief(name: str) -> str:
    """Gives flockwork's brief for the same."""
    return f"task {name}: make the file done-{name}.txt\nverify: test -f done-{name}.txt"


class Shared:
    """Is a board for both kinds of workers, in a store or a bare repository, and workers as processes."""

    def __init__(self, kind: str, folder: Path, package: str, rw: Any) -> None:
        self.folder, self.rw = folder, rw
        self.kit: BoardKit | None = None
        self.board: Board
        if kind == "store":
            self.kit = BoardKit(folder / "board", mixed=True)
            self.board, self.repository, self.named = self.kit.board, Path(self.kit.kit.repo), self.kit.kit.root
        else:
            self.repository = folder / "board.git"
            self.board, self.named = bare(self.repository, mixed=True), str(self.repository)
        self.peer = Flockwork(package, self.repository, folder / "peer")
        self.agent = self._agent(0)
        self.started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def _agent(self, seconds: float) -> str:
        path = self.folder / "agent"
        path.write_text(f"#!/bin/sh\nbrief=$(cat)\nsleep {seconds}\n{SCRIPT}\n")
        path.chmod(0o755)
        return str(path)

    def start_ours(self, worker: str, *more: str) -> None:
        """Starts a worker of ours."""
        words = [
            "work",
            "--board",
            self.named,
            "--command",
            self.agent,
            "--cage",
            "none",
            "--worker",
            worker,
            "--until-empty",
            *more,
        ]
        self.started.append((worker, subprocess.Popen(
            [sys.executable, "-m", "ropewalk.cli.main", *words, "--as", f"test/{worker}", "--json"],
            cwd=self.folder, env=self.rw.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )))  # fmt: skip

    def start_theirs(self, worker: str) -> None:
        """Starts a worker of flockwork."""
        # its pushes into a store run our hooks, which need the package
        path = f"{self.peer.package}:{SRC}"
        env = self.peer._env(OPENCODE_BIN=self.peer.agent(SCRIPT), PYTHONPATH=path)
        self.started.append((worker, subprocess.Popen(
            [sys.executable, "-m", "l2.inrepo", "worker", worker], cwd=self.peer.folder, env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )))  # fmt: skip

    def end(self) -> None:
        """Waits until all have ended, without a traceback."""
        while self.started:
            worker, child = self.started.pop()
            out, err = child.communicate(timeout=600 if FULL else 120)
            assert b"Traceback" not in out + err, (worker, out.decode(), err.decode())
            assert child.returncode == 0, (worker, child.returncode, out.decode(), err.decode())

    def ends(self) -> dict[str, state.Status]:
        """Gives the status of every task."""
        self.board.refresh()
        return state.look(self.board, everything=True)

    def files(self) -> list[str]:
        """Gives the files on main."""
        return stock("--git-dir", str(self.repository), "ls-tree", "--name-only", "main").decode().split()

    def agree(self) -> dict[str, Any]:
        """Checks the laws by git alone and that both audits say the same, task by task; gives ours."""
        assert invariants.broken(self.repository) == []
        self.board.refresh()
        return agree(self.board, self.peer)

    def close(self) -> None:
        """Ends what is left."""
        for _, child in self.started:
            child.kill()
            child.communicate()
        if self.kit is not None:
            self.kit.close()
        else:
            self.board.close()


@pytest.fixture(params=["store", "bare"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, package: str, rw: Any) -> Iterator[Shared]:
    made = Shared(request.param, tmp_path, package, rw)
    yield made
    made.close()


def test_R26_a_worker_of_flockwork_works_on_a_board_of_ours(shared: Shared) -> None:
    """It does what it can do rightly; what it would do wrongly is not shown to it, and waits for us."""
    tasks.add(
        shared.board,
        [task("a"), task("b"), task("c", owns=("done-c.txt",)), task("d", needs=("a",)), task("e", region="r")],
        ACTOR,
    )
    shared.start_theirs("fw1")
    shared.end()
    found = shared.ends()
    assert {name: one.state for name, one in found.items()} == {
        "a": "done", "b": "done", "c": "ready", "d": "ready", "e": "ready",
    }  # fmt: skip
    assert all(found[name].claim is not None and not found[name].claim.ours for name in "ab")  # type: ignore[union-attr]
    assert invariants.broken(shared.repository) == []
    shared.start_ours("w1")
    shared.end()
    found = shared.ends()
    assert {one.state for one in found.values()} == {"done"}
    assert {f"done-{name}.txt" for name in "abcde"} <= set(shared.files())
    assert shared.agree()["healthy"]


def test_R26_a_worker_of_ours_works_on_a_board_of_flockwork(package: str, rw: Any, tmp_path: Path) -> None:
    """Its board has no law; ours claims, lands and closes in its words, and its instruments take that for its own."""
    with ExitStack() as stack:
        shared = Shared("bare", tmp_path, package, rw)
        stack.callback(shared.close)
        stock("--git-dir", str(shared.repository), "update-ref", "-d", "refs/swarm/law")
        shared.peer.seed({"a": brief("a"), "b": brief("b"), "bad": "never\nverify: false"})
        shared.peer.work("fw1", SCRIPT, "b")
        shared.start_ours("w1")
        shared.end()
        found = shared.ends()
        assert {name: one.state for name, one in found.items()} == {"a": "done", "b": "done", "bad": "failed"}
        assert found["a"].claim is not None and found["a"].claim.ours
        shared.agree()
        said = json.loads(shared.peer.run("audit").stdout)["tasks"]
        assert said["a"]["returned"] and said["a"]["verdict"] == "true"
        assert shared.peer.json("open_tasks") == ["bad"] or shared.peer.json("open_tasks") == []


def test_R26_workers_of_both_kinds_share_a_board(shared: Shared) -> None:
    """Each task is done once, all of ours for good; both audits agree, and nobody prints a traceback."""
    names = [f"t{n}" for n in range(TASKS)]
    tasks.add(shared.board, [task(name) for name in names], ACTOR)
    shared.agent = shared._agent(5 if FULL else 0.5)  # a cycle of theirs costs a second, and they are to get some
    for number in range(EACH):
        shared.start_theirs(f"fw{number}")
        shared.start_ours(f"w{number}")
    shared.end()
    found = shared.ends()
    audit = shared.agree()
    files = set(shared.files())
    by_us = [name for name, one in found.items() if one.claim is not None and one.claim.ours]
    by_them = [name for name in names if name not in by_us]
    assert {found[name].state for name in by_us} <= {"done"}
    # flockwork gives up a fix whose push lost twice, and says so in its verdict
    assert {found[name].state for name in by_them} <= {"done", "failed"}
    for name, one in found.items():
        assert (one.state == "done") == (f"done-{name}.txt" in files), name
    assert sum(one["fault"] for one in audit["findings"]) == 0, audit["findings"]
    record = os.environ.get("RWTEST_FLOCKWORK_RESULTS")
    if record:
        row = {"board": "store" if shared.kit else "bare", "tasks": TASKS, "ours": len(by_us), "theirs": len(by_them),
               "failed": [name for name in names if found[name].state == "failed"]}  # fmt: skip
        with open(record, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
