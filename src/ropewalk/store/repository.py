"""What is in `repo.git` besides objects and refs: checked against what it must be, and made anew.

Settings, HEAD and the hook are fixed or have a second copy in the database. Indexes of packs, git's commit-graph and
the like are derived from objects: a damaged one is removed or rebuilt, and never trusted over the objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from hashlib import sha1
from typing import TYPE_CHECKING, NamedTuple

from ropewalk.core.durable import sync, write_all
from ropewalk.core.ids import HEX40
from ropewalk.core.process import Done, git, git_env, git_program, run
from ropewalk.store import packs, projection
from ropewalk.store.layout import HOOKS, SETTINGS

if TYPE_CHECKING:
    from ropewalk.store.store import Store

_ENDS = (".idx", ".rev", ".bitmap")


class Flaw(NamedTuple):
    """Is one file that is not as it must be: kind, name in the store, what is wrong, and what mends it.

    `mend` gives what it did; None when only a second copy of the objects helps.
    """

    kind: str
    name: str
    words: str
    mend: Callable[[], str] | None


def flaws(store: Store, *, deep: bool) -> list[Flaw]:
    """Gives everything that is wrong; the settings come first, because git needs them for all else."""
    found = [*_config(store), *_head(store), *_hook(store), *_packed_refs(store), *_packs(store, deep)]
    return found + derived(store, deep=False)


def heal(store: Store) -> list[str]:
    """Mends what a git child stumbles over and what has a second copy; gives what it did.

    Lasting packs and their indexes are left to a repair, which takes more time.
    """
    found = flaws(store, deep=False)
    done = [flaw.mend() for flaw in found if flaw.kind in ("config", "head", "packed_refs") and flaw.mend is not None]
    for flaw in found:
        if flaw.kind == "derived":
            os.unlink(os.path.join(store.layout.root, flaw.name))
            done.append(f"{flaw.name}, which was damaged, was removed; `rw derive run` makes it anew")
    hidden = unseen(store)
    if hidden or any(flaw.name.startswith(packs.PREFIX) for flaw in found):
        projection.show_again(store)
        done.append("the journal's objects are shown in repo.git anew")
    return done


def unseen(store: Store) -> list[str]:
    """Gives the ids of the journal that were shown in `repo.git` and are not there any more."""
    top = projection.read_shown(store).seq
    folder = os.path.join(store.layout.repo, "objects", "pack")
    there: set[str] | None = None
    found = []
    last = 0
    while rows := store.db.rows("SELECT seq, id FROM object_journal WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT 5000",
                                (last, top)):  # fmt: skip
        for seq, oid in rows:
            last = seq
            if os.path.exists(store.objects.loose.path(oid)):
                continue
            if there is None:
                there = set()
                for name in os.listdir(folder):
                    pack = os.path.join(folder, f"{name[:-4]}.pack")
                    if name.endswith(".idx") and os.path.exists(pack):
                        there |= indexed(store.layout.repo, os.path.join(folder, name))
            if oid not in there:
                found.append(oid)
    return found


def indexed(repo: str, path: str) -> set[str]:
    """Gives the ids that the index of a pack names; none when it is damaged."""
    data = read(path)
    if data is None:
        return set()
    done = git(repo, "show-index", stdin=data, ok=range(256), timeout=600)
    return {row.split()[1] for row in done.out.decode("ascii", "replace").splitlines()} if done.code == 0 else set()


def keep(store_root: str, path: str) -> str:
    """Moves a damaged file into the store's folder `damaged`, where nothing looks for it, and gives its name there."""
    folder = os.path.join(store_root, "damaged")
    os.makedirs(folder, exist_ok=True)
    number = 0
    while os.path.lexists(there := os.path.join(folder, f"{os.path.basename(path)}.{number}")):
        number += 1
    os.rename(path, there)
    sync(folder)
    sync(os.path.dirname(path))
    return os.path.relpath(there, store_root)


def replace(path: str, data: bytes, mode: int = 0o644) -> None:
    """Writes a file whole or not at all, synced."""
    fd = os.open(f"{path}.rw-new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data)
        os.fchmod(fd, mode)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(f"{path}.rw-new", path)
    sync(os.path.dirname(path))


def read(path: str) -> bytes | None:
    """Gives a file's bytes, None when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def sealed(path: str) -> bool:
    """Says whether a file of git's ends with the hash of what is before."""
    total, size = sha1(usedforsecurity=False), os.path.getsize(path) - 20
    if size < 0:
        return False
    with open(path, "rb") as file:
        while size:
            part = file.read(min(size, 1 << 20))
            if not part:
                return False
            total.update(part)
            size -= len(part)
        return file.read() == total.digest()


def _config(store: Store) -> list[Flaw]:
    path = os.path.join(store.layout.repo, "config")
    done = _settings(path, "--list", "-z")
    there = {}
    for row in done.out.split(b"\0"):
        key, _, value = row.decode("utf-8", "replace").partition("\n")
        there[key.lower()] = value
    wrong = [key for key, value in SETTINGS.items() if there.get(key.lower()) != value]
    if not wrong:
        return []
    name = "repo.git/config"
    words = f"{name} can't be read" if done.code else f"{name} does not say {wrong[0]} = {SETTINGS[wrong[0]]}"

    def mend() -> str:
        kept = ""
        if done.code and os.path.exists(path):
            kept = f", the old one kept as {keep(store.layout.root, path)}"
        for key, value in SETTINGS.items():
            _settings(path, "--replace-all", key, value)
        sync(path)
        return f"{name} written anew{kept}"

    return [Flaw("config", name, words, mend)]


def _settings(path: str, *args: str) -> Done:
    """Runs `git config` on a file, away from the repository whose settings may keep git from starting."""
    return run([git_program(), "config", "--file", path, *args], env=git_env(), cwd="/", timeout=30)


def _head(store: Store) -> list[Flaw]:
    path = os.path.join(store.layout.repo, "HEAD")
    text = (read(path) or b"").decode("utf-8", "replace").strip()
    branch = text[5:] if text.startswith("ref: refs/heads/") else None
    known = store.db.meta("branch")
    known = f"refs/heads/{known}" if known else None
    if branch is not None and (store.ref(branch) is not None or known in (None, branch)):
        return []
    names = [name for name, _ in store.refs("refs/heads/")]
    if known is None:
        known = next((n for n in ("refs/heads/main", "refs/heads/master", *names) if n in names), "refs/heads/main")

    def mend() -> str:
        replace(path, f"ref: {known}\n".encode())
        return f"repo.git/HEAD names {known} again"

    words = f"repo.git/HEAD names {branch}, which does not exist" if branch else "repo.git/HEAD names no branch"
    return [Flaw("head", "repo.git/HEAD", words, mend)]


def _hook(store: Store) -> list[Flaw]:
    found = []
    for hook, text in HOOKS.items():
        name = f"repo.git/hooks/{hook}"
        path = os.path.join(store.layout.root, name)
        if read(path) != text.encode() or not os.access(path, os.X_OK):
            words = f"{name}, by which git keeps to the store's rules, is not as it was made"
            found.append(Flaw("hook", name, words, partial(_write_hook, store, name, path, text)))
    return found


def _write_hook(store: Store, name: str, path: str, text: str) -> str:
    kept = f", the old one kept as {keep(store.layout.root, path)}" if os.path.exists(path) else ""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    replace(path, text.encode(), 0o755)
    return f"{name} written anew{kept}"


def _packed_refs(store: Store) -> list[Flaw]:
    path = os.path.join(store.layout.repo, "packed-refs")
    data = read(path)
    if data is None:
        return []
    good = []
    lines = data.split(b"\n")
    for line in lines[:-1]:
        oid, _, name = line.lstrip(b"^").partition(b" ")
        whole = bool(HEX40.match(oid.decode("ascii", "replace")))
        if line.startswith(b"# pack-refs") or (whole and (line.startswith(b"^") or name.startswith(b"refs/"))):
            good.append(line + b"\n")
    if b"".join(good) == data:
        return []

    def mend() -> str:
        kept = keep(store.layout.root, path)
        replace(path, b"".join(line for line in good if not line.startswith(b"#")))
        return f"repo.git/packed-refs written anew, the old one kept as {kept}"

    return [Flaw("packed_refs", "repo.git/packed-refs", "repo.git/packed-refs can't be read by git", mend)]


def _packs(store: Store, deep: bool) -> list[Flaw]:
    """Holds packs against their indexes: a lasting one's damaged index is made anew, ours go: the journal has all."""
    folder = os.path.join(store.layout.repo, "objects", "pack")
    names = sorted(os.listdir(folder))
    found = []
    for name in names:
        stem, end = os.path.splitext(name)
        path = os.path.join(folder, name)
        if end == ".idx" and not name.startswith("tmp"):
            pack = os.path.join(folder, f"{stem}.pack")
            if not sealed(path):
                found.append(_index(store, stem, f"{name} is damaged"))
            elif not os.path.exists(pack):
                found.append(_pack(store, stem, f"{stem}.pack is missing"))
            elif not _fits(pack, path):
                # an index of another time is as good as none; which of the two is wrong the rebuild tells
                whole = sealed(pack)
                found.append(_index(store, stem, f"{name} is not of its pack") if whole
                             else _pack(store, stem, f"{stem}.pack is damaged"))  # fmt: skip
            elif (deep or stem.startswith(packs.PREFIX)) and not sealed(pack):
                found.append(_pack(store, stem, f"{stem}.pack is damaged"))
        elif end in (".rev", ".bitmap") and not sealed(path):
            found.append(_gone(store, f"repo.git/objects/pack/{name}"))
    return found


def _fits(pack: str, index: str) -> bool:
    """Says whether an index was made for a pack: it holds the pack's own hash."""
    try:
        with open(pack, "rb") as one, open(index, "rb") as two:
            head = one.read(12)
            one.seek(-20, os.SEEK_END)
            two.seek(-40, os.SEEK_END)
            return head[:4] == b"PACK" and one.read(20) == two.read(20)
    except OSError:
        return False


def _pack(store: Store, stem: str, words: str) -> Flaw:
    if not stem.startswith(packs.PREFIX):
        return Flaw("pack", stem, words, None)

    def mend() -> str:
        packs.remove(os.path.join(store.layout.repo, "objects", "pack"), [stem[len(packs.PREFIX) :]])
        return f"{stem}, whose objects are in the journal, was removed"

    return Flaw("pack", stem, words, mend)


def _index(store: Store, stem: str, words: str) -> Flaw:
    if stem.startswith(packs.PREFIX):
        return _pack(store, stem, words)
    path = os.path.join(store.layout.repo, "objects", "pack", stem)

    def mend() -> str:
        return f"the index of {stem} was made anew" if build_index(store, path) else f"{stem} can't be indexed"

    return Flaw("index", f"{stem}.idx", words, mend)


def build_index(store: Store, path: str) -> bool:
    """Makes the index of a pack anew (path without its end); gives False when the pack is damaged itself."""
    done = git(store.layout.repo, "index-pack", "-o", f"{path}.new-idx", f"{path}.pack", ok=range(256), timeout=7200)
    if done.code:
        return False
    os.rename(f"{path}.new-idx", f"{path}.idx")
    try:
        os.unlink(f"{path}.rev")
    except FileNotFoundError:
        pass
    sync(os.path.dirname(path))
    return True


def derived(store: Store, *, deep: bool) -> list[Flaw]:
    """Checks git's multi-pack-index and commit-graph; `deep` holds them against the objects, which must be whole."""
    objects = os.path.join(store.layout.repo, "objects")
    found = []
    names = ["pack/multi-pack-index", "info/commit-graph"]
    graphs = os.path.join(objects, "info", "commit-graphs")
    if os.path.isdir(graphs):
        names += [f"info/commit-graphs/{name}" for name in sorted(os.listdir(graphs)) if name.endswith(".graph")]
    for name in names:
        path = os.path.join(objects, name)
        if not os.path.exists(path):
            continue
        verb = "multi-pack-index" if name.endswith("index") else "commit-graph"
        if not sealed(path) or (deep and git(store.layout.repo, verb, "verify", ok=range(256), timeout=7200).code):
            found.append(_gone(store, f"repo.git/objects/{name}"))
    return found


def _gone(store: Store, name: str) -> Flaw:
    def mend() -> str:
        os.unlink(os.path.join(store.layout.root, name))
        if name.endswith("commit-graph"):
            git(store.layout.repo, "commit-graph", "write", "--reachable", ok=range(256), timeout=3600)
            return f"{name} made anew"
        return f"{name}, which git can do without, was removed"

    return Flaw("derived", name, f"{name}, which is derived from the objects, is damaged", mend)
