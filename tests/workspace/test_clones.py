"""Workspaces whose files share blocks with a shared tree, on a file system that can."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.workspace import clones, shared

from .conftest import Bench


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Path]:
    """Gives a folder on a file system that shares blocks: one of the test's own, in a file."""
    place, image = tmp_path / "xfs", tmp_path / "image"
    place.mkdir()
    if clones.can_share(str(tmp_path), str(tmp_path)):
        yield place
        return
    if shutil.which("mkfs.xfs") is None or os.geteuid() != 0:
        pytest.skip("there is no file system here that shares blocks, and none can be made")
    with open(image, "wb") as file:
        file.truncate(400 << 20)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True, timeout=60)
    if subprocess.run(["mount", "-o", "loop", image, place], capture_output=True).returncode:
        pytest.skip("no loop device can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_copies_share_blocks_and_nothing_else(
    bench: Bench, sharing: Path, in_ws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WORTH", 1)
    bench.publish({f"big/{n}": f"{n:07}\n" * 100_000 for n in range(20)})
    paths = []
    for name in ("one", "two"):
        before = shutil.disk_usage(sharing).used
        paths.append(bench.create(name, path=str(sharing / name), shared=str(sharing / "data"), overlay="never"))
        used = shutil.disk_usage(sharing).used - before
    assert [p.name for p in (sharing / "data").iterdir()] == ["lower"]
    assert used < 6_000_000, "the second copy takes no blocks for its files"
    one, two = paths
    log = tmp_path / "calls"
    subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=openat", "-o", log, "git", "status", "--porcelain"], cwd=two, check=True
    )
    assert "big/1" not in log.read_text(), "its index has the stat data of its own files"
    (one / "big/1").write_text("changed\n")
    assert (two / "big/1").read_text() == "0000001\n" * 100_000 and bench.changes("two") == {}
    assert bench.changes("one") == {"big/1": "modified"} and in_ws(one, "status", "--porcelain") == "M big/1".rjust(8)
    bench.land("one")
    in_ws(one, "fsck", "--strict")
    assert in_ws(one, "branch", "--show-current") == "one"
