"""People with stock git against a store: clone, fetch, push, and a push that lands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.remote import receiving
from ropewalk.remote.receiving import Command
from ropewalk.remote.tokens import Rights
from storekit import SRC, STOCK, Kit, lines, put, stock


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", lines()), put("b.txt", "b\n"))
    yield made
    made.close()


class Person:
    """Is somebody with a clone who only knows git."""

    def __init__(self, kit: Kit, folder: Path) -> None:
        self.folder = folder
        stock("clone", "-q", kit.repo, str(folder))

    def git(self, *words: str, ok: bool = True) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env=STOCK | {"PYTHONPATH": SRC}, capture_output=True, timeout=120
        )
        assert not ok or done.returncode == 0, done.stderr.decode()
        return (done.stdout + done.stderr).decode()

    def commit(self, message: str = "mine", **files: str) -> str:
        for file, text in files.items():
            (self.folder / file).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD").strip()


@pytest.fixture
def person(kit: Kit, tmp_path: Path) -> Person:
    return Person(kit, tmp_path / "clone")


def kinds(kit: Kit) -> list[tuple[str, str]]:
    return [(str(r[0]), str(r[1])) for r in kit.store.db.rows("SELECT kind, actor FROM ops ORDER BY op DESC LIMIT 3")]


def test_a_push_is_an_operation(kit: Kit, person: Person) -> None:
    new = person.commit(**{"p.txt": "p\n"})
    person.git("push", "origin", "HEAD:main")
    assert kit.main() == new and kinds(kit)[0][0] == "push" and kinds(kit)[0][1].startswith("git/")
    person.commit(**{"q.txt": "q\n"})
    person.git("push", "-o", "agent=person/anna", "origin", "HEAD:main", "HEAD:refs/heads/topic")
    assert kinds(kit)[0] == ("push", "person/anna") and kit.store.ref("refs/heads/topic") == kit.main()
    kit.fsck()
    kit.change(put("after.txt", "x\n"))
    person.git("fetch", "-q")
    assert person.git("rev-parse", "origin/main").strip() == kit.main()


def test_what_was_pushed_is_in_the_journal_or_synced(kit: Kit, person: Person) -> None:
    new = person.commit(**{"p.txt": "p\n"})
    person.git("push", "-q", "origin", "HEAD:main")
    assert kit.store.db.row("SELECT 1 FROM object_journal WHERE id = ?", (new,)) is not None


def test_a34_a_lost_race_is_told_as_git_tells_it(kit: Kit, person: Person) -> None:
    kit.change(put("other.txt", "o\n"))
    before = kit.main()
    person.commit(**{"p.txt": "p\n"})
    assert "fetch first" in person.git("push", "origin", "HEAD:main", ok=False)
    first = person.git("rev-parse", "HEAD~1").strip()
    told = person.git("push", f"--force-with-lease=main:{first}", "origin", "HEAD:main", ok=False)
    assert "stale info" in told and kit.main() == before
    told = person.git("push", "--force", "origin", "HEAD:main", ok=False)
    assert "non-fast-forward" in told and kit.main() == before


def test_a_lost_race_leaves_no_object_of_another_unshown(kit: Kit) -> None:
    store = kit.store
    store.objects.take_new()
    made = store.objects.write("blob", b"journalled by another, and not shown yet\n")
    store.lock.acquire(5)
    try:
        with store.begun() as tx:
            tx.journal(store.objects.take_new())
    finally:
        store.lock.release()
    stale = Command(receiving.ZERO, kit.main(), "refs/heads/main")
    push = receiving.Push("a/b", Rights())
    (told,) = receiving.receive(store, [stale], push)
    assert told.refused == receiving.STALE
    store.show()
    assert kit.stock("cat-file", "-t", made) == "blob"


def test_a33_a_push_that_lands(kit: Kit, person: Person) -> None:
    kit.change(put("a.txt", lines("3:theirs")))
    theirs = kit.main()
    new = person.commit(**{"a.txt": lines("20:mine")})
    told = person.git("push", "origin", "HEAD:refs/land/main")
    assert f"landed {kit.main()} on main" in told
    assert kit.text("a.txt") == lines("3:theirs", "20:mine")
    assert kit.store.objects.commit(kit.main()).parents == (theirs,)
    assert kit.store.objects.commit(kit.main()).trailer("Ropewalk-Changeset") == new
    assert "refs/remotes/origin/land" not in person.git("for-each-ref")


def test_a36_the_same_push_again_is_answered_with_the_first_land(kit: Kit, person: Person) -> None:
    person.commit(**{"p.txt": "p\n"})
    person.git("push", "-q", "origin", "HEAD:refs/land/main")
    head = kit.main()
    assert head in person.git("push", "origin", "HEAD:refs/land/main")
    assert kit.main() == head


def test_a_conflict_is_shown_in_the_rejection(kit: Kit, person: Person) -> None:
    kit.change(put("a.txt", lines("3:theirs")))
    head = kit.main()
    person.commit(**{"a.txt": lines("3:mine")})
    told = person.git("push", "origin", "HEAD:refs/land/main", ok=False)
    assert "E_CONFLICT" in told and "content a.txt" in told and "- mine" in told and "+ theirs" in told
    assert kit.main() == head


def test_a34_an_atomic_push_with_one_stale_ref_moves_none(kit: Kit, person: Person) -> None:
    person.git("push", "-q", "origin", "HEAD:refs/heads/one", "HEAD:refs/heads/two")
    first = person.git("rev-parse", "HEAD").strip()
    kit.land(kit.commit(put("z", "z\n")).changeset, ref="refs/heads/two")
    person.commit(**{"p.txt": "p\n"})
    told = person.git(
        "push", "--atomic", f"--force-with-lease=one:{first}", f"--force-with-lease=two:{first}", "origin",
        "HEAD:refs/heads/one", "HEAD:refs/heads/two", ok=False,
    )  # fmt: skip
    assert "stale info" in told and kit.store.ref("refs/heads/one") == first


def test_a35_history_is_not_lost_by_a_push(kit: Kit, person: Person) -> None:
    person.git("tag", "v1")
    person.git("push", "-q", "origin", "v1")
    person.commit(**{"p.txt": "p\n"})
    person.git("tag", "-f", "v1")
    assert "not moved" in person.git("push", "--force", "origin", "v1", ok=False)
    assert "not moved or deleted" in person.git("push", "origin", ":v1", ok=False)
    assert "not deleted" in person.git("push", "origin", ":main", ok=False)
    for ref in ("refs/ropewalk/x", "refs/archive/ws/x/1", "refs/notes/x"):
        assert "refused" in person.git("push", "origin", f"HEAD:{ref}", ok=False)
    assert kit.store.ref("refs/tags/v1") is not None


def test_a35_the_boards_refs_are_created_moved_and_deleted_by_compare_and_swap(kit: Kit, person: Person) -> None:
    person.git("push", "-q", "origin", "HEAD:refs/swarm/locks/t1")
    first = person.git("rev-parse", "HEAD").strip()
    person.commit(**{"p.txt": "p\n"})
    person.git("push", "-q", f"--force-with-lease=refs/swarm/locks/t1:{first}", "origin", "HEAD:refs/swarm/locks/t1")
    told = person.git(
        "push", f"--force-with-lease=refs/swarm/locks/t1:{first}", "origin", ":refs/swarm/locks/t1", ok=False
    )
    assert "stale info" in told or "rejected" in told
    second = person.git("rev-parse", "HEAD").strip()
    person.git("push", "-q", f"--force-with-lease=refs/swarm/locks/t1:{second}", "origin", ":refs/swarm/locks/t1")
    assert kit.store.ref("refs/swarm/locks/t1") is None


def test_a37_what_a_rule_refuses_leaves_no_objects(kit: Kit, person: Person) -> None:
    new = person.commit(**{"p.txt": "only in a refused push\n"})
    person.git("push", "origin", "HEAD:refs/notes/x", ok=False)
    assert kit.store.objects.find(new) is None


def test_a38_a_ref_that_git_shows_wrongly_is_repaired_by_the_push(kit: Kit, person: Person) -> None:
    old = kit.main()
    kit.change(put("x", "x\n"))
    Path(kit.repo, "refs/heads/main").write_text(old + "\n")  # as a crash before the projection leaves it
    person.commit(**{"p.txt": "p\n"})
    told = person.git("push", "origin", "HEAD:main", ok=False)
    assert "stale info" in told or "fetch first" in told
    assert kit.stock("rev-parse", "main") == kit.main() != old


def test_many_deletes_need_a_word() -> None:
    push = receiving.Push("a/b", receiving.Rights())
    commands = [Command("1" * 40, receiving.ZERO, f"refs/swarm/x/{n}") for n in range(11)]
    assert any("delete-many" in line for line in receiving.refusals(commands, push))
    assert receiving.refusals(commands, push._replace(options=["delete-many"])) == []


def test_names_that_are_no_text_and_large_pushes(kit: Kit, person: Person) -> None:
    (person.folder / "many").mkdir()
    for number in range(700):
        (person.folder / "many" / f"f{number}").write_text(f"{number}\n")
    new = person.commit(**{"p.txt": "p\n"})
    person.git("push", "-q", "origin", "HEAD:main")
    assert kit.main() == new
    kit.fsck()
    told = person.git("push", "-o", "agent=Not An Agent", "origin", "HEAD:refs/heads/t", ok=False)
    assert "family/instance" in told or "E_INVALID" in told
