"""Child processes: one place that starts them, with bounds, a scrubbed environment and typed failures.

Children are spawned, never forked without exec: a forked child would share SQLite's state and keep the
writer's flock (finding A25).
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ropewalk.core.errors import (
    BusyError,
    InternalError,
    RopewalkError,
    StoreCorruptError,
    StoreIOError,
    UnsupportedError,
    os_error,
)

if TYPE_CHECKING:
    import subprocess

_ANSWER_SECONDS = 120.0
_GLANCE_SECONDS = 0.02
_DAMAGE = re.compile(
    "bad object|corrupt|does not match|too small|non-monotonic|unterminated line|unexpected line|bad (boolean )?config|"
    "bad numeric config|not a git repository|unable to (read|unpack|parse)|ould not (read|parse)|inflate: |"
    "[cC]an't access packfile|cannot be accessed|missing (blob|tree|commit|object)|hash mismatch"
)
"""Is how git speaks of what is damaged or missing in a repository."""
_FOLDER = re.compile(r"/\S*?\.git/")
_GIT_PINNED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C.UTF-8",
}
_GIT_CONFIG = {
    "safe.directory": "*",
    "safe.bareRepository": "all",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.quotePath": "true",
    "diff.external": "",
    "protocol.ext.allow": "never",
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "core.fsync": "reference,pack,pack-metadata,commit-graph",
}
"""What is pinned for our git. It syncs the bytes of what it puts in place; names are synced by us (core/durable.py)."""
_REFUSALS = {
    "No space left on device": errno.ENOSPC,
    "ut of diskspace": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Too many open files": errno.EMFILE,
    "Cannot allocate memory": errno.ENOMEM,
    "ut of memory": errno.ENOMEM,
    "Input/output error": errno.EIO,
    "Read-only file system": errno.EROFS,
    **dict.fromkeys(("nable to write", "ailed to write", "ould not write", "annot write"), errno.EIO),
}
"""What the operating system refused, as git's own messages say; some of them leave the reason out."""
_UNWRITTEN = re.compile(
    "(ouldn't|ould not|nable to|ailed to|annot) (write|close|create|flush|fsync|sync|append)|write error"
)
"""Is how git speaks of a file that it could not write, where it does not say why."""
_LOCKED = re.compile(r"nable to create '([^'\n]*\.lock)': File exists")


class Done(NamedTuple):
    """Is how a child ended: exit code (negative: the signal), and all it printed, as bytes."""

    code: int
    out: bytes
    err: bytes

    def text(self) -> str:
        """Gives standard output as text, without the last line end."""
        return self.out.decode("utf-8", "surrogateescape").rstrip("\n")


class ChildTimeout(Exception):
    """A child did not end within its bound; it and its process group were killed."""

    def __init__(self, argv: Sequence[str], seconds: float) -> None:
        super().__init__(f"{argv[0]} did not end within {seconds:g} s")
        self.seconds = seconds


def clean_env(extra: Mapping[str, str] | None = None, *, keep: Sequence[str] = ()) -> dict[str, str]:
    """Gives the environment for a child without git's variables but those to keep, so that no GIT_DIR can leak."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in keep}
    if extra:
        env.update(extra)
    return env


def git_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Gives the environment in which our own git runs: no user or system configuration, no hooks, no prompt."""
    env = clean_env(_GIT_PINNED)
    env["GIT_CONFIG_COUNT"] = str(len(_GIT_CONFIG))
    for number, (key, value) in enumerate(_GIT_CONFIG.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    if extra:
        env.update(extra)
    return env


def git_program() -> str:
    """Gives the path of the installed git; `E_UNSUPPORTED` when there is none."""
    import shutil

    found = shutil.which("git")
    if found is None:
        raise UnsupportedError("git is not installed", hint="apt install git (2.39 or newer)")
    return found


def run(
    argv: Sequence[str | bytes],
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout: float = 600.0,
    tied: bool = False,
    silence: float | None = None,
) -> Done:
    """Runs a program to its end and gives what it printed; kills its whole process group at the bound (seconds).

    A `tied` one is killed by the kernel when this process dies, where util-linux is installed. With `silence` there
    is a second bound: so long may neither it nor what it started read, write or compute anything, where `/proc` tells.
    Raises `ChildTimeout` at a bound and `FileNotFoundError` when there is no such program.
    """
    import shutil
    import subprocess

    keeper = shutil.which("setpriv") if tied else None
    child = subprocess.Popen(
        [*([keeper, "--pdeathsig", "KILL", "--"] if keeper else []), *argv],
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_env() if env is None else dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        out, err = _communicate(child, stdin, timeout, silence)
    except subprocess.TimeoutExpired as error:
        kill_group(child)
        child.communicate()
        raise ChildTimeout([str(argv[0])], error.timeout) from None
    except BaseException:
        kill_group(child)
        child.communicate()
        raise
    return Done(child.returncode, out, err)


def _communicate(
    child: subprocess.Popen[bytes], stdin: bytes | None, timeout: float, silence: float | None
) -> tuple[bytes, bytes]:
    """Gives what a child prints until its end; `subprocess.TimeoutExpired` says which bound it met."""
    import subprocess
    import time

    began = since = time.monotonic()
    seen: frozenset[tuple[str, ...]] | None = None
    while True:
        left = began + timeout - time.monotonic()
        try:
            return child.communicate(stdin, timeout=left if silence is None else min(left, silence / 4))
        except subprocess.TimeoutExpired:
            stdin, now = None, time.monotonic()  # what there was to send is being sent
            if now - began >= timeout:
                raise subprocess.TimeoutExpired(child.args, timeout) from None
            stirred = _doings(child.pid)
            if stirred != seen:
                seen, since = stirred, now
            elif seen and silence is not None and now - since >= silence:
                raise subprocess.TimeoutExpired(child.args, silence) from None


def _doings(session: int) -> frozenset[tuple[str, ...]]:
    """Gives what each process of a session has read, written and computed so far; nothing where `/proc` can't say."""
    found = set()
    for pid in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].decode("ascii").split()
            if int(words[3]) == session:
                with open(f"/proc/{pid}/io", encoding="ascii") as file:
                    found.add((pid, *words[11:13], *file.read().split()[1:4:2]))
        except OSError:
            continue
    return frozenset(found)


class Output:
    """Is what a program prints, in pieces as they come; it and its group are killed when nobody wants the rest.

    `code` is how it ended, None before that. Raises `ChildTimeout` at the bound (seconds).
    """

    def __init__(self, argv: Sequence[str | bytes], *, env: Mapping[str, str], timeout: float) -> None:
        self._argv, self._env, self._timeout = list(argv), dict(env), timeout
        self.code: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        import subprocess
        import time

        end = time.monotonic() + self._timeout
        child = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._env,
            start_new_session=True,
        )
        assert child.stdout is not None
        try:
            while select.select([child.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                part = os.read(child.stdout.fileno(), 1 << 16)
                if not part:
                    self.code = child.wait()
                    return
                yield part
            raise ChildTimeout([str(self._argv[0])], self._timeout)
        finally:
            if self.code is None:
                kill_group(child)
                child.wait()
            child.stdout.close()


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kills a child started in a session of its own, with all that still belong to its group."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()


def git(
    git_dir: str,
    *args: str | bytes,
    stdin: bytes | None = None,
    extra_env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    ok: Sequence[int] = (0,),
) -> Done:
    """Runs our git on a repository with pinned settings; an exit code outside `ok` is a typed error with its words."""
    argv: list[str | bytes] = [git_program(), f"--git-dir={git_dir}", *args]
    done = run(argv, stdin=stdin, env=git_env(extra_env), timeout=timeout)
    if done.code not in ok:
        words = [os.fsdecode(word) for word in args]
        while words[0] == "-c":
            del words[:2]
        raise git_error(words[0], done)
    return done


def git_error(name: str, done: Done) -> RopewalkError:
    """Gives the error of a git command that did not do its work: the system's, which git met, or a fault of ours."""
    words = done.err.decode("utf-8", "replace").strip()[-2000:]
    for sign, number in _REFUSALS.items():
        if sign in words:
            return os_error(OSError(number, sign), f"git {name}")
    if done.code == 128 and _DAMAGE.search(words):
        return StoreCorruptError(f"git met damage: {_FOLDER.sub('', words.splitlines()[-1])}", git=name)
    locked = _LOCKED.search(words)
    if locked:
        return BusyError(
            f"git {name}: another git process has {os.path.basename(locked[1])}",
            hint="try again; `rw verify` names a lock whose process is gone",
            operation=f"git {name}",
        )
    if _UNWRITTEN.search(words):
        return StoreIOError(f"git {name} could not write a file, and does not say why", operation=f"git {name}")
    if done.code < 0:
        return StoreIOError(
            f"git {name} was ended by signal {-done.code}",
            hint="see what ends processes on this machine, such as a lack of memory, and run the command again",
            operation=f"git {name}",
            signal=-done.code,
        )
    if not words:
        # git always says why it ends, unless it can't write that either
        return StoreIOError(f"git {name} ended with {done.code} and could not say why", operation=f"git {name}")
    return InternalError(f"git {name} ended with {done.code}: {words}", git=name, exit_code=done.code)


def until_one_ended(pids: Sequence[int], seconds: float) -> bool:
    """Waits until one of these processes has ended, at most so long; says whether one has, as far as can be told.

    Children that nobody has waited for yet count as ended, so that none of their ids is another's. Where the kernel
    has no way to tell, it is asked a few times a second instead.
    """
    fds: list[int] = []
    try:
        for pid in pids:
            fds.append(os.pidfd_open(pid))
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return bool(poll.poll(1000 * seconds))
    except ProcessLookupError:
        return True
    except (OSError, AttributeError):
        import time

        time.sleep(min(seconds, _GLANCE_SECONDS))
        return False
    finally:
        for fd in fds:
            os.close(fd)


def holders(there: os.stat_result) -> list[int]:
    """Gives the processes that have a file open, by whatever name it was opened, as far as they can be seen."""
    found = []
    for pid in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not pid.isdigit():
            continue
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for fd in names:
            try:
                held = os.stat(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
                found.append(int(pid))
                break
    return found


class ObjectChild:
    """Is a `git cat-file` child that answers one object at a time from packs and loose files.

    Spawned without the subprocess module, whose import alone costs a third of a short command's time.
    """

    def __init__(self, git_dir: str, extra_env: Mapping[str, str] | None = None) -> None:
        stdin_read, self._stdin = os.pipe()
        self._stdout, stdout_write = os.pipe()
        try:
            self.pid = self._spawn(git_dir, git_env(extra_env), stdin_read, stdout_write)
        except FileNotFoundError:
            for fd in (self._stdin, self._stdout):
                os.close(fd)
            raise UnsupportedError("git is not installed", hint="apt install git (2.39 or newer)") from None
        finally:
            os.close(stdin_read)
            os.close(stdout_write)
        self._buffer = bytearray()

    @staticmethod
    def _spawn(git_dir: str, env: dict[str, str], stdin_read: int, stdout_write: int) -> int:
        return os.posix_spawnp(
            "git",
            ["git", f"--git-dir={git_dir}", "cat-file", "--batch-command"],
            env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin_read, 0),
                (os.POSIX_SPAWN_DUP2, stdout_write, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
        )

    def ask(self, ids: Sequence[str]) -> list[tuple[str, bytes] | None]:
        """Gives (type, content) for each id in order, None for one that does not exist or can't be read.

        Raises `BrokenPipeError` when the child died, which an object damaged in a pack may cause.
        """
        answers: list[tuple[str, bytes] | None] = []
        for start in range(0, len(ids), 256):
            part = ids[start : start + 256]
            # 256 requests are 13 KiB, so they fit into the pipe while git waits for us to read
            _write_all(self._stdin, "".join(f"contents {i}\n" for i in part).encode("ascii"))
            answers += [self._answer() for _ in part]
        return answers

    def header(self, oid: str) -> tuple[str, int] | None:
        """Gives (type, size) of an object, None for one that does not exist; raises `BrokenPipeError`."""
        _write_all(self._stdin, f"info {oid}\n".encode("ascii"))
        return self._head()

    def parts(self, oid: str) -> Iterator[bytes]:
        """Yields an object's content as it comes; nothing else can be asked before all of it was taken.

        Raises `BrokenPipeError`.
        """
        _write_all(self._stdin, f"contents {oid}\n".encode("ascii"))
        head = self._head()
        if head is None:
            raise BrokenPipeError("git cat-file lost an object")
        left = head[1]
        while left:
            if not self._buffer:
                self._fill()
            part = bytes(self._buffer[:left])
            del self._buffer[: len(part)]
            left -= len(part)
            yield part
        self._take(1)

    def _head(self) -> tuple[str, int] | None:
        words = self._line().split(b" ")
        if len(words) != 3 or not words[2].isdigit():
            return None
        return words[1].decode("ascii"), int(words[2])

    def _answer(self) -> tuple[str, bytes] | None:
        head = self._head()
        return None if head is None else (head[0], self._take(head[1] + 1)[:-1])

    def _line(self) -> bytes:
        at = 0
        while True:
            end = self._buffer.find(b"\n", at)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            at = len(self._buffer)
            self._fill()

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        return part

    def _fill(self) -> None:
        ready, _, _ = select.select([self._stdout], [], [], _ANSWER_SECONDS)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
            raise BrokenPipeError("git cat-file does not answer")
        part = os.read(self._stdout, 1 << 20)
        if not part:
            raise BrokenPipeError("git cat-file ended")
        self._buffer += part

    def close(self) -> None:
        """Ends the child and waits for it."""
        for fd in (self._stdin, self._stdout):
            os.close(fd)
        os.waitpid(self.pid, 0)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
