"""Making a workspace: an independent git repository whose objects come from the store through alternates.

It has its own refs, index, configuration and stash, so that an agent may run any git command in it. Its files are
an overlay over a tree that others share, copies that share its blocks, or a checkout of their own.
"""

from __future__ import annotations

import os
import shutil
from typing import Literal

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import InvalidError, UnsupportedError, os_error
from ropewalk.core.ids import path_bytes
from ropewalk.core.policy import Policy
from ropewalk.store import identity, layout, trees
from ropewalk.store.layout import WORKSPACE_MARK, Mark
from ropewalk.store.store import Store
from ropewalk.workspace import (
    clones,
    foreign,
    gitdir,
    mounts,
    overlay,
    setup,
    shared,
    special,
    state,
    stats,
    submodules,
)
from ropewalk.workspace.files import Files, remove_tree
from ropewalk.workspace.special import About
from ropewalk.workspace.state import Note, Overlay, Workspace


class Asked(msgspec.Struct, frozen=True):
    """Is what a new workspace is asked to be: ids are full, `path` is absolute, `rev` the revision as given.

    `sparse` are the paths below which its files are on disk (none: all are), `shared` is the folder of trees that
    workspaces share (none: it gets files of its own), `submodules` fills the folders of submodules.
    """

    name: str
    agent: str
    base: str
    target: str
    path: str
    rev: str | None = None
    policy: Policy = Policy()
    sparse: tuple[str, ...] = ()
    shared: str = ""
    overlay: Literal["auto", "always", "never"] = "auto"
    submodules: bool = False


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
        if found is not None and found.state == "ready" and (found.note.overlay or os.path.isdir(found.path)):
            _check_same(found, asked)
            overlay.ensure(found)
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
                    Note(asked.rev, sparse=list(asked.sparse), boot=clock.boot_id()),
                ),
                record="ws_create",
                actor=asked.agent,
            )
        if not _is_built(store, found):
            found = _build(store, found, asked)
        if asked.submodules:
            store.warnings += submodules.fill(store, found, setup.operator_folder(store.layout.root))
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
    store.warnings += special.warnings(ws)
    _, warnings = setup.furnish(ws.path, policy, ws.note.beside)
    store.warnings += warnings
    ws = setup.with_ports(store, ws, wanted.ports)
    log = os.path.join(state.private(store, ws.name), "setup.log")
    setup.run_gate(ws.path, wanted, setup.variables(store, ws, wanted), log)
    return ws


def _check_same(found: Workspace, asked: Asked) -> None:
    if (
        found.path != asked.path
        or found.target != asked.target
        or found.note.asked != asked.rev
        or (found.note.sparse != list(asked.sparse))
    ):
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


def _is_built(store: Store, ws: Workspace) -> bool:
    """Says whether the folder of a workspace in the making is whole; its mark is the last thing that it gets."""
    if ws.note.overlay is not None and mounts.upper_at(ws.path) != overlay.layers(ws).upper:
        return False
    mark = layout.workspace_mark(ws.path) if os.path.isdir(os.path.join(ws.path, ".git")) else None
    return mark is not None and (mark.store, mark.workspace) == (store.layout.root, ws.name)


def _build(store: Store, ws: Workspace, asked: Asked) -> Workspace:
    """Builds the folder: as an overlay, as copies that share blocks, or as a checkout of its own."""
    try:
        if asked.shared:
            fence_above(asked)
        how = _way(store, ws, asked)
        made = _build_overlay(store, ws, asked) if how == "overlay" else None
        if made is None and asked.overlay == "always":
            raise UnsupportedError(
                "an overlay can't be mounted here",
                hint="only root can, outside of user namespaces, on a whole tree; leave --overlay out",
            )
        return made or _build_files(store, ws, asked, copies=how == "copies")
    except OSError as error:
        raise os_error(error, "making the workspace") from None


def fence_above(asked: Asked) -> None:
    """Puts above all workspaces of a store what stops a git whose own repository is gone (finding A4)."""
    if (asked.path + "/").startswith(asked.shared + "/"):
        overlay.fence(asked.shared)


def _way(store: Store, ws: Workspace, asked: Asked) -> Literal["overlay", "copies", "checkout"]:
    """Says how a workspace is made; a small tree is not worth what an overlay needs after a reboot."""
    if not asked.shared or ws.note.sparse:
        return "checkout"
    tree = store.objects.commit(ws.base).tree
    there = os.path.isdir(shared.at(asked.shared, tree).place)
    if not there and asked.overlay != "always" and len(stats.all_entries(store, tree)) < shared.WORTH:
        return "checkout"
    os.makedirs(asked.shared, exist_ok=True)
    if asked.overlay != "never" and (there or mounts.is_sound(asked.shared)):
        return "overlay"
    os.makedirs(os.path.dirname(ws.path), exist_ok=True)
    return "copies" if clones.can_share(asked.shared, os.path.dirname(ws.path)) else "checkout"


def _build_overlay(store: Store, ws: Workspace, asked: Asked) -> Workspace | None:
    """Makes the workspace's own layer and mounts it; None where the kernel refuses."""
    base = shared.get(store, asked.shared, ws.base)
    tree = os.path.basename(base.place)
    over = ws.note.overlay or Overlay(tree, asked.shared, os.urandom(16).hex())
    made = msgspec.structs.replace(ws, note=msgspec.structs.replace(ws.note, overlay=over))
    if not overlay.layers(made).usable():
        return None
    # its row names the shared tree before it uses it, so that nobody sweeps it away
    state.save(store, made)
    overlay.remove(made)
    base = shared.get(store, asked.shared, ws.base)
    made = _told(made, shared.about(base))
    layers = overlay.layers(made)
    dot = os.path.join(layers.upper, ".git")
    os.makedirs(os.path.dirname(layers.work), mode=0o700, exist_ok=True)
    os.mkdir(layers.work)
    gitdir.write_git_dir(store, dot, ws.name, ws.base, identity.person(store.layout, ws.agent, clock.now()))
    gitdir.write_file(os.path.join(layers.upper, overlay.NONCE), over.nonce.encode("ascii"))
    _write_mark(store, made, dot)
    gitdir.make_private(store, made)
    for source, target in (base.git_index, os.path.join(state.git_dir(store, ws.name), "index")), (
        base.stat, os.path.join(state.private(store, ws.name), "stat")
    ):  # fmt: skip
        _link(source, target)
    if overlay.mount(made):
        return made
    overlay.remove(made)
    remove_tree(made.path)
    return None


def _link(source: str, target: str) -> None:
    """Gives a file of ours a second name, or copies it; each is replaced and never written into."""
    if os.path.lexists(target):
        os.unlink(target)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _build_files(store: Store, ws: Workspace, asked: Asked, *, copies: bool) -> Workspace:
    """Builds the folder beside its place and puts it there by one rename."""
    above, last = os.path.split(ws.path)
    part = os.path.join(above, f".{last}.new-{os.getpid()}")
    if ws.note.overlay is not None:  # of a creation that was killed where overlays could be mounted
        overlay.unmount(ws, force=True)
        overlay.remove(ws)
        remove_tree(ws.path)
    ws = msgspec.structs.replace(ws, note=msgspec.structs.replace(ws.note, overlay=None))
    try:
        os.makedirs(above, exist_ok=True)
        for name in os.listdir(above):
            # the lock is ours, so a half-made folder of this workspace belongs to nobody
            if name.startswith(f".{last}.new-"):
                shutil.rmtree(os.path.join(above, name))
        person = identity.person(store.layout, ws.agent, clock.now())
        if copies:
            entries = clones.populate(store, shared.get(store, asked.shared, ws.base), part, ws, person)
        else:
            gitdir.populate(store, part, ws.base, ws.name, person, ws.note.sparse)
            entries = stats.all_entries(store, store.objects.commit(ws.base).tree)
        filemode = gitdir.has_modes(os.path.join(part, ".git", "rw-probe"))
        with Files(part) as files:
            found = stats.look(files, store.objects.commit(ws.base).tree, entries)
        ws = _told(ws, special.about(store, found))
        ws = msgspec.structs.replace(ws, note=msgspec.structs.replace(ws.note, filemode=filemode))
        _write_mark(store, ws, os.path.join(part, ".git"))
        gitdir.make_private(store, ws)
        shutil.copyfile(os.path.join(part, ".git", "index"), os.path.join(state.git_dir(store, ws.name), "index"))
        stats.save(store, ws.name, found)
        os.rename(part, ws.path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    # before anything else is done, so that a creation that is killed now finds what is known of the tree
    return state.save(store, ws)


def _write_mark(store: Store, ws: Workspace, dot: str) -> None:
    mark = Mark(store.layout.root, ws.name, ws.agent)
    gitdir.write_file(os.path.join(dot, WORKSPACE_MARK), msgspec.json.encode(mark))


def _told(ws: Workspace, about: About) -> Workspace:
    """Gives a workspace with what its tree holds that is not what it seems."""
    note = msgspec.structs.replace(ws.note, lfs=about.lfs, submodules=about.submodules)
    return msgspec.structs.replace(ws, note=note)
