"""The self-test of a cage (G7, G8, G9): before the first lane of a run, something tries to get out of one.

What must fail has to fail and what a lane needs has to go well, on this machine, as this user, since it was booted;
otherwise no lane is started. It uses the cage as lanes do: another user's tree, objects over alternates, a commit.
"""

from __future__ import annotations

import os
import socket
import tempfile
from typing import NamedTuple

import msgspec

import ropewalk
from ropewalk.core import clock, durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import CageUnavailableError, os_error
from ropewalk.core.process import ChildTimeout, git_env, git_error, git_program, run
from ropewalk.lane.cage import give, levels
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import Level, Room
from ropewalk.workspace.files import remove_tree

_SECONDS = 60.0
_PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe.py")
_OUT = ("write", "make", "rename", "read", "connect", "abstract", "namespace")
_WELL = ("work", "home", "tmp", "log", "commit")


class Tested(NamedTuple):
    """Is what a self-test found: what got out, and what a lane needs but did not get, with its words."""

    out: list[str]
    missing: dict[str, str]


def ensure(level: Level, folder: str, uid: int | None = None) -> None:
    """Lets a level through that was tested here since the machine was booted; else tests it first.

    `folder` is ours: lanes' folders are as reachable as what is made in it, and the last answer is kept there.
    `E_CAGE_UNAVAILABLE` when the cage does not hold, or a lane could not work in it.
    """
    levels.choose(level)
    if level == "none":
        return
    kept = os.path.join(folder, f"cage-{level}-{'own' if uid is None else uid}")
    key = "\n".join([clock.boot_id(), os.uname().nodename, str(os.geteuid()), levels.named(level), _stamp()]).encode()
    try:
        with open(kept, "rb") as file:
            if file.read() == key:
                return
    except OSError:
        pass
    found = test(level, folder, uid)
    if found.out or found.missing:
        _refuse(level, found)
    durable.put(kept, key)


def _refuse(level: Level, found: Tested) -> None:
    words = []
    if found.out:
        words.append(f"from inside one could {', '.join(found.out)}")
    words += [f"{name} did not go well inside: {why}" for name, why in found.missing.items()]
    hint = None
    if found.missing and not found.out:
        hint = "let the lane's user reach the folders of stores and lanes (their parents need x for all)"
    raise CageUnavailableError(
        f"the cage of level {level} does not hold here: {'; '.join(words)}", hint=hint, level=level, out=found.out,
        missing=found.missing,
    )  # fmt: skip


def test(level: Level, folder: str, uid: int | None = None) -> Tested:
    """Tries a level in a new folder below `folder`, and gives what it found."""
    try:
        os.makedirs(folder, exist_ok=True)
        base = tempfile.mkdtemp(prefix="selftest-", dir=folder)
        os.chmod(base, 0o711)
    except OSError as error:
        raise os_error(error, "making the self-test's folder") from None
    try:
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as named:
            name = os.path.basename(base)
            named.bind("\0" + name)
            named.listen()
            return _try(level, base, uid, tcp.getsockname()[1], name)
    except OSError as error:
        raise os_error(error, "the self-test of the cage") from None
    finally:
        remove_tree(base)


def _try(level: Level, base: str, uid: int | None, port: int, name: str) -> Tested:
    room, canary = _furnish(base, uid)
    if level == "files" and levels.landlock_abi() < 6:
        name = ""  # it can't hold this back, and its name says so
    env = rooms.environment(room, level, {}, "/usr/bin:/bin") | rooms.identity("self/test")
    python = rooms.python_inside(level == "full")
    if level == "files" and not rooms.is_reachable(python, uid):
        python = "/usr/bin/python3"
    script = f"{rooms.OURS}/ropewalk/lane/cage/probe.py" if level == "full" else _PROBE
    if level == "files":
        room = room._replace(tools=(os.path.dirname(_PROBE), rooms.python()[0]))
    words = levels.argv(level, room, [python, "-I", "-S", script, canary, str(port), name], env)
    try:
        done = run(words, env={} if level == "full" else env, cwd=room.workspace, timeout=_SECONDS)
        found = msgspec.json.decode(done.out, type=dict[str, str])
    except (ChildTimeout, *UNREADABLE) as error:
        said = done.err.decode("utf-8", "replace").strip()[-500:] if not isinstance(error, ChildTimeout) else str(error)
        return Tested([], {"start": said or "nothing was said"})
    out = [what for what in _OUT if found.get(what) == ""]
    missing = {what: found.get(what, "it was not tried") for what in _WELL if found.get(what) != ""}
    owner = os.geteuid() if uid is None else uid
    if "work" not in missing and os.stat(os.path.join(room.workspace, "made")).st_uid != owner:
        missing["work"] = "the file it made has another owner"
    if "rename" not in out and "write" not in out:
        with open(canary, "rb") as file:
            out += ["write"] if file.read() != b"canary" else []
    return Tested(out, missing)


def _furnish(base: str, uid: int | None) -> tuple[Room, str]:
    """Makes a small repository, a workspace that reads its objects, and a canary; gives the room and the canary."""
    repo, work = os.path.join(base, "repo.git"), os.path.join(base, "work")
    _git("init", "-q", "--bare", repo)
    _git("init", "-q", work)
    tree = _git(f"--git-dir={repo}", "hash-object", "-t", "tree", "-w", "--stdin")
    who = {f"GIT_{one}_{what}": "self-test" for one in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    made = _git(f"--git-dir={repo}", "commit-tree", "-m", "made", tree, extra=who)
    objects = os.path.join(repo, "objects")
    with open(os.path.join(work, ".git", "objects", "info", "alternates"), "w", encoding="utf-8") as file:
        file.write(objects + "\n")
    _git(f"--git-dir={work}/.git", "update-ref", "HEAD", made)
    home, tmp, canary = (os.path.join(base, part) for part in ("home", "tmp", "canary/file"))
    for place in (home, tmp, os.path.dirname(canary)):
        os.mkdir(place, 0o700)
    with open(canary, "wb") as file:
        file.write(b"canary")
    if uid is not None:
        os.chmod(repo, 0o755)
        give.open_objects(objects)
        for place in (work, home, tmp):
            give.give(place, uid)
    return Room(work, "selftest", home, tmp, objects, network="none", uid=uid), canary


def _git(*words: str, extra: dict[str, str] | None = None) -> str:
    done = run([git_program(), *words], env=git_env(extra), timeout=_SECONDS)
    if done.code:
        raise git_error(words[0], done)
    return done.text()


def _stamp() -> str:
    """Gives what changes when the cage's own programs do."""
    folder = os.path.dirname(_PROBE)
    files = [os.path.join(folder, name) for name in ("inside.py", "landlock.py", "seccomp.py", "bubble.py", "room.py")]
    return " ".join([ropewalk.__version__, *(str(os.stat(path).st_mtime_ns) for path in files)])
