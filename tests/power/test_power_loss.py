"""After a power loss at any command's answer: what was acknowledged is there, and the store is sound."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.crash.scenarios import git, put

from ropewalk.core import clock
from ropewalk.store import layout, recovery, verify
from ropewalk.store.store import Store

from .disk import Disk, clean_environment, traced
from .without import sites

AGENT = "power/one"
SEEDS = [None, 1, 2, 3]
CAUGHT = (
    "remote/importing.py:_move_packs:2",
    "store/loose.py:sync_folder:1",
    "store/loose.py:put:1",
    "store/loose.py:put:2",
    "store/loose.py:put:3",
    "store/store.py:flush:1",
)
"""The syncs that these steps can miss; those of init, backup, restore and repair are not among the steps."""


class Work:
    """Is a folder with a store, traced commands on it, and what they acknowledged."""

    def __init__(self, folder: Path, skip: str = "") -> None:
        self.folder = folder
        self.store = folder / "store"
        self.skip = skip
        (folder / "home").mkdir(parents=True)
        (folder / "work").mkdir()
        self.env = clean_environment(folder / "home")
        self.plain("init", str(folder / "work"))
        self.disk = Disk(self.store)
        self.refs: dict[str, str] = {}
        self.blobs: list[str] = []
        self.op = 0

    def argv(self, *words: str) -> list[str]:
        if self.skip:
            runner = [sys.executable, "-m", "tests.power.without", self.skip]
        else:
            runner = [sys.executable, "-m", "ropewalk.cli.main"]
        return [*runner, *words, "--store", str(self.store), "--as", AGENT]

    def plain(self, *words: str) -> dict[str, Any]:
        """Runs a command that is not traced."""
        argv = [sys.executable, "-m", "ropewalk.cli.main", *words, "--store", str(self.store), "--as", AGENT]
        done = subprocess.run(argv, cwd=Path(__file__).parents[2], env=self.env, capture_output=True, timeout=120)
        envelope: dict[str, Any] = json.loads(done.stdout)
        assert envelope["ok"], envelope
        return envelope

    def run(self, *words: str) -> Any:
        """Runs a traced command, plays its calls onto the disk, and gives its result."""
        out, events = traced(self.argv(*words), Path(__file__).parents[2], self.env, self.folder / "trace")
        self.disk.play(events)
        (self.folder / "trace").unlink()
        envelope = json.loads(out)
        assert envelope["ok"], envelope
        return envelope["result"]

    def changes(self, path: str, text: str) -> str:
        listing = self.folder / "changes.json"
        listing.write_text(json.dumps(put(path, text)))
        return str(listing)

    def commit(self, path: str, text: str, *more: str) -> str:
        return str(self.run("commit", "-m", path, "--changes", self.changes(path, text), *more)["changeset"])


def holds(work: Work, seed: int | None, target: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Opens an image of the disk as the first command after a boot does; gives what is wrong with it."""
    work.disk.image(target, seed)
    wrong: list[str] = []
    monkeypatch.setattr(clock, "boot_id", lambda: f"after-{seed}")
    monkeypatch.setattr(recovery.clock, "boot_id", lambda: f"after-{seed}")
    monkeypatch.setattr(layout, "boot_id", lambda: f"after-{seed}")
    try:
        with Store(str(target)) as store:
            present = dict(store.refs())
            for name, oid in work.refs.items():
                if present.get(name) != oid:
                    wrong.append(f"{name} is at {present.get(name)}, not at {oid}")
            for oid in work.blobs:
                if store.objects.find(oid) is None:
                    wrong.append(f"the object {oid} is lost")
            if store.last_op() < work.op:
                wrong.append(f"the log ends at {store.last_op()}, before {work.op}")
            wrong += verify.verify(store, deep=True, progress=lambda line: None).problems
            wrong += store.warnings
        seen = subprocess.run(["git", f"--git-dir={target}/repo.git", "fsck", "--no-dangling"], capture_output=True)
        if seen.returncode:
            wrong.append(seen.stderr.decode())
    except Exception as error:  # any failure to open is a finding of the test
        wrong.append(f"{type(error).__name__}: {error}")
    shutil.rmtree(target, ignore_errors=True)
    return wrong


def story(work: Work, monkeypatch: pytest.MonkeyPatch, seeds: list[int | None]) -> list[str]:
    """Does a day's work and loses power after each answer; gives what was wrong, by step."""
    wrong: list[str] = []

    def check(step: str) -> None:
        for seed in seeds:
            found = holds(work, seed, work.folder / f"image-{step}", monkeypatch)
            wrong.extend(f"{step}, seed {seed}: {sentence}" for sentence in found)

    head = work.commit("a.txt", "a\n", "--advance", "main")
    work.refs["refs/heads/main"] = head
    check("commit")
    one = work.commit("d/one.txt", "1\n")
    two = work.commit("d/two.txt", "2\n")
    work.refs["refs/heads/main"] = work.run("land", one)["landed"]
    check("land")
    work.refs["refs/heads/main"] = work.run("land", two)["landed"]
    check("second land")
    work.run("ref", "set", "deep/er/ref", "main", "--create")
    work.refs["refs/heads/deep/er/ref"] = work.refs["refs/heads/main"]
    check("ref set")
    big = work.commit("big.bin", "0123456789abcdef" * 100_000)
    work.blobs.append(big)
    work.refs["refs/heads/main"] = work.run("land", big)["landed"]
    check("a large object")
    source = work.folder / "source"
    source.mkdir()
    git(source, "init", "-q", "-b", "trunk")
    for number in range(300):
        (source / f"f{number}").write_text(f"{number}\n")
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "many")
    small = git(source, "rev-parse", "trunk").strip()
    work.run("git", "import", str(source), "--ref", "trunk")
    work.refs["refs/heads/trunk"] = small
    check("a small import")
    for number in range(600):
        (source / f"g{number}").write_text(f"g{number}\n")
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "more")
    work.run("git", "import", str(source), "--ref", "trunk")
    work.refs["refs/heads/trunk"] = git(source, "rev-parse", "trunk").strip()
    check("a large import")
    work.run("gc")
    check("gc")
    three = work.commit("d/three.txt", "3\n", "--parent", "main")
    work.refs["refs/heads/main"] = work.run("land", three)["landed"]
    check("a land after gc")
    return wrong


def test_what_was_acknowledged_survives_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = story(Work(tmp_path / "w"), monkeypatch, SEEDS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("site", CAUGHT)
def test_a_sync_left_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str) -> None:
    """Without it some power loss takes what was acknowledged, or leaves damage."""
    assert site in sites()
    assert story(Work(tmp_path / "w", skip=site), monkeypatch, [None]), f"nothing is lost without {site}"
