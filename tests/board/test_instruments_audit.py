"""The audit tells the truth: what is in flight or failed honestly is healthy, and each lie is a fault."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.board import instrumentkit
from tests.board.boardkit import ACTOR, BoardKit
from tests.board.instrumentkit import processes

from ropewalk.board import audit, claim, names, tasks, wire
from ropewalk.board.audit import Audit
from ropewalk.board.base import Board, Step
from ropewalk.board.local import LocalBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import NotFoundError
from ropewalk.plan.task import Task
from ropewalk.store.oplog import Move
from storekit import put


def faults(result: Audit) -> list[tuple[str, str]]:
    """Gives (task, kind) of each fault."""
    return [(one.task, one.kind) for one in result.findings if one.fault]


def notes(result: Audit) -> list[tuple[str, str]]:
    """Gives (task, kind) of what is told and is no fault."""
    return [(one.task, one.kind) for one in result.findings if not one.fault]


def green(task: str, attempt: str, **more: str) -> str:
    """Gives the message of a verdict that says fixed."""
    return wire.verdict_words(task, attempt, "w1", Outcome(True, 0, 0, "command", more=more))


def claimed(task: str, attempt: str) -> str:
    """Gives the message of a claim that an attempt closed."""
    return wire.changed_claim(wire.claim_words(task, attempt, harness="command"), closed="20260101T000000Z")


def lie(board: BoardKit, task: str, returned: str | None, *, attempt: str = "att-w1-00000a", **more: str) -> None:
    """Writes what a task that is done has, as anybody with the right to push can."""
    if task not in [name[len(names.SPECS) :] for name, _ in board.board.below(names.SPECS)]:
        board.add(task)
    board.write(names.claim(task), claimed(task, attempt))
    board.write(names.verdict(task), green(task, attempt, **more))
    opened = board.board.ref(names.opened(task))
    moves = [Move(names.opened(task), opened, None)] if opened and returned is not None else []
    if returned is not None:
        moves.append(Move(names.returned(task), None, returned))
        board.board.push(Step("push", ACTOR, moves))


def test_R19_what_is_in_flight_and_what_failed_honestly_is_healthy(board: BoardKit) -> None:
    assert audit.audit(board.board).healthy
    board.add("ready", "taken", "red", "done", "dead", "gone", "twice")
    board.take("taken")
    board.failed("red")
    board.done("done")
    for _ in range(2):
        claim.die(board.board, board.take("dead"), Outcome(False, 124, 1, "command", reason="timeout"))
    tasks.cancel(board.board, "gone", board.who(), "not wanted")
    board.failed("twice")
    tasks.reopen(board.board, ["twice"], ACTOR)
    board.done("twice")
    result = audit.audit(board.board)
    assert (result.healthy, result.h1_pass, result.findings) == (True, True, [])
    assert result.counts == {"ready": 1, "claimed": 1, "failed": 1, "done": 2, "infrastructure": 1, "cancelled": 1}
    assert result.tasks["red"].verdict is False
    assert result.tasks["twice"].reopened_by is None
    assert result.tasks["done"].verdict_att == result.tasks["done"].claimed


def test_R4_fixed_without_its_change_on_the_target_is_a_fault(board: BoardKit) -> None:
    main = board.main()
    board.kit.change(put("other.txt", "by another task\n"))
    aside = board.kit.commit(put("x.txt", "x\n"), message="fix aside\n\nAttempt: att-w1-00000a\n").changeset
    lie(board, "nothing", None)
    lie(board, "aside", aside)
    lie(board, "old", main)
    lie(board, "satisfied", main, already="satisfied")
    result = audit.audit(board.board)
    assert faults(result) == [("aside", "not_landed"), ("nothing", "not_landed"), ("old", "no_change")]
    assert not result.healthy
    assert result.tasks["old"].verdict is True


def test_R4_a_commit_that_changes_nothing_is_no_fix(board: BoardKit) -> None:
    tree = board.kit.store.objects.commit(board.main()).tree
    who = "w <w@example.com> 1700000000 +0000"
    head = board.main()
    text = f"tree {tree}\nparent {head}\nauthor {who}\ncommitter {who}\n\nfix e\n\nAttempt: att-w1-00000a\n"
    from ropewalk.store.loose import object_id

    made = wire.Object(object_id("commit", text.encode()), text.encode())
    board.board.push(Step("push", ACTOR, [Move("refs/heads/main", head, made.id)], [made]))
    lie(board, "e", made.id)
    assert faults(audit.audit(board.board)) == [("e", "no_change")]
    assert audit.audit(board.board).findings[0].words.endswith("changes nothing")


def landed(board: BoardKit, task: str, attempt: str = "att-w1-00000a") -> str:
    """Lands a change that names an attempt, and gives the commit on main."""
    words = f"fix {task}\n\nAttempt: {attempt}\n"
    return board.kit.land(board.kit.commit(put(f"{task}.txt", "x\n"), message=words).changeset).landed


def test_R5_what_was_checked_has_to_be_what_landed(board: BoardKit) -> None:
    commit = landed(board, "same")
    lie(board, "same", commit, tree=board.kit.store.objects.commit(commit).tree, landed=commit)
    lie(board, "other", landed(board, "other"), tree="1" * 40)
    assert faults(audit.audit(board.board)) == [("other", "tree")]


def test_R16_a_verdict_needs_its_own_claim(board: BoardKit) -> None:
    board.add("none", "swapped", "closed")
    board.write(names.verdict("none"), green("none", "att-w9-000000"))
    board.write(names.claim("swapped"), claimed("swapped", "att-w1-000001"))
    board.write(
        names.verdict("swapped"), wire.verdict_words("swapped", "att-w1-000002", "w1", Outcome(False, 0, 1, "c"))
    )
    board.write(names.claim("closed"), claimed("closed", "att-w1-000003"))
    result = audit.audit(board.board)
    assert faults(result) == [
        ("closed", "closed"), ("none", "no_claim"), ("none", "not_landed"), ("swapped", "attempt"),
    ]  # fmt: skip
    assert result.h1_pass is False


def test_a_verdict_that_contradicts_itself_is_a_fault(board: BoardKit) -> None:
    commit = landed(board, "t")
    board.add("t", "maybe")
    text = wire.verdict_words("t", "att-w1-00000a", "w1", Outcome(True, 0, 1, "command"))
    board.write(names.claim("t"), claimed("t", "att-w1-00000a"))
    board.write(names.verdict("t"), text)
    board.board.push(Step("push", ACTOR, [Move(names.returned("t"), None, commit)]))
    board.write(names.claim("maybe"), claimed("maybe", "att-w1-00000b"))
    board.write(names.verdict("maybe"), "verdict\ntask: maybe\nattempt: att-w1-00000b\nfixed: perhaps")
    assert faults(audit.audit(board.board)) == [("maybe", "unreadable"), ("t", "check")]


def test_what_cannot_be_read_is_told_and_nothing_breaks(board: BoardKit) -> None:
    board.add("words", "blob")
    board.write(names.claim("words"), "claim words\nno attempt here")
    blob = board.kit.store.objects.write("blob", b"\xff\x00")
    with board.kit.store.transaction() as tx:
        tx.journal(board.kit.store.objects.take_new())
        tx.record("push", ACTOR, [Move(names.verdict("blob"), None, blob)])
    result = audit.audit(board.board)
    assert ("words", "unreadable") in faults(result)
    assert ("blob", "unreadable") in faults(result)


def test_R15_reviews_rest_on_what_is_there(board: BoardKit) -> None:
    board.add("t", "red")
    board.done("t")
    commit = board.board.ref(names.returned("t"))
    assert commit is not None
    ref = names.returned("t")
    said = {"ref": ref, "both": f"{ref}@{commit}", "commit": commit, "star": "*", "away": f"{ref}-x",
            "late": f"{ref}@{'1' * 40}", "else": "2" * 40}  # fmt: skip
    for reviewer, evidence in said.items():
        text = f"review-verdict\ntask: t\nreviewer: {reviewer}\noutcome: agree\nevidence: {evidence}"
        board.write(names.review("t", reviewer), text)
    board.write(names.review("t", "odd"), "review-verdict\ntask: t\nreviewer: odd\noutcome: perhaps\nevidence: x")
    board.failed("red")
    board.write(names.integrated("red"), f"integrated\ntask: red\nevidence: {names.verdict('red')}")
    result = audit.audit(board.board)
    told = sorted(one.words.split()[3] for one in result.findings if one.kind == "evidence")
    assert told == ["away", "else", "late", "star"]
    assert ("red", "gate") in faults(result)
    assert notes(result) == [("t", "review")]
    assert result.schema.reviewer_verdicts.total == 8
    assert [one.ref for one in result.schema.reviewer_verdicts.refused] == ["t@odd"]
    assert result.tasks["red"].integrated_sha == board.board.ref(names.integrated("red"))


def test_F18_a_task_that_landed_before_its_need_is_a_fault(board: BoardKit) -> None:
    board.add(Task("first", "true", description="x"), Task("second", "true", description="x", needs=("first",)))
    lie(board, "second", landed(board, "second"))
    result = audit.audit(board.board)
    assert faults(result) == [("second", "needs")]
    board.done("first")
    assert audit.audit(board.board).healthy
    tasks.reopen(board.board, ["first"], ACTOR, done=True)
    result = audit.audit(board.board)
    assert (result.healthy, notes(result)) == (True, [("second", "needs")])


def test_F8_whoever_opened_a_task_again_without_ropewalk_is_named(board: BoardKit) -> None:
    board.add("ours", "theirs")
    board.failed("ours")
    board.failed("theirs")
    tasks.reopen(board.board, ["ours"], "me/one")
    attempt = board.verdict("theirs").attempt
    moves = []
    for ref in (names.claim("theirs"), names.verdict("theirs")):
        value = board.board.ref(ref)
        moves += [Move(ref, value, None), Move(names.archived(ref, attempt), None, value)]
    board.board.push(Step("push", ACTOR, moves))
    result = audit.audit(board.board)
    assert ("theirs", "reopened") in notes(result)
    assert {task: row.reopened_by for task, row in result.tasks.items()} == {"ours": None, "theirs": "external"}


def test_leftovers_are_found(board: BoardKit) -> None:
    board.add(Task("t", "true", description="x", region="db"), "done")
    held = board.take("t")
    board.done("done")
    commit = board.main()
    board.board.push(Step("push", ACTOR, [Move(f"{names.QUEUE}main/0000000001.t", None, commit)]))
    assert audit.audit(board.board).healthy
    board.write(names.lock("api"), "lock api\ntask: done\nattempt: att-w1-00000c")
    board.write(names.landing_lock("main"), "landing main\nhost: x\natt-w1-00000d")
    moves = [Move(f"{names.QUEUE}main/0000000002.done", None, commit), Move(names.opened("done"), None, commit)]
    moves += [
        Move(names.opened("nobody"), None, commit),
        Move(names.opened("t"), board.board.ref(names.opened("t")), None),
    ]
    board.board.push(Step("push", ACTOR, moves))
    board.write(names.claim("orphan"), "claim orphan\natt-w1-00000e")
    result = audit.audit(board.board)
    assert sorted(faults(result)) == [("done", "lock"), ("done", "queue"), ("t", "hidden")]
    assert sorted(notes(result)) == [("", "lock"), ("done", "index"), ("nobody", "index"), ("orphan", "orphan")]
    assert result.claim_orphans == ["orphan"]
    assert held.attempt == result.tasks["t"].claimed


def test_R19_some_tasks_alone(board: BoardKit) -> None:
    board.add("good")
    board.done("good")
    lie(board, "bad", None)
    assert audit.audit(board.board, ["good"]).healthy
    assert list(audit.audit(board.board, ["good"]).tasks) == ["good"]
    assert not audit.audit(board.board, ["bad"]).healthy
    with pytest.raises(NotFoundError):
        audit.audit(board.board, ["good", "no-such"])


@pytest.mark.race
def test_R19_an_audit_sees_each_task_whole_while_others_work(
    board: BoardKit, new_board: Callable[..., BoardKit]
) -> None:
    listed = [f"t{number:02d}" for number in range(16)]
    board.add(*listed)
    other = new_board()

    def work() -> None:
        for task in listed:
            other.done(task)

    worker = threading.Thread(target=work)
    worker.start()
    looks = 0
    try:
        while worker.is_alive():
            result = audit.audit(board.board)
            assert result.findings == []
            looks += 1
    finally:
        worker.join()
    assert audit.audit(board.board).counts == {"done": 16}
    assert looks > 1


def kinds(tmp_path: Path, count: int) -> dict[str, Callable[[], Board]]:
    """Gives ways to open the same large board anew, as a new process would: in a store, and by a path."""
    origin = instrumentkit.bare(tmp_path / "origin.git")
    instrumentkit.done_tasks(origin, count)
    kit, _ = instrumentkit.local_board(origin, tmp_path / "store")
    instrumentkit.remote_board(origin, tmp_path / "host").refresh()
    return {
        "local": lambda: LocalBoard(kit.again().store),
        "remote": lambda: instrumentkit.remote_board(origin, tmp_path / "host"),
    }


def test_R17_an_audit_takes_few_processes_however_many_tasks_there_are(tmp_path: Path) -> None:
    for name, opened in kinds(tmp_path, 60).items():
        with processes() as started:
            result = audit.audit(opened())
        assert len(started) <= 5, (name, started)
        assert (result.healthy, result.counts) == (True, {"done": 60}), (name, result.findings[:3])


def test_R17_needs_cost_no_process_each(board: BoardKit) -> None:
    first = [Task(f"a{n:02d}", "true", description="x") for n in range(12)]
    board.add(*first, *(Task(f"b{n:02d}", "true", description="x", needs=(one.id,)) for n, one in enumerate(first)))
    for one in first:
        board.done(one.id)
    with processes() as started:
        assert audit.audit(LocalBoard(board.kit.again().store)).counts == {"done": 12, "ready": 12}
    assert len(started) <= 5, started


def cpu() -> float:
    """Gives the seconds of computing that this process and its children took, which no other process disturbs."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.mark.slow
def test_R17_an_audit_of_a_thousand_done_tasks_takes_less_than_a_second(tmp_path: Path) -> None:
    for name, opened in kinds(tmp_path, 1000).items():
        times = []
        for _ in range(3):
            board, begin = opened(), cpu()
            with processes() as started:
                result = audit.audit(board)
            (board.store if isinstance(board, LocalBoard) else board).close()
            times.append(cpu() - begin)
            assert len(started) <= 5, (name, started)
            assert result.counts == {"done": 1000}
        assert min(times) < 1.0, (name, times)
