"""The generated pages are what `docs/build.py` writes now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "build.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
