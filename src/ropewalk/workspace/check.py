"""Checks: a command run on a tree that is about to land, in a checkout of its own, with a bound."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import CheckFailedError, InvalidError
from ropewalk.core.process import ChildTimeout, Done, clean_env, kill_group, run
from ropewalk.store import identity
from ropewalk.store.store import Store
from ropewalk.workspace import checkout

TAIL = 4000


class Checked(msgspec.Struct, frozen=True):
    """Is one run of a check: the tree, the exit code, the seconds; `cached` when an earlier run of it counted."""

    tree: str
    rc: int
    seconds: float
    cached: bool = False


def checked(
    store: Store, commit: str, argv: Sequence[str], folder: str, seconds: float, stop: threading.Event | None = None
) -> Checked:
    """Runs a check on a commit's tree in a new folder below `folder` and gives how it passed.

    The folder holds a repository whose HEAD is that commit, and nothing that is ignored or not landed. Raises
    `E_CHECK_FAILED` with the end of the output when the exit code is not 0, the bound is reached, or `stop` is set.
    """
    tree = store.objects.commit(commit).tree
    os.makedirs(folder, exist_ok=True)
    place = tempfile.mkdtemp(prefix="check-", dir=folder)
    began = clock.monotonic()
    try:
        work = os.path.join(place, "tree")
        person = identity.person(store.layout, "ropewalk/check", clock.now())
        checkout.populate(store, work, commit, "check", person)
        env = clean_env({"GIT_CEILING_DIRECTORIES": place})
        began = clock.monotonic()
        for name in ("ROPEWALK_STORE", "ROPEWALK_AGENT"):
            env.pop(name, None)
        try:
            done = _run(argv, env, work, seconds, stop)
        except ChildTimeout:
            if stop is not None and stop.is_set():
                raise CheckFailedError(
                    "the check was stopped", tree=tree, command=list(argv), reason="stopped"
                ) from None
            raise CheckFailedError(
                f"the check did not end within {seconds:g} s", tree=tree, command=list(argv), reason="timeout"
            ) from None
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            raise InvalidError(
                f"the check {argv[0]!r} can't be started",
                hint="a line for the shell goes behind -- as: sh -c '…'",
                command=list(argv),
            ) from None
        spent = round(clock.monotonic() - began, 3)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if done.code:
        tail = (done.out + done.err)[-TAIL:].decode("utf-8", "replace")
        how = f"ended with {done.code}" if done.code > 0 else f"was ended by signal {-done.code}"
        raise CheckFailedError(
            f"the check {how} on the merged tree",
            tree=tree,
            command=list(argv),
            rc=done.code,
            seconds=spent,
            output=tail,
        )
    return Checked(tree, 0, spent)


def _run(argv: Sequence[str], env: Mapping[str, str], cwd: str, seconds: float, stop: threading.Event | None) -> Done:
    """Runs a program as `core.process.run` does, and ends it within a tick after `stop` is set, too."""
    import subprocess

    if stop is None:
        return run(argv, env=env, cwd=cwd, timeout=seconds)
    child = subprocess.Popen(
        list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env), cwd=cwd,
        start_new_session=True,
    )  # fmt: skip
    until = clock.monotonic() + seconds
    while True:
        try:
            out, err = child.communicate(timeout=0.2)
            return Done(child.returncode, out, err)
        except subprocess.TimeoutExpired:
            if clock.monotonic() < until and not stop.is_set():
                continue
            kill_group(child)
            child.communicate()
            raise ChildTimeout([str(argv[0])], seconds) from None
