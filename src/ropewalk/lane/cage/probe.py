"""What a self-test does inside a cage: it tries what must fail and what must go well, and prints what came of it.

It runs on a bare Python (`-I -S`). Each attempt gives an empty text when it went well, else what it was refused with.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable


def attempt(what: Callable[[], object]) -> str:
    """Gives why something did not go well, an empty text when it did."""
    try:
        what()
    except (OSError, subprocess.SubprocessError) as error:
        return str(error) or type(error).__name__
    return ""


def write(path: str) -> None:
    """Writes a file."""
    with open(path, "a") as file:
        file.write("x")


def read(path: str) -> None:
    """Reads a file."""
    with open(path, "rb") as file:
        file.read()


def connect(port: int) -> None:
    """Connects to a port of the host's own address."""
    with socket.create_connection(("127.0.0.1", port), 5):
        pass


def connect_abstract(name: str) -> None:
    """Connects to a socket of the host's that has no place in a folder."""
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(5)
        made.connect("\0" + name)


def git(*words: str) -> None:
    """Runs git in the workspace."""
    subprocess.run(["git", *words], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=30)


def main(argv: list[str]) -> int:
    """Runs `probe.py CANARY PORT SOCKET`."""
    canary, port, name = argv[0], int(argv[1]), argv[2]
    found = {
        "write": attempt(lambda: write(canary)),
        "make": attempt(lambda: write(os.path.join(os.path.dirname(canary), "made"))),
        "rename": attempt(lambda: os.rename(canary, canary + ".gone")),
        "read": attempt(lambda: read(canary)),
        "connect": attempt(lambda: connect(port)),
        "abstract": attempt(lambda: connect_abstract(name)),
        "namespace": attempt(lambda: subprocess.run(["unshare", "-U", "true"], check=True, capture_output=True)),
        "work": attempt(lambda: write("made")),
        "home": attempt(lambda: write(os.path.join(os.environ["HOME"], "made"))),
        "tmp": attempt(lambda: write(os.path.join(os.environ["TMPDIR"], "made"))),
        "log": attempt(lambda: git("log", "-1")),
        "commit": attempt(lambda: git("commit", "-q", "--allow-empty", "-m", "made")),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
