"""Hosts: network namespaces with processes, files, a name and a clock of their own; between them there is only an sshd.

All hosts hang on one bridge with the server. A host sees its own folder as `/mnt` and nothing of the tests' folders, of
`/tmp` or of shared memory; the server is reached by ssh with a key of that host alone.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.crash.tracing import environment

from storekit import SRC, stock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin:" + os.environ["PATH"])
NET = "10.214.0"
CALLS = {"x86_64": (257, 0, 3, 228), "aarch64": (56, 63, 57, 113)}
PATIENCE = 900.0
"""Is how long anything is waited for, in seconds, that comes by itself."""

INIT = """
import os, time
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        time.sleep(0.05)
"""
"""Is the first process of a host: it takes whatever loses its parent there."""

SETUP = """
set -e
mount --make-rprivate /
mount --bind "$1" /mnt
shift 2
# what the interpreter and the sources need is held while /tmp is covered
mkdir -p /mnt/held
number=0
for kept; do number=$((number + 1)); mkdir -p /mnt/held/$number; mount --bind "$kept" /mnt/held/$number; done
for covered in /tmp /var/tmp /dev/shm; do mount -t tmpfs none "$covered"; done
mkdir -m 1777 -p /tmp
number=0
for kept; do number=$((number + 1)); mkdir -p "$kept"; mount --bind /mnt/held/$number "$kept"
umount /mnt/held/$number; done
rm -r /mnt/held
hostname "$NAME"
touch /mnt/ready
exec "$PYTHON" -S -c "$INIT"
"""


def need() -> None:
    """Skips where there can be no hosts; in CI, which is root's, it fails instead."""
    missing = [
        name for name in ("ip", "unshare", "nsenter", "mount", "hostname", "ssh-keygen", "cc") if not shutil.which(name)
    ]
    if not SSHD:
        missing.append("sshd")
    if sys.platform != "linux" or platform.machine() not in CALLS or os.geteuid():
        missing.append("root on Linux")
    if not missing and run("ip", "netns", "add", _tag("x"), ok=False).returncode:
        missing.append("network namespaces")
    run("ip", "netns", "del", _tag("x"), ok=False) if not missing else None
    if missing:
        words = f"hosts need {', '.join(missing)} (apt-get install iproute2 util-linux openssh-server gcc)"
        pytest.fail(words) if os.environ.get("CI") == "true" else pytest.skip(words)


def run(*words: str, ok: bool = True, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs a command of the system."""
    done = subprocess.run(words, capture_output=True, timeout=120, check=False, env=env)
    assert not ok or done.returncode == 0, (words, done.stderr.decode())
    return done


def _tag(name: str) -> str:
    return f"rw{os.getpid() % 1_000_000}{name}"


class Child(NamedTuple):
    """Is a command that runs on a host, and the path before `.out` and `.err` of what it says."""

    process: subprocess.Popen[bytes]
    said: str


class Server:
    """Is the host that everybody reaches: it has the bridge, the bare repository and the sshd, and a right clock."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack, self.name, self.folder = stack, _tag("s"), folder
        self.links = 0
        folder.mkdir(mode=0o700)
        run("ip", "netns", "add", self.name)
        stack.callback(run, "ip", "netns", "del", self.name, ok=False)
        inside = ("ip", "-n", self.name)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "add", "name", "br0", "type", "bridge")
        run(*inside, "addr", "add", f"{NET}.1/24", "dev", "br0")
        run(*inside, "link", "set", "br0", "up")
        self.repository = folder / "board.git"
        self._serve()

    @property
    def url(self) -> str:
        """Gives the board's URL."""
        return f"ssh://root@{NET}.1{self.repository}"

    def join(self, name: str) -> str:
        """Joins a host to the bridge and gives the link's name."""
        self.links += 1
        link = f"l{self.links}"
        run("ip", "link", "add", link, "netns", self.name, "type", "veth", "peer", "name", "net", "netns", name)
        run("ip", "-n", self.name, "link", "set", link, "master", "br0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "addr", "add", f"{NET}.{10 + self.links}/24", "dev", "net")
        run("ip", "-n", name, "link", "set", "net", "up")
        return link

    def let_in(self, name: str) -> Path:
        """Makes a key that is let in, and gives its file."""
        key = self.folder / f"key-{name}"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key))
        with (self.folder / "keys").open("a") as file:
            file.write(f'restrict,command="{self.folder / "shell"}" {key.with_suffix(".pub").read_text()}')
        return key

    def known(self) -> str:
        """Gives what a client has to know of it."""
        return f"{NET}.1 {(self.folder / 'host.pub').read_text()}"

    def _serve(self) -> None:
        folder, shell = self.folder, self.folder / "shell"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host"))
        (folder / "keys").touch()
        shell.write_text("#!/bin/sh\nexport HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1\n"
                         'exec sh -c "$SSH_ORIGINAL_COMMAND"\n')  # fmt: skip
        shell.chmod(0o755)
        (folder / "config").write_text(
            f"ListenAddress {NET}.1\nHostKey {folder}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/keys\nPermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\n"
            # bash reads the person's ~/.bashrc for whoever comes by ssh, unless another shell seems to have started it
            "KbdInteractiveAuthentication no\nSetEnv SHLVL=5\nAcceptEnv GIT_PROTOCOL\n"
        )
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        assert SSHD
        child = subprocess.Popen(["ip", "netns", "exec", self.name, SSHD, "-D", "-f", str(folder / "config"),
                                  "-E", str(folder / "log")], stdin=subprocess.DEVNULL)  # fmt: skip
        self.stack.callback(child.wait, 20)
        self.stack.callback(child.terminate)
        until(lambda: b"listening" in (folder / "log").read_bytes().lower() if (folder / "log").exists() else False,
              lambda: f"sshd: {child.poll()}")  # fmt: skip


class Host:
    """Is a host whose clock is so many seconds off."""

    def __init__(self, server: Server, folder: Path, name: str, *, off: int) -> None:
        self.server, self.folder, self.name, self.off = server, folder, name, off
        self.net = _tag(name)
        for part in ("home", "shop", "tmp", "ssh"):
            (folder / part).mkdir(parents=True)
        folder.chmod(0o755)  # agents run as users of their own
        (folder / "tmp").chmod(0o1777)
        (folder / "clock").write_text(f"{off}\n")
        _compile(folder / "clock.so")
        shutil.move(str(server.let_in(name)), folder / "ssh/key")
        (folder / "ssh/known").write_text(server.known())
        run("ip", "netns", "add", self.net)
        server.stack.callback(run, "ip", "netns", "del", self.net, ok=False)
        self.link = server.join(self.net)
        self._children: list[subprocess.Popen[bytes]] = []
        self._cover = [str(path) for path in _needed()]
        env = {"PATH": os.environ["PATH"], "NAME": name, "INIT": INIT, "PYTHON": os.path.realpath(sys.executable)}
        self._said = folder.parent / f"{name}.setup"
        with self._said.open("wb") as said:
            self._outer = subprocess.Popen(
                ["ip", "netns", "exec", self.net, "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork",
                 "--kill-child", "--mount-proc", "sh", "-c", SETUP, "-", str(folder), "--", *self._cover],
                env=env, stdin=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
        server.stack.callback(self.destroy)
        until(lambda: (folder / "ready").exists(), self._why)
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        self.init = int(children[0])

    def _why(self) -> str:
        if self._outer.poll() is None:
            return "a host does not start"
        return self._said.read_text()

    @property
    def env(self) -> dict[str, str]:
        """Gives the environment of whoever sits at the host."""
        base = {k: v for k, v in environment().items() if not k.startswith(("XDG_", "TMP", "HOME", "LD_"))}
        return base | {
            "HOME": "/mnt/home", "TMPDIR": "/mnt/tmp", "PYTHONPATH": SRC,
            "GIT_SSH_COMMAND": "ssh -F none -i /mnt/ssh/key -o UserKnownHostsFile=/mnt/ssh/known -o IdentityAgent=none"
            " -o IdentitiesOnly=yes -o BatchMode=yes",
            "ROPEWALK_AGENT": f"person/{self.name}", "GIT_AUTHOR_NAME": self.name, "GIT_AUTHOR_EMAIL": f"{self.name}@x",
            "GIT_COMMITTER_NAME": self.name, "GIT_COMMITTER_EMAIL": f"{self.name}@x",
        }  # fmt: skip

    def start(self, *words: str) -> Child:
        """Starts a command on the host, in its folder `shop`."""
        argv = ["nsenter", f"--target={self.init}", "--mount", "--uts", "--ipc", "--net", "--pid",
                "sh", "-c", 'cd /mnt/shop; export LD_PRELOAD=/mnt/clock.so; exec "$@"', "-"]  # fmt: skip
        out = self.folder.parent / f"{self.name}-{time.monotonic_ns()}"
        with open(f"{out}.out", "wb") as said, open(f"{out}.err", "wb") as told:
            child = subprocess.Popen([*argv, *words], env=self.env, stdin=subprocess.DEVNULL, stdout=said, stderr=told)
        self._children.append(child)
        return Child(child, f"{out}")

    def rw(self, *words: str) -> Child:
        """Starts a command of ours on the board."""
        return self.start(sys.executable, "-m", "ropewalk.cli.main", *words, "--board", self.server.url)

    def call(self, *words: str) -> str:
        """Runs a command to its good end and gives what it printed."""
        return end(self.start(*words))[1]

    def ask(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Runs a command of ours on the board and gives its result."""
        got, out, err = end(self.rw(*words), ok=False)
        assert got == code, (words, got, out, err)
        found: dict[str, Any] = msgspec.json.decode(out.strip().split("\n")[-1])["result"]
        return found

    def free(self, *tasks: str) -> None:
        """Lets this host's agents go on with tasks."""
        for task in tasks:
            (self.folder / f"free-{task}").touch()

    def cut(self, *, back: bool = False) -> None:
        """Pulls the plug of its network, or puts it in again."""
        run("ip", "-n", self.server.name, "link", "set", self.link, "up" if back else "down")

    def destroy(self) -> None:
        """Ends the host whole: all its processes at once, its network, its files."""
        if self._outer.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(getattr(self, "init", self._outer.pid), signal.SIGKILL)
        for child in (self._outer, *self._children):
            child.wait(60)
        run("ip", "netns", "del", self.net, ok=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _needed() -> list[Path]:
    """Gives what of the interpreter and the sources is in folders that a host covers."""
    found = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, ROOT)} | {Path(sys.prefix)}
    covered = ("/tmp/", "/var/tmp/", "/dev/shm/")
    return sorted(path for path in found if str(path).startswith(covered))


def _compile(into: Path) -> None:
    numbers = zip(("OPEN", "READ", "CLOSE", "GETTIME"), CALLS[platform.machine()], strict=True)
    words = [f"-D{name}={number}" for name, number in numbers]
    run("cc", "-shared", "-fPIC", "-O1", "-nostdlib", *words, "-o", str(into), str(HERE / "clock.c"))


def until(there: Any, why: Any = lambda: "", seconds: float = PATIENCE) -> Any:
    """Waits until something is so, and gives what it says."""
    last = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < last, why()
        time.sleep(0.05)
    return found


def end(child: Child, *, ok: bool = True, seconds: float = PATIENCE) -> tuple[int, str, str]:
    """Waits for the end of a command; gives (exit code, what it printed, what it told)."""
    code = child.process.wait(seconds)
    out, err = (Path(f"{child.said}.{kind}").read_text() for kind in ("out", "err"))
    assert "Traceback" not in err, err
    assert not ok or code == 0, (code, out, err)
    return code, out, err


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Server]:
    """Gives a server with an empty repository, to which hosts can be added; all of it is gone afterwards."""
    need()
    with ExitStack() as stack:
        server = Server(stack, folder / "server")
        stock("init", "-q", "--bare", "-b", "main", str(server.repository))
        yield server


def words_of(steps: Sequence[Mapping[str, Any]], **more: Any) -> str:
    """Gives a script as it stands in a prompt."""
    return f"```script\n{msgspec.json.encode({'steps': steps, **more}).decode()}\n```"
