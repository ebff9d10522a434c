"""Where a store is, what it looks like, and how one is made.

```
FORMAT         one line of JSON: format number, store id, name
repo.git/      an ordinary bare git repository: all objects, and refs as git shows them
store.db       SQLite: refs, operations, changesets, keys, workspaces, the object journal
writer.lock    flock of the one writer
spool/         requests of landers that wait
flushed        the last operation known to be on disk, a hint that saves syncs
authors.toml   agent families → commit names and addresses
runs/          one folder a run
```
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ropewalk.core import durable
from ropewalk.core.clock import boot_id
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import (
    InvalidError,
    NotFoundError,
    StoreCorruptError,
    StoreFormatError,
    UnsupportedError,
    UnsupportedFilesystemError,
    os_error,
)
from ropewalk.core.process import git, git_env, git_error, git_program, run
from ropewalk.store.database import SCHEMA, Database

FORMAT = 1
WAL_BYTES = 9 << 20
WORKSPACE_MARK = "ropewalk.json"
_NETWORK = {0x6969: "NFS", 0xFF534D42: "CIFS", 0xFE534D42: "SMB", 0x517B: "SMB", 0x65735546: "FUSE",
            0x01021997: "9p", 0x5346544E: "NTFS", 0x73757245: "Coda", 0x6B414653: "AFS"}  # fmt: skip

_PUSHED = """#!/bin/sh
# A push into this repository is an operation of its ropewalk store.
python=$(cat ropewalk-python 2>/dev/null)
[ -n "$ROPEWALK_PYTHON" ] && python=$ROPEWALK_PYTHON
[ -x "$python" ] && exec "$python" -m ropewalk.cli.receive {name}
command -v rw >/dev/null && exec rw receive {name}
echo "ropewalk is not installed here, so this store takes no push" >&2
exit 1
"""

HOOKS = {
    "reference-transaction": """#!/bin/sh
# Refs of this repository are moved by ropewalk alone; its database is the truth.
# What moves none passes: git ends an atomic push that was refused with an empty transaction.
if [ "$1" = prepared ] && read -r line; then
  echo "this repository belongs to a ropewalk store: move refs with 'rw ref set NAME REV --expect ID'" >&2
  exit 1
fi
""",
    "pre-receive": _PUSHED.format(name="pre-receive"),
    "proc-receive": _PUSHED.format(name="proc-receive"),
}
"""Is what the hooks of `repo.git` must say, by name."""

SETTINGS = {
    "core.bare": "true",
    "core.repositoryformatversion": "1",
    "extensions.preciousObjects": "true",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "receive.autogc": "false",
    "receive.fsckObjects": "true",
    "receive.procReceiveRefs": "refs/",
    "receive.advertisePushOptions": "true",
    "transfer.hideRefs": "refs/ropewalk",
    "core.logAllRefUpdates": "false",
}
"""Is what `repo.git/config` must say, by git's names."""

_AUTHORS = """# Agent families and the names and addresses their commits carry.
# [claude]
# name = "Claude ({instance})"
# email = "{instance}@claude.example.com"
# sign = "ssh:~/.ssh/claude_signing"   or "gpg:KEY": commits are signed when they are made
"""


class StoreFormat(msgspec.Struct, frozen=True):
    """Is the content of FORMAT."""

    format: int
    id: str
    name: str


class Layout(NamedTuple):
    """Names the parts of a store's folder."""

    root: str

    @property
    def format(self) -> str:
        """Gives the path of FORMAT."""
        return os.path.join(self.root, "FORMAT")

    @property
    def repo(self) -> str:
        """Gives the path of the bare repository."""
        return os.path.join(self.root, "repo.git")

    @property
    def database(self) -> str:
        """Gives the path of the database."""
        return os.path.join(self.root, "store.db")

    @property
    def flushed(self) -> str:
        """Gives the path of the mark that says up to which operation all is on disk."""
        return os.path.join(self.root, "flushed")

    @property
    def lock(self) -> str:
        """Gives the path of the writer lock."""
        return os.path.join(self.root, "writer.lock")

    @property
    def spool(self) -> str:
        """Gives the folder of waiting land requests."""
        return os.path.join(self.root, "spool")

    @property
    def authors(self) -> str:
        """Gives the path of authors.toml."""
        return os.path.join(self.root, "authors.toml")

    @property
    def runs(self) -> str:
        """Gives the folder of the runs."""
        return os.path.join(self.root, "runs")


def read_format(root: str) -> StoreFormat:
    """Gives the content of FORMAT; `E_NOT_FOUND` without a store, `E_STORE_FORMAT` when newer or unreadable."""
    try:
        with open(os.path.join(root, "FORMAT"), "rb") as file:
            data = file.read(65_536)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.isdir(os.path.join(root, "repo.git")) and os.path.exists(os.path.join(root, "writer.lock")):
            raise StoreCorruptError("FORMAT is missing", hint="run `rw repair`", file="FORMAT") from None
        raise NotFoundError(f"there is no store at {root}", hint="run `rw init` to make one", path=root) from None
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError):
            raise InvalidError("the store's path can't be used", problem=str(error)) from None
        raise os_error(error, "read of FORMAT") from None
    try:
        found = msgspec.json.decode(data, type=StoreFormat)
    except UNREADABLE as error:
        raise StoreFormatError(
            f"FORMAT can't be read: {error}", hint="run `rw repair`, which has a second copy", file="FORMAT"
        ) from None
    if found.format != FORMAT:
        raise StoreFormatError(
            f"the store has format {found.format}, this ropewalk writes format {FORMAT}",
            found=found.format,
            supported=FORMAT,
        )
    return found


def git_common_dir(start: str) -> tuple[str, str] | None:
    """Gives (git dir, common dir) of the repository a folder is in, without running git; None outside of one."""
    folder = os.path.realpath(start)
    while True:
        dot = os.path.join(folder, ".git")
        if os.path.isdir(dot) and os.path.exists(os.path.join(dot, "HEAD")):
            return dot, dot
        if os.path.isfile(dot):
            return _linked(dot)
        if os.path.isfile(os.path.join(folder, "HEAD")) and os.path.isdir(os.path.join(folder, "objects")):
            return folder, folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _linked(dot: str) -> tuple[str, str] | None:
    try:
        with open(dot, encoding="utf-8", errors="surrogateescape") as file:
            words = file.read().strip()
        if not words.startswith("gitdir: "):
            return None
        git_dir = os.path.normpath(os.path.join(os.path.dirname(dot), words[len("gitdir: ") :]))
        common = git_dir
        named = os.path.join(git_dir, "commondir")
        if os.path.exists(named):
            with open(named, encoding="utf-8", errors="surrogateescape") as file:
                common = os.path.normpath(os.path.join(git_dir, file.read().strip()))
        return (git_dir, common) if os.path.isdir(git_dir) else None
    except OSError:
        return None


class Mark(msgspec.Struct, frozen=True):
    """Is what a workspace's git directory says of the store it belongs to."""

    store: str
    workspace: str
    agent: str = ""


def workspace_mark(start: str) -> Mark | None:
    """Gives the mark of the workspace a folder is in, or None."""
    found = git_common_dir(start)
    if found is None:
        return None
    try:
        with open(os.path.join(found[1], WORKSPACE_MARK), "rb") as file:
            return msgspec.json.decode(file.read(), type=Mark)
    except (OSError, *UNREADABLE):
        return None


def default_root(start: str) -> str:
    """Gives where `rw init` puts a store: in the repository's git directory, else `.ropewalk` here."""
    found = git_common_dir(start)
    return os.path.join(found[1], "ropewalk") if found else os.path.join(os.path.realpath(start), ".ropewalk")


def discover(start: str) -> str:
    """Gives the store a folder belongs to: its workspace's, its repository's, or `.ropewalk` here or above."""
    mark = workspace_mark(start)
    if mark is not None:
        return mark.store
    found = git_common_dir(start)
    if found is not None:
        if os.path.exists(os.path.join(found[1], "ropewalk", "FORMAT")):
            return os.path.join(found[1], "ropewalk")
        if os.path.exists(os.path.join(os.path.dirname(found[1]), "FORMAT")):
            return os.path.dirname(found[1])
    folder = os.path.realpath(start)
    while True:
        if os.path.exists(os.path.join(folder, "FORMAT")) and os.path.isdir(os.path.join(folder, "repo.git")):
            return folder
        if os.path.exists(os.path.join(folder, ".ropewalk", "FORMAT")):
            return os.path.join(folder, ".ropewalk")
        above = os.path.dirname(folder)
        if above == folder:
            raise NotFoundError("there is no store here or above", hint="run `rw init` to make one, or give --store")
        folder = above


def check_filesystem(folder: str) -> None:
    """Refuses file systems without working locks or memory maps (`E_UNSUPPORTED_FS`)."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    done = run(["stat", "-f", "-c", "%t", "--", folder], timeout=10)
    try:
        kind = int(done.text(), 16)
    except ValueError:
        return
    if kind in _NETWORK:
        raise UnsupportedFilesystemError(f"the store would be on {_NETWORK[kind]}", filesystem=_NETWORK[kind])


def git_version() -> tuple[int, int]:
    """Gives the installed git's version; `E_UNSUPPORTED` below 2.39."""
    words = run([git_program(), "version"], env=git_env(), timeout=10).text().split()
    try:
        major, minor = (int(part) for part in words[2].split(".")[:2])
    except (IndexError, ValueError):
        raise UnsupportedError(f"git names no version: {' '.join(words)!r}") from None
    if (major, minor) < (2, 39):
        raise UnsupportedError(f"git {words[2]} is too old", hint="install git 2.39 or newer", found=words[2])
    return major, minor


def create(root: str, store_id: str, name: str, branch: str, fill: Callable[[str], None] | None = None) -> None:
    """Makes a store at a path that does not exist; it appears whole by one rename, or not at all.

    `fill` puts into it what belongs there from the first moment, at the path that it has until then.
    """
    import errno
    import shutil

    git_version()
    check_filesystem(root)
    root = os.path.abspath(root)
    part = f"{root}.new-{os.getpid()}"
    try:
        durable.make_folders(os.path.dirname(root))
        os.mkdir(part, 0o755)
    except OSError as error:
        raise os_error(error, "making the store's folder") from None
    try:
        new = Layout(part)
        os.mkdir(new.spool, 0o700)
        os.mkdir(new.runs, 0o755)
        done = run(
            [git_program(), "init", "--quiet", "--bare", "--template=", f"--initial-branch={branch}", new.repo],
            env=git_env(),
            timeout=60,
        )
        if done.code:
            raise git_error("init", done)
        for key, value in SETTINGS.items():
            git(new.repo, "config", key, value)
        os.makedirs(os.path.join(new.repo, "hooks"), exist_ok=True)
        os.makedirs(os.path.join(new.repo, "info"), exist_ok=True)
        for hook, text in HOOKS.items():
            _write(os.path.join(new.repo, "hooks", hook), text.encode(), 0o755)
        _write(os.path.join(new.repo, "ropewalk-python"), os.fsencode(sys.executable), 0o644)
        _write(new.authors, _AUTHORS.encode(), 0o644)
        _write(new.lock, b"", 0o600)
        create_database(new.database, StoreFormat(FORMAT, store_id, name), branch)
        write_format(new, StoreFormat(FORMAT, store_id, name))
        if fill is not None:
            fill(part)
        try:
            durable.install(part, root)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise InvalidError(f"{root} exists already", hint="choose another path with --store") from None
            raise os_error(error, "making the store's folder") from None
    except OSError as error:
        raise os_error(error, "making the store") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def create_database(path: str, known: StoreFormat, branch: str) -> None:
    """Makes an empty database, unsynced; it keeps a second copy of what FORMAT and HEAD say."""
    database = Database(path, create=True)
    database.run("BEGIN IMMEDIATE")
    for statement in SCHEMA.split(";\n"):
        if statement.strip():
            database.run(statement)
    database.set_meta("boot_id", boot_id())
    for name, value in {"store_id": known.id, "name": known.name, "branch": branch}.items():
        database.set_meta(name, value)
    database.run("COMMIT")
    database.upgrade()
    database.checkpoint()
    database.close()
    # the log gets its blocks at once: syncing an append writes the file's size too, and stalls every writer
    _write(path + "-wal", b"\0" * WAL_BYTES, 0o644)


def write_format(layout: Layout, known: StoreFormat) -> None:
    """Writes FORMAT, unsynced."""
    _write(layout.format, msgspec.json.encode(known) + b"\n", 0o644)


def _write(path: str, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        durable.write_all(fd, data)
    finally:
        os.close(fd)
