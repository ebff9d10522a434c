"""What the tests of setting up share: a project and a home of its own, the command, and a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

WAIT = 90.0
"""Is how long a screen may take to say something, on a machine that has much else to do."""


class Terminal:
    """Is a command in a terminal of its own, and all that was on its screen."""

    def __init__(self, argv: list[str], folder: Path, env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.screen, self._seen = "", 0
        self._child = subprocess.Popen(["setsid", "--ctty", *argv], cwd=folder, env=dict(env), stdin=slave,
                                       stdout=slave, stderr=slave, close_fds=True)  # fmt: skip
        self._slave = slave  # it stays open, so that the terminal's state can be looked at when the child is gone

    def expect(self, text: str) -> None:
        """Waits until a text is on the screen, behind what was expected before."""
        end = time.monotonic() + WAIT
        while (at := self.screen.find(text, self._seen)) < 0:
            left = end - time.monotonic()
            assert left > 0, f"no {text!r} on the screen:\n{self.screen}"
            if select.select([self._master], [], [], min(left, 0.2))[0]:
                self.screen += os.read(self._master, 65536).decode("utf-8", "replace")
            elif self._child.poll() is not None:
                raise AssertionError(f"it ended before {text!r}:\n{self.screen}")
        self._seen = at + len(text)

    def answer(self, question: str, text: str) -> None:
        """Types a line when a question is on the screen."""
        self.expect(question)
        os.write(self._master, f"{text}\n".encode())

    def interrupt(self) -> None:
        """Types Ctrl-C."""
        os.write(self._master, b"\x03")

    def end(self) -> int:
        """Gives the exit code, once it is over and all of its screen was read."""
        code = self._child.wait(WAIT)
        while select.select([self._master], [], [], 0)[0]:
            self.screen += os.read(self._master, 65536).decode("utf-8", "replace")
        return code

    @property
    def echoes(self) -> bool:
        """Says whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._slave)[3] & termios.ECHO)

    def close(self) -> None:
        """Ends what still runs."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait(WAIT)
        os.close(self._master)
        os.close(self._slave)


class Project:
    """Is a person's repository with three folders, and a home in which nothing is set up."""

    def __init__(self, folder: Path, git: Any, env: Mapping[str, str]) -> None:
        self.folder, self.home = folder / "shop", folder / "home"
        self.folder.mkdir()
        for name in ("cart/main.py", "mail/main.py", "pay/main.py", "docs/index.md"):
            (self.folder / name).parent.mkdir()
            (self.folder / name).write_text("x = 1\n")
        git("init", "-q", "-b", "main", ".", folder=self.folder)
        git("add", ".", folder=self.folder)
        git("commit", "-qm", "Start", folder=self.folder)
        programs = folder / "programs"
        programs.mkdir()
        for name in ("git", "sh", "strace"):
            (programs / name).symlink_to(subprocess.check_output(["sh", "-c", f"command -v {name}"], text=True).strip())
        self.programs = programs
        self.env = {k: v for k, v in env.items() if not k.startswith("GIT_")} | {
            "HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "config"), "PATH": f"{programs}:/usr/bin:/bin",
            "XDG_DATA_HOME": str(self.home / "data"), "ROPEWALK_AGENT": "person/me", "ROPEWALK_CAGE": "none",
            "TERM": "dumb", "GIT_CONFIG_GLOBAL": "/dev/null"}  # fmt: skip
        self.home.mkdir()

    @property
    def endpoints(self) -> Path:
        """Gives the user's file of endpoints."""
        return self.home / "config" / "ropewalk" / "endpoints.toml"

    @property
    def run_file(self) -> Path:
        """Gives the store's file."""
        return self.folder / ".git" / "ropewalk" / "run.toml"

    def argv(self, *words: str) -> list[str]:
        """Gives a command line."""
        return [sys.executable, "-m", "ropewalk.cli.main", *words]

    def rw(self, *words: str, prefix: tuple[str, ...] = (), **env: str) -> tuple[int, dict[str, Any], str]:
        """Runs the command and gives (exit code, envelope, what it said beside)."""
        done = subprocess.run([*prefix, *self.argv(*words)], cwd=self.folder, env=self.env | env, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=200)  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.returncode, msgspec.json.decode(done.stdout), done.stderr.decode()

    @contextmanager
    def terminal(self, *words: str) -> Iterator[Terminal]:
        """Gives a command in a terminal."""
        made = Terminal(self.argv(*words), self.folder, self.env)
        try:
            yield made
        finally:
            made.close()

    def holding(self, text: str, *folders: Path) -> list[Path]:
        """Gives the files of home and project in whose bytes a text is."""
        found = []
        for folder in folders or (self.home, self.folder):
            for inner, _, names in os.walk(folder):
                paths = [Path(inner, name) for name in names]
                found += [path for path in paths if path.is_file() and text.encode() in path.read_bytes()]
        return found

    def manifest(self) -> dict[str, tuple[int, int, int]]:
        """Gives size, time of change and mode of every file of home and project."""
        found = {}
        for folder in (self.home, self.folder):
            for inner, below, names in os.walk(folder):
                for path in [Path(inner, name) for name in (*names, *below)]:
                    at = path.lstat()
                    found[str(path)] = (0 if path.is_dir() else at.st_size, at.st_mtime_ns * path.is_file(), at.st_mode)
        return found
