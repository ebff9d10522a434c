"""Logins by command: the doctor names them and chooses none; a lane without one, or with one that ended, says why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import Rw

from ropewalk.core.errors import LoginUncagedError
from ropewalk.gateway import logins
from ropewalk.lane import lanes
from ropewalk.lane.adapter import Endpoint, Start
from ropewalk.lane.lanes import Wish
from ropewalk.lane.programs import registry
from ropewalk.store.store import Store
from ropewalk.testing.model_server import ModelServer, running

FILE = """
[endpoints.mine]
url = "{url}"
auth = "login"
program = "claude"
refresh_url = "{refresh}"
[profiles.work]
program = "codex"
folder = "~/.codex-work"
"""
TOKEN = "rwl_token-of-the-lane"


class Person:
    """Is a person with a home of his own."""

    def __init__(self, home: Path, server: ModelServer) -> None:
        self.home, self.server = home, server
        (home / ".config" / "ropewalk").mkdir(parents=True)
        self.endpoints = home / ".config" / "ropewalk" / "endpoints.toml"
        self.put(self.endpoints, FILE.format(url=server.url("lane", "text"), refresh=server.refresh_url).encode())
        self.env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "ROPEWALK_CAGE": ""}

    def put(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)

    def log_in(self, seconds: float = 3600.0) -> None:
        granted = self.server.logins.grant("claude", seconds=seconds)
        self.put(self.home / ".claude" / ".credentials.json", msgspec.json.encode(granted.file()))


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    with running() as server:
        yield Person(tmp_path / "home", server)


def doctor(rw: Rw, person: Person, exit: int) -> dict[str, Any]:
    done = rw.run("doctor", "--for", "scripted", "--cage", "none", env=person.env)
    assert done.returncode == exit, done
    found = msgspec.json.decode(done.stdout)["result"]
    assert found["ok"] is (exit == 0)
    return {one["what"].removeprefix("login "): one for one in found["logins"]}


def test_the_doctor_names_logins_and_their_health_and_chooses_none(rw: Rw, person: Person) -> None:
    before = doctor(rw, person, 11)
    assert {name: one["status"] for name, one in before.items()} == {
        "profile:work": "unavailable", "claude": "fail", "codex": "unavailable"
    }  # fmt: skip
    assert before["claude"]["hint"] == "log in with `claude auth login`"
    assert "codex login" in before["profile:work"]["hint"] and ".codex-work" in before["profile:work"]["hint"]
    person.log_in()
    after = doctor(rw, person, 0)["claude"]
    assert (after["status"], after["facts"]["endpoints"]) == ("ok", ["mine"]) and "its token is good" in after["words"]
    person.log_in(seconds=-5)
    over = doctor(rw, person, 0)["claude"]
    assert over["status"] == "ok" and "renewed at its next use" in over["words"]
    (person.home / ".claude" / ".credentials.json").chmod(0o644)
    assert doctor(rw, person, 0)["claude"]["status"] == "advisory"
    assert person.server.logins.renewed == [] and person.server.entries() == []


def test_a_lane_whose_login_is_missing_or_refused_is_not_started(rw: Rw, person: Person, store: Any) -> None:
    """A program of that name is enough: nothing of it is started but to ask for its version."""
    folder = person.home / "bin"
    person.put(folder / "claude", b"#!/bin/sh\necho 2.1.332\n")
    (folder / "claude").chmod(0o755)
    env = {**person.env, "PATH": f"{folder}:{os.environ['PATH']}", "XDG_DATA_HOME": str(person.home / "data")}
    rw.store = store.layout.root
    words = ("lane", "start", "one", "do it", "--harness", "claude", "--cage", "none")
    missing = rw.error("E_LOGIN", *words, env=env, exit=11)
    assert "claude auth login" in missing["hint"]
    person.log_in(seconds=-5)
    person.server.logins.end_all("account-of-the-login")
    for _ in range(2):
        refused = rw.error("E_LOGIN", *words, env=env, exit=11)
        assert "the refresh token is none" in refused["message"] and "claude auth login" in refused["hint"]
    assert len(person.server.logins.refused) == 1
    person.env |= env
    assert doctor(rw, person, 11)["claude"]["status"] == "fail"
    assert rw.ok("lane", "list", env=env)["lanes"] == []


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_G11_devflock_C1_the_login_inside_is_made_up_and_the_environment_has_no_key(name: str) -> None:
    endpoint = Endpoint("http://127.0.0.1:8099", TOKEN, "anthropic", login=True)
    launch = registry.get(name).launch(Start("hi", "/lane/prompt.md", "/work/a", "/lane", endpoint, ""))
    file = logins.PROGRAMS[name].file
    made = logins.held_in(logins.located(name, "/x"), msgspec.json.decode(launch.files[f"{name}/{file}"]))
    assert (made.access, made.refresh) == (TOKEN, "none") and not made.is_over(86_400)
    assert not [key for key, value in launch.env.items() if TOKEN in value or "KEY" in key]
    key = endpoint._replace(login=False)
    by_key = registry.get(name).launch(Start("hi", "/lane/prompt.md", "/work/a", "/lane", key, ""))
    assert f"{name}/{file}" not in by_key.files and TOKEN in by_key.env.values()


def test_L23_each_lane_has_a_folder_of_its_own_for_what_its_program_keeps(store: Any, tmp_path: Path) -> None:
    """Twenty at once write the file that programs keep their settings in: none reads another's, or half of one."""
    agent = tmp_path / "agent.sh"
    agent.write_text('cat > /dev/null\nfor n in $(seq 30); do echo "$ROPEWALK_LANE $n" > $HOME/.claude.json; done\n'
                     'test "$(cat $HOME/.claude.json)" = "$ROPEWALK_LANE 30" && echo good\n')  # fmt: skip

    def run(number: int) -> str:
        work = tmp_path / f"work{number}"
        work.mkdir()
        wish = Wish(
            f"r/{number}/1", "sh/one", registry.get(f"command:sh {agent}"), "x", str(work), "project",
            str(tmp_path / f"lane{number}"), str(tmp_path / "gateway"), os.defpath, {}, level="none",
        )  # fmt: skip
        with Store(store.layout.root, lock_wait=60.0) as mine:
            return lanes.run(mine, wish).result.text

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(run, range(20))) == ["good"] * 20


def test_a_program_whose_login_can_not_be_used_says_what_can(rw: Rw, person: Person, store: Any) -> None:
    folder = person.home / "bin"
    person.put(folder / "gemini", b"#!/bin/sh\necho 0.61.0\n")
    (folder / "gemini").chmod(0o755)
    person.endpoints.unlink()
    env = {**person.env, "PATH": f"{folder}:{os.environ['PATH']}", "XDG_DATA_HOME": str(person.home / "data")}
    rw.store = store.layout.root
    told = rw.error(
        LoginUncagedError.code, "lane", "start", "one", "x", "--harness", "gemini", "--cage", "full", env=env
    )
    assert "with a key" in told["hint"] and "login" not in told["hint"]
