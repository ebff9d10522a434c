"""Checks: a command run on a tree that is about to land, in a checkout of its own, with a bound.

What a check sees is fixed by the key of its result: the tree, checked out as one commit that is always the
same for that tree, the command, and an environment of listed variables. Nothing ignored or unlanded is there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from ropewalk.core import clock
from ropewalk.core.policy import Policy
from ropewalk.core.process import clean_env
from ropewalk.store.changes import digest
from ropewalk.store.store import Store
from ropewalk.workspace import gitdir, setup
from ropewalk.workspace.files import remove_tree
from ropewalk.workspace.verdict import Command, Verdict

if TYPE_CHECKING:
    import subprocess

TAIL = 4000
_ALLOWED = re.compile(
    r"(PATH|HOME|USER|LOGNAME|LANG|LC_\w+|TZ|TMPDIR|SHELL|CI|CC|CXX|\w*FLAGS|MAKEFLAGS|VIRTUAL_ENV|PYTHON\w*|PIP_\w+|UV_\w+"
    r"|NODE\w*|NPM_\w+|npm_config_\w+|COREPACK_\w+|CARGO\w*|RUST\w*|GO\w*|JAVA\w*|MAVEN\w*|GRADLE\w*|RUBY\w*|GEM_\w+"
    r"|BUNDLE_\w+|LD_LIBRARY_PATH|PKG_CONFIG_PATH|SSL_CERT_\w+|NO_COLOR)\Z"
)


class Cage(Protocol):
    """Is what holds a check in, where it is not to be trusted; who makes one stands above this layer."""

    @property
    def mark(self) -> str:
        """Gives what tells a result from inside it from one without."""
        ...

    def wrap(
        self, argv: Sequence[str], env: Mapping[str, str], place: str, tools: Sequence[str] = ()
    ) -> tuple[list[str], dict[str, str]]:
        """Gives command line and environment that run words inside, in `place/tree`; all else below `place` is free.

        `tools` are files and folders of the operator's that are to be read there.
        """
        ...

    def began(self, place: str) -> bool:
        """Says whether the words were started: what failed before is no fault of theirs."""
        ...


def environment(names: Sequence[str] = ()) -> dict[str, str]:
    """Gives the variables that a check sees: those of tools and languages, and the named ones."""
    return {k: v for k, v in clean_env().items() if _ALLOWED.match(k) or k in names}


def command(
    argv: Sequence[str], seconds: float, env: Mapping[str, str], policy: Policy = Policy(), cage: Cage | None = None
) -> Command:
    """Gives a check's command with the hash of its environment: variables, setup, and the program it names first."""
    program = shutil.which(argv[0], path=env.get("PATH"))
    tool: tuple[object, ...] = ()
    if program is not None:
        found = os.stat(program)
        tool = (os.path.realpath(program), found.st_size, found.st_mtime_ns)
    caged = () if cage is None else (cage.mark,)
    hashed = digest(sorted(env.items()), tool, setup.mark(policy.workspace), *caged)
    return Command(tuple(argv), seconds, hashed.hex())


def key(tree: str, what: Command) -> str:
    """Gives the name under which the result of a command on a tree is kept."""
    return digest(tree, what.argv, what.environment).hex()[:40]


def new_place(folder: str) -> str:
    """Gives a path below a folder that no check has; it is not made yet."""
    return os.path.join(folder, f"check-{os.urandom(8).hex()}")


class Running:
    """Is a check in progress; `place` is its folder, `pid` the leader of its process group."""

    def __init__(
        self, store: Store, tree: str, what: Command, env: Mapping[str, str], place: str, policy: Policy = Policy(),
        cage: Cage | None = None,
    ) -> None:  # fmt: skip
        """Checks the tree out into the new folder `place`, furnishes it, and starts the command there, or in a cage.

        A cage ends with the thread that starts it.
        """
        import subprocess

        self.tree, self._what, self._cage = tree, what, cage
        os.makedirs(place, mode=0o700)
        self.place = place
        self.pid = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._unstartable = ""
        self._began = clock.monotonic()
        try:
            work = os.path.join(self.place, "tree")
            gitdir.populate_tree(store, work, tree)
            setup.furnish(work, policy)
            self._began = clock.monotonic()
            # a file, not a pipe: a child that the check leaves behind may keep a pipe open for ever
            with open(os.path.join(self.place, "output"), "wb") as output:
                words = _words(what.argv, policy.workspace.setup)
                seen = {**env, "GIT_CEILING_DIRECTORIES": self.place, "PWD": work}
                if cage is not None:
                    links = [os.path.abspath(os.path.join(policy.folder, name)) for name in policy.workspace.link]
                    words, seen = cage.wrap(words, env, self.place, links)
                self._child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=seen, cwd=work,
                    start_new_session=True,
                )  # fmt: skip
            self.pid = self._child.pid
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            if not os.path.isdir(os.path.join(self.place, "tree", ".git")):
                shutil.rmtree(self.place, ignore_errors=True)
                raise
            self._unstartable = f"{what.argv[0]} can't be started: {error.strerror}"
        except BaseException:
            shutil.rmtree(self.place, ignore_errors=True)
            raise

    def poll(self) -> Verdict | None:
        """Gives the verdict once the command ended or reached its bound; all it left behind is gone then."""
        if self._child is None:
            self.stop()
            return Verdict("failed", 127, 0.0, self._unstartable, "unstartable")
        code = self._child.poll()
        spent = round(clock.monotonic() - self._began, 3)
        if code is None:
            if spent < self._what.seconds:
                return None
            return self._ended(Verdict("infrastructure", 124, spent, reason="timeout"))
        if code == 0:
            return self._ended(Verdict("passed", 0, spent))
        if self._cage is not None and not self._cage.began(self.place):
            return self._ended(Verdict("infrastructure", code, spent, reason="cage"))
        if code < 0:
            return self._ended(Verdict("infrastructure", code, spent, reason=signal.Signals(-code).name))
        if code in (124, 137):
            return self._ended(Verdict("infrastructure", code, spent, reason="killed"))
        return self._ended(Verdict("failed", code, spent))

    def _ended(self, verdict: Verdict) -> Verdict:
        output = self._tail()
        self.stop()
        if verdict.kind == "failed" and "No space left on device" in output:
            verdict = msgspec.structs.replace(verdict, kind="infrastructure", reason="full disk")
        return verdict if verdict.kind == "passed" else msgspec.structs.replace(verdict, output=output)

    def _tail(self) -> str:
        try:
            with open(os.path.join(self.place, "output"), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
                return file.read(TAIL).decode("utf-8", "replace")
        except OSError:
            return ""

    def stop(self) -> None:
        """Ends the command with all that it started, whatever session that is in, and removes its folder."""
        if self._child is not None:
            end_group(self.pid)
            self._child.wait()
            end_inside(self.place)
        remove_place(self.place)


def _words(argv: Sequence[str], setup_line: str) -> list[str]:
    """Gives the words that run the setup's line and then, when that went well, the check in its place."""
    if not setup_line:
        return list(argv)
    return ["/bin/sh", "-c", f'( {setup_line}\n) || exit\nexec "$@"', "sh", *argv]


def end_group(pid: int) -> None:
    """Kills a process group, if it is there."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def end_inside(place: str) -> list[int]:
    """Kills the processes that work in a folder or below it, or name it in their environment; gives their ids."""
    inside = os.path.realpath(place) + "/"
    mark = os.fsencode(place)
    ended: set[int] = set()
    while True:
        found = {pid for pid in _others() if pid not in ended and _is_inside(pid, inside, mark)}
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        ended |= found
        if not found:  # one that it started while it was looked for is found by now
            return sorted(ended)


def _others() -> list[int]:
    listed = os.listdir("/proc") if os.path.isdir("/proc") else []
    return [int(name) for name in listed if name.isdigit() and int(name) != os.getpid()]


def _is_inside(pid: int, inside: str, mark: bytes) -> bool:
    try:
        if (os.readlink(f"/proc/{pid}/cwd") + "/").startswith(inside):
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:
        return False


def remove_place(place: str) -> None:
    """Removes a check's folder, also where the check took write bits away."""
    try:
        remove_tree(place)
    except OSError:
        pass
