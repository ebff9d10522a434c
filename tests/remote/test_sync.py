"""Remotes and sync against real repositories: bare ones, ones that squash and rebase, and other stores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.core.errors import ConflictError, InvalidError, LandMismatchError, NotFoundError
from ropewalk.remote import remotes, sync
from ropewalk.remote.remotes import Remote
from storekit import MAIN, Kit, lines, put, rw, stock


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", lines()), put("b.txt", "b\n"))
    yield made
    made.close()


@pytest.fixture
def origin(kit: Kit, tmp_path: Path) -> Remote:
    """Gives a bare repository with the store's main, as the remote `origin`."""
    bare = str(tmp_path / "origin.git")
    stock("init", "-q", "--bare", "-b", "main", bare)
    made = remotes.add(kit.store, "origin", bare, "a/b")
    remotes.push(kit.store, made, "main", None, "a/b")
    return made


def theirs(origin: Remote, tmp_path: Path, name: str = "person") -> Path:
    """Gives a person's clone of the remote, up to date."""
    folder = tmp_path / name
    if not folder.exists():
        stock("clone", "-q", origin.url, str(folder))
    stock("fetch", "-q", "origin", cwd=str(folder))
    stock("reset", "-q", "--hard", "origin/main", cwd=str(folder))
    return folder


def person_commits(origin: Remote, tmp_path: Path, **files: str) -> str:
    folder = theirs(origin, tmp_path)
    for file, text in files.items():
        (folder / file).write_text(text)
    stock("add", "-A", cwd=str(folder))
    stock("commit", "-q", "-m", "by a person", cwd=str(folder))
    stock("push", "-q", "origin", "main", cwd=str(folder))
    return stock("rev-parse", "HEAD", cwd=str(folder)).decode().strip()


def at(origin: Remote) -> str:
    return stock("--git-dir", origin.url, "rev-parse", "main").decode().strip()


def titles(kit: Kit) -> list[str]:
    return kit.stock("log", "--format=%s", "main").splitlines()


def test_push_says_what_it_did(kit: Kit, origin: Remote) -> None:
    assert at(origin) == kit.main() and remotes.tracked(kit.store, origin, "main") == kit.main()
    assert remotes.push(kit.store, origin, "main", None, "a/b").status == "up_to_date"
    assert remotes.push(kit.store, origin, "main", "other", "a/b").status == "created"
    kit.change(put("c.txt", "c\n"))
    done = remotes.push(kit.store, origin, "main", None, "a/b")
    assert (done.status, done.exported, done.rewritten) == ("fast_forwarded", 1, 0) and at(origin) == kit.main()


def test_fetch_moves_no_branch_and_follows_what_went(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    before = kit.main()
    new = person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    stock("--git-dir", origin.url, "branch", "topic", "main")
    stock("--git-dir", origin.url, "tag", "-a", "-m", "v1", "v1", "main")
    done = remotes.fetch(kit.store, origin, "a/b")
    assert done.imported == 1 and kit.main() == before and remotes.tracked(kit.store, origin, "topic") == new
    assert kit.stock("cat-file", "-t", "refs/tags/v1") == "tag"
    stock("--git-dir", origin.url, "branch", "-D", "topic")
    assert [m["new"] for m in remotes.fetch(kit.store, origin, "a/b").moved] == [None]
    assert remotes.fetch(kit.store, origin, "a/b").moved == []


def test_sync_takes_over_and_pushes(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    new = person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    done = sync.sync(kit.store, origin, MAIN, "a/b")
    assert kit.main() == new and done.imported == 1 and done.push is not None and done.push.status == "up_to_date"
    kit.change(put("c.txt", "c\n"))
    done = sync.sync(kit.store, origin, MAIN, "a/b")
    assert at(origin) == kit.main() and done.relanded == []


def test_both_sides_become_one_line(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    ours = [kit.change(put(f"o{n}.txt", f"{n}\n"), agent=f"w/{n}").landed for n in range(3)]
    new = person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    assert sync.status(kit.store, origin, MAIN).state == "ahead"
    remotes.fetch(kit.store, origin, "a/b")
    seen = sync.status(kit.store, origin, MAIN)
    assert (seen.state, seen.ahead, seen.behind) == ("diverged", 3, 1) and len(seen.unpublished) == 3
    done = sync.sync(kit.store, origin, MAIN, "a/b")
    assert [r.was for r in done.relanded] == ours and done.recognised == []
    assert at(origin) == kit.main() and kit.stock("log", "--format=%H", "--reverse", f"{new}..main").splitlines() == [
        r.now for r in done.relanded
    ]
    assert set(kit.files()) >= {b"p.txt", b"o0.txt", b"o1.txt", b"o2.txt"}
    again = sync.sync(kit.store, origin, MAIN, "a/b")
    assert again.relanded == [] and again.push is not None and again.push.status == "up_to_date"
    kit.fsck()


def test_work_based_on_what_was_landed_before_a_sync_still_lands(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    """A workspace that stands on a land which a sync made anew is no stranger, and takes nothing back."""
    first = kit.commit(put("a.txt", lines("3:three")))
    landed = kit.land(first.changeset).landed
    on_change = kit.commit(put("a.txt", lines("3:three", "9:nine")), parent=first.changeset).changeset
    on_land = kit.commit(put("a.txt", lines("3:three", "20:twenty")), parent=landed).changeset
    person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    sync.sync(kit.store, origin, MAIN, "a/b")
    kit.change(put("z.txt", "z\n"))
    person_commits(origin, tmp_path, **{"q.txt": "q\n"})
    sync.sync(kit.store, origin, MAIN, "a/b")
    assert kit.land(on_change).status == "landed" and kit.land(on_land).status == "landed"
    assert kit.text("a.txt") == lines("3:three", "9:nine", "20:twenty")
    assert kit.land(first.changeset).status == "up_to_date"


@pytest.mark.parametrize("how", ["merge", "rebase", "squash", "squash_without_trailers"])
def test_a_pull_request_that_brought_it_is_recognised(kit: Kit, origin: Remote, tmp_path: Path, how: str) -> None:
    for n in range(3):
        kit.change(
            put(f"o{n}.txt", f"{n}\n"), put("a.txt", lines(*(f"{m}:{m}{m}" for m in range(n + 1)))), agent=f"w/{n}"
        )
    remotes.push(kit.store, origin, "main", "topic", "a/b")
    person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    folder = theirs(origin, tmp_path)
    git = lambda *words: stock(*words, cwd=str(folder))  # noqa: E731
    if how == "merge":
        git("merge", "-q", "--no-ff", "--no-edit", "origin/topic")
    elif how == "rebase":
        git("checkout", "-q", "-b", "topic", "origin/topic")
        git("rebase", "-q", "main")
        message = git("log", "--format=%B", "-1")
        assert b"Ropewalk-Changeset" in message
        git("checkout", "-q", "main")
        git("merge", "-q", "--ff-only", "topic")
    else:
        git("merge", "-q", "--squash", "origin/topic")
        body = git("log", "--format=* %s%n%n%b", "main..origin/topic").decode() if how == "squash" else ""
        git("commit", "-q", "-m", f"The pull request (#1)\n\n{body}")
    git("push", "-q", "origin", "main")
    head = at(origin)
    done = sync.sync(kit.store, origin, MAIN, "a/b")
    assert kit.main() == head == at(origin) and done.relanded == []
    expected = {"merge": set(), "rebase": {"trailer"}, "squash": {"trailer"}, "squash_without_trailers": {"squash"}}
    assert {k.by for k in done.recognised} == expected[how]
    kit.change(put("a.txt", lines(*(f"{m}:{m}{m}" for m in range(4)))))
    assert sync.sync(kit.store, origin, MAIN, "a/b").push is not None


def test_a_conflict_moves_nothing(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    kit.change(put("a.txt", lines("3:ours")))
    person_commits(origin, tmp_path, **{"a.txt": lines("3:theirs")})
    before, there = kit.main(), at(origin)
    with pytest.raises(ConflictError) as caught:
        sync.sync(kit.store, origin, MAIN, "a/b")
    assert caught.value.details["report"]["files"][0]["path"] == "a.txt"
    assert (kit.main(), at(origin)) == (before, there)


def test_a_sync_is_taken_back_by_one_undo(kit: Kit, origin: Remote, tmp_path: Path) -> None:
    kit.change(put("o.txt", "o\n"))
    before = kit.main()
    person_commits(origin, tmp_path, **{"p.txt": "p\n"})
    sync.sync(kit.store, origin, MAIN, "a/b", push=False)
    assert kit.main() != before
    (op,) = kit.store.db.row("SELECT max(op) FROM ops WHERE kind = 'sync'") or (0,)
    assert rw(kit.root, "op", "undo", str(op))[0] == 0 and kit.again().main() == before


def test_two_stores_that_work_apart_become_one(kit: Kit, tmp_path: Path) -> None:
    """Each is a remote of the other; what both landed while they were apart is on both, once."""
    code, cloned = rw(str(tmp_path / "second"), "clone", kit.repo)
    assert code == 0 and cloned["result"]["branch"] == "main", cloned
    two = Kit(str(tmp_path / "second"))
    try:
        for n in range(4):
            kit.change(put(f"one{n}.txt", "1\n"), agent="one/w")
            two.change(put(f"two{n}.txt", "2\n"), agent="two/w")
        other = remotes.add(kit.store, "second", two.repo, "a/b")
        done = sync.sync(kit.store, other, MAIN, "a/b", push=False)
        assert len(done.relanded) == 4
        back = remotes.need(two.store, None)
        assert sync.sync(two.store, back, MAIN, "a/b", push=False).relanded == []
        assert two.main() == kit.main() and len(titles(kit)) == 9
        assert {f"one{n}.txt".encode() for n in range(4)} | {f"two{n}.txt".encode() for n in range(4)} <= set(
            two.files()
        )
    finally:
        two.close()


def test_what_has_nothing_in_common_is_refused(kit: Kit, tmp_path: Path) -> None:
    other = Kit(str(tmp_path / "other"))
    other.first(put("x.txt", "x\n"))
    with pytest.raises(LandMismatchError, match="no history in common"):
        sync.sync(kit.store, remotes.add(kit.store, "other", other.repo, "a/b"), MAIN, "a/b")
    other.close()


def test_names_and_addresses_that_are_wrong(kit: Kit, origin: Remote) -> None:
    for name in ("", "a/b", "-x", "..", "a b", "x.lock"):
        with pytest.raises(InvalidError):
            remotes.add(kit.store, name, origin.url, "a/b")
    with pytest.raises(InvalidError):
        remotes.add(kit.store, "origin", "/elsewhere", "a/b")
    with pytest.raises(NotFoundError):
        remotes.need(kit.store, "nobody")
    remotes.remove(kit.store, "origin", "a/b")
    with pytest.raises(NotFoundError):
        remotes.need(kit.store, None)
    assert kit.store.refs("refs/remotes/") == []
    secret = Remote("x", "https://me:token@example.com/r.git")
    assert "token" not in secret.shown
