"""Runs a soak by hand: `python -m tests.soak [--seconds 600] [--seed N] [--folder DIR] [--writers N] [--readers N]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import msgspec

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "src"), os.path.join(ROOT, "tests")]


def main(words: list[str]) -> int:
    """Runs one, prints its figures, and keeps the folder when something is wrong."""
    from soak.drive import soak

    parser = argparse.ArgumentParser(prog="python -m tests.soak", allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--writers", type=int, default=50)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--folder", help="a folder that does not exist; it is kept")
    options = parser.parse_args(words)
    for name in list(os.environ):
        if name.startswith(("ROPEWALK_", "GIT_")):
            del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = os.path.abspath(options.folder) if options.folder else os.path.join(temporary, "soak")
        found = soak(
            folder, seconds=options.seconds, writers=options.writers, readers=options.readers, seed=options.seed
        )
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
