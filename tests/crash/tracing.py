"""Kills a real command at a system call of its choice, with strace from outside, so that SQLite is inside the test."""

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

MUTATING = (
    "write", "pwrite64", "writev", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat",
    "ftruncate", "fsync", "fdatasync", "mkdir", "mkdirat", "openat", "flock",
)  # fmt: skip
_CALL = re.compile(r"^(\d+)\s+(\w+)\(")


def command(*words: str) -> list[str]:
    """Gives the argv of a `rw` command as a real process."""
    return [sys.executable, "-m", "ropewalk.cli.main", *words]


def environment() -> dict[str, str]:
    """Gives an environment without the caller's git and ropewalk variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "ROPEWALK_"))}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def traced_calls(argv: list[str], cwd: Path, log: Path) -> Counter[str]:
    """Runs a command to its end and counts the mutating system calls of its first process, by name.

    An `openat` counts only with O_CREAT, but its occurrences are numbered over all of them, as strace does.
    """
    strace = shutil.which("strace")
    assert strace, "apt install strace"
    done = subprocess.run(
        [strace, "-o", str(log), "-f", "-e", f"trace={','.join(MUTATING)}", *argv],
        cwd=cwd, env=environment(), capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    counts: Counter[str] = Counter()
    first = None
    for line in log.read_text(errors="replace").splitlines():
        found = _CALL.match(line)
        if found:
            first = first or found[1]
            if found[1] == first:
                counts[found[2]] += 1
    return counts


def kill_points(log: Path, below: str) -> list[tuple[str, int]]:
    """Gives (call, occurrence) of every mutating call of a trace's first process that touches `below` or a descriptor."""
    counts: Counter[str] = Counter()
    points: list[tuple[str, int]] = []
    first = None
    for line in log.read_text(errors="replace").splitlines():
        found = _CALL.match(line)
        if not found:
            continue
        first = first or found[1]
        if found[1] != first:
            continue
        name = found[2]
        counts[name] += 1
        if name == "openat" and ("O_CREAT" not in line or below not in line):
            continue
        points.append((name, counts[name]))
    return points


def run_killed(argv: list[str], cwd: Path, point: tuple[str, int]) -> bool:
    """Runs a command that is killed at a point; says whether the kill hit."""
    strace = shutil.which("strace")
    assert strace
    name, occurrence = point
    done = subprocess.run(
        [strace, "-o", os.devnull, "-f", "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={occurrence}", *argv],
        cwd=cwd, env=environment(), capture_output=True, timeout=120,
    )  # fmt: skip
    return done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


def draw(points: list[tuple[str, int]], seed: int) -> tuple[str, int]:
    """Gives the point of a seed."""
    return random.Random(seed).choice(points)
