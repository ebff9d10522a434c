"""A store that has every class of file, with what each ref needs, and copies from before."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.operations import envelope, registry
from ropewalk.operations.context import Context
from ropewalk.run.report import Summary
from ropewalk.store import maintain
from ropewalk.store.loose import LooseStore
from ropewalk.store.oplog import Move
from ropewalk.workspace import checkout
from storekit import NOBODY, Kit, put, stock, write_tree

AUTHORS = '[claude]\nname = "Claude ({instance})"\nemail = "{instance}@claude.example.com"\n'


class World:
    """Is the folder with the store, the same store some operations earlier, and a backup.

    `objects` are the hashes of all objects' contents, `needs` what each ref reaches, `ids` objects by a name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.old, self.backup = folder / "store", folder / "old", folder / "backup"
        self.ids: dict[str, str] = {}
        self.refs: dict[str, str] = {}
        kit = Kit(str(self.root))
        try:
            self._build(kit)
        finally:
            kit.close()
        with_store = Kit(str(self.root))
        try:
            self.refs = dict(with_store.store.refs())
            self.needs = {name: reaches(with_store.repo, target) for name, target in self.refs.items()}
            every = stock("--git-dir", with_store.repo, "cat-file", "--batch-check", "--batch-all-objects")
            self.objects = {line.split()[0].decode(): content(with_store, line.split()[0].decode())
                            for line in every.splitlines()}  # fmt: skip
        finally:
            with_store.close()

    def _build(self, kit: Kit) -> None:
        """Packs one branch for good, journals another, shows a third by a small pack, and keeps one loose alone."""
        (self.root / "authors.toml").write_text(AUTHORS)
        kit.first(put("a", "packed\n" * 40), put("d/b", "b\n"))
        for number in range(4):
            kit.change(put("a", f"packed {number}\n" * 40), agent="claude/one")
        self.ids["packed"] = kit.files()[b"a"] and blob(kit, kit.main(), b"a")
        self._loose_alone(kit)
        maintain.collect(kit.store)
        pack = maintain.packs(kit.store)[0]
        kit.stock("-c", "core.hooksPath=/dev/null", "pack-refs", "--all")
        kit.stock("multi-pack-index", "write")
        other = root(kit, "other", {b"o": b"other\n"})
        self.ids["journalled"] = blob(kit, other, b"o")
        shown = root(kit, "shown", {b"many/%d" % n: b"many %d\n" % n for n in range(12)})
        self.ids["shown"] = blob(kit, shown, b"many/3")
        kit.store.expose()
        self._workspace(kit)
        run = self.root / "runs" / "r1"
        run.mkdir()
        (run / "events.jsonl").write_bytes(msgspec.json.encode({"at": 1.5, "event": "run_started", "base": kit.main(),
                                                                "ref": "main", "tasks": ["t"]}) + b"\n")  # fmt: skip
        summary = Summary("r1", "main", kit.main(), kit.main(), "done", 0, 0, 0, 0, 1.0, 0.0, [])
        (run / "summary.json").write_bytes(msgspec.json.encode(summary))
        (self.root / "spool" / "9-dead.req").write_bytes(b"\0" * 40)
        self._copy(kit)
        # from here on the old copies are old
        for number in range(3):
            kit.commit(put("new", f"new {number}\n"), parent="other", advance="other", message=f"newer {number}")
        twin = kit.commit(put("twin", "packed and loose\n"), parent="main", advance="twin")
        self.ids["twin"] = blob(kit, twin.changeset, b"twin")
        kit.stock("commit-graph", "write", "--reachable")
        assert pack in maintain.packs(kit.store)
        maintain.backup(kit.store, str(self.backup))

    def _loose_alone(self, kit: Kit) -> None:
        """Makes a branch and a tag object whose objects are loose files and nothing else."""
        made = root(kit, "loose", {b"l": b"loose\n", b"sub/m": b"more\n"})
        tag = kit.store.objects.write("tag", f"object {made}\ntype commit\ntag v1\ntagger a <a@b> 1 +0000\n"
                                             "\nv1\n".encode())  # fmt: skip
        with kit.store.transaction() as tx:
            tx.journal(kit.store.objects.take_new())
        self.ids |= {
            "blob": blob(kit, made, b"l"),
            "in the workspace": blob(kit, made, b"sub/m"),
            "tree": kit.store.objects.commit(made).tree,
            "commit": made,
            "tag": tag,
        }
        self.alone = [*reaches_all(kit, made), tag]
        kit.store.expose()
        rows = {oid: kit.store.objects.read(oid) for oid in self.alone}
        kinds = {oid: kit.store.objects.kind(oid) or "" for oid in self.alone}
        marks = ", ".join("?" * len(rows))
        kit.store.db.run(f"DELETE FROM object_journal WHERE id IN ({marks})", list(rows))
        loose: LooseStore = kit.store.objects.loose
        for oid, data in rows.items():
            assert loose.write(kinds[oid], data) == oid

    def _workspace(self, kit: Kit) -> None:
        place = self.folder / "ws"
        asked = checkout.Asked("w", "a/b", kit.main(), "refs/heads/main", str(place))
        checkout.create(kit.store, asked)
        (place / ".git/objects/info/alternates").unlink()
        stock("hash-object", "-w", "--stdin", stdin=b"more\n", cwd=str(place))

    def _copy(self, kit: Kit) -> None:
        kit.close()
        shutil.copytree(self.root, self.old, symlinks=True)
        kit.__init__(str(self.root))  # type: ignore[misc]

    def fresh(self, place: Path) -> Damaged:
        """Gives a copy to damage; its workspace goes with it."""
        shutil.copytree(self.root, place / "store", symlinks=True)
        return Damaged(self, place / "store")


class Damaged:
    """Is one copy of the store, and the commands that are run on it."""

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root = world, root
        self.healed: list[str] = []

    def call(self, name: str, **request: Any) -> tuple[int, dict[str, Any]]:
        """Gives (exit code, envelope) of an operation; a fault of ours is never an answer, nor is a long wait."""
        import ropewalk.operations.care  # noqa: F401

        context = Context(cwd=str(self.root.parent), store=str(self.root), agent="a/b")
        started = time.monotonic()
        try:
            reply = envelope.answer(registry.load(name), context, request)
        finally:
            context.close()
        assert time.monotonic() - started < 60, f"{name} took too long"
        shown = msgspec.json.decode(envelope.encode(reply.envelope))
        assert shown["ok"] or shown["error"]["code"] != "E_INTERNAL", shown
        return reply.exit, shown

    def unreadable(self) -> set[str]:
        """Gives the objects that the store can't give as they were."""
        kit = Kit(str(self.root))
        try:
            return {oid for oid, digest in self.world.objects.items() if content(kit, oid) != digest}
        finally:
            self.healed += kit.store.warnings
            kit.close()

    def refs(self) -> dict[str, str]:
        """Gives where the store's refs are."""
        kit = Kit(str(self.root))
        try:
            return dict(kit.store.refs())
        finally:
            kit.close()


def root(kit: Kit, branch: str, files: dict[bytes, bytes]) -> str:
    """Makes a branch with a history of its own, one commit long, and gives the commit."""
    objects = kit.store.objects
    tree = write_tree(objects, {path: (b"100644", data) for path, data in files.items()})
    made = objects.write_commit(tree, [], NOBODY, NOBODY, b"root\n")
    with kit.store.transaction() as tx:
        tx.journal(objects.take_new())
        tx.record("commit", "a/b", [Move(f"refs/heads/{branch}", None, made)], [(made, "a/b")])
    return made


def blob(kit: Kit, commit: str, path: bytes) -> str:
    """Gives the id of a file."""
    from ropewalk.store import trees

    entry = trees.lookup(kit.store.objects, kit.store.objects.commit(commit).tree, path)
    assert entry is not None
    return entry[1].hex()


def content(kit: Kit, oid: str) -> str | None:
    """Gives a hash of an object's type and content; None when it can't be read."""
    from ropewalk.core.errors import RopewalkError

    try:
        found = kit.store.objects.find(oid)
    except RopewalkError:
        return None
    return None if found is None else hashlib.sha256(found[0].encode() + found[1]).hexdigest()


def reaches(repo: str, target: str) -> set[str]:
    """Gives all objects that a commit reaches, as stock git lists them."""
    out = stock("--git-dir", repo, "rev-list", "--objects", "--no-object-names", target)
    return set(out.decode().split())


def reaches_all(kit: Kit, target: str) -> list[str]:
    """Gives the same of a store that has shown everything."""
    kit.store.expose()
    return sorted(reaches(kit.repo, target))


def pack_of(root: Path, prefix: str) -> Path:
    """Gives the pack whose name begins so."""
    found = sorted((root / "repo.git/objects/pack").glob(f"{prefix}*.pack"))
    assert found, prefix
    return found[0]


def writable(path: Path) -> None:
    """Lets a file be written."""
    os.chmod(path, 0o644)
