"""The tripwire behind lanes that no cage holds, or only one of level `files`: the user's checkout, before and after.

Recorded are the files that git tracks and those it would show as new, the index, HEAD, all refs, hooks, configuration,
the list of worktrees, and files named as canaries; what git ignores and what is in submodules is not. A difference is
put back from the copies that were made, or from the repository's objects; what stands in its place is set aside first,
never thrown away, for it may be the user's own.

A file whose inode, size and times are as they were is not read again, neither for a comparison nor for a further
record that begins from an earlier one. What git's own index says of a file is believed when a record is made, and
never when it is compared: by then a lane may have written it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

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
_FOLDERS = (b"hooks", b"info", b"worktrees")
_PASSING = (b"COMMIT_EDITMSG", b"FETCH_HEAD", b"ORIG_HEAD", b"gc.log", b"gc.pid", b"index")
# git's own upkeep writes the first two, and the rest shows what our own runs made
_UPKEEP = (b"packed-refs", b"info/refs")
SHOWN = tuple(f"refs/heads/{prefix}/" for prefix in ("ropewalk", "ropewalk-runs", "rw", "rw-runs"))
"""Is where runs show their results in the user's repository: branches made there are ours."""

Kept = Literal["copy", "object", "none"]
Area = Literal["tree", "git", "ref", "canary"]
How = Literal["changed", "mode", "made", "gone"]


class Entry(NamedTuple):
    """Is one file as it was: `id` is git's id of its bytes, or of what a link says, and `kept` says where a copy is.

    `sign` is of its stat data, so that what nobody touched is not read again. What is not there has mode 0.
    """

    mode: int
    size: int = 0
    sign: tuple[int, int, int] = (0, 0, 0)
    owner: tuple[int, int] = (0, 0)
    id: str = ""
    kept: Kept = "none"


_ABSENT = Entry(0)


class Place(msgspec.Struct, frozen=True):
    """Is one folder that is watched, with what was in it by path."""

    area: Area
    root: str
    entries: dict[str, Entry]


class Snapshot(msgspec.Struct, frozen=True):
    """Is a checkout as it was: its places, its refs, its index by what it says, and the folder of copies.

    What lies below a path of `without` is not looked at.
    """

    folder: str
    git_dir: str
    common: str
    places: list[Place]
    index: str
    refs: dict[str, str]
    copies: str
    at: int
    without: tuple[str, ...] = ()


class Difference(msgspec.Struct, frozen=True):
    """Is one thing that is not as it was; `now` tells what it is instead, by a hash or an id.

    `mode` is a change of mode or owner alone, which Landlock does not hold back.
    """

    area: Area
    root: str
    path: str
    how: How
    now: str = ""


class Restored(msgspec.Struct, frozen=True):
    """Is what was put back, what could not be and why, and the folder with what stood in its place."""

    put_back: list[Difference]
    left: list[tuple[Difference, str]]
    aside: str


def record(
    folder: str, copies: str, canaries: Sequence[str] = (), most: int = MOST, *, last: Snapshot | None = None,
    without: Sequence[str] = (),
) -> Snapshot:  # fmt: skip
    """Records a checkout; `copies` is a folder of ours for what its own objects could not give back.

    What is as an earlier record of the same checkout has it (`last`) is not read again.
    """
    known: dict[str, dict[str, Entry]] = {}
    if last is not None and last.folder == folder:
        known = {place.root: place.entries for place in last.places}
    try:
        os.makedirs(copies, mode=0o700, exist_ok=True)
        git_dir, common = _git_dirs(folder)
        budget = _Budget(copies, most)
        listed = _listed(folder, git_dir)
        names = _tree(folder, git_dir, listed, without)
        tree = known.get(folder, {})
        if git_dir:
            tree = _clean(folder, git_dir, listed, tree) | tree
        places = [Place("tree", folder, _look(folder, names, tree, budget, listed.ids))]
        for root in _roots(git_dir, common):
            places.append(Place("git", root, _look(root, _git_files(root), known.get(root, {}), budget)))
        for canary in canaries:
            root, name = os.path.split(os.path.abspath(canary))
            places.append(Place("canary", root, _look(root, {os.fsencode(name)}, {}, budget)))
        refs = _refs(folder, git_dir)
        return Snapshot(folder, git_dir, common, places, listed.says, refs, copies, clock.now(), tuple(without))
    except OSError as error:
        raise os_error(error, "recording the checkout") from None


def compare(was: Snapshot) -> list[Difference]:
    """Gives what is not as it was, by place and path."""
    found: list[Difference] = []
    listed = _listed(was.folder, was.git_dir)
    for place in was.places:
        names = {path_bytes(name) for name in place.entries}
        if place.area == "tree":
            names |= _tree(place.root, was.git_dir, listed, was.without)
        elif place.area == "git":
            names |= _git_files(place.root)
        now = _look(place.root, names, place.entries, None)
        for name, after in sorted(now.items()):
            before = place.entries.get(name, _ABSENT)
            if after is before or (before.mode, before.id, before.owner) == (after.mode, after.id, after.owner):
                continue
            if place.area == "git" and _is_passing(name):
                continue
            how: How = "changed" if after.id != before.id else "mode"
            how = "made" if not before.mode else "gone" if not after.mode else how
            found.append(Difference(place.area, place.root, name, how, f"{after.mode:o} {after.id}"))
    refs = _refs(was.folder, was.git_dir)
    for name in sorted(was.refs.keys() | refs.keys()):
        old, new = was.refs.get(name, ""), refs.get(name, "")
        if old != new and not (not old and name.startswith(SHOWN)):
            how = "made" if not old else "gone" if not new else "changed"
            found.append(Difference("ref", was.common, name, how, new))
    if was.git_dir and listed.says != was.index:
        found.append(Difference("git", was.git_dir, "index", "changed", listed.says))
    return found


def restore(was: Snapshot, differences: Iterable[Difference], aside: str = "") -> Restored:
    """Puts back what differs; names what could not be, and sets aside what stands there now, in a folder `aside`."""
    aside = aside or os.path.join(was.copies, f"aside-{os.urandom(4).hex()}")
    back: list[Difference] = []
    left: list[tuple[Difference, str]] = []
    entries = {(place.root, name): entry for place in was.places for name, entry in place.entries.items()}
    # refs and configuration last: what is read of objects is read as the repository is now, by their ids
    for one in sorted(differences, key=lambda one: (one.area in ("git", "ref"), one.root, one.path)):
        try:
            if one.area == "ref":
                why = _put_ref_back(was, one.path, aside)
            else:
                why = _put_back(was, one, entries.get((one.root, one.path), _ABSENT), aside)
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


def _put_ref_back(was: Snapshot, name: str, aside: str) -> str:
    """Puts a ref back to what it said, if it still says what was noted of it beside; gives why it could not be."""
    old, now = was.refs.get(name, ""), _refs(was.folder, was.git_dir).get(name, "")
    if old == now:
        return ""
    if now:
        os.makedirs(aside, mode=0o700, exist_ok=True)
        with open(os.path.join(aside, "refs"), "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{now} {name}\n")
    if old.startswith("ref: "):
        words = ["symbolic-ref", name, old.removeprefix("ref: ")]
    elif now.startswith("ref: "):
        words = ["update-ref", "--no-deref", name, old] if old else ["symbolic-ref", "--delete", name]
    else:
        words = ["update-ref", name, old, now or "0" * len(old)] if old else ["update-ref", "-d", name, now]
    done = run([git_program(), f"--git-dir={was.common}", *words], env=git_env(), timeout=60)
    return "" if done.code == 0 else done.err.decode("utf-8", "replace").strip()[-200:] or "git could not"


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

    def has(self, entry: Entry) -> bool:
        return entry.kept != "copy" or os.path.exists(os.path.join(self.folder, entry.id))

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
    objects: Mapping[bytes, str] = {},
) -> dict[str, Entry]:
    """Gives the entries of paths below a root; what is not there has mode 0. An unchanged one is given as it is known.

    With a budget it makes a record: a copy that is known, but gone, is made anew.
    """
    found: dict[str, Entry] = {}
    left: list[tuple[bytes, str]] = []
    base = os.fsencode(root)
    real: dict[bytes, bool] = {b"": True}
    lstat = os.lstat
    for name in sorted(names):
        text = path_text(name)
        before = known.get(text)
        above = name.rpartition(b"/")[0]
        try:
            if before is not None and before.mode and (above in real or _is_real(base, above, real)):
                there = lstat(base + b"/" + name)
                if before[:4] == _facts(there) and (budget is None or budget.has(before)):
                    found[text] = before
                    continue
        except OSError:
            pass
        left.append((name, text))
    with Files(root) as files:
        for name, text in left:
            found[text] = _entry(files, name, known.get(text), budget, objects.get(name))
    return found


def _is_real(base: bytes, folder: bytes, real: dict[bytes, bool]) -> bool:
    """Says whether no part of a folder's path is a link, and notes it."""
    if folder not in real:
        above = folder.rpartition(b"/")[0]
        try:
            real[folder] = _is_real(base, above, real) and stat.S_ISDIR(os.lstat(base + b"/" + folder).st_mode)
        except OSError:
            real[folder] = False
    return real[folder]


def _entry(files: Files, name: bytes, before: Entry | None, budget: _Budget | None, oid_of: str | None) -> Entry:
    there = files.stat(name)
    if there is None:
        return _ABSENT
    mode, size, sign, owner = _facts(there)
    data = files.link(name) if stat.S_ISLNK(mode) else files.read(name, LARGE)
    if data is None:
        # a folder's contents count, not its times; what is too large to read counts by its stat data
        return Entry(mode, size, sign, owner, "" if stat.S_ISDIR(mode) else f"{size}-{sign}")
    oid = object_id("blob", data)
    kept: Kept = "none"
    if oid_of == oid:
        kept = "object"
    elif budget is not None:
        kept = budget.keep(oid, data)
    return Entry(mode, size, sign, owner, oid, kept)


def _facts(there: os.stat_result) -> tuple[int, int, tuple[int, int, int], tuple[int, int]]:
    sign = (there.st_ino, there.st_mtime_ns, there.st_ctime_ns)
    return there.st_mode, there.st_size, sign, (there.st_uid, there.st_gid)


def _git(folder: str, git_dir: str, *words: str, stdin: bytes | None = None) -> bytes | None:
    """Gives what git prints of a checkout; None where it can't."""
    try:
        done = run(
            [git_program(), f"--git-dir={git_dir}", *words], env=git_env({"GIT_WORK_TREE": folder}), cwd=folder,
            timeout=_SECONDS, stdin=stdin,
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


class _Listed(NamedTuple):
    """Is what the index says: a hash of it, and the id for each path that it has; `plain` are those without a flag."""

    says: str
    ids: dict[bytes, str]
    plain: set[bytes]


def _listed(folder: str, git_dir: str) -> _Listed:
    """Gives the index by what it says: a command that only looks writes it anew."""
    said = (_git(folder, git_dir, "ls-files", "-s", "-v", "-z") or b"") if git_dir else b""
    ids, plain = {}, set()
    for row in said.split(b"\0")[:-1]:
        head, _, path = row.partition(b"\t")
        tag, mode, oid, stage = head.split(b" ")
        if mode == b"160000":
            continue
        ids[path] = oid.decode("ascii")
        if tag == b"H" and stage == b"0":
            plain.add(path)
    return _Listed(object_id("blob", said) if git_dir else "", ids, plain)


def _tree(folder: str, git_dir: str, listed: _Listed, without: Sequence[str]) -> set[bytes]:
    """Gives the paths that git tracks in a checkout or shows as new; without git all."""
    found: set[bytes] = set(listed.ids)
    root = os.fsencode(folder)
    if git_dir:
        said = _git(folder, git_dir, "ls-files", "-z", "-o", "--exclude-standard") or b""
        found.update(name for name in said.split(b"\0") if name and name[-1:] != b"/")
    else:
        for place, _, names in os.walk(root):
            found.update(os.path.relpath(os.path.join(place, name), root) for name in names)
            if len(found) > _FILES:
                break
    below = tuple(os.path.relpath(os.fsencode(one), root) + b"/" for one in without)
    return {name for name in found if not name.startswith(below)} if below else found


def _clean(folder: str, git_dir: str, listed: _Listed, known: Mapping[str, Entry]) -> dict[str, Entry]:
    """Gives the entries of files that are as the index has them, unread.

    One whose size is not its object's is left out: a filter or a change of line ends stands between the two.
    """
    names = sorted(name for name in listed.plain if path_text(name) not in known)
    said = _git(folder, git_dir, "diff-files", "--name-only", "-z") if names else None
    if said is None:
        return {}
    dirty = set(said.split(b"\0"))
    names = [name for name in names if name not in dirty]
    asked = "".join(f"{listed.ids[name]}\n" for name in names).encode("ascii")
    words = ("cat-file", "--batch-check=%(objecttype) %(objectsize)", "--buffer")
    sizes = (_git(folder, git_dir, *words, stdin=asked) or b"").split(b"\n")[:-1]
    found: dict[str, Entry] = {}
    base, real = os.fsencode(folder), {b"": True}
    for name, size in zip(names, sizes, strict=False):
        try:
            if not _is_real(base, name.rpartition(b"/")[0], real):
                continue
            mode, length, sign, owner = _facts(os.lstat(base + b"/" + name))
        except OSError:
            continue
        if size == b"blob %d" % length:
            found[path_text(name)] = Entry(mode, length, sign, owner, listed.ids[name], "object")
    return found


def _git_files(root: str) -> set[bytes]:
    """Gives the files of a git directory that say what the repository is and does."""
    base = os.fsencode(root)
    found: set[bytes] = {b"index"}
    with os.scandir(base) as entries:
        for entry in entries:
            plain = entry.is_file(follow_symlinks=False) or entry.is_symlink()
            if plain and not entry.name.endswith(b".lock"):
                found.add(entry.name)
    for folder in _FOLDERS:
        for place, _, names in os.walk(os.path.join(base, folder)):
            relative = os.path.relpath(place, base)
            if folder == b"worktrees" and relative.count(b"/") > 1:
                continue
            found.update(os.path.join(relative, name) for name in names if not name.endswith(b".lock"))
    return found - {*_PASSING[:-1], *_UPKEEP}


def _refs(folder: str, git_dir: str) -> dict[str, str]:
    """Gives all refs by what they say: git may pack them at any time. HEAD is a file like others."""
    if not git_dir:
        return {}
    found = {}
    said = _git(folder, git_dir, "for-each-ref", "--format=%(refname) %(objectname) %(symref)") or b""
    for line in said.decode("utf-8", "surrogateescape").splitlines():
        name, oid, other = line.split(" ", 2)
        found[name] = f"ref: {other}" if other else oid
    return found


def _is_passing(name: str) -> bool:
    """Says whether a file is the index, which is compared by what it says, or what commands leave by the way."""
    return name.rpartition("/")[2].encode() in _PASSING and (name.startswith("worktrees/") or "/" not in name)
