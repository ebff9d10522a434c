"""Escapes: what an agent could try from a shell of its own, in each cage, as the users that lanes have."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.lane import cagekit
from tests.lane.cagekit import IS_ROOT, SRC, USER, as_user, needed, user_python

from ropewalk.core.process import git_env
from ropewalk.lane.cage import landlock
from ropewalk.lane.cage.room import UID, Level

ESCAPES = Path(__file__).with_name("escapes.py")
# since which ABI Landlock holds back what it did not at first
SINCE = {"signal": 6, "signal all": 6, "loopback": 4, "loopback 6": 4}


@pytest.fixture
def base() -> Iterator[Path]:
    yield from cagekit.open_folder()


class Outside(NamedTuple):
    """Is what a lane must not touch: a folder with canaries and a checkout, and what listens and runs beside it."""

    folder: Path
    secret: Path
    port: int
    abstract: str
    path: Path
    victim: subprocess.Popen[bytes]

    def words(self) -> list[str]:
        named = (self.folder, self.secret, self.port, self.abstract, self.path, self.victim.pid)
        return [str(one) for one in named]


def hashed(folder: Path) -> dict[str, str]:
    """Gives every path below a folder with its mode, owner and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        there = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        found[str(path)] = f"{there.st_mode:o} {there.st_uid} {content}"
    return found


@pytest.fixture
def outside(base: Path) -> Iterator[Outside]:
    """Makes canaries that are the lane's own user's where that is an ordinary one: modes do not protect them."""
    folder = base / "outside"
    folder.mkdir()
    (folder / "canary").write_text("canary\n")
    secret = folder / "secret"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    subprocess.run(["git", "init", "-q", str(folder / "checkout")], check=True, env=git_env())
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"ropewalk-{base.name}"
        abstract.bind("\0" + name)
        abstract.listen()
        named = stack.enter_context(socket.socket(socket.AF_UNIX))
        named.bind(str(base / "socket"))
        named.listen()
        os.chmod(base / "socket", 0o777)
        words = ["sleep", "300"]
        victim = subprocess.Popen(
            as_user(words) if IS_ROOT else words, env={"PATH": os.defpath, "RWTEST_VICTIM": "1"}, start_new_session=True
        )
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        yield Outside(folder, secret, listening.getsockname()[1], name, base / "socket", victim)


def check(outside: Outside, before: dict[str, str], done: subprocess.CompletedProcess[str], level: Level) -> None:
    """Holds that nothing got out, and that the lane ended well all the same."""
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    said = json.loads(done.stdout)
    known = {name for name, since in SINCE.items() if level == "files" and landlock.abi() < since}
    succeeded = [name for name, why in said["tries"].items() if not why and name not in known]
    assert len(said["tries"]) > 40 and not succeeded, succeeded
    assert said["well"] == {"commit": ""}
    assert hashed(outside.folder) == before
    assert outside.victim.poll() is None
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("level", ["full", "files"])
def test_L1_devflock_C3_devflock_C9_nothing_gets_out_as_the_lanes_own_user(
    base: Path, outside: Outside, level: Level
) -> None:
    needed(level)
    where = cagekit.room(base, UID if IS_ROOT else None, tools=(str(ESCAPES.parent),))
    shutil.copy(ESCAPES, base / "work" / "escapes.py")
    before = hashed(outside.folder)
    done = cagekit.caged(level, where, ["/usr/bin/python3", "escapes.py", *outside.words()])
    check(outside, before, done, level)
    remains = left(base)
    assert level == "files" or not remains, "at level files the lane's shim ends what is left, elsewhere the cage does"


START = """
import os, sys
from ropewalk.lane.cage import bubble, landlock, room as rooms
level, base, *words = sys.argv[1:]
network = "gateway" if level == "files" else "none"
where = rooms.Room(*(f"{base}/{n}" for n in ("work",)), "proj", *(f"{base}/{n}" for n in ("home", "tmp", "objects")),
                   network=network)
env = rooms.environment(where, level, {}, "/usr/bin:/bin") | rooms.identity("cage/test")
line = bubble.argv(where, words, env) if level == "full" else landlock.argv(where, words, 9)
os.chdir(where.workspace)
os.execve(line[0], line, env)
"""


@pytest.mark.skipif(not IS_ROOT, reason="to become another user needs root; without it the test above is this one")
@pytest.mark.parametrize("level", ["full", "files"])
def test_L1_devflock_C3_devflock_C9_nothing_gets_out_as_an_ordinary_user(
    base: Path, outside: Outside, level: Level
) -> None:
    """The canaries, the checkout and the process outside are this very user's, so that the cage alone protects them."""
    needed(level)
    python = user_python()
    if python is None:
        pytest.skip("no Python that an ordinary user can run")
    shutil.copytree(SRC / "ropewalk", base / "src" / "ropewalk", ignore=shutil.ignore_patterns("__pycache__"))
    cagekit.room(base, None)
    shutil.copy(ESCAPES, base / "work" / "escapes.py")
    for place in ("work", "home", "tmp", "outside"):
        subprocess.run(["chown", "-R", f"{USER}:{USER}", str(base / place)], check=True)
    before = hashed(outside.folder)
    words = [python, "-c", START, level, str(base), "/usr/bin/python3", "escapes.py", *outside.words()]
    done = subprocess.run(
        as_user(words), env={"PYTHONPATH": str(base / "src"), "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False, cwd="/",
    )  # fmt: skip
    check(outside, before, done, level)


def left(base: Path) -> list[int]:
    """Gives processes that a lane left behind, and ends them."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if f"{base}/outside/canary; sleep 300".encode() in words:
            found.append(int(name))
            os.kill(int(name), signal.SIGKILL)
    return found
