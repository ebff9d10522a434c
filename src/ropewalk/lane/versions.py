"""Versions: what the programs that are installed say they are; each is asked once while its file stays the same."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache

from ropewalk.lane.adapter import Adapter

_VERSION_SECONDS = 30.0


@lru_cache(maxsize=64)
def _version_of(path: str, stamp: tuple[int, int]) -> str:
    env = {"PATH": f"{os.path.dirname(path)}:{os.defpath}", "HOME": "/nonexistent"}
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_SECONDS, env=env
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")[:2000]


def installed(adapter: Adapter, search: str) -> str:
    """Gives the version of an installed program; empty when it can't be told."""
    import shutil

    path = shutil.which(adapter.program, path=search) if adapter.program else None
    if path is None or adapter.program == sys.executable:
        return ""
    found = os.stat(os.path.realpath(path))
    return adapter.version(_version_of(os.path.realpath(path), (found.st_size, found.st_mtime_ns)))
