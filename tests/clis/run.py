"""Runs an agent program in a home and a folder of its own, against the scripted model server, to its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.clis import commands, install

_DEAD_END = "http://127.0.0.1:9"


class Ran(NamedTuple):
    """Is how a program ended, and the folder it worked in."""

    code: int
    out: str
    err: str
    work: Path


def prepare(name: str, url: str, folder: Path, prompt: str) -> tuple[list[str], dict[str, str], Path]:
    """Gives command line, environment and working folder of a program; makes its home and its settings."""
    home, work = folder / "home", folder / "work"
    start = commands.STARTS[name](url, home, work, prompt)
    work.mkdir(parents=True, exist_ok=True)
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    for path, text in start.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text, encoding="utf-8")
    held = install.default_folder()
    program, node = install.binary(held, name), install.binary(held, "node")
    assert program is not None and node is not None
    env = {"PATH": f"{node.parent}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(home)}
    env |= {"TMPDIR": str(home / "tmp"), "no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
    env |= {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
    if name == "copilot":  # it unpacks itself there at the first start, 240 MB
        env["XDG_CACHE_HOME"] = str(held / "copilot-cache")
    env |= {variable: _DEAD_END for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    return [str(program), *start.words], {**env, **start.env}, work


def run(name: str, url: str, folder: Path, prompt: str, more: Sequence[str] = (), seconds: float = 150) -> Ran:
    """Gives how a program ended that was given a prompt; nothing it started is left behind."""
    words, env, work = prepare(name, url, folder, prompt)
    try:
        done = subprocess.run(
            [*words, *more], cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds,
            start_new_session=True, text=True,
        )  # fmt: skip
    finally:
        end_all(folder / "home")
    return Ran(done.returncode, done.stdout, done.stderr, work)


def end_all(home: Path) -> None:
    """Kills every process that has a home as its own, in whatever session it is."""
    mark = b"HOME=" + os.fsencode(home)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended, or is another's
