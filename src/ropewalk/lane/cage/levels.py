"""Levels: which cages can be had here, why another can't, and the command line that starts one.

Nobody gets less than they asked for: what is missing is an error with the line that mends it, and a lower level is
taken only by whoever names it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ropewalk.core.errors import CageUnavailableError
from ropewalk.core.process import ChildTimeout, run
from ropewalk.lane.cage import bubble, landlock, seccomp
from ropewalk.lane.cage.room import Level, Room

LEVELS: tuple[Level, ...] = ("full", "files", "none")
_SECONDS = 20.0
_LESS = "or ask for less by name with --cage {}"


def available() -> dict[Level, str]:
    """Gives for each level why it can't be had here; an empty reason where it can."""
    found: dict[Level, str] = {}
    for level in LEVELS:
        found[level] = _lacks(level)[0]
    return found


def choose(wanted: Level) -> Level:
    """Gives the wanted level; `E_CAGE_UNAVAILABLE`, with the line that installs or enables it, where it is not here."""
    reason, cure = _lacks(wanted)
    if not reason:
        return wanted
    below = [level for level in LEVELS[LEVELS.index(wanted) + 1 :] if not _lacks(level)[0]]
    raise CageUnavailableError(
        f"no cage of level {wanted} can be had here: {reason}",
        hint=f"{cure}; {_LESS.format(' or '.join(below))}",
        level=wanted,
        reason=reason,
        available=below,
    )


def argv(
    level: Level, room: Room, words: Sequence[str], env: Mapping[str, str] | None, port: int = 0
) -> list[str]:  # fmt: skip
    """Gives the command line that runs words at a level; `port` is the gateway's on the host.

    In a full cage an environment that is named is part of it; else whoever starts it gives the environment.
    """
    if level == "full":
        return bubble.argv(room, words, env)
    if level == "files":
        return landlock.argv(room, words, port)
    return list(words)


@lru_cache(maxsize=1)
def landlock_abi() -> int:
    """Gives the version of Landlock here, 0 for none; with it the name of level `files` says what it holds."""
    return landlock.abi() if os.uname().sysname == "Linux" else 0


def named(level: Level) -> str:
    """Gives a level's name as results tell it."""
    return f"files (Landlock ABI {landlock_abi()})" if level == "files" else level


def _lacks(level: Level) -> tuple[str, str]:
    """Gives (why a level can't be had, what mends it)."""
    if level == "none":
        return "", ""
    try:
        seccomp.program(seccomp.rules(), os.uname().machine)
    except OSError as error:
        return str(error.strerror), "run it on x86_64 or aarch64"
    if level == "files":
        if landlock_abi() < 1:
            return "the kernel has no Landlock", "boot Linux 5.13 or newer with landlock in its list of lsm="
        return "", ""
    try:
        program = bubble.program()
    except CageUnavailableError as error:
        return error.message, "apt-get install bubblewrap"
    said = _tried(program, os.geteuid())
    return (said, _cure(said)) if said else ("", "")


@lru_cache(maxsize=4)
def _tried(program: str, uid: int) -> str:
    """Gives what bubblewrap says when it makes a small cage, empty when it does."""
    words = [program, "--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    words += [] if uid == 0 else ["--unshare-user", "--disable-userns"]
    words += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"]
    try:
        done = run(words, env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"}, timeout=_SECONDS)
    except (ChildTimeout, OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.code == 0:
        return ""
    return done.err.decode("utf-8", "replace").strip()[-300:] or f"bubblewrap ended with {done.code}"


def _cure(said: str) -> str:
    """Gives the line that lets bubblewrap make its namespaces."""
    if "unknown option" in said.lower():
        return "install bubblewrap 0.8 or newer"
    switches = (
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "1"),
        ("/proc/sys/user/max_user_namespaces", "0", "10000"),
    )
    for path, closed, open_ in switches:
        try:
            with open(path, encoding="ascii") as file:
                if file.read().strip() == closed:
                    return f"sysctl -w {path.removeprefix('/proc/sys/').replace('/', '.')}={open_}"
        except OSError:
            continue
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
    return "let this user make namespaces (`bwrap --ro-bind / / --unshare-all true` says what is refused)"
