"""Where a second copy of an object may be: another store, a backup, any git repository, a workspace.

Their configuration is never read: our git is pointed at their objects folder. What they give is hashed before it
is believed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ropewalk.core.errors import NotFoundError, RopewalkError
from ropewalk.core.process import ObjectChild
from ropewalk.store.database import Database
from ropewalk.store.layout import git_common_dir
from ropewalk.store.loose import Damaged, inflate, object_id


class Found(NamedTuple):
    """Is an object from elsewhere: type, content, and where it was."""

    kind: str
    content: bytes
    where: str


class Source:
    """Is one place that may have objects: a folder of git objects, the journal of a store's database, or both."""

    def __init__(self, name: str, repo: str, objects: str, database: str | None = None) -> None:
        self.name = name
        self.database = database
        self._repo = repo
        self._env = {"GIT_OBJECT_DIRECTORY": objects}
        self._child: ObjectChild | None = None
        self._db: Database | None = None

    def read(self, oid: str) -> Found | None:
        """Gives an object, whole and hashed, or None."""
        packed = self._journalled(oid)
        if packed is not None:
            try:
                return Found(*inflate(packed, oid), self.name)
            except Damaged:
                pass
        for _ in (1, 2):
            try:
                if self._child is None:
                    self._child = ObjectChild(self._repo, self._env)
                found = self._child.ask([oid])[0]
            except OSError:
                self._end()  # git died of something damaged, perhaps of the object before
                continue
            whole = found is not None and object_id(*found) == oid
            return Found(*found, self.name) if found is not None and whole else None
        return None

    def _journalled(self, oid: str) -> bytes | None:
        try:
            db = self.opened()
            row = db.row("SELECT packed FROM object_journal WHERE id = ? LIMIT 1", (oid,)) if db else None
        except RopewalkError:
            self.database = None
            return None
        return None if row is None else bytes(row[0])

    def opened(self) -> Database | None:
        """Gives the source's database, None when it has none."""
        if self._db is None and self.database is not None:
            self._db = Database(self.database)
        return self._db

    def close(self) -> None:
        """Ends its child and its connection."""
        self._end()
        if self._db is not None:
            self._db.close()
            self._db = None

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


def of_folder(repo: str, path: str) -> Source:
    """Gives the source that a folder is: a store, a backup, a repository or a work tree; else `E_NOT_FOUND`.

    `repo` is the git directory whose settings our git runs with.
    """
    if os.path.isdir(os.path.join(path, "repo.git", "objects")):
        database = os.path.join(path, "store.db")
        there = database if os.path.isfile(database) else None
        return Source(path, repo, os.path.join(path, "repo.git", "objects"), there)
    if os.path.isdir(os.path.join(path, "pack")):
        return Source(path, repo, path)
    found = git_common_dir(path) if os.path.isdir(path) else None
    if found is None or not os.path.isdir(os.path.join(found[1], "objects")):
        raise NotFoundError(
            f"{path} is neither a store nor a backup nor a repository", hint="name one of them", path=path
        )
    return Source(path, repo, os.path.join(found[1], "objects"))


def first(places: Sequence[Source], oid: str) -> Found | None:
    """Gives an object from the first place that has it whole."""
    for place in places:
        found = place.read(oid)
        if found is not None:
            return found
    return None
