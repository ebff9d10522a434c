"""Runs a command with one of the code's syncs left out: `python -m tests.power.without SITE COMMAND…`.

With `--tell` in the place of SITE nothing is left out, and each sync says before which sites led to it; with `--die`
the process is killed where it would first sync the log, with `--die=MODULE:FUNCTION` after that was called. RWTEST_MEET
names another command and the function before which it comes in.
A site is FILE:FUNCTION:NUMBER, a call that ends in a sync: `os.fsync` and `os.fdatasync` themselves, and every call
of a function that is there to sync. Without it nothing is synced by way of that line; all else happens.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .calls import SITES

SRC = Path(__file__).parents[2] / "src" / "ropewalk"
HELPERS = {"sync_packs", "secure_packs", "build_index", "arrival_synced", "sync_file_system"}
"""Functions outside core/durable.py that make something durable for whoever calls them."""
_FSYNC, _FLUSH = {"fsync", "fdatasync"}, {"flush", "vouch"}
_WORDS = {"sync", "durabl", "build_index", *_FLUSH}
"""Are words of which a file that syncs has one, so that few are parsed."""


@functools.cache
def sites() -> dict[str, int]:
    """Gives the line of every site of the package by its name; a command reads what RWTEST_SITES has of it."""
    if known := os.environ.get("RWTEST_SITES"):
        return json.loads(Path(known).read_text())  # type: ignore[no-any-return]
    found: dict[str, int] = {}
    tree = ast.parse((SRC / "core" / "durable.py").read_text(encoding="utf-8"))
    durable = {name for name, _ in _calls(tree) if name not in ("", "write_all", "put")}
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in _WORDS):
            continue
        tree = ast.parse(text)
        own = _imported(tree, durable) if path.name != "durable.py" else durable
        for function, calls in _calls(tree):
            lines = sorted(call.lineno for call in calls if _syncs(call, own, durable))
            for number, line in enumerate(lines, 1):
                found[f"{path.relative_to(SRC)}:{function}:{number}"] = line
    return found


def _calls(node: ast.AST, name: str = "") -> Iterator[tuple[str, list[ast.Call]]]:
    """Yields each function by its full name with the calls that are in it and in no function inside it."""
    own: list[ast.Call] = []
    inside = [*ast.iter_child_nodes(node)]
    while inside:
        child = inside.pop()
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from _calls(child, f"{name}.{child.name}" if name else child.name)
            continue
        if isinstance(child, ast.Call):
            own.append(child)
        inside += ast.iter_child_nodes(child)
    yield name, own


def _imported(tree: ast.AST, durable: set[str]) -> set[str]:
    """Gives the functions that a file imports from core/durable.py by their own names."""
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "ropewalk.core.durable"]
    return {alias.name for n in froms for alias in n.names} & durable


def _syncs(call: ast.Call, own: set[str], durable: set[str]) -> bool:
    """Says whether a call asks for a sync."""
    what = call.func
    said = {k.arg: not isinstance(k.value, ast.Constant) or bool(k.value.value) for k in call.keywords}
    if not said.get("durably", True):
        return False
    if said.get("sync"):
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
        or (what.attr in _FLUSH and ast.unparse(what.value).split(".")[-1] in ("store", "self"))
    )


def leave_out(site: str) -> None:
    """Makes the syncs of this process that come by way of a site's line do nothing."""
    path, number = str(SRC / site.split(":")[0]), sites()[site]

    def by_way() -> bool:
        frame = sys._getframe(2)
        while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (path, number):
            frame = frame.f_back  # type: ignore[assignment]
        return frame is not None

    def wrapped(real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(fd: Any) -> None:
            if not by_way():
                real(fd)

        return sync

    from ropewalk.store.store import Store

    flush = Store.flush

    def flushing(self: Store, op: int | None = None, *, always: bool = False) -> None:
        # a flush that is left out must not note that it was made
        if not by_way():
            flush(self, op, always=always)

    Store.flush = flushing  # type: ignore[method-assign]
    _wrap(wrapped)


def tell() -> None:
    """Makes each sync of this process name the sites that led to it, by a system call that does nothing else."""
    places = {(str(SRC / site.split(":")[0]), line): site for site, line in sites().items()}

    def wrapped(real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(fd: Any) -> None:
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

    _wrap(wrapped)


def begin(how: str) -> None:
    """Leaves a site's syncs out of this process, or with `--tell` makes them name their sites."""
    if how == "--tell":
        tell()
    else:
        leave_out(how)


def _wrap(wrapped: Callable[[Callable[[Any], None]], Callable[[Any], None]]) -> None:
    """Puts something around every sync of this process."""
    from ropewalk.workspace import mounts

    os.fsync = wrapped(os.fsync)
    os.fdatasync = wrapped(os.fdatasync)
    mounts.sync_file_system = wrapped(mounts.sync_file_system)


def die(after: str) -> None:
    """Makes this process kill itself where it first syncs the log, or first after it called MODULE:FUNCTION."""
    called = not after

    def note() -> None:
        nonlocal called
        called = True

    def sync(fd: int) -> None:
        if called:
            os.kill(os.getpid(), signal.SIGKILL)
        real(fd)

    real, os.fdatasync = os.fdatasync, sync
    if after:
        _before(after, note)


def _before(where: str, what: Callable[[], None]) -> None:
    """Does something before each call of MODULE:FUNCTION."""
    name, _, function = where.partition(":")
    module = importlib.import_module(name)
    real = getattr(module, function)

    def met(*args: Any, **options: Any) -> Any:
        what()
        return real(*args, **options)

    setattr(module, function, met)


def meet(where: str, argv: Sequence[str]) -> None:
    """Lets another command run from start to end right before this process first calls MODULE:FUNCTION."""
    waiting = [argv]

    def other() -> None:
        if waiting:
            subprocess.run(waiting.pop(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)

    _before(where, other)


if __name__ == "__main__":
    if sys.argv[1].startswith("--die"):
        die(sys.argv[1].partition("=")[2])
    else:
        begin(sys.argv[1])
    if other := os.environ.pop("RWTEST_MEET", ""):
        meet(*json.loads(other))
    from ropewalk.cli.main import main

    sys.exit(main(sys.argv[2:]))
