"""Two hosts and a server in network namespaces: one is cut off in mid-attempt, loses its task, and comes back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.board import invariants
from tests.board.boardkit import ACTOR, bare
from tests.crash.tracing import environment

from ropewalk.board import state, tasks
from ropewalk.plan.task import Task
from storekit import stock

pytestmark = pytest.mark.compat

AGENT = """#!/bin/sh
cat > /dev/null
: > "{folder}/started"
until [ -e "{folder}/go" ]; do sleep 0.05; done
echo {name} > done.txt
"""


def run(*words: str, ok: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Runs a command of the system."""
    done = subprocess.run(words, capture_output=True, timeout=120, check=False)
    assert not ok or done.returncode == 0, (words, done.stderr.decode())
    return done


class Net:
    """Is a server and two hosts, each a network namespace; a line of its own leads from each host to the server."""

    def __init__(self, stack: ExitStack) -> None:
        tag = f"rw{os.getpid() % 100_000}"
        self.server, self.hosts = f"{tag}s", (f"{tag}a", f"{tag}b")
        for name in (self.server, *self.hosts):
            if run("ip", "netns", "add", name, ok=False).returncode:
                pytest.skip("network namespaces are not allowed here")
            stack.callback(run, "ip", "netns", "del", name, ok=False)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for number, host in enumerate(self.hosts, 1):
            near, far = f"{tag}h{number}", f"{tag}l{number}"
            run("ip", "link", "add", near, "netns", host, "type", "veth", "peer", "name", far, "netns", self.server)
            for name, link, end in ((host, near, 2), (self.server, far, 1)):
                run("ip", "-n", name, "addr", "add", f"10.213.{number}.{end}/24", "dev", link)
                run("ip", "-n", name, "link", "set", link, "up")
        self.links = (f"{tag}l1", f"{tag}l2")

    def cut(self, number: int, *, back: bool = False) -> None:
        """Cuts a host off, or joins it again."""
        run("ip", "-n", self.server, "link", "set", self.links[number], "up" if back else "down")

    def inside(self, number: int) -> list[str]:
        """Gives the words before a command that runs on a host, which has a name of its own, too."""
        script = f'hostname host{number}; exec "$@"'
        return ["ip", "netns", "exec", self.hosts[number], "unshare", "--uts", "sh", "-c", script, "-"]

    def url(self, number: int) -> str:
        """Gives the board's URL as a host sees it."""
        return f"git://10.213.{number + 1}.1/board.git"


class Host:
    """Is a host: its folder, and commands that run on it."""

    def __init__(self, net: Net, number: int, folder: Path) -> None:
        self.net, self.number, self.folder = net, number, folder
        (folder / "home").mkdir(parents=True)
        self.agent = folder / "agent"
        self.agent.write_text(AGENT.format(folder=folder, name=f"host{number}"))
        self.agent.chmod(0o755)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts a command of ours on the host."""
        env = environment(self.folder / "home") | {"XDG_CACHE_HOME": str(self.folder / "cache")}
        argv = [*self.net.inside(self.number), sys.executable, "-m", "ropewalk.cli.main", *words,
                "--board", self.net.url(self.number), "--as", f"test/host{self.number}"]  # fmt: skip
        return subprocess.Popen(argv, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)  # fmt: skip

    def work(self) -> subprocess.Popen[bytes]:
        """Starts a worker for one task."""
        return self.start("work", "--command", str(self.agent), "--cage", "none", "--worker", f"w{self.number}",
                          "--once", "--events", str(self.folder / "events"))  # fmt: skip

    def ok(self, child: subprocess.Popen[bytes]) -> None:
        """Waits for the good end of a command."""
        out, err = child.communicate(timeout=180)
        assert child.returncode == 0 and b"Traceback" not in err, (out.decode(), err.decode())

    def until(self, name: str, words: str = "") -> None:
        """Waits until a file of its folder is there, and says something."""
        end, path = time.monotonic() + 120, self.folder / name
        while not path.exists() or words not in path.read_text():
            assert time.monotonic() < end, f"{name} does not say {words!r}"
            time.sleep(0.02)


@pytest.fixture
def net() -> Iterator[Net]:
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("network namespaces need root and iproute2")
    with ExitStack() as stack:
        yield Net(stack)


def serve(net: Net, folder: Path) -> subprocess.Popen[bytes]:
    """Starts git's own server in the server's namespace and waits until it answers there."""
    child = subprocess.Popen(
        ["ip", "netns", "exec", net.server, "git", "daemon", "--export-all", "--enable=receive-pack",
         f"--base-path={folder}", "--reuseaddr", str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for _ in range(600):
        assert child.poll() is None
        if (
            run("ip", "netns", "exec", net.server, "git", "ls-remote", "git://127.0.0.1/board.git", ok=False).returncode
            == 0
        ):
            return child
        time.sleep(0.05)
    raise AssertionError("git daemon does not answer")


def test_a_host_that_was_cut_off_comes_back_and_is_refused(net: Net, tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    board = bare(served / "board.git")
    tasks.add(board, [Task("a", "test -f done.txt", region="r")], ACTOR)
    hosts = [Host(net, number, tmp_path / f"host{number}") for number in (0, 1)]
    daemon = serve(net, served)
    try:
        first = hosts[0].work()
        hosts[0].until("started")
        net.cut(0)
        hosts[1].ok(hosts[1].start("board", "evict", "a"))
        (hosts[1].folder / "go").touch()
        hosts[1].ok(hosts[1].work())
        (hosts[0].folder / "go").touch()
        hosts[0].until("events", "agent_ended")  # so it lands while it is cut off, and goes on when it is back
        net.cut(0, back=True)
        out, err = first.communicate(timeout=180)
        assert b"Traceback" not in err and first.returncode in (0, 1), (out, err)
        assert b'"how":"fenced"' in out, out
    finally:
        daemon.terminate()
        daemon.wait()
    board.refresh()
    found = state.need(board, "a")
    assert found is not None and found.state == "done" and found.claim is not None and found.verdict is not None
    assert found.verdict.host == "w1" and found.claim.attempt == found.verdict.attempt
    board.close()
    assert invariants.broken(served / "board.git") == []
    assert stock("--git-dir", str(served / "board.git"), "show", "main:done.txt") == b"host1\n"
    said = stock("--git-dir", str(served / "board.git"), "log", "--format=%s", "main").decode().split("\n")
    assert said.count("fix a") == 1
