"""Strikes a real command at one of its system calls, with strace from outside, so that SQLite and git are inside.

A point is (call, occurrence): strace numbers the occurrences of each call of each process. A strike is a signal
or an error; `follow` lets it meet the command's children too.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

MUTATING = (
    "write", "pwrite64", "writev", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat",
    "ftruncate", "fsync", "fdatasync", "mkdir", "mkdirat", "openat", "symlink", "symlinkat", "chmod", "fchmod",
)  # fmt: skip
_CALL = re.compile(r"^(?:(\d+)\s+)?(\w+)\(")

Point = tuple[str, int]


class Struck(NamedTuple):
    """Is how a struck command ended: whether it was killed, its exit code, and what it printed."""

    killed: bool
    code: int
    out: bytes
    err: bytes


def command(*words: str) -> list[str]:
    """Gives the argv of a `rw` command as a real process."""
    return [sys.executable, "-m", "ropewalk.cli.main", *words]


def environment(home: Path | None = None) -> dict[str, str]:
    """Gives an environment without the caller's git and ropewalk variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "ROPEWALK_"))}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    if home is not None:
        env |= {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "XDG_STATE_HOME": str(home / "state")}
    return env


def _strace() -> str:
    found = shutil.which("strace")
    assert found, "apt install strace"
    return found


def points(argv: list[str], cwd: Path, env: dict[str, str], below: str, stdin: bytes | None = None) -> list[Point]:
    """Runs a command to its end and gives the points of its own process at which something changes below a folder.

    An `openat` counts with O_CREAT alone, a write not when it goes to the terminal's descriptors.
    """
    log = cwd / "trace.log"
    done = subprocess.run(
        [_strace(), "-y", "-o", str(log), "-e", f"trace={','.join(MUTATING)}", *argv],
        cwd=cwd, env=env, capture_output=True, timeout=300, input=stdin,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    counts: Counter[str] = Counter()
    found: list[Point] = []
    for line in log.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if not match:
            continue
        name = match[2]
        counts[name] += 1
        if name == "openat" and "O_CREAT" not in line:
            continue
        if below in line:
            found.append((name, counts[name]))
    log.unlink()
    return found


def strike(
    argv: list[str],
    cwd: Path,
    env: dict[str, str],
    point: Point,
    what: str,
    *,
    follow: bool = False,
    stdin: bytes | None = None,
) -> Struck:
    """Runs a command and strikes at a point: `what` is `signal=KILL`, `error=EIO` and the like, `+` for ever after."""
    name, occurrence = point
    forever = what.endswith("+")
    inject = f"inject={name}:{what.rstrip('+')}:when={occurrence}{'+' if forever else ''}"
    done = subprocess.run(
        [_strace(), "-o", os.devnull, *(["-f"] if follow else []), "-e", f"trace={name}", "-e", inject, *argv],
        cwd=cwd, env=env, capture_output=True, timeout=300, input=stdin,
    )  # fmt: skip
    killed = done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return Struck(killed, done.returncode, done.stdout, done.stderr)


def draw(all_points: list[Point], seed: int) -> Point:
    """Gives the point of a seed."""
    return random.Random(seed).choice(all_points)


def sample(all_points: list[Point], most: int, seed: int) -> list[Point]:
    """Gives at most so many points, the first and the last among them, the same ones for a seed."""
    if len(all_points) <= most:
        return all_points
    inner = random.Random(seed).sample(all_points[1:-1], most - 2)
    return [all_points[0], *sorted(inner, key=all_points.index), all_points[-1]]
