"""Who lands a task's workspace: this process, or a process of its own that may be killed."""

from __future__ import annotations

import sys
from typing import Protocol

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InternalError, RopewalkError, error_class
from ropewalk.core.process import clean_env, run
from ropewalk.store.store import Store
from ropewalk.workspace import landing, state
from ropewalk.workspace.landing import Wish


class Lander(Protocol):
    """Lands a workspace."""

    def land(self, store: Store, name: str, wish: Wish) -> tuple[str, str]:
        """Gives (status, landed id); raises what a land raises."""
        ...


class Here:
    """Lands in this process, with the worker's own store."""

    def land(self, store: Store, name: str, wish: Wish) -> tuple[str, str]:
        """Gives (status, landed id)."""
        with state.held(store, name):
            done = landing.land_workspace(store, state.need(store, name), wish)
        return done.landed.status, done.landed.landed


def command(store: Store, name: str, wish: Wish) -> list[str]:
    """Gives the command line that lands a workspace in a process of its own."""
    argv = [sys.executable, "-m", "ropewalk.cli.main", "ws", "land", name, "--json",
            "--store", store.layout.root, "--as", wish.agent]  # fmt: skip
    if wish.message is not None:
        argv += [f"--message={wish.message}"]
    if wish.key is not None:
        argv += ["--key", wish.key]
    return [*argv, "--", *wish.check] if wish.check else argv


def package_env(wish: Wish) -> dict[str, str]:
    """Gives the environment of a child that runs this very package, and keeps its checks where the wish has them."""
    import os

    import ropewalk

    extra = {"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(ropewalk.__file__)))}
    if wish.checks:
        extra["XDG_DATA_HOME"] = os.path.abspath(os.path.join(wish.checks, "..", "..", ".."))
    return clean_env(extra)


class Child:
    """Lands by `rw ws land` in a child process."""

    def land(self, store: Store, name: str, wish: Wish) -> tuple[str, str]:
        """Gives (status, landed id); the child's error is raised here."""
        done = run(command(store, name, wish), env=package_env(wish), timeout=wish.check_seconds + 600)
        return answer_of(done.code, done.out, done.err)


def answer_of(code: int, out: bytes, err: bytes) -> tuple[str, str]:
    """Gives (status, landed id) of a child's envelope, or raises its error."""
    try:
        envelope = msgspec.json.decode(out)
    except UNREADABLE:
        words = err.decode("utf-8", "replace").strip()[-1000:]
        raise InternalError(f"the landing process ended with {code}: {words}", exit_code=code) from None
    if not envelope["ok"]:
        raise _error_of(envelope["error"])
    land = envelope["result"]["land"]
    return str(land["status"]), str(land["landed"])


def _error_of(error: dict[str, object]) -> RopewalkError:
    details = error.get("details")
    return error_class(str(error["code"]))(
        str(error["message"]), hint=str(error.get("hint", "")), **(details if isinstance(details, dict) else {})
    )
