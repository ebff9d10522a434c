"""What the run tests share: a store and the command, with runs of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core import events
from ropewalk.store import trees
from ropewalk.store.store import Store


class Runs:
    """Is a store whose runs are started by the real command."""

    def __init__(self, root: str, folder: Path, env: Mapping[str, str]) -> None:
        self.root, self.folder = root, folder
        self.env = {k: v for k, v in env.items() if not k.startswith("GIT_")} | {
            "XDG_DATA_HOME": str(folder / "data"), "ROPEWALK_AGENT": "person/me", "ROPEWALK_CAGE": "none"}  # fmt: skip

    def argv(self, tasks: list[dict[str, Any]] | bytes, *words: str) -> list[str]:
        """Writes a task file and gives the command line that runs it."""
        path = self.folder / "tasks.json"
        path.write_bytes(tasks if isinstance(tasks, bytes) else msgspec.json.encode({"tasks": tasks}))
        return [sys.executable, "-m", "ropewalk.cli.main", "run", "--tasks", str(path), "--store", self.root, *words]

    def run(self, tasks: list[dict[str, Any]] | bytes, *words: str) -> tuple[int, dict[str, Any]]:
        """Runs tasks and gives (exit code, envelope)."""
        done = subprocess.run(self.argv(tasks, *words), cwd=self.folder, env=self.env, capture_output=True, timeout=100)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.returncode, msgspec.json.decode(done.stdout)

    def rw(self, *words: str) -> dict[str, Any]:
        """Runs another command and gives its envelope."""
        argv = [sys.executable, "-m", "ropewalk.cli.main", *words, "--store", self.root]
        done = subprocess.run(argv, cwd=self.folder, env=self.env, capture_output=True, timeout=60)
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        return found

    def files(self, ref: str) -> dict[str, str]:
        """Gives the files of a ref as text."""
        with Store(self.root) as store:
            head = store.ref(f"refs/heads/{ref}")
            assert head is not None
            found = trees.walk(store.objects, store.objects.commit(head).tree)
            return {p.decode(): store.objects.read(e[1].hex(), "blob").decode() for p, e in found}

    def events(self, run: str) -> list[dict[str, Any]]:
        """Gives the events of a run."""
        return events.read(os.path.join(self.root, "runs", run, "events.jsonl"))[0]

    def left(self, run: str) -> list[int]:
        """Gives the processes of a run that still live."""
        found = []
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if f"ROPEWALK_TASK={run}.".encode() in file.read():
                        found.append(int(name))
            except OSError:
                continue
        return found


@pytest.fixture
def runs(store: Store, tmp_path: Path, clean: dict[str, str]) -> Runs:
    """Gives runs on a store whose main has `README.md`, `src/a.py` (20 lines) and `src/b.py`."""
    return Runs(store.layout.root, tmp_path, clean)


def task(name: str, *steps: dict[str, Any], **words: Any) -> dict[str, Any]:
    """Gives a task whose scripted agent follows these steps; its check passes where it is not said."""
    script = {"steps": list(steps), **words.pop("script", {})}
    return {"id": name, "prompt": f"do {name}", "script": script, "check": "true", **words}
