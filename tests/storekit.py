"""What the store's tests share: a store in a temporary folder, short forms for commit and land, and stock git."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.core.errors import RopewalkError
from ropewalk.store import changes, land, layout, trees
from ropewalk.store.changes import Change, Committed, Content, read_disk_file
from ropewalk.store.land import Answering, Landed
from ropewalk.store.objects import Objects, Person
from ropewalk.store.report import FileResolution, Resolution
from ropewalk.store.store import Store

MAIN = "refs/heads/main"
SRC = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
STOCK = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "stock",
    "GIT_AUTHOR_EMAIL": "stock@example.com",
    "GIT_COMMITTER_NAME": "stock",
    "GIT_COMMITTER_EMAIL": "stock@example.com",
    "LC_ALL": "C.UTF-8",
}
NOBODY = Person(b"test", b"test@example.com", 1_700_000_000, b"+0000")
Files = Mapping[bytes, tuple[bytes, bytes]]
"""Is a model of a tree: from path to (mode, content); a gitlink's content is its 20 raw bytes."""


def stock(*args: str | bytes, stdin: bytes | None = None, cwd: str | None = None, ok: bool = True) -> bytes:
    """Runs the installed git as a person would, apart from the package's own way to start it."""
    done = subprocess.run(["git", *args], input=stdin, cwd=cwd, env=STOCK, capture_output=True, timeout=120)
    assert not ok or done.returncode == 0, (args, done.returncode, done.stderr)
    return done.stdout


def child_env(**extra: str) -> dict[str, str]:
    """Gives the environment of a Python child that imports this package."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("GIT_")}, "PYTHONPATH": SRC, **extra}


def rw(store: str, *args: str, agent: str = "a/b", stdin: bytes | None = None, **env: str) -> tuple[int, Any]:
    """Runs a command as a process of its own and gives (exit code, envelope)."""
    import msgspec

    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.main", args[0], *args[1:], "--store", store],
        input=stdin,
        env=child_env(ROPEWALK_AGENT=agent, **env),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, msgspec.json.decode(done.stdout)


def put(path: str, text: str | bytes, mode: str | None = None) -> Change:
    """Gives the entry of a change list that puts a file."""
    from base64 import b64encode

    content = Content(inline=text) if isinstance(text, str) else Content(base64=b64encode(text).decode())
    return Change(path=path, content=content, mode=mode)


def delete(path: str) -> Change:
    """Gives the entry that removes a path."""
    return Change(path=path, op="delete")


def move(old: str, new: str) -> Change:
    """Gives the entry that moves a path."""
    return Change(path=new, op="move", from_=old)


def link(path: str, target: str) -> Change:
    """Gives the entry that makes a symbolic link."""
    return Change(path=path, op="symlink", content=Content(inline=target))


def lines(*texts: str, count: int = 30) -> str:
    """Gives a text of numbered lines, with those of `texts` (as `N:TEXT`) replaced."""
    rows = [f"line {n}" for n in range(count)]
    for text in texts:
        number, _, words = text.partition(":")
        rows[int(number)] = words
    return "\n".join(rows) + "\n"


def write_tree(objects: Objects, files: Files) -> str:
    """Writes the tree of a model and gives its id."""
    nested: dict[bytes, Any] = {}
    for path, value in files.items():
        level = nested
        *above, name = path.split(b"/")
        for part in above:
            level = level.setdefault(part, {})
        level[name] = value
    return _write(objects, nested)


def _write(objects: Objects, level: dict[bytes, Any]) -> str:
    entries: dict[bytes, trees.Entry] = {}
    for name, value in level.items():
        if isinstance(value, dict):
            entries[name] = (trees.TREE, bytes.fromhex(_write(objects, value)))
        else:
            mode, content = value
            raw = content if mode == trees.GITLINK else bytes.fromhex(objects.write("blob", content))
            entries[name] = (mode, raw)
    return objects.write_tree(entries)


def read_tree(objects: Objects, tree: str) -> dict[bytes, tuple[bytes, bytes]]:
    """Gives the model of a tree."""
    return {
        path: (mode, raw if mode == trees.GITLINK else objects.read(raw.hex(), "blob"))
        for path, (mode, raw) in trees.walk(objects, tree)
    }


class Kit:
    """Is one store with short forms for what tests do to it."""

    def __init__(self, root: str, lock_wait: float = 10.0) -> None:
        if not os.path.exists(root):
            layout.create(root, "test-id", "test", "main")
        self.root = root
        self.repo = os.path.join(root, "repo.git")
        self.store = Store(root, lock_wait=lock_wait)

    def again(self, lock_wait: float = 10.0) -> Kit:
        """Gives a second hold on the same store, as another process would have it."""
        return Kit(self.root, lock_wait)

    def commit(
        self,
        *entries: Change,
        parent: str | None = "main",
        agent: str = "a/b",
        advance: str | None = None,
        key: str | None = None,
        message: str = "change",
    ) -> Committed:
        """Commits a change list."""
        return changes.commit(
            self.store,
            agent=agent,
            message=message,
            changes=entries,
            parent=parent,
            advance=advance,
            key=key,
            read_file=read_disk_file,
        )

    def first(self, *entries: Change, agent: str = "seed/one") -> str:
        """Makes `main` with a first commit."""
        return self.commit(*entries, parent=None, advance="main", agent=agent, message="first").changeset

    def land(
        self, change: str, *, agent: str = "a/b", ref: str = MAIN, answer: Resolution | None = None, **words: Any
    ) -> Landed:
        """Lands a change."""
        answering = Answering(answer, read_disk_file) if answer is not None else None
        return land.land(self.store, land.request(agent=agent, change=change, ref=ref, **words), answering=answering)

    def change(self, *entries: Change, agent: str = "a/b", parent: str | None = "main", **words: Any) -> Landed:
        """Commits and lands."""
        return self.land(self.commit(*entries, parent=parent, agent=agent).changeset, agent=agent, **words)

    def main(self) -> str:
        """Gives the head of `main`."""
        found = self.store.ref(MAIN)
        assert found is not None
        return found

    def files(self, commit: str | None = None) -> dict[bytes, tuple[bytes, bytes]]:
        """Gives the files of a commit (default: `main`) as (mode, content)."""
        return read_tree(self.store.objects, self.store.objects.commit(commit or self.main()).tree)

    def text(self, path: str, commit: str | None = None) -> str:
        """Gives the text of a file."""
        return self.files(commit)[path.encode()][1].decode()

    def stock(self, *args: str, ok: bool = True) -> str:
        """Runs stock git on `repo.git`."""
        return stock("--git-dir", self.repo, *args, ok=ok).decode("utf-8", "surrogateescape").rstrip("\n")

    def fsck(self) -> None:
        """Lets stock git check every object and link."""
        done = subprocess.run(
            ["git", "--git-dir", self.repo, "fsck", "--full", "--strict", "--no-dangling"],
            env=STOCK,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def loose(self, oid: str) -> str:
        """Gives the path of an object's loose file."""
        return self.store.objects.loose.path(oid)

    def damage(self, oid: str, keep: float = 0.5) -> str:
        """Cuts a loose file to a part of its length and gives its path."""
        self.store.expose()
        path = self.loose(oid)
        os.chmod(path, 0o644)
        os.truncate(path, int(os.path.getsize(path) * keep))
        return path

    def only_loose(self, oid: str) -> str:
        """Takes an object out of the journal, which would stand in for a damaged file; gives the file's path."""
        self.store.expose()
        self.store.db.run("DELETE FROM object_journal WHERE id = ?", (oid,))
        return self.loose(oid)

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


def refused(error: RopewalkError) -> tuple[str, object]:
    """Gives (code, reason) of an error."""
    return error.code, error.details.get("reason")


def answer(kit: Kit, files: Mapping[str, FileResolution], against: str | None = None) -> Resolution:
    """Gives a resolution against the present head of `main`."""
    return Resolution(against or kit.main(), dict(files))


__all__: Sequence[str] = [
    "MAIN", "NOBODY", "SRC", "STOCK", "FileResolution", "Files", "Kit", "answer", "child_env", "delete", "lines",
    "link", "move", "put", "read_tree", "refused", "rw", "stock", "write_tree",
]  # fmt: skip
