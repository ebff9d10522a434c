"""A board's task bounds a real agent program: what the gateway counted, and nothing behind the cap but one request.

The program is one that `python tests/clis/install.py` installs; where it is not there the tests are skipped, but with
CI=true and RWTEST_CLIS=1 that is a failure.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.board.boardkit import BoardKit
from tests.clis import install
from tests.clis.matrix import MODELS, Gateway
from tests.clis.test_tools import needed

from ropewalk.gateway.prices import Price
from ropewalk.gateway.settings import Settings, Upstream
from ropewalk.lane.programs import registry
from ropewalk.lane.waits import Limits as LaneLimits
from ropewalk.plan.task import Limits, Task
from ropewalk.run.turn import Ways
from ropewalk.run.work.loop import work
from ropewalk.run.work.options import Options
from ropewalk.testing.model_server import ModelServer, running
from ropewalk.testing.models.reply import Usage

pytestmark = [pytest.mark.clis, pytest.mark.slow, pytest.mark.compat]

USAGE = {"input": 500, "output": 100, "cache_read": 0}
STEP = {"tool": "shell", "cmd": "echo done >> steps.txt", "usage": USAGE}
EACH = 600
"""Is how many tokens each answer says it used."""


def total(usage: Usage) -> int:
    """Gives all tokens that a provider would count."""
    return usage.prompt + usage.output


class Bench:
    """Is a board whose worker has a real program do the tasks, in front of a model server that follows a script."""

    def __init__(self, folder: Path, server: ModelServer, program: str) -> None:
        self.folder, self.server, self.program = folder, server, program
        self.board = BoardKit(folder / "store")
        self.gateway = Gateway(folder / "gateway", Settings())
        server.add("many", [*[STEP] * 30, {"text": "FINAL-ANSWER: all done"}])

    def work(self, limits: Limits) -> list[dict[str, Any]]:
        """Does one task and gives the worker's events."""
        self.add(Task("one", "true", description="Please do all of it.", limits=limits))
        return self.run()

    def add(self, task: Task) -> None:
        """Adds a task."""
        self.board.add(task)

    def run(self) -> list[dict[str, Any]]:
        """Does all tasks and gives the worker's events."""
        events: list[dict[str, Any]] = []
        held = install.default_folder()
        binary, node = install.binary(held, self.program), install.binary(held, "node")
        assert binary is not None and node is not None
        search = f"{binary.parent}:{node.parent}:/usr/local/bin:/usr/bin:/bin"
        upstream = Upstream(self.server.url(self.program, "many"), "real-key", price=Price(input=10.0, output=10.0))
        ways = Ways(
            "full", gateway=self.gateway.folder.as_posix(), upstreams={self.program: upstream}, named=(self.program,),
            model=MODELS.get(self.program, "scripted-model"), limits=LaneLimits(turns=None),
        )  # fmt: skip
        options = Options(
            "w1", registry.get(self.program), {**os.environ, "PATH": search}, str(self.folder / "data"),
            threading.Event(), lambda kind, **facts: events.append({"event": kind, **facts}), until_empty=True,
            seconds=120.0, ways=ways,
        )  # fmt: skip
        work(self.board.board, self.board.kit.store, options)
        return events

    def close(self) -> None:
        """Ends it."""
        self.board.close()
        self.gateway.end()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with running() as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """Gives a folder that the lanes' user may enter."""
    made = Path(tempfile.mkdtemp(prefix="ropewalk-limits-", dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("program", ["claude", "codex"])
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(tokens=4 * EACH - 1), "limit_tokens"),
        (Limits(turns=4), "limit_turns"),
        (Limits(money=(4 * EACH - 1) / 1e5), "limit_money"),
    ],
)
def test_a_real_program_is_held_to_its_task_s_limits(
    folder: Path, server: ModelServer, program: str, limits: Limits, reason: str
) -> None:
    needed(program)
    with ExitStack() as stack:
        bench = Bench(folder, server, program)
        stack.callback(bench.close)
        events = bench.work(limits)
        said = bench.board.verdict("one").values
        asked = [e for e in server.entries(program) if e.message_id]
        used = sum(int(part.partition("=")[2]) for part in said["tokens"].split() if not part.startswith("reasoning"))
        counted = server.counts()[program]
        assert (said["fixed"], said["reason"]) == ("false", reason), (said, events)
        assert bench.board.state("one") == "failed" and bench.board.board.ref("refs/swarm/tasks/one") is None
        assert used == total(counted.charged), "each token that the server told of, and no other"
        if limits.turns is None:
            most = limits.tokens or 4 * EACH - 1
            before = sum(total(e.usage) for e in asked[:-1] if e.usage is not None)
            assert before < most <= used, "the one request that passed the cap was the last"
        (told,) = [event for event in events if event["event"] == "limit_reached"]
        assert told["limit"] == reason.removeprefix("limit_") and told["tokens"] == used
