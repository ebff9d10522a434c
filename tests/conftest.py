"""What every test stands on: a home of its own, no network, and the three fixtures `store`, `rw` and `git`.

Hermetic means: HOME and the XDG folders are temporary, variables of ropewalk and git are gone, only loopback may
be connected to, and at the end the real home is as it was. The network guard is an audit hook of the test process;
children get proxies that lead nowhere, which holds back git, pip and HTTP clients. It is no sandbox: a child that
ignores proxies would get out, and no test relies on that.

The real home is compared by every file's size and time of change. With CI=true that is all of it; elsewhere other
programs of the person write there too, so only those parts are compared that ropewalk, git or an agent CLI keeps.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).resolve().parent.parent
AGENT = "test/one"

_FILES = (
    ".gitconfig",
    ".git-credentials",
    ".netrc",
    ".profile",
    ".bashrc",
    ".bash_profile",
    ".zshrc",
    ".npmrc",
    ".claude.json",
    ".mcp.json",
)
_TREES = (
    ".config/git",
    ".config/ropewalk",
    ".config/opencode",
    ".local/share/ropewalk",
    ".local/state/ropewalk",
    ".cache/ropewalk",
    ".local/bin",
    ".ssh",
    ".gnupg",
    ".ropewalk",
    ".codex",
    ".gemini",
    ".qwen",
    ".pi",
)
_XDG = {"XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "cache"}

Manifest = dict[str, tuple[int, int]]


def manifest(home: Path, environment: Mapping[str, str], *, whole: bool) -> Manifest:
    """Gives (size, time of change) of the files of a home and its XDG folders; the clone itself is left out."""
    found: Manifest = {}
    folders = [Path(environment[name]) for name in _XDG if environment.get(name)]
    if whole:
        folders.append(home)
    else:
        folders = [f / "ropewalk" for f in folders] + [home / name for name in _TREES]
        for name in (*_FILES, *(p.name for p in home.glob("*ropewalk*"))):
            _note(home / name, found)
    own = {str(ROOT), tempfile.gettempdir()}
    for folder in folders:
        for inner, below, names in os.walk(folder):
            below[:] = [name for name in below if os.path.join(inner, name) not in own]
            for name in [*names, *below]:
                _note(Path(inner, name), found)
    return found


def _note(path: Path, found: Manifest) -> None:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return
    is_folder = path.is_dir() and not path.is_symlink()
    found[str(path)] = (-1, 0) if is_folder else (there.st_size, there.st_mtime_ns)


def pytest_configure(config: pytest.Config) -> None:
    """Puts a temporary home in place before anything is imported from ropewalk."""
    controls = not hasattr(config, "workerinput")
    if controls:
        home, before = Path(pwd.getpwuid(os.getuid()).pw_dir), dict(os.environ)
        whole = before.get("CI") == "true"
        homes = {home, Path(before.get("HOME") or home)}
        setattr(config, "_real", (homes, before, whole, [manifest(h, before, whole=whole) for h in sorted(homes)]))  # noqa: B010
    made = tempfile.mkdtemp(prefix="ropewalk-tests-")
    setattr(config, "_home", made)  # noqa: B010
    for name in list(os.environ):
        if name.startswith(("ROPEWALK_", "GIT_", "SWARM_")):
            del os.environ[name]
    os.environ["HOME"] = made
    for name, folder in _XDG.items():
        os.environ[name] = os.path.join(made, folder)
    os.environ.setdefault("RWTEST_PROXY", os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or "")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        os.environ[name] = "http://127.0.0.1:9"
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1,::1"
    source = str(ROOT / "src")
    path = os.environ.get("PYTHONPATH", "")
    if source not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{source}{os.pathsep}{path}".rstrip(os.pathsep)
    if source not in sys.path:
        sys.path.insert(0, source)
    sys.addaudithook(_only_loopback)


def _only_loopback(event: str, args: tuple[Any, ...]) -> None:
    if event not in ("socket.connect", "socket.sendto") or not isinstance(args[1], tuple):
        return
    host = str(args[1][0])
    try:
        local = host in ("", "localhost") or ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        local = False
    if not local:
        raise RuntimeError(f"a test tried to reach {host}; only loopback is allowed")


def _unmount_below(folder: Path) -> None:
    """Takes away what workspaces mounted below a folder, so that it can be removed."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split(" ")[4] for line in file]
    for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", point], check=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Unmounts what tests left; fails the run when the real home is not as it was."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is not None and os.path.exists("/proc/self/mountinfo"):
        _unmount_below(factory.getbasetemp())
    real = getattr(session.config, "_real", None)
    if real is None:
        return
    homes, before, whole, then = real
    lines = []
    for home, old in zip(sorted(homes), then, strict=True):
        new = manifest(home, before, whole=whole)
        lines += [f"  {path}" for path in sorted(old.keys() | new.keys()) if old.get(path) != new.get(path)]
    if lines:
        print("\nthe real home was changed while the tests ran:\n" + "\n".join(lines[:40]), file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the temporary home."""
    shutil.rmtree(getattr(config, "_home", ""), ignore_errors=True)


@pytest.fixture
def clean() -> dict[str, str]:
    """Gives the environment of a child: the test home, git's identity, and nothing of the person's git."""
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("ROPEWALK_", "GIT_", "SWARM_"))},
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "Test",
        "GIT_AUTHOR_EMAIL": "test@example.org",
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "Test",
        "GIT_COMMITTER_EMAIL": "test@example.org",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    }


class Git:
    """Runs the installed git in a folder."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, dict(env)

    def __call__(
        self, *args: str, folder: Path | str | None = None, stdin: bytes | None = None, ok: bool = True
    ) -> str:
        """Gives what git prints, without the last line end; with `ok=False` its failure is no error."""
        done = self.run(*args, folder=folder, stdin=stdin)
        if ok and done.returncode != 0:
            raise AssertionError(
                f"git {' '.join(args)} ended with {done.returncode}: {done.stderr.decode(errors='replace')}"
            )
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def run(
        self, *args: str, folder: Path | str | None = None, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Gives how git ended."""
        return subprocess.run(
            ["git", "-c", "init.defaultBranch=main", *args],
            cwd=folder or self.folder,
            env=self.env,
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=120,
        )


@pytest.fixture
def git(tmp_path: Path, clean: dict[str, str]) -> Git:
    """Gives the installed git, in the test's folder, with a fixed identity and no configuration of the person's."""
    return Git(tmp_path, clean)


class Rw:
    """Runs the command as a real process."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, dict(env)
        self.store: str | None = None
        self.agent: str | None = AGENT

    def __call__(self, *args: str, exit: int | None = None, **how: Any) -> dict[str, Any]:
        """Gives the envelope; the process must have ended with the exit code the envelope names, or `exit`."""
        done = self.run(*args, **how)
        words = " ".join(args)
        lines = done.stdout.splitlines()
        assert len(lines) == 1, (
            f"rw {words} printed {len(lines)} lines and not one envelope: {done.stdout!r} {done.stderr!r}"
        )
        envelope: dict[str, Any] = msgspec.json.decode(lines[0])
        named = 0 if envelope["ok"] else envelope["error"]["exit"]
        assert done.returncode == named or (named == 0 and done.returncode == 10), (done.returncode, envelope)
        if exit is not None:
            assert done.returncode == exit, f"rw {words} ended with {done.returncode}: {envelope}"
        return envelope

    def run(
        self,
        *args: str,
        stdin: bytes | str | None = None,
        folder: Path | str | None = None,
        store: Path | str | None = None,
        agent: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[bytes]:
        """Gives how the command ended, its output as bytes."""
        variables = {**self.env, **(env or {})}
        if (where := store or self.store) is not None:
            variables["ROPEWALK_STORE"] = str(where)
        if (who := agent or self.agent) is not None:
            variables["ROPEWALK_AGENT"] = who
        data = stdin.encode() if isinstance(stdin, str) else stdin
        return subprocess.run(
            [sys.executable, "-m", "ropewalk.cli.main", *args],
            cwd=folder or self.folder,
            env=variables,
            input=data if data is not None else b"",
            capture_output=True,
            timeout=timeout,
        )

    def ok(self, *args: str, **how: Any) -> Any:
        """Gives the result of a command that has to succeed."""
        envelope = self(*args, **how)
        assert envelope["ok"], envelope
        return envelope["result"]

    def error(self, code: str, *args: str, **how: Any) -> dict[str, Any]:
        """Gives the error of a command that has to fail with a code."""
        envelope = self(*args, **how)
        assert not envelope["ok"], envelope
        assert envelope["error"]["code"] == code, envelope
        error: dict[str, Any] = envelope["error"]
        return error


@pytest.fixture
def rw(tmp_path: Path, clean: dict[str, str]) -> Rw:
    """Gives the command, run in the test's folder as agent `test/one`; `rw.store = …` names a store."""
    return Rw(tmp_path, {k: v for k, v in clean.items() if not k.startswith("GIT_")})


def put(path: str, text: str) -> Any:
    """Gives an entry of a change list that puts text at a path."""
    from ropewalk.store.changes import Change, Content

    return Change(path=path, content=Content(inline=text))


def commit(
    store: Any, files: Mapping[str, str], *, agent: str = AGENT, parent: str | None = None, advance: str | None = None
) -> str:
    """Gives the id of a changeset that puts files on `parent` (default: the head of main)."""
    from ropewalk.store import changes

    made = changes.commit(
        store,
        agent=agent,
        message="; ".join(files),
        changes=[put(p, t) for p, t in files.items()],
        parent=parent,
        advance=advance,
        key=None,
        read_file=changes.read_disk_file,
    )
    return made.changeset


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Gives a way to make stores and to open them again; all are closed at the test's end."""
    from ropewalk.store import layout
    from ropewalk.store.store import Store

    opened: list[Store] = []

    def make(name: str = "store", *, reopen: bool = False) -> Store:
        root = str(tmp_path / name)
        if not reopen:
            layout.create(root, "test-store", name, "main")
        opened.append(Store(root))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(new_store: Callable[..., Any]) -> Any:
    """Gives a store whose main has three commits: `README.md`, `src/a.py` (20 lines), `src/b.py`."""
    made = new_store()
    commit(made, {"README.md": "# Demo\n"}, advance="main")
    commit(made, {"src/a.py": "".join(f"a = {n}\n" for n in range(20))}, advance="main")
    commit(made, {"src/b.py": "b = 1\n"}, advance="main")
    return made
