"""One run of all real programs, recorded by command, and played back by command with no model and no server there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.clis import install

from ropewalk.gateway import process
from ropewalk.testing.model_server import ModelServer, running

pytestmark = [pytest.mark.clis, pytest.mark.slow, pytest.mark.compat]
PROGRAMS = {
    "claude": "claude-sonnet-4-5", "codex": "scripted-model", "opencode": "scripted-model", "pi": "scripted-model",
    "gemini": "gemini-2.5-flash", "qwen": "scripted-model", "grok": "scripted-model", "copilot": "scripted-model",
}  # fmt: skip


class Field:
    """Is a store in a folder that the lanes' user gets to, and the programs on the PATH."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.folder, self.server = folder, server
        held = install.default_folder()
        found = [install.binary(held, name) for name in ("node", *PROGRAMS)]
        path = ":".join(dict.fromkeys(str(one.parent) for one in found if one is not None))
        self.env = {
            "PATH": f"{path}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8",
            "XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONPATH": os.pathsep.join(sys.path), "ROPEWALK_AGENT": "person/me",
        }  # fmt: skip
        subprocess.run(["git", "init", "-q", "-b", "main", "project"], cwd=folder, env=self.env, check=True)
        project = folder / "project"
        (project / "README.md").write_text("A project.\n")
        for words in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "Begin"]):
            subprocess.run(["git", *words], cwd=project, env=self.env, check=True)
        self.rw("init")

    def rw(self, *words: str, exit: int | None = 0) -> dict[str, Any]:
        """Runs a command and gives its result."""
        done = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", *words, "--json"],
                              cwd=self.folder / "project", env=self.env, capture_output=True, timeout=300)  # fmt: skip
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        assert exit is None or done.returncode == exit, (done.returncode, found, done.stderr.decode()[-3000:])
        return dict(found["result"] if found["ok"] else found["error"])

    def files(self, commit: str) -> dict[str, str]:
        """Gives the files of a commit."""
        return {one["path"]: one["id"] for one in self.rw("ls", commit)["entries"]}


@pytest.fixture
def field() -> Iterator[Field]:
    """Gives a field whose gateway is ended behind it."""
    held = install.default_folder()
    missing = [name for name in ("node", *PROGRAMS) if install.binary(held, name) is None]
    missing += [] if shutil.which("bwrap") else ["bubblewrap"]
    if missing and os.environ.get("CI") == "true" and os.environ.get("RWTEST_CLIS") == "1":
        pytest.fail(f"{', '.join(missing)} is not there")
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed (python tests/clis/install.py)")
    folder = Path(tempfile.mkdtemp(prefix="ropewalk-recorded-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        with running() as server:
            made = Field(folder, server)
            yield made
            gateway = str(folder / "data" / "ropewalk" / "gateway")
            if (address := process.read_address(gateway)) is not None:
                os.kill(address.pid, signal.SIGKILL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_G2_every_program_is_recorded_by_a_run_and_played_back_with_the_server_off(field: Field) -> None:
    # each writes a file of its task's name, which its shell knows
    field.server.add("told", [{"tool": "shell", "cmd": "echo done > ${ROPEWALK_TASK##*.}.txt"},
                              {"text": "FINAL-ANSWER: wrote it"}])  # fmt: skip
    tasks = [
        {"id": name, "description": f"Please write {name}.txt.", "check": f"grep -q done {name}.txt", "harness": name,
         "model": model} for name, model in PROGRAMS.items()
    ]  # fmt: skip
    (field.folder / "project" / ".git" / "tasks.json").write_bytes(msgspec.json.encode({"tasks": tasks}))
    config = field.folder / "config" / "ropewalk"
    config.mkdir(parents=True)
    url = field.server.url("run", "told")
    (config / "endpoints.toml").write_text(f'[endpoints.up]\nurl = "{url}"\nkey = "sk-real-key-0123456789"\n')
    (config / "endpoints.toml").chmod(0o600)
    words = ["run", "--tasks", ".git/tasks.json", "--jobs", "4"]
    first = field.rw(*words, "--record", str(field.folder / "tape"))
    asked = len(field.server.entries("run"))
    assert first["landed"] == len(PROGRAMS) and asked >= 2 * len(PROGRAMS)
    (config / "endpoints.toml").unlink()
    second = field.rw(*words, "--replay", str(field.folder / "tape"), exit=None)
    assert second["landed"] == len(PROGRAMS), [(one["id"], one.get("reason")) for one in second["tasks"]]
    assert second["landed"] == len(PROGRAMS) and len(field.server.entries("run")) == asked
    assert field.files(first["head"]) == field.files(second["head"])
    assert {f"{name}.txt" for name in PROGRAMS} < set(field.files(second["head"]))
    harnesses = {one["lane"]: one["harness"] for one in field.rw("lane", "list")["lanes"]}
    assert set(harnesses.values()) == set(PROGRAMS)
