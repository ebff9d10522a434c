"""A store with history and an ambiguous short id, seen from outside before and after each input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ropewalk.store import changes, land, layout, maintain
from ropewalk.store.changes import Change, Content
from ropewalk.store.store import Store

# SQLite's own files change when they are read; the mark of the last sync and the lock carry no state
UNSTABLE = ("store.db", "store.db-wal", "store.db-shm", "flushed", "writer.lock")


class State(NamedTuple):
    """Is what must not change when an operation fails."""

    refs: tuple[tuple[str, str], ...]
    op: int
    files: frozenset[str]


class World:
    """Is a store and the folder from which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.top = folder
        self.cwd = folder / "up" / "to" / "here" / "cwd"
        self.cwd.mkdir(parents=True)
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        self.root = folder / "store"
        layout.create(str(self.root), "00000000-0000-4000-8000-000000000000", "fuzz", "main")
        self.store = Store(str(self.root))
        first = self._commit("first", {"a.txt": "one\ntwo\nthree\n", "d/b.txt": "b\n"}, None, "main")
        side = self._commit("side", {"d/side.txt": "side\n"}, first, None)
        land.land(self.store, land.request(agent="fuzz/one", change=side, ref="refs/heads/main"))
        self.ids = {"old": side, "main": str(self.store.ref("refs/heads/main")), "short": self._ambiguous(first)}
        tree = self.store.objects.commit(self.ids["main"]).tree
        self.ids["tree"] = tree
        self.ids["blob"] = changes.put_blobs(self.store, "fuzz/one", [b"blob\n"])[0]
        # few files and folders, so that looking at all of them after each input is cheap
        maintain.collect(self.store)
        for folder in (self.root / "repo.git" / "objects").iterdir():
            if len(folder.name) == 2 and not any(folder.iterdir()):
                folder.rmdir()

    def _commit(self, message: str, files: dict[str, str], parent: str | None, advance: str | None) -> str:
        listed = [Change(path=p, content=Content(inline=t)) for p, t in files.items()]
        return changes.commit(self.store, agent="fuzz/one", message=message, changes=listed, parent=parent,
                              advance=advance, key=None, read_file=changes.read_disk_file).changeset  # fmt: skip

    def _ambiguous(self, parent: str) -> str:
        """Gives four digits with which two commits begin."""
        seen: set[str] = set()
        for number in range(3000):
            made = self._commit(f"n{number}", {"n.txt": f"{number}\n"}, parent, None)[:4]
            if made in seen:
                return made
            seen.add(made)
        raise AssertionError("no two of 3,000 commits share four digits")

    def state(self) -> State:
        """Gives refs, operations and files; what a write before has yet to show in repo.git is shown first."""
        self.store.expose()
        found = set()
        for folder, _, files in os.walk(self.root):
            inside = os.path.relpath(folder, self.root)
            for name in files:
                if not (inside == "." and name in UNSTABLE):
                    found.add(f"{inside}/{name} {os.lstat(os.path.join(folder, name)).st_size}")
        return State(tuple(self.store.refs()), self.store.last_op(), frozenset(found))
