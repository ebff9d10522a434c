"""What the workspace tests share: a store with a main, and workspaces of it in the test's own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.ids import path_text
from ropewalk.store import changes, land, trees
from ropewalk.store.changes import Change, Content
from ropewalk.store.store import Store
from ropewalk.workspace import capture, checkout, landing, move, removal, state
from ropewalk.workspace.landing import Outcome, Wish
from ropewalk.workspace.state import Workspace

MAIN = "refs/heads/main"


class Bench:
    """Is a store and its workspaces, used in this process and by real commands."""

    def __init__(self, store: Store, folder: Path, env: Mapping[str, str]) -> None:
        self.store, self.folder = store, folder
        self.data = folder / "data"
        self.env = {k: v for k, v in env.items() if not k.startswith("GIT_")} | {"XDG_DATA_HOME": str(self.data)}

    def create(self, name: str = "one", agent: str = "claude/one", **words: Any) -> Path:
        """Makes a workspace and gives its folder."""
        head = self.store.ref(words.get("target", MAIN))
        assert head is not None
        given = {"base": head, "target": MAIN, "path": str(self.data / name), **words}
        ws, _ = checkout.create(self.store, checkout.Asked(name=name, agent=agent, **given))
        return Path(ws.path)

    def ws(self, name: str = "one") -> Workspace:
        """Gives a workspace's row."""
        return state.need(self.store, name)

    def land(self, name: str = "one", agent: str = "claude/one", message: str | None = "work", **words: Any) -> Outcome:
        """Lands a workspace."""
        wish = Wish(agent=agent, message=message, checks=str(self.data / "checks"), **words)
        with state.held(self.store, name):
            return landing.land_workspace(self.store, self.ws(name), wish)

    def changes(self, name: str = "one") -> dict[str, str]:
        """Gives what a workspace holds: path to `added`, `deleted` or `modified`."""
        found = capture.capture(self.store, self.ws(name), write=False).changes
        words = {(True, False): "added", (False, True): "deleted", (False, False): "modified"}
        return {path_text(c.path): words[c.old is None, c.new is None] for c in found}

    def rebase(self, name: str = "one", agent: str = "claude/one") -> move.Rebased:
        """Rebases a workspace on its target."""
        with state.held(self.store, name):
            return move.rebase(self.store, move.settle(self.store, self.ws(name)), MAIN, agent)

    def delete(self, name: str = "one", *, force: bool = False) -> removal.Deleted:
        """Deletes a workspace."""
        with state.held(self.store, name):
            return removal.delete(self.store, self.ws(name), "person/me", force=force)

    def publish(self, files: Mapping[str, str | None], agent: str = "codex/other") -> str:
        """Lands a change of another agent on main and gives the new head."""
        entries = [
            Change(path=path, op="delete") if text is None else Change(path=path, content=Content(inline=text))
            for path, text in files.items()
        ]
        made = changes.commit(
            self.store, agent=agent, message=f"others: {', '.join(files)}", changes=entries, parent="main",
            advance=None, key=None, read_file=changes.read_disk_file,
        )  # fmt: skip
        return land.land(self.store, land.request(agent=agent, change=made.changeset, ref=MAIN)).landed

    def tree(self, commit: str | None = None) -> dict[str, tuple[bytes, bytes]]:
        """Gives the files of a commit (default: main) as (mode, content)."""
        objects = self.store.objects
        found = trees.walk(objects, objects.commit(commit or self.head()).tree)
        return {
            path_text(p): (m, raw if m == trees.GITLINK else objects.read(raw.hex(), "blob")) for p, (m, raw) in found
        }

    def head(self) -> str:
        """Gives main's head."""
        found = self.store.ref(MAIN)
        assert found is not None
        return found

    def rw(self, *args: str, folder: Path | None = None, agent: str | None = None, **env: str) -> dict[str, Any]:
        """Runs the command as a process and gives its envelope with the exit code as `rc`."""
        done = subprocess.run(
            self.argv(*args),
            cwd=folder or self.folder,
            env=self.env | ({"ROPEWALK_AGENT": agent} if agent else {}) | env,
            capture_output=True,
            timeout=60,
        )
        envelope: dict[str, Any] = msgspec.json.decode(done.stdout)
        return envelope | {"rc": done.returncode}

    def argv(self, *args: str) -> list[str]:
        """Gives the command line of a command."""
        return [sys.executable, "-m", "ropewalk.cli.main", *args]


@pytest.fixture
def bench(store: Store, tmp_path: Path, clean: dict[str, str]) -> Bench:
    """Gives a bench on a store whose main has `README.md`, `src/a.py` (20 lines) and `src/b.py`."""
    return Bench(store, tmp_path, clean)


@pytest.fixture
def in_ws(clean: dict[str, str]) -> Any:
    """Gives a way to run the agent's own git in a workspace."""

    def run(folder: Path, *args: str, ok: bool = True) -> str:
        env = {k: v for k, v in clean.items() if not k.startswith(("GIT_AUTHOR", "GIT_COMMITTER"))}
        done = subprocess.run(["git", *args], cwd=folder, env=env, capture_output=True, timeout=60)
        assert not ok or done.returncode == 0, done.stderr
        return os.fsdecode(done.stdout).rstrip("\n")

    return run
