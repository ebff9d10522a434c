"""Making a workspace: an independent git repository whose objects come from the store through alternates.

It has its own refs, index, configuration and stash, so that an agent may run any git command in it. Files are
the blobs' bytes: attributes that would convert them are switched off for our git and for the agent's, so that
line ends and LFS pointers stay as they are.
"""

from __future__ import annotations

import os
import shutil
import stat

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import InternalError, InvalidError, StoreCorruptError, UnsupportedError, os_error
from ropewalk.core.ids import path_bytes
from ropewalk.core.policy import Policy
from ropewalk.core.process import git_env, git_error, git_program, run
from ropewalk.store import identity, layout, trees
from ropewalk.store.layout import WORKSPACE_MARK, Mark
from ropewalk.store.loose import LooseStore
from ropewalk.store.objects import Person, commit_bytes
from ropewalk.store.store import Store
from ropewalk.workspace import capture, foreign, setup, state
from ropewalk.workspace.files import Files
from ropewalk.workspace.state import Note, Workspace

_NO_WORK_TREE = ("invalid path", "name too long", "null sha1", "unable to create", "cannot create directory")
"""Is what git says of trees that others made and no work tree can hold: names such as `.git`, links to nothing."""
_ATTRIBUTES = "* -text -eol -crlf -ident -filter !working-tree-encoding\n"
_CHECKOUT_SECONDS = 3600.0
_NOBODY = Person(b"ropewalk", b"check@ropewalk.local", 0, b"+0000")


class Asked(msgspec.Struct, frozen=True):
    """Is what a new workspace is asked to be: ids are full, `path` is absolute, `rev` the revision as given."""

    name: str
    agent: str
    base: str
    target: str
    path: str
    rev: str | None = None
    policy: Policy = Policy()


def default_path(store: Store, data_home: str, name: str) -> str:
    """Gives where a workspace is made unless its folder is named: outside every work tree, no `.git` above it."""
    return os.path.join(data_home, "ropewalk", store.format.id, "ws", name)


def create(store: Store, asked: Asked) -> tuple[Workspace, bool]:
    """Makes a workspace and gives it, and whether it is new; a creation that was killed is ended by the next.

    `E_INVALID` when the name is used for another workspace or the folder for something else.
    """
    state.check_name(asked.name)
    with state.held(store, asked.name):
        found = state.find(store, asked.name)
        if found is not None and found.state == "ready" and os.path.isdir(found.path):
            _check_same(found, asked)
            return found, False
        if found is None or found.state != "making" or found.path != asked.path:
            _check_vacant(store, asked)
            found = state.save(
                store,
                Workspace(
                    asked.name,
                    asked.path,
                    asked.base,
                    asked.base,
                    asked.target,
                    asked.agent,
                    clock.now(),
                    "making",
                    Note(asked.rev),
                ),
                record="ws_create",
                actor=asked.agent,
            )
        mark = layout.workspace_mark(found.path) if os.path.isdir(os.path.join(found.path, ".git")) else None
        if mark is None or (mark.store, mark.workspace) != (store.layout.root, found.name):
            found = _build(store, found)
        found = _furnish(store, found, asked.policy)
        return state.save(store, msgspec.structs.replace(found, state="ready")), True


def _furnish(store: Store, ws: Workspace, policy: Policy) -> Workspace:
    """Puts beside the tree what the policy says and runs its setup; what a killed creation left is done again."""
    wanted = policy.workspace
    if not ws.note.beside and (wanted.copy or wanted.link):
        tree = store.objects.commit(ws.base).tree
        free = []
        for name in sorted({*wanted.copy, *wanted.link}):
            if trees.lookup(store.objects, tree, path_bytes(name)) is None:
                free.append(name)
            else:
                store.warnings.append(f"{name} is in the tree, so the operator's is left out")
        ws = state.save(store, msgspec.structs.replace(ws, note=msgspec.structs.replace(ws.note, beside=free)))
        with open(os.path.join(ws.path, ".git", "info", "exclude"), "ab") as file:
            file.write(foreign.rules(free))
    _, warnings = setup.furnish(ws.path, policy, ws.note.beside)
    store.warnings += warnings
    ws = setup.with_ports(store, ws, wanted.ports)
    log = os.path.join(state.private(store, ws.name), "setup.log")
    setup.run_gate(ws.path, wanted, setup.variables(store, ws, wanted), log)
    return ws


def _check_same(found: Workspace, asked: Asked) -> None:
    if found.path != asked.path or found.target != asked.target or found.note.asked != asked.rev:
        raise InvalidError(
            f"there is a workspace {found.name!r} already, made with other options",
            hint="choose another name, or delete it with `rw ws delete`",
            workspace=found.name,
            path=found.path,
            base=found.base,
        )


def _check_vacant(store: Store, asked: Asked) -> None:
    path = asked.path
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path) or os.listdir(path)):
        raise InvalidError(f"{path} is there already", hint="name an empty or new folder with --dir", path=path)
    inside = os.path.realpath(path)
    if (inside + "/").startswith(os.path.realpath(store.layout.root) + "/"):
        raise InvalidError("a workspace can't be inside the store", path=path)
    if layout.workspace_mark(_existing(path)) is not None:
        raise InvalidError("a workspace can't be inside another one", path=path)


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _build(store: Store, ws: Workspace) -> Workspace:
    """Builds the folder beside its place and puts it there by one rename."""
    above, last = os.path.split(ws.path)
    part = os.path.join(above, f".{last}.new-{os.getpid()}")
    try:
        os.makedirs(above, exist_ok=True)
        for name in os.listdir(above):
            # the lock is ours, so a half-made folder of this workspace belongs to nobody
            if name.startswith(f".{last}.new-"):
                shutil.rmtree(os.path.join(above, name))
        populate(store, part, ws.base, ws.name, identity.person(store.layout, ws.agent, clock.now()))
        filemode = _has_modes(os.path.join(part, ".git", "rw-probe"))
        mark = Mark(store.layout.root, ws.name, ws.agent)
        _write(os.path.join(part, ".git", WORKSPACE_MARK), msgspec.json.encode(mark))
        make_private(store, ws.name, ws.base)
        shutil.copyfile(os.path.join(part, ".git", "index"), os.path.join(state.git_dir(store, ws.name), "index"))
        with Files(part) as files:
            tree = store.objects.commit(ws.base).tree
            entries = capture.all_entries(store, tree)
            capture.save_stats(store, ws.name, capture.look(files, tree, entries))
        os.rename(part, ws.path)
    except OSError as error:
        raise os_error(error, "making the workspace") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return msgspec.structs.replace(ws, note=msgspec.structs.replace(ws.note, filemode=filemode))


def populate(store: Store, folder: str, commit: str, branch: str, person: Person) -> None:
    """Makes a repository at a new folder with `branch` at a commit of the store, checked out."""
    write_git_dir(store, os.path.join(folder, ".git"), branch, commit, person)
    _read_tree(store, folder, commit)


def _read_tree(store: Store, folder: str, commit: str) -> None:
    store.objects.spill()
    done = run(
        [git_program(), f"--git-dir={os.path.join(folder, '.git')}", "read-tree", "--reset", "-u", commit],
        env=git_env({"GIT_WORK_TREE": folder}),
        cwd=folder,
        timeout=_CHECKOUT_SECONDS,
    )
    if done.code:
        error = git_error("read-tree", done)
        if not isinstance(error, InternalError):
            raise error
        words = done.err.decode("utf-8", "replace").strip()
        if "unable to read" in words or "corrupt" in words:
            raise StoreCorruptError(f"the checkout failed: {error.message}")
        if any(sign in words for sign in _NO_WORK_TREE):
            raise UnsupportedError(
                f"this tree can't be on disk: {words[:500]}",
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


def write_git_dir(store: Store, git_dir: str, branch: str, commit: str, person: Person | None) -> None:
    """Writes a git directory by hand, which costs no process: HEAD, one branch, configuration, alternates."""
    for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        os.makedirs(os.path.join(git_dir, folder))
    lines = ["[core]", "\trepositoryformatversion = 0", "\tfilemode = true", "\tbare = false",
             "\tlogallrefupdates = true", "\tautocrlf = false", "\tsafecrlf = false", "[gc]", "\tauto = 0",
             "[maintenance]", "\tauto = false", "[commit]", "\tgpgsign = false"]  # fmt: skip
    if person is not None:
        lines += ["[user]", f"\tname = {_value(person.name)}", f"\temail = {_value(person.mail)}"]
    for name, text in {
        "HEAD": f"ref: refs/heads/{branch}\n",
        "config": "\n".join(lines) + "\n",
        f"refs/heads/{branch}": f"{commit}\n",
        "info/attributes": _ATTRIBUTES,
        "info/exclude": "",
        "objects/info/alternates": _alternate(_objects(store, git_dir)),
    }.items():
        _write(os.path.join(git_dir, name), os.fsencode(text))
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


def make_private(store: Store, name: str, commit: str) -> None:
    """Makes our own git directory for a workspace anew."""
    mine = state.git_dir(store, name)
    shutil.rmtree(mine, ignore_errors=True)
    write_git_dir(store, mine, "private", commit, None)


def _has_modes(probe: str) -> bool:
    """Says whether the file system keeps exec bits."""
    _write(probe, b"")
    try:
        modes = []
        for mode in (0o644, 0o755):
            os.chmod(probe, mode)
            modes.append(bool(os.stat(probe).st_mode & stat.S_IXUSR))
        return modes == [False, True]
    finally:
        os.unlink(probe)


def _value(text: bytes) -> str:
    inner = text.decode("utf-8", "surrogateescape").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'


def _alternate(path: str) -> str:
    if path.startswith(('"', "#")) or "\n" in path:
        path = '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return path + "\n"


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
