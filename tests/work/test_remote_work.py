"""Workers on a board on a git server: the same loop, with a store of the host for workspaces."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.work.sharedkit import Shared
from tests.work.test_deaths import began, blocked, ends_soon
from tests.work.workkit import WorkKit, task

from ropewalk.board import names, recover, tasks
from ropewalk.plan.task import Task
from ropewalk.store import layout


class RemoteKit(WorkKit):
    """Is a bare repository with a board, and workers whose hosts are folders."""

    def __init__(self, folder: Path) -> None:
        self._prepare(folder)
        self.shared = Shared(folder)
        self.there = self.shared.board("judge")
        self.more = {"remote": str(self.shared.bare), "cache": str(folder / "cache")}
        self.roots: set[str] = set()

    def root(self, worker: str) -> str:
        """Gives the one store that the host has for this board."""
        root = str(self.folder / "host")
        if not self.roots:
            layout.create(root, "test-host", "host", "main")
            self.roots.add(root)
        return root

    def add(self, *found: Task | str, **how: object) -> tuple[list[str], list[str]]:
        """Adds tasks."""
        return tasks.add(self.there, [one for one in found if isinstance(one, Task)], "test/one")

    def said_state(self, name: str) -> str:
        """Gives a task's state as the server has it now."""
        from ropewalk.board import state

        self.there.refresh()
        found = state.need(self.there, name)
        assert found is not None
        return found.state

    def tree(self) -> list[str]:
        """Gives the names of the files on the server's main."""
        return self.shared.git("ls-tree", "-r", "--name-only", "main").split()

    def fixed(self, name: str) -> int:
        """Gives how many commits on the server's main fix a task."""
        return self.shared.git("log", "--format=%s", "main").split("\n").count(f"fix {name}")

    def close(self) -> None:
        """Ends what is left of the workers."""
        for process in self.started:
            process.close()
        self.there.close()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[RemoteKit]:
    """Gives a board on a git server."""
    made = RemoteKit(tmp_path)
    yield made
    made.close()


def test_R14_a_worker_on_a_git_server(far: RemoteKit) -> None:
    far.add(task("one", "echo x > f", "test -f f"), task("two", "cat f > g", "test -s g", needs=("one",)))
    far.add(task("three", "echo nothing", "test -f README.md"), task("four", "echo x > h", "exit 3"))
    far.add(task("five", "exit 9"))
    process = far.work()
    ends = {t["task"]: t["how"] for t in process.report["tasks"]}
    assert ends == {"one": "landed", "two": "landed", "three": "satisfied", "four": "failed", "five": "infrastructure"}
    assert {name: far.said_state(name) for name in ends} == {
        "one": "done", "two": "done", "three": "done", "four": "failed", "five": "infrastructure"
    }  # fmt: skip
    assert "f" in far.tree() and "g" in far.tree() and "h" not in far.tree()
    assert far.leftovers() == []
    far.shared.lawful(everything_checked=False)


def test_R3_three_workers_on_a_git_server(far: RemoteKit) -> None:
    far.add(*(task(f"t{n}", f"echo {n} > f{n}", f"test -f f{n}") for n in range(6)))
    far.root("w0")
    workers = [far.start(f"w{n}") for n in range(3)]
    assert [worker.end() for worker in workers] == [0] * 3, [w.words() for w in workers]
    assert all(far.said_state(f"t{n}") == "done" and far.fixed(f"t{n}") == 1 for n in range(6))
    far.shared.lawful(everything_checked=False)


def test_R11_a_worker_killed_on_a_git_server_is_taken_over(far: RemoteKit, tmp_path: Path) -> None:
    """Its agent lives on, and what it does lands under the claim that it began with."""
    far.add(task("one", blocked(tmp_path)))
    process = far.start("w1")
    began(tmp_path)
    process.kill(signal.SIGKILL)
    process.end()
    other = far.start("w2")
    other.until("takeover")
    (tmp_path / "gate").write_text("x\n")
    assert other.end() == 0, other.words()
    assert not other.kinds("eviction") and far.said_state("one") == "done" and far.fixed("one") == 1
    assert far.shared.git("show", "main:f") == "old"
    assert far.leftovers() == []
    far.shared.lawful(everything_checked=False)


def test_R10_sigterm_on_a_git_server(far: RemoteKit, tmp_path: Path) -> None:
    far.add(task("one", blocked(tmp_path)))
    process = far.start("w1")
    began(tmp_path)
    ends_soon(process, far)
    assert far.said_state("one") == "ready"
    far.shared.lawful(everything_checked=False)


def test_R7_a_worker_that_slept_lands_nothing_on_a_git_server(far: RemoteKit, tmp_path: Path) -> None:
    far.add(task("one", blocked(tmp_path)))
    sleeper = far.start("sleeper")
    began(tmp_path)
    sleeper.kill(signal.SIGSTOP)
    far.said_state("one")
    from ropewalk.board import state

    found = state.need(far.there, "one")
    assert found is not None
    recover.evict(far.there, found, "test/one", "it was silent")
    far.work("w2")
    (tmp_path / "gate").write_text("go\n")
    sleeper.kill(signal.SIGCONT)
    assert sleeper.end() == 0
    assert [t["how"] for t in sleeper.report["tasks"]] == ["fenced"]
    assert far.shared.git("show", "main:f") == "new" and far.fixed("one") == 1
    far.shared.lawful(everything_checked=False)


def test_R11_beats_on_a_git_server_change_the_claim_and_it_lands_all_the_same(far: RemoteKit, tmp_path: Path) -> None:
    far.add(task("one", blocked(tmp_path)))
    worker = far.start("w1", beat=0.2)
    began(tmp_path)
    seen = set()
    until = time.monotonic() + 60
    while len(seen) < 3:
        assert time.monotonic() < until
        far.there.refresh()
        seen.add(far.there.ref(names.claim("one")))
    (tmp_path / "gate").write_text("go\n")
    assert worker.end() == 0
    assert far.said_state("one") == "done"
    far.shared.lawful(everything_checked=False)


def test_R8_a_server_that_refuses_claims_is_given_up(far: RemoteKit) -> None:
    far.add(task("one", "echo x > f"))
    hook = far.shared.bare / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    hook.chmod(0o755)
    process = far.work(exit=1)
    assert process.report["ended"] == "gave_up" and "refused" in process.report["reason"]
    assert [e["outcome"] for e in process.kinds("claim")] == ["structural"] * 3


def test_R8_a_server_out_of_reach_is_waited_for_and_then_given_up(far: RemoteKit) -> None:
    far.add(task("one", "echo x > f"))
    giving = far.start("w1", until_empty=False, outage_seconds=1.0, only=["none"])
    held = far.start("w3", until_empty=False)
    held.until("attempted", task="one")
    os.rename(far.shared.bare, far.folder / "away.git")
    giving.until("origin_unreachable")
    assert giving.end() == 1 and "out of reach" in giving.report["reason"]
    held.until("origin_unreachable")
    os.rename(far.folder / "away.git", far.shared.bare)
    far.add(task("two", "echo x > g"))
    held.until("attempted", task="two")
    held.kill(signal.SIGTERM)
    assert held.end() == 0
