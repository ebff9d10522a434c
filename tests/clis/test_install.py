"""The installer of agent programs: versions are pinned, what is there is kept, what fails leaves nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.clis import commands, install

NPM = """#!/bin/sh
echo "$@" >> "$0.calls"
for last; do :; done
case "$last" in @openai*) echo "no such version" >&2; exit 1;; esac
package="${last%@*}"
mkdir -p "node_modules/$package" node_modules/.bin
echo "{\\"version\\": \\"${last##*@}\\"}" > "node_modules/$package/package.json"
touch node_modules/.bin/pi node_modules/.bin/grok
"""


def call(folder: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Gives exit code and lines of the installer, which finds an npm that makes empty packages."""
    npm = folder / "bin" / "npm"
    npm.parent.mkdir(exist_ok=True)
    npm.write_text(NPM, encoding="utf-8")
    npm.chmod(0o755)
    done = subprocess.run(
        [sys.executable, install.__file__, "--into", str(folder / "into"), *words],
        env={**os.environ, "PATH": f"{npm.parent}:{os.environ['PATH']}"},
        capture_output=True,
        timeout=60,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_every_program_that_is_started_is_pinned() -> None:
    listed = install.wanted()
    assert set(listed) == {*commands.STARTS, "node"}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", one["version"]) for one in listed.values())


def test_what_is_there_is_kept_and_what_fails_leaves_nothing(tmp_path: Path) -> None:
    code, lines = call(tmp_path, "--only", "pi,codex", "--check")
    assert (code, [line["binary"] for line in lines]) == (1, [None, None])
    code, lines = call(tmp_path, "--only", "pi,codex")
    assert (code, [line["done"] for line in lines]) == (1, ["installed", "failed"])
    assert lines[1]["said"] == "no such version"
    version = install.wanted()["pi"]["version"]
    assert [p.name for p in (tmp_path / "into").iterdir()] == [f"pi-{version}"]
    code, lines = call(tmp_path, "--only", "pi")
    assert (code, lines[0]["done"]) == (0, "kept")
    calls = (tmp_path / "bin" / "npm.calls").read_text(encoding="utf-8").splitlines()
    assert len(calls) == 2 and any(line.endswith(f"pi-coding-agent@{version}") for line in calls)
    assert call(tmp_path, "--only", "pi", "--check")[0] == 0


def test_a_program_of_another_version_is_not_taken(tmp_path: Path) -> None:
    assert call(tmp_path, "--only", "grok")[0] == 0
    package = install.place(tmp_path / "into", "grok") / "node_modules" / install.wanted()["grok"]["package"]
    (package / "package.json").write_text('{"version": "0.0.1"}', encoding="utf-8")
    assert install.binary(tmp_path / "into", "grok") is None
    assert call(tmp_path, "--only", "grok")[1][0]["done"] == "installed"
