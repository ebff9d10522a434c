"""Verification: everything the store claims, held against what is there; changes nothing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

import msgspec

from ropewalk.core.errors import RopewalkError
from ropewalk.core.ids import short_ref
from ropewalk.core.process import git
from ropewalk.store import adoption, maintain, oplog, projection
from ropewalk.store.database import typed
from ropewalk.store.loose import Damaged, inflate
from ropewalk.store.store import Store

FINDINGS_MAX = 200
_OLD_LOCK_SECONDS = 600
_OID = re.compile(r"\b[0-9a-f]{40}\b")


class Finding(msgspec.Struct, frozen=True):
    """Is one thing that is wrong: its kind, the object, ref or file it concerns, and what mends it."""

    kind: str
    object: str
    repair: str


class Verified(msgspec.Struct, frozen=True):
    """Is the outcome of a check: what was looked at, and what is wrong; both lists end after 200 entries."""

    objects_checked: int
    changesets_checked: int
    operations_checked: int
    problems: list[str]
    findings: list[Finding]
    truncated: bool


class _Notes:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.problems: list[str] = []
        self.total = 0

    def add(self, kind: str, what: str, sentence: str, repair: str) -> None:
        self.total += 1
        if self.total <= FINDINGS_MAX:
            self.findings.append(Finding(kind, what, repair))
            self.problems.append(sentence)


def verify(store: Store, *, deep: bool, progress: Callable[[str], None]) -> Verified:
    """Checks database, operation chain, refs and their projections; with `deep` every object and its links too."""
    notes = _Notes()
    _database(store, notes, deep)
    operations = store.last_op()
    broken = oplog.check_chain(store.db)
    if broken is not None:
        notes.add(
            "chain", str(broken), f"the operation log was cut or edited at operation {broken}", "restore a backup"
        )
    _refs(store, notes)
    _files(store, notes)
    changesets = [str(r[0]) for r in store.db.rows("SELECT id FROM changesets")]
    checked = _shallow(store, notes) if not deep else _deep(store, notes, changesets, progress)
    return Verified(
        checked,
        len(changesets) if deep else 0,
        operations,
        notes.problems,
        notes.findings,
        notes.total > FINDINGS_MAX,
    )


def _database(store: Store, notes: _Notes, deep: bool) -> None:
    with typed("check of the database"):
        for (text,) in store.db.rows(f"PRAGMA {'integrity_check' if deep else 'quick_check'}(20)"):
            if text != "ok":
                notes.add("database", "store.db", f"store.db: {text}", "restore a backup")


def _refs(store: Store, notes: _Notes) -> None:
    """Replays the log's moves and holds the refs, and what `repo.git` shows of them, against the outcome."""
    wanted: dict[str, str | None] = {}
    last = 0
    while rows := oplog.after(store.db, last, 1000):
        for op in rows:
            for move in op.body.moves:
                wanted[move.name] = move.new
        last = rows[-1].op
    present = dict(store.refs())
    for name in sorted({n for n, t in wanted.items() if t is not None} | set(present)):
        if wanted.get(name) != present.get(name):
            notes.add("ref", name, f"{short_ref(name)} is not where the operation log left it", "restore a backup")
    shown = projection.read_shown(store)
    late = set(shown.waiting) | {str(r[0]) for r in store.db.rows("SELECT name FROM refs WHERE op > ?", (shown.op,))}
    repo = store.layout.repo
    for name, target in present.items():
        if store.objects.find(target) is None:
            notes.add("missing", target, f"{short_ref(name)} points to {target}, which is missing", "restore a backup")
        found = projection.read_ref(repo, name)
        if found is not None and found != target and not store.gave_ref(name, found):
            what = (
                "goes on from there" if _goes_on(store, target, found) else "does not go on from there, or is not whole"
            )
            words = f"{short_ref(name)} was moved to {found} without ropewalk, which {what}"
            notes.add("foreign_move", name, words, "run `rw repair`")
        elif name not in late and found != target:
            words = f"repo.git shows {short_ref(name)} at {found or 'nothing'} instead of {target}"
            notes.add("projection", name, words, "run `rw repair`")
    for name in shown_refs(repo):
        if name not in present and not name.startswith("refs/ropewalk/") and name not in late:
            notes.add("foreign_ref", name, f"repo.git has {name}, which ropewalk did not make", "run `rw repair`")


def _goes_on(store: Store, old: str, new: str) -> bool:
    try:
        return adoption.goes_on(store, old, new)
    except RopewalkError:
        return False


def shown_refs(repo: str) -> list[str]:
    """Gives the full names of all refs that git sees in a repository."""
    names = set(projection.packed_refs(repo))
    for folder, _, files in os.walk(os.path.join(repo, "refs")):
        names |= {os.path.relpath(os.path.join(folder, f), repo) for f in files if not f.endswith(".lock")}
    return sorted(names)


def stale_locks(store: Store) -> list[str]:
    """Gives lock files of git in `repo.git` older than ten minutes that no process has open (A32)."""
    found = []
    for folder, folders, files in os.walk(store.layout.repo):
        if "objects" in folders:
            folders.remove("objects")
        for name in files:
            path = os.path.join(folder, name)
            if not name.endswith(".lock"):
                continue
            try:
                there = os.lstat(path)
            except FileNotFoundError:
                continue  # its owner was quicker
            if time.time() - there.st_mtime > _OLD_LOCK_SECONDS and not holders(there):
                found.append(path)
    return found


def holders(there: os.stat_result) -> list[int]:
    """Gives the processes that have a file open, by whatever name it was opened, as far as they can be seen."""
    found = []
    for pid in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not pid.isdigit():
            continue
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for fd in names:
            try:
                held = os.stat(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
                found.append(int(pid))
                break
    return found


def _files(store: Store, notes: _Notes) -> None:
    if os.path.exists(os.path.join(store.layout.root, "poisoned")):
        notes.add("poisoned", "store.db-wal", "an earlier sync of the store failed", "run `rw repair`")
    for path in stale_locks(store):
        name = os.path.relpath(path, store.layout.root)
        notes.add("stale_lock", name, f"{name} was left by a git process that is gone", "run `rw repair`")


def _shallow(store: Store, notes: _Notes) -> int:
    """Reads the head commit and root tree of every branch."""
    checked = 0
    for name, target in store.refs("refs/heads/"):
        found = store.objects.find(target)
        if found is not None and found[0] == "commit":
            checked += 1
            tree = store.objects.commit(target).tree
            if store.objects.find(tree) is None:
                notes.add("missing", tree, f"the tree {tree} of {short_ref(name)} is missing", "restore a backup")
    return checked


def _deep(store: Store, notes: _Notes, changesets: list[str], progress: Callable[[str], None]) -> int:
    checked = 0
    last = 0
    journalled: set[str] = set()
    while rows := store.db.rows(
        "SELECT seq, id, packed FROM object_journal WHERE seq > ? ORDER BY seq LIMIT 500", (last,)
    ):
        for seq, oid, packed in rows:
            last = seq
            journalled.add(oid)
            try:
                inflate(packed, oid)
            except Damaged as error:
                notes.add("journal", oid, f"the journal's copy of {oid} is damaged: {error}", "run `rw repair`")
    store.expose()
    loose = store.objects.loose.ids()
    for number, oid in enumerate(loose):
        checked += 1
        if number % 5000 == 4999:
            progress(f"verify: {number + 1} of {len(loose)} loose objects")
        try:
            store.objects.loose.read(oid)
        except Damaged as error:
            cure = "run `rw repair`" if oid in journalled else "restore a backup"
            notes.add("damaged", oid, f"the object {oid} is damaged: {error}", cure)
    for name in maintain.packs(store):
        progress(f"verify: pack {name[:12]}")
        checked += _pack(store, notes, name)
    progress("verify: links between objects")
    _links(store, notes, changesets)
    if notes.total:
        # without anything missing it is what a killed gc or import left, and nobody needs it
        for name in maintain.unindexed(store):
            notes.add("pack", name, f"the index of pack {name} is missing", "run `rw repair`")
    return checked


def _pack(store: Store, notes: _Notes, name: str) -> int:
    path = os.path.join(store.layout.repo, "objects", "pack", f"pack-{name}")
    done = git(store.layout.repo, "verify-pack", "-v", f"{path}.idx", ok=range(256), timeout=7200)
    lines = done.out.decode("ascii", "replace").splitlines()
    if done.code:
        words = done.err.decode("utf-8", "replace")
        for oid in sorted(set(_OID.findall(words)) - {name}) or [name]:
            notes.add("pack", oid, f"pack {name}: {words.strip().splitlines()[0] if words.strip() else 'damaged'}",
                      "restore a backup")  # fmt: skip
    return sum(1 for line in lines if _OID.match(line))


def _links(store: Store, notes: _Notes, changesets: list[str]) -> None:
    """Walks everything that refs and changesets reach; git names what is missing."""
    heads = sorted({*changesets, *(t for _, t in store.refs())})
    known = [h for h, found in zip(heads, store.objects.read_many(heads), strict=True) if found is not None]
    for head in set(heads) - set(known):
        notes.add("missing", head, f"the changeset {head} is missing", "restore a backup")
    if not known:
        return
    done = store.git(
        "rev-list", "--objects", "--missing=print", "--stdin",
        stdin="".join(f"{h}\n" for h in known).encode("ascii"), ok=range(256), timeout=7200,
    )  # fmt: skip
    for line in done.out.decode("utf-8", "replace").splitlines():
        if line.startswith("?"):
            notes.add("missing", line[1:41], f"the object {line[1:41]} is missing", "restore a backup")
    if done.code:
        words = done.err.decode("utf-8", "replace").strip()
        found = _OID.search(words)
        notes.add("links", found[0] if found else "", words[:300] or "git rev-list failed", "restore a backup")
