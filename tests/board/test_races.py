"""Many processes for one task: one has it, all others are told so, on a store and on a git server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.board import invariants
from tests.board.boardkit import ACTOR, BoardKit, bare

from ropewalk.board import claim, holder, recover, state, tasks
from ropewalk.board.claim import As
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import ClaimedError
from ropewalk.plan.task import Task
from ropewalk.store import oplog
from ropewalk.store.oplog import Move
from storekit import child_env

pytestmark = pytest.mark.race

FULL = bool(os.environ.get("RWTEST_FULL"))
WORKERS, ROUNDS = (50, 100) if FULL else (10, 5)
FAR_WORKERS, FAR_ROUNDS = (8, 10) if FULL else (4, 2)


class Racer:
    """Is a process that claims what it is told to."""

    def __init__(self, where: str, folder: str, number: int) -> None:
        self.child = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "racer.py"), where, folder, str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_env(), text=True,
        )  # fmt: skip

    def tell(self, line: str) -> None:
        """Tells it something."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{line}\n")
        self.child.stdin.flush()

    def hear(self) -> str:
        """Gives what it says next."""
        assert self.child.stdout is not None and self.child.stderr is not None
        line = self.child.stdout.readline().strip()
        assert line, self.child.stderr.read()
        return line

    def end(self) -> None:
        """Lets it end."""
        _, err = self.child.communicate(timeout=120)
        assert (self.child.returncode, err) == (0, "")


@contextmanager
def racers(where: str, folders: Sequence[str]) -> Iterator[list[Racer]]:
    """Gives racers that are ready."""
    started = [Racer(where, folder, number) for number, folder in enumerate(folders)]
    try:
        assert all(one.hear() == "ready" for one in started)
        yield started
        for one in started:
            one.end()
    finally:
        for one in started:
            one.child.kill()
            one.child.communicate()


def race(started: list[Racer], task: str) -> Counter[str]:
    """Lets all look, and then all claim; gives how often each answer came, `won` without its attempt."""
    for word in ("look", "claim"):
        for one in started:
            one.tell(f"{word} {task}")
        heard = [one.hear() for one in started]
    return Counter(line.split()[0] if line.startswith("won") else line for line in heard)


def test_B1_R1_of_fifty_processes_one_claims_a_task_and_the_others_are_told(tmp_path: Path) -> None:
    board = BoardKit(tmp_path / "store")
    names_of = [f"t{n}" for n in range(ROUNDS)]
    board.add(*names_of)
    wanted = Counter({"won": 1, "E_CLAIMED claimed": WORKERS - 1})
    with racers(board.kit.root, [""] * WORKERS) as started:
        for task in names_of:
            assert race(started, task) == wanted
    assert all(board.state(task) == "claimed" for task in names_of)
    board.lawful()
    kinds = board.kit.store.db.rows("SELECT count(*) FROM ops WHERE kind = 'claim'")
    assert kinds == [(ROUNDS,)]
    board.close()


def test_B1_on_a_git_server_one_claims_a_task_and_the_others_are_told(tmp_path: Path) -> None:
    """Half of the racers share a mirror, as the workers of one host do; the others have one each."""
    repository = tmp_path / "board.git"
    board = bare(repository)
    names_of = [f"t{n}" for n in range(FAR_ROUNDS)]
    tasks.add(board, [Task(name, "true") for name in names_of], ACTOR)
    folders = [str(tmp_path / ("host" if n % 2 else f"host{n}")) for n in range(FAR_WORKERS)]
    with racers(str(repository), folders) as started:
        for task in names_of:
            assert race(started, task) == Counter({"won": 1, "E_CLAIMED claimed": FAR_WORKERS - 1})
    assert invariants.broken(repository) == []
    board.close()


def test_F19_of_many_for_the_tasks_of_one_region_one_gets_it(tmp_path: Path) -> None:
    board = BoardKit(tmp_path / "store")
    board.add(*(Task(f"t{n}", "true", region="r") for n in range(5)))
    with racers(board.kit.root, [""] * 5) as started:
        for number, one in enumerate(started):
            one.tell(f"look t{number}")
            assert one.hear() == "seen"
        for number, one in enumerate(started):
            one.tell(f"claim t{number}")
        heard = Counter(one.hear().replace("won", "won ").split(" ")[0] for one in started)
    assert heard == {"won": 1, "E_CLAIMED": 4}
    board.lawful()
    board.close()


def test_B10_two_hosts_that_add_tasks_at_once_lose_none(tmp_path: Path) -> None:
    """Each has looked before the other added; whichever comes second, all tasks are there, under their names."""
    repository = tmp_path / "board.git"
    with ExitStack() as stack:
        one = bare(repository)
        stack.callback(one.close)
        two = RemoteBoard(str(repository), str(tmp_path / "two"))
        stack.callback(two.close)
        assert state.look(one) == state.look(two) == {}
        assert tasks.add(one, [Task("a", "true"), Task("both", "true")], ACTOR) == (["a", "both"], [])
        added, changed = tasks.add(two, [Task("b", "true"), Task("both", "true")], ACTOR)
        # the same spec made in the same second is the same object, which git takes for done
        assert added in (["b"], ["b", "both"]) and changed == []
        for board in (one, two):
            board.refresh()
            assert list(state.look(board)) == ["a", "b", "both"]
    assert invariants.broken(repository) == []


def test_B11_what_a_newer_client_wrote_is_kept_as_it_is(tmp_path: Path) -> None:
    """Fields and kinds of refs that this version does not know stay, through claim, release, failing and reopening."""
    board = BoardKit(tmp_path / "store")
    made = board.raws({
        "refs/swarm/specs/a": b"spec a\n\nverify: true\nshape: triangle\n\nDo a\n",
        "refs/swarm/sprints/seven": b"sprint seven\nof: a",
        "refs/swarm/open/a": b"x",
    })  # fmt: skip
    board.force("refs/swarm/open/a", made["refs/swarm/specs/a"])
    assert board.state("a") == "ready" and "shape: triangle" in board.status("a").spec.brief
    claim.release(board.board, board.take("a"))
    board.failed("a")
    tasks.reopen(board.board, ["a"], ACTOR)
    board.done("a")
    assert board.board.ref("refs/swarm/specs/a") == made["refs/swarm/specs/a"]
    assert board.board.ref("refs/swarm/sprints/seven") == made["refs/swarm/sprints/seven"]
    board.lawful()
    board.close()


def test_B12_a_task_closed_by_other_means_is_listed_no_more(tmp_path: Path) -> None:
    """Somebody cancels what a worker has just seen as ready: it gets `E_CLAIMED`, and the next look has it no more."""
    board = BoardKit(tmp_path / "store")
    board.add("a")
    seen = board.status("a")
    again = BoardKit(tmp_path / "store")
    tasks.cancel(again.board, "a", As("w2", ACTOR, "command"))
    with pytest.raises(ClaimedError):
        claim.take(board.board, seen, board.who())
    assert state.look(board.board) == {} and board.state("a") == "cancelled"
    again.close()
    board.close()


def test_B14_a_return_and_its_verdict_are_one_operation(tmp_path: Path) -> None:
    board = BoardKit(tmp_path / "store")
    board.add(Task("a", "true", region="r"))
    board.done("a")
    moved = [m.name for m in _last(board)]
    assert sorted(moved) == [
        "refs/heads/main", "refs/swarm/claims/a", "refs/swarm/locks/region/r", "refs/swarm/open/a",
        "refs/swarm/tasks/a", "refs/swarm/verdicts/a",
    ]  # fmt: skip
    board.add("b")
    claim.die(board.board, board.take("b"), Outcome(False, 1, 1, "command"))
    assert sorted(m.name.split("@")[0] for m in _last(board)) == ["refs/swarm/archive/claims/b", "refs/swarm/claims/b"]
    board.lawful()
    board.close()


def _last(board: BoardKit) -> Sequence[Move]:
    return oplog.find(board.kit.store.db, board.kit.store.last_op()).body.moves


def test_B22_a_claim_does_not_lapse_before_its_lease(tmp_path: Path) -> None:
    """As long as its holder beats, or lives on this host, or was not seen silent for a lease, nobody ends it."""
    board = BoardKit(tmp_path / "store")
    board.add("a", "b")
    board.take("a", host=holder.mine())
    board.take("b", host="elsewhere/boot/1/1")
    for age in (0.0, 299.0):
        census = recover.reconcile(board.board, {"a": age, "b": age}, ACTOR)
        assert census.swept == [] and board.state("a") == board.state("b") == "claimed"
    census = recover.reconcile(board.board, {"a": 301.0, "b": 301.0}, ACTOR)
    assert len(census.swept) == 1, "who lives in a long call is left alone"
    assert board.state("a") == "claimed" and board.state("b") == "ready"
    board.lawful()
    board.close()


def test_B23_the_kill_of_a_holder_of_locks_hangs_nobody(tmp_path: Path) -> None:
    """A process is killed with the store's lock and a region held: others go on, and the region is freed."""
    board = BoardKit(tmp_path / "store")
    board.add(Task("a", "true", region="r"), Task("b", "true", region="r"), "c")
    code = (
        "import os, signal, sys\n"
        "from tests.board.boardkit import BoardKit\n"
        "from ropewalk.board import holder\n"
        "b = BoardKit(sys.argv[1])\n"
        "b.take('a', 'dead', host=holder.mine())\n"
        "b.kit.store.lock.acquire(5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = str(Path(__file__).parents[2])
    env = child_env()
    env["PYTHONPATH"] += f":{root}:{root}/tests"
    done = subprocess.run([sys.executable, "-c", code, board.kit.root], env=env, capture_output=True, timeout=60)
    assert done.returncode == -9, done.stderr
    board.failed("c")
    assert (board.state("a"), board.status("b").why) == ("claimed", "region r is busy")
    recover.reconcile(board.board, {}, ACTOR)
    assert (board.state("a"), board.state("b")) == ("ready", "ready")
    board.lawful()
    board.close()


def test_B2_no_agent_starts_before_its_claim_is_durable(tmp_path: Path) -> None:
    """Two workers poll one task: one agent starts, once the claim is on disk and stock git shows it."""
    board = BoardKit(tmp_path / "store")
    board.add(Task("a", "true"))
    log, agent, trace = tmp_path / "log", tmp_path / "agent", tmp_path / "trace"
    agent.write_text(
        f"#!/bin/sh\nunset GIT_DIR\ngit --git-dir '{board.kit.repo}' log -1 --format=%B refs/swarm/claims/a >> {log}\n"
        "echo x > done.txt\n"
    )
    agent.chmod(0o755)
    env = child_env(HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    started = []
    for worker in ("w1", "w2"):
        words = ["-m", "ropewalk.cli.main", "work", "--board", board.kit.root, "--command", str(agent),
                 "--cage", "none", "--worker", worker, "--as", f"test/{worker}", "--until-empty",
                 "--patience", "60"]  # fmt: skip
        strace = ["strace", "-f", "-qq", "-y", "-o", f"{trace}.{worker}", "-e", "trace=execve,fdatasync,rename"]
        started.append(subprocess.Popen([*strace, sys.executable, *words], env=env, cwd=tmp_path,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))  # fmt: skip
    for child in started:
        out, err = child.communicate(timeout=180)
        assert child.returncode == 0, (out, err)
    said = log.read_text()
    (attempt,) = [line for line in said.split() if line.startswith("att-")]
    assert board.status("a").state == "done" and board.verdict("a").attempt == attempt
    orders = []
    for worker in ("w1", "w2"):
        lines = Path(f"{trace}.{worker}").read_text(errors="replace").splitlines()
        starts = [n for n, line in enumerate(lines) if "execve(" in line and str(agent) in line and " = -1" not in line]
        if starts:
            shown = next(n for n, line in enumerate(lines) if "rename(" in line and "refs/swarm/claims/a" in line)
            synced = next(n for n, line in enumerate(lines) if "fdatasync(" in line and "store.db-wal" in line)
            orders.append(synced < shown < starts[0])
    assert orders == [True], "one of the two started an agent, after its claim"
    board.lawful()
    board.close()
