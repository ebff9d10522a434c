"""Checks are held as the agent was whose tree they run on: by default, by name, and for a person's own not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from tests.lane.cagekit import needed
from tests.lane.test_tripwire import Shop, git

from ropewalk.core import config
from ropewalk.core.errors import CageUnavailableError, InvalidError
from ropewalk.lane.cage.room import Level
from ropewalk.operations import checking
from ropewalk.operations.context import Context
from ropewalk.store.store import Store

HELD = "cage full, network none"


@pytest.fixture
def shop(tmp_path: Path, clean: dict[str, str]) -> Shop:
    needed("full")
    folder = tmp_path / "shop"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.txt").write_text("a\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Begin")
    made = Shop(folder, tmp_path, clean)
    made.env.pop("ROPEWALK_CAGE")
    made.rw("init")
    (tmp_path / "canary").write_text("canary\n")
    (tmp_path / "agent.sh").write_text("cat > /dev/null; echo hello > hello.txt; echo done\n")
    return made


def test_the_check_of_a_held_lanes_tree_is_held_as_it_was(shop: Shop) -> None:
    unseen = f"test ! -e {shop.tmp}/canary && test -f hello.txt"
    done = shop.rw("lane", "start", "greet", "work", "--command", f"sh {shop.tmp}/agent.sh", "--wait")
    assert (done["lane"]["state"], done["lane"]["cage"]) == ("done", "full")
    assert shop.rw("lane", "collect", "greet", "--check", unseen)["passed"]
    bare = shop.rw("lane", "collect", "greet", "--check", unseen, exit=10, ROPEWALK_CHECK_CAGE="none")
    assert bare["reasons"] == ["check: it ended with 1"]
    land = ("ws", "land", "greet", "--message", "Greet", "--", "sh", "-c", unseen)
    refused = shop.rw(*land, exit=2, ROPEWALK_CHECK_CAGE="strong")
    assert refused["code"] == "E_INVALID"
    landed = shop.rw(*land)
    assert [one["cage"] for one in landed["checks"]] == [HELD]


def test_a_persons_own_check_in_an_own_workspace_is_not_held(shop: Shop) -> None:
    made = shop.rw("ws", "create", "mine")
    Path(made["path"], "hello.txt").write_text("mine\n")
    seen = f"test -e {shop.tmp}/canary"
    landed = shop.rw("ws", "land", "mine", "--message", "Mine", "--", "sh", "-c", seen)
    assert [one.get("cage", "") for one in landed["checks"]] == [""]
    Path(made["path"], "hello.txt").write_text("mine again\n")
    held = shop.rw("ws", "land", "mine", "--message", "Held", "--", "sh", "-c", f"! {seen}", ROPEWALK_CHECK_CAGE="full")
    assert [one["cage"] for one in held["checks"]] == [HELD]


def test_a_worker_checks_in_the_cage_of_its_lanes_and_the_verdict_names_it(shop: Shop) -> None:
    plan = shop.tmp / "tasks.json"
    check = f"test ! -e {shop.tmp}/canary && test -f hello.txt"
    plan.write_bytes(msgspec.json.encode({"tasks": [{"id": "greet", "prompt": "Write hello.txt", "check": check}]}))
    done = shop.rw("run", "--tasks", str(plan), "--command", f"sh {shop.tmp}/agent.sh", "--onto", "main")
    assert done["landed"] == 1, done
    with Store(str(shop.folder / ".git" / "ropewalk")) as store:
        from ropewalk.board import names, wire
        from ropewalk.board.base import words
        from ropewalk.board.local import LocalBoard

        board = LocalBoard(store)
        verdicts = [wire.fields(words(board, ref) or "") for ref, _ in board.below(names.verdict(""))]
    assert [one.get("cage") for one in verdicts] == [HELD]


@pytest.mark.parametrize("level", ["full", "files"])
def test_where_no_cage_is_to_be_had_a_check_is_refused_as_a_lane_is(
    level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *words, **more: None)
    monkeypatch.setattr("ropewalk.lane.cage.levels.landlock_abi", lambda: 0)

    def asking(**env: str) -> Context:
        return Context(cwd=str(tmp_path), data_home=str(tmp_path), settings=config.resolve({}, env))

    with pytest.raises(CageUnavailableError):
        checking.caged(asking(), level)
    with pytest.raises(CageUnavailableError):
        checking.caged(asking(ROPEWALK_CHECK_CAGE=level))
    with pytest.raises(CageUnavailableError):
        checking.of_task(asking())
    assert checking.caged(asking(ROPEWALK_CHECK_CAGE="none"), level) is None and checking.caged(asking()) is None
    assert checking.of_task(asking(ROPEWALK_CAGE="none")) is None
    with pytest.raises(InvalidError):
        checking.caged(asking(ROPEWALK_CHECK_NETWORK="some"))
