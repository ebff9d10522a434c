"""A repository with the oddest history that git takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oddgit import SIGNATURE, odd_stream


@pytest.fixture
def odd(tmp_path: Path, git: Any) -> Path:
    """Gives a bare repository with odd history on `main`, its newest commit signed."""
    folder = tmp_path / "odd.git"
    git("init", "--quiet", "--bare", str(folder))
    git("fast-import", "--quiet", folder=folder, stdin=odd_stream())
    head = git("rev-parse", "main", folder=folder)
    raw = git.run("cat-file", "commit", head, folder=folder).stdout
    top, message = raw.split(b"\n\n", 1)
    parent = b"parent " + head.encode() + b"\n"
    lines = [line + b"\n" for line in top.split(b"\n") if not line.startswith(b"parent ")]
    signed = lines[0] + parent + b"".join(lines[1:]) + SIGNATURE + b"\n" + message
    oid = git("hash-object", "-t", "commit", "-w", "--stdin", folder=folder, stdin=signed)
    git("update-ref", "refs/heads/main", oid, folder=folder)
    return folder
