"""What a worker costs before its first task: 32 of them on two processors are 32 starts of Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.work.workkit import ROOT, WorkKit

from storekit import child_env

SERVERS_ONLY = ("asyncio", "aiohttp", "ssl", "logging", "concurrent", "inspect", "http", "email", "jsonschema")


def test_a_worker_starts_without_what_only_servers_need(bench: WorkKit, tmp_path: Path) -> None:
    words = ["work", "--board", bench.root("w1"), "--command", "true", "--cage", "none", "--until-empty"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ropewalk.cli.main", *words], cwd=ROOT, capture_output=True,
        env=child_env(HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data"), ROPEWALK_AGENT="test/one"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("import time:")]
    imported = {line.rsplit("|", 1)[-1].strip().partition(".")[0] for line in lines}
    assert "ropewalk" in imported and not imported & set(SERVERS_ONLY)
