"""The board on a git server, over a path, ssh and HTTP: a task's life, races, fences, beats, and lines that break."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.board.remotekit import (
    ACTOR,
    MAIN,
    WAYS,
    Servers,
    Shared,
    foreign,
    landing,
    peers,
    servers,
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
    RopewalkError,
    UnsupportedError,
)
from ropewalk.store.oplog import Move
from storekit import child_env, stock

pytestmark = pytest.mark.skipif(
    not (peers.SSHD and peers.LIGHTTPD) and os.environ.get("CI") != "true",
    reason="needs sshd and lighttpd (apt-get install openssh-server lighttpd)",
)
Opener = Callable[..., Shared]
SLOW_SSH = pytest.param("ssh", marks=pytest.mark.slow)
"""Is ssh where each command takes a third of a second and there are many."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("b")) as made:
        yield made


@pytest.fixture
def shared(ground: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Gives a way to make a board on the server that is reached by a path, `ssh` or `http`."""
    monkeypatch.setenv("GIT_SSH_COMMAND", ground.master)
    made: list[Shared] = []

    def make(way: str = "path", **how: Any) -> Shared:
        made.append(Shared(ground, f"{tmp_path.name}-{len(made)}", way, tmp_path / f"hosts{len(made)}", **how))
        return made[-1]

    (tmp_path / "hosts0").mkdir()
    yield make
    for one in made:
        one.close()


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


def start(source: str, *words: str, **env: str) -> subprocess.Popen[str]:
    """Starts a Python process that says `ready` and waits for a line."""
    return subprocess.Popen([sys.executable, "-c", source, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True, env=child_env(**{"GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", ""),
                                                        **env}))  # fmt: skip


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


# the mirror


@pytest.mark.parametrize("how", ["removed", "refs", "objects", "config", "lock", "state"])
def test_the_mirror_may_be_lost_or_damaged_at_any_time(shared: Opener, how: str) -> None:
    on = shared()
    board = on.board
    tasks.add(board, [task("a"), task("b")], ACTOR)
    board.refresh()
    mirror = Path(board.mirror.path)

    def strike() -> None:
        if how == "removed":
            shutil.rmtree(mirror)
        elif how == "refs":
            for path in (mirror / "refs" / "swarm").rglob("*"):
                if path.is_file():
                    path.write_bytes(b"")
        elif how == "objects":
            for path in (mirror / "objects").rglob("*"):
                if path.is_file():
                    path.chmod(0o644)
                    path.write_bytes(b"")
        elif how == "config":
            (mirror / "config").write_bytes(b"\0\xff[")
        elif how == "lock":
            (mirror / "packed-refs.lock").touch()
            for name in ("specs/a", "claims/a", "law"):
                (mirror / "refs" / "swarm" / f"{name}.lock").parent.mkdir(parents=True, exist_ok=True)
                (mirror / "refs" / "swarm" / f"{name}.lock").touch()
        else:
            Path(board.folder, "fetched.json").write_bytes(b"{")

    strike()
    assert states(on.open("one")) == {"a": "ready", "b": "ready"}
    strike()
    held = take(on.open("one"), "a")
    strike()
    fresh = on.open("one")
    fresh.refresh()
    assert claim.beat(fresh, claim.find(fresh, "a", held.attempt, ACTOR)).claim == on.refs()[names.claim("a")]
    if how == "removed":
        board.refresh()
        strike()
        claim.release(board, claim.find(board, "a", held.attempt, ACTOR))
        assert states(board)["a"] == "ready"


def test_what_beats_leave_in_the_mirror_is_packed_or_goes(shared: Opener) -> None:
    on = shared()
    board = on.board
    tasks.add(board, [task("a")], ACTOR)
    held = take(board, "a")
    mirror = Path(board.mirror.path)
    made = [wire.make(f"claim a\nbeat: {n}\natt-w-000000", n) for n in range(30_000)]
    chosen = [one for one in made if one.id.startswith("17")][:60]
    board.mirror.write(chosen)
    for one in chosen[:40]:
        os.utime(mirror / "objects" / "17" / one.id[2:], (0, 0))
    board.refresh()
    left = {path.name for path in (mirror / "objects" / "17").glob("*")}
    assert left == {one.id[2:] for one in chosen[40:]}, "what may be about to be pushed stays for an hour"
    assert [board.content(one.id) is None for one in (chosen[0], chosen[50])] == [True, False]
    assert claim.beat(board, held).claim == on.refs()[names.claim("a")]
    assert states(board) == {"a": "claimed"}


def test_threads_share_a_board(shared: Opener) -> None:
    from concurrent.futures import ThreadPoolExecutor

    on = shared()
    board = on.board
    tasks.add(board, [task(f"t{n}") for n in range(6)], ACTOR)
    held = {n: take(board, f"t{n}") for n in range(3)}

    def work(n: int) -> str:
        if n < 3:
            return claim.beat(board, held[n]).claim
        board._contents.clear()
        return str(sorted(states(board).values()))

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(6)))
    refs = on.refs()
    assert found[:3] == [refs[names.claim(f"t{n}")] for n in range(3)]
    assert set(found[3:]) == {str(["claimed"] * 3 + ["ready"] * 3)}


def test_a_push_of_what_the_mirror_lost_brings_it_back_first(shared: Opener) -> None:
    on = shared()
    board = on.board
    tasks.add(board, [task("a")], ACTOR)
    held = take(on.open("other"), "a")
    board.refresh()
    shutil.rmtree(board.mirror.path)
    ref = names.archived(names.claim("a"), held.attempt)
    board.push(Step("x", ACTOR, [Move(names.claim("a"), held.claim, None), Move(ref, None, held.claim)]))
    assert on.refs()[ref] == held.claim and names.claim("a") not in on.refs()
    with pytest.raises(RemoteError) as caught:
        board.push(Step("x", ACTOR, [Move(names.claim("a"), None, "1" * 40)]))
    assert caught.value.details["reason"] == "missing"


LOOKER = """
import sys
from ropewalk.board.remote import RemoteBoard
board = RemoteBoard(sys.argv[1], sys.argv[2])
print("ready", flush=True)
board.refresh()
print(len(board.below("refs/swarm/specs/")))
"""


@pytest.mark.race
def test_who_waited_for_a_look_takes_the_one_that_began_after(shared: Opener, tmp_path: Path) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    folder = on.hosts / "host"
    folder.mkdir()
    spy = tmp_path / "bin"
    spy.mkdir()
    git = shutil.which("git")
    (spy / "git").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {git} "$@"\n')
    (spy / "git").chmod(0o755)
    lock = folder / "fetch.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lookers = [start(LOOKER, on.url, str(folder), PATH=f"{spy}:{os.environ['PATH']}") for _ in range(5)]
        inode = os.fstat(file.fileno()).st_ino
        while True:  # until all of them wait for the lock, as the kernel sees it
            waiting = [line for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
            if sum(f":{inode} " in line for line in waiting) == len(lookers):
                break
            assert all(one.poll() is None for one in lookers)
    assert [one.communicate(timeout=60)[0].split() for one in lookers] == [["ready", "1"]] * len(lookers)
    calls = (tmp_path / "calls").read_text()
    assert sum(" fetch " in line and "refs/swarm" in line for line in calls.splitlines()) == 1, calls


def test_F24_a_look_and_a_push_run_no_hook_and_leave_no_trace_of_a_fetch(
    shared: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = shared("http")
    hooks, home = tmp_path / "hooks", tmp_path / "home"
    for folder in (hooks, home):
        folder.mkdir()
    for name in ("reference-transaction", "pre-push", "post-checkout", "pre-auto-gc"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-{name}\nexit 1\n")
        (hooks / name).chmod(0o755)
    stock("config", "--file", str(home / ".gitconfig"), "core.hooksPath", str(hooks))
    monkeypatch.setenv("HOME", str(home))
    tasks.add(on.board, [task("a")], ACTOR)
    take(on.board, "a")
    assert not list(tmp_path.glob("ran-*"))
    assert not list(Path(on.board.mirror.path).glob("*_HEAD"))


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


def test_a_server_that_is_damaged_costs_nobody_the_mirror(shared: Opener) -> None:
    on = shared()
    tasks.add(on.board, [task("a")], ACTOR)
    on.board.refresh()
    inode = os.stat(on.board.mirror.path).st_ino
    oid = on.refs()[names.spec("a")]
    (on.repo / "refs" / "swarm" / "specs" / "b").write_text("1" * 40 + "\n")
    loose = on.repo / "objects" / oid[:2] / oid[2:]
    loose.chmod(0o644)
    loose.write_bytes(b"")
    two = on.open("two")
    for board in (on.board, two):
        with pytest.raises(RopewalkError):
            board.refresh()
    assert os.stat(on.board.mirror.path).st_ino == inode
    assert on.board.ref(names.spec("a")) == oid and on.board.content(oid) is not None
