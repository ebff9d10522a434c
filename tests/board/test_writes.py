"""Write sets: of two tasks that write the same path one waits for the other, whoever claims them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.board.boardkit import ACTOR, BoardKit, bare
from tests.board.test_races import racers

from ropewalk.board import audit, claim, names, recover, reserve, state, tasks, tidy, writes
from ropewalk.board.claim import As, Held
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import ClaimedError
from ropewalk.plan.task import Task

PROCESSES = 24 if os.environ.get("RWTEST_FULL") else 4


def wide(name: str, *globs: str, **more: Any) -> Task:
    """Gives a task that writes some paths."""
    return Task(name, "true", description=f"Do {name}", owns=globs, **more)


def locks(board: BoardKit) -> list[str]:
    """Gives the tasks whose paths are locked."""
    return [ref[len(names.WRITES) :] for ref, _ in board.board.below(names.WRITES)]


def test_P1_two_tasks_that_touch_one_file_are_never_claimed_at_once(board: BoardKit) -> None:
    board.add(wide("a", "src/x.py"), Task("b", "true", modifies=("src/*.py",)), wide("c", "docs/"), "d")
    seen = board.status("b")
    held = board.take("a")
    assert (board.status("b").state, board.status("b").why) == ("waiting", "waits for a: both write src/x.py")
    assert [board.state(name) for name in ("c", "d")] == ["ready", "ready"]
    with pytest.raises(ClaimedError) as caught:
        claim.take(board.board, seen, board.who("w2"))
    assert caught.value.details | {"reason": "paths", "by": "a", "path": "src/x.py"} == caught.value.details
    assert board.board.ref(names.claim("b")) is None and locks(board) == ["a"]
    board.take("c")
    board.lawful()
    board.done("a", held=held)
    assert board.state("b") == "ready" and locks(board) == ["c"]
    board.lawful()


def test_P1_tasks_of_two_branches_do_not_meet() -> None:
    found = writes.Sets()
    found.add("a", "old", ("src/x.py",))
    assert found.met(wide("b", "src/x.py")) is None
    assert found.met(wide("b", "src/x.py", target="old")) == writes.Met("a", "src/x.py")
    assert found.met(Task("b", "true", target="old")) is None, "a task that names no path waits for none"


def test_P1_paths_are_free_again_however_an_attempt_ends(board: BoardKit) -> None:
    ends: dict[str, Callable[[Held], object]] = {
        "release": lambda held: claim.release(board.board, held),
        "die": lambda held: claim.die(board.board, held, Outcome(False, 1, 1, "command", reason="x")),
        "fail": lambda held: claim.close(board.board, held, Outcome(False, 1, 1, "command", reason="x")),
        "land": lambda held: board.done(held.task.id, held=held),
        "evict": lambda held: recover.evict(board.board, board.status(held.task.id), ACTOR, "it is gone"),
        "sweep": lambda held: recover.sweep(board.board, held.task.id, ACTOR, force=True),
    }
    board.add(wide("next", "x"), *(wide(name, "x", region="r") for name in ends))
    for name, end in ends.items():
        held = board.take(name)
        assert (board.state("next"), locks(board)) == ("waiting", [name])
        end(held)
        assert (board.state("next"), locks(board)) == ("ready", []), name
    board.lawful()


def test_P1_a_lock_that_nobody_holds_is_found_and_tidied(board: BoardKit) -> None:
    board.add(wide("a", "x"), wide("b", "x"))
    board.write(names.writes("a"), "lock writes\ntask: a\nattempt: att-w9-999999\ntarget: main\nwrites: x")
    assert board.state("b") == "waiting"
    (finding,) = [one for one in audit.audit(board.board).findings if one.kind == "lock"]
    assert "writes/a is locked by att-w9-999999" in finding.words
    assert tidy.tidy(board.board, ACTOR, everything=False) == [names.writes("a")]
    assert [board.state(name) for name in ("a", "b")] == ["ready", "ready"]


@pytest.mark.race
def test_P1_of_many_processes_that_want_one_path_at_the_same_moment_one_has_it(tmp_path: Path) -> None:
    """Each saw its own task ready; the store looks at the locks in the transaction of the claim."""
    board = BoardKit(tmp_path / "store")
    board.add(*(wide(f"t{n}", f"only/{n}", "shared/log.md") for n in range(PROCESSES)))
    with racers(board.kit.root, [""] * PROCESSES) as all_of:
        for number, one in enumerate(all_of):
            one.tell(f"look t{number}")
        assert {one.hear() for one in all_of} == {"seen"}
        for number, one in enumerate(all_of):
            one.tell(f"claim t{number}")
        said = [one.hear() for one in all_of]
    assert sum(words.startswith("won ") for words in said) == 1 and said.count("E_CLAIMED paths") == PROCESSES - 1, said
    assert len(locks(board)) == 1
    board.lawful()
    board.close()


def test_F19_on_a_git_server_a_worker_goes_by_its_last_look(tmp_path: Path) -> None:
    board = bare(tmp_path / "r.git")
    other = RemoteBoard(str(tmp_path / "r.git"), str(tmp_path / "other"))
    tasks.add(board, [wide("a", "x"), wide("b", "x"), wide("c", "x")], ACTOR)
    other.refresh()
    who = As("w1", ACTOR, "command")
    seen = {name: state.need(other, name) for name in ("b", "c")}
    first = state.need(board, "a")
    assert first is not None and seen["b"] is not None and seen["c"] is not None
    held = claim.take(board, first, who)
    second = claim.take(other, seen["b"], who)  # it has not seen the first one yet
    other.refresh()
    with pytest.raises(ClaimedError):
        claim.take(other, seen["c"], who)
    found = state.need(other, "c")
    assert found is not None and found.why.startswith("waits for a")
    for board_of, one in ((board, held), (other, second)):
        board_of.refresh()
        claim.release(board_of, one)
    board.refresh()
    assert board.below(names.WRITES) == []
    board.close()
    other.close()


def over(board: BoardKit, *tasks: str, bound: float = 60.0, mine: bool = True) -> set[str]:
    """Gives the tasks that are passed over."""
    return reserve.passed_over(board.board, map(board.status, tasks), bound, time.time(), lambda status: mine)


def aged(board: BoardKit, name: str, seconds: float) -> None:
    """Has a task wait for so long already."""
    content = board.board.content(board.board.ref(names.spec(name)) or "") or b""
    board.raw(names.spec(name), content.partition(b"\n\n")[2], at=int(time.time() - seconds))


def test_F20_a_wide_write_set_is_kept_free_once_it_waited_for_long(board: BoardKit) -> None:
    board.add(wide("all", "src/"), *(wide(f"n{n}", f"src/{n}.py") for n in range(3)), wide("doc", "README.md"), "free")
    everything = ("all", "n0", "n1", "n2", "doc", "free")
    assert over(board, *everything) == set()
    held = board.take("n0")
    assert board.state("all") == "waiting" and over(board, *everything) == set()
    aged(board, "all", 100)
    assert over(board, *everything) == {"n1", "n2"}
    claim.release(board.board, held)
    assert over(board, *everything) == {"n0", "n1", "n2"}, "it is its turn, whatever is more urgent"
    assert over(board, *everything, bound=49, mine=False) == set(), "not for ever, when nobody here could do it"
    aged(board, "n1", 200)
    assert over(board, *everything) == {"all"}, "who waits longer goes first; what does not meet it goes on"


def test_F20_regions_and_paths_are_reserved_in_one_order(board: BoardKit) -> None:
    """Two tasks of one age, one region and one path: what the one order passes over the other does not keep."""
    board.add(wide("a", "x", region="r"), wide("b", "x", region="r"), wide("c", "x"))
    for name in ("a", "b", "c"):
        aged(board, name, 1000)
    for _ in range(3):
        later = over(board, "a", "b", "c")
        assert len(later) == 2


def test_ten_thousand_tasks_with_paths_are_held_against_locks_without_comparing_each_with_each() -> None:
    found, kept = writes.Sets(), writes.Sets()
    listed = [wide(f"t{n}", f"src/part{n % 100}/file{n}.py", "docs/changes.md") for n in range(10_000)]
    for task in listed[:32]:
        found.add(task.id, "main", task.owns[:1])
    began = time.process_time()
    assert sum(found.met(task) is not None for task in listed) == 32
    for task in listed:
        if kept.met(task) is None:
            kept.add(task.id, "main", writes.of(task))
    assert time.process_time() - began < 3.0
    assert kept.met(listed[-1]) == writes.Met("t0", "docs/changes.md")
