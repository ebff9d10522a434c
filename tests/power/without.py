"""Runs a command with one of the code's syncs left out: `python -m tests.power.without SITE COMMAND…`.

With `--tell` in the place of SITE nothing is left out, and each sync says before which sites led to it.
A site is FILE:FUNCTION:NUMBER, a call that ends in a sync: `os.fsync` and `os.fdatasync` themselves, and every call
of a function that is there to sync. Without it nothing is synced by way of that line; all else happens.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .calls import SITES

SRC = Path(__file__).parents[2] / "src" / "ropewalk"
HELPERS = {"sync_packs", "build_index", "arrival_synced"}
"""Functions outside core/durable.py that make something durable for whoever calls them."""
_FSYNC = {"fsync", "fdatasync"}


@functools.cache
def sites() -> dict[str, int]:
    """Gives the line of every site of the package by its name."""
    found: dict[str, int] = {}
    durable = {f.name for f in _functions(SRC / "core" / "durable.py") if f.name != "write_all"}
    for path in sorted(SRC.rglob("*.py")):
        own = _imported(path, durable) if path.name != "durable.py" else durable
        for function in _functions(path):
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _syncs(node, own, durable)]
            for number, node in enumerate(sorted(calls, key=lambda call: call.lineno), 1):
                found[f"{path.relative_to(SRC)}:{function.name}:{number}"] = node.lineno
    return found


@functools.cache
def flushes() -> set[str]:
    """Gives the sites that call `Store.flush`, whose note of what is on disk spares others their sync."""
    found = set()
    for site, line in sites().items():
        path = SRC / site.split(":")[0]
        if ".flush(" in path.read_text(encoding="utf-8").splitlines()[line - 1]:
            found.add(site)
    return found


def _functions(path: Path) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)]


def _imported(path: Path, durable: set[str]) -> set[str]:
    """Gives the functions that a file imports from core/durable.py by their own names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "ropewalk.core.durable"]
    return {alias.name for n in froms for alias in n.names} & durable


def _syncs(call: ast.Call, own: set[str], durable: set[str]) -> bool:
    """Says whether a call asks for a sync."""
    what = call.func
    if any(k.arg == "sync" and not (isinstance(k.value, ast.Constant) and not k.value.value) for k in call.keywords):
        return True
    if isinstance(what, ast.Name):
        return what.id in own | HELPERS
    if not isinstance(what, ast.Attribute):
        return False
    owner = what.value.id if isinstance(what.value, ast.Name) else ""
    return (
        (owner == "os" and what.attr in _FSYNC)
        or (owner == "durable" and what.attr in durable)
        or what.attr in HELPERS
        or (owner in ("store", "self") and what.attr == "flush")
    )


def leave_out(site: str) -> None:
    """Makes the syncs of this process that come by way of a site's line do nothing."""
    path, number = str(SRC / site.split(":")[0]), sites()[site]

    def here(frame: Any) -> bool:
        return bool(frame.f_code.co_filename == path and frame.f_lineno == number)

    def wrapped(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            frame = sys._getframe(1)
            while frame is not None:
                if here(frame):
                    return
                frame = frame.f_back  # type: ignore[assignment]
            real(fd)

        return sync

    from ropewalk.store.store import Store

    flush = Store.flush

    def flushing(self: Store, op: int | None = None, *, always: bool = False) -> None:
        # a flush that is left out must not note that it was made
        if not here(sys._getframe(1)):
            flush(self, op, always=always)

    Store.flush = flushing  # type: ignore[method-assign]
    os.fsync = wrapped(os.fsync)
    os.fdatasync = wrapped(os.fdatasync)


def tell() -> None:
    """Makes each sync of this process name the sites that led to it, by a system call that does nothing else."""
    places = {(str(SRC / site.split(":")[0]), line): site for site, line in sites().items()}

    def wrapped(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            frame = sys._getframe(1)
            found = []
            while frame is not None:
                if site := places.get((frame.f_code.co_filename, frame.f_lineno)):
                    found.append(site)
                frame = frame.f_back  # type: ignore[assignment]
            with contextlib.suppress(OSError):
                os.rmdir(SITES + ";".join(found))
            real(fd)

        return sync

    os.fsync = wrapped(os.fsync)
    os.fdatasync = wrapped(os.fdatasync)


if __name__ == "__main__":
    if sys.argv[1] == "--tell":
        tell()
    elif sys.argv[1] == "--die":
        os.fdatasync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
    else:
        leave_out(sys.argv[1])
    from ropewalk.cli.main import main

    sys.exit(main(sys.argv[2:]))
