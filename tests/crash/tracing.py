"""Strikes a real command, or a git process that it starts, at one system call, with strace from outside.

A point is (process, call, occurrence). `rw` is the command itself: it has its modules imported and waits when strace
attaches, so that a strike costs no more than what is struck (`held.py`). Every other name is a git process: the first
`git index-pack` of a command, whoever started it, is `index-pack.1`. These are met through a folder in front of PATH
and in place of git's own, in which `git` numbers each process and lets strace run the one that is meant.
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
from typing import IO, NamedTuple

MUTATING = (
    "write", "pwrite64", "writev", "pwritev", "sendfile", "copy_file_range", "truncate", "ftruncate", "fallocate",
    "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "rmdir",
    "mkdir", "mkdirat", "openat", "chmod", "fchmod", "fchmodat", "utimensat", "fsync", "fdatasync",
)  # fmt: skip
ROOT = Path(__file__).parents[2]
SECONDS = 300
_CALL = re.compile(r"^(\w+)\((.*)")
_PATH_CALLS = {"rename", "link", "symlink", "unlink", "rmdir", "mkdir", "chmod", "truncate"}

_SHIM = """#!/bin/sh
# numbers each git process by its command; strace runs those that are to be seen or struck
GIT_EXEC_PATH='{folder}'
export GIT_EXEC_PATH
if [ ! -d "$RWTEST_GIT_LOGS" ]; then exec '{core}/git' "$@"; fi
name=git
skip=
for word; do
  if [ -n "$skip" ]; then skip=; continue; fi
  case $word in
    -c|-C) skip=1 ;;
    -*) ;;
    *) name=${{word##*/}}; break ;;
  esac
done
number=1
until (set -C; : > "$RWTEST_GIT_LOGS/$name.$number") 2>/dev/null; do number=$((number + 1)); done
case $RWTEST_GIT_STRUCK in
  all|"$name.$number")
    exec strace -y -o "$RWTEST_GIT_LOGS/$name.$number" $RWTEST_GIT_STRACE -- '{core}/git' "$@" ;;
esac
exec '{core}/git' "$@"
"""


class Point(NamedTuple):
    """Is where a command can be struck: the process, the system call, and the how-manieth of it there."""

    process: str
    call: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.process}:{self.call}:{self.occurrence}"


class Struck(NamedTuple):
    """Is how a struck command ended: whether the point was met, its exit code, and what it printed."""

    met: bool
    code: int
    out: bytes
    err: bytes

    @property
    def killed(self) -> bool:
        """Says whether the command itself died of the strike."""
        return self.code == -signal.SIGKILL


def command(*words: str) -> list[str]:
    """Gives the argv of a `rw` command as a real process."""
    return [sys.executable, "-m", "ropewalk.cli.main", *words]


def environment(home: Path | None = None) -> dict[str, str]:
    """Gives an environment without the caller's git and ropewalk variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "ROPEWALK_", "RWTEST_"))}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["PYTHONPATH"] = str(ROOT / "src")
    if home is not None:
        env |= {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "XDG_STATE_HOME": str(home / "state")}
    return env


def numbered_git(folder: Path) -> Path:
    """Makes the folder whose `git` numbers its processes, unless it is there, and gives it."""
    if not folder.is_dir():
        core = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        part.mkdir(parents=True)
        for name in os.listdir(core):
            if name != "git":
                (part / name).symlink_to(f"{core}/{name}")
        (part / "git").write_text(_SHIM.format(folder=folder, core=core))
        (part / "git").chmod(0o755)
        try:
            part.rename(folder)
        except OSError:
            shutil.rmtree(part)  # another made it first
    return folder


class Subject(NamedTuple):
    """Is a command to be struck: the words after `rw`, its folder and environment, and what is fed to it."""

    words: list[str]
    folder: Path
    env: dict[str, str]
    gits: Path
    stdin: bytes | None = None


TRACE = "trace=" + ",".join(f"?{name}" for name in MUTATING)
"""Is strace's option for the calls that change something, whatever of them this machine has."""


class Step(NamedTuple):
    """Is a point, and how strace shows the call."""

    point: Point
    shown: str


def traced(subject: Subject) -> list[Step]:
    """Runs a command to its end and gives the points at which it or a git of its changes something in its folder."""
    log, gits = subject.folder / "trace.log", subject.folder / "trace.gits"
    gits.mkdir()
    env = _git_env(subject, gits, "all", ["-e", TRACE])
    ended = attached(subject._replace(env=env), ["-y", "-o", str(log), "-e", TRACE])
    assert ended.code in (0, 10), ended.out.decode() + ended.err.decode()
    found = steps("rw", log, subject.folder)
    for path in sorted(gits.iterdir()):
        found += steps(path.name, path, subject.folder)
    log.unlink()
    shutil.rmtree(gits)
    return found


def steps(process: str, log: Path, folder: Path) -> list[Step]:
    """Gives the points of one process's trace: calls that worked and changed something below a folder.

    git goes into some repositories and names what is there without a leading slash.
    """
    counts: Counter[str] = Counter()
    found = []
    for line in log.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if not match or match[1] not in MUTATING:
            continue
        name = match[1]
        counts[name] += 1
        if " = -1 " in line or "trace.gits/" in line or (name == "openat" and "O_CREAT" not in line):
            continue
        if str(folder) in line or (name in _PATH_CALLS and match[2].startswith('"') and match[2][1] != "/"):
            found.append(Step(Point(process, name, counts[name]), line))
    return found


def _git_env(subject: Subject, logs: Path, struck: str, strace: list[str]) -> dict[str, str]:
    return subject.env | {
        "PATH": f"{subject.gits}:{subject.env['PATH']}",
        "RWTEST_GIT_LOGS": str(logs),
        "RWTEST_GIT_STRUCK": struck,
        "RWTEST_GIT_STRACE": " ".join(strace),
    }


def injection(point: Point, what: str) -> list[str]:
    """Gives strace's options for a strike: `signal=KILL`, `error=EIO` and the like, with `+` at its end for good."""
    forever = what.endswith("+")
    inject = f"inject={point.call}:{what.rstrip('+')}:when={point.occurrence}{'+' if forever else ''}"
    return ["-e", f"trace={point.call}", "-e", inject]


def strike(subject: Subject, point: Point, what: str) -> Struck:
    """Runs a command and strikes it, or a git of its, at a point; says from the trace whether the point was met."""
    options = injection(point, what)
    if point.process == "rw":
        log = subject.folder / "strike.log"
        ended = attached(subject, ["-o", str(log), *options])
    else:
        logs = subject.folder / "strike.gits"
        logs.mkdir(exist_ok=True)
        log = logs / point.process
        env = _git_env(subject, logs, point.process, options)
        done = subprocess.run(command(*subject.words), cwd=subject.folder, env=env, capture_output=True,
                              timeout=SECONDS, input=subject.stdin)  # fmt: skip
        ended = Struck(False, done.returncode, done.stdout, done.stderr)
    said = log.read_text(errors="replace") if log.exists() else ""
    met = "killed by SIGKILL" in said if what == "signal=KILL" else "(INJECTED)" in said
    for left in (subject.folder / "strike.log", subject.folder / "strike.gits"):
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    return ended._replace(met=met)


class Held:
    """Is a command that stands, with strace attached, before its first step; `go` lets it run."""

    def __init__(self, subject: Subject, options: list[str]) -> None:
        ready, said = os.pipe()
        heard, self._go = os.pipe()
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.held", str(said), str(heard), *subject.words],
            cwd=subject.folder, env=subject.env | {"PYTHONPATH": f"{subject.env['PYTHONPATH']}:{ROOT}"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(said, heard),
        )  # fmt: skip
        self._stdin = subject.stdin or b""
        os.close(said)
        os.close(heard)
        with open(ready, "rb") as pipe:
            assert pipe.read(1) == b".", self.child.communicate()
        self._tracer = subprocess.Popen(
            ["strace", "-p", str(self.child.pid), *options], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        errors: IO[bytes] | None = self._tracer.stderr
        assert errors is not None
        line = errors.readline()
        assert b"attached" in line, line + errors.read()

    @property
    def pid(self) -> int:
        """Gives the command's process."""
        return self.child.pid

    def go(self) -> None:
        """Lets the command run."""
        os.write(self._go, b".")
        os.close(self._go)

    def end(self) -> Struck:
        """Waits for the command's end and gives it."""
        try:
            out, err = self.child.communicate(self._stdin, timeout=SECONDS)
        except BaseException:
            self.child.kill()
            raise
        finally:
            self._tracer.communicate(timeout=SECONDS)
        return Struck(False, self.child.returncode, out, err)


def attached(subject: Subject, options: list[str]) -> Struck:
    """Runs a command under strace from its first step on; Python's own start and the imports are over by then."""
    held = Held(subject, options)
    held.go()
    return held.end()


def sample(all_points: list[Point], most: int, seed: int) -> list[Point]:
    """Gives at most so many points, the first and the last among them, the same ones for a seed."""
    if len(all_points) <= most:
        return all_points
    inner = random.Random(seed).sample(all_points[1:-1], most - 2)
    return [all_points[0], *sorted(inner, key=all_points.index), all_points[-1]]
