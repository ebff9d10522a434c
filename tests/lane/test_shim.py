"""The shim alone: what each lane waits for at its start and at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ropewalk.lane import shim

SHIM = shim.__file__


def folder(at: Path, *argv: str) -> Path:
    """Makes a lane's folder that starts a program."""
    at.mkdir()
    launch = {"argv": argv, "env": {"WORD": "ä\n"}, "cwd": "/", "stdin": "/dev/null", "keep_open": False,
              "subreaper": True}  # fmt: skip
    (at / "launch.json").write_bytes(msgspec.json.encode(launch))
    return at


def test_its_start_imports_no_module_that_takes_long(tmp_path: Path) -> None:
    at = folder(tmp_path / "lane", "/bin/sh", "-c", 'printf %s "$WORD"; exit 3')
    done = subprocess.run([sys.executable, "-I", "-S", "-X", "importtime", SHIM, str(at)], capture_output=True)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.decode().splitlines() if "import time" in line}
    heavy = {"json", "re", "enum", "typing", "selectors", "socket", "signal", "ctypes", "collections", "functools"}
    assert "fcntl" in imported and not imported & heavy
    assert msgspec.json.decode((at / "exit.json").read_bytes())["code"] == 3
    assert (at / "stdout").read_text() == "ä\n"


def test_whoever_starts_it_hears_when_it_is_there_and_not_only_when_it_ended(tmp_path: Path) -> None:
    at = folder(tmp_path / "lane", "/bin/sleep", "60")
    with subprocess.Popen([sys.executable, "-I", "-S", SHIM, str(at)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.read() == b""
        assert child.poll() is None, "it closed its output and goes on"
        assert (at / "proc.json").exists() and (at / "control").is_socket()
        child.terminate()
    assert msgspec.json.decode((at / "exit.json").read_bytes())["code"] == -9


@pytest.mark.parametrize("value", [{"a": [1, -2.5, True, None, "ö\\n\u2028"], "b": {}}, {}])
def test_it_reads_json_as_anybody_does(value: dict[str, object]) -> None:
    assert shim.parsed(msgspec.json.encode(value).decode()) == value
