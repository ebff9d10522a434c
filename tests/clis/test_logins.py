"""The real claude and codex on a brokered login, in the full cage: no token of it is anywhere in a lane (G11, L22).

They are those that `python tests/clis/install.py` installs; what is not there is skipped, but with CI=true and
RWTEST_CLIS=1 it is a failure. The login is of the scripted model server, whose refresh tokens are good for one use.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from tests.clis import install
from tests.clis.matrix import Gateway
from tests.clis.test_tools import needed

from ropewalk.core.errors import LoginError
from ropewalk.gateway import logins
from ropewalk.gateway.settings import Login, Settings, Upstream
from ropewalk.lane import lanes
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.lanes import Outcome, Wish
from ropewalk.lane.programs import registry
from ropewalk.lane.waits import Limits, Waits
from ropewalk.store import layout
from ropewalk.store.store import Store
from ropewalk.testing.model_server import ModelServer, running
from ropewalk.testing.models.oauth import Granted, Kind

pytestmark = [pytest.mark.clis, pytest.mark.slow, pytest.mark.compat]

PROGRAMS: tuple[Kind, ...] = ("claude", "codex")
LANES = 8
ACCOUNT = "account-of-the-person"
MODELS = {"claude": "claude-sonnet-4-5", "codex": "gpt-5-codex"}
LOOK = (
    "env > env.txt; cat /proc/[0-9]*/environ > environs.txt; cat /proc/[0-9]*/cmdline > words.txt;"
    " cat ~/claude/.credentials.json ~/codex/auth.json > login.txt 2> /dev/null; echo looked > hello.txt"
)
WAIT = "i=0; while [ ! -e go ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"


class Field:
    """Is a store, a model server with a login, a gateway, and lanes in full cages."""

    def __init__(self, folder: Path, server: ModelServer, kind: Kind) -> None:
        self.folder, self.server, self.kind = folder, server, kind
        self.root = str(folder / "store")
        layout.create(self.root, "test-store", "store", "main")
        self.gateway = Gateway(folder / "gateway", Settings())
        steps = [{"tool": "shell", "cmd": LOOK}, {"tool": "shell", "cmd": WAIT}, {"text": "FINAL-ANSWER: looked"}]
        server.add("look", steps)
        home = folder / f".{kind}"
        home.mkdir(mode=0o700)
        self.login = logins.located(kind, str(home), server.refresh_url)
        self.was: list[Granted] = []

    def log_in(self, seconds: float = 3600.0) -> Granted:
        """Logs the person in, as its program does."""
        granted = self.server.logins.grant(self.kind, ACCOUNT, seconds)
        Path(self.login.file).write_bytes(msgspec.json.encode(granted.file()))
        Path(self.login.file).chmod(0o600)
        self.was.append(granted)
        return granted

    def wish(self, name: str, script: str) -> Wish:
        held = install.default_folder()
        binary, node = install.binary(held, self.kind), install.binary(held, "node")
        assert binary is not None and node is not None
        base = self.folder / name
        (base / "work").mkdir(parents=True)
        base.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(base / "work", rooms.UID, rooms.UID)
        up = Upstream(self.server.url(name, script), login=Login(self.kind, self.login.file, self.login.refresh_url))
        return Wish(
            f"r/{name}/1", f"{self.kind}/{name}", registry.get(self.kind), "Please do it.", str(base / "work"),
            "project", str(base / "lane"), str(self.folder / "gateway"),
            f"{binary.parent}:{node.parent}:/usr/local/bin:/usr/bin:/bin", os.environ, "r", name,
            model=MODELS[self.kind], upstreams={"mine": up}, limits=Limits(seconds=150, requests=60),
            waits=Waits(60, 30, 60, 90, 4),
        )  # fmt: skip

    def run(self, name: str, script: str) -> Outcome:
        """Runs a lane to its end, with a store of its own: it is one of several threads."""
        with Store(self.root, lock_wait=60.0) as store:
            return lanes.run(store, self.wish(name, script))

    def tokens(self) -> list[str]:
        """Gives all tokens that the login ever had."""
        every = [*self.was, self.server.logins.last(ACCOUNT)]
        return [token for one in every for token in (one.access, one.refresh)]

    def shown(self) -> list[str]:
        """Gives the files of lanes and gateway that hold a token, and the requests whose body does."""
        found = []
        secrets = [token.encode() for token in self.tokens()]
        for place in self.folder.rglob("*"):
            if place.is_file() and not place.is_symlink() and not place.is_relative_to(self.folder / f".{self.kind}"):
                data = place.read_bytes()
                found += [str(place) for secret in secrets if secret in data]
        for entry in self.server.entries():
            body = self.server.body(entry.number) or b""
            found += [f"request {entry.number}" for secret in secrets if secret in body]
        return found


@pytest.fixture(params=PROGRAMS)
def field(request: pytest.FixtureRequest) -> Iterator[Field]:
    kind: Kind = request.param
    needed(kind)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ropewalk-login-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        made = Field(folder, stack.enter_context(running(keep_bodies=True)), kind)
        stack.callback(made.gateway.end)
        yield made


def test_L22_eight_lanes_renew_a_login_once_each_time_that_it_is_over(field: Field) -> None:
    """It is over when they start, and taken back while a tool of each runs; what they can read holds no token of it."""
    field.log_in(seconds=-5)
    field.server.logins.wait = 0.5
    with ThreadPoolExecutor(LANES) as pool:
        started = [pool.submit(field.run, f"lane{number}", "look") for number in range(LANES)]
        until = time.monotonic() + 120
        while sum(entry.step == 1 and bool(entry.called) for entry in field.server.entries()) < LANES:
            assert time.monotonic() < until and not [one.result() for one in started if one.done()]
            time.sleep(0.05)
        assert field.server.logins.renewed == [ACCOUNT]
        second = field.server.logins.last(ACCOUNT)
        field.was.append(second)
        field.server.logins.end(second.access)
        for number in range(LANES):
            (field.folder / f"lane{number}" / "work" / "go").touch()
        done = [one.result() for one in started]
    assert [one.result.state for one in done] == ["done"] * LANES, [one.result for one in done]
    assert field.server.logins.renewed == [ACCOUNT] * 2 and field.server.logins.refused == []
    for number in range(LANES):
        work = field.folder / f"lane{number}" / "work"
        assert (work / "hello.txt").read_text() == "looked\n"
        assert b"ROPEWALK_LANE=" in (work / "environs.txt").read_bytes()
        assert "rwl_" in (work / "login.txt").read_text(), "the login inside is made up"
    assert field.shown() == []
    held = logins.read(field.login)
    assert (held.access, held.refresh) == field.server.logins.last(ACCOUNT)[2:4]


def test_a_login_that_the_provider_takes_back_ends_lanes_with_the_way_out(field: Field) -> None:
    granted = field.log_in()
    field.server.logins.end_all(ACCOUNT)
    outcome = field.run("first", "look")
    command = logins.PROGRAMS[field.kind].command
    assert (outcome.result.state, outcome.result.reason) == ("failed", "authentication"), outcome
    assert command in f"{outcome.lane.ending.error} {outcome.lane.ending.text}", outcome.lane.ending
    with pytest.raises(LoginError) as refused:
        field.run("second", "look")
    assert command in refused.value.hint and not (field.folder / "second" / "lane").exists()
    assert len(field.server.logins.refused) == 1
    assert granted.refresh not in refused.value.message
