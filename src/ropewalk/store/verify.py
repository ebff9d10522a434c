"""Verification: everything the store claims, held against what is there; changes nothing.

A finding that an object can't be read says what stands on it: refs, changesets and paths. A part that can't be
checked is a finding itself, so that one damage does not hide the next.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from ropewalk.core.errors import RopewalkError
from ropewalk.core.ids import short_ref
from ropewalk.core.process import git, holders
from ropewalk.store import adoption, identity, maintain, oplog, packs, projection, repository, rows
from ropewalk.store.database import Database, typed
from ropewalk.store.loose import Damaged, inflate, object_id
from ropewalk.store.reach import Hit, Reach
from ropewalk.store.store import Store, lost_words

FINDINGS_MAX = 200
REPAIR = "run `rw repair`"
ROW = "run `rw repair`, which makes anew what follows from the log; restore a backup for the rest"
FROM = "run `rw repair --from PLACE`, a backup, a clone or another store that has it"
_OLD_LOCK_SECONDS = 600
_ROWS = "SELECT seq, id, packed FROM object_journal WHERE seq > ? ORDER BY seq LIMIT 500"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one thing that is wrong: its kind, the object, ref or file it concerns, what mends it, and what it hits.

    `refs` are those that can't be read whole; `changesets` and `paths` name up to 20 that hold the object.
    """

    kind: str
    object: str
    repair: str
    refs: list[str] = []
    changesets: list[str] = []
    paths: list[str] = []


class Verified(msgspec.Struct, frozen=True):
    """Is the outcome of a check: what was looked at, and what is wrong; both lists end after 200 entries."""

    objects_checked: int
    changesets_checked: int
    operations_checked: int
    problems: list[str]
    findings: list[Finding]
    truncated: bool


class Notes:
    """Collects findings, with a sentence for each; the first 200 are kept."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.problems: list[str] = []
        self.total = 0

    def add(self, kind: str, what: str, sentence: str, repair: str, hit: Hit | None = None) -> None:
        """Adds a finding; `hit` is what stands on it."""
        self.total += 1
        if self.total > FINDINGS_MAX:
            return
        hit = hit or Hit()
        self.findings.append(Finding(kind, what, repair, hit.refs, hit.changesets, hit.paths))
        if hit.refs or hit.paths:
            sentence += "; it is part of " + ", ".join([*hit.refs[:5], *hit.paths[:3]])
        self.problems.append(sentence)

    @contextmanager
    def part(self, kind: str, what: str) -> Iterator[None]:
        """Makes an error within a part of the check into a finding, so that the other parts are checked too."""
        try:
            yield
        except RopewalkError as error:
            self.add(kind, what, error.message, error.hint or REPAIR)


def verify(store: Store, *, deep: bool, progress: Callable[[str], None]) -> Verified:
    """Checks database, operation chain, refs and their projections; with `deep` every object and its links too."""
    notes = Notes()
    store.keep_still()
    operations = checked = 0
    usable = True
    changesets: list[str] = []
    with notes.part("database", "store.db"):
        _database(store, notes, deep)
    with notes.part("database", "store.db"):
        operations = store.last_op()
        _log(store, notes)
    with notes.part("database", "store.db"):
        changesets = [str(r[0]) for r in store.db.rows("SELECT id FROM changesets")]
    with notes.part("repository", "repo.git"):
        for flaw in repository.flaws(store, deep=deep):
            notes.add(flaw.kind, flaw.name, flaw.words, REPAIR if flaw.mend else FROM)
        usable = git(store.layout.repo, "rev-parse", "--git-dir", ok=range(256), timeout=60).code == 0
        if not usable:
            notes.add("repository", "repo.git", "git can't open repo.git, so objects were not checked", REPAIR)
    with notes.part("refs", "repo.git"):
        _refs(store, notes, usable)
    with notes.part("files", store.layout.root):
        _files(store, notes)
    with notes.part("objects", "repo.git"):
        if usable:
            checked = _Deep(store, notes, changesets, progress).run() if deep else _shallow(store, notes)
    return Verified(
        checked,
        len(changesets) if deep else 0,
        operations,
        notes.problems,
        notes.findings,
        notes.total > FINDINGS_MAX,
    )


def closed(error: RopewalkError) -> Verified:
    """Gives the outcome for a store that can't be opened, because of that."""
    what = str(error.details.get("file", "store.db"))
    kind = "format" if what == "FORMAT" else "database"
    return Verified(0, 0, 0, [error.message], [Finding(kind, what, error.hint)], False)


def _database(store: Store, notes: Notes, deep: bool) -> None:
    with typed("check of the database"):
        for (text,) in store.db.rows(f"PRAGMA {'integrity_check' if deep else 'quick_check'}(20)"):
            if text != "ok":
                notes.add("database", "store.db", f"store.db: {text}", REPAIR)
    for name, value in (("store_id", store.format.id), ("name", store.format.name)):
        known = store.db.meta(name)
        if known is not None and known != value:
            notes.add("format", "FORMAT", f"FORMAT says {value!r}, the database {known!r}", REPAIR)


def _log(store: Store, notes: Notes) -> None:
    """Checks the chain, and that nothing in the database or beside it is newer than the log's end."""
    broken = oplog.check_chain(store.db)
    if broken is not None:
        words = f"the operation log was cut or edited at operation {broken}"
        notes.add("chain", str(broken), words, "run `rw repair --from BACKUP`, which takes its row when it fits")
    lost = store.lost_ops()
    if lost is not None:
        notes.add("cut", str(lost[0]), lost_words(lost), "run `rw repair`, which takes refs from repo.git")
        return
    last, newest = store.last_op(), newest_op(store.db)
    if newest > last:
        words = f"the operation log ends at {last}, but other tables know of operation {newest}"
        notes.add("cut", str(last + 1), words, "run `rw repair --from BACKUP`; without one their records are lost")


def newest_op(db: Database) -> int:
    """Gives the newest operation that any table knows of."""
    tables = "ops", "refs", "ref_values", "changesets", "landed", "land_paths", "keys"
    return max(int((db.row(f"SELECT max(op) FROM {name}") or (0,))[0] or 0) for name in tables)


def replayed(store: Store) -> dict[str, str | None]:
    """Gives every ref's target as the operation log left it; rows that can't be read are passed over."""
    wanted: dict[str, str | None] = {}
    last = 0
    while part := store.db.rows("SELECT op, CAST(body AS BLOB) FROM ops WHERE op > ? ORDER BY op LIMIT 1000", (last,)):
        for op, body in part:
            last = op
            try:
                moves = msgspec.json.decode(body, type=oplog.Body).moves
            except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
                continue  # the chain tells of it
            wanted.update({move.name: move.new for move in moves})
    return wanted


def _refs(store: Store, notes: Notes, usable: bool) -> None:
    """Replays the log's moves and holds the refs, and what `repo.git` shows of them, against the outcome."""
    wanted = replayed(store)
    present = dict(store.refs())
    for name in sorted({n for n, t in wanted.items() if t is not None} | set(present)):
        if wanted.get(name) != present.get(name):
            notes.add("ref", name, f"{short_ref(name)} is not where the operation log left it", REPAIR)
    shown = projection.read_shown(store)
    late = set(shown.waiting) | {str(r[0]) for r in store.db.rows("SELECT name FROM refs WHERE op > ?", (shown.op,))}
    repo = store.layout.repo
    whole: set[str] = set()
    for name, target in present.items():
        try:
            if target in whole or not usable:
                pass
            elif store.objects.find(target) is not None:
                whole.add(target)
            else:
                words = f"{short_ref(name)} points to {target}, which is missing"
                notes.add("missing", target, words, FROM, Hit([short_ref(name)], [target]))
        except RopewalkError as error:
            notes.add("damaged", target, error.message, REPAIR, Hit([short_ref(name)], [target]))
        found = projection.read_ref(repo, name)
        if found is not None and found != target and not store.gave_ref(name, found):
            goes_on = _goes_on(store, target, found)
            what = "goes on from there" if goes_on else "does not go on from there, or is not whole"
            words = f"{short_ref(name)} was moved to {found} without ropewalk, which {what}"
            notes.add("foreign_move", name, words, REPAIR)
        elif name not in late and found != target:
            words = f"repo.git shows {short_ref(name)} at {found or 'nothing'} instead of {target}"
            notes.add("projection", name, words, REPAIR)
    for name in shown_refs(repo):
        if name not in present and not name.startswith("refs/ropewalk/") and name not in late:
            notes.add("foreign_ref", name, f"repo.git has {name}, which ropewalk did not make", REPAIR)


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


def _files(store: Store, notes: Notes) -> None:
    root = store.layout.root
    if os.path.exists(os.path.join(root, "poisoned")):
        notes.add("poisoned", "store.db-wal", "an earlier sync of the store failed", REPAIR)
    for path in stale_locks(store):
        name = os.path.relpath(path, root)
        notes.add("stale_lock", name, f"{name} was left by a git process that is gone", REPAIR)
    with notes.part("authors", "authors.toml"):
        identity.check(store.layout)
    for name, words in _runs(store.layout.runs):
        notes.add("run", name, f"{name} can't be read: {words}", "nothing; the history of the store does not need it")


def _runs(folder: str) -> Iterator[tuple[str, str]]:
    """Gives the files of runs that hold something else than JSON, and what is wrong."""
    for inner, _, files in os.walk(folder):
        for name in sorted({"summary.json", "events.jsonl"} & set(files)):
            data = repository.read(os.path.join(inner, name)) or b""
            try:
                for line in data.splitlines() or [b""]:
                    msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                yield os.path.join("runs", os.path.relpath(inner, folder), name), str(error)


def _shallow(store: Store, notes: Notes) -> int:
    """Reads the head commit and root tree of every branch, each once, and gives how many commits are whole."""
    whole: set[str] = set()
    for name, target in store.refs("refs/heads/"):
        tree = target
        if target in whole:
            continue
        try:
            if store.objects.kind(target) != "commit":
                continue
            tree = store.objects.commit(target).tree
            if store.objects.find(tree) is not None:
                whole.add(target)
            else:
                hit = Hit([short_ref(name)], [target])
                notes.add("missing", tree, f"the tree {tree} of {short_ref(name)} is missing", FROM, hit)
        except RopewalkError as error:
            if tree != target:  # a damaged commit was told with its ref
                notes.add("damaged", tree, error.message, REPAIR, Hit([short_ref(name)], [target]))
    return len(whole)


class Survey:
    """Is what every copy of every object is like: which ids exist, and whose copies are damaged where.

    `journal` and `loose` are ids with a damaged copy there, `packs` the stems of damaged packs, `suspects` all
    ids that may have to do with any of it.
    """

    def __init__(self, store: Store, progress: Callable[[str], None]) -> None:
        self.store = store
        self.checked = 0
        self.there: set[str] = set()
        self.journalled: set[str] = set()
        self.journal: dict[str, str] = {}
        self.loose: dict[str, str] = {}
        self.packs: dict[str, str] = {}
        self.suspects: set[str] = set()
        self._journal()
        self._loose(progress)
        self._packs(progress)

    def _journal(self) -> None:
        last = 0
        while part := self.store.db.rows(_ROWS, (last,)):
            for seq, oid, packed in part:
                last = seq
                self.journalled.add(oid)
                try:
                    inflate(packed, oid)
                except Damaged as error:
                    self.journal[oid] = str(error)
        self.there |= self.journalled
        self.suspects |= set(self.journal)

    def _loose(self, progress: Callable[[str], None]) -> None:
        ids = self.store.objects.loose.ids()
        for number, oid in enumerate(ids):
            self.checked += 1
            if number % 5000 == 4999:
                progress(f"verify: {number + 1} of {len(ids)} loose objects")
            try:
                if not self.store.objects.loose.check(oid):
                    continue  # packed meanwhile
            except Damaged as error:
                self.loose[oid] = str(error)
            except RopewalkError as error:
                self.loose[oid] = error.message
            self.there.add(oid)
        self.suspects |= set(self.loose)

    def _packs(self, progress: Callable[[str], None]) -> None:
        repo = self.store.layout.repo
        folder = os.path.join(repo, "objects", "pack")
        for stem in sorted(n[:-4] for n in os.listdir(folder) if n.endswith(".idx") and not n.startswith("tmp")):
            ours = stem.startswith(packs.PREFIX)
            if not ours:
                progress(f"verify: pack {stem[5:17]}")
            ids = repository.indexed(repo, os.path.join(folder, f"{stem}.idx"))
            self.there |= ids
            done = git(repo, "verify-pack", os.path.join(folder, f"{stem}.idx"), ok=range(256), timeout=7200)
            if done.code == 0:
                self.checked += 0 if ours else len(ids)
            elif os.path.exists(os.path.join(folder, f"{stem}.idx")):
                words = done.err.decode("utf-8", "replace").strip().splitlines()
                self.packs[stem] = words[0].replace(f"{folder}/", "") if words else "damaged"
                self.suspects |= ids

    def unreadable(self) -> set[str]:
        """Gives the suspects that no copy holds whole."""
        return {oid for oid in self.suspects if not readable(self.store, oid)}


def exists(store: Store, oid: str) -> bool:
    """Says whether there is an object, or something in its place that is damaged; it may be newer than a survey."""
    try:
        return store.objects.kind(oid) is not None
    except RopewalkError:
        return True


def readable(store: Store, oid: str) -> bool:
    """Says whether an object can be read, whole and with the hash that is its name."""
    try:
        found = store.objects.find(oid)
        return found is not None and object_id(*found) == oid
    except RopewalkError:
        return False


class _Deep:
    """Reads and hashes every copy of every object, then the links between them."""

    def __init__(self, store: Store, notes: Notes, changesets: list[str], progress: Callable[[str], None]) -> None:
        self.store, self.notes, self.changesets, self.progress = store, notes, changesets, progress

    def run(self) -> int:
        with self.notes.part("journal", "store.db"):
            self.store.expose()
        last = self.store.last_op()
        survey = Survey(self.store, self.progress)
        self.progress("verify: links between objects")
        bad = survey.unreadable()
        reach = None
        if bad or not self._linked():
            reach = reached(self.store, survey.there, bad, self.changesets)
            bad |= reach.bad
        for where, damaged in ("the journal's copy", survey.journal), ("the loose file", survey.loose):
            for oid, words in damaged.items():
                if oid not in bad:
                    kind = "journal" if damaged is survey.journal else "damaged"
                    self.notes.add(kind, oid, f"{where} of {oid} is damaged ({words}), another is whole", REPAIR)
        for oid in sorted(bad):
            words = survey.loose.get(oid) or survey.journal.get(oid) or "in a pack"
            hit = reach.hit(oid) if reach else None
            self.notes.add("damaged", oid, f"the object {oid} is damaged: {words}", FROM, hit)
        for oid in sorted(reach.missing if reach else ()):
            self.notes.add("missing", oid, f"the object {oid} is missing", FROM, reach.hit(oid) if reach else None)
        named = {f.object.removesuffix(".idx") for f in self.notes.findings if f.kind in ("pack", "index")}
        for stem, words in survey.packs.items():
            if stem not in named:
                self.notes.add("pack", stem, f"{stem}: {words}", FROM)
        with self.notes.part("database", "store.db"):
            for table, words in rows.wrong(
                self.store, last, lambda oid: oid in survey.there or exists(self.store, oid)
            ):
                self.notes.add("row", table, f"{table}: {words}", ROW)
        hidden = repository.unseen(self.store)
        if hidden and not any(f.object.startswith(packs.PREFIX) for f in self.notes.findings):
            words = f"repo.git lacks {len(hidden)} objects of the journal that were shown there"
            self.notes.add("projection", hidden[0], words, REPAIR)
        if not self.notes.total:
            for flaw in repository.derived(self.store, deep=True):
                self.notes.add(flaw.kind, flaw.name, flaw.words, REPAIR)
        if self.notes.total:
            # without anything missing it is what a killed gc or import left, and nobody needs it
            for name in maintain.unindexed(self.store):
                self.notes.add("pack", f"pack-{name}", f"the index of pack {name} is missing", REPAIR)
        return survey.checked

    def _linked(self) -> bool:
        """Says whether all that refs and changesets reach is there; git asks the objects and nothing derived."""
        heads = sorted({*self.changesets, *(t for _, t in self.store.refs())})
        if not heads:
            return True
        if None in self.store.objects.read_many(heads):
            return False
        done = git(
            self.store.layout.repo, "-c", "core.commitGraph=false", "rev-list", "--objects", "--missing=print",
            "--stdin",
            stdin="".join(f"{h}\n" for h in heads).encode("ascii"), ok=range(256), timeout=7200,
        )  # fmt: skip
        return done.code == 0 and not any(line.startswith(b"?") for line in done.out.splitlines())


def reached(store: Store, there: set[str], bad: Iterable[str], changesets: Iterable[str]) -> Reach:
    """Walks from all refs and changesets and gives what damage reaches."""
    reach = Reach(store.objects, there, bad)
    reach.walk(store.refs(), changesets)
    return reach
