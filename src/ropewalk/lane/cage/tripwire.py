"""The tripwire behind lanes that no cage holds, or only one of level `files`: the user's checkout, before and after.

Recorded are the files that git tracks and those it would show as new, the index, HEAD, all refs, hooks, configuration,
the list of worktrees, and files named as canaries; what git ignores is not. A difference is put back from the copies
that were made, or from the repository's objects; what stands in its place is set aside first, never thrown away, for
it may be the user's own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import RopewalkError, os_error
from ropewalk.core.ids import path_bytes, path_text
from ropewalk.core.process import ChildTimeout, git_env, git_program, run
from ropewalk.store.loose import object_id
from ropewalk.workspace.files import Files

MOST = 256 << 20
"""Is how many bytes of copies are kept of one checkout."""

LARGE = 64 << 20
_FILES = 500_000
_SECONDS = 300.0
# what git keeps in its folder besides objects and logs, and besides what any command leaves there by the way
_FOLDERS = (b"hooks", b"refs", b"info", b"worktrees")
_PASSING = (b"COMMIT_EDITMSG", b"FETCH_HEAD", b"ORIG_HEAD", b"gc.log", b"gc.pid", b"index")

Kept = Literal["copy", "object", "none"]
Area = Literal["tree", "git", "canary"]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one file as it was: `mode` and `id` (git's id of its bytes, or of what a link says), and where a copy is.

    `sign` is its stat data, so that what nobody touched is not read again. A canary that was not there has mode 0.
    """

    mode: int
    size: int = 0
    id: str = ""
    sign: tuple[int, int, int] = (0, 0, 0)
    kept: Kept = "none"
    owner: tuple[int, int] = (0, 0)


class Place(msgspec.Struct, frozen=True):
    """Is one folder that is watched, with what was in it by path."""

    area: Area
    root: str
    entries: dict[str, Entry]


class Snapshot(msgspec.Struct, frozen=True):
    """Is a checkout as it was: its places, its index and its refs by what they say, and the folder of copies."""

    folder: str
    git_dir: str
    common: str
    places: list[Place]
    index: str
    refs: str
    copies: str
    at: int


class Difference(msgspec.Struct, frozen=True):
    """Is one thing that is not as it was."""

    area: Area
    root: str
    path: str
    how: Literal["changed", "made", "gone"]


class Restored(msgspec.Struct, frozen=True):
    """Is what was put back, what could not be and why, and the folder with what stood in its place."""

    put_back: list[Difference]
    left: list[tuple[Difference, str]]
    aside: str


def record(folder: str, copies: str, canaries: Sequence[str] = (), most: int = MOST) -> Snapshot:
    """Records a checkout; `copies` is a folder of ours for what its own objects could not give back."""
    try:
        os.makedirs(copies, mode=0o700, exist_ok=True)
        git_dir, common = _git_dirs(folder)
        budget = _Budget(copies, most)
        objects = _index_ids(folder, git_dir) if git_dir else {}
        places = [Place("tree", folder, _look(folder, _tree(folder, git_dir, ()), {}, budget, objects))]
        places += [Place("git", root, _look(root, _git_files(root), {}, budget)) for root in _roots(git_dir, common)]
        for canary in canaries:
            root, name = os.path.split(os.path.abspath(canary))
            places.append(Place("canary", root, _look(root, {os.fsencode(name)}, {}, budget)))
        index, refs = _index(folder, git_dir), _refs(folder, git_dir)
        return Snapshot(folder, git_dir, common, places, index, refs, copies, clock.now())
    except OSError as error:
        raise os_error(error, "recording the checkout") from None


def compare(was: Snapshot) -> list[Difference]:
    """Gives what is not as it was, by place and path."""
    found: list[Difference] = []
    same_refs = _refs(was.folder, was.git_dir) == was.refs
    for place in was.places:
        known = {path_bytes(name) for name in place.entries}
        if place.area == "tree":
            names = known | _tree(place.root, was.git_dir, known)
        elif place.area == "git":
            names = known | _git_files(place.root)
        else:
            names = known
        now = _look(place.root, names, place.entries, None)
        for name in sorted(now):
            before, after = place.entries.get(name, Entry(0)), now[name]
            if (before.mode, before.id, before.owner) == (after.mode, after.id, after.owner) or (
                place.area == "git" and (_is_passing(name) or (same_refs and _is_ref(name)))
            ):
                continue
            how: Literal["changed", "made", "gone"] = (
                "made" if not before.mode else "gone" if not after.mode else "changed"
            )
            found.append(Difference(place.area, place.root, name, how))
    if was.git_dir and _index(was.folder, was.git_dir) != was.index:
        found.append(Difference("git", was.git_dir, "index", "changed"))
    return found


def restore(was: Snapshot, differences: Iterable[Difference]) -> Restored:
    """Puts back what differs; names what could not be, and sets aside what stands there now."""
    aside = os.path.join(was.copies, f"aside-{os.urandom(4).hex()}")
    back: list[Difference] = []
    left: list[tuple[Difference, str]] = []
    entries = {(place.root, name): entry for place in was.places for name, entry in place.entries.items()}
    # refs and configuration last: what is read of objects is read as the repository is now, by their ids
    for one in sorted(differences, key=lambda one: (one.area == "git", one.root, one.path)):
        try:
            why = _put_back(was, one, entries.get((one.root, one.path), Entry(0)), aside)
        except (RopewalkError, OSError) as error:
            why = str(error)
        if why:
            left.append((one, why))
        else:
            back.append(one)
    return Restored(back, left, aside if os.path.isdir(aside) else "")


def _put_back(was: Snapshot, one: Difference, entry: Entry, aside: str) -> str:
    """Puts one path back; gives why it could not be."""
    path = path_bytes(one.path)
    data = b""
    if stat.S_ISREG(entry.mode) or stat.S_ISLNK(entry.mode):
        kept = _kept(was, entry)
        if kept is None:
            return "no copy of it was kept" if entry.kept == "none" else "its copy is gone"
        data = kept
    elif entry.mode:
        return "it is neither a file nor a link"
    with Files(one.root) as files:
        if not _set_aside(files, path, os.path.join(aside, one.area)):
            return "what stands there now could not be set aside"
        if not entry.mode:
            files.remove(path)
        elif stat.S_ISLNK(entry.mode):
            files.put_link(path, data)
            _own(files, path, entry)
        else:
            files.put(path, data, mode=0o600)
            _own(files, path, entry)
    return ""


def _own(files: Files, path: bytes, entry: Entry) -> None:
    """Gives a file that was put back its owner and its mode."""
    above, _, name = path.rpartition(b"/")
    fd = files.folder(above)
    there = files.stat(path)
    if fd is None or there is None:
        return
    if (there.st_uid, there.st_gid) != entry.owner:
        os.chown(name, *entry.owner, dir_fd=fd, follow_symlinks=False)
    if stat.S_ISREG(entry.mode):
        made = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            os.fchmod(made, stat.S_IMODE(entry.mode))
        finally:
            os.close(made)


def _set_aside(files: Files, path: bytes, folder: str) -> bool:
    """Keeps what is at a path now; says whether it may be replaced."""
    there = files.stat(path)
    if there is None:
        return True
    if stat.S_ISREG(there.st_mode):
        data = files.read(path, LARGE)
    elif stat.S_ISLNK(there.st_mode):
        data = files.link(path)
    else:
        return not stat.S_ISDIR(there.st_mode)
    if data is None:
        return False
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _write(os.path.join(folder, os.fsdecode(path.replace(b"/", b"__")[:200]) + f".{os.urandom(3).hex()}"), data)
    return True


def _kept(was: Snapshot, entry: Entry) -> bytes | None:
    data: bytes | None = None
    if entry.kept == "copy":
        try:
            with open(os.path.join(was.copies, entry.id), "rb") as file:
                data = file.read()
        except OSError:
            return None
    elif entry.kept == "object":
        done = run([git_program(), f"--git-dir={was.git_dir}", "cat-file", "blob", entry.id], env=git_env(), timeout=60)
        data = done.out if done.code == 0 else None
    return data if data is not None and object_id("blob", data) == entry.id else None


class _Budget:
    """Is the room for copies: what does not fit is named by its entry."""

    def __init__(self, folder: str, left: int) -> None:
        self.folder, self.left = folder, left

    def keep(self, oid: str, data: bytes) -> Kept:
        path = os.path.join(self.folder, oid)
        if not os.path.exists(path):
            if len(data) > self.left:
                return "none"
            self.left -= len(data)
            _write(path, data)
        return "copy"


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)


def _look(
    root: str,
    names: set[bytes],
    known: dict[str, Entry],
    budget: _Budget | None,
    objects: dict[bytes, str] | None = None,
) -> dict[str, Entry]:
    """Gives the entries of paths below a root; what is not there has mode 0."""
    found: dict[str, Entry] = {}
    with Files(root) as files:
        for name in sorted(names):
            text, there = path_text(name), files.stat(name)
            if there is None:
                found[text] = Entry(0)
                continue
            sign, owner = (there.st_ino, there.st_mtime_ns, there.st_ctime_ns), (there.st_uid, there.st_gid)
            before = known.get(text)
            if before is not None and (before.sign, before.size, before.mode) == (sign, there.st_size, there.st_mode):
                found[text] = before
                continue
            data = files.link(name) if stat.S_ISLNK(there.st_mode) else files.read(name, LARGE)
            if data is None:
                # a folder's contents count, not its times; what is too large to read counts by its stat data
                oid = "" if stat.S_ISDIR(there.st_mode) else f"{there.st_size}-{sign}"
                found[text] = Entry(there.st_mode, there.st_size, oid, sign, owner=owner)
                continue
            oid, kept = object_id("blob", data), "none"
            if objects is not None and objects.get(name) == oid:
                kept = "object"
            elif budget is not None:
                kept = budget.keep(oid, data)
            found[text] = Entry(there.st_mode, there.st_size, oid, sign, kept, owner)  # type: ignore[arg-type]
    return found


def _git(folder: str, git_dir: str, *words: str) -> bytes | None:
    """Gives what git prints of a checkout; None where it can't."""
    try:
        done = run(
            [git_program(), f"--git-dir={git_dir}", *words], env=git_env({"GIT_WORK_TREE": folder}), cwd=folder,
            timeout=_SECONDS,
        )  # fmt: skip
    except ChildTimeout:
        return None
    return done.out if done.code == 0 else None


def _git_dirs(folder: str) -> tuple[str, str]:
    """Gives the git directory of a checkout and the one it shares with other worktrees; empty without any."""
    words = [git_program(), "rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir"]
    done = run(words, env=git_env({"GIT_CEILING_DIRECTORIES": os.path.dirname(folder)}), cwd=folder, timeout=60)
    lines = done.text().split("\n")
    return (lines[0], lines[1]) if done.code == 0 and len(lines) == 2 else ("", "")


def _roots(git_dir: str, common: str) -> list[str]:
    return [] if not git_dir else [git_dir] if git_dir == common else [git_dir, common]


def _tree(folder: str, git_dir: str, known: Iterable[bytes]) -> set[bytes]:
    """Gives the paths that git tracks in a checkout or shows as new; without git all."""
    if git_dir:
        said = _git(folder, git_dir, "ls-files", "-z", "-c", "-o", "--exclude-standard")
        return set(known) if said is None else {name for name in said.split(b"\0") if name and name[-1:] != b"/"}
    found: set[bytes] = set()
    root = os.fsencode(folder)
    for place, _, names in os.walk(root):
        found.update(os.path.relpath(os.path.join(place, name), root) for name in names)
        if len(found) > _FILES:
            break
    return found


def _index_ids(folder: str, git_dir: str) -> dict[bytes, str]:
    """Gives the id that the index has for each path: what equals it can be read from the repository again."""
    found = {}
    for row in (_git(folder, git_dir, "ls-files", "-s", "-z") or b"").split(b"\0")[:-1]:
        head, _, path = row.partition(b"\t")
        found[path] = head.split(b" ")[1].decode("ascii")
    return found


def _index(folder: str, git_dir: str) -> str:
    """Gives the index by what it says: a command that only looks writes it anew."""
    return object_id("blob", _git(folder, git_dir, "ls-files", "-s", "-v", "-z") or b"") if git_dir else ""


def _git_files(root: str) -> set[bytes]:
    """Gives the files of a git directory that say what the repository is and does."""
    base = os.fsencode(root)
    found: set[bytes] = {b"index"}
    with os.scandir(base) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False) and not entry.name.endswith(b".lock"):
                found.add(entry.name)
    for folder in _FOLDERS:
        for place, _, names in os.walk(os.path.join(base, folder)):
            relative = os.path.relpath(place, base)
            if folder == b"worktrees" and relative.count(b"/") > 1:
                continue
            found.update(os.path.join(relative, name) for name in names if not name.endswith(b".lock"))
    return found - set(_PASSING[:-1])


def _refs(folder: str, git_dir: str) -> str:
    """Gives HEAD and all refs by what they say: git may pack them at any time."""
    if not git_dir:
        return ""
    said = _git(folder, git_dir, "for-each-ref", "--format=%(refname) %(objectname) %(symref)")
    return object_id("blob", said or b"")


def _is_ref(name: str) -> bool:
    return name.startswith("refs/") or name == "packed-refs"


def _is_passing(name: str) -> bool:
    """Says whether a file is the index, which is compared by what it says, or what commands leave by the way."""
    return name.rpartition("/")[2].encode() in _PASSING and (name.startswith("worktrees/") or "/" not in name)
