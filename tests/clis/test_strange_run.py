"""The real Claude Code and Codex side by side make the real commits of a stranger's repository, by one run.

They are those that `python tests/clis/install.py` installs; what is not there is skipped, but with CI=true and
RWTEST_CLIS=1 it is a failure.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clis import install
from tests.clis.test_tools import needed
from tests.strangers import commits
from tests.strangers.commits import Commit, Edit
from tests.strangers.test_strange_run import holds, noted, run, strange

from ropewalk.gateway import process
from ropewalk.testing.model_server import running

pytestmark = [pytest.mark.clis, pytest.mark.compat]

MODELS = {"claude": "claude-sonnet-4-5", "codex": "gpt-5-codex"}
RED = "before-it:"
READABLE = 60_000
"""Is how large a file may be to be read whole, which claude has to before it edits one; beyond it a shell edits."""
REPLACE = "import sys;p,o,n=sys.argv[1:];t=open(p).read();assert t.count(o)==1;open(p,'w').write(t.replace(o,n))"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Gives a folder that the lanes' user may enter; its gateway is ended behind it."""
    made = Path(tempfile.mkdtemp(prefix="ropewalk-strange-", dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    if (address := process.read_address(str(made / "data" / "ropewalk" / "gateway"))) is not None:
        os.kill(address.pid, signal.SIGTERM)
    shutil.rmtree(made, ignore_errors=True)


def step(edit: Edit, large: Collection[str]) -> dict[str, Any]:
    if not edit.old:
        return {"tool": "write", "path": edit.path, "content": edit.new}
    if edit.path in large:
        return {"tool": "shell", "cmd": shlex.join(["python3", "-c", REPLACE, edit.path, edit.old, edit.new])}
    return {"tool": "edit", "path": edit.path, "old": edit.old, "new": edit.new}


def case(commit: Commit) -> dict[str, Any]:
    """Gives what the model does for a commit: it reads, writes the tests, sees them fail, and writes the rest."""
    large = {path for path, (before, _) in commit.files.items() if len(before) > READABLE}
    reads = [
        {"tool": "read", "path": path} for path, (before, _) in commit.files.items() if before and path not in large
    ]
    look = {"tool": "shell", "cmd": f"{commit.check} > /dev/null 2>&1; echo {RED}$?"}
    return {"when": f"Commit {commit.id}:", "steps": [
        {"tools": reads}, *(step(edit, large) for edit in commits.edits(commit, tests=True)), look,
        *(step(edit, large) for edit in commits.edits(commit, tests=False)),
        {"text": f"FINAL-ANSWER: {commit.subject}"},
    ]}  # fmt: skip


def test_real_programs_make_the_real_commits_of_a_stranger_s_repository(folder: Path, clean: dict[str, str]) -> None:
    for program in MODELS:
        needed(program)
    one = strange(clean, folder)
    held = install.default_folder()
    found = [install.binary(held, name) for name in ("node", *MODELS)]
    path = ":".join(dict.fromkeys(str(each.parent) for each in found if each is not None))
    parts = sorted({commit.part for commit in one.commits})
    who = {part: list(MODELS)[number % 2] for number, part in enumerate(parts)}
    todo = []
    for task, commit in zip(commits.tasks(one.commits), one.commits, strict=True):
        program = who[commit.part]
        todo.append({**task, "harness": program, "model": MODELS[program]})
    with running(keep_bodies=True) as server:
        server.add("commits", {"cases": [case(commit) for commit in one.commits]})
        config = folder / "config" / "ropewalk"
        config.mkdir(parents=True)
        url = server.url("run", "commits")
        (config / "endpoints.toml").write_text(f'[endpoints.up]\nurl = "{url}"\nkey = "sk-real-key-0123456789"\n')
        (config / "endpoints.toml").chmod(0o600)
        begun = time.monotonic()
        result = run(one, clean, folder, todo, {
            "PATH": f"{path}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CONFIG_HOME": str(folder / "config"),
        })  # fmt: skip
        noted(result, "claude and codex", time.monotonic() - begun)
        holds(one, result)
        bodies = b"".join(server.body(entry.number) or b"" for entry in server.entries("run"))
        assert bodies.count(f"{RED}1".encode()) >= len(one.commits) and f"{RED}0".encode() not in bodies
