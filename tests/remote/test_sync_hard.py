"""Sync where it is hard: remotes that were taken back, merges among what is unpublished, pushes that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from test_sync import at, person_commits, theirs

from ropewalk.core.errors import ConflictError, LandMismatchError, RemoteError
from ropewalk.core.process import git as our_git
from ropewalk.remote import remotes, sync
from ropewalk.remote.remotes import Remote
from ropewalk.store import refs
from ropewalk.store.oplog import Move
from storekit import MAIN, STOCK, Kit, child_env, lines, put, rw, stock


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", lines()), put("b.txt", "b\n"))
    yield made
    made.close()


@pytest.fixture
def origin(kit: Kit, tmp_path: Path) -> Remote:
    bare = str(tmp_path / "origin.git")
    stock("init", "-q", "--bare", "-b", "main", bare)
    made = remotes.add(kit.store, "origin", bare, "a/b")
    remotes.push(kit.store, made, "main", None, "a/b")
    return made


def taken_back(kit: Kit, origin: Remote) -> tuple[str, str, str]:
    """Publishes two changes, has them taken back at the remote, and makes another; gives all three lands."""
    one, two = (kit.change(put(f"{name}.txt", f"{name}\n")).landed for name in ("one", "two"))
    sync.sync(kit.store, origin, MAIN, "a/b")
    stock("--git-dir", origin.url, "update-ref", "refs/heads/main", f"{two}~2")
    return one, two, kit.change(put("new.txt", "new\n")).landed


@pytest.mark.parametrize("moved_on", [False, True])
def test_what_was_taken_back_at_the_remote_is_not_put_back_unasked(
    kit: Kit, origin: Remote, tmp_path: Path, moved_on: bool
) -> None:
    one, two, new = taken_back(kit, origin)
    if moved_on:
        person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    there, here = at(origin), kit.main()
    for _ in range(2):  # the second time, too, when the fetch has nothing new to tell
        with pytest.raises(LandMismatchError) as caught:
            sync.sync(kit.store, origin, MAIN, "a/b")
        assert caught.value.details["reason"] == "dropped" and caught.value.details["changes"] == [one, two]
        assert (at(origin), kit.main()) == (there, here)
    assert sync.status(kit.store, origin, MAIN).dropped == [one, two]
    code, envelope = rw(kit.root, "sync", "--dropped", "leave")
    assert code == 0, envelope
    assert at(origin) == kit.again().main()
    expected = {b"a.txt", b"b.txt", b"new.txt"} | ({b"p.txt"} if moved_on else set())
    assert set(kit.again().files()) == expected
    assert [r["was"] for r in envelope["result"]["relanded"]] == [new]
    assert rw(kit.root, "sync")[1]["result"]["push"]["status"] == "up_to_date"
    assert rw(kit.root, "land", one, "--onto", "main")[1]["error"]["details"]["reason"] == "undone"
    assert rw(kit.root, "land", one, "--onto", "main", "--allow-reland")[0] == 0
    assert rw(kit.root, "verify", "--deep")[0] == 0


@pytest.mark.parametrize("moved_on", [False, True])
def test_what_was_taken_back_comes_back_when_asked(kit: Kit, origin: Remote, tmp_path: Path, moved_on: bool) -> None:
    taken_back(kit, origin)
    if moved_on:
        person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    done = sync.sync(kit.store, origin, MAIN, "a/b", dropped="publish")
    assert at(origin) == kit.main() and len(done.relanded) == (3 if moved_on else 0)
    assert {b"one.txt", b"two.txt", b"new.txt"} <= set(kit.files())
    assert sync.sync(kit.store, origin, MAIN, "a/b").relanded == []


def test_another_repository_under_the_same_name_has_taken_nothing_back(
    kit: Kit, origin: Remote, tmp_path: Path
) -> None:
    taken_back(kit, origin)
    remotes.remove(kit.store, "origin", "a/b")
    other = str(tmp_path / "other.git")
    stock("clone", "-q", "--bare", origin.url, other)
    sync.sync(kit.store, remotes.add(kit.store, "origin", other, "a/b"), MAIN, "a/b")
    assert stock("--git-dir", other, "rev-parse", "main").decode().strip() == kit.main()


def test_a_conflict_that_a_merge_resolved_is_not_met_again(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    """A person merged the remote's branch and resolved it; then the remote moved on."""
    kit.change(put("a.txt", lines("3:ours")), agent="w/1")
    kit.change(put("o.txt", "o\n"), agent="w/2")
    person_commits(origin, tmp_path, **{"a.txt": lines("3:theirs")})
    with pytest.raises(ConflictError):
        sync.sync(kit.store, origin, MAIN, "a/b")
    work = tmp_path / "work"
    stock("clone", "-q", kit.repo, str(work))
    stock("fetch", "-q", origin.url, "main", cwd=str(work))
    stock("merge", "-q", "FETCH_HEAD", cwd=str(work), ok=False)
    (work / "a.txt").write_text(lines("3:both"))
    stock("commit", "-q", "-a", "-m", "Merge what the remote has", cwd=str(work))
    env = child_env() | STOCK
    assert subprocess.run(["git", "push", "-q", "origin", "HEAD:main"], cwd=work, env=env, timeout=120).returncode == 0
    kit.change(put("last.txt", "l\n"), agent="w/3")
    person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    done = sync.sync(kit.store, origin, MAIN, "a/b")
    assert at(origin) == kit.main() and kit.text("a.txt") == lines("3:both")
    assert set(kit.files()) == {b"a.txt", b"b.txt", b"o.txt", b"p.txt", b"last.txt"}
    assert len(done.relanded) == 4 and len({r.now for r in done.relanded}) == 2
    assert kit.stock("log", "--merges", "--format=%H", "main") == ""
    again = sync.sync(kit.store, origin, MAIN, "a/b")
    assert again.relanded == [] and again.push is not None and again.push.status == "up_to_date"
    kit.fsck()


def test_a_merge_of_a_side_branch_is_landed_as_what_it_brought(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    work = tmp_path / "work"
    stock("clone", "-q", kit.repo, str(work))
    for name, words in (("side.txt", ("checkout", "-q", "-b", "side")), ("line.txt", ("checkout", "-q", "main"))):
        stock(*words, cwd=str(work))
        (work / name).write_text("x\n")
        stock("add", "-A", cwd=str(work))
        stock("commit", "-q", "-m", name, cwd=str(work))
    stock("merge", "-q", "--no-ff", "--no-edit", "side", cwd=str(work))
    env = child_env() | STOCK
    assert subprocess.run(["git", "push", "-q", "origin", "HEAD:main"], cwd=work, env=env, timeout=120).returncode == 0
    person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    done = sync.sync(kit.store, origin, MAIN, "a/b")
    assert len(done.relanded) == 2 and set(kit.files()) >= {b"side.txt", b"line.txt", b"p.txt"}
    assert at(origin) == kit.main()


def test_a_push_killed_on_either_side_is_done_by_the_next(kit: Kit, origin: Remote) -> None:
    """The remote takes the push and dies before it says so, or dies before it takes it."""
    hooks = Path(origin.url, "hooks")
    hooks.mkdir(exist_ok=True)
    for hook, arrived in (("pre-receive", False), ("post-update", True)):
        kit.change(put(f"{hook}.txt", "x\n"))
        path = hooks / hook
        path.write_text("#!/bin/sh\nkill -9 $PPID\nexec sleep 1\n")
        path.chmod(0o755)
        with pytest.raises(RemoteError) as caught:
            remotes.push(kit.store, origin, "main", None, "a/b")
        assert caught.value.details["reason"] == "broken_off"
        assert (at(origin) == kit.main()) == arrived
        path.unlink()
        done = remotes.push(kit.store, origin, "main", None, "a/b")
        assert done.status == ("up_to_date" if arrived else "fast_forwarded") and at(origin) == kit.main()
        assert remotes.tracked(kit.store, origin, "main") == kit.main()


def test_our_own_push_killed_in_the_middle_is_done_by_the_next(kit: Kit, origin: Remote) -> None:
    kit.change(put("x.txt", "x\n"))
    hook = Path(origin.url, "hooks", "pre-receive")
    hook.parent.mkdir(exist_ok=True)
    pipe = Path(origin.url, "pipe")
    os.mkfifo(pipe)
    hook.write_text(f"#!/bin/sh\necho here > {pipe}\nexec sleep 600\n")
    hook.chmod(0o755)
    argv = [sys.executable, "-m", "ropewalk.cli.main", "push", "--store", kit.root]
    with subprocess.Popen(argv, env=child_env(ROPEWALK_AGENT="a/b"), stdout=subprocess.DEVNULL) as child:
        assert pipe.read_text() == "here\n"
        child.kill()
    hook.unlink()
    assert remotes.push(kit.store, origin, "main", None, "a/b").status == "fast_forwarded" and at(origin) == kit.main()


def test_stores_that_push_and_sync_at_once_lose_nothing(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    """Three stores sync one branch and push each a branch of its own, all at the same time."""
    roots = [kit.root]
    for number in range(2):
        roots.append(str(tmp_path / f"store{number}"))
        assert rw(roots[-1], "clone", origin.url)[0] == 0
    for number, root in enumerate(roots):
        other = Kit(root)
        for n in range(3):
            other.change(put(f"s{number}-{n}.txt", "x\n"), agent=f"s{number}/w")
        other.close()
    failed: list[object] = []

    def work(number: int) -> None:
        for words in (["push", "origin", f"main:own{number}"], ["sync"]):
            for _ in range(10):
                code, envelope = rw(roots[number], *words)
                if code != 6:
                    break
            if code:
                failed.append(envelope)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(roots))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failed == []
    names = stock("--git-dir", origin.url, "ls-tree", "--name-only", "main").decode().split()
    assert {f"s{number}-{n}.txt" for number in range(3) for n in range(3)} <= set(names)
    titles = stock("--git-dir", origin.url, "log", "--format=%H", "main").decode().split()
    assert len(titles) == 10
    assert all(stock("--git-dir", origin.url, "rev-parse", f"own{n}") for n in range(3))
    for root in roots:
        assert rw(root, "sync")[0] == 0 and Kit(root).main() == at(origin)


def test_a_tracking_ref_that_moves_meanwhile_is_no_failure(kit: Kit, origin: Remote) -> None:
    kit.change(put("x.txt", "x\n"))
    stock("--git-dir", origin.url, "branch", "two", "main")
    failed: list[object] = []

    def work(words: list[str]) -> None:
        for _ in range(3):
            code, envelope = rw(kit.root, *words)
            if code:
                failed.append(envelope)

    threads = [threading.Thread(target=work, args=(words,)) for words in (["push"], ["fetch"], ["push"], ["sync"])]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failed == [] and remotes.tracked(kit.store, origin, "main") == at(origin) == kit.main()


def test_r1_a_push_of_somebody_whose_claim_was_taken_over_is_refused_by_the_board(kit: Kit, tmp_path: Path) -> None:
    """However long the old owner slept: what it pushes is held against the claim as it is, not against a clock."""
    base = kit.main()
    work = tmp_path / "work"
    stock("clone", "-q", kit.repo, str(work))
    env = child_env() | STOCK

    def push(*words: str) -> str:
        done = subprocess.run(["git", "push", *words], cwd=work, env=env, capture_output=True, timeout=120)
        return "" if done.returncode == 0 else (done.stdout + done.stderr).decode()

    claim = "refs/swarm/locks/region/t1"
    assert push("origin", f"HEAD:{claim}") == ""
    stock("commit", "-q", "--allow-empty", "-m", "taken over", cwd=str(work))
    assert push(f"--force-with-lease={claim}:{base}", "origin", f"HEAD:{claim}") == ""
    stock("commit", "-q", "--allow-empty", "-m", "the sleeper's", cwd=str(work))
    assert "stale info" in push(f"--force-with-lease={claim}:{base}", "origin", f"HEAD:{claim}")
    assert "stale info" in push(
        "--atomic", f"--force-with-lease={claim}:{base}", "origin", f"HEAD:{claim}", "HEAD:main"
    )
    assert kit.main() == base


def test_r4_what_a_remote_holds_is_whole_when_a_push_is_answered(kit: Kit, origin: Remote) -> None:
    kit.change(put("x.txt", "x\n"))
    done = remotes.push(kit.store, origin, "main", "returns", "a/b")
    our_git(origin.url, "fsck", "--strict", "--full")
    our_git(origin.url, "rev-list", "--objects", "--quiet", done.new)


def test_r7_a_squash_of_only_some_of_our_changes_is_recognised(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    for n in range(4):
        kit.change(put(f"o{n}.txt", f"{n}\n"), agent=f"w/{n}")
    two = kit.stock("rev-parse", "main~2")
    refs.move(kit.store, "a/b", [Move("refs/heads/topic", None, two)], "ref_set")
    remotes.push(kit.store, origin, "topic", None, "a/b")
    folder = theirs(origin, tmp_path)
    stock("merge", "-q", "--squash", "origin/topic", cwd=str(folder))
    stock("commit", "-q", "-m", "The pull request (#1)", cwd=str(folder))
    stock("push", "-q", "origin", "main", cwd=str(folder))
    done = sync.sync(kit.store, origin, MAIN, "a/b")
    assert {k.by for k in done.recognised} == {"squash"} and len(done.recognised) == len(done.relanded) == 2
    assert at(origin) == kit.main() and set(kit.files()) >= {f"o{n}.txt".encode() for n in range(4)}
