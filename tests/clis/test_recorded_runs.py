"""Each real program, recorded by command, and played back by command in another store with no server there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
        first = folder / "first" / "project"
        subprocess.run(["git", "init", "-q", "-b", "main", str(first)], env=self.env, check=True)
        (first / "README.md").write_text("A project.\n")
        for words in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "Begin"]):
            subprocess.run(["git", *words], cwd=first, env=self.env, check=True)
        shutil.copytree(folder / "first", folder / "second")
        for place in ("first", "second"):
            self.rw(place, "init")

    def rw(self, place: str, *words: str, exit: int = 0) -> dict[str, Any]:
        """Runs a command in a store and gives its result."""
        done = subprocess.run(
            [sys.executable, "-m", "ropewalk.cli.main", *words, "--json"], cwd=self.folder / place / "project",
            env=self.env, capture_output=True, timeout=300,
        )  # fmt: skip
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        assert done.returncode == exit, f"{done.stdout.decode()[:3000]} {done.stderr.decode()[-1000:]}"
        return dict(found["result"] if found["ok"] else found["error"])

    def lane(self, place: str, name: str, *words: str) -> dict[str, Any]:
        """Gives how a program's lane came out: its state, words and tools, and the tree that the gate passed."""
        prompt = f"Please write {name}.txt."
        model = PROGRAMS[name]
        shown = self.rw(place, "lane", "start", name, prompt, "--harness", name, "--model", model, "--wait", *words)
        check = f"grep -q done {name}.txt"
        collected = self.rw(place, "lane", "collect", name, "--check", check, "--owns", f"{name}.txt")
        return {"state": shown["lane"]["state"], "text": shown["text"], "tree": collected["tree"],
                "changed": collected["changed"], "passed": collected["passed"]}  # fmt: skip


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


def test_G2_every_program_is_recorded_and_played_back_with_the_server_off(field: Field) -> None:
    field.server.add("told", [{"tool": "shell", "cmd": "l=${ROPEWALK_LANE#*/}; echo done > ${l%/*}.txt"},
                              {"text": "FINAL-ANSWER: wrote it"}])  # fmt: skip
    config = field.folder / "config" / "ropewalk"
    config.mkdir(parents=True)
    url = field.server.url("run", "told")
    (config / "endpoints.toml").write_text(f'[endpoints.up]\nurl = "{url}"\nkey = "sk-real-key-0123456789"\n')
    (config / "endpoints.toml").chmod(0o600)

    def all_of(place: str, how: str) -> dict[str, dict[str, Any]]:
        with ThreadPoolExecutor(4) as pool:
            jobs = {name: pool.submit(field.lane, place, name, how, str(field.folder / f"{name}.jsonl"))
                    for name in PROGRAMS}  # fmt: skip
            return {name: job.result() for name, job in jobs.items()}

    first = all_of("first", "--record")
    asked = len(field.server.entries("run"))
    assert asked >= 2 * len(PROGRAMS)
    for name, one in first.items():
        assert one["passed"] and one["changed"] == [f"{name}.txt"] and "FINAL-ANSWER" in one["text"], (name, one)
    held = b"".join(path.read_bytes() for path in field.folder.glob("*.jsonl"))
    assert b"sk-real-key" not in held and b"rwl_" not in held.replace(b"rwl_hidden", b"")
    (config / "endpoints.toml").unlink()
    assert all_of("second", "--replay") == first
    assert len(field.server.entries("run")) == asked


def test_each_task_of_a_run_is_done_by_the_program_that_its_route_names(field: Field) -> None:
    field.server.add("told", [{"tool": "shell", "cmd": "echo done > ${ROPEWALK_TASK##*.}.txt"},
                              {"text": "FINAL-ANSWER: wrote it"}])  # fmt: skip
    config = field.folder / "config" / "ropewalk"
    config.mkdir(parents=True)
    url = field.server.url("run", "told")
    (config / "endpoints.toml").write_text(f'[endpoints.up]\nurl = "{url}"\nkey = "sk-real-key-0123456789"\n')
    (config / "endpoints.toml").chmod(0o600)
    (config / "routing.toml").write_text(
        '[aliases]\nmine = { harness = "pi", model = "scripted-model" }\n'
        'cheap = { harness = "codex", model = "scripted-model" }\n[classes]\nmechanical = { use = "cheap" }\n'
    )
    wanted = {"by-name": "grok", "by-model": "pi", "by-class": "codex"}
    tasks = [
        {"id": "by-name", "harness": "grok", "model": "scripted-model"}, {"id": "by-model", "model": "mine"},
        {"id": "by-class", "class": "mechanical"},
    ]  # fmt: skip
    full = [{"description": "Write it.", "check": f"grep -q done {one['id']}.txt", **one} for one in tasks]
    (field.folder / "tasks.json").write_bytes(msgspec.json.encode({"tasks": full}))
    done = field.rw("first", "run", "--tasks", str(field.folder / "tasks.json"), "--jobs", "3")
    assert done["landed"] == 3
    lanes = field.rw("first", "lane", "list")["lanes"]
    assert {one["task"].partition(".")[2]: one["harness"] for one in lanes} == wanted
    rows = field.rw("first", "board", "attribution")["tasks"]
    assert {task.partition(".")[2]: one["harness"] for task, (one,) in rows.items()} == wanted  # as the claims say
