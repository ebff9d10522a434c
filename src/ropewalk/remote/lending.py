"""Lending: all objects of another repository, fetched beside the store, for a repair to take from what it lacks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from ropewalk.core.process import git_env, git_program, run
from ropewalk.remote import transport


@contextmanager
def lent(root: str, source: str, wait: float = transport.WAIT) -> Iterator[str]:
    """Gives a folder with the objects that a URL or a bundle has, and removes it at the end.

    Everything that its refs reach is fetched, because a server gives no single objects. Raises `E_NOT_FOUND` and
    `E_REMOTE`.
    """
    there = transport.place(source)
    folder = os.path.join(root, f"lent-{os.getpid()}")
    try:
        run([git_program(), "init", "--quiet", "--bare", "--template=", folder], env=git_env(), timeout=60)
        transport.call(
            folder, there, "fetch", "--quiet", "--no-write-fetch-head", "--no-tags", "--no-recurse-submodules",
            "--refmap=", *transport.upload_pack(there), "--", there.address, "+refs/*:refs/lent/*",
            wait=wait,
        )  # fmt: skip
        yield os.path.join(folder, "objects")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
