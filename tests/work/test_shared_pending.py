"""A target that nobody may push: the change waits on a branch, and its task is done when others have merged it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.work.sharedkit import Shared, Worker
from tests.work.test_shared_crash import hook
from tests.work.test_shared_landing import Closed, Land, queued

from ropewalk.board import names, probe

from tests.work.sharedkit import until  # isort: skip


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    """Gives a board whose server takes no push to main."""
    made = Shared(tmp_path)
    hook(made, "update", 'test "$1" != refs/heads/main || { echo "GH006: Protected branch update failed"; exit 1; }')
    return made


def merge(shared: Shared, task: str, how: str) -> str:
    """Merges a task's branch into main as a person or a service does, and gives the new head."""
    folder = shared.folder / "person"
    if not folder.exists():
        shared.git("worktree", "add", "-q", "-B", "merging", str(folder), "main")
    git = ("-C", str(folder))
    from storekit import stock

    stock(*git, "reset", "-q", "--hard", "main")
    branch = f"ropewalk/{task}"
    if how == "merge":
        stock(*git, "merge", "-q", "--no-ff", "-m", "merge", branch)
    elif how == "squash":
        stock(*git, "merge", "-q", "--squash", branch)
        stock(*git, "commit", "-q", "-m", f"{task}, squashed")
    else:
        stock(*git, "cherry-pick", branch)
    head = stock(*git, "rev-parse", "HEAD").decode().strip()
    shared.git("update-ref", "refs/heads/main", head)
    return head


def settled(worker: Worker) -> list[str]:
    """Gives the tasks that a look closes."""
    worker.board.refresh()
    return worker.landing.settle(worker.board, worker.store, "test/settler")


def test_F13_a_refused_target_is_landed_on_by_others(shared: Shared) -> None:
    shared.add("a", "b", "c", region="")
    main = shared.main()
    door = Closed(shared)
    lands = {}
    for task in "abc":
        lands[task] = Land(shared, task)
        until(lambda: len(queued(shared)) == len(lands))
    door.open()
    results = {task: one.end() for task, one in lands.items()}
    assert {one.how for one in results.values()} == {"pending"}
    assert shared.main() == main and queued(shared) == []
    for task, one in results.items():
        assert shared.state(task) == "pending"
        shown = {shared.git("rev-parse", ref) for ref in (f"ropewalk/{task}", names.returned(task))}
        assert shown == {one.commit}
        verdict = shared.verdict(task)
        assert verdict.fixed is False and verdict.values["landed"] == "pending" and verdict.reason == "pending"
    shared.lawful()
    worker = Worker(shared, "settler", "two")
    assert settled(worker) == []
    heads = {}
    for task, how in (("a", "merge"), ("b", "squash")):
        shared.plain_push({f"between-{task}": "x\n"})
        heads[task] = merge(shared, task, how)
        assert settled(worker) == [task]
        verdict = shared.verdict(task)
        assert verdict.fixed and not verdict.reason and shared.state(task) == "done"
    # what was merged is on main as it was, and what was squashed is the squashed commit
    assert shared.git("rev-parse", names.returned("a")) == results["a"].commit == shared.verdict("a").values["landed"]
    assert shared.git("rev-parse", names.returned("b")) == heads["b"] == shared.verdict("b").values["landed"]
    assert shared.state("c") == "pending"
    assert [name for name, _ in worker.store.refs("refs/board/")] == [], "nothing of it stays in the store"
    worker.close()
    shared.lawful(everything_checked=False)


def test_F13_a_probe_that_was_made_spares_the_queue(shared: Shared) -> None:
    shared.add("a", check=shared.logged("test ! -e broken"))
    worker = Worker(shared)
    found = probe.probe(worker.board)
    assert found.landing == "pr"
    worker.take("a")
    assert worker.land("a", {"broken": "x\n"}).how == "failed"
    assert worker.land("a").how == "pending"
    assert [kind for kind, _ in worker.events] == []
    worker.close()
    shared.lawful()
