"""What the worker's tests share: a board, an agent that runs the script in its task, and workers as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
from tests.board.boardkit import BoardKit

from ropewalk.board import wire
from ropewalk.plan.task import Limits, Task
from storekit import child_env, stock

ROOT = Path(__file__).resolve().parent.parent.parent
_AGENT = """#!/bin/sh
sed -n '/^#!sh$/,/^#!end$/p' > "$HOME/script"
exec /bin/sh "$HOME/script"
"""
_PATIENCE = 60.0


def task(name: str, script: str, check: str = "true", **more: Any) -> Task:
    """Gives a task whose agent runs a shell script in the workspace."""
    return Task(name, check, description=f"Do {name}\n\n#!sh\n{script}\n#!end", **more)


class Process:
    """Is a worker as a process, and the events it has printed."""

    def __init__(self, child: subprocess.Popen[bytes], errors: Path) -> None:
        self.child, self._errors = child, errors
        self.events: list[dict[str, Any]] = []
        self._queue: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._queue.put(msgspec.json.decode(line))
        self._queue.put(None)

    def _take(self) -> dict[str, Any] | None:
        try:
            event = self._queue.get(timeout=_PATIENCE)
        except Empty:
            raise AssertionError(f"the worker says nothing; so far: {self.events}") from None
        if event is not None:
            self.events.append(event)
        else:
            self._queue.put(None)  # whoever asks again hears of the end again
        return event

    def until(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Gives the next event of a kind."""
        while (event := self._take()) is not None:
            if event["event"] == kind and facts.items() <= event.items():
                return event
        raise AssertionError(f"the worker ended without {kind} {facts}: {self.events} {self.words()}")

    def step(self) -> bool:
        """Waits for one more event; says whether there was one before its end."""
        return self._take() is not None

    def end(self) -> int:
        """Waits for its end and gives the exit code."""
        while self._take() is not None:
            pass
        return self.child.wait(_PATIENCE)

    @property
    def report(self) -> dict[str, Any]:
        """Gives the report of a worker that ended by itself."""
        assert self.events and self.events[-1]["event"] == "report", (self.events, self.words())
        found: dict[str, Any] = self.events[-1]["report"]
        return found

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        """Gives the events of a kind."""
        return [event for event in self.events if event["event"] == kind]

    def words(self) -> str:
        """Gives what it wrote to standard error."""
        return self._errors.read_text(errors="replace")

    def close(self) -> None:
        """Kills it if it is there, and closes its pipe."""
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        self._reader.join()
        assert self.child.stdout is not None
        self.child.stdout.close()

    def kill(self, number: int) -> None:
        """Sends it a signal."""
        os.kill(self.child.pid, number)


class WorkKit(BoardKit):
    """Is a board with workers."""

    def __init__(self, folder: Path, *, mixed: bool = False) -> None:
        super().__init__(folder / "store", mixed=mixed)
        self._prepare(folder)

    def _prepare(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.more: dict[str, Any] = {}
        self.agent = folder / "agent"
        self.agent.write_text(_AGENT)
        self.agent.chmod(0o755)
        self.started: list[Process] = []

    def start(self, worker: str = "w1", *, scripted: bool = False, env: dict[str, str] | None = None,
              session: bool = False, **options: Any) -> Process:  # fmt: skip
        """Starts a worker, in a process group of its own if wanted; by default it works until the board is empty."""
        asked: dict[str, Any] = {"worker": worker, "data_home": str(self.data), "command": str(self.agent), **options}
        if scripted:
            del asked["command"]
        asked.update(self.more)
        asked.setdefault("until_empty", True)
        errors = self.folder / f"errors-{len(self.started)}"
        with open(errors, "wb") as file:
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.work.driver", self.root(worker), msgspec.json.encode(asked).decode()],
                cwd=ROOT, env=child_env(**(env or {})), stdout=subprocess.PIPE, stderr=file, start_new_session=session,
            )  # fmt: skip
        self.started.append(Process(child, errors))
        return self.started[-1]

    def root(self, worker: str) -> str:
        """Gives the store in which a worker makes its workspaces."""
        return self.kit.root

    def work(self, worker: str = "w1", *, exit: int = 0, **options: Any) -> Process:
        """Runs a worker to its end."""
        process = self.start(worker, **options)
        code = process.end()
        assert code == exit, (code, process.events, process.words())
        return process

    def files(self, branch: str = "main") -> dict[str, str]:
        """Gives the files of a branch."""
        listed = stock("ls-tree", "-r", "-z", "--name-only", branch, cwd=self.kit.repo).decode().split("\0")[:-1]
        return {name: stock("show", f"{branch}:{name}", cwd=self.kit.repo).decode() for name in listed}

    def fixes(self, name: str) -> list[str]:
        """Gives the commits on main that fix a task."""
        listed = stock("log", "--format=%H %s", "main", cwd=self.kit.repo).decode().splitlines()
        return [line.split()[0] for line in listed if line.split(" ", 1)[1] == f"fix {name}"]

    def said(self, name: str) -> dict[str, str]:
        """Gives the fields of a task's verdict."""
        return self.verdict(name).values

    def archived(self, name: str) -> list[str]:
        """Gives how each attempt in a task's archive ended."""
        found = []
        for ref, oid in self.board.below(f"refs/swarm/archive/claims/{name}@"):
            found.append(wire.fields(wire.message(self.board.content(oid) or b"")).get("ended") or ref)
        return found

    def leftovers(self) -> list[str]:
        """Gives what is left of attempts on disk and among processes."""
        found = [str(path) for part in ("ws", "work", "checks") for path in self.data.glob(f"ropewalk/*/{part}/*")]
        for pid in os.listdir("/proc"):
            if pid.isdigit() and _is_lane(pid, str(self.data)):
                found.append(f"process {pid}")
        return found

    def close(self) -> None:
        """Ends what is left of the workers."""
        for process in self.started:
            process.close()
        super().close()


def _is_lane(pid: str, data: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    return any(v.startswith(b"ROPEWALK_LANE=") for v in variables) and f"HOME={data}".encode() in b"\0".join(variables)


Make = Callable[..., WorkKit]
NO_HEIR = Limits(heirs=0)
