"""A folder that two processes remove at once goes, and neither takes the other's work for an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from storekit import child_env

_REMOVER = """
import sys
from ropewalk.workspace.files import remove_tree
print(flush=True)
sys.stdin.readline()
remove_tree(sys.argv[1])
"""


def test_two_remove_a_folder_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for number in range(60):
        (folder / str(number)).mkdir(parents=True)
        for name in range(30):
            (folder / str(number) / str(name)).write_bytes(b"")
    started = [
        subprocess.Popen([sys.executable, "-c", _REMOVER, str(folder)], env=child_env(), stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]  # fmt: skip
    for child in started:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
    for child in started:
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
    for child in started:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err.decode()
    assert not os.path.lexists(folder)
