"""A board on a git server of this host, reached by a path, over ssh or over HTTP: what its tests share."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "remote"))

import peers
import pytest
from tests.board import invariants

from ropewalk.board import claim, names, state, tasks
from ropewalk.board.base import Board, Step
from ropewalk.board.claim import As, Held
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Object, Outcome
from ropewalk.plan.task import Task
from ropewalk.store.loose import object_id
from ropewalk.store.oplog import Move
from storekit import SRC, child_env, stock

ACTOR = "test/one"
MAIN = "refs/heads/main"
WAYS = ("path", "ssh", "http")
NEEDS_SERVERS = pytest.mark.skipif(
    not (peers.SSHD and peers.LIGHTTPD) and os.environ.get("CI") != "true",
    reason="needs sshd and lighttpd (apt-get install openssh-server lighttpd)",
)


class Servers(NamedTuple):
    """Is a folder of repositories, with an sshd and a lighttpd that serve it."""

    folder: Path
    ssh: peers.Ssh
    web: peers.Web
    master: str
    daemon: int


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """Runs the servers; ssh keeps one connection for all its commands, as people set it up."""
    root = folder / "r"
    root.mkdir(parents=True)
    env = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "PYTHONPATH": SRC, "GIT_CONFIG_NOSYSTEM": "1"}
    with peers.sshd(folder / "s", env, accept="GIT_PROTOCOL") as ssh, peers.lighttpd(folder / "w", root, env) as web:
        once = f"-o ControlMaster=auto -o ControlPath={folder}/c -o ControlPersist=60"
        with daemon(root, env) as port:
            yield Servers(root, ssh, web, f"{ssh.command()} {once}", port)
        os.system(f"{ssh.command()} -o ControlPath={folder}/c -O exit peer -p {ssh.port} 2>/dev/null")


@contextmanager
def daemon(root: Path, env: dict[str, str]) -> Iterator[int]:
    """Runs `git daemon`, which takes pushes of anybody; gives its port."""
    port = peers.free_port()
    words = ["daemon", "--export-all", "--enable=receive-pack", f"--base-path={root}", "--listen=127.0.0.1",
             f"--port={port}", str(root)]  # fmt: skip
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    child = subprocess.Popen([shutil.which("git") or "git", *words], env={**env, **settings}, start_new_session=True,
                             stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        while True:  # until it takes connections
            assert child.poll() is None
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=10):
                break
        yield port
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait(20)


class Shared:
    """Is a bare repository with one commit on main, and the boards that hosts open on it."""

    def __init__(self, servers: Servers, name: str, way: str, hosts: Path, *, law: bool = True) -> None:
        self.repo = servers.folder / f"{name}.git"
        self.hosts = hosts
        self.opened: list[RemoteBoard] = []
        stock("init", "-q", "--bare", "-b", "main", str(self.repo))
        seed = hosts / "seed"
        stock("init", "-q", "-b", "main", str(seed))
        (seed / "a.txt").write_text("a\n")
        self.seed = seed
        self.commit("a.txt", "a\n", "first")
        stock("push", "-q", str(self.repo), "main", cwd=str(seed))
        self.url = {"path": str(self.repo), "file": f"file://{self.repo}",
                    "git": f"git://127.0.0.1:{servers.daemon}/{name}.git",
                    "ssh": servers.ssh.url(self.repo), "http": servers.web.url(f"{name}.git")}[way]  # fmt: skip
        self.board = self.open("one")
        if law:
            tasks.init(self.board, ACTOR, mixed=False)

    def commit(self, path: str, text: str, message: str) -> str:
        """Makes a commit in the clone and gives its id."""
        (self.seed / path).write_text(text)
        stock("add", "-A", cwd=str(self.seed))
        stock("commit", "-q", "-m", message, cwd=str(self.seed))
        return stock("rev-parse", "HEAD", cwd=str(self.seed)).decode().strip()

    def open(self, host: str, url: str | None = None, wait: float = 30) -> RemoteBoard:
        """Opens the board as another host would."""
        made = RemoteBoard(url or self.url, str(self.hosts / host), wait=wait)
        made.lend(str(self.seed / ".git" / "objects"))
        self.opened.append(made)
        return made

    def refs(self) -> dict[str, str]:
        """Gives the server's refs as stock git shows them."""
        listed = stock("--git-dir", str(self.repo), "for-each-ref", "--format=%(refname) %(objectname)").decode()
        return dict(line.split(" ") for line in listed.splitlines())

    def set(self, **settings: str) -> None:
        """Sets the server's configuration; `_` in a name stands for a dot."""
        for key, value in settings.items():
            stock("--git-dir", str(self.repo), "config", key.replace("_", "."), value)

    def hook(self, name: str, script: str) -> None:
        """Puts a hook in place on the server; an empty script removes it."""
        path = self.repo / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        if not script:
            path.unlink()
            return
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def lawful(self) -> None:
        """Checks the laws by git alone, and that the server's repository is whole."""
        assert invariants.broken(self.repo) == []
        stock("--git-dir", str(self.repo), "fsck", "--strict", "--no-dangling")

    def close(self) -> None:
        """Closes what was opened."""
        for one in self.opened:
            one.close()


def start(source: str, *words: str, **env: str) -> subprocess.Popen[str]:
    """Starts a Python process that says `ready` and waits for a line."""
    return subprocess.Popen([sys.executable, "-c", source, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True, env=child_env(**{"GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", ""),
                                                        **env}))  # fmt: skip


def task(name: str, **more: Any) -> Task:
    """Gives a task whose check passes."""
    return Task(name, "true", description=f"Do {name}", **more)


def who(worker: str = "w1") -> As:
    """Gives a worker's name for itself."""
    return As(worker, f"test/{worker}", "command")


def take(board: Board, name: str, worker: str = "w1") -> Held:
    """Looks at the board and claims a task."""
    board.refresh()
    found = state.need(board, name)
    assert found is not None
    return claim.take(board, found, who(worker))


def landing(shared: Shared, board: Board, held: Held) -> Step:
    """Gives the step by which an attempt lands a new commit, with return, verdict and closing claim (F1)."""
    name = held.task.id
    landed = shared.commit(f"{name}.txt", name, f"fix {name}\n\nAttempt: {held.attempt}")
    outcome = Outcome(True, 0, 0, held.harness, more={"landed": landed})
    closing, verdict = claim.closing_object(held), _object(claim.verdict_words(held, outcome))
    moves = [
        Move(MAIN, board.ref(MAIN), landed), Move(names.returned(name), None, landed),
        Move(names.verdict(name), None, verdict.id), Move(names.claim(name), held.claim, closing.id),
        *claim.freed(board, held),
    ]  # fmt: skip
    return Step("land", held.actor, moves, [closing, verdict])


def _object(words: str) -> Object:
    from ropewalk.board.base import now_object

    return now_object(words)


def states(board: Board) -> dict[str, str]:
    """Gives every task's state, looked at anew."""
    board.refresh()
    return {name: status.state for name, status in state.look(board, everything=True).items()}


def foreign(repo: Path, refs: Sequence[str]) -> None:
    """Puts many refs of others into a repository at once."""
    head = stock("--git-dir", str(repo), "rev-parse", MAIN).decode().strip()
    feed = "".join(f"create {name} {head}\n" for name in refs).encode()
    stock("--git-dir", str(repo), "update-ref", "--stdin", stdin=feed)
    stock("--git-dir", str(repo), "pack-refs", "--all")


__all__ = [
    "ACTOR",
    "MAIN",
    "NEEDS_SERVERS",
    "WAYS",
    "Servers",
    "Shared",
    "foreign",
    "landing",
    "object_id",
    "peers",
    "servers",
    "start",
    "states",
    "take",
    "task",
    "who",
]  # fmt: skip
