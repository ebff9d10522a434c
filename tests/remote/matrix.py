"""The matrix of failures: each thing that goes wrong with another repository, over each way to reach it.

Every cell is a real command against a real peer (a path, sshd, lighttpd), which has to answer with the code and the
reason of its row. `python tests/remote/matrix.py [FILE]` writes the table.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(os.path.dirname(sys.path[0]), "src"))

import peers

from storekit import STOCK, Kit, child_env, put

WAYS = ("path", "ssh", "HTTP")
SECONDS = 10.0
"""Is the bound of each answer."""
WAIT = "2"
"""Is how long a peer may be silent, in seconds, where silence is what is tried; elsewhere a slow one is waited for."""


class Cell(NamedTuple):
    """Is what a command answered, and after how many seconds."""

    code: str
    reason: str
    seconds: float
    message: str


class Row(NamedTuple):
    """Is one thing that goes wrong, and how it has to be answered: (code, reasons), by way where ways differ."""

    name: str
    code: str
    reason: str
    differs: dict[str, tuple[str, str]] = {}

    def wanted(self, way: str) -> tuple[str, str]:
        """Gives the code and the reason for a way."""
        return self.differs.get(way, (self.code, self.reason))


ROWS = (
    Row("nothing is there", "E_REMOTE", "unreachable", {"path": ("E_NOT_FOUND", "")}),
    Row("not a repository", "E_NOT_FOUND", ""),
    Row("credentials are refused", "E_REMOTE", "authentication", {"path": ("E_REMOTE", "forbidden")}),
    Row("trust would be asked for", "E_REMOTE", "host_key",
        {"path": ("E_REMOTE", "owner"), "HTTP": ("E_REMOTE", "authentication")}),
    Row("it may only be read", "E_REMOTE", "forbidden"),
    Row("the branch is protected", "E_REMOTE", "rejected"),
    Row("the branch moved during the push", "E_CAS_MISMATCH", ""),
    Row("the branch has other commits", "E_CAS_MISMATCH", ""),
    Row("cut off during a fetch", "E_REMOTE", "broken_off", {"path": ("E_REMOTE", "damaged")}),
    Row("cut off during a push", "E_REMOTE", "broken_off"),
    Row("silent during a fetch", "E_REMOTE", "silent"),
    Row("silent during a push", "E_REMOTE", "silent"),
    Row("SHA-256", "E_UNSUPPORTED", ""),
    Row("shallow", "E_SHALLOW", ""),
    Row("more than it takes", "E_REMOTE", "too_large"),
)  # fmt: skip

_PEER = " ".join(f"GIT_{who}_{what}=peer@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL"))
HOOKS = {
    "protected": ("pre-receive", "echo 'error: GH006: Protected branch update failed' >&2\nexit 1\n"),
    "raced": (
        "update",
        f'export {_PEER}\ngit update-ref "$1" "$(git commit-tree -p "$2" -m theirs "$2^{{tree}}")" "$2"\n',
    ),
    "cut": ("pre-receive", "kill -9 $PPID\nexec sleep 30\n"),
    "silent": ("pre-receive", "exec sleep 60\n"),
}
"""Are the hooks of the repositories that take pushes badly: they do there what a server does, or what befalls it."""


class Ground:
    """Is where the matrix is played: a store, the repositories, the peers, and the user's home."""

    def __init__(self, root: Path, ssh: peers.Ssh, web: peers.Web, env: dict[str, str]) -> None:
        self.root, self.ssh, self.web, self.env = root, ssh, web, env

    def path(self, name: str) -> Path:
        """Gives the folder of a repository."""
        return self.root / "repos" / name

    def url(self, way: str, name: str, *, port: int | None = None) -> str:
        """Gives how a way names a repository; `port` leads over another port."""
        if way == "path":
            return str(self.path(name))
        return self.ssh.url(self.path(name), port) if way == "ssh" else self.web.url(name, port=port)

    def rw(self, *words: str, ssh: str | None = None, before: tuple[str, ...] = (), wait: str | None = None) -> Cell:
        """Runs a command and gives what it answered; `wait` is how long it bears silence, in seconds."""
        env = {**self.env, "GIT_SSH_COMMAND": ssh or self.ssh.command()}
        env |= {"ROPEWALK_REMOTE_WAIT": wait} if wait else {}
        began = time.monotonic()
        done = subprocess.run([*before, sys.executable, "-m", "ropewalk.cli.main", *words, "--json"], env=env,
                              cwd=self.root, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)  # fmt: skip
        took = time.monotonic() - began
        said: dict[str, Any] = msgspec.json.decode(done.stdout)
        if said["ok"]:
            return Cell("ok", "", took, "")
        error = said["error"]
        return Cell(error["code"], error.get("details", {}).get("reason") or "", took, error["message"])

    def push(self, url: str, **how: Any) -> Cell:
        """Pushes the store's main to a URL."""
        return self.rw("git", "export", url, "--ref", "main", "--store", str(self.root / "store"), **how)

    def fetch(self, url: str, **how: Any) -> Cell:
        """Clones a URL."""
        into = tempfile.mkdtemp(dir=self.root)
        return self.rw("clone", url, str(Path(into) / "clone"), **how)


def git(*words: str, cwd: Path | None = None) -> str:
    """Runs stock git."""
    done = subprocess.run(["git", *words], cwd=cwd, env=STOCK, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode().strip()


def weak() -> tuple[str, ...]:
    """Gives the words before a command by which root loses its power over modes and owners."""
    if os.geteuid():
        return ()
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner", "--inh-caps=-all")


@contextmanager
def ground(root: Path) -> Iterator[Ground]:
    """Gives the ground, with all repositories made and all peers running."""
    home = root / "home"
    home.mkdir()
    server = {"HOME": str(home), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
    kit = Kit(str(root / "store"))
    kit.first(put("large.bin", os.urandom(600_000)), put("a.txt", "a\n"))
    kit.change(put("a.txt", "b\n"))
    base, head = kit.stock("rev-parse", "main^"), kit.main()
    repos = root / "repos"
    repos.mkdir()
    shutil.copytree(kit.repo, repos / "full.git", ignore=shutil.ignore_patterns("hooks", "config", "ropewalk*"))
    git("init", "-q", "--bare", "-b", "main", "full.git", cwd=repos)
    for name in ("good.git", "lagging.git", "other.git", "small.git", "readonly.git", *(f"{n}.git" for n in HOOKS)):
        git("init", "-q", "--bare", "-b", "main", name, cwd=repos)
        git("--git-dir", str(repos / "full.git"), "push", "-q", str(repos / name), f"{base}:refs/heads/main")
    for name, (hook, text) in HOOKS.items():
        path = repos / f"{name}.git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
    git("init", "-q", "--bare", "-b", "main", "empty.git", cwd=repos)
    git("config", "receive.maxInputSize", "300000", cwd=repos / "empty.git")
    theirs = git("commit-tree", "-p", base, "-m", "theirs", f"{base}^{{tree}}", cwd=repos / "other.git")
    git("update-ref", "refs/heads/main", theirs, cwd=repos / "other.git")
    git("init", "-q", "--bare", "-b", "main", "--object-format=sha256", "sha256.git", cwd=repos)
    tree = git("mktree", cwd=repos / "sha256.git")
    git("update-ref", "refs/heads/main", git("commit-tree", "-m", "x", tree, cwd=repos / "sha256.git"),
        cwd=repos / "sha256.git")  # fmt: skip
    git("clone", "-q", "--bare", "--depth", "1", f"file://{repos / 'full.git'}", "shallow.git", cwd=repos)
    (repos / "nothing.git").mkdir()
    (repos / "nothing.git" / "file").write_text("x\n")
    shutil.copytree(repos / "full.git", repos / "damaged.git")
    _cut_pack(repos / "damaged.git")
    shutil.copytree(repos / "full.git", repos / "closed.git")
    shutil.copytree(repos / "good.git", repos / "foreign.git")
    (repos / "closed.git").chmod(0)
    for folder, below, _ in os.walk(repos / "readonly.git"):
        os.chmod(folder, 0o555)
        below.sort()
    if os.geteuid() == 0:
        for folder, _, names in os.walk(repos / "foreign.git"):
            for name in ("", *names):
                os.chown(os.path.join(folder, name), 65534, 65534)
    kit.close()
    assert head
    env = child_env(ROPEWALK_AGENT="a/b", HOME=str(home), GIT_CONFIG_NOSYSTEM="1")
    with ExitStack() as stack:
        ssh = stack.enter_context(peers.sshd(root / "sshd", server))
        web = stack.enter_context(peers.lighttpd(root / "web", repos, server))
        yield Ground(root, ssh, web, env)
        (repos / "closed.git").chmod(0o755)
        for folder, _, _ in os.walk(repos / "readonly.git"):
            os.chmod(folder, 0o755)


def _cut_pack(repo: Path) -> None:
    """Packs a repository and takes the middle of its pack away: what serves it dies on the way."""
    git("repack", "-q", "-a", "-d", cwd=repo)
    (pack,) = (repo / "objects" / "pack").glob("*.pack")
    pack.chmod(0o644)
    with pack.open("r+b") as file:
        file.seek(pack.stat().st_size // 2)
        file.write(bytes(50_000))


Case = Callable[[Ground, str], Cell]


def _nothing(on: Ground, way: str) -> Cell:
    return on.fetch(on.url(way, "gone.git", port=peers.free_port()))


def _credentials(on: Ground, way: str) -> Cell:
    if way == "path":
        return on.fetch(on.url(way, "closed.git"), before=weak())
    if way == "ssh":
        return on.fetch(on.url(way, "full.git"), ssh=on.ssh.command("wrong"))
    return on.fetch(on.web.url("full.git", who="me:wrong"))


def _trust(on: Ground, way: str) -> Cell:
    if way == "path":
        return on.push(on.url(way, "foreign.git"), before=weak())
    if way == "ssh":
        return on.fetch(on.url(way, "full.git"), ssh=on.ssh.command(known=False))
    return on.fetch(on.web.url("full.git", who=""))


def _reading(on: Ground, way: str) -> Cell:
    if way == "path":
        return on.push(on.url(way, "readonly.git"), before=weak())
    if way == "ssh":
        return on.push(on.url(way, "good.git"), ssh=on.ssh.command("read"))
    return on.push(on.web.url("good.git", below="reading"))


def _broken(then: str, direction: str) -> Case:
    def case(on: Ground, way: str) -> Cell:
        wait = WAIT if then == "hang" else None
        if way == "path":
            # nothing lies between: what serves the other side dies, or does not go on
            if direction == "up":
                return on.push(on.url(way, "cut.git" if then == "cut" else "silent.git"), wait=wait)
            if then == "cut":
                return on.fetch(on.url(way, "damaged.git"))
            return on.fetch(str(_mute(on)), wait=wait)
        port = on.ssh.port if way == "ssh" else on.web.port
        with peers.line(port, after=200_000, then=then, way=direction) as at:
            if direction == "up":
                return on.push(on.url(way, _vacant(on, f"{way}-{then}.git"), port=at), wait=wait)
            return on.fetch(on.url(way, "full.git", port=at), wait=wait)

    return case


def _vacant(on: Ground, name: str) -> str:
    git("init", "-q", "--bare", "-b", "main", name, cwd=on.root / "repos")
    return name


def _mute(on: Ground) -> Path:
    """Makes a repository that waits for ever when it is read: its packed refs are a pipe that nobody fills."""
    made = on.path("mute.git")
    git("init", "-q", "--bare", "-b", "main", "mute.git", cwd=made.parent)
    if not (made / "packed-refs").exists():
        os.mkfifo(made / "packed-refs")
    return made


CASES: dict[str, Case] = {
    "nothing is there": _nothing,
    "not a repository": lambda on, way: on.fetch(on.url(way, "nothing.git")),
    "credentials are refused": _credentials,
    "trust would be asked for": _trust,
    "it may only be read": _reading,
    "the branch is protected": lambda on, way: on.push(on.url(way, "protected.git")),
    "the branch moved during the push": lambda on, way: on.push(on.url(way, _own(on, "raced.git", way))),
    "the branch has other commits": lambda on, way: on.push(on.url(way, "other.git")),
    "cut off during a fetch": _broken("cut", "down"),
    "cut off during a push": _broken("cut", "up"),
    "silent during a fetch": _broken("hang", "down"),
    "silent during a push": _broken("hang", "up"),
    "SHA-256": lambda on, way: on.fetch(on.url(way, "sha256.git")),
    "shallow": lambda on, way: on.fetch(on.url(way, "shallow.git")),
    "more than it takes": lambda on, way: on.push(on.url(way, "empty.git")),
}


def _own(on: Ground, name: str, way: str) -> str:
    """Gives a copy of a repository for one way alone."""
    made = f"{way}-{name}"
    shutil.copytree(on.path(name), on.path(made))
    return made


def play(on: Ground, jobs: int = 3) -> dict[tuple[str, str], Cell]:
    """Runs every cell, a few at once; one that was late is run again alone, because the others may be why."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {(row.name, way): pool.submit(CASES[row.name], on, way) for row in ROWS for way in WAYS}
        cells = {key: one.result() for key, one in waiting.items()}
    late = [key for key, cell in cells.items() if cell.seconds > SECONDS]
    return cells | {(name, way): CASES[name](on, way) for name, way in late}


def table(cells: dict[tuple[str, str], Cell]) -> str:
    """Gives the matrix in Markdown."""
    lines = ["| what goes wrong | " + " | ".join(WAYS) + " |", "|---" * (len(WAYS) + 1) + "|"]
    for row in ROWS:
        shown = []
        for way in WAYS:
            cell = cells.get((row.name, way))
            words = f"`{cell.code}`{' ' + cell.reason if cell.reason else ''}, {cell.seconds:.1f} s" if cell else ""
            shown.append(words)
        lines.append(f"| {row.name} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def wrong(cells: dict[tuple[str, str], Cell]) -> list[str]:
    """Gives the cells that are empty, answered otherwise than they should be, or too late."""
    found = []
    for row in ROWS:
        for way in WAYS:
            cell = cells.get((row.name, way))
            if cell is None:
                found.append(f"{row.name}, {way}: empty")
            elif (cell.code, cell.reason) != row.wanted(way):
                found.append(f"{row.name}, {way}: {cell}, not {row.wanted(way)}")
            elif cell.seconds > SECONDS:
                found.append(f"{row.name}, {way}: {cell.seconds:.1f} s")
    return found


def main() -> int:
    """Plays the matrix and writes its table to a file, or prints it."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as root, ground(Path(root)) as on:
        cells = play(on)
    text = table(cells)
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    for one in (bad := wrong(cells)):
        sys.stderr.write(one + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
