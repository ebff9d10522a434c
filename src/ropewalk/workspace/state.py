"""What the store knows of a workspace: its row, its private folder, and the lock of whoever works on it.

The private folder `<store>/workspaces/NAME` holds a git directory of our own, so that our git never runs with
the agent's (findings A6 and A7), and the stat data by which a capture knows the files that nobody touched.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from ropewalk.core.errors import BusyError, InvalidError, NotFoundError, StoreCorruptError, os_error
from ropewalk.core.ids import HEX40, check_ref
from ropewalk.core.process import Done, git_env, git_program, holders, run
from ropewalk.store.store import Store, Transaction

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_COLUMNS = "name, path, base, created_base, target, agent, created_at, state, note"


class Pending(msgspec.Struct, frozen=True):
    """Is the changeset of the last capture, until its land is finished: its id, tree, parent and message."""

    change: str
    tree: str
    parent: str
    message: str


class Overlay(msgspec.Struct, frozen=True):
    """Is where the layers of an overlay workspace are: the id of the shared tree below, the folder of both, a nonce."""

    tree: str
    folder: str
    nonce: str


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what else is kept of a workspace.

    The revision asked for, a land in progress, paths in conflict with the three commits of their merge, what its
    setup put beside the tree, its ports, which files are pointers of LFS, which folders are submodules, below which
    paths its files are on disk (none: all are), its layers, if it is an overlay, and the boot in which it was made.
    """

    asked: str | None = None
    filemode: bool = True
    pending: Pending | None = None
    conflicts: list[str] = []
    theirs: str | None = None
    ours: str | None = None
    common: str | None = None
    beside: list[str] = []
    port: int | None = None
    ports: int = 0
    lfs: list[str] = []
    submodules: list[str] = []
    sparse: list[str] = []
    overlay: Overlay | None = None
    boot: str = ""


class Workspace(msgspec.Struct, frozen=True):
    """Is one workspace: `base` is the commit its tree stands on, `target` the full name of the ref it lands on.

    `state` is `making`, `ready` or `removing`.
    """

    name: str
    path: str
    base: str
    created_base: str
    target: str
    agent: str
    created_at: int
    state: str
    note: Note = Note()


def check_name(name: str) -> str:
    """Gives a workspace's name back; `E_INVALID` unless it can be a folder and a branch."""
    if not _NAME.match(name) or name.endswith((".", ".lock")) or ".." in name:
        raise InvalidError(
            f"{name!r} is not a workspace's name",
            hint="use letters, digits, '.', '_' and '-', at most 100, as in fix-login",
            name=name,
        )
    check_ref(f"refs/heads/{name}")
    return name


def find(store: Store, name: str) -> Workspace | None:
    """Gives a workspace, or None."""
    row = store.db.row(f"SELECT {_COLUMNS} FROM workspaces WHERE name = ?", (name,))
    return None if row is None else _of(row)


def need(store: Store, name: str) -> Workspace:
    """Gives a workspace; `E_NOT_FOUND` when there is none."""
    found = find(store, check_name(name))
    if found is None:
        raise NotFoundError(f"there is no workspace {name!r}", hint="list them with `rw ws list`", workspace=name)
    return found


def listed(store: Store) -> list[Workspace]:
    """Gives every workspace by name."""
    return [_of(row) for row in store.db.rows(f"SELECT {_COLUMNS} FROM workspaces ORDER BY name")]


def _of(row: tuple[object, ...]) -> Workspace:
    name, path, base, created, target, agent, at, word = (str(value) for value in row[:8])
    try:
        note = msgspec.json.decode(str(row[8]), type=Note) if row[8] else Note()
        if not HEX40.match(base) or not HEX40.match(created):
            raise ValueError("its base is no id")
        return Workspace(name, path, base, created, target, agent, int(at), word, note)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreCorruptError(f"the row of the workspace {name} is damaged: {error}", file="store.db") from None


def save(store: Store, ws: Workspace, *, record: str | None = None, actor: str = "") -> Workspace:
    """Writes a workspace's row durably, with an operation of kind `record` when one is named; gives it back."""
    with store.transaction() as tx:
        if record is not None:
            tx.record(record, actor, note=ws.name)
        return write(tx, ws)


def write(tx: Transaction, ws: Workspace) -> Workspace:
    """Writes a workspace's row inside a transaction; gives it back."""
    note = msgspec.json.encode(ws.note).decode("utf-8")
    tx.db.run(
        f"INSERT OR REPLACE INTO workspaces ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (ws.name, ws.path, ws.base, ws.created_base, ws.target, ws.agent, ws.created_at, ws.state, note),
    )
    return ws


def forget(store: Store, name: str, actor: str) -> None:
    """Removes a workspace's row."""
    with store.transaction() as tx:
        tx.record("ws_delete", actor, note=name)
        tx.db.run("DELETE FROM workspaces WHERE name = ?", (name,))


def private(store: Store, name: str) -> str:
    """Gives the folder where the store keeps its own files of a workspace."""
    return os.path.join(store.layout.root, "workspaces", name)


def git_dir(store: Store, name: str) -> str:
    """Gives our own git directory for a workspace."""
    return os.path.join(private(store, name), "git")


@contextmanager
def held(store: Store, name: str) -> Iterator[None]:
    """Holds a workspace for one command; `E_BUSY` when another works on it. The kernel frees a dead one's hold."""
    path = os.path.join(private(store, name), "lock")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise os_error(error, "lock of a workspace") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another command works on the workspace {name}", hint="try again when it has ended", workspace=name
            ) from None
        try:
            yield
        finally:
            # a child that another thread is just starting may still have the descriptor (A25)
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def private_git(
    store: Store,
    ws: Workspace,
    *args: str,
    index: str | None = None,
    stdin: bytes | None = None,
    extra: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> Done:
    """Runs our git with our own git directory on a workspace's tree; nothing that the agent configured is read."""
    store.objects.spill()
    mine = git_dir(store, ws.name)
    env = {
        "GIT_WORK_TREE": ws.path,
        "GIT_INDEX_FILE": index or os.path.join(mine, "index"),
        "GIT_LITERAL_PATHSPECS": "1",
        **(extra or {}),
    }
    lock = f"{env['GIT_INDEX_FILE']}.lock"
    if os.path.exists(lock) and not holders(os.stat(lock)):
        os.unlink(lock)  # the workspace is the caller's alone, so this is of a git that was killed
    argv = [git_program(), f"--git-dir={mine}", *args]
    return run(argv, stdin=stdin, env=git_env(env), cwd=ws.path, timeout=timeout)
