"""The cleaner of the demo: a process of its own that waits until the demo is gone, however that ended.

Then it ends what still works in the demo's folder, and removes the folder. It hears of the end by a pipe that the demo
alone holds, so that a demo that is killed leaves no more behind than one that ends by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ropewalk.core import clock
from ropewalk.core.errors import os_error

PREFIX = "ropewalk-demo-"
_KEEP = "--keep"
_SECONDS = 30.0
"""Is how long what works in the folder is ended for, and how long the demo waits for its cleaner."""

_PATIENCE = 3.0
_TICK = 0.02


@contextmanager
def folder(keep: bool) -> Iterator[str]:
    """Gives a new folder that is gone when the block ends, or this process; with `keep` what works there is ended."""
    try:
        made = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX))
        if os.geteuid() == 0:
            os.chmod(made, 0o711)  # agents in cages are another user then
    except OSError as error:
        raise os_error(error, "making of a temporary folder") from None
    try:
        words = [sys.executable, "-m", "ropewalk.run.demo.cleaner", made, *([_KEEP] if keep else [])]
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=_env(), cwd="/",
        )  # fmt: skip
    except OSError as error:
        os.rmdir(made)
        raise os_error(error, "start of the cleaner") from None
    try:
        yield made
    finally:
        assert child.stdin is not None
        child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(2 * _SECONDS)  # one that takes longer goes on by itself


def _env() -> dict[str, str]:
    import ropewalk
    from ropewalk.core.process import clean_env

    return clean_env({"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(ropewalk.__file__)))})


def end_users(made: str, *, gently: bool = False) -> None:
    """Ends all processes that have to do with a folder; `gently` they are asked first, and have some seconds for it."""
    import threading

    began = clock.monotonic()
    pause = threading.Event()
    while (found := users(made)) and clock.monotonic() - began < _SECONDS:
        asked = gently and clock.monotonic() - began < _PATIENCE
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM if asked else signal.SIGKILL)
        pause.wait(_TICK)


def users(made: str) -> list[int]:
    """Gives the processes that name a folder in their arguments or their environment, or stand in it."""
    mark, found = os.fsencode(made), []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and _uses(name, mark):
            found.append(int(name))
    return found


def _uses(pid: str, mark: bytes) -> bool:
    for part in ("cmdline", "environ"):
        with suppress(OSError), open(f"/proc/{pid}/{part}", "rb") as file:
            if mark in file.read():
                return True
    with suppress(OSError):
        where = os.readlink(os.fsencode(f"/proc/{pid}/cwd"))
        return where == mark or where.startswith(mark + b"/")
    return False


def remove(made: str) -> None:
    """Removes the folder, with what was mounted below it."""
    from ropewalk.workspace import mounts
    from ropewalk.workspace.files import remove_tree

    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split(" ")[4] for line in file]
    for point in reversed([one for one in points if one.startswith(f"{made}/")]):
        with suppress(OSError):
            mounts.unmount(point, detach=True)
    with suppress(OSError):
        remove_tree(made)


def main(argv: list[str]) -> int:
    """Runs `python -m ropewalk.run.demo.cleaner FOLDER [--keep]`."""
    made, keep = argv[0], argv[1:] == [_KEEP]
    if not os.path.basename(made).startswith(PREFIX):
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    end_users(made, gently=keep)
    if not keep:
        remove(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
