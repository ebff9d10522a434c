"""Runs beside a person's checkout, whatever state it is in: of the checkout nothing changes but for one new branch."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from .conftest import task

NASTY = {
    "core.hooksPath": "", "core.fsmonitor": "touch PWNED; false", "core.logAllRefUpdates": "always",
    "fetch.prune": "true", "fetch.pruneTags": "true", "fetch.writeCommitGraph": "true", "gc.auto": "1",
    "remote.origin.url": "/nowhere", "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*",
}  # fmt: skip
HOOKS = ("reference-transaction", "post-checkout", "post-index-change", "post-merge", "pre-auto-gc", "pre-commit")


class User:
    """Is a person with a repository, whose hooks all fail and whose settings would have git do more than it is told."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.home, self.repo = folder, folder / "shop"
        self.env = {k: v for k, v in env.items() if not k.startswith(("GIT_DIR", "GIT_WORK"))} | {
            "XDG_DATA_HOME": str(folder / "data"), "ROPEWALK_AGENT": "person/me", "ROPEWALK_CAGE": "none"}  # fmt: skip

    def git(self, *words: str, cwd: Path | None = None) -> str:
        """Runs the person's git, without hooks."""
        argv = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
                "-c", "protocol.file.allow=always", *words]  # fmt: skip
        return subprocess.run(argv, cwd=cwd or self.repo, env=self.env, check=True, capture_output=True).stdout.decode()

    def make(self, repo: Path) -> None:
        """Makes a repository of a few commits and a tag."""
        self.git("init", "-q", "-b", "main", str(repo), cwd=self.home)
        (repo / "src").mkdir()
        (repo / "src/a.txt").write_text("a\n")
        self.git("add", "-A", cwd=repo)
        self.git("commit", "-q", "-m", "first", cwd=repo)
        (repo / "src/a.txt").write_text("a\nb\n")
        self.git("commit", "-q", "-a", "-m", "second", cwd=repo)
        self.git("tag", "v1", cwd=repo)

    def spoil(self, repo: Path) -> None:
        """Gives a repository hooks that fail, and settings that do more."""
        common = repo / self.git("rev-parse", "--git-common-dir", cwd=repo).strip()
        hooks = common / "hooks"
        hooks.mkdir(exist_ok=True)
        for hook in HOOKS:
            path = hooks / hook
            path.write_text(f"#!/bin/sh\ntouch '{self.home}/PWNED'\nexit 1\n")
            path.chmod(0o755)
        for key, value in NASTY.items():
            words = value.replace("PWNED", f"'{self.home}/PWNED'") or str(hooks)
            self.git("config", key, words, cwd=repo)

    def popen(self, cwd: Path, todo: list[dict[str, Any]], *words: str, name: str = "tasks") -> subprocess.Popen[bytes]:
        """Starts a run in a folder."""
        path = self.home / f"{name}.json"
        path.write_bytes(msgspec.json.encode({"tasks": todo}))
        argv = [sys.executable, "-m", "ropewalk.cli.main", "run", "--tasks", str(path), *words]
        return subprocess.Popen(argv, cwd=cwd, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, cwd: Path, todo: list[dict[str, Any]] | None = None, *words: str) -> dict[str, Any]:
        """Runs tasks in a folder and gives the envelope, with what was said in `said`."""
        child = self.popen(cwd, todo or TASKS, *words)
        out, err = child.communicate(timeout=100)
        assert b"Traceback" not in err, err.decode()
        found: dict[str, Any] = msgspec.json.decode(out)
        return found | {"said": err.decode()}

    def rw(self, cwd: Path, *words: str) -> dict[str, Any]:
        """Runs another command."""
        argv = [sys.executable, "-m", "ropewalk.cli.main", *words]
        done = subprocess.run(argv, cwd=cwd, env=self.env, capture_output=True, timeout=60)
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        return found


TASKS = [task("one", {"put": "one.txt", "text": "1\n"}), task("two", {"put": "two.txt", "text": "2\n"}, needs=["one"])]


def state(*roots: Path) -> dict[str, tuple[int, bytes]]:
    """Gives mode and content of all files below folders, but for stores and git's objects."""
    found = {}
    for root in roots:
        for folder, below, names in os.walk(root):
            if "HEAD" in names and "objects" in below:
                below[:] = [name for name in below if name not in ("objects", "ropewalk")]
            for name in names:
                path = Path(folder, name)
                there = path.lstat()
                data = os.readlink(path).encode() if stat.S_ISLNK(there.st_mode) else path.read_bytes()
                found[str(path)] = (there.st_mode, data)
    return found


def new(user: User, before: Mapping[str, tuple[int, bytes]], *roots: Path) -> list[str]:
    """Gives the files that are new; all others are as they were, and no program of the person's was run."""
    after = state(*roots)
    assert {path: after.get(path) for path in before} == dict(before)
    assert not (user.home / "PWNED").exists()
    return sorted(after.keys() - before.keys())


@pytest.fixture
def user(tmp_path: Path, clean: dict[str, str]) -> User:
    """Gives a person with a repository."""
    made = User(tmp_path, clean)
    made.make(made.repo)
    return made


def landed(envelope: dict[str, Any]) -> dict[str, Any]:
    """Gives the run of an envelope, all of whose tasks landed."""
    assert envelope["ok"], envelope
    run: dict[str, Any] = envelope["result"]
    assert run["landed"] == len(run["tasks"]) and run["state"] == "done", run
    return run


def test_F24_a_dirty_checkout_is_told_of_and_stays_as_it_is(user: User) -> None:
    head = user.git("rev-parse", "HEAD").strip()
    (user.repo / "src/a.txt").write_text("mine\n")
    (user.repo / "new file").write_text("new\n")
    (user.repo / "staged").write_text("staged\n")
    user.git("add", "staged")
    (user.repo / "staged").write_text("and changed\n")
    user.git("branch", "ropewalk")
    user.spoil(user.repo)
    before = state(user.repo)
    envelope = user.run(user.repo)
    run = landed(envelope)
    assert "3 uncommitted paths of yours are not part of the run" in envelope["said"] and "new file" in envelope["said"]
    assert run["base"] == head and run["branch"] == f"ropewalk-runs/{run['id']}"
    assert new(user, before, user.repo) == [str(user.repo / f".git/refs/heads/ropewalk-runs/{run['id']}")]
    assert user.git("diff", "--name-only", "main", run["branch"]).split() == ["one.txt", "two.txt"]
    undone = user.rw(user.repo, "runs", "undo", run["id"])["result"]
    assert undone["branch"] == run["branch"] and new(user, before, user.repo) == []
    number = user.rw(user.repo, "op", "log", "-n", "1")["result"]["ops"][0]["op"]
    assert user.rw(user.repo, "op", "undo", str(number))["ok"]
    assert user.rw(user.repo, "runs", "resume", run["id"])["result"]["branch"] == run["branch"]
    assert new(user, before, user.repo) == [str(user.repo / f".git/refs/heads/{run['branch']}")]


@pytest.mark.parametrize(
    "where",
    [pytest.param("root", marks=pytest.mark.slow), pytest.param("subfolder", marks=pytest.mark.slow), "worktree"],
)
def test_devflock_B14_a_detached_head_is_where_the_run_starts(user: User, where: str) -> None:
    cwd = {"root": user.repo, "subfolder": user.repo / "src", "worktree": user.home / "tree"}[where]
    first = user.git("rev-parse", "HEAD~1").strip()
    if where == "worktree":
        user.git("worktree", "add", "-q", "--detach", str(cwd), first)
    else:
        user.git("checkout", "-q", "--detach", first)
    user.spoil(user.repo)
    roots = [user.repo, cwd] if where == "worktree" else [user.repo]
    before = state(*roots)
    run = landed(user.run(cwd))
    assert run["base"] == first
    assert new(user, before, *roots) == [str(user.repo / f".git/refs/heads/ropewalk/{run['id']}")]
    user.git("checkout", "-q", run["branch"], cwd=cwd)
    undone = user.rw(cwd, "runs", "undo", run["id"])
    assert undone["result"]["how"] == "dropped" and "checked out" in undone["warnings"][0], undone
    assert user.git("rev-parse", run["branch"]).strip() == run["head"]


def test_devflock_B14_a_repository_without_commits(user: User) -> None:
    empty = user.home / "empty"
    user.git("init", "-q", "-b", "trunk", str(empty), cwd=user.home)
    (empty / "draft.txt").write_text("draft\n")
    user.spoil(empty)
    before = state(empty)
    run = landed(user.run(empty))
    assert new(user, before, empty) == [str(empty / f".git/refs/heads/ropewalk/{run['id']}")]
    assert user.git("ls-tree", "--name-only", run["branch"], cwd=empty).split() == ["one.txt", "two.txt"]
    user.git("add", "-A", cwd=empty)
    user.git("commit", "-q", "-m", "first", cwd=empty)
    assert landed(user.run(empty))["base"] == user.git("rev-parse", "HEAD", cwd=empty).strip()


def test_devflock_B14_a_submodule_and_what_it_is_in(user: User) -> None:
    outer = user.home / "outer"
    user.git("init", "-q", "-b", "main", str(outer), cwd=user.home)
    user.git("submodule", "--quiet", "add", str(user.repo), "sub", cwd=outer)
    user.git("commit", "-q", "-m", "with sub", cwd=outer)
    sub = outer / "sub"
    (sub / "src/a.txt").write_text("dirty\n")
    user.spoil(sub)
    user.spoil(outer)
    before = state(outer)
    inner = landed(user.run(sub))
    assert inner["base"] == user.git("rev-parse", "HEAD", cwd=sub).strip()
    branches = [str(outer / f".git/modules/sub/refs/heads/ropewalk/{inner['id']}")]
    assert new(user, before, outer) == branches
    run = landed(user.run(outer))
    assert run["base"] == user.git("rev-parse", "HEAD", cwd=outer).strip()
    branches.insert(0, str(outer / f".git/refs/heads/ropewalk/{run['id']}"))
    assert sorted(new(user, before, outer)) == sorted(branches)
    assert user.git("ls-tree", run["branch"], "sub", cwd=outer) == user.git("ls-tree", "main", "sub", cwd=outer)


def test_devflock_B3_two_runs_at_once_and_one_after_them(user: User) -> None:
    def todo(text: str) -> list[dict[str, Any]]:
        both = {"barrier": str(user.home / "both"), "count": 2}
        return [task("one", both, {"put": "one.txt", "text": text}), task("two", {"put": "two.txt", "text": text},
                needs=["one"])]  # fmt: skip

    user.spoil(user.repo)
    before = state(user.repo)
    children = [user.popen(user.repo, todo(f"{name}\n"), name=name) for name in ("left", "right")]
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda child: child.communicate(timeout=100), children))
    runs = [landed(msgspec.json.decode(out)) for out, _ in ended]
    assert sorted(new(user, before, user.repo)) == sorted(
        str(user.repo / f".git/refs/heads/ropewalk/{run['id']}") for run in runs
    )
    for run, name in zip(runs, ("left", "right"), strict=True):
        assert (
            user.git("show", f"{run['branch']}:one.txt") == f"{name}\n" == user.git("show", f"{run['branch']}:two.txt")
        )
    user.git("merge", "-q", "--ff-only", runs[0]["branch"])
    third = landed(user.run(user.repo, [task("one", {"put": "three.txt", "text": "3\n"})]))
    assert third["base"] == user.git("rev-parse", "HEAD").strip() == runs[0]["head"]
    undone = user.rw(user.repo, "runs", "undo", runs[0]["id"])
    assert undone["result"]["how"] == "dropped" and undone["result"]["held_by"] == [third["ref"]], undone
    (command,) = [words.partition("this takes it back there: git ")[2] for words in undone["warnings"]]
    assert user.git("rev-parse", "HEAD").strip() == runs[0]["head"]
    user.git(*command.split())
    assert not (user.repo / "one.txt").exists() and (user.repo / "src/a.txt").exists()
    user.git("reset", "-q", "--hard", "v1")
    fourth = landed(user.run(user.repo, [task("one", {"put": "four.txt", "text": "4\n"})]))
    assert fourth["base"] == user.git("rev-parse", "v1").strip()


def test_a_branch_that_a_run_made_before_it_was_killed_is_not_made_again(user: User) -> None:
    before = state(user.repo)
    run = landed(user.run(user.repo))
    (user.repo / ".git/ropewalk/runs" / run["id"] / "branch.json").unlink()  # as where it was killed before it noted it
    assert user.rw(user.repo, "runs", "resume", run["id"])["result"]["branch"] == run["branch"]
    made = user.repo / f".git/refs/heads/{run['branch']}"
    assert new(user, before, user.repo) == [str(made)]
    made.rename(f"{made}.lock")  # as where its git was killed over it
    (user.repo / ".git/ropewalk/runs" / run["id"] / "branch.json").unlink()
    assert user.rw(user.repo, "runs", "resume", run["id"])["result"]["branch"] == run["branch"]
    assert new(user, before, user.repo) == [str(made)] and made.read_text().strip() == run["head"]


@pytest.mark.slow
def test_F24_a_branch_that_cant_be_made_is_a_warning_with_the_command(user: User) -> None:
    (user.repo / ".git/refs/heads/ropewalk").write_text("no ref\n")
    envelope = user.run(user.repo)
    run = landed(envelope)
    assert run.get("branch") is None
    (warning,) = [words for words in envelope["warnings"] if "could not be made" in words]
    assert f"git fetch {user.repo}/.git/ropewalk/repo.git refs/heads/{run['ref']}:" in warning


@pytest.mark.slow
def test_devflock_B4_what_landed_in_the_store_is_part_of_the_next_run(user: User) -> None:
    first = landed(user.run(user.repo, TASKS, "--onto", "main")) if user.rw(user.repo, "init")["ok"] else {}
    assert landed(user.run(user.repo, [task("three", {"put": "3", "text": "3\n"})]))["base"] == first["head"]
    user.git("checkout", "-q", "-b", "old", "HEAD~1")
    old = landed(user.run(user.repo, [task("four", {"put": "4", "text": "4\n"})]))
    assert old["base"] == user.git("rev-parse", "HEAD").strip()


@pytest.mark.slow
def test_devflock_B14_a_repository_that_cant_be_started_from_is_an_error_and_no_empty_start(user: User) -> None:
    other = user.home / "other"
    user.git("init", "-q", "-b", "main", "--object-format=sha256", str(other), cwd=user.home)
    user.git("commit", "-q", "--allow-empty", "-m", "first", cwd=other)
    user.git("checkout", "-q", "--detach", cwd=other)
    (user.repo / ".git/refs/heads/main").write_text("1" * 40 + "\n")
    for cwd, code in ((other, "E_UNSUPPORTED"), (user.repo, "E_REMOTE")):
        before = state(cwd)
        assert user.run(cwd)["error"]["code"] == code
        assert new(user, before, cwd) == []
        assert user.rw(cwd, "runs", "list")["result"]["runs"] == []
