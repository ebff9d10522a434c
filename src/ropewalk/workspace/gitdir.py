"""A workspace's git directory, written by hand, and the checkout of a tree beside it.

Files are the blobs' bytes: attributes that would convert them are switched off for our git and for the agent's, so
that line ends and LFS pointers stay as they are.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Sequence

from ropewalk.core.durable import write_all
from ropewalk.core.errors import InternalError, StoreCorruptError, StoreIOError, UnsupportedError, os_error
from ropewalk.core.ids import path_bytes
from ropewalk.core.process import git_env, git_error, git_program, run
from ropewalk.store.loose import LooseStore
from ropewalk.store.objects import Person, commit_bytes
from ropewalk.store.store import Store
from ropewalk.workspace import state
from ropewalk.workspace.state import Workspace

_NO_WORK_TREE = ("invalid path", "name too long", "null sha1", "unable to create", "cannot create directory")
"""Is what git says of trees that others made and no work tree can hold: names such as `.git`, links to nothing."""
_ATTRIBUTES = "* -text -eol -crlf -ident -filter !working-tree-encoding\n"
_CHECKOUT_SECONDS = 3600.0
_FULL = 1 << 20
_SPECIAL = re.compile(rb"([\\*?\[ !#])")
_NOBODY = Person(b"ropewalk", b"check@ropewalk.local", 0, b"+0000")


def populate(store: Store, folder: str, commit: str, branch: str, person: Person, sparse: Sequence[str] = ()) -> None:
    """Makes a repository at a new folder with `branch` at a commit of the store, checked out."""
    write_git_dir(store, os.path.join(folder, ".git"), branch, commit, person, sparse)
    _read_tree(store, folder, commit)


def _read_tree(store: Store, folder: str, commit: str) -> None:
    store.objects.spill()
    words = ["-c", "checkout.workers=0", "read-tree", "--reset", "-u", commit]
    done = run(
        [git_program(), f"--git-dir={os.path.join(folder, '.git')}", *words],
        env=git_env({"GIT_WORK_TREE": folder}),
        cwd=folder,
        timeout=_CHECKOUT_SECONDS,
    )
    if done.code:
        error = git_error("read-tree", done)
        if isinstance(error, StoreIOError) and os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < _FULL:
            # git leaves the reason out when it can't write a file
            raise os_error(OSError(errno.ENOSPC, "No space left on device"), "checkout")
        if not isinstance(error, InternalError):
            raise error
        said = done.err.decode("utf-8", "replace").strip()
        if "unable to read" in said or "corrupt" in said:
            raise StoreCorruptError(f"the checkout failed: {error.message}")
        if any(sign in said for sign in _NO_WORK_TREE):
            raise UnsupportedError(
                f"this tree can't be on disk: {said[:500]}",
                hint="read it with `rw ls` and `rw cat`, or start at a commit without that path",
            )
        raise error


def populate_tree(store: Store, folder: str, tree: str) -> str:
    """Makes a repository at a new folder whose one commit is a tree of the store; gives the commit's id.

    The commit is the same for a tree whoever makes it and whenever, and is in the new repository alone.
    """
    git_dir = os.path.join(folder, ".git")
    own = LooseStore(os.path.join(git_dir, "objects"))
    made = own.make("commit", commit_bytes(tree, (), _NOBODY, _NOBODY, b"The tree under check\n"))
    write_git_dir(store, git_dir, "check", made.id, _NOBODY)
    own.put(made.id, made.packed)
    _read_tree(store, folder, made.id)
    return made.id


def refresh(folder: str) -> None:
    """Lets git look at the files of a checkout anew, so that its index knows their stat data."""
    words = [f"--git-dir={os.path.join(folder, '.git')}", "update-index", "-q", "--refresh"]
    run([git_program(), *words], env=git_env({"GIT_WORK_TREE": folder}), cwd=folder, timeout=_CHECKOUT_SECONDS)


def lent_object(store: Store, lender: str, oid: str, kind: str) -> bytes | None:
    """Gives an object out of another repository's folder of objects; None when it is not there."""
    env = git_env({"GIT_ALTERNATE_OBJECT_DIRECTORIES": alternate_line(lender).rstrip("\n")})
    done = run([git_program(), f"--git-dir={store.layout.repo}", "cat-file", kind, oid], env=env, timeout=60)
    return done.out if done.code == 0 else None


def populate_lent(store: Store, folder: str, commit: str, lender: str) -> None:
    """Makes a repository in a folder with a commit of another repository checked out, whose objects it reads."""
    part = os.path.join(folder, ".git")
    write_git_dir(store, part, "private", commit, None, lender=lender)
    os.unlink(os.path.join(part, "refs", "heads", "private"))
    write_file(os.path.join(part, "HEAD"), commit.encode("ascii") + b"\n")
    _read_tree(store, folder, commit)


def write_git_dir(
    store: Store, git_dir: str, branch: str, commit: str, person: Person | None, sparse: Sequence[str] = (),
    lender: str | None = None,
) -> None:  # fmt: skip
    """Writes a git directory by hand, which costs no process: HEAD, one branch, configuration, alternates.

    With `sparse` only what is below these paths is on disk. `lender` is a folder of objects other than the store's.
    """
    for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        os.makedirs(os.path.join(git_dir, folder))
    lines = ["[core]", "\trepositoryformatversion = 0", "\tfilemode = true", "\tbare = false",
             "\tlogallrefupdates = true", "\tautocrlf = false", "\tsafecrlf = false", "[gc]", "\tauto = 0",
             "[maintenance]", "\tauto = false", "[commit]", "\tgpgsign = false"]  # fmt: skip
    if sparse:
        lines += ["[core]", "\tsparseCheckout = true", "\tsparseCheckoutCone = false"]
    if person is not None:
        lines += ["[user]", f"\tname = {_value(person.name)}", f"\temail = {_value(person.mail)}"]
    for name, text in {
        "HEAD": f"ref: refs/heads/{branch}\n",
        "config": "\n".join(lines) + "\n",
        f"refs/heads/{branch}": f"{commit}\n",
        "info/attributes": _ATTRIBUTES,
        "info/exclude": "",
        "objects/info/alternates": alternate(store, git_dir) if lender is None else alternate_line(lender),
        **({"info/sparse-checkout": patterns(sparse)} if sparse else {}),
    }.items():
        write_file(os.path.join(git_dir, name), os.fsencode(text))
    try:
        shutil.copyfile(os.path.join(store.layout.repo, "shallow"), os.path.join(git_dir, "shallow"))
    except FileNotFoundError:
        pass


def _objects(store: Store, git_dir: str) -> str:
    """Gives the store's objects folder; below the store itself by a relative path, so that a store can be moved."""
    objects = os.path.join(store.layout.repo, "objects")
    if git_dir.startswith(store.layout.root + os.sep):
        return os.path.relpath(objects, os.path.join(git_dir, "objects"))
    return objects


def patterns(sparse: Sequence[str]) -> str:
    """Gives the lines of `info/sparse-checkout` that match these paths and what is below them."""
    return "".join(os.fsdecode(b"/%s\n" % _SPECIAL.sub(rb"\\\1", path_bytes(path))) for path in sparse)


def covers(sparse: Sequence[str], path: bytes) -> bool:
    """Says whether a path is on disk in a workspace with these sparse paths; in one without any, all are."""
    return not sparse or any(path == below or path.startswith(below + b"/") for below in map(path_bytes, sparse))


def make_private(store: Store, ws: Workspace) -> None:
    """Makes our own git directory for a workspace anew."""
    mine = state.git_dir(store, ws.name)
    shutil.rmtree(mine, ignore_errors=True)
    write_private(store, mine, ws)


def has_modes(probe: str) -> bool:
    """Says whether the file system keeps exec bits; `probe` is a file to make and remove."""
    write_file(probe, b"")
    try:
        modes = []
        for mode in (0o644, 0o755):
            os.chmod(probe, mode)
            modes.append(bool(os.stat(probe).st_mode & stat.S_IXUSR))
        return modes == [False, True]
    finally:
        os.unlink(probe)


def write_private(store: Store, folder: str, ws: Workspace) -> None:
    """Writes at a new folder what our own git directory for a workspace is when nothing has used it."""
    write_git_dir(store, folder, "private", ws.base, None, ws.note.sparse)


def _value(text: bytes) -> str:
    inner = text.decode("utf-8", "surrogateescape").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'


def alternate(store: Store, git_dir: str) -> str:
    """Gives what `objects/info/alternates` of a git directory says."""
    return alternate_line(_objects(store, git_dir))


def alternate_line(path: str) -> str:
    """Gives a line of `objects/info/alternates`."""
    if path.startswith(('"', "#")) or "\n" in path:
        path = '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return path + "\n"


def write_file(path: str, data: bytes) -> None:
    """Writes a file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)
