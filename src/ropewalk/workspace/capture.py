"""Capture: the tree an agent left, made into objects of the store.

What the agent committed itself, staged, or left in the tree all counts, and the tree on disk says which; what
its ignore rules cover does not, unless git already tracks it. Files that nobody touched since they were last
seen to equal the base are known by their stat data, so that a capture reads what changed and little more.
"""

from __future__ import annotations

import fnmatch
import os
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import InvalidError, WorkspaceDamagedError
from ropewalk.core.ids import check_path, path_bytes, path_text
from ropewalk.core.process import git_error
from ropewalk.store import trees
from ropewalk.store.loose import object_id
from ropewalk.store.store import Store
from ropewalk.store.trees import Entry
from ropewalk.workspace import foreign, overlay, state, stats
from ropewalk.workspace.files import Files
from ropewalk.workspace.foreign import Staged
from ropewalk.workspace.gitdir import covers
from ropewalk.workspace.state import Workspace
from ropewalk.workspace.stats import Seen, Stats

_PAGE = 4096
_UNSURE = "unsure"
LARGEST = 1 << 30
"""Is how many bytes a file may have: an agent makes one of a terabyte by a single call, and it is read into memory."""

_SECRETS = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx", "id_rsa", "id_dsa",
    "id_ecdsa", "id_ed25519", "credentials.json", "credentials", "service-account*.json", "client_secret*.json",
    ".netrc", ".pgpass", ".pypirc", ".git-credentials", ".htpasswd", "secrets.json", "secrets.yaml", "secrets.yml",
    "secrets.toml",
)  # fmt: skip
_SAMPLES = ("*.example", "*.sample", "*.template", "*.dist")


class Captured(NamedTuple):
    """Is what a capture found: the tree (its objects written, unless only looked at), entries, changes to the base."""

    tree: str
    base_tree: str
    entries: Mapping[bytes, Entry]
    changes: list[trees.Change]
    sizes: Mapping[bytes, int]
    seen: Mapping[bytes, Seen]
    held_back: list[bytes]
    warnings: list[str]
    hidden: Collection[bytes] = ()
    """Is which paths sparse checkout keeps off the disk."""
    lost: Collection[bytes] = ()
    """Is which paths of the base a loss of power may have taken, in whole or in part."""


def is_secret(path: bytes) -> bool:
    """Says whether a file's name is one that keys and passwords are kept under."""
    name = os.fsdecode(path.rpartition(b"/")[2]).lower()
    matches = any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRETS)
    return matches and not any(fnmatch.fnmatchcase(name, pattern) for pattern in _SAMPLES)


def is_torn(data: bytes, was: bytes) -> bool:
    """Says whether bytes are what a disk may have of others that were not synced: some of their pages, and zeros."""
    if data == was or len(data) > len(was) or (len(data) % _PAGE and len(data) != len(was)):
        return False
    pages = range(0, len(data), _PAGE)
    return all(data[n : n + _PAGE] == was[n : n + _PAGE] or not data[n : n + _PAGE].strip(b"\0") for n in pages)


def _lost_words(lost: Sequence[bytes]) -> str:
    names = ", ".join(path_text(path) for path in lost[:5]) + (" …" if len(lost) > 5 else "")
    return f"the machine was booted since its files were written, and these are gone or cut short: {names}"


def check_lost(ws: Workspace, found: Captured) -> None:
    """Raises `E_WORKSPACE_DAMAGED` when a loss of power may have taken something of the base."""
    if found.lost:
        raise WorkspaceDamagedError(
            f"{ws.name}: {_lost_words(sorted(found.lost))}",
            hint=f"`rw ws discard --workspace {ws.name} PATH…` puts them back, --allow-mass-delete lands it so",
            workspace=ws.name,
            paths=[path_text(path) for path in sorted(found.lost)[:100]],
        )


def capture(
    store: Store, ws: Workspace, *, allow: Collection[bytes] = (), meant: bool = False, write: bool = True
) -> Captured:
    """Captures a workspace; with `write=False` nothing is written and the tree is `""`.

    `allow` names new files that land though they look like secrets; `meant` says that a loss of power took nothing.
    `E_WORKSPACE_GONE` without its folder, `E_WORKSPACE_NOT_MOUNTED` where its overlay can't be mounted.
    """
    overlay.ensure(ws)
    with Files(ws.path) as files:
        overlay.confirm(ws, files)
        return _Capture(store, ws, files, allow, write).run(meant)


class _Capture:
    def __init__(self, store: Store, ws: Workspace, files: Files, allow: Collection[bytes], write: bool) -> None:
        self.store, self.ws, self.files, self.allow, self.write = store, ws, files, allow, write
        self.objects = store.objects
        self.base_tree = store.objects.commit(ws.base).tree
        old = stats.load(os.path.join(state.private(store, ws.name), "stat"))
        self.base = stats.base_entries(store, old, self.base_tree)
        self.boot = clock.boot_id()
        # files are not synced, so what was seen of them before the machine was booted is no evidence
        self.old = old if old.boot in ("", self.boot) else msgspec.structs.replace(old, files={})
        self.whole = ws.note.boot == self.boot or old.boot == self.boot or bool(old.tree and not old.boot)
        if not self.whole:
            from ropewalk.workspace import care

            care.renew(store, ws)  # our own git directory is not synced either
        self.stats: dict[bytes, Seen] = {}
        self.sizes: dict[bytes, int] = {}
        self.seen: dict[bytes, Seen] = {}
        self.warnings: list[str] = []
        self.hidden: set[bytes] = set()

    def run(self, meant: bool) -> Captured:
        at = time.time_ns()
        staged, tracked, others = self._lists()
        entries: dict[bytes, Entry] = {}
        held: list[bytes] = []
        beside = {path_bytes(name) for name in self.ws.note.beside}
        for path in sorted(tracked | others):
            if path in beside or any(path.startswith(name + b"/") for name in beside):
                # what setup put there is the operator's, whatever upstream has under its name
                if (entry := self.base.get(path)) is not None:
                    entries[path] = entry
                continue
            if path not in self.base and not self._may_land(path, held):
                continue
            entry = self._entry(path, staged.get(path) if staged is not None else None, staged is None)
            if entry is not None:
                entries[path] = entry
        if not entries and self.base and self.files.stat(b".git") is None:
            raise WorkspaceDamagedError("the workspace is empty, its repository too", workspace=self.ws.name)
        if held:
            names = ", ".join(path_text(p) for p in held[:5]) + (" …" if len(held) > 5 else "")
            self.warnings.append(f"held back as secrets: {names} (land on purpose with --allow-secret PATH)")
        changes = [
            trees.Change(path, self.base.get(path), entries.get(path))
            for path in sorted(self.base.keys() | entries.keys())
            if self.base.get(path) != entries.get(path)
        ]
        lost = [] if self.whole or meant else [c.path for c in changes if self._is_lost(c)]
        if lost:
            self.warnings.append(f"{self.ws.name}: {_lost_words(lost)}")
        tree = ""
        if self.write:
            edit = trees.Edit(self.objects, self.base_tree)
            for path, _, new in changes:
                edit.set(path, new)
            tree = edit.write() if changes else self.base_tree
            if self.stats != self.old.files or self.base_tree != self.old.tree:
                boot = _UNSURE if lost else self.boot
                stats.save(self.store, self.ws.name, Stats(at, self.base_tree, self.base, self.stats, boot))
        return Captured(tree, self.base_tree, entries, changes, self.sizes, self.seen, held, self.warnings,
                        self.hidden, lost)  # fmt: skip

    def _is_lost(self, change: trees.Change) -> bool:
        """Says whether a file of the base is gone, or is what a loss of power leaves of it."""
        path, old, new = change
        if old is None or old[0] == trees.GITLINK or path in self.hidden:
            return False
        if new is None:
            return True
        was = self.objects.read(old[1].hex()) if new[0] in (trees.FILE, trees.EXEC) else None
        return was is not None and is_torn(self.files.read(path) or b"", was)

    def _may_land(self, path: bytes, held: list[bytes]) -> bool:
        """Says whether a new path may be taken; not even the bytes of what looks like a secret are read."""
        try:
            check_path(path)
        except InvalidError as error:
            self.warnings.append(f"left out: {error.message}")
            return False
        if path in self.allow or not is_secret(path):
            return True
        if self.files.stat(path) is not None:
            held.append(path)
        return False

    def _lists(self) -> tuple[dict[bytes, Staged] | None, set[bytes], set[bytes]]:
        """Gives (the agent's index or None, paths git tracks, other paths that no rule ignores)."""
        foreign.copy_ignores(self.store, self.ws, self.files)
        if foreign.index_is_ours(self.store, self.ws, self.files):
            # nobody ran git here since we wrote the index, so it holds the base
            staged, index = None, None
        else:
            staged, index = foreign.read_index(self.store, self.ws, self.files)
            if staged is None:
                self.warnings.append("the workspace's own index can't be read, so its tree alone was taken")
        # a path that the agent took out of its index alone is still on disk, and is told by the second list
        tracked = set(staged) if staged is not None else set(self.base)
        done = state.private_git(
            self.store, self.ws, "ls-files", "-o", "--exclude-standard", "-z", index=index, timeout=600
        )
        if done.code:
            raise git_error("ls-files", done)
        others = set()
        for path in done.out.split(b"\0")[:-1]:
            if not path.endswith(b"/"):
                others.add(path)
            elif self.base.get(path[:-1], (b"",))[0] == trees.GITLINK:
                others.add(path[:-1])
            else:
                self.warnings.append(f"not followed: {path_text(path[:-1])!r} is a repository of its own")
        return staged, tracked, others

    def _entry(self, path: bytes, staged: Staged | None, known_alone: bool) -> Entry | None:
        base = self.base.get(path)
        link = staged.entry if staged is not None and staged.entry[0] == trees.GITLINK else None
        if link is None and staged is None and base is not None and base[0] == trees.GITLINK:
            link = base
        there = self.files.stat(path)
        if link is not None and (there is None or stat.S_ISDIR(there.st_mode)):
            return link
        if there is None:
            # without a word of the agent's index, what the workspace was made to leave out is not deleted
            left_out = staged.skipped if staged is not None else known_alone and not covers(self.ws.note.sparse, path)
            return self._skipped(path, staged) if left_out else None
        if stat.S_ISREG(there.st_mode) and there.st_size > LARGEST:
            self.warnings.append(f"left as it was: {path_text(path)!r} is larger than {LARGEST >> 30} GiB")
            return base
        self.sizes[path], self.seen[path] = there.st_size, stats.seen_of(there)
        if stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode):
            return self._file(path, there, base)
        if not stat.S_ISDIR(there.st_mode):
            self.warnings.append(f"left out: {path_text(path)!r} is neither a file nor a link")
        return None

    def _file(self, path: bytes, there: os.stat_result, base: Entry | None) -> Entry | None:
        seen = self.seen[path]
        known = self.old.files.get(path)
        if (
            known == seen
            and seen[2] < self.old.at - stats.RACY
            and base is not None
            and self.old.base.get(path) == base
        ):
            self.stats[path] = seen
            return base
        if stat.S_ISLNK(there.st_mode):
            data, mode = self.files.link(path), trees.LINK
        else:
            data = self.files.read(path)
            mode = trees.EXEC if there.st_mode & stat.S_IXUSR else trees.FILE
            if not self.ws.note.filemode:
                mode = base[0] if base is not None and base[0] in (trees.FILE, trees.EXEC) else trees.FILE
        if data is None:
            return None
        raw = bytes.fromhex(object_id("blob", data))
        if base is not None and base[1] == raw:
            if base[0] == mode:
                self.stats[path] = seen
            return mode, raw
        if self.write:
            self.objects.write("blob", data)
        return mode, raw

    def _skipped(self, path: bytes, staged: Staged | None) -> Entry | None:
        """Gives the entry of a path that sparse checkout keeps off the disk: it is not deleted."""
        self.hidden.add(path)
        base = self.base.get(path)
        if staged is None or staged.entry == base:
            return base
        data = foreign.read_object(self.store, self.ws, staged.entry[1].hex(), "blob")
        if data is None:
            return base
        if self.write:
            self.objects.write("blob", data)
        return staged.entry
