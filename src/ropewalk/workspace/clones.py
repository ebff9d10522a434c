"""Workspaces whose files share blocks with a shared tree, on file systems that can (Btrfs, XFS and others).

A hard link would be as quick, but who writes through it writes into everybody's tree; blocks that are shared are
copied by the file system when one side writes.
"""

from __future__ import annotations

import fcntl
import os
import shutil

from ropewalk.core.errors import StoreIOError, os_error
from ropewalk.core.process import clean_env, run
from ropewalk.store.objects import Person
from ropewalk.store.store import Store
from ropewalk.store.trees import Entry
from ropewalk.workspace import gitdir, shared, stats
from ropewalk.workspace.shared import Shared
from ropewalk.workspace.state import Workspace

SHARE = 0x40049409
"""Is the request number of FICLONE."""
_COPY_SECONDS = 3600.0


def can_share(one: str, two: str) -> bool:
    """Says whether a file in one folder can share its blocks with one in another."""
    names = [os.path.join(folder, f".probe-share-{os.getpid()}-{n}") for n, folder in enumerate((one, two))]
    try:
        with open(names[0], "w+b") as source, open(names[1], "wb") as target:
            source.write(b"x" * 4096)
            source.flush()
            fcntl.ioctl(target.fileno(), SHARE, source.fileno())
            return True
    except OSError:
        return False
    finally:
        for name in names:
            try:
                os.unlink(name)
            except FileNotFoundError:
                pass


def populate(store: Store, base: Shared, folder: str, ws: Workspace, person: Person) -> dict[bytes, Entry]:
    """Makes a repository at a new folder, its files copies of a shared tree; gives the tree's entries."""
    if shutil.which("cp") is None:
        raise StoreIOError("there is no `cp`", operation="copy of a shared tree")
    try:
        argv = ["cp", "-a", "--reflink=always", "--", base.tree, folder]
        done = run(argv, env=clean_env({"LC_ALL": "C"}), timeout=_COPY_SECONDS)
        if done.code:
            words = done.err.decode("utf-8", "replace")
            if "No space left" in words or "quota" in words:
                import errno

                raise OSError(errno.ENOSPC, "No space left on device")
            raise StoreIOError(f"the copy of the shared tree failed: {words[-500:]}", operation="cp")
        shutil.rmtree(os.path.join(folder, ".git"))
        gitdir.write_git_dir(store, os.path.join(folder, ".git"), ws.name, ws.base, person)
        shutil.copyfile(base.git_index, os.path.join(folder, ".git", "index"))
        known = stats.load(base.stat)
        seen = {path: os.lstat(os.path.join(os.fsencode(folder), path)) for path in known.files}
        shared.renew(store, folder, seen)
    except OSError as error:
        raise os_error(error, "copy of a shared tree") from None
    return known.base
