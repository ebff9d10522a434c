"""Runs a command with one of the code's syncs left out: `python -m tests.power.without SITE COMMAND…`.

A site is FILE:FUNCTION:NUMBER. The call there (`os.fsync`, `os.fdatasync`, or a function that ends in one) does
nothing, and what it would have synced stays unsynced.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "ropewalk"
_SYNCS = {"fsync", "fdatasync", "sync_folder", "sync_packs", "_sync_file", "_sync_tree", "_sync"}


def sites() -> dict[str, int]:
    """Gives the line of every place of the package's code that asks for a sync, by FILE:FUNCTION:NUMBER."""
    found: dict[str, int] = {}
    for path in sorted(SRC.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _name(node) in _SYNCS]
            for number, node in enumerate(sorted(calls, key=lambda call: call.lineno), 1):
                found[f"{path.relative_to(SRC)}:{function.name}:{number}"] = node.lineno
    return found


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else str(getattr(function, "id", ""))


def leave_out(site: str) -> None:
    """Makes the syncs of this process that come by way of a line do nothing."""
    path, number = str(SRC / site.split(":")[0]), sites()[site]

    def wrapped(real: object) -> object:
        def sync(fd: int) -> None:
            frame = sys._getframe(1)
            while frame is not None:
                if frame.f_code.co_filename == path and frame.f_lineno == number:
                    return
                frame = frame.f_back  # type: ignore[assignment]
            real(fd)  # type: ignore[operator]

        return sync

    os.fsync = wrapped(os.fsync)  # type: ignore[assignment]
    os.fdatasync = wrapped(os.fdatasync)  # type: ignore[assignment]


if __name__ == "__main__":
    leave_out(sys.argv[1])
    from ropewalk.cli.main import main

    sys.exit(main(sys.argv[2:]))
