"""Searches one of our parsers for a fault, guided by the paths its inputs take: `atheris_parsers.py NAME SECONDS`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "src")]

with atheris.instrument_imports(include=["ropewalk"]):
    from parser_targets import SEEDS, TARGETS


def main(name: str, seconds: str) -> None:
    """Runs the search for so many seconds; a fault ends it with another exit code and the input in a file."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(SEEDS[name]):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup(
            [sys.argv[0], f"-max_total_time={seconds}", "-max_len=60000", "-timeout=20", corpus], TARGETS[name]
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
