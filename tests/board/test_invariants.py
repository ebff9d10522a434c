"""The judge of the laws finds each way in which a board can break them, and nothing on one that keeps them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.board import invariants
from tests.board.boardkit import raw

from storekit import stock

A = "att-w1-aaaaaa"
B = "att-w2-bbbbbb"
Plant = Callable[["Repository"], None]


class Repository:
    """Is a bare repository with a lawful board that git alone has made.

    `done` is done, `failed` failed, `open` is open, `held` is claimed with its region, `again` was done twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            return
        stock("init", "-q", "--bare", "-b", "main", str(path))
        self.fix("start", "", "base")
        self.put("law", "law\nversion: 1\nmixed: no")
        for task in ("done", "failed", "open", "held", "again"):
            region = "region: r1\n" if task == "held" else ""
            self.spec(task, f"verify: true\n{region}\n\nDo it.", opened=task in ("open", "held"))
        self.finish("done", A)
        self.claim("failed", B, closed=True)
        self.verdict("failed", B, fixed="false")
        self.claim("held", "att-w3-cccccc")
        self.put("locks/region/r1", "lock r1\ntask: held\nattempt: att-w3-cccccc")
        first = self.fix("again", "att-w4-dddddd", "x1")
        self.put("archive/claims/again@att-w4-dddddd", "claim again\nlaw: 1\nclosed: x\natt-w4-dddddd")
        self.set("archive/tasks/again@att-w4-dddddd", first)
        self.finish("again", "att-w5-eeeeee")

    def put(self, name: str, text: str) -> str:
        return raw(self.path, f"refs/swarm/{name}", text.encode())

    def set(self, name: str, oid: str | None) -> None:
        words = ["-d", f"refs/swarm/{name}"] if oid is None else [f"refs/swarm/{name}", oid]
        stock("--git-dir", str(self.path), "update-ref", *words)

    def spec(self, task: str, text: str, *, opened: bool) -> None:
        made = self.put(f"specs/{task}", f"spec {task}\n\n{text}")
        if opened:
            self.set(f"open/{task}", made)

    def claim(self, task: str, attempt: str, *, closed: bool = False) -> None:
        more = "closed: 20260101T000000Z\n" if closed else ""
        self.put(f"claims/{task}", f"claim {task}\nharness: command\nlaw: 1\n{more}{attempt}")

    def verdict(self, task: str, attempt: str, *, fixed: str = "true", more: str = "") -> None:
        self.put(f"verdicts/{task}", f"verdict\ntask: {task}\nattempt: {attempt}\nfixed: {fixed}\n{more}")

    def fix(self, task: str, attempt: str, content: str, subject: str = "") -> str:
        """Puts a commit on main and gives its id; without content it changes nothing."""
        where = ("--git-dir", str(self.path))
        head = stock(*where, "rev-parse", "-q", "--verify", "refs/heads/main", ok=False).decode().strip()
        tree = stock(*where, "rev-parse", f"{head}^{{tree}}").decode().strip() if head else ""
        if content:
            blob = stock(*where, "hash-object", "-w", "--stdin", stdin=content.encode()).decode().strip()
            listed = stock(*where, "ls-tree", tree) if tree else b""
            row = f"100644 blob {blob}\t{task}-{content}\n".encode()
            tree = stock(*where, "mktree", stdin=listed + row).decode().strip()
        trailer = f"\n\nAttempt: {attempt}\n" if attempt else "\n"
        words = ["commit-tree", tree, *(("-p", head) if head else ()), "-m", (subject or f"fix {task}") + trailer]
        made = stock(*where, *words).decode().strip()
        stock(*where, "update-ref", "refs/heads/main", made)
        return made

    def finish(self, task: str, attempt: str, content: str = "y1") -> None:
        self.claim(task, attempt, closed=True)
        self.set(f"tasks/{task}", self.fix(task, attempt, content))
        self.verdict(task, attempt)


@pytest.fixture(scope="module")
def lawful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Repository(tmp_path_factory.mktemp("lawful") / "board.git").path


@pytest.fixture
def repository(tmp_path: Path, lawful: Path) -> Repository:
    shutil.copytree(lawful, tmp_path / "board.git")
    return Repository(tmp_path / "board.git")


def no_return(r: Repository) -> None:
    r.set("tasks/done", None)


def not_on_main(r: Repository) -> None:
    head = stock("--git-dir", str(r.path), "rev-parse", "main").decode().strip()
    r.set("tasks/done", r.fix("side", A, "side"))
    stock("--git-dir", str(r.path), "update-ref", "refs/heads/main", head)


def empty_change(r: Repository) -> None:
    r.set("tasks/done", r.fix("other", "att-w1-aaaaaa", "", subject="other"))


def other_attempt(r: Repository) -> None:
    r.verdict("done", B)


def undecided(r: Repository) -> None:
    r.verdict("failed", B, fixed="perhaps")


def verdict_alone(r: Repository) -> None:
    r.verdict("open", B)


def unclosed(r: Repository) -> None:
    r.claim("done", A)


def closed_alone(r: Repository) -> None:
    r.claim("open", "att-w7-777777", closed=True)


def return_alone(r: Repository) -> None:
    r.claim("open", "att-w7-777777")
    r.set("tasks/open", stock("--git-dir", str(r.path), "rev-parse", "main").decode().strip())


def failed_and_returned(r: Repository) -> None:
    r.set("tasks/failed", stock("--git-dir", str(r.path), "rev-parse", "main").decode().strip())


def twice(r: Repository) -> None:
    r.fix("done", A, "z")


def by_a_stranger(r: Repository) -> None:
    r.fix("done", "att-w9-999999", "z")


def of_no_task(r: Repository) -> None:
    r.fix("nothing", "att-w9-999999", "z")


def one_attempt_holds_two(r: Repository) -> None:
    r.claim("open", "att-w3-cccccc")


def claim_of_nobody(r: Repository) -> None:
    r.put("claims/open", "claim open\nharness: x")


def claim_of_no_task(r: Repository) -> None:
    r.claim("nothing", "att-w8-888888")


def spec_twice(r: Repository) -> None:
    r.put("held/open", "spec open\n\nverify: true")


def claimed_and_held_back(r: Repository) -> None:
    r.set("held/held", stock("--git-dir", str(r.path), "rev-parse", "refs/swarm/specs/held").decode().strip())
    r.set("specs/held", None)


def archived_without_attempt(r: Repository) -> None:
    r.put("archive/claims/open@unknown", "claim open\natt-w8-888888")


def archived_as_another(r: Repository) -> None:
    r.put("archive/claims/open@att-w7-777777", "claim open\natt-w8-888888")


def over_and_alive(r: Repository) -> None:
    r.put("archive/claims/held@att-w3-cccccc", "claim held\natt-w3-cccccc")


def open_and_closed(r: Repository) -> None:
    r.set("open/done", stock("--git-dir", str(r.path), "rev-parse", "refs/swarm/specs/done").decode().strip())


def not_in_the_index(r: Repository) -> None:
    r.set("open/open", None)


def index_of_no_task(r: Repository) -> None:
    r.put("open/nothing", "spec nothing")


def another_spec(r: Repository) -> None:
    r.put("open/open", "spec open\n\nverify: false")


def lock_of_a_dead(r: Repository) -> None:
    r.put("locks/region/r2", "lock r2\ntask: done\nattempt: att-w1-aaaaaa")


def lock_of_another(r: Repository) -> None:
    r.put("locks/region/r1", "lock r1\ntask: held\nattempt: att-w8-888888")


def region_not_locked(r: Repository) -> None:
    r.set("locks/region/r1", None)


def paths_of_a_dead(r: Repository) -> None:
    r.put("locks/writes/done", "lock writes\ntask: done\nattempt: att-w1-aaaaaa\ntarget: main\nwrites: a")


def paths_of_two(r: Repository) -> None:
    for task, attempt in (("held", "att-w3-cccccc"), ("open", "att-w6-ffffff")):
        r.put(f"locks/writes/{task}", f"lock writes\ntask: {task}\nattempt: {attempt}\ntarget: main\nwrites: a")
    r.claim("open", "att-w6-ffffff")


def paths_not_locked(r: Repository) -> None:
    r.spec("open", "verify: true\nowns: a b\n\nDo it.", opened=True)
    r.claim("open", "att-w6-ffffff")


PLANTS: dict[Plant, str] = {
    no_return: "done: it is done and has no return",
    not_on_main: "is not on main",
    empty_change: "changes nothing",
    other_attempt: f"done: its verdict is of {B}, its claim of {A}",
    undecided: "failed: its verdict says neither",
    verdict_alone: "open: it has a verdict and no claim",
    unclosed: "done: it has a verdict, and its claim is not closed",
    closed_alone: "open: its claim is closed, and it has no verdict",
    return_alone: "open: it has a return and no verdict",
    failed_and_returned: "failed: it failed and has a return",
    twice: "done: main has 2 commits of it",
    by_a_stranger: "att-w9-999999: it landed on main, and no task is done by it",
    of_no_task: "att-w9-999999: it landed on main, and no task is done by it",
    one_attempt_holds_two: "att-w3-cccccc: it holds held and open",
    claim_of_nobody: "open: its claim names no attempt",
    claim_of_no_task: "nothing: it is claimed, and there is no such task",
    spec_twice: "open: it is on the board and held back, too",
    claimed_and_held_back: "held: it is claimed and held back",
    archived_without_attempt: "open@unknown: it is archived without its attempt",
    archived_as_another: "open@att-w7-777777: the archived claim is of att-w8-888888",
    over_and_alive: "att-w3-cccccc: it is archived and holds a claim",
    open_and_closed: "done: the index has it, and it is closed",
    not_in_the_index: "open: it is open, and the index does not have it",
    index_of_no_task: "nothing: the index has it, and there is no such task",
    another_spec: "open: the index has another spec of it",
    lock_of_a_dead: "region r2: it is locked by att-w1-aaaaaa for done, which does not hold it",
    lock_of_another: "region r1: it is locked by att-w8-888888",
    region_not_locked: "held: it is held, and its region r1 is not locked for it",
    paths_of_a_dead: "done: its paths are locked by att-w1-aaaaaa, which does not hold it",
    paths_of_two: "open: a is locked for held, too",
    paths_not_locked: "open: it is held, and what it writes is not locked",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.__name__)
def test_a_planted_break_is_found(repository: Repository, plant: Plant) -> None:
    plant(repository)
    assert any(PLANTS[plant] in words for words in invariants.broken(repository.path))


def test_what_is_satisfied_already_need_not_change_anything(repository: Repository) -> None:
    repository.claim("open", B.replace("w2", "w6"), closed=True)
    repository.set("open/open", None)
    repository.set("tasks/open", stock("--git-dir", str(repository.path), "rev-parse", "main~1").decode().strip())
    repository.verdict("open", B.replace("w2", "w6"), more="already: satisfied")
    assert invariants.broken(repository.path) == []


def test_by_hand_it_prints_what_is_broken_and_ends_with_1(repository: Repository) -> None:
    words = [sys.executable, invariants.__file__, str(repository.path)]
    assert subprocess.run(words, capture_output=True, check=True).stdout == b""
    twice(repository)
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode == 1 and b"done: main has 2 commits of it\n" in done.stdout
