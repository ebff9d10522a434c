"""A run of twenty tasks in which something is killed at random moments, and goes on: nothing is lost or done twice.

The victim is the worker, with or without its process group, the gateway, a lane's shim, or an agent. A killed worker is
started again, as its user would; everything else is left to it. What counts is looked at with git alone.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.processes import naming
from tests.work import asker
from tests.work.workkit import Process, WorkKit, task

from ropewalk.gateway import ledger
from ropewalk.gateway.process import read_address
from ropewalk.plan.task import Limits, Task
from ropewalk.testing.model_server import ModelServer, running
from storekit import stock

pytestmark = pytest.mark.crash

FULL = bool(os.environ.get("RWTEST_FULL"))
RUNS = int(os.environ.get("RWTEST_KILLED_RUNS", "32" if FULL else "1"))
MOMENTS = int(os.environ.get("RWTEST_KILLED_MOMENTS", "8" if FULL else "4"))
SEED = int(os.environ.get("RWTEST_SWEEP_SEED", "1"))
TASKS, JOBS = 20, 4
EVENTS = 3 * 9 * TASKS // (2 * MOMENTS)
"""Is how many events of the worker's pass between two moments at most; a task without trouble has nine."""

VICTIMS = ("worker", "worker", "group", "gateway", "shim", "agent")
WORDS = "one two three four five six"
_STEP = re.compile(rb"LANE (\S+) STEP (\d);")


class Seen(NamedTuple):
    """Is a process that belongs to a test: its id, and what it is."""

    pid: int
    kind: str


def processes(folder: Path) -> Iterator[Seen]:
    """Yields the living processes that name a folder in their words, their environment or their place."""
    for pid, words, said in naming(folder):
        if b"ropewalk.gateway.process" in words:
            yield Seen(pid, "gateway")
        elif b"shim.py" in words:
            yield Seen(pid, "shim")
        elif b"ROPEWALK_LANE=" in said:
            yield Seen(pid, "agent")
        elif b"tests.work.driver" in words:
            yield Seen(pid, "worker")
        else:
            yield Seen(pid, "other")


class Run:
    """Is a run of twenty tasks; half of their agents ask a model through the gateway."""

    def __init__(self, bench: WorkKit, server: ModelServer, seed: int) -> None:
        self.bench, self.server = bench, server
        self.draw = random.Random(seed)
        self.gateway = str(bench.folder / "gateway")
        self.kills: Counter[str] = Counter()
        server.add("paced", [{"text": WORDS, "pace": 0.05}])
        bench.add(*(self.task(number) for number in range(TASKS)))
        self.worker = self.start()

    def task(self, number: int) -> Task:
        """Gives a task; a killed agent is no fault of it."""
        name = f"f{number:02}"
        script = f"echo begun; sleep 0.{number % 4}; echo {number} > {name}"
        if number % 2:
            script = f"exec {sys.executable} -I -S {asker.__file__} {name}"
        return task(f"t{number:02}", script, f"test -f {name}", limits=Limits(heirs=99))

    def files(self) -> dict[str, str]:
        """Gives what is on main when nothing is ever killed."""
        asked = f"{WORDS}\n{WORDS}\n"
        made = {f"f{number:02}": asked if number % 2 else f"{number}\n" for number in range(TASKS)}
        return {"README.md": "# Demo\n", **made}

    def start(self) -> Process:
        """Starts the worker, as it was started before."""
        return self.bench.start(
            "w1", jobs=JOBS, heirs=99, failures=999, gateway=self.gateway, session=True,
            upstreams={"up": self.server.url("run", "paced")},
        )  # fmt: skip

    def strike(self) -> None:
        """Kills something; a worker is started again, once it is gone."""
        found = list(processes(self.bench.folder))
        kind = self.draw.choice(VICTIMS)
        victims = [one.pid for one in found if one.kind == kind]
        if kind in ("gateway", "shim", "agent") and victims:
            self.kills[kind] += 1
            try:
                os.kill(self.draw.choice(victims), signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
            return
        self.kills["group" if kind == "group" else "worker"] += 1
        if kind == "group":
            os.killpg(self.worker.child.pid, signal.SIGKILL)
        else:
            self.worker.kill(signal.SIGKILL)
        self.worker.end()
        self.worker = self.start()

    def is_over(self) -> bool:
        """Waits for a number of events that nobody chose, and a moment; says whether the worker has ended by then."""
        for _ in range(self.draw.randint(1, EVENTS)):
            if not self.worker.step():
                return True
        time.sleep(self.draw.uniform(0, 0.3))
        return self.worker.child.poll() is not None

    def end(self) -> None:
        """Waits for the run's end and looks at what it left."""
        assert self.worker.end() == 0, (self.worker.words(), self.worker.events[-5:])
        bench = self.bench
        repo = bench.kit.repo
        subjects = stock("log", "--format=%s", "main", cwd=repo).decode().splitlines()
        counts = Counter(subject for subject in subjects if subject.startswith("fix "))
        assert counts == {f"fix t{number:02}": 1 for number in range(TASKS)}
        for number in range(TASKS):
            said = stock("show", "-s", "--format=%B", f"refs/swarm/verdicts/t{number:02}", cwd=repo).decode()
            assert "\nfixed: true\n" in said
        assert stock("rev-parse", "main^{tree}", cwd=repo).decode().strip() == self.tree()
        left_over = bench.leftovers()
        if left_over:
            pytest.fail(self.story(left_over))
        self.wait_for_checks()
        left = [one for one in processes(bench.folder) if one.kind != "gateway"]
        assert left == [], [(one, Path(f"/proc/{one.pid}/cmdline").read_bytes()) for one in left]
        self.check_requests()
        bench.lawful()

    def story(self, left: list[str]) -> str:
        """Gives what is in folders that are left, and what workers said of their attempts."""
        names = {os.path.basename(path).partition(".")[0] for path in left}
        said = [event for worker in self.bench.started for event in worker.events if event.get("att") in names]
        inside = [str(path) for one in left for path in Path(one).rglob("*")]
        return "\n".join(map(str, [*left, *inside, *said]))

    def tree(self) -> str:
        """Gives the tree that a run has in which nothing is killed, made by git."""
        lines = []
        for name, text in sorted(self.files().items()):
            blob = stock("hash-object", "-w", "--stdin", stdin=text.encode(), cwd=self.bench.kit.repo).decode().strip()
            lines.append(f"100644 blob {blob}\t{name}\n")
        return stock("mktree", stdin="".join(lines).encode(), cwd=self.bench.kit.repo).decode().strip()

    def wait_for_checks(self) -> None:
        """Waits for processes that were told to end and are not gone yet."""
        until = time.monotonic() + 5
        while time.monotonic() < until and any(one.kind != "gateway" for one in processes(self.bench.folder)):
            time.sleep(0.02)

    def check_requests(self) -> None:
        """Holds that a request is made again only where the gateway was killed under it, and that each is counted."""
        asked: Counter[tuple[bytes, bytes]] = Counter()
        for one in self.server.entries("run"):
            body = self.server.body(one.number) or b""
            asked.update((found[1], found[2]) for found in _STEP.finditer(body))
        again = {step: count - 1 for step, count in asked.items() if count > 1}
        assert all(count <= self.kills["gateway"] for count in again.values()), again
        assert sum(again.values()) <= JOBS * self.kills["gateway"], again
        entries = list(ledger.entries(self.gateway))
        assert len({one.id for one in entries}) == len(entries) >= TASKS
        address = read_address(self.gateway)
        if address is not None:
            os.kill(address.pid, signal.SIGTERM)
        for lane in {one.lane for one in entries}:
            seen = ledger.read_activity(os.path.join(self.gateway, "activity"), lane)
            assert seen is not None and seen.requests == sum(one.lane == lane for one in entries), lane
            assert seen.tokens.total == sum(one.tokens.total for one in entries if one.lane == lane and one.tokens)

    def close(self) -> None:
        """Ends what is left."""
        self.worker.close()
        for one in processes(self.bench.folder):
            os.kill(one.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", range(RUNS))
def test_G4_G5_G25_devflock_A6_a_run_in_which_anything_is_killed_loses_nothing(bench: WorkKit, number: int) -> None:
    with running(keep_bodies=True) as server:
        run = Run(bench, server, SEED * 1000 + number)
        try:
            for _ in range(MOMENTS):
                if run.is_over():
                    break
                run.strike()
            run.end()
        finally:
            run.close()
    _tell(run)


def _tell(run: Run) -> None:
    """Adds what was done to a file that RWTEST_KILLED_RESULTS names, for the figures of the documents."""
    path = os.environ.get("RWTEST_KILLED_RESULTS")
    if path is None:
        return
    events = [event for worker in run.bench.started for event in worker.events]
    told = Counter(event["event"] for event in events)
    heirs = sum(e["event"] == "heir" and e["outcome"] == "requeued" for e in events)
    with open(path, "ab") as file:
        counts = {"takeovers": told["takeover"], "evictions": told["eviction"], "heirs": heirs}
        requests = len(run.server.entries("run"))
        file.write(msgspec.json.encode({**run.kills, **counts, "requests": requests}) + b"\n")
