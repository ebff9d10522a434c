"""The store as a board for others: flockwork's workers over plain git, and what a push may not do, whoever makes it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.board import flockwork as peer
from tests.board.flockwork import Flockwork

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.board import claim, gate, holder, names, observe, recover, review, rules, state, tasks, wire
from ropewalk.board.base import Board, Step
from ropewalk.board.claim import As, Held
from ropewalk.board.local import LocalBoard
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Outcome
from ropewalk.core import clock
from ropewalk.core.errors import RemoteError
from ropewalk.plan.task import Gate, Task
from ropewalk.remote import receiving
from ropewalk.remote.receiving import ZERO, Command, Push
from ropewalk.remote.tokens import EVERYTHING, Rights
from ropewalk.store.oplog import Move
from storekit import SRC, Kit, put

ACTOR = "test/one"
STRANGER = Push("git/stranger", EVERYTHING)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", "a\n"))
    yield made
    made.close()


@pytest.fixture
def board(kit: Kit) -> LocalBoard:
    made = LocalBoard(kit.store)
    tasks.init(made, ACTOR, mixed=True)
    return made


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    # the hooks of the store run as children of flockwork's git, and have to find us
    return f"{peer.fetch(tmp_path_factory.getbasetemp().parent / 'peers')}{os.pathsep}{SRC}"


def take(board: Board, name: str, worker: str = "w1", host: str = "") -> Held:
    found = state.need(board, name)
    assert found is not None and found.state == "ready", found
    return claim.take(board, found, As(worker, f"test/{worker}", "script", host=host))


def done(board: LocalBoard, kit: Kit, name: str) -> Held:
    held = take(board, name)
    claim.close(board, held, Outcome(True, 0, 0, "script"), kit.main())
    return held


def stands(board: Board, name: str) -> str:
    found = state.need(board, name)
    assert found is not None
    return found.state


def fresh(kit: Kit, text: str) -> str:
    """Gives the id of a new object in the store."""
    made = wire.make(text, 1_700_000_000)
    kit.store.objects.write("tree", b"")
    kit.store.objects.write("commit", made.content)
    with kit.store.transaction() as tx:
        tx.journal(kit.store.objects.take_new())
        tx.record("objects", ACTOR, [])
    return made.id


def push(
    kit: Kit, moves: Sequence[tuple[str, str | None]], who: Push = STRANGER, *, atomic: bool = True
) -> dict[str, str]:
    """Pushes refs to new values, from where they are; gives the refusals."""
    commands = [Command(kit.store.ref(ref) or ZERO, new or ZERO, ref) for ref, new in moves]
    answers = receiving.receive(kit.store, commands, who._replace(atomic=atomic), rules.refusals)
    return {one.ref: one.refused for one in answers if one.refused is not None}


def swept(kit: Kit, task: str, attempt: str) -> list[tuple[str, str | None]]:
    """Gives the push of flockwork's sweep, in its order."""
    moves: list[tuple[str, str | None]] = []
    for ref in (names.claim(task), names.returned(task), names.verdict(task)):
        if (value := kit.store.ref(ref)) is not None:
            moves += [(ref, None), (names.archived(ref, attempt), value)]
    return moves


# flockwork itself


def test_F16_flockwork_does_its_whole_cycle_on_a_store(kit: Kit, package: str, tmp_path: Path) -> None:
    board = LocalBoard(kit.store)
    one = Flockwork(package, kit.repo, tmp_path / "one")
    one.seed({name: f"do {name}\nverify: test -e {name}.txt" for name in ("t1", "t2", "t3")})
    assert not board.below(names.OPEN)
    assert len(recover.reconcile(board, {}, ACTOR).tidied) == 3
    script = 'name=$(echo "$brief" | sed -n "s/^do //p"); sleep 0.2; echo x > "$name.txt"'
    others = [Flockwork(package, kit.repo, tmp_path / f"w{n}") for n in range(2)]
    threads = [threading.Thread(target=w.work, args=(f"w{n}", script)) for n, w in enumerate(others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    audit = one.json("audit")
    assert audit["h1_pass"] is True, audit
    assert {stands(board, f"t{n}") for n in range(1, 4)} == {"done"}
    assert {f"t{n}.txt".encode() for n in range(1, 4)} <= set(kit.files())
    census = recover.reconcile(board, {}, ACTOR)
    assert len(census.healthy) == 3 and not board.below(names.OPEN)
    kit.fsck()


def test_F16_a_lost_race_is_told_as_stale_info(kit: Kit, package: str, tmp_path: Path) -> None:
    board = LocalBoard(kit.store)
    tasks.add(board, [Task("t", "true")], ACTOR)
    worker = Flockwork(package, kit.repo, tmp_path / "w")
    assert worker.json("claim", "t", SWARM_HOST="w1")["att"].startswith("att-w1-")
    # another clone that saw the board before: its lease is on nothing
    made = fresh(kit, "claim t\natt-w2-abc123")
    answer = receiving.receive(kit.store, [Command(ZERO, made, names.claim("t"))], STRANGER, rules.refusals)
    assert answer[0].refused == receiving.STALE
    lost = worker.run("claim", "t", ok=False, SWARM_HOST="w2")
    assert lost.returncode == 1 and '"att": null' in lost.stdout


def test_F17_R16_flockwork_evicts_nobody_who_lives_and_judges_nothing_it_does_not_hold(
    kit: Kit, board: LocalBoard, package: str, tmp_path: Path
) -> None:
    tasks.add(board, [Task("t", "true"), Task("red", "true"), Task("free", "true")], ACTOR)
    held = take(board, "t")
    claim.close(board, take(board, "red"), Outcome(False, 0, 1, "script"))
    other = Flockwork(package, kit.repo, tmp_path / "w")
    said = other.run("sweep", "t", ok=False)
    assert said.returncode and "claim is live" in said.stderr
    assert board.ref(names.claim("t")) == held.claim
    # R13: what failed by merit is final, whatever flockwork's reconcile makes of it
    census = other.json("reconcile", kit.repo, "0")
    assert not census["swept"] and {one["task"] for one in census["errors"]} == {"t", "red"}
    assert stands(board, "red") == "failed"
    for attempt in ("att-nobody-abc123", held.attempt[:-1] + "0"):
        done = other.json("verdict", "free", attempt, "true", "0", "1", ok=False)
        assert not done["verdict_pushed"] and board.ref(names.verdict("free")) is None
    claim.close(board, held, Outcome(True, 0, 0, "script"), kit.main())
    assert stands(board, "t") == "done"


@pytest.mark.slow
def test_F8_flockwork_claims_only_where_the_law_says_mixed(kit: Kit, package: str, tmp_path: Path) -> None:
    board = LocalBoard(kit.store)
    tasks.init(board, ACTOR, mixed=False)
    tasks.add(board, [Task("t", "true")], ACTOR)
    worker = Flockwork(package, kit.repo, tmp_path / "w")
    assert worker.json("claim", "t", ok=False, SWARM_HOST="w1")["att"] is None
    assert stands(board, "t") == "ready"


@pytest.mark.slow
def test_R15_flockworks_gate_fires_only_where_ours_would(
    kit: Kit, board: LocalBoard, package: str, tmp_path: Path
) -> None:
    tasks.add(board, [Task("t", "true", gate=Gate(1, 2))], ACTOR)
    done(board, kit, "t")
    other = Flockwork(package, kit.repo, tmp_path / "w")
    words = other.run("review", "t", "alice", "agree", "refs/swarm/verdicts/t", ok=False)
    assert words.returncode == 1 and board.ref(names.review("t", "alice")) is None
    assert other.run("review", "t", "w1", "agree", ok=False).returncode == 1
    other.run("review", "t", "alice", "agree")
    assert [one.reviewer for one in review.said(board, _need(board, "t")).agree] == ["alice"]
    review.review(board, "t", "bob", "veto", "human/bob")
    other.run("gate", "t", ok=False)
    assert board.ref(names.integrated("t")) is None


def _need(board: Board, task: str) -> state.Status:
    found = state.need(board, task)
    assert found is not None
    return found


# our own workers, by pushes


def test_F1_our_remote_board_on_a_store(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SRC)
    (tmp_path / "seen").mkdir()
    there = RemoteBoard(kit.repo, str(tmp_path / "seen"))
    tasks.init(there, ACTOR, mixed=True)
    tasks.add(there, [Task(name, "true", region=region) for name, region in (("a", "r"), ("b", "r"), ("c", ""))], ACTOR)
    there.refresh()
    held = take(there, "a")
    there.refresh()
    assert stands(there, "b") == "waiting"
    held = claim.beat(there, held)
    claim.release(there, held)
    there.refresh()
    held = take(there, "b")
    there.refresh()
    claim.close(there, held, Outcome(True, 0, 0, "script"), kit.main())
    there.refresh()
    take(there, "c")
    there.refresh()
    with pytest.raises(RemoteError, match="keeps its law"):
        there.push(Step("law", ACTOR, [Move(names.LAW, there.ref(names.LAW), None)]))
    there.refresh()
    lost = _need(there, "c")
    assert recover.evict(there, lost, ACTOR, "tried").requeued
    there.refresh()
    review.review(there, "b", "alice", "agree", "human/alice")
    assert gate.gate(there, "b", ACTOR, n=1).fired
    there.refresh()
    tasks.cancel(there, "c", As("w1", ACTOR, "script"))
    there.refresh()
    tasks.reopen(there, ["b", "c"], ACTOR, done=True)
    local = LocalBoard(kit.store)
    assert {stands(local, name) for name in "abc"} == {"ready"}
    there.close()


# what a push may not do


def test_F17_a_claim_is_evicted_when_its_last_beat_is_old(
    kit: Kit, board: LocalBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    held = take(board, "t")
    moves = swept(kit, "t", held.attempt)
    assert push(kit, moves)[names.claim("t")] == "claim is live"
    now = clock.now()
    lease = observe.lease(True, rules.SLOWEST_BEAT)
    monkeypatch.setattr("ropewalk.core.clock.now", lambda: now + int(lease) - 10)
    claim.beat(board, held)
    monkeypatch.setattr("ropewalk.core.clock.now", lambda: now + 2 * int(lease) - 20)
    assert push(kit, moves)[names.claim("t")] == "claim is live"
    assert board.ref(names.archived(names.claim("t"), held.attempt)) is None
    monkeypatch.setattr("ropewalk.core.clock.now", lambda: now + 2 * int(lease))
    assert push(kit, moves) == {}
    assert stands(board, "t") == "ready"


def test_F17_the_claim_of_a_dead_process_on_this_host_is_free(kit: Kit, board: LocalBoard) -> None:
    child = subprocess.Popen(["sleep", "60"])
    named = holder.mine(child.pid)
    tasks.add(board, [Task("t", "true")], ACTOR)
    held = take(board, "t", host=named)
    assert push(kit, swept(kit, "t", held.attempt))
    child.kill()
    child.wait()
    assert push(kit, swept(kit, "t", held.attempt)) == {}


def test_F17_a_worker_of_flockwork_gives_its_own_attempt_back(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    mine = STRANGER._replace(agent="git/worker")
    assert push(kit, [(names.claim("t"), fresh(kit, "claim t\natt-fw-abc123"))], mine) == {}
    moves = swept(kit, "t", "att-fw-abc123")
    assert push(kit, moves)[names.claim("t")] == "claim is live"
    assert push(kit, moves, mine) == {}


def test_R16_no_verdict_without_the_claim(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    text = "verdict\ntask: t\nattempt: {}\nfixed: {}\noc_rc: 0\npytest_rc: 1"
    stray = fresh(kit, text.format("att-fw-abc123", "false"))
    assert "does not hold" in push(kit, [(names.verdict("t"), stray)])[names.verdict("t")]
    held = take(board, "t")
    assert "does not hold" in push(kit, [(names.verdict("t"), stray)])[names.verdict("t")]
    fixed = fresh(kit, text.format(held.attempt, "true"))
    assert "no return" in push(kit, [(names.verdict("t"), fixed)])[names.verdict("t")]
    assert "no verdict" in push(kit, [(names.verdict("t"), kit.main())])[names.verdict("t")]
    assert push(kit, [(names.verdict("t"), fresh(kit, text.format(held.attempt, "false")))]) == {}
    again = fresh(kit, text.format(held.attempt, "false") + "\nnote: again")
    assert "has ended" in push(kit, [(names.verdict("t"), again)])[names.verdict("t")]
    assert push(kit, [(names.verdict("t"), None)])[names.verdict("t")]
    assert stands(board, "t") == "failed"


def test_R4_a_return_is_on_its_target(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    side = kit.commit(put("side.txt", "x\n")).changeset
    assert "not claimed" in push(kit, [(names.returned("t"), kit.main())])[names.returned("t")]
    take(board, "t")
    assert "not on main" in push(kit, [(names.returned("t"), side)])[names.returned("t")]
    # the final push of a worker moves the target too
    assert push(kit, [("refs/heads/main", side), (names.returned("t"), side)]) == {}
    parent = kit.store.objects.commit(side).parents[0]
    assert "returned already" in push(kit, [(names.returned("t"), parent)])[names.returned("t")]


def test_R13_what_has_ended_is_opened_by_those_who_say_so(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true"), Task("red", "true")], ACTOR)
    held = done(board, kit, "t")
    red = take(board, "red")
    claim.close(board, red, Outcome(False, 0, 1, "script"))
    for name, attempt in (("t", held.attempt), ("red", red.attempt)):
        refused = push(kit, swept(kit, name, attempt))
        assert "has ended" in refused[names.claim(name)]
        assert push(kit, [(names.claim(name), None)])[names.claim(name)]
    assert (stands(board, "t"), stands(board, "red")) == ("done", "failed")


def test_names_are_checked_at_the_door(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    for text in ("claim t\natt-my worker-abc123", "claim t", "claim t\natt-a..b-abc123", "claim t\natt-w~1-abc123"):
        assert push(kit, [(names.claim("t"), fresh(kit, text))]), text
    for ref in (names.spec("a@b"), names.claim("-x"), names.returned("t@x"), names.review("t", "a@b")):
        assert push(kit, [(ref, fresh(kit, "x"))]), ref
    assert "no such task" in push(kit, [(names.claim("u"), fresh(kit, "claim u\natt-w-abc123"))])[names.claim("u")]
    held = take(board, "t")
    other = fresh(kit, "claim t\natt-thief-abc123")
    assert push(kit, [(names.claim("t"), other)])[names.claim("t")] == f"it is {held.attempt}'s"
    assert "claimed" in push(kit, [(names.spec("t"), other)])[names.spec("t")]


def test_B23_an_atomic_push_falls_as_a_whole_and_another_by_its_parts(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    bad = fresh(kit, "claim t")
    good = fresh(kit, "spec u\n\nverify: true")
    refused = push(kit, [(names.spec("u"), good), (names.claim("t"), bad)])
    assert refused == {names.claim("t"): "it names no attempt",
                       names.spec("u"): "refs/swarm/claims/t: it names no attempt"}  # fmt: skip
    assert kit.store.ref(names.spec("u")) is None
    assert push(kit, [(names.spec("u"), good), (names.claim("t"), bad)], atomic=False) == {
        names.claim("t"): "it names no attempt"
    }
    assert kit.store.ref(names.spec("u")) == good


def test_the_law_is_its_owners(kit: Kit, board: LocalBoard) -> None:
    worker = Rights(refs=("refs/swarm/*", "refs/heads/*"))
    command = [Command(ZERO, kit.main(), names.LAW)]
    assert receiving.refusals(command, Push("a/b", worker)) == ["refs/swarm/law: the board's law is its owner's"]
    for refs in (("*",), ("refs/swarm/*", "refs/swarm/law")):
        assert receiving.refusals(command, Push("a/b", Rights(refs=refs))) == []
    assert "keeps its law" in push(kit, [(names.LAW, None)])[names.LAW]
    assert push(kit, [(names.LAW, kit.main())])[names.LAW]
    tasks.add(board, [Task("t", "true")], ACTOR)
    held = take(board, "t")
    newer = fresh(kit, "law\nversion: 1\nmixed: no")
    assert "while tasks are claimed" in push(kit, [(names.LAW, newer)])[names.LAW]
    claim.release(board, held)
    assert push(kit, [(names.LAW, newer)]) == {}


def test_R15_reviews_and_gates_are_held_against_the_board(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true", gate=Gate(1, 2)), Task("u", "true")], ACTOR)
    done(board, kit, "t")
    text = "review-verdict\ntask: t\nreviewer: {}\noutcome: agree\nevidence: refs/swarm/tasks/t\nagent: {}"
    ref = names.review("t", "alice")
    known = Push("human/alice", EVERYTHING, is_known=True)
    assert (
        "not returned"
        in push(kit, [(names.review("u", "alice"), fresh(kit, text.format("alice", "x/y")))])[
            names.review("u", "alice")
        ]
    )
    fired = fresh(kit, "integrated\ntask: t\nn: 1\nm: 1\nagreed: alice\nevidence: refs/swarm/tasks/t")
    assert push(kit, [(names.integrated("t"), fired)])[names.integrated("t")] == "0 of 1 agree"
    assert "pushes it" in push(kit, [(ref, fresh(kit, text.format("alice", "human/bob")))], known)[ref]
    assert push(kit, [(ref, fresh(kit, text.format("alice", "human/alice")))], known) == {}
    veto = fresh(kit, text.format("alice", "human/alice").replace("agree", "veto"))
    assert "stands" in push(kit, [(ref, veto)], known)[ref]
    assert push(kit, [(ref, None)])[ref]
    assert push(kit, [(names.integrated("t"), fired)]) == {}


def test_what_is_archived_stays(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    held = take(board, "t")
    claim.release(board, held)
    kept = names.archived(names.claim("t"), held.attempt)
    assert push(kit, [(kept, None)])[kept] == "what is archived stays"
    assert push(kit, [(kept, None), (f"{kept}-2", kit.store.ref(kept))]) == {}


def test_what_a_board_deletes_in_one_push_needs_no_word_where_it_is_kept(kit: Kit) -> None:
    ids = [f"{n:040x}" for n in range(1, 31)]
    gone = [Command(oid, ZERO, f"refs/swarm/claims/t{n}") for n, oid in enumerate(ids)]
    kept = [Command(ZERO, oid, f"refs/swarm/archive/claims/t{n}@att-w-1") for n, oid in enumerate(ids)]
    told = [Command(ZERO, "f" * 40, f"refs/swarm/archive/claims/t{n}@att-w-1") for n in range(30)]
    index = [Command(oid, ZERO, f"refs/swarm/open/t{n}") for n, oid in enumerate(ids)]
    history = Command(ZERO, "f" * 40, names.LOG)
    for fine in (kept + gone, told + gone, index, [history, *gone]):
        assert receiving.refusals(fine, STRANGER) == []
    branches = [Command(oid, ZERO, f"refs/heads/t{n}") for n, oid in enumerate(ids)]
    for lost in (gone, gone + kept[:10], branches, [history, *branches]):
        assert any("delete-many" in line for line in receiving.refusals(lost, STRANGER))


# what readers of files see


def test_F15_an_answer_leaves_when_its_refs_are_shown(kit: Kit, board: LocalBoard) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    held = take(board, "t")
    assert kit.stock("rev-parse", names.claim("t")) == held.claim
    claim.close(board, held, Outcome(True, 0, 0, "script"), kit.main())
    shown = dict(reversed(line.split()) for line in kit.stock("for-each-ref", "refs/swarm", "--format",
                 "%(objectname) %(refname)").splitlines())  # fmt: skip
    assert shown == dict(kit.store.refs(names.ROOT))


def test_F15_who_reads_meanwhile_finds_what_moved_in_both_places_or_in_one(
    kit: Kit, board: LocalBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.add(board, [Task("t", "true")], ACTOR)
    held = take(board, "t")
    seen: list[tuple[bool, bool]] = []
    kept = names.archived(names.claim("t"), held.attempt)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            live = os.path.exists(f"{kit.repo}/{names.claim('t')}")
            seen.append((live, os.path.exists(f"{kit.repo}/{kept}")))

    monkeypatch.setattr("ropewalk.store.projection._remove", _slowly("ropewalk.store.projection", "_remove"))
    monkeypatch.setattr("ropewalk.store.projection._put", _slowly("ropewalk.store.projection", "_put"))
    thread = threading.Thread(target=look)
    thread.start()
    claim.release(board, held)
    stop.set()
    thread.join()
    # a look at the two files is not one moment: the live one was looked at first, so that it may just have gone
    assert (True, True) in seen and (False, False) not in seen and seen[-1] == (False, True)


def _slowly(module: str, name: str) -> object:
    import importlib
    import time

    real = getattr(importlib.import_module(module), name)

    def slow(*words: object) -> object:
        time.sleep(0.03)
        found = real(*words)
        time.sleep(0.03)
        return found

    return slow
