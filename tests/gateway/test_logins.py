"""Logins by the real gateway: one renewal for all who wait, tokens that no crash loses, refusals with the way out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.gateway.kit import TOKEN, Gateway, body, gateway, path, send, simple

from ropewalk.core.errors import InvalidError, LoginError, ProviderError
from ropewalk.gateway import endpoints, logins, renewal
from ropewalk.gateway.settings import Lane, Login, Settings, Upstream
from ropewalk.testing.model_server import ModelServer, running
from ropewalk.testing.models.oauth import Granted, Kind

KINDS: tuple[Kind, ...] = ("claude", "codex")
WIRES = {"claude": "anthropic", "codex": "responses"}
RENEW = """
import sys
from ropewalk.core.errors import RopewalkError
from ropewalk.gateway import renewal
from ropewalk.gateway.settings import Login
program, file, url, spent, marks = sys.argv[1:]
try:
    print(renewal.renew(Login(program, file, url), spent, marks).access)
except RopewalkError as error:
    sys.exit(f"{error.code} {error.message} {error.hint}")
"""


class Person(NamedTuple):
    """Is a person's login: as it was granted, the file that holds it, and a folder for what is known of it."""

    server: ModelServer
    granted: Granted
    login: Login
    marks: str

    @property
    def path(self) -> Path:
        """Gives the login's file."""
        return Path(self.login.file)

    def held(self) -> logins.Held:
        """Gives what the file holds."""
        return logins.read(self.login)

    def renewing(self, *before: str) -> subprocess.Popen[bytes]:
        """Starts a process that renews it."""
        words = [self.login.program, self.login.file, self.login.refresh_url, self.granted.access, self.marks]
        return subprocess.Popen([*before, sys.executable, "-c", RENEW, *words], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)  # fmt: skip


Log = Callable[..., Person]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with running(keep_bodies=True) as made:
        yield made


@pytest.fixture
def log_in(server: ModelServer, tmp_path: Path) -> Log:
    def made(kind: Kind, seconds: float = 3600.0) -> Person:
        granted = server.logins.grant(kind, "account-of-the-person", seconds)
        folder = tmp_path / f".{kind}"
        folder.mkdir(mode=0o700)
        login = logins.located(kind, str(folder), server.refresh_url)
        Path(login.file).write_bytes(msgspec.json.encode({**granted.file(), "else": {"stays": 1}}))
        Path(login.file).chmod(0o600)
        return Person(server, granted, login, str(tmp_path / "marks"))

    return made


def settings(person: Person) -> Settings:
    """Gives a gateway's settings with the login as the only upstream."""
    wire: Any = WIRES[person.login.program]
    up = Upstream(person.server.url("lane", "text"), wires=(wire,), login=person.login)
    return Settings(upstreams={"up": up}, lanes={TOKEN: Lane("run/one/1", "run", "one", "test", ("up",))})


def ask(gate: Gateway, person: Person, **how: Any) -> int:
    """Gives the status of a request."""
    wire = WIRES[person.login.program]
    return send(gate.port, path(wire), body(wire), **how).status


@pytest.mark.parametrize("kind", KINDS)
def test_a_login_is_renewed_and_all_else_in_its_file_stays(log_in: Log, kind: Kind) -> None:
    person = log_in(kind, seconds=-5)
    assert person.held().is_over()
    made = renewal.renew(person.login, person.granted.access, person.marks)
    now = person.server.logins.last("account-of-the-person")
    assert made == person.held() and (made.access, made.refresh) == (now.access, now.refresh)
    assert made.until is not None and made.until > time.time() + 3000
    found = msgspec.json.decode(person.path.read_bytes())
    assert found["else"] == {"stays": 1} and person.path.stat().st_mode & 0o777 == 0o600
    if kind == "claude":
        assert found["claudeAiOauth"]["subscriptionType"] == "max"
        assert found["claudeAiOauth"]["scopes"] == ["user:inference", "user:profile"]
    else:
        assert found["auth_mode"] == "chatgpt" and found["tokens"]["account_id"] == made.account
    assert sorted(os.listdir(person.path.parent)) == [person.path.name]
    assert not Path(f"{person.path.parent}.lock").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_G11_the_gateway_puts_the_token_in_the_place_of_the_lanes_own(log_in: Log, kind: Kind, tmp_path: Path) -> None:
    person = log_in(kind)
    with gateway(tmp_path / "gate", settings(person)) as gate:
        assert ask(gate, person, headers={"ChatGPT-Account-Id": "lane", "Anthropic-Beta": "a-1, b-2"}) == 200
        (entry,) = person.server.entries("lane")
        assert entry.auth == "ok" and entry.path == ("/v1/messages" if kind == "claude" else "/responses")
        assert send(gate.port, path(WIRES[kind]), body(WIRES[kind]), token="rwl_another").status == 401
        assert send(gate.port, "/v1/models", method="GET").status == 200
        gate.end()
        assert_hidden(tmp_path / "gate", person.granted.access, person.granted.refresh)
    assert person.server.logins.renewed == []


def assert_hidden(folder: Path, *secrets: str) -> None:
    """Fails when one of the tokens is in a file of a folder."""
    for place in folder.rglob("*"):
        if place.is_file():
            data = place.read_bytes()
            assert not [one for one in secrets if one.encode() in data], place


def test_a_flag_of_logins_goes_to_no_key() -> None:
    assert logins.flags(Upstream("u"), "a, oauth-2025-04-20,b") == "a,b"
    claude = Upstream("u", login=Login("claude", "f"))
    assert logins.flags(claude, "") == "oauth-2025-04-20" and logins.flags(claude, "a") == "a,oauth-2025-04-20"


@pytest.mark.parametrize("kind", KINDS)
def test_L22_a_token_that_ends_while_ten_lanes_work_is_renewed_once(log_in: Log, kind: Kind, tmp_path: Path) -> None:
    person = log_in(kind)
    with gateway(tmp_path / "gate", settings(person)) as gate, ThreadPoolExecutor(10) as pool:
        assert ask(gate, person) == 200
        person.server.logins.wait = 0.3  # so that all of them come while it is renewed
        person.server.logins.end(person.granted.access)
        assert list(pool.map(lambda _: ask(gate, person), range(10))) == [200] * 10
        assert person.server.logins.renewed == ["account-of-the-person"] and person.server.logins.refused == []
        assert ask(gate, person) == 200
        for one in (person.held(), person.granted):
            assert_hidden(tmp_path / "gate", one.access, one.refresh)
        assert [entry.outcome for entry in gate.settled(12)] == ["answered"] * 12


def test_L22_a_token_that_is_over_is_renewed_once_by_eight_processes(log_in: Log) -> None:
    person = log_in("claude", seconds=-5)
    person.server.logins.wait = 0.3
    started = [person.renewing() for _ in range(8)]
    told = {one.communicate(timeout=60) for one in started}
    assert told == {(f"{person.held().access}\n".encode(), b"")}
    assert len(person.server.logins.renewed) == 1 and person.server.logins.refused == []


CALLS = ("fallocate", "connect", "ftruncate", "fsync", "rename")
SPENT = {"fallocate": False, "connect": False, "ftruncate": True, "fsync": True, "rename": True}
"""Are calls of a renewal in their order, and whether the old refresh token is spent when they are made."""


@pytest.mark.parametrize("call", [c if SPENT[c] else pytest.param(c, marks=pytest.mark.slow) for c in CALLS])
def test_L22_a_renewal_that_is_killed_loses_no_token(log_in: Log, call: str) -> None:
    """The process dies at each call that counts; the next one goes on with what is there, and so does the person."""
    person = log_in("claude", seconds=-5)
    before = person.path.read_bytes()
    died = person.renewing("strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}",
                           "-e", f"inject={call}:signal=KILL")  # fmt: skip
    died.communicate(timeout=60)
    assert died.returncode != 0
    assert person.path.read_bytes() == before and bool(person.server.logins.renewed) == SPENT[call]
    age_locks(person)
    made = renewal.renew(person.login, person.granted.access, person.marks)
    assert made.access == person.server.logins.last("account-of-the-person").access
    assert person.server.logins.refused == [] and len(person.server.logins.renewed) == 1
    assert sorted(os.listdir(person.path.parent)) == [person.path.name]


def test_an_answer_that_was_never_written_leaves_the_old_login_and_says_the_way_out(log_in: Log) -> None:
    """Between the answer's arrival and its first write nothing can hold it; a provider may take the old one again."""
    person = log_in("claude", seconds=-5)
    before = person.path.read_bytes()
    part = f"{person.path}.ropewalk-{logins.digest(person.granted.refresh)}"
    died = person.renewing("strace", "-f", "-qq", "-o", os.devnull, "-P", part, "-e", "trace=write",
                           "-e", "inject=write:signal=KILL")  # fmt: skip
    died.communicate(timeout=60)
    assert died.returncode != 0 and person.path.read_bytes() == before and len(person.server.logins.renewed) == 1
    age_locks(person)
    with pytest.raises(LoginError) as refused:
        renewal.renew(person.login, person.granted.access, person.marks)
    assert "used already" in refused.value.message and "claude auth login" in refused.value.hint
    assert person.path.read_bytes() == before and sorted(os.listdir(person.path.parent)) == [person.path.name]


def age_locks(person: Person) -> None:
    """Makes the locks of one who died as old as they are after a minute."""
    old = time.time() - 3600
    for place in (person.path.parent / ".oauth_refresh.lock", Path(f"{person.path.parent}.lock")):
        os.utime(place, (old, old))


def test_the_new_login_is_on_disk_before_it_is_in_the_place_of_the_old_one(log_in: Log, tmp_path: Path) -> None:
    person = log_in("codex", seconds=-5)
    trace = tmp_path / "trace"
    done = person.renewing("strace", "-f", "-qq", "-y", "-o", str(trace), "-e", "trace=fallocate,fsync,rename,sendto")
    assert done.communicate(timeout=60)[1] == b""
    seen = re.findall(r"(fallocate|fsync|rename|sendto)\((?:\d+<([^>]*)>)?", trace.read_text())
    told = [(call, os.path.basename(place)) for call, place in seen if call != "sendto" or "TCP" in place or place]
    part = f"auth.json.ropewalk-{logins.digest(person.granted.refresh)}"
    kept = [one for one in told if one[0] != "sendto"]
    assert kept == [("fallocate", part), ("fsync", part), ("rename", ""), ("fsync", ".codex")]
    assert [call for call, _ in seen].index("sendto") > [call for call, _ in seen].index("fallocate")


def test_a_disk_that_takes_nothing_is_known_before_a_token_is_spent(log_in: Log) -> None:
    person = log_in("claude", seconds=-5)
    full = person.renewing("strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fallocate",
                           "-e", "inject=fallocate:error=ENOSPC")  # fmt: skip
    _, said = full.communicate(timeout=60)
    assert b"E_NO_SPACE" in said and person.server.logins.renewed == []
    assert sorted(os.listdir(person.path.parent)) == [person.path.name]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_is_told_with_the_way_out_and_asked_for_once(log_in: Log, kind: Kind, tmp_path: Path) -> None:
    person = log_in(kind, seconds=-5)
    person.server.logins.end_all("account-of-the-person")
    with gateway(tmp_path / "gate", settings(person)) as gate:
        for _ in range(3):
            answer = send(gate.port, path(WIRES[kind]), body(WIRES[kind]))
            words = msgspec.json.decode(answer.data)["error"]["message"]
            assert answer.status == 403 and logins.PROGRAMS[kind].command in words, words
        assert len(person.server.logins.refused) == 1
        with pytest.raises(LoginError) as refused:
            renewal.ensure(person.login, logins.marks(gate.folder))
        assert logins.PROGRAMS[kind].command in refused.value.hint and len(person.server.logins.refused) == 1
        anew = person.server.logins.grant(kind, "account-of-the-person")
        person.path.write_bytes(msgspec.json.encode(anew.file()))  # as the person logs in
        assert ask(gate, person) == 200


def test_a_token_host_that_is_away_ends_nothing_while_the_token_is_good(log_in: Log, tmp_path: Path) -> None:
    person = log_in("claude", seconds=60)  # which is within the margin
    person.server.logins.fail = 503
    assert renewal.ensure(person.login, person.marks) == person.held()
    with gateway(tmp_path / "gate", settings(person)) as gate:
        assert ask(gate, person) == 200
        person.server.logins.end(person.granted.access)
        assert ask(gate, person) == 503
        person.server.logins.fail = 0
        assert person.path.exists() and person.server.logins.renewed == []
    over = person.login
    with pytest.raises(ProviderError):
        person.server.logins.fail = 500
        renewal.renew(over, person.granted.access, person.marks)
    person.server.logins.fail = 0
    assert renewal.renew(over, person.granted.access, person.marks).access != person.granted.access


def test_a_provider_that_refuses_what_it_has_just_given_is_not_asked_on_and_on(log_in: Log, tmp_path: Path) -> None:
    person = log_in("codex")
    found = msgspec.json.decode(person.path.read_bytes())
    found["tokens"]["account_id"] = "another"  # which the server holds against every request
    person.path.write_bytes(msgspec.json.encode(found))
    with gateway(tmp_path / "gate", settings(person)) as gate:
        assert [ask(gate, person) for _ in range(5)] == [403] * 5
    assert len(person.server.logins.renewed) == 1


def test_the_programs_own_lock_is_waited_for_and_what_it_renewed_is_taken(log_in: Log) -> None:
    person = log_in("claude", seconds=-5)
    lock = person.path.parent / ".oauth_refresh.lock"
    lock.mkdir()
    waits = person.renewing()
    with pytest.raises(subprocess.TimeoutExpired):
        waits.wait(1.0)
    status, told = person.server.logins.renew(msgspec.json.encode(
        {"grant_type": "refresh_token", "refresh_token": person.granted.refresh, "client_id": "c"}))  # fmt: skip
    assert status == 200
    anew = person.server.logins.last("account-of-the-person")
    person.path.write_bytes(msgspec.json.encode(anew.file()))
    lock.rmdir()
    assert waits.communicate(timeout=60) == (f"{told['access_token']}\n".encode(), b"")
    assert len(person.server.logins.renewed) == 1 and person.server.logins.refused == []


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "not logged in"), (b"{", "is no JSON"), (b"[]", "holds no login"), (b"{}", "holds no login of a person"),
     (b'{"OPENAI_API_KEY": "sk-1", "tokens": null}', "holds no login of a person")],
)  # fmt: skip
def test_a_file_without_a_login_says_how_to_log_in(tmp_path: Path, content: bytes | None, words: str) -> None:
    login = logins.located("codex", str(tmp_path / "work"))
    if content is not None:
        Path(login.file).parent.mkdir()
        Path(login.file).write_bytes(content)
    with pytest.raises(LoginError) as refused:
        renewal.ensure(login, str(tmp_path))
    assert words in refused.value.message
    assert refused.value.hint == f"log in with `CODEX_HOME={tmp_path}/work codex login`"


GOOD = """
[endpoints.mine]
auth = "login"
program = "claude"
[endpoints.work]
auth = "profile:work"
slots = 2
[profiles.work]
program = "codex"
folder = "~/.codex-work"
"""


def read(tmp_path: Path, text: str, env: Mapping[str, str]) -> dict[str, Upstream]:
    (tmp_path / "endpoints.toml").write_text(text)
    (tmp_path / "endpoints.toml").chmod(0o600)
    return endpoints.read(str(tmp_path), env)


def test_endpoints_name_logins_and_profiles(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD, {"HOME": "/home/me"})
    assert found["mine"].login == Login("claude", "/home/me/.claude/.credentials.json")
    assert (found["mine"].url, found["mine"].wires) == ("https://api.anthropic.com", ("anthropic",))
    assert found["work"].login == Login("codex", "/home/me/.codex-work/auth.json")
    assert found["work"].url == "https://chatgpt.com/backend-api/codex" and found["work"].slots == 2
    moved = read(tmp_path, GOOD, {"HOME": "/home/me", "CLAUDE_CONFIG_DIR": "/elsewhere"})
    assert moved["mine"].login == Login("claude", "/elsewhere/.credentials.json")
    # a login is its own program's alone, whatever else speaks the same format
    assert endpoints.fitting(found, ("anthropic",), harness="claude") == ["mine"]
    assert endpoints.fitting(found, ("anthropic",), harness="glm") == []
    assert endpoints.fitting(found, ("responses", "chat"), harness="codex") == ["work"]
    assert endpoints.fitting(found, ("responses", "chat"), harness="opencode") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [('[endpoints.a]\nauth = "login"', "whose login?"),
     ('[endpoints.a]\nauth = "login"\nprogram = "gemini"', "the login of 'gemini' can't be used"),
     ('[endpoints.a]\nauth = "login"\nprogram = "claude"\nkey = "k"', "a key or a login"),
     ('[endpoints.a]\nauth = "profile:x"', "there is no 'profile:x'"),
     ('[profiles.a]\nprogram = "claude"\nfolder = "work"\n[endpoints.b]\nurl = "http://a"', "is no whole path"),
     ('[endpoints.a]\nkey = "k"', "is no URL")],
)  # fmt: skip
def test_what_is_wrong_with_a_login_in_the_file_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidError) as refused:
        read(tmp_path, text, {"HOME": "/home/me"})
    assert words in refused.value.message


def test_a_header_of_the_users_is_sent_once_however_a_program_writes_it(server: ModelServer, tmp_path: Path) -> None:
    made = simple(server.url("lane", "text"), upstreams={"up": Upstream(server.url("lane", "text"), "k" * 8,
                                                                        headers={"x-user": "mine"})})  # fmt: skip
    granted = server.logins.grant("codex")
    up = Upstream(server.url("lane", "text"), granted.access, headers={"chatgpt-account-id": granted.account})
    with gateway(tmp_path / "gate", msgspec.structs.replace(made, upstreams={"up": up})) as gate:
        given = {"ChatGPT-Account-ID": "the program's own"}
        assert send(gate.port, path("responses"), body("responses"), headers=given).status == 200
