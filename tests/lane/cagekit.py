"""What the tests of cages share: rooms that another user can reach, and an ordinary user to start a cage as."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ropewalk.lane.cage import give, levels
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import Level, Network, Room

USER = 1001
IS_ROOT = os.geteuid() == 0
SRC = Path(__file__).resolve().parent.parent.parent / "src"


def needed(level: Level) -> None:
    """Skips where a level can't be had; with CI=true that is a failure."""
    reason = levels.available()[level]
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"level {level}: {reason}")
    if reason:
        pytest.skip(f"level {level}: {reason}")


def open_folder() -> Iterator[Path]:
    """Gives a folder that every user gets to, which pytest's own is not."""
    made = Path(tempfile.mkdtemp(prefix="ropewalk-cage-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def room(base: Path, uid: int | None, *, network: Network = "none", tools: Sequence[str] = ()) -> Room:
    """Makes a room below a folder for a user."""
    for name in ("work", "home", "tmp", "objects"):
        (base / name).mkdir(exist_ok=True)
    if uid is not None:
        for name in ("work", "home", "tmp"):
            give.give(str(base / name), uid)
    places = (str(base / name) for name in ("home", "tmp", "objects"))
    return Room(str(base / "work"), "proj", *places, tools=tools, network=network, uid=uid)


def caged(
    level: Level, where: Room, words: Sequence[str], port: int = 0, seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs words in a room to their end."""
    env = rooms.environment(where, level, {}, "/usr/bin:/bin") | rooms.identity("cage/test")
    line = levels.argv(level, where, words, env, port)
    return subprocess.run(
        line, env=env, cwd=where.workspace, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip


def user_python() -> str | None:
    """Gives a Python that an ordinary user can run and that can run our code."""
    for path in (rooms.python()[1], sys.executable, "/usr/bin/python3"):
        if os.path.exists(path) and rooms.is_reachable(path, USER):
            done = subprocess.run([path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False)
            if done.returncode == 0:
                return path
    return None


def as_user(words: Sequence[str]) -> list[str]:
    """Gives words that an ordinary user runs, by root."""
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *words]
