"""The gate host: whoever holds a grant has the host check and land one attempt, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.board import claim, grants, names, state, tasks, wire
from ropewalk.board.base import words
from ropewalk.board.claim import As, Held
from ropewalk.board.local import LocalBoard
from ropewalk.board.remote import RemoteBoard
from ropewalk.core import config
from ropewalk.core.errors import ForbiddenError, InvalidError
from ropewalk.operations import host
from ropewalk.operations.context import Context
from ropewalk.plan.task import Task
from storekit import Kit, child_env, put, rw, stock

ACTOR = "test/one"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", "a\n"))
    yield made
    made.close()


@pytest.fixture
def board(kit: Kit) -> LocalBoard:
    made = LocalBoard(kit.store)
    tasks.init(made, ACTOR, mixed=False)
    return made


def held(board: LocalBoard, name: str, check: str = "test -e b.txt") -> Held:
    tasks.add(board, [Task(name, check)], ACTOR)
    found = state.need(board, name)
    assert found is not None
    return claim.take(board, found, As("w1", "claude/one", "script"))


def ask(
    kit: Kit, tmp_path: Path, wish: dict[str, Any], allowed: tuple[str, ...] = ("",), cage: str = ""
) -> tuple[int, Any]:  # fmt: skip
    def context() -> Context:
        return Context(cwd="/", store=kit.root, agent=None, env={}, data_home=str(tmp_path / "data"),
                       cache_home=str(tmp_path / "cache"),
                       settings=config.resolve({}, {"ROPEWALK_CHECK_CAGE": cage}))  # fmt: skip

    status, said = host.answer(context, allowed, msgspec.json.encode(wish))
    return status, msgspec.json.decode(said)


def wish(kit: Kit, one: Held, commit: str, **more: Any) -> dict[str, Any]:
    grant = grants.give(kit.store, "", one.task.id, one.attempt, 60)
    return {"task": one.task.id, "attempt": one.attempt, "commit": commit, "grant": grant, **more}


def test_R24_the_host_lands_what_its_own_check_passed_on(kit: Kit, board: LocalBoard, tmp_path: Path) -> None:
    one = held(board, "t")
    bad = kit.commit(put("c.txt", "c\n")).changeset
    status, said = ask(kit, tmp_path, wish(kit, one, bad))
    assert status == 409 and said["error"]["code"] == "E_CHECK_FAILED", said
    assert kit.main() != bad and board.ref(names.verdict("t")) is None
    # whatever the asker claims of a check is no field of a request
    status, said = ask(kit, tmp_path, wish(kit, one, bad, oracle_rc=0))
    assert status == 400 and said["error"]["code"] == "E_INVALID"
    good = kit.commit(put("b.txt", "b\n")).changeset
    status, said = ask(kit, tmp_path, wish(kit, one, good))
    assert (status, said.get("how")) == (200, "landed"), said
    found = state.need(board, "t")
    assert found is not None and found.state == "done" and found.returned == said["commit"] == kit.main()
    assert found.verdict is not None and found.verdict.attempt == one.attempt
    status, said = ask(kit, tmp_path, wish(kit, one, good))
    assert status == 409 and said["error"]["code"] == "E_FENCED"


def test_R24_a_grant_is_for_one_attempt_until_a_moment(
    kit: Kit, board: LocalBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = grants.give(kit.store, "", "t", "att-w1-abc123", 60)
    assert grants.check(kit.store, words, "", "t", "att-w1-abc123").task == "t"
    for origin, task, attempt in (("x", "t", "att-w1-abc123"), ("", "u", "att-w1-abc123"), ("", "t", "att-w1-abc124")):
        with pytest.raises(ForbiddenError, match="alone"):
            grants.check(kit.store, words, origin, task, attempt)
    said, _, signed = words.removeprefix("rwg_").partition(".")
    swapped = "A" if said[20] != "A" else "B"
    forged = (f"rwg_{said[:20]}{swapped}{said[21:]}.{signed}", f"rwg_{said}.", f"rwg_{said}", "", "rwg_.", "rwg_é.é",
              words[4:], f"rwg_{said}.{signed[:-4]}AAAA", words + "x")  # fmt: skip
    for one in forged:
        with pytest.raises(ForbiddenError, match="no grant of this host"):
            grants.check(kit.store, one, "", "t", "att-w1-abc123")
    now = 10**9 * 5
    monkeypatch.setattr("ropewalk.core.clock.now", lambda: now)
    with pytest.raises(ForbiddenError, match="over"):
        grants.check(kit.store, words, "", "t", "att-w1-abc123")
    for task, attempt, seconds in (("a b", "att-x-1", 1), ("t", "x", 1), ("t", "att-x-1", 0), ("t", "att-x-1", 10**9)):
        with pytest.raises(InvalidError):
            grants.give(kit.store, "", task, attempt, seconds)


def test_R24_the_grant_of_another_host_is_none(kit: Kit, tmp_path: Path) -> None:
    other = Kit(str(tmp_path / "other"))
    with pytest.raises(ForbiddenError):
        grants.check(kit.store, grants.give(other.store, "", "t", "att-w1-abc123", 60), "", "t", "att-w1-abc123")
    other.close()


def test_R24_only_boards_that_are_served(kit: Kit, board: LocalBoard, tmp_path: Path) -> None:
    one = held(board, "t")
    good = kit.commit(put("b.txt", "b\n")).changeset
    evil = str(tmp_path / "evil.git")
    asked = wish(kit, one, good) | {"origin": evil, "grant": grants.give(kit.store, evil, "t", one.attempt, 60)}
    assert ask(kit, tmp_path, asked)[0] == 403
    assert ask(kit, tmp_path, wish(kit, one, good), allowed=(evil,))[0] == 403
    assert not os.path.exists(evil) and state.need(board, "t").state == "claimed"  # type: ignore[union-attr]


@pytest.mark.parametrize("commit", ["main", "/etc", "0" * 40, "../store"])
def test_R24_a_host_takes_commits_that_it_has(kit: Kit, board: LocalBoard, tmp_path: Path, commit: str) -> None:
    one = held(board, "t")
    assert ask(kit, tmp_path, wish(kit, one, commit))[0] in (400, 404)


def test_R24_the_key_is_in_no_childs_environment(kit: Kit, board: LocalBoard, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    one = held(board, "t", check=f"env > {seen}; cat /proc/$PPID/environ >> {seen}; true")
    asked = wish(kit, one, kit.commit(put("b.txt", "b\n")).changeset)
    assert ask(kit, tmp_path, asked, cage="none")[0] == 200
    key = Path(kit.root, "board", "grant.key")
    assert key.stat().st_mode & 0o777 == 0o600
    found = seen.read_bytes()
    assert b"PATH=" in found
    for secret in (key.read_bytes(), key.read_bytes().hex().encode(), asked["grant"].encode()):
        assert secret not in found


@pytest.mark.skipif(not os.path.exists("/usr/bin/bwrap"), reason="bubblewrap is not installed")
def test_a_host_runs_the_check_of_an_attempt_in_a_cage(kit: Kit, board: LocalBoard, tmp_path: Path) -> None:
    """The check and the tree are another's words; what the host's user has is not there."""
    canary = tmp_path / "canary"
    canary.write_text("canary\n")
    one = held(board, "t", check=f"test ! -e {canary} && test ! -e {kit.root} && echo x > /tmp/x")
    code, said = ask(kit, tmp_path, wish(kit, one, kit.commit(put("b.txt", "b\n")).changeset))
    assert code == 200, said
    verdict = wire.fields(words(board, names.verdict("t")) or "")
    assert verdict.get("cage") == "cage full, network none"


@contextmanager
def served(kit: Kit, tmp_path: Path, *flags: str) -> Iterator[str]:
    argv = [sys.executable, "-m", "ropewalk.cli.main", "serve", "--port", "0", "--store", kit.root, *flags]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, env=child_env(XDG_DATA_HOME=str(tmp_path / "data")))
    try:
        assert child.stdout is not None
        yield msgspec.json.decode(child.stdout.readline())["serving"].removesuffix("/repo.git")
    finally:
        child.terminate()
        assert child.stdout is not None
        child.stdout.close()
        child.wait(30)


def test_R24_over_http(kit: Kit, board: LocalBoard, tmp_path: Path) -> None:
    one = held(board, "t")
    good = kit.commit(put("b.txt", "b\n")).changeset
    code, said = rw(kit.root, "board", "grant", "t", one.attempt)
    assert code == 0, said
    words = ("t", one.attempt, good, said["result"]["grant"])
    with served(kit, tmp_path, "--board", ".") as url:
        code, told = rw(kit.root, "board", "hand-in", url, "t", one.attempt, good, "rwg_x.y")
        assert code == 5 and told["error"]["code"] == "E_FORBIDDEN", told
        code, told = rw(kit.root, "board", "hand-in", url, *words)
        assert code == 0 and told["result"]["how"] == "landed", told
    # a host that is not there, or is none, is a refusal
    code, told = rw(kit.root, "board", "hand-in", url, *words)
    assert code and told["error"]["code"] == "E_REMOTE", told
    with served(kit, tmp_path) as url:
        code, told = rw(kit.root, "board", "hand-in", url, *words)
        assert code and told["error"]["code"] == "E_REMOTE", told


def test_R24_a_host_works_for_a_board_on_a_git_server_that_it_serves(kit: Kit, tmp_path: Path) -> None:
    origin = str(tmp_path / "board.git")
    stock("init", "-q", "--bare", "-b", "main", origin)
    kit.stock("push", "-q", origin, "main")
    (tmp_path / "seen").mkdir()
    board = RemoteBoard(origin, str(tmp_path / "seen"))
    tasks.init(board, ACTOR, mixed=False)
    tasks.add(board, [Task("t", "test -e b.txt")], ACTOR)
    board.refresh()
    found = state.need(board, "t")
    assert found is not None
    one = claim.take(board, found, As("w1", "claude/one", "script"))
    good = kit.commit(put("b.txt", "b\n")).changeset
    asked = wish(kit, one, good, origin=origin) | {"grant": grants.give(kit.store, origin, "t", one.attempt, 60)}
    status, said = ask(kit, tmp_path, asked, allowed=(origin,))
    assert (status, said.get("how")) == (200, "landed"), said
    assert stock("--git-dir", origin, "rev-parse", "main").decode().strip() == said["commit"]
    board.refresh()
    found = state.need(board, "t")
    assert found is not None and found.state == "done"
    board.close()
