"""The board on a git server, over a path, ssh and HTTP: a task's life, races, fences, beats, and lines that break."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.board.remotekit import (
    ACTOR,
    MAIN,
    NEEDS_SERVERS,
    WAYS,
    Servers,
    Shared,
    foreign,
    landing,
    peers,
    start,
    states,
    take,
    task,
    who,
)

from ropewalk.board import claim, names, state, tasks, wire
from ropewalk.board.base import Step, now_object
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import (
    CasMismatchError,
    ClaimedError,
    FencedError,
    InvalidError,
    NotFoundError,
    RemoteError,
    UnsupportedError,
)
from ropewalk.store.oplog import Move
from storekit import stock

pytestmark = NEEDS_SERVERS
Opener = Callable[..., Shared]
SLOW_SSH = pytest.param("ssh", marks=pytest.mark.slow)
"""Is ssh where each command takes a third of a second and there are many."""


@pytest.mark.parametrize("way", ["path", pytest.param("file", marks=pytest.mark.slow), "git", SLOW_SSH, "http"])
def test_R14_a_task_lives_its_life_over_any_transport(shared: Opener, way: str) -> None:
    on = shared(way)
    one, two = on.board, on.open("two")
    added, _ = tasks.add(one, [task("a"), task("b", region="x"), task("c", needs=("a",)), task("d")], ACTOR)
    assert added == ["a", "b", "c", "d"]
    assert states(two) == {"a": "ready", "b": "ready", "c": "waiting", "d": "ready"}
    held = take(two, "a")
    with pytest.raises(ClaimedError):
        claim.take(one, state.look(one)["a"], who("w2"))
    held = claim.mark(two, claim.beat(two, held), "work_started")
    assert wire.read_claim(held.words).beat == 1  # type: ignore[union-attr]
    claim.release(two, held)
    held = take(one, "a", "w2")
    assert claim.die(one, held, Outcome(False, 124, 0, "command", reason="timeout"))
    held = take(two, "a", "w3")
    step = landing(on, two, held)
    two.push(step)
    assert states(one)["a"] == states(two)["a"] == "done"
    assert states(one)["c"] == "ready", "what c needs is on main"
    assert on.refs()[MAIN] == step.moves[0].new == one.ref(MAIN)
    claim.close(one, take(one, "b"), Outcome(False, 0, 1, "command"))
    tasks.cancel(two, "d", who(), "not wanted")
    assert states(one) == {"a": "done", "b": "failed", "c": "ready", "d": "cancelled"}
    assert tasks.reopen(two, ["b"], ACTOR) == ["b"]
    assert states(one)["b"] == "ready"
    assert {n.rsplit("@", 1)[0] for n, _ in one.below(names.ARCHIVE)} >= {names.ARCHIVE + "claims/a"}
    on.lawful()


def test_R14_a_board_at_a_relative_path_from_a_folder_that_is_no_repository(
    shared: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = shared()
    folder = on.hosts / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    board = on.open("relative", os.path.relpath(on.repo, folder))
    monkeypatch.chdir("/")
    tasks.add(board, [task("a")], ACTOR)
    assert states(on.board) == {"a": "ready"}


RACER = """
import sys
from ropewalk.board import claim, state
from ropewalk.board.remote import RemoteBoard
from ropewalk.core.errors import RopewalkError
board = RemoteBoard(sys.argv[1], sys.argv[2])
board.refresh()
found = state.need(board, sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
try:
    claim.take(board, found, claim.As(sys.argv[4], "test/" + sys.argv[4], "command"))
    print("won")
except RopewalkError as error:
    print(error.code)
"""


@pytest.mark.race
@pytest.mark.parametrize(("way", "count"), [("path", 6), pytest.param("ssh", 3, marks=pytest.mark.slow), ("http", 3)])
def test_R1_of_processes_that_claim_at_once_one_wins(shared: Opener, way: str, count: int) -> None:
    on = shared(way)
    tasks.add(on.board, [task("a")], ACTOR)
    # half of them share a host
    racers = [start(RACER, on.url, str(on.hosts / f"h{n // 2}"), "a", f"w{n}") for n in range(count)]
    for one in racers:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in racers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    ends = sorted(one.communicate(timeout=60)[0].strip() for one in racers)
    assert ends == ["E_CLAIMED"] * (count - 1) + ["won"]
    assert states(on.board) == {"a": "claimed"}
    on.lawful()


@pytest.mark.parametrize("way", WAYS)
def test_F1_a_stolen_claim_is_refused_as_a_whole(shared: Opener, way: str) -> None:
    on = shared(way)
    tasks.add(on.board, [task("a")], ACTOR)
    held = take(on.board, "a")
    step = landing(on, on.board, held)
    thief = on.open("thief")
    thief.refresh()
    claim.release(thief, claim.find(thief, "a", held.attempt, "test/thief"), "evicted")
    take(thief, "a", "w2")
    before = on.refs()
    with pytest.raises(CasMismatchError) as caught:
        on.board.push(step)
    assert caught.value.details["ref"] == names.claim("a")
    assert on.refs() == before and before[MAIN] != step.moves[0].new
    with pytest.raises(FencedError):
        claim.close(on.board, held, Outcome(False, 0, 1, "command"))
    assert claim.beat(thief, claim.find(thief, "a", _attempt(thief, "a"), "test/w2")).attempt != held.attempt
    on.lawful()


def _attempt(board: RemoteBoard, name: str) -> str:
    board.refresh()
    found = state.need(board, name)
    assert found is not None and found.claim is not None
    return found.claim.attempt


def test_F1_a_ref_that_would_not_change_is_no_fence(shared: Opener) -> None:
    board = shared().board
    head = board.ref(MAIN)
    made = now_object("x")
    with pytest.raises(InvalidError):
        board.push(Step("x", ACTOR, [Move(MAIN, head, head), Move(names.verdict("a"), None, made.id)], [made]))
    board.refresh()
    assert board.ref(names.verdict("a")) is None


def test_a_moved_main_is_told_from_a_stolen_claim(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    held = take(on.board, "a")
    step = landing(on, on.board, held)
    other = stock("commit-tree", f"{on.refs()[MAIN]}^{{tree}}", "-p", on.refs()[MAIN], "-m", "other", cwd=str(on.seed))
    stock("push", "-q", str(on.repo), f"{other.decode().strip()}:{MAIN}", cwd=str(on.seed))
    with pytest.raises(CasMismatchError) as caught:
        on.board.push(step)
    assert caught.value.details["ref"] == "main"
    assert states(on.board) == {"a": "claimed"}


def test_F2_a_closing_claim_differs_from_the_last_beat_and_stays(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    held = claim.beat(on.board, claim.beat(on.board, take(on.board, "a")))
    assert "beat: 2\n" in held.words
    on.board.push(landing(on, on.board, held))
    last = on.refs()[names.claim("a")]
    assert last != held.claim
    found = wire.read_claim(stock("--git-dir", str(on.repo), "log", "-1", "--format=%B", last).decode())
    assert found is not None and found.closed and found.beat == 2 and found.attempt == held.attempt


def test_F3_a_look_transfers_only_the_refs_it_asks_for(ground: Servers, shared: Opener, tmp_path: Path) -> None:
    on = shared("http")
    tasks.add(on.board, [task("a")], ACTOR)
    foreign(on.repo, [f"refs/pull/{n}/head" for n in range(400)] + [f"refs/heads/old-{n}" for n in range(100)])
    trace = tmp_path / "trace"
    env = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "GIT_TRACE_PACKET": str(trace)}
    with peers.lighttpd(tmp_path / "web", ground.folder, env) as web:
        board = on.open("far", web.url(on.repo.name))
        board.refresh()
        shown = re.findall(rb"packet:\s+upload-pack> ([0-9a-f]{40} refs/\S+)", trace.read_bytes())
        assert board.ref(names.spec("a")) is not None
    assert {line.split()[1].decode() for line in shown} == {n for n in on.refs() if n.startswith(("refs/swarm/", MAIN))}
    fetches = trace.read_bytes().count(b"command=fetch")
    assert fetches == 1, "the bodies came with the refs, in one fetch"


def test_another_target_is_looked_at_from_the_first_question_on(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task("a", target="next")], ACTOR)
    assert states(on.board) == {"a": "waiting"}
    stock("push", "-q", str(on.repo), "main:refs/heads/next", cwd=str(on.seed))
    assert states(on.board) == {"a": "ready"}
    two = on.open("two")
    assert two.ref("refs/heads/next") == on.refs()[MAIN] and two.ref("refs/heads/none") is None
    assert two.ref("refs/heads/a b") is None and two.ref("refs/heads/" + "x" * 300) is None


def test_F11_one_push_beats_all_claims_of_a_host_and_says_the_fate_of_each(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task(name) for name in "abcd"], ACTOR)
    held = {name: take(on.board, name) for name in "abc"}
    thief = on.open("thief")
    thief.refresh()
    claim.release(thief, claim.find(thief, "b", held["b"].attempt, "test/t"), "evicted")
    log = on.repo / "pushes"
    on.hook("pre-receive", f"echo x >> {log}")
    found = on.board.beat({name: one.claim for name, one in held.items()} | {"d": "1" * 40}, ACTOR)
    assert log.read_text() == "x\n"
    refs = on.refs()
    assert found["b"] is None and found["d"] is None
    assert {found["a"], found["c"]} == {refs[names.claim("a")], refs[names.claim("c")]}
    assert found["a"] != held["a"].claim and names.claim("b") not in refs
    assert on.board.beat_seconds == pytest.approx(300, rel=0.11) and on.board.beats(found["a"] or "") == 0
    # one that the server does not take leaves the claim as it was, and says so
    on.hook("update", f'case "$1" in {names.claim("a")}) exit 1;; esac')
    again = on.board.beat({"a": str(found["a"]), "c": str(found["c"])}, ACTOR)
    assert again["a"] == found["a"] and again["c"] not in (None, found["c"])
    on.hook("update", "exit 1")
    with pytest.raises(RemoteError) as caught:
        on.board.beat({"a": str(again["a"])}, ACTOR)
    assert caught.value.details["reason"] == "rejected"


# lines that break, and servers that refuse


@pytest.mark.parametrize("way", ["path", SLOW_SSH, "http"])
def test_F12_a_push_whose_end_was_not_heard_is_read_back(shared: Opener, way: str) -> None:
    """The server's git is killed once before it takes the push, and once after it has moved all refs."""
    on = shared(way)
    tasks.add(on.board, [task("a"), task("b")], ACTOR)
    board = on.board
    kill = "kill -9 $(ps -o ppid= -p $$)"
    board.refresh()
    on.hook("pre-receive", kill)
    before = on.refs()
    with pytest.raises(RemoteError) as caught:
        claim.take(board, state.look(board)["a"], who())
    assert caught.value.details["reason"] in ("broken_off", "failed") and "unclear" not in caught.value.details
    assert on.refs() == before
    on.hook("pre-receive", "")
    on.hook("post-receive", kill)
    held = claim.take(board, state.look(board)["a"], who())
    assert on.refs()[names.claim("a")] == held.claim == board.ref(names.claim("a"))
    beaten = claim.beat(board, held)
    assert on.refs()[names.claim("a")] == beaten.claim != held.claim
    on.lawful()


def test_F12_a_line_cut_anywhere_leaves_all_or_nothing_and_the_truth(ground: Servers, shared: Opener) -> None:
    on = shared("http")
    points = [1, 700, 1600, 4000] if os.environ.get("RWTEST_FULL") != "1" else range(1, 6000, 150)
    tasks.add(on.board, [task(f"t{n}") for n in range(2 * len(points))], ACTOR)
    on.board.refresh()
    ends = set()
    for number, (way, after) in enumerate((way, after) for way in ("up", "down") for after in points):
        with peers.line(ground.web.port, after=after, then="cut", way=way) as port:
            board = on.open("cut", ground.web.url(on.repo.name, port=port))
            board._refs = dict(on.board._seen)  # what it saw before the line was bad
            name = f"t{number}"
            made = now_object(wire.claim_words(name, f"att-w-{number:06x}", harness="command"))
            second = now_object(f"lock {number}")
            moves = [Move(names.claim(name), None, made.id), Move(names.lock(f"r{number}"), None, second.id)]
            try:
                board.push(Step("claim", ACTOR, moves, [made, second]))
                said = "done"
            except RemoteError as error:
                said = "unclear" if error.details.get("unclear") else "not done"
        refs = on.refs()
        there = {names.claim(name) in refs, names.lock(f"r{number}") in refs}
        assert len(there) == 1, "it is whole or not at all"
        assert said == "unclear" or there == {said == "done"}, (way, after, said)
        ends.add(said)
    assert "done" in ends and "unclear" in ends


def test_a_refusal_by_the_servers_rules_is_no_lost_race(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    on.hook("update", 'echo "claims are closed today"; [ "${1#refs/swarm/claims/}" = "$1" ]')
    with pytest.raises(RemoteError) as caught:
        take(on.board, "a")
    assert caught.value.details["reason"] == "rejected" and "closed today" in caught.value.message
    assert caught.value.details["ref"] == names.claim("a")
    on.hook("update", "")
    on.hook("pre-receive", "echo live >&2; exit 1")
    with pytest.raises(RemoteError) as caught:
        take(on.board, "a")
    assert caught.value.details["reason"] == "rejected"


def test_a_lock_file_that_a_dead_git_left_is_told(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    lock = on.repo / "refs" / "swarm" / "claims" / "a.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    with pytest.raises(RemoteError) as caught:
        take(on.board, "a")
    assert caught.value.details["reason"] == "locked"
    lock.unlink()
    assert take(on.board, "a").claim == on.refs()[names.claim("a")]


def test_a_name_that_clashes_with_another_is_invalid(shared: Opener) -> None:
    on = shared()
    made = now_object("x")
    on.board.push(Step("x", ACTOR, [Move(names.lock("a"), None, made.id)], [made]))
    with pytest.raises(InvalidError):
        on.board.push(Step("x", ACTOR, [Move(names.lock("a/b"), None, made.id)], [made]))


def test_F13_a_server_without_atomic_push_is_refused_and_nothing_is_done(shared: Opener) -> None:
    on = shared(law=False)
    on.set(receive_advertiseAtomic="false")
    before = on.refs()
    with pytest.raises(UnsupportedError) as caught:
        tasks.init(on.board, ACTOR, mixed=False)
    assert "atomic" in caught.value.message and caught.value.hint
    assert on.refs() == before


def test_a_server_out_of_reach_is_told_from_one_that_is_not_there(shared: Opener, tmp_path: Path) -> None:
    board = RemoteBoard(f"http://127.0.0.1:{peers.free_port()}/x.git", str(tmp_path / "no"))
    with pytest.raises(RemoteError) as caught:
        board.refresh()
    assert caught.value.details["reason"] == "unreachable"
    with pytest.raises(NotFoundError):
        RemoteBoard(str(tmp_path / "nothing"), str(tmp_path / "no2"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError):
        RemoteBoard(str(tmp_path / "empty"), str(tmp_path / "no3")).refresh()


def test_no_password_is_shown(shared: Opener) -> None:
    on = shared("http")
    assert "horse" not in on.board.name and "me@" in on.board.name
    on.hook("update", "exit 1")
    with pytest.raises(RemoteError) as caught:
        tasks.add(on.board, [task("a")], ACTOR)
    assert "horse" not in str(caught.value.details) + caught.value.message


def test_F27_a_law_that_came_meanwhile_is_seen_by_the_next_look(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    other = on.open("other")
    made = now_object(wire.law_words(wire.LAW + 1, mixed=False))
    other.push(Step("board_law", ACTOR, [Move(names.LAW, other.ref(names.LAW), made.id)], [made]))
    on.board.refresh()
    with pytest.raises(UnsupportedError):
        state.law(on.board)


def test_F28_after_a_servers_rollback_the_closing_push_is_fenced(shared: Opener, tmp_path: Path) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    shutil.copytree(on.repo, tmp_path / "older")
    held = take(on.board, "a")
    shutil.rmtree(on.repo)
    shutil.copytree(tmp_path / "older", on.repo)
    step = landing(on, on.board, held)
    with pytest.raises(CasMismatchError) as caught:
        on.board.push(step)
    assert caught.value.details["ref"] == names.claim("a")
    with pytest.raises(FencedError):
        claim.close(on.board, held, Outcome(False, 0, 1, "command"))
    assert states(on.board) == {"a": "ready"}
    on.lawful()


def test_F14_more_tasks_than_one_push_holds_are_open_at_once_or_not_at_all(shared: Opener) -> None:
    on = shared()
    on.board.most_moves = 40
    log = on.repo / "pushes"
    on.hook("pre-receive", f"wc -l >> {log}")
    said: list[str] = []
    tasks.add(on.board, [task(f"t{n}") for n in range(70)], ACTOR, tell=said.append)
    assert [int(line) for line in log.read_text().split()] == [40, 30, 40, 30] and said
    assert set(states(on.open("two")).values()) == {"ready"}
