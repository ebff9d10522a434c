"""flockwork 0.4.0 as a peer: fetched from PyPI, or from where `RWTEST_FLOCKWORK` says, and run on a repository.

`RWTEST_FLOCKWORK` is a folder that holds its package, as `pip install --target` makes one.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.strangers import build

VERSION = "flockwork==0.4.0"


def fetch(shared: Path) -> str:
    """Gives the folder of the package, which all processes of a test run share; skips offline, but not in CI."""
    if named := os.environ.get("RWTEST_FLOCKWORK"):
        return named
    folder = shared / "flockwork"
    shared.mkdir(parents=True, exist_ok=True)
    with open(shared / "flockwork.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "l2" / "inrepo.py").exists():
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", folder,
                 VERSION],
                env=build.online(os.environ, shared), stdin=subprocess.DEVNULL, capture_output=True, timeout=300,
                check=False,
            )  # fmt: skip
            if done.returncode:
                words = done.stderr.decode(errors="replace")[-1500:]
                if os.environ.get("CI") == "true" or os.environ.get("RWTEST_FULL"):
                    raise build.Unreachable(words)
                pytest.skip(f"no registry in reach: {words}")
    return str(folder)


class Flockwork:
    """Runs flockwork's commands on one repository."""

    def __init__(self, package: str, origin: str | Path, folder: Path) -> None:
        self.package, self.origin, self.folder = package, str(origin), folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / ".git").exists():
            subprocess.run(["git", "init", "-q", str(folder)], check=True, env=self._env(), timeout=60)

    def _env(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "SWARM_", "FLOCKWORK_", "PYTHON"))}
        who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
               for what, value in (("NAME", "peer"), ("EMAIL", "peer@example.com"))}  # fmt: skip
        return {**kept, **who, "PYTHONPATH": self.package, "SWARM_ORIGIN": self.origin, "SWARM_MODEL": "m-one",
                "SWARM_MODEL_KIND": "direct", "GIT_CONFIG_GLOBAL": "/dev/null", **more}  # fmt: skip

    def run(
        self, *words: str, module: str = "l2.inrepo", ok: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command; variables may be added by name."""
        done = subprocess.run(
            [sys.executable, "-m", module, *words], cwd=self.folder, env=self._env(**env), text=True,
            capture_output=True, stdin=subprocess.DEVNULL, timeout=300, check=False,
        )  # fmt: skip
        assert not ok or done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def json(self, *words: str, **how: Any) -> Any:
        """Gives what a command prints as JSON."""
        return json.loads(self.run(*words, **how).stdout)

    def seed(self, briefs: dict[str, str]) -> None:
        """Puts tasks on the board."""
        path = self.folder / "tasks.json"
        path.write_text(json.dumps(briefs))
        said = self.json("seed", str(path))
        assert all(value is True for value in said["tasks"].values()), said
        path.unlink()

    def agent(self, script: str) -> str:
        """Writes the program that a worker runs as its agent, a line of shell with the brief in `$brief`."""
        path = self.folder / ".git" / "agent"
        path.write_text(f"#!/bin/sh\nfor brief; do :; done\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def work(self, worker: str, script: str, *tasks: str, **env: str) -> None:
        """Runs a worker until nothing is open; `script` is its agent."""
        self.run("worker", worker, *tasks, OPENCODE_BIN=self.agent(script), **env)
